"""A client that closes its side of the connection (`shutdown(SHUT_WR)`) still reads its responses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.acceptance.http_calls import Http
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.wire import Wire, connected, request

REQUESTS_UNTIL_DIRECT = 4
ways = pytest.mark.parametrize("way", ["plain", "asgi", "direct"])


@pytest.fixture
async def wire(shared_service: ServiceProcess) -> AsyncIterator[Wire]:
    async with connected(shared_service.port) as wire:
        yield wire


async def take_way(wire: Wire, way: str, first: bytes) -> None:
    """Send a request so often that the next one like it takes a direct path, if that is the way."""
    for _ in range(REQUESTS_UNTIL_DIRECT if way == "direct" else 0):
        wire.send(first)
        await wire.read_response()


async def test_what_is_complete_is_done_and_the_last_response_closes(http: Http, wire: Wire) -> None:
    wire.send(*(request("POST", "/jobs", {"topic": http.topic, "id": f"j{number}"}) for number in range(3)))
    wire.writer.write_eof()
    assert [201] * 3 == [(await wire.read_response()).status for _ in range(3)]
    assert await wire.is_closed()
    assert {"ready": 3} == await http.counts()


@ways
async def test_a_put_gets_its_response(http: Http, wire: Wire, way: str) -> None:
    await take_way(wire, way, request("POST", "/jobs", {"topic": f"{http.topic}-before", "id": "j"}))
    wire.send(request("POST", "/jobs", {"topic": http.topic, "id": "j"}, through_asgi=way == "asgi"))
    wire.writer.write_eof()
    assert (await wire.read_response()).status == 201
    assert await wire.is_closed()


@ways
async def test_a_waiting_pop_ends_and_takes_no_job(
    http: Http, wire: Wire, shared_service: ServiceProcess, way: str
) -> None:
    await take_way(wire, way, request("GET", f"/topics/{http.topic}/pop?wait=0"))
    wire.send(request("GET", f"/topics/{http.topic}/pop?wait=60", through_asgi=way == "asgi"))
    await asyncio.to_thread(shared_service.wait_for_waiting_pops, 1)
    wire.writer.write_eof()
    response = await wire.read_response()
    assert (400, "half_closed", "close") == (response.status, response.json()["code"], response.headers["connection"])
    assert await wire.is_closed()
    await http.put_job("j")
    assert (await http.pop_one(wait=0))["attempt"] == 1


async def test_behind_a_waiting_pop_other_requests_are_carried_out(http: Http, wire: Wire) -> None:
    pop, put = request("GET", f"/topics/{http.topic}/pop?wait=60"), request("POST", "/jobs", {"topic": http.topic})
    wire.send(pop, put, pop)
    wire.writer.write_eof()
    assert [400, 201, 400] == [(await wire.read_response()).status for _ in range(3)]
    assert await wire.is_closed()
    async with asyncio.timeout(10):  # what was popped for the last one returns behind its response
        while await http.counts() != {"ready": 1}:
            await asyncio.sleep(0.01)


async def test_a_stream_ends(wire: Wire) -> None:
    wire.send(request("GET", "/events"))
    assert " 200 OK" in await wire.head()
    wire.writer.write_eof()
    async with asyncio.timeout(10):
        assert (await wire.reader.read()).endswith(b"0\r\n\r\n")


@pytest.mark.parametrize(
    "part",
    [b"POST /jobs HTTP/1.1\r\nHost: x\r\n", b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", b"P"],
)
@pytest.mark.parametrize("requests_before", [0, 2])
async def test_a_part_of_a_request_is_refused_behind_the_responses_that_are_due(
    wire: Wire, part: bytes, requests_before: int
) -> None:
    wire.send(request("GET", "/readyz") * requests_before + part)
    wire.writer.write_eof()
    assert [200] * requests_before == [(await wire.read_response()).status for _ in range(requests_before)]
    rest = await asyncio.wait_for(wire.reader.read(), 10)
    # Behind others it is only sent when they were complete before the end came.
    assert rest.startswith(b"HTTP/1.1 400 ") if rest else requests_before
