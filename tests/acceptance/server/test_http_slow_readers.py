"""Clients that do not read large responses: they take a bounded memory, and do not slow down others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from deferd.client import AsyncClient, Client
from tests.acceptance.api.keyed_service import KeysFile, call
from tests.acceptance.server.tls_files import TlsFiles
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.acceptance.wire import Wire, WireResponse, connected, cut, request

MOST_BYTES = 16 * 1024 * 1024
JOB_BYTES = 8_000_000
JOBS = 1
"""In one topic. A response has at most 1 MiB of jobs, but at least one."""
FLAGS = ("--max-unsent-bytes", str(MOST_BYTES), "--max-body-bytes", str(8 * 1024 * 1024))
MEMORY_BESIDES_BYTES = 70 * 1024 * 1024
"""What one pop of 8 MB takes on its way from the store, several times over, and what allocators keep."""
STALLED_WITHIN_S = 10.0


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeysFile:
    keys = KeysFile(tmp_path_factory.mktemp("keys") / "keys.toml")
    keys.add("admin", "admin")
    keys.add("other", "admin")
    return keys


@pytest.fixture(scope="module")
def service(keys: KeysFile, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with running_service("--keys-file", str(keys.path), *FLAGS, data_dir=tmp_path_factory.mktemp("service")) as service:
        yield service
        assert "Traceback" not in service.output()


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One without keys."""
    with running_service(*FLAGS, data_dir=tmp_path_factory.mktemp("open")) as service:
        yield service
        assert "Traceback" not in service.output()


@contextlib.asynccontextmanager
async def slow_reader(service: ServiceProcess, tls: ssl.SSLContext | None = None) -> AsyncIterator[Wire]:
    """A connection whose client receives little before the test reads."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", service.port))
    name = None if tls is None else "localhost"
    reader, writer = await asyncio.open_connection(sock=raw, ssl=tls, server_hostname=name, limit=1024)
    try:
        yield Wire(reader, writer)
    finally:
        await cut(writer)


def pop(topic: str, token: str | None = None, *, more: str = "", through_asgi: bool = False) -> bytes:
    headers = () if token is None else (f"Authorization: Bearer {token}",)
    path = f"/topics/{topic}/pop?wait=0&count=100&ttr=3600{more}"
    return request("POST", path, None, *headers, through_asgi=through_asgi)


async def put_large_jobs(service: ServiceProcess, topic: str, token: str | None = None, jobs: int = JOBS) -> None:
    for number in range(jobs):
        job = {"topic": topic, "id": f"j{number}", "body": "x" * JOB_BYTES}
        assert 201 == (await call(service, "POST", "/jobs", job, token=token)).status


async def whole_response(service: ServiceProcess, raw: bytes) -> WireResponse:
    """The response to a client that reads it."""
    async with connected(service.port) as wire:
        wire.send(raw)
        return await wire.read_response()


async def reading_nothing(stack: contextlib.AsyncExitStack, service: ServiceProcess, raw: bytes) -> Wire:
    """A client whose response has begun to come, and that reads no more of it than the status."""
    wire = await stack.enter_async_context(slow_reader(service))
    wire.send(raw)
    async with asyncio.timeout(10):
        assert b"HTTP/1.1 200" == await wire.reader.readexactly(12)
    wire.writer.transport.pause_reading()  # type: ignore[attr-defined]
    return wire


def most_resident_bytes(pid: int) -> int:
    """The most memory that a process ever had."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


