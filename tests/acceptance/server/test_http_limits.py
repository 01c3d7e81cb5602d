"""The limits of connections: sizes, times and their number; a connection at a limit does not slow down others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from deferd.contract import limits
from deferd.server.http_server import RESERVED_FILES
from tests.acceptance.server.tls_files import TlsFiles
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.wire import Wire, WireResponse, connected, request
from tests.benchmarks.measuring import resident_bytes
from tests.waiting import until

HEAD_TIMEOUT_S, BODY_TIMEOUT_S, RESPONSE_TIMEOUT_S = 0.6, 1.2, 1.5
HEAD_BYTES = 16 * 1024
CONNECTIONS = 40
CHECK_EVERY_S = 1.0
"""How often the service checks for overdue connections."""
CHUNKED = b"POST /jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
both_entry_points = pytest.mark.parametrize("through_asgi", [False, True], ids=["plain", "asgi"])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    flags = {
        "--head-timeout": HEAD_TIMEOUT_S,
        "--body-timeout": BODY_TIMEOUT_S,
        "--answer-timeout": RESPONSE_TIMEOUT_S,
        "--max-head-bytes": HEAD_BYTES,
        "--max-connections": CONNECTIONS,
        "--max-body-bytes": 8 * 1024 * 1024,
    }
    words = [str(word) for pair in flags.items() for word in pair]
    with running_service(*words, data_dir=tmp_path_factory.mktemp("limited")) as service:
        yield service
        assert "Traceback" not in service.output()


@pytest.fixture
async def wire(service: ServiceProcess) -> AsyncIterator[Wire]:
    async with connected(service.port) as wire:
        yield wire


async def send(service: ServiceProcess, method: str, path: str, body: Any = None) -> WireResponse:
    """The response to a request on a connection of its own."""
    async with connected(service.port) as wire:
        wire.send(request(method, path, body))
        return await wire.read_response()


async def refusal(wire: Wire, status: int, code: str) -> str:
    """The detail of the problem with which the service refuses; it then closes the connection."""
    response = await wire.read_response()
    assert (response.status, response.json()["code"]) == (status, code)
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["connection"] == "close"
    assert await wire.is_closed()
    detail: str = response.json()["detail"]
    return detail


# Slow requests


async def test_an_incomplete_head_times_out(service: ServiceProcess) -> None:
    async def refused(begin: bytes) -> str:
        async with connected(service.port) as wire:
            wire.send(begin)
            return await refusal(wire, 408, "request_timeout")

    begins = (b"G", b"GET /healthz HTTP/1.1\r\nHost: x\r\n", b"GET /healthz HTTP/1.1\r\nA: b")
    details = await asyncio.gather(*map(refused, begins))  # at once, for each takes as long as the limit
    assert {"the request's head did not arrive within 0.6 s"} == set(details)


async def test_an_incomplete_head_behind_a_request_times_out(wire: Wire) -> None:
    wire.send(request("GET", "/healthz"), b"GET /healthz HTT")
    assert (await wire.read_response()).status == 200
    await refusal(wire, 408, "request_timeout")


async def test_a_head_that_arrives_in_drops_gets_no_more_time(wire: Wire) -> None:
    async def drip() -> None:
        wire.send(b"GET /healthz HTTP/1.1\r\n")
        while True:
            wire.send(b"a: b\r\n")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    try:
        response = await wire.read_response()
    finally:
        dripping.cancel()
    assert (response.status, response.json()["code"]) == (408, "request_timeout")


async def an_incomplete_body_times_out(service: ServiceProcess, topic: str) -> None:
    async def send_incomplete(path: str, through_asgi: bool) -> None:
        raw = request("POST", path, {"topic": topic, "id": "j"}, through_asgi=through_asgi)
        async with connected(service.port) as wire:
            wire.send(raw[:-3])
            if path == "/jobs":
                assert await refusal(wire, 408, "request_timeout") == "the request's body did not arrive within 1.2 s"
            else:  # a request that needs no body gets its response at once; the rest of the body never comes
                assert (await wire.read_response()).status == 404
                assert await wire.is_closed()

    cases = itertools.product(("/jobs", "/nowhere"), (False, True))
    await asyncio.gather(*itertools.starmap(send_incomplete, cases))  # at once, for each takes as long as the limit
    assert (await send(service, "GET", f"/topics/{topic}")).status == 404


async def a_body_over_the_limit_is_not_read_for_ever(service: ServiceProcess, _topic: str) -> None:
    async def send_for_ever(wire: Wire) -> None:
        while True:
            wire.send(b" " * 1000)
            await wire.writer.drain()
            await asyncio.sleep(0.02)

    async with connected(service.port) as wire:
        wire.send(b"POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        assert (await wire.read_response()).status == 413
        with pytest.raises(ConnectionError):
            await send_for_ever(wire)


async def a_request_whose_pieces_arrive_in_time_gets_its_response(service: ServiceProcess, topic: str) -> None:
    raw = request("POST", "/jobs", {"topic": topic, "id": "j"})
    async with connected(service.port) as wire:
        for at in range(0, len(raw), 40):
            wire.send(raw[at : at + 40])
            await asyncio.sleep(0.02)
        assert (await wire.read_response()).status == 201
        await asyncio.sleep(BODY_TIMEOUT_S + CHECK_EVERY_S)  # nothing is awaited on this connection any longer
        wire.send(request("GET", "/healthz"))
        assert (await wire.read_response()).status == 200


async def a_waiting_pop_gets_its_response_when_the_next_request_is_incomplete(
    service: ServiceProcess, topic: str
) -> None:
    async def keep(number: int, through_asgi: bool, between: int, behind: bytes) -> None:
        of_its_own = f"{topic}.{number}"
        pop = request("POST", f"/topics/{of_its_own}/pop?wait=20", through_asgi=through_asgi)
        async with connected(service.port) as wire:
            wire.send(pop, request("GET", "/healthz") * between, behind)
            await asyncio.sleep(max(HEAD_TIMEOUT_S, BODY_TIMEOUT_S) + CHECK_EVERY_S + 0.2)
            assert (await send(service, "POST", "/jobs", {"topic": of_its_own, "id": "j"})).status == 201
            responses = [await wire.read_response() for _ in range(1 + between)]
            assert ["j"] == [job["id"] for job in responses[0].json()["jobs"]]
            assert [200] * (1 + between) == [response.status for response in responses]
            assert responses[-1].headers["connection"] == "close"
            assert await wire.is_closed()

    parts = ((0, b"GET /healthz HTTP/1.1\r\n"), (0, CHUNKED + b"1\r\n"), (2, CHUNKED + b"1\r\n"))
    cases = [(through_asgi, *part) for through_asgi in (False, True) for part in parts]
    await asyncio.gather(*(keep(number, *case) for number, case in enumerate(cases)))  # at once: each takes 2 s


@pytest.mark.slow
async def test_bodies_that_come_slowly_or_never(service: ServiceProcess, topic: str) -> None:
    """At once, because each takes as long as the limits."""
    cases = (
        an_incomplete_body_times_out,
        a_body_over_the_limit_is_not_read_for_ever,
        a_request_whose_pieces_arrive_in_time_gets_its_response,
        a_waiting_pop_gets_its_response_when_the_next_request_is_incomplete,
    )
    async with asyncio.TaskGroup() as group:
        for number, case in enumerate(cases):
            group.create_task(case(service, f"{topic}-{number}"))


@pytest.mark.slow
async def test_clients_that_stop_within_a_request_do_not_slow_the_others(service: ServiceProcess, topic: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(connected(service.port)) for _ in range(CONNECTIONS // 2)]
        for number, wire in enumerate(slow):
            wire.send(request("POST", "/jobs", {"topic": topic})[: 10 + number * 4])
        for number in range(50):
            assert (await send(service, "POST", "/jobs", {"topic": topic, "id": f"j{number}"})).status == 201
        assert [408] * len(slow) == [(await wire.read_response()).status for wire in slow]


# Slow readers


@pytest.mark.slow
async def test_a_response_that_is_not_read_in_time_is_aborted(service: ServiceProcess, topic: str) -> None:
    await put_large_job(service, topic)
    with contextlib.closing(socket.socket()) as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        reader.settimeout(10)
        reader.connect(("127.0.0.1", service.port))
        reader.sendall(request("GET", f"/topics/{topic}/pop?ttr=1"))
        assert reader.recv(1, socket.MSG_PEEK)
        open_files = count_of_open_files(service)
        await until(lambda: count_of_open_files(service) < open_files, "the service has given up")
        assert await asyncio.to_thread(received_until_the_end, reader) < 5_000_000
    jobs = (await send(service, "GET", f"/topics/{topic}/pop?wait=5")).json()["jobs"]
    assert 2 == jobs[0]["attempt"]  # the lease ended; none is lost


async def test_a_response_that_is_read_slowly_but_in_time_arrives(service: ServiceProcess, topic: str) -> None:
    await put_large_job(service, topic)
    async with connected(service.port) as wire:
        wire.send(request("GET", f"/topics/{topic}/pop"))
        head = await wire.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        body = bytearray()
        while len(body) < length:
            body += await wire.reader.readexactly(min(500_000, length - len(body)))
            await asyncio.sleep(0.02)
    assert 1 == len(json.loads(body)["jobs"])


async def put_large_job(service: ServiceProcess, topic: str) -> None:
    job = {"topic": topic, "body": "x" * 7_000_000}
    assert (await send(service, "POST", "/jobs", job)).status == 201


def received_until_the_end(reader: socket.socket) -> int:
    """How many bytes there are before the connection ends, orderly or not."""
    received = 0
    with contextlib.suppress(ConnectionError):
        while piece := reader.recv(100_000):
            received += len(piece)
    return received


# Too much


@both_entry_points
async def test_the_longest_url_is_read_and_a_longer_one_is_refused(
    service: ServiceProcess, wire: Wire, through_asgi: bool
) -> None:
    path = "/healthz?" + "a" * (limits.URL_MAX_BYTES - len("/healthz?"))
    wire.send(request("GET", path, through_asgi=through_asgi))
    assert (await wire.read_response()).status == 422
    wire.send(request("GET", path + "a", through_asgi=through_asgi))
    assert await refusal(wire, 414, "uri_too_long") == f"the URL is longer than {limits.URL_MAX_BYTES} bytes"


@both_entry_points
async def test_the_most_headers_are_read_and_more_are_refused(
    service: ServiceProcess, wire: Wire, through_asgi: bool
) -> None:
    of_the_request = 2 if through_asgi else 1
    headers = [f"X-{number}: y" for number in range(limits.HEADERS_MAX - of_the_request)]
    wire.send(request("GET", "/healthz", None, *headers, through_asgi=through_asgi))
    assert (await wire.read_response()).status == 200
    wire.send(request("GET", "/healthz", None, *headers, "One: more", through_asgi=through_asgi))
    assert "more than 100 headers" in await refusal(wire, 431, "request_header_fields_too_large")


@both_entry_points
@pytest.mark.parametrize("piece", [100_000, 1000], ids=["at once", "in pieces"])
async def test_a_head_over_the_limit_is_refused(wire: Wire, through_asgi: bool, piece: int) -> None:
    for filling, status in ((HEAD_BYTES - 200, 200), (HEAD_BYTES, 431)):
        raw = request("GET", "/healthz", None, "A: " + "b" * filling, through_asgi=through_asgi)
        for at in range(0, len(raw), piece):
            wire.send(raw[at : at + piece])
            await wire.writer.drain()
            await asyncio.sleep(0)
        assert status == (await wire.read_response()).status


@pytest.mark.parametrize(
    ("begin", "more", "status"),
    [
        (b"GET /healthz?", b"a" * 1000, 414),
        (b"GET /healthz HTTP/1.1\r\nA: ", b"b" * 1000, 431),
        (b"GET /healthz HTTP/1.1\r\n", b"A: b\r\n" * 200, 431),
        (CHUNKED + b"2;", b"c" * 1000, 431),
        (CHUNKED + b"2\r\n{}\r\n0\r\n", b"D: e\r\n" * 200, 431),
        (CHUNKED + b"2\r\n{}\r\n0\r\nD: ", b"e" * 1000, 431),
    ],
    ids=["url", "header", "headers", "chunk extension", "trailers", "trailer"],
)
async def test_an_endless_request_is_refused_soon(wire: Wire, begin: bytes, more: bytes, status: int) -> None:
    wire.send(begin)
    for _ in range(100):
        wire.send(more)
        await wire.writer.drain()
        await asyncio.sleep(0)
    response = await wire.read_response()
    assert (status, "close") == (response.status, response.headers["connection"])


async def test_a_body_in_the_smallest_chunks_is_read(wire: Wire, topic: str) -> None:
    raw = json.dumps({"topic": topic, "body": "x" * 100_000}).encode()
    wire.send(CHUNKED, *(b"1\r\n%c\r\n" % byte for byte in raw), b"0\r\nTrailer: y\r\n\r\n")
    assert (await wire.read_response()).status == 201


async def test_a_request_that_is_not_http_gets_a_problem_document(wire: Wire) -> None:
    wire.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\nno header\r\n\r\n")
    await refusal(wire, 400, "bad_request")


# Too many


async def test_a_connection_over_the_limit_is_refused_until_another_ends(service: ServiceProcess, topic: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connected(service.port)) for _ in range(CONNECTIONS)]
        for wire in wires:  # each gets a response, so each is open
            wire.send(request("GET", "/healthz"))
            assert (await wire.read_response()).status == 200
        async with connected(service.port) as late:
            late.send(request("GET", "/healthz"))
            response = await late.read_response()
            assert (503, "too_many_connections", "1") == (
                response.status,
                response.json()["code"],
                response.headers["retry-after"],
            )
            assert await late.is_closed()
        wires[0].send(request("POST", "/jobs", {"topic": topic, "id": "j"}))
        assert (await wires[0].read_response()).status == 201
        wires[1].send(request("GET", "/healthz", None, "Connection: close"))
        assert (await wires[1].read_response()).status == 200
        assert await wires[1].is_closed()
        async with connected(service.port) as next_one:
            next_one.send(request("GET", "/healthz"))
            assert (await next_one.read_response()).status == 200


async def test_a_flood_of_connections_leaves_the_service_working(service: ServiceProcess) -> None:
    async with contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(connected(service.port)) for _ in range(CONNECTIONS)]
        for wire in wires:
            wire.send(request("GET", "/healthz"))
            assert (await wire.read_response()).status == 200
        for _ in range(10):
            flood = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(60)]
            wires[0].send(request("GET", "/readyz"))
            assert (await wires[0].read_response()).status == 200
            for one in flood:
                one.close()
    async with asyncio.timeout(10):  # they are closed here, and the service learns of it
        while (await send(service, "GET", "/readyz")).status != 200:
            await asyncio.sleep(0.05)


@contextlib.contextmanager
def silent_sockets(port: int, count: int) -> Iterator[None]:
    """Connections that are opened, on which nothing is ever sent."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            opened = stack.enter_context(socket.socket())
            opened.setblocking(False)
            opened.connect_ex(("127.0.0.1", port))
        yield


