"""Calls on direct paths whose client disconnects, whose store hangs, or whose service stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.http_calls import NO_TLS
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.wire import Wire, connected, cut, request

DRAIN_S = 4.0
FLAGS = ("--drain-timeout", str(DRAIN_S), "--store-timeout", "3")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service(*FLAGS, data_dir=tmp_path_factory.mktemp("service")) as service:
        yield service


def put(topic: str, job_id: str, **fields: Any) -> bytes:
    return request("POST", "/jobs", {"topic": topic, "id": job_id, **fields})


def pop(topic: str, wait_s: int = 0) -> bytes:
    return request("POST", f"/topics/{topic}/pop?wait={wait_s}")


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


async def test_a_pop_whose_client_disconnects_takes_no_job(service: ServiceProcess, topic: str) -> None:
    async with usual_client(service) as wire, usual_client(service) as other:
        wire.send(pop(topic, 30))
        await waiting(service, 1)
        await cut(wire.writer)
        await waiting(service, 0)
        other.send(put(topic, "j"))
        assert (await other.read_response()).status == 201
        other.send(pop(topic))
        [job] = (await other.read_response()).json()["jobs"]
        assert (job["id"], job["attempt"]) == ("j", 1)


async def test_a_job_popped_for_a_client_that_has_disconnected_returns(service: ServiceProcess, topic: str) -> None:
    async with usual_client(service) as wire, usual_client(service) as other:
        other.send(put(topic, "j"))
        assert (await other.read_response()).status == 201
        with paused_store(service):
            wire.send(pop(topic))
            await asyncio.sleep(0.3)
            await cut(wire.writer)
            await asyncio.sleep(0.3)
        other.send(pop(topic, 30))
        [job] = (await other.read_response()).json()["jobs"]
        assert (job["id"], job["attempt"]) == ("j", 1)


async def test_a_put_whose_client_disconnects_is_stored(service: ServiceProcess, topic: str) -> None:
    async with usual_client(service) as wire, usual_client(service) as other:
        with paused_store(service):
            wire.send(put(topic, "j"))
            await asyncio.sleep(0.3)
            await cut(wire.writer)
        other.send(pop(topic, 30))
        assert [job["id"] for job in (await other.read_response()).json()["jobs"]] == ["j"]


async def test_requests_sent_ahead_get_their_responses_in_order(service: ServiceProcess, topic: str) -> None:
    async with usual_client(service) as wire:
        with paused_store(service):
            wire.send(put(topic, "first", delay=1000))
            await asyncio.sleep(0.2)
            wire.send(put(topic, "second", delay=1000))
            await asyncio.sleep(0.2)
            wire.send(put(topic, "third", delay=1000))
            await asyncio.sleep(0.2)
        assert [(await wire.read_response()).json()["id"] for _ in range(3)] == ["first", "second", "third"]
        wire.send(put(topic, "fourth", delay=1000))
        assert (await wire.read_response()).json()["id"] == "fourth"


@pytest.mark.slow
async def test_each_call_in_a_failed_store_call_gets_503(tmp_path: Path, topic: str) -> None:
    async with AsyncExitStack() as stack:
        service = stack.enter_context(running_service("--store-timeout", "1", data_dir=tmp_path))
        wires = [await stack.enter_async_context(usual_client(service)) for _ in range(4)]
        with paused_store(service):
            for number, wire in enumerate(wires):
                wire.send(put(topic, f"j{number}"))
            responses = [await wire.read_response() for wire in wires]
        assert [(one.status, one.json()["code"]) for one in responses] == [(503, "store_unavailable")] * 4
        wires[0].send(put(topic, "later", delay=1000))
        assert (await wires[0].read_response()).status == 201


async def test_a_service_that_stops_ends_its_pops_and_finishes_its_puts(tmp_path: Path) -> None:
    """Also a put that has come in part."""
    with running_service(*FLAGS, data_dir=tmp_path) as service:
        async with AsyncExitStack() as stack:
            popping, putting, late = [await stack.enter_async_context(usual_client(service)) for _ in range(3)]
            popping.send(pop("empty", 30))
            await waiting(service, 1)
            head, body = put("t", "late").split(b"{", 1)
            late.send(head)
            with paused_store(service):
                putting.send(put("t", "j"))
                await asyncio.sleep(0.3)
                stopping = asyncio.create_task(asyncio.to_thread(service.stop))
                popped = await popping.read_response()
                await asyncio.sleep(0.3)
                late.send(b"{" + body)
            assert (popped.status, popped.json(), popped.headers["connection"]) == (200, {"jobs": []}, "close")
            for wire in (putting, late):
                response = await wire.read_response()
                assert (response.status, response.headers["connection"]) == (201, "close")
            for wire in (popping, putting, late):
                assert await wire.is_closed()
            assert await stopping == 0


@pytest.mark.slow
async def test_a_service_that_waits_no_longer_closes_the_connections_of_its_puts(tmp_path: Path) -> None:
    flags = ("--drain-timeout", "0.5", "--store-timeout", "8")
    with running_service(*flags, data_dir=tmp_path) as service:
        async with AsyncExitStack() as stack:
            wires = [await stack.enter_async_context(usual_client(service)) for _ in range(4)]
            with paused_store(service):
                for number, wire in enumerate(wires):
                    wire.send(put("t", f"j{number}"))
                await asyncio.sleep(0.3)
                stopping = asyncio.create_task(asyncio.to_thread(service.stop))
                assert all([await wire.is_closed() for wire in wires])
            assert await stopping == 0
    assert "Traceback" not in service.output()


async def test_its_requests_are_counted_as_others_are(service: ServiceProcess, topic: str) -> None:
    before = await counted_puts(service)
    async with usual_client(service) as wire:
        for _ in range(2):
            wire.send(put(topic, "j"))
            await wire.read_response()
    after = await counted_puts(service)
    counted = {status: count - before.get(status, 0) for status, count in after.items()}
    assert {status: count for status, count in counted.items() if count} == {"2xx": 4, "4xx": 1}


async def counted_puts(service: ServiceProcess) -> dict[str, float]:
    """How many puts the metrics count, by status."""
    async with httpx.AsyncClient(base_url=service.url, verify=NO_TLS) as client:
        metrics = (await client.get("/metrics")).text
    name = r'^deferd_http_request_seconds_count\{method="POST",route="/jobs",status="(...)"\} (\S+)$'
    return {status: float(count) for status, count in re.findall(name, metrics, re.MULTILINE)}
