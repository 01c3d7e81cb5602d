"""The framing of requests: ambiguous ones are refused, and no part of a body is read as a request.

Otherwise a client behind a shared proxy could insert requests into the connections of others (request smuggling).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from tests.acceptance.http_calls import Http
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.wire import Wire, connected, request

HEALTH = request("GET", "/healthz")
CHUNKED = b"Transfer-Encoding: chunked"
both_ways = pytest.mark.parametrize("through_asgi", [False, True], ids=["plain", "asgi"])
UPGRADE_HEADERS = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
"""The headers that Java's client sends with its first request over plain HTTP."""


@pytest.fixture
async def wire(shared_service: ServiceProcess) -> AsyncIterator[Wire]:
    async with connected(shared_service.port) as wire:
        yield wire


def put(topic: str, job_id: str) -> bytes:
    return json.dumps({"topic": topic, "id": job_id}).encode()


def in_one_chunk(body: bytes, end_of_line: bytes = b"\r\n", *, size: bytes | None = None) -> bytes:
    size = b"%x" % len(body) if size is None else size
    return end_of_line.join((size, body, b"0", b"", b""))


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: %d\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: %d",
        b"Content-Length: %d\r\nContent-Length: %d",
        b"Content-Length: %d\r\nContent-Length: 5",
        b"Content-Length: %d, %d",
        b"Content-Length: +%d",
        b"Content-Length: -%d",
        b"Content-Length: 0x%x",
        b"Content-Length: %d_",
        b"Content-Length: ",
        b"Content-Length:\r\n %d",
        b"Content-Length : %d",
        b" Content-Length: %d",
        b"Content-Length: %d\nA: b",
        b"Content-Length: %d\rA: b",
        b"Content-Length: %d\0",
        b"Transfer-Encoding : chunked",
        b"Transfer-Encoding:\r\n chunked",
        b"Transfer-Encoding: xchunked",
        b"Transfer-Encoding: \x0bchunked",
        b"Transfer-Encoding: identity",
        b"Transfer-Encoding: chunked, identity",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Transfer-Encoding: ",
    ],
)
async def test_a_body_of_ambiguous_length_is_refused(http: Http, wire: Wire, headers: bytes) -> None:
    body = put(http.topic, "j")
    head = b"POST /jobs HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % headers.replace(b"%d", b"%d" % len(body))
    wire.send(head.replace(b"%x", b"%x" % len(body)) + body + request("POST", "/jobs", put(http.topic, "behind")))
    response = await wire.read_response()
    assert (400, "bad_request", "close") == (response.status, response.json()["code"], response.headers["connection"])
    assert await wire.is_closed()
    assert {} == await http.counts()


