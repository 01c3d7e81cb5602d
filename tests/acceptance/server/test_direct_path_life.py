"""Calls on direct paths whose client disconnects, whose store hangs, or whose service stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.wire import Wire, connected, cut, request

STOP_S = 10.0
DRAIN_S = 4.0
WAIT_POP = request("POST", "/topics/t/pop?wait=30")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path, "--drain-timeout", str(DRAIN_S), "--store-timeout", "3", preloaded=True) as service:
        service.wait_ready()
        yield service


def put(job_id: str, **fields: Any) -> bytes:
    return request("POST", "/jobs", {"topic": "t", "id": job_id, **fields})


def pop() -> bytes:
    return request("POST", "/topics/t/pop?wait=0")


@contextlib.asynccontextmanager
async def usual_client(service: ServiceProcess) -> AsyncIterator[Wire]:
    """A connection whose headers the service knows, so that its calls take direct paths."""
    async with connected(service.port) as wire:
        for _ in range(3):
            for raw in (
                request("POST", "/jobs", {"topic": "other", "delay": 1000}),
                request("POST", "/topics/none/pop?wait=0"),
            ):
                wire.send(raw)
                assert (await wire.read_response()).status in {200, 201}
        yield wire


@contextlib.contextmanager
def paused_store(service: ServiceProcess) -> Iterator[None]:
    pid = service.store_pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def waiting(service: ServiceProcess, number: int) -> None:
    await asyncio.to_thread(service.wait_for_waiting_pops, number)


async def test_a_pop_whose_client_disconnects_takes_no_job(service: ServiceProcess) -> None:
    async with usual_client(service) as wire, usual_client(service) as other:
        wire.send(WAIT_POP)
        await waiting(service, 1)
        await cut(wire.writer)
        await waiting(service, 0)
        other.send(put("j"))
        assert (await other.read_response()).status == 201
        other.send(pop())
        [job] = (await other.read_response()).json()["jobs"]
        assert (job["id"], job["attempt"]) == ("j", 1)


async def test_a_job_popped_for_a_client_that_has_disconnected_returns(service: ServiceProcess) -> None:
    async with usual_client(service) as wire, usual_client(service) as other:
        other.send(put("j"))
        assert (await other.read_response()).status == 201
        with paused_store(service):
            wire.send(pop())
            await asyncio.sleep(0.3)
            await cut(wire.writer)
            await asyncio.sleep(0.3)
        other.send(WAIT_POP)
        [job] = (await other.read_response()).json()["jobs"]
        assert (job["id"], job["attempt"]) == ("j", 1)


async def test_a_put_whose_client_disconnects_is_stored(service: ServiceProcess) -> None:
    async with usual_client(service) as wire, usual_client(service) as other:
        with paused_store(service):
            wire.send(put("j"))
            await asyncio.sleep(0.3)
            await cut(wire.writer)
        other.send(WAIT_POP)
        assert [job["id"] for job in (await other.read_response()).json()["jobs"]] == ["j"]


async def test_requests_sent_ahead_get_their_responses_in_order(service: ServiceProcess) -> None:
    async with usual_client(service) as wire:
        with paused_store(service):
            wire.send(put("first", delay=1000))
            await asyncio.sleep(0.2)
            wire.send(put("second", delay=1000))
            await asyncio.sleep(0.2)
            wire.send(put("third", delay=1000))
            await asyncio.sleep(0.2)
        assert [(await wire.read_response()).json()["id"] for _ in range(3)] == ["first", "second", "third"]
        wire.send(put("fourth", delay=1000))
        assert (await wire.read_response()).json()["id"] == "fourth"


@pytest.mark.slow
async def test_each_call_in_a_failed_store_call_gets_503(service: ServiceProcess) -> None:
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(usual_client(service)) for _ in range(4)]
        with paused_store(service):
            for number, wire in enumerate(wires):
                wire.send(put(f"j{number}"))
            responses = [await wire.read_response() for wire in wires]
        assert [(one.status, one.json()["code"]) for one in responses] == [(503, "store_unavailable")] * 4
        wires[0].send(put("later", delay=1000))
        assert (await wires[0].read_response()).status == 201


async def test_a_service_that_stops_ends_its_pops(service: ServiceProcess) -> None:
    async with usual_client(service) as wire:
        wire.send(WAIT_POP)
        await waiting(service, 1)
        stopping = asyncio.create_task(asyncio.to_thread(service.stop))
        response = await wire.read_response()
        assert (response.status, response.json(), response.headers["connection"]) == (200, {"jobs": []}, "close")
        assert await wire.is_closed()
        assert await stopping == 0


async def test_a_service_that_stops_finishes_its_puts(service: ServiceProcess) -> None:
    async with usual_client(service) as wire:
        with paused_store(service):
            wire.send(put("j"))
            await asyncio.sleep(0.3)
            stopping = asyncio.create_task(asyncio.to_thread(service.stop))
            await asyncio.sleep(0.5)
        response = await wire.read_response()
        assert (response.status, response.headers["connection"]) == (201, "close")
        assert await wire.is_closed()
        assert await stopping == 0


async def test_a_service_that_stops_closes_behind_a_request_that_had_come_in_part(service: ServiceProcess) -> None:
    async with usual_client(service) as wire:
        head, body = put("j").split(b"{", 1)
        wire.send(head)
        await asyncio.sleep(0.3)
        stopping = asyncio.create_task(asyncio.to_thread(service.stop))
        await asyncio.sleep(0.3)
        wire.send(b"{" + body)
        response = await wire.read_response()
        assert (response.status, response.headers.get("connection")) == (201, "close")
        assert await wire.is_closed()
        assert await stopping == 0


@pytest.mark.slow
async def test_a_service_that_waits_no_longer_closes_the_connections_of_its_puts(tmp_path: Path) -> None:
    flags = ("--drain-timeout", "0.5", "--store-timeout", "8")
    with ServiceProcess(tmp_path, *flags, preloaded=True) as service:
        service.wait_ready()
        async with AsyncExitStack() as stack:
            wires = [await stack.enter_async_context(usual_client(service)) for _ in range(4)]
            with paused_store(service):
                for number, wire in enumerate(wires):
                    wire.send(put(f"j{number}"))
                await asyncio.sleep(0.3)
                stopping = asyncio.create_task(asyncio.to_thread(service.stop))
                assert all([await wire.is_closed() for wire in wires])
            assert await stopping == 0
    assert "Traceback" not in service.output()


async def test_its_requests_are_counted_as_others_are(service: ServiceProcess) -> None:
    async with usual_client(service) as wire:
        wire.send(put("j"))
        await wire.read_response()
        wire.send(put("j"))
        await wire.read_response()
    async with httpx.AsyncClient(base_url=service.url, verify=NO_TLS) as client:
        lines = (await client.get("/metrics")).text.splitlines()
    counts = [
        line for line in lines if line.startswith('deferd_http_request_seconds_count{method="POST",route="/jobs"')
    ]
    assert [line.partition("status=")[2] for line in sorted(counts)] == ['"2xx"} 4.0', '"4xx"} 1.0']
