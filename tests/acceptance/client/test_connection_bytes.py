"""Both clients against servers that break the protocol, a connection or a promise at any byte."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from deferd import AsyncClient, Client, Job, NoAnswer, PayloadTooLarge, Unreachable
from deferd.client import async_transport, blocking_transport
from deferd.client.errors import ClientBusy
from tests.acceptance.client.scripted_server import Peer, job_response, never_responding, responding, scripted_server
from tests.acceptance.server.tls_files import TlsFiles
from tests.deliveries import FIELDS
from tests.waiting import until, wait_until

TIMEOUT_S = 5.0
JOB = json.dumps(FIELDS).encode()

Calls = Callable[..., AbstractContextManager["Caller"]]


class Caller:
    """Calls one client, blocking or asynchronous, from a test that blocks."""

    def __init__(self, client: Client | AsyncClient, runner: asyncio.Runner | None) -> None:
        self.client, self._runner = client, runner

    def get(self, id: str = "a") -> str:
        """The id of the job that the server returns."""
        job = self.client.get("t", id)
        return (job if isinstance(job, Job) else self._run(job)).id

    def put(self, body: object) -> None:
        job = self.client.put("t", body)
        if not isinstance(job, Job):
            self._run(job)

    def _run(self, call: Coroutine[Any, Any, Job]) -> Job:
        assert self._runner is not None
        return self._runner.run(call)


@contextmanager
def blocking_caller(url: str, **options: Any) -> Iterator[Caller]:
    with Client(url, **{"retry_for": 0, "timeout": TIMEOUT_S, **options}) as client:
        yield Caller(client, None)


@contextmanager
def async_caller(
    url: str, loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop, **options: Any
) -> Iterator[Caller]:
    with asyncio.Runner(loop_factory=loop) as runner:
        client = AsyncClient(url, **{"retry_for": 0, "timeout": TIMEOUT_S, **options})
        try:
            yield Caller(client, runner)
        finally:
            runner.run(client.close())


def uvloop_caller(url: str, **options: Any) -> AbstractContextManager[Caller]:
    return async_caller(url, uvloop.new_event_loop, **options)


@pytest.fixture(params=[blocking_caller, async_caller, uvloop_caller], ids=["blocking", "asyncio", "uvloop"])
def caller(request: pytest.FixtureRequest) -> Calls:
    """Makes a caller of one of the two clients, the asynchronous one on either event loop."""
    make: Calls = request.param
    return make


RESPONSES = {
    "length": job_response("/jobs/t/a", "retry-after: 1"),
    "chunked": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    b"5\r\n%b\r\n%x;x=y\r\n%b \r\n0\r\nx: y\r\n\r\n" % (JOB[:5], len(JOB) - 4, JOB[5:]),
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n" + job_response("/jobs/t/a"),
}


@pytest.mark.parametrize("kind", RESPONSES)
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_response_that_ends_early_is_no_answer(caller: Calls, kind: str, *, reset: bool) -> None:
    """After which byte makes no difference to the parser: see unit/client/test_http1.py."""
    response = RESPONSES[kind]
    head = response.rindex(b"\r\n\r\n", 0, -10) + 4
    ends = [0, 1, 20, head - 1, head, head + 1, len(response) - 1]

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(response[: [*ends, None][peer.number]])
        if reset and peer.number < len(ends):
            peer.reset()

    with scripted_server(script) as server:
        for _ in ends:
            with caller(server.url) as calls, pytest.raises(NoAnswer) as failed:  # the circuit of each one is closed
                calls.get()
            assert not isinstance(failed.value, Unreachable)
        with caller(server.url) as calls:
            assert calls.get() == "a"
        assert server.connections == len(ends) + 1


def test_a_response_without_a_length_ends_with_the_connection(caller: Calls) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n" + JOB[:50])
        peer.send(JOB[50:])

    with scripted_server(script) as server, caller(server.url) as calls:
        assert ["a", "a"] == [calls.get(), calls.get()]


def test_a_response_without_a_length_that_is_reset_is_no_answer(caller: Calls) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n" + JOB)
        time.sleep(0.1)  # a reset may overtake what was sent
        peer.reset()

    with scripted_server(script) as server, caller(server.url) as calls, pytest.raises(NoAnswer, match=r"reset"):
        calls.get()


def test_one_connection_serves_many_requests(caller: Calls) -> None:
    with scripted_server(responding) as server, caller(server.url) as calls:
        assert [f"j{n}" for n in range(20)] == [calls.get(f"j{n}") for n in range(20)]
        assert server.connections == 1


def test_a_connection_that_the_service_closed_while_idle_is_replaced(caller: Calls) -> None:
    closed = threading.Semaphore(0)

    def script(peer: Peer) -> None:
        peer.send(job_response(peer.request()))
        peer.socket.close()
        closed.release()

    with scripted_server(script) as server, caller(server.url) as calls:
        for n in range(10):
            assert calls.get(f"j{n}") == f"j{n}"
            assert closed.acquire(timeout=TIMEOUT_S)
            time.sleep(0.06)  # longer than a connection counts as just used
        assert server.connections == 10


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_reused_connection_that_ends_before_the_response_is_no_answer(caller: Calls, *, reset: bool) -> None:
    def script(peer: Peer) -> None:
        peer.send(job_response(peer.request()))
        peer.request()
        if reset:
            peer.reset()

    with scripted_server(script) as server, caller(server.url) as calls:
        assert calls.get() == "a"
        with pytest.raises(NoAnswer) as failed:
            calls.get()
        assert not isinstance(failed.value, Unreachable)
        assert calls.get() == "a"


@pytest.mark.parametrize("header", ["connection: close", "Connection: Close"])
def test_a_connection_that_the_service_ends_is_not_reused(caller: Calls, header: str) -> None:
    def script(peer: Peer) -> None:
        peer.send(job_response(peer.request(), header))
        assert peer.until_closed() == b""

    with scripted_server(script) as server, caller(server.url) as calls:
        assert ["a", "a"] == [calls.get(), calls.get()]
        assert server.connections == 2


@pytest.mark.parametrize("at_once", [True, False])
def test_bytes_after_a_response_are_never_the_next_one(caller: Calls, *, at_once: bool) -> None:
    sent, more = threading.Semaphore(0), job_response("/jobs/t/evil")

    def script(peer: Peer) -> None:
        response = job_response(peer.request())
        if at_once:
            peer.send(response + more)
        else:
            peer.send(response)
            time.sleep(0.07)
            peer.send(more)
        sent.release()
        peer.until_closed()

    with scripted_server(script) as server, caller(server.url) as calls:
        for n in range(3):
            assert calls.get(f"j{n}") == f"j{n}"
            assert sent.acquire(timeout=TIMEOUT_S)
        assert server.connections == 3


def test_an_endless_head_ends_the_call(caller: Calls) -> None:
    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 200 OK\r\nx: ")
        while True:
            peer.send(b"y" * 1000)

    with scripted_server(script) as server:
        began_s = time.monotonic()
        with caller(server.url) as calls, pytest.raises(NoAnswer, match="larger"):
            calls.get()
        assert time.monotonic() - began_s < TIMEOUT_S


@pytest.mark.parametrize("part", ["head", "body"])
def test_a_response_that_drips_times_out_as_a_whole(caller: Calls, part: str) -> None:
    def script(peer: Peer) -> None:
        response = job_response(peer.request())
        at = 5 if part == "head" else response.index(b"\r\n\r\n") + 4
        peer.send(response[:at])
        for byte in response[at:]:
            peer.send(bytes([byte]))
            time.sleep(0.1)

    with scripted_server(script) as server, caller(server.url, timeout=0.3) as calls:
        began_s = time.monotonic()
        with pytest.raises(NoAnswer, match=r"in time|too long|nothing was received"):
            calls.get()
        assert 0.5 < time.monotonic() - began_s < 2


def test_silence_after_the_request_times_out(caller: Calls) -> None:
    with scripted_server(never_responding) as server, caller(server.url, timeout=0.2) as calls:
        began_s = time.monotonic()
        with pytest.raises(NoAnswer, match=r"nothing was received for 0\.2 s"):
            calls.get()
        assert 0.15 < time.monotonic() - began_s < 2


def test_a_response_before_the_end_of_the_request_counts_and_ends_the_connection(caller: Calls) -> None:
    refusal = b'{"code":"payload_too_large","detail":"x","limit_bytes":9}'
    read_on = threading.Event()

    def script(peer: Peer) -> None:
        if peer.number == 0:
            peer.head()
            peer.send(b"HTTP/1.1 413 x\r\ncontent-length: %d\r\n\r\n" % len(refusal) + refusal)
            read_on.wait(TIMEOUT_S)  # the rest is not read
        else:
            responding(peer)

    with scripted_server(script) as server, caller(server.url, timeout=1) as calls:
        with pytest.raises(PayloadTooLarge):
            calls.put("x" * 32_000_000)
        read_on.set()
        assert calls.get() == "a"
        assert server.connections == 2


def test_idle_connections_are_closed_after_a_while(caller: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_transport, "IDLE_S", 0.2)
    monkeypatch.setattr(blocking_transport, "IDLE_S", 0.2)
    with scripted_server(responding) as server, caller(server.url) as calls:
        assert calls.get() == "a"
        time.sleep(0.3)
        assert calls.get() == "a"
        assert server.connections == 2


async def test_an_idle_connection_is_closed_without_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_transport, "IDLE_S", 0.2)
    closed = threading.Event()

    def script(peer: Peer) -> None:
        peer.send(job_response(peer.request()))
        assert peer.until_closed() == b""
        closed.set()

    with scripted_server(script) as server:
        # The first exchange may take longer than the connection may be idle: its timer is set again.
        async with AsyncClient(server.url, timeout=0.3, retry_for=0) as client:
            await client.get("t", "a")
            await until(closed.is_set, "the client has closed the connection", within_s=2)


@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "TLS"])
async def test_a_call_that_is_cancelled_at_any_point_never_disturbs_the_next_one(
    tmp_path: Path, *, encrypted: bool
) -> None:
    server_tls = client_tls = None
    if encrypted:
        files = TlsFiles(tmp_path)
        server_tls, client_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), files.trust()
        server_tls.load_cert_chain(files.cert, files.key)
    sent = threading.Semaphore(0)
    whole = len(job_response("/jobs/t/cancelled"))

    def script(peer: Peer) -> None:
        while True:
            path = peer.request()
            if path.endswith("cancelled"):
                peer.send(job_response(path)[:count])
                sent.release()
            else:
                peer.send(job_response(path))

    with scripted_server(script, tls=server_tls) as server:
        async with AsyncClient(server.url, retry_for=0, connections=1, tls=client_tls) as client:
            for count in (*range(0, whole, 37 if encrypted else 11), whole - 1, whole):  # noqa: B007 (the script reads it)
                for ticks in (0, 5):
                    cancelled = asyncio.create_task(client.get("t", "cancelled"))
                    await asyncio.to_thread(sent.acquire, timeout=TIMEOUT_S)
                    for _ in range(ticks):
                        await asyncio.sleep(0)
                    cancelled.cancel()
                    await asyncio.wait([cancelled])
                    assert (await client.get("t", "next")).id == "next"


def test_threads_share_a_client_and_its_connections() -> None:
    with scripted_server(responding) as server, Client(server.url, connections=5, retry_for=0) as client:

        def work(thread: int) -> bool:
            return all(client.get("t", f"{thread}-{n}").id == f"{thread}-{n}" for n in range(50))

        with ThreadPoolExecutor(20) as threads:
            assert all(threads.map(work, range(20)))
        assert server.connections <= 5


@pytest.mark.parametrize("connections", [1, 3])
async def test_tasks_take_turns_with_the_connections(connections: int) -> None:
    order: list[int] = []

    with scripted_server(responding) as server:
        async with AsyncClient(server.url, connections=connections, retry_for=0) as client:

            async def work(number: int) -> None:
                assert (await client.get("t", f"j{number}")).id == f"j{number}"
                order.append(number)

            tasks = [asyncio.create_task(work(number)) for number in range(100)]
            await asyncio.sleep(0)
            for number in range(50, 60):
                tasks[number].cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            assert 10 == sum(isinstance(one, asyncio.CancelledError) for one in done)
            assert server.connections <= connections
            assert connections > 1 or order == [*range(50), *range(60, 100)]
            assert (await client.get("t", "last")).id == "last"


def test_a_client_whose_connections_are_all_in_use_is_busy() -> None:
    with (
        scripted_server(never_responding) as server,
        ThreadPoolExecutor(1) as threads,
        Client(server.url, timeout=0.3, retry_for=0, connections=1) as client,
    ):
        first = threads.submit(client.pop, "t", wait=1)
        wait_until(lambda: server.connections == 1, TIMEOUT_S, "the first call has connected")
        with pytest.raises(ClientBusy, match="all 1 connections"):
            client.get("t", "b")
        with pytest.raises(NoAnswer):
            first.result(TIMEOUT_S)


async def test_a_client_whose_connections_are_all_in_use_is_busy_with_asyncio() -> None:
    with scripted_server(never_responding) as server:
        async with AsyncClient(server.url, timeout=0.3, retry_for=0, connections=1) as client:
            first = asyncio.create_task(client.pop("t", wait=1))
            await until(lambda: server.connections == 1, "the first call has connected")
            others = await asyncio.gather(client.get("t", "b"), client.get("t", "c"), return_exceptions=True)
            assert [ClientBusy, ClientBusy] == [type(other) for other in others]
            with pytest.raises(NoAnswer):
                await first


def test_a_closed_client_closes_its_connections(caller: Calls) -> None:
    closed = threading.Semaphore(0)

    def script(peer: Peer) -> None:
        peer.send(job_response(peer.request()))
        assert peer.until_closed() == b""
        closed.release()

    with scripted_server(script) as server:
        with caller(server.url) as calls:
            calls.get()
        assert closed.acquire(timeout=TIMEOUT_S)