@pytest.mark.parametrize(
    "headers",
    [
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: gzip,\tChunked",
        b"Transfer-Encoding: identity, chunked",
        b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        b"Expect: 100-continue\r\nTransfer-Encoding: gzip, chunked",
        b"Connection: upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: gzip, chunked",
    ],
)
@pytest.mark.parametrize("puts_before", [0, 4], ids=["first", "behind direct puts"])
async def test_a_transfer_coding_other_than_chunked_is_not_taken_as_chunked(
    http: Http, wire: Wire, headers: bytes, puts_before: int
) -> None:
    for number in range(puts_before):
        wire.send(request("POST", "/jobs", put(http.topic, f"before-{number}")))
        assert 201 == (await wire.read_response()).status
    wire.send(b"POST /jobs HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % headers, in_one_chunk(put(http.topic, "j")), HEALTH)
    response = await wire.read_response()
    assert (501, "unsupported_transfer_coding") == (response.status, response.json()["code"])
    assert "close" == response.headers["connection"]
    assert await wire.is_closed()
    assert not await http.has_job("j")


async def test_a_transfer_encoding_of_http_1_0_is_refused(http: Http, wire: Wire) -> None:
    wire.send(b"POST /jobs HTTP/1.0\r\nConnection: keep-alive\r\n%b\r\n\r\n" % CHUNKED)
    wire.send(in_one_chunk(put(http.topic, "j")), HEALTH)
    assert 400 == (await wire.read_response()).status
    assert await wire.is_closed()
    assert {} == await http.counts()


@pytest.mark.parametrize("size", [b"zz", b"-1", b"+%x", b"0x%x", b" %x", b"%x ", b"%x_", b"1" * 20, b""])
async def test_a_chunk_of_ambiguous_size_is_refused(http: Http, wire: Wire, size: bytes) -> None:
    body = put(http.topic, "j")
    chunk = in_one_chunk(body, size=size.replace(b"%x", b"%x" % len(body)))
    wire.send(b"POST /jobs HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % CHUNKED + chunk + HEALTH)
    response = await wire.read_response()
    assert (400, "close") == (response.status, response.headers["connection"])
    assert await wire.is_closed()
    assert {} == await http.counts()


@pytest.mark.parametrize("end_of_line", [b"\n", b"\r", b"xx"])
async def test_a_chunk_must_have_its_declared_size(http: Http, wire: Wire, end_of_line: bytes) -> None:
    chunk = in_one_chunk(put(http.topic, "j"), end_of_line)
    wire.send(b"POST /jobs HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % CHUNKED + chunk)
    assert 400 == (await wire.read_response()).status
    assert await wire.is_closed()
    assert {} == await http.counts()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\nHost: x\n\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\nA: b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n",
        b"GET /healthz x HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n",
        b"CONNECT /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_a_head_with_an_ambiguous_end_is_refused(wire: Wire, head: bytes) -> None:
    wire.send(head + HEALTH)
    assert 400 == (await wire.read_response()).status
    assert await wire.is_closed()


@pytest.mark.parametrize("length", [b"Content-Length: 0%d", b"Content-Length: \t%d  ", b"content-length:%d"])
async def test_the_next_request_begins_after_a_length_in_a_rare_form(http: Http, wire: Wire, length: bytes) -> None:
    body = put(http.topic, "j")
    wire.send(b"POST /jobs HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % (length % len(body)) + body + HEALTH)
    assert [201, 200] == [(await wire.read_response()).status, (await wire.read_response()).status]


async def test_the_next_request_begins_after_chunks_in_a_rare_form(http: Http, wire: Wire) -> None:
    body = put(http.topic, "j")
    chunk = in_one_chunk(body, size=b'00%X;a="b";c' % len(body)).replace(b"0\r\n\r\n", b"000\r\nTrailer: y\r\n\r\n")
    wire.send(b"POST /jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: CHUNKED\r\n\r\n" + chunk + HEALTH)
    assert [201, 200] == [(await wire.read_response()).status, (await wire.read_response()).status]


# Host: a request names exactly one host (RFC 9112, section 3.2).


@both_ways
@pytest.mark.parametrize(
    ("hosts", "detail"),
    [
        (b"", "the request has no Host header, which HTTP/1.1 requires"),
        (b"X-Host: x\r\n", "the request has no Host header, which HTTP/1.1 requires"),
        (b"Host: x\r\nHost: x\r\n", "the request has 2 Host headers"),
        (b"Host: x\r\nhost: y\r\n", "the request has 2 Host headers"),
        (b"Host: x\r\nHost:\r\n", "the request has 2 Host headers"),
        (b"Host:\r\nHOST: x\r\n", "the request has 2 Host headers"),
        *(
            (b"Host: %b\r\n" % value, "the value of the Host header is not a host")
            for value in (b"x y", b"x, y", b"x/", b"u@x", b"x:y", b"x:1:2", b"::1", b"[::1", b"x?", b"\xc3\xa9", b"[]")
        ),
    ],
)
async def test_a_request_without_exactly_one_host_is_refused(
    http: Http, wire: Wire, hosts: bytes, detail: str, through_asgi: bool
) -> None:
    raw = request("POST", "/jobs", put(http.topic, "j"), through_asgi=through_asgi)
    assert b"Host: x\r\n" in raw
    wire.send(HEALTH)
    assert 200 == (await wire.read_response()).status
    wire.send(raw.replace(b"Host: x\r\n", hosts) + HEALTH)
    response = await wire.read_response()
    assert (400, "bad_request", "close") == (response.status, response.json()["code"], response.headers["connection"])
    assert detail == response.json()["detail"]
    assert await wire.is_closed()
    assert {} == await http.counts()


@pytest.mark.parametrize("headers", [b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Expect: 100-continue\r\n"])
async def test_a_request_without_a_host_is_refused_for_every_path(wire: Wire, headers: bytes) -> None:
    wire.send(b"POST /jobs HTTP/1.1\r\nContent-Length: 2\r\n%b\r\n" % headers)
    assert (400, "bad_request") == ((response := await wire.read_response()).status, response.json()["code"])
    assert await wire.is_closed()


async def test_a_request_behind_one_without_a_host_is_not_carried_out(http: Http, wire: Wire) -> None:
    first, behind = (request("POST", "/jobs", put(http.topic, job_id)) for job_id in ("first", "behind"))
    wire.send(first + b"GET /healthz HTTP/1.1\r\n\r\n" + behind)
    response = await wire.read_response()
    assert (201, "close") == (response.status, response.headers["connection"])
    assert await wire.is_closed()
    assert await http.has_job("first")
    assert not await http.has_job("behind")


@both_ways
@pytest.mark.parametrize(
    "host", [b"", b"x:", b"a_b.x-1.test:8000", b"127.0.0.1:8000", b"[::1]", b"[fe80::1%25eth0]:8000", b"\tx:1 \t"]
)
async def test_a_host_with_and_without_port_is_read(http: Http, wire: Wire, host: bytes, through_asgi: bool) -> None:
    raw = request("POST", "/jobs", put(http.topic, "j"), through_asgi=through_asgi)
    wire.send(raw.replace(b"Host: x\r\n", b"Host:%b\r\n" % host))
    assert 201 == (await wire.read_response()).status


async def test_http_1_0_may_omit_the_host_but_not_repeat_it(shared_service: ServiceProcess) -> None:
    for hosts, status in ((b"", 200), (b"Host: x\r\n", 200), (b"Host: x\r\nHost: x\r\n", 400)):
        async with connected(shared_service.port) as wire:
            wire.send(b"GET /healthz HTTP/1.0\r\n%b\r\n" % hosts)
            assert status == (await wire.read_response()).status
            assert await wire.is_closed()


# Upgrade: there is no other protocol, and a request for one is read like any other (RFC 9110, section 7.8).


@pytest.mark.parametrize("through_asgi", [False, True], ids=["length", "chunks"])
@pytest.mark.parametrize("piece", [100_000, 7], ids=["at once", "in pieces"])
async def test_a_request_with_an_upgrade_is_read_with_its_body(
    http: Http, wire: Wire, through_asgi: bool, piece: int
) -> None:
    raw = b"".join(
        request("POST", "/jobs", put(http.topic, f"j{n}"), *UPGRADE_HEADERS, through_asgi=through_asgi)
        for n in range(3)
    )
    raw += HEALTH
    for at in range(0, len(raw), piece):
        wire.send(raw[at : at + piece])
        await wire.writer.drain()
        await asyncio.sleep(0)
    assert ["j0", "j1", "j2"] == [(await wire.read_response()).json()["id"] for _ in range(3)]
    assert {"status": "ok"} == (await wire.read_response()).json()


async def test_the_body_of_a_request_with_an_upgrade_is_not_read_as_a_request(http: Http, wire: Wire) -> None:
    await http.put_job("j", delay=1000)
    inner = request("DELETE", f"/jobs/{http.topic}/j")
    outer = request("POST", "/jobs", inner, "Connection: upgrade", "Upgrade: websocket")
    wire.send(outer[: -len(inner)])
    await wire.writer.drain()
    wire.send(inner, HEALTH)
    assert [422, 200] == [(await wire.read_response()).status, (await wire.read_response()).status]
    assert await http.has_job("j")


async def test_a_head_with_an_upgrade_must_keep_to_the_limits(wire: Wire) -> None:
    wire.send(request("GET", "/healthz", None, *UPGRADE_HEADERS, *(f"A{n}: b" for n in range(100))))
    assert 431 == (await wire.read_response()).status
    assert await wire.is_closed()


# Expect: a client without a 100 Continue need not send its body, so what follows may be a new request.


@pytest.mark.parametrize(
    ("path", "length", "status"), [("/jobs", 9_999_999, 413), ("/nowhere", 30, 404), ("/jobs?unknown=1", 30, 422)]
)
async def test_a_response_in_place_of_100_continue_closes_the_connection(
    wire: Wire, path: str, length: int, status: int
) -> None:
    wire.send(f"POST {path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n".encode())
    response = await wire.read_response()
    assert (status, "close") == (response.status, response.headers["connection"])
    assert await wire.is_closed()


async def test_a_connection_stays_usable_after_100_continue(http: Http, wire: Wire) -> None:
    body = put(http.topic, "j")
    for _ in range(2):
        wire.send(b"POST /jobs HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        async with asyncio.timeout(10):
            assert (await wire.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        wire.send(body)
        assert "connection" not in (await wire.read_response()).headers
    wire.send(request("GET", "/healthz", None, "Expect: 100-continue"), HEALTH)
    assert [200, 200] == [(await wire.read_response()).status, (await wire.read_response()).status]


# Half-closed connections

REQUESTS_UNTIL_DIRECT = 4
ways = pytest.mark.parametrize("way", ["plain", "asgi", "direct"])


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