def count_of_open_files(service: ServiceProcess) -> int:
    return len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True], ids=["http", "https"])
async def test_silent_sockets_block_nobody_and_leave_file_descriptors_to_the_service(
    tmp_path: Path, topic: str, tls: bool
) -> None:
    files = TlsFiles(tmp_path / "tls")
    flags = ("--max-connections", str(CONNECTIONS), *(files.flags() if tls else ()))
    trust = files.trust() if tls else None
    with running_service(*flags, data_dir=tmp_path) as service:
        needed = count_of_open_files(service) + CONNECTIONS + RESERVED_FILES
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (needed, needed))
        with silent_sockets(service.port, needed + 200):
            for number in range(5):
                async with connected(service.port, trust) as wire:
                    wire.send(request("POST", "/jobs", {"topic": topic, "id": f"j{number}"}))
                    assert 201 == (await wire.read_response()).status
                    wire.send(request("GET", "/readyz"))
                    assert 200 == (await wire.read_response()).status
            assert count_of_open_files(service) <= needed - RESERVED_FILES + 20
        assert "Traceback" not in service.output()
        assert await asyncio.to_thread(service.stop) == 0


# Pipelined


async def test_very_many_pipelined_requests_get_their_responses_in_order(
    wire: Wire, service: ServiceProcess, topic: str
) -> None:
    ahead = 600  # more than may be nested calls, and many times what is read ahead
    wire.send(request("GET", f"/topics/{topic}/pop?wait=20"))
    wire.send(*(request("GET", f"/jobs/{topic}/n{number}") for number in range(ahead)))
    wire.send(request("POST", "/jobs", {"topic": topic, "id": "last", "body": "x" * 100_000}))
    assert (await send(service, "POST", "/jobs", {"topic": topic, "id": "j"})).status == 201
    assert ["j"] == [job["id"] for job in (await wire.read_response()).json()["jobs"]]
    for number in range(ahead):
        assert f"n{number}" == (await wire.read_response()).json()["id"]
    assert "last" == (await wire.read_response()).json()["id"]


@pytest.mark.slow
async def test_pipelined_requests_hold_little_memory_and_do_not_delay_the_shutdown(tmp_path: Path) -> None:
    with running_service(data_dir=tmp_path) as service:
        before = resident_bytes(service.process.pid)
        async with contextlib.AsyncExitStack() as stack:
            wires = [await stack.enter_async_context(connected(service.port)) for _ in range(20)]
            for wire in wires:
                wire.send(request("GET", "/topics/t/pop?wait=30"), request("GET", "/healthz") * 20_000)
            for _ in range(10):
                assert (await send(service, "GET", "/readyz")).status == 200
                await asyncio.sleep(0.05)
            assert resident_bytes(service.process.pid) - before < 25_000_000
            assert await asyncio.to_thread(service.stop) == 0
        assert "Traceback" not in service.output()
