"""The framing of requests with headers that the service knows: it is as strict as that of others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.acceptance.http_calls import Http
from tests.acceptance.server.tls_files import TlsFiles
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.wire import Wire, connected, request

HEALTH = request("GET", "/healthz")
USUAL = 4
"""From the third time on, a usual request takes its direct path."""


@pytest.fixture
async def wire(shared_service: ServiceProcess) -> AsyncIterator[Wire]:
    async with connected(shared_service.port) as wire:
        yield wire


def put(topic: str, job_id: str) -> bytes:
    return request("POST", "/jobs", {"topic": topic, "id": job_id, "delay": 1000})


@contextlib.asynccontextmanager
async def usual_client(service: ServiceProcess) -> AsyncIterator[Wire]:
    async with connected(service.port) as wire:
        await make_usual(wire)
        yield wire


async def make_usual(wire: Wire) -> None:
    for _ in range(USUAL):
        for raw in (put("other", "usual"), request("POST", "/topics/none/pop?wait=0")):
            wire.send(raw)
            assert (await wire.read_response()).status in {200, 201, 409}


@pytest.mark.parametrize(
    "line", ["POST /topics/none/pop?wait=0", "GET /topics/none/pop?wait=0", "DELETE /jobs/none/a"], ids=str
)
async def test_a_body_that_comes_after_its_head_is_not_read_as_a_request(http: Http, wire: Wire, line: str) -> None:
    method, path = line.split()
    smuggled = put(http.topic, "smuggled")
    raw = request(method, path, smuggled)
    head_bytes = len(raw) - len(smuggled)
    statuses = set()
    for _ in range(USUAL):
        wire.send(raw[:head_bytes])
        await asyncio.sleep(0.1)
        wire.send(smuggled)
        statuses.add((await wire.read_response()).status)
    assert len(statuses) == 1
    assert 201 not in statuses
    wire.send(HEALTH)
    assert (await wire.read_response()).json() == {"status": "ok"}
    assert await http.counts() == {}


async def test_two_requests_in_one_read_get_two_responses(http: Http, wire: Wire) -> None:
    await make_usual(wire)
    wire.send(put(http.topic, "a") + put(http.topic, "b") + request("DELETE", f"/jobs/{http.topic}/a") + HEALTH)
    assert [(await wire.read_response()).status for _ in range(4)] == [201, 201, 200, 200]


@pytest.mark.parametrize(
    "length",
    [b"+%d", b"0%d", b"%d ", b"\t%d", b" %d", b"%d\r\nContent-Length: %d", b"%d, %d", b"\r\n %d", b"%d\0", b"0"],
)
async def test_a_length_in_another_form_has_the_same_response_on_a_known_connection(
    shared_service: ServiceProcess, http: Http, wire: Wire, length: bytes
) -> None:
    body = b'{"topic":"%b","id":"a"}' % http.topic.encode()
    raw = b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: %b\r\n\r\n%b" % (
        length.replace(b"%d", b"%d" % len(body)),
        body,
    )
    wire.send(raw)
    expected = await wire.read_response()
    async with usual_client(shared_service) as known:
        known.send(raw)
        response = await known.read_response()
    assert response.status == (409 if expected.status == 201 else expected.status)
    assert response.headers.get("connection") == expected.headers.get("connection")


@pytest.mark.parametrize(
    "first_line",
    [
        b"POST /jobs HTTP/1.0",
        b"POST /jobs HTTP/1.1\nX: y",
        b"POST http://x/jobs HTTP/1.1",
        b"POST /job%73 HTTP/1.1",
        b"POST /jobs? HTTP/1.1",
        b"POST  /jobs HTTP/1.1",
        b"POST /jobs HTTP/1.1 ",
        b" POST /jobs HTTP/1.1",
        b"\r\nPOST /jobs HTTP/1.1",
        b"post /jobs HTTP/1.1",
        b"POST /jobs HTTP/1.1\r\nExpect: 100-continue",
        b"POST /jobs HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c",
        b"POST /jobs HTTP/1.1\r\nConnection: close",
    ],
)
async def test_an_unusual_first_line_has_the_same_response_on_a_known_connection(
    shared_service: ServiceProcess, http: Http, wire: Wire, first_line: bytes
) -> None:
    body = b'{"topic":"%b","id":"a","on_conflict":"replace"}' % http.topic.encode()
    raw = b"%b\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (first_line, len(body), body)
    wire.send(raw)
    expected = await wire.head()
    async with usual_client(shared_service) as known:
        known.send(raw)
        response = await known.head()
    assert response.split()[1] == expected.split()[1].replace("201", "200")
    assert ("connection: close" in response) is ("connection: close" in expected)


async def test_calls_over_tls_are_framed_in_the_same_way(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path)
    with running_service(*files.flags(), data_dir=tmp_path / "data") as service:
        async with connected(service.port, files.trust()) as wire:
            await make_usual(wire)
            last = put("t", "c").replace(b"Host: x", b"Host: x\r\nConnection: close")
            wire.send(put("t", "a") + put("t", "b"), last, put("t", "d"))
            assert [(await wire.read_response()).json().get("id") for _ in range(3)] == ["a", "b", "c"]
            assert await wire.is_closed()


@pytest.mark.parametrize(
    "behind",
    [b"no HTTP\r\n\r\n", b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 5, 5\r\n\r\n", b"\0", HEALTH + b"\0"],
    ids=repr,
)
async def test_an_invalid_request_behind_a_waiting_pop_closes_the_connection_after_its_response(
    shared_service: ServiceProcess, topic: str, behind: bytes
) -> None:
    async with usual_client(shared_service) as wire:
        wire.send(request("POST", f"/topics/{topic}/pop?wait=0.5"))
        await asyncio.sleep(0.1)
        wire.send(behind)
        assert (await wire.read_response()).json() == {"jobs": []}
        if behind.startswith(HEALTH):
            assert (await wire.read_response()).json() == {"status": "ok"}
        assert await wire.is_closed()


async def test_a_part_of_a_request_behind_a_waiting_pop_is_completed_later(
    shared_service: ServiceProcess, topic: str
) -> None:
    async with usual_client(shared_service) as wire:
        raw = put(topic, "a")
        wire.send(request("POST", f"/topics/{topic}/pop?wait=0.5"))
        await asyncio.sleep(0.1)
        wire.send(raw[:-5])
        assert (await wire.read_response()).json() == {"jobs": []}
        await asyncio.sleep(0.1)
        wire.send(raw[-5:] + put(topic, "b"))
        assert [(await wire.read_response()).json()["id"] for _ in range(2)] == ["a", "b"]