@pytest.mark.slow
@pytest.mark.parametrize("through_asgi", [False, True], ids=["plain", "asgi"])
async def test_one_pop_repeated_on_many_connections_takes_a_bounded_memory(
    tmp_path: Path, topic: str, through_asgi: bool
) -> None:
    with running_service(*FLAGS, data_dir=tmp_path) as service:
        store_pid = service.store_pid()
        assert store_pid is not None
        await put_large_jobs(service, topic)
        repeated = pop(topic, more="&request_id=r", through_asgi=through_asgi)
        assert JOBS == len((await whole_response(service, repeated)).json()["jobs"])
        before = [most_resident_bytes(pid) for pid in (service.process.pid, store_pid)]
        async with contextlib.AsyncExitStack() as stack, AsyncClient(service.url, retry_for=0) as bystander:
            for _ in range(40):
                wire = await stack.enter_async_context(slow_reader(service))
                wire.send(repeated)
            for number in range(40):  # each at its first try
                await bystander.put(f"{topic}-other", number)
                [job] = await bystander.pop(f"{topic}-other", wait=5)
                assert job.body == number
                await bystander.finish(job)
        grown = [
            most_resident_bytes(pid) - then for pid, then in zip((service.process.pid, store_pid), before, strict=True)
        ]
        assert max(grown) < MOST_BYTES + MEMORY_BESIDES_BYTES, grown
        assert "Traceback" not in service.output()


async def test_a_key_over_its_share_is_refused_and_others_are_not(
    service: ServiceProcess, keys: KeysFile, topic: str
) -> None:
    greedy, other = keys.tokens["admin"], keys.tokens["other"]
    await put_large_jobs(service, f"{topic}-a", greedy)
    await put_large_jobs(service, f"{topic}-b", greedy)
    async with contextlib.AsyncExitStack() as stack:
        await reading_nothing(stack, service, pop(f"{topic}-a", greedy))
        refused = await whole_response(service, pop(f"{topic}-b", greedy))
        assert (429, "rate_limited") == (refused.status, refused.json()["code"])
        assert "the clients of key 'admin' have not read" in refused.json()["detail"]
        assert "retry-after" in refused.headers
        small = await call(service, "POST", "/jobs", {"topic": f"{topic}-c"}, token=greedy)
        assert 201 == small.status
        jobs = (await whole_response(service, pop(f"{topic}-b", other))).json()["jobs"]
        assert [1] * JOBS == [job["attempt"] for job in jobs]  # the refused pop was undone


@pytest.mark.slow
async def test_without_room_a_large_response_is_refused_until_a_stalled_client_is_cut_off(
    open_service: ServiceProcess, topic: str
) -> None:
    for number in range(3):
        await put_large_jobs(open_service, f"{topic}-{number}")
    async with contextlib.AsyncExitStack() as stack:
        stalled = [await reading_nothing(stack, open_service, pop(f"{topic}-{number}")) for number in range(2)]
        response = await whole_response(open_service, pop(f"{topic}-2"))
        assert (503, "too_many_unsent_bytes", "1") == (
            response.status,
            response.json()["code"],
            response.headers["retry-after"],
        )
        async with asyncio.timeout(STALLED_WITHIN_S):
            while (response := await whole_response(open_service, pop(f"{topic}-2"))).status == 503:
                await asyncio.sleep(0.1)
        assert [1] * JOBS == [job["attempt"] for job in response.json()["jobs"]]
        for wire in stalled:
            wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await stalled[0].reader.readexactly(JOBS * JOB_BYTES)


@pytest.mark.parametrize("through_asgi", [False, True], ids=["plain", "asgi"])
async def test_a_half_closed_client_still_gets_the_rest(
    open_service: ServiceProcess, topic: str, through_asgi: bool
) -> None:
    await put_large_jobs(open_service, topic)
    async with slow_reader(open_service) as wire:
        wire.send(pop(topic, through_asgi=through_asgi))
        head = await wire.head()
        wire.writer.write_eof()
        await asyncio.sleep(0.3)  # that has come by then
        length = int(head.lower().partition("content-length: ")[2].split()[0])
        async with asyncio.timeout(10):
            assert JOBS == len(json.loads(await wire.reader.readexactly(length))["jobs"])
        assert await wire.is_closed()


class HalfClosingTls:
    """A blocking TLS connection that can end its own side and continue to read, which `ssl.SSLSocket` cannot."""

    def __init__(self, raw: socket.socket, trust: ssl.SSLContext) -> None:
        self._raw = raw
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = trust.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._do(self._tls.do_handshake)

    def _do(self, act: Callable[[], Any]) -> Any:
        while True:
            try:
                return act()
            except ssl.SSLWantReadError:
                self._raw.sendall(self._outgoing.read())
                self._incoming.write(self._raw.recv(65536))
            finally:
                self._raw.sendall(self._outgoing.read())

    def send(self, data: bytes) -> None:
        self._do(lambda: self._tls.write(data))

    def read(self) -> bytes:
        return cast("bytes", self._do(lambda: self._tls.read(65536)))

    def end(self) -> None:
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self._raw.sendall(self._outgoing.read())

    def read_to_the_end(self) -> bytes:
        pieces = []
        with contextlib.suppress(ssl.SSLZeroReturnError):
            while piece := self.read():
                pieces.append(piece)
        return b"".join(pieces)


def test_a_half_closed_client_over_tls_still_gets_the_rest(tmp_path: Path, topic: str) -> None:
    files = TlsFiles(tmp_path / "files")
    with running_service(*files.flags(), *FLAGS, data_dir=tmp_path) as service, socket.socket() as raw:
        with Client(f"https://127.0.0.1:{service.port}", tls=files.trust()) as client:
            client.put(topic, "x" * JOB_BYTES)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        raw.settimeout(10)
        raw.connect(("127.0.0.1", service.port))
        connection = HalfClosingTls(raw, files.trust())
        connection.send(pop(topic))
        begun = connection.read()
        connection.end()
        _, _, body = (begun + connection.read_to_the_end()).partition(b"\r\n\r\n")
    assert JOBS == len(json.loads(body)["jobs"])


async def test_nothing_is_popped_behind_a_response_that_is_not_read(open_service: ServiceProcess, topic: str) -> None:
    await put_large_jobs(open_service, f"{topic}-large")
    await put_large_jobs(open_service, f"{topic}-behind", jobs=1)
    async with contextlib.AsyncExitStack() as stack:
        wire = await reading_nothing(stack, open_service, pop(f"{topic}-large"))
        for raw in (pop(f"{topic}-behind"), request("GET", "/healthz")):
            wire.send(raw)
            await wire.writer.drain()
        await asyncio.sleep(0.3)  # it has come by then
        counts = (await whole_response(open_service, request("GET", f"/topics/{topic}-behind"))).json()
        assert 1 == counts["counts"]["ready"], counts
        wire.writer.transport.resume_reading()  # type: ignore[attr-defined]
        head, _, begun = (await wire.reader.readexactly(2000)).partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        large = json.loads(begun + await wire.reader.readexactly(length - len(begun)))
        assert JOBS == len(large["jobs"])
        assert 1 == len((await wire.read_response()).json()["jobs"])
        assert 200 == (await wire.read_response()).status


@pytest.mark.slow
async def test_unread_bytes_over_tls_count(tmp_path: Path, topic: str) -> None:
    files = TlsFiles(tmp_path / "files")
    with running_service(*files.flags(), *FLAGS, data_dir=tmp_path) as service:
        url = f"https://127.0.0.1:{service.port}"
        async with AsyncClient(url, tls=files.trust(), retry_for=0) as client:
            for number in range(3):
                await client.put(f"{topic}-{number}", "x" * JOB_BYTES)
            async with contextlib.AsyncExitStack() as stack:
                for number in range(2):
                    wire = await stack.enter_async_context(slow_reader(service, files.trust()))
                    wire.send(pop(f"{topic}-{number}"))
                    async with asyncio.timeout(10):
                        await wire.reader.readexactly(12)
                async with connected(service.port, files.trust()) as third:
                    third.send(pop(f"{topic}-2"))
                    assert 503 == (await third.read_response()).status
        assert "Traceback" not in service.output()
