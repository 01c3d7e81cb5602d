"""Idle and overdue connections: real sockets, and a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from deferd.api.app import create_app
from deferd.server.http.connections import IDLE_S, KEEP_ALIVE_S, Connections, TimedConnection
from deferd.server.http.direct_path import DirectPath
from deferd.server.http.protocol import FastPathProtocol
from deferd.settings import Settings
from tests.waiting import until

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


class Server:
    """A listening socket whose connections are limited by `connections`, with a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.settings = Settings(log_level="info")
        self.connections = Connections(self.settings, clock=lambda: self.now_s)
        self.port = 0
        self.bytes_read = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        service = create_app(self.settings, "")
        make = partial(CountingProtocol, self, service, self.connections, DirectPath(service))
        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            yield

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and close what is overdue."""
        self.now_s += seconds
        self.connections.close_overdue()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        before = len(self.connections.connected)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        await until(lambda: len(self.connections.connected) > before, "the connection is accepted")
        return reader, writer

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Send data and wait until the server has read all of it."""
        read_then = self.bytes_read + len(data)
        writer.write(data)
        await until(lambda: self.bytes_read == read_then, "all of it has been read")


class CountingProtocol(FastPathProtocol):
    """Counts the bytes that were read."""

    def __init__(self, server: Server, *args: Any) -> None:
        super().__init__(*args)
        self._server = server

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._server.bytes_read += len(data)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    async with server.open():
        yield server


async def is_open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the connection gives a complete response."""
    try:
        async with asyncio.timeout(5):
            writer.write(HEALTH)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(b'{"status":"ok"}'))
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
    return head.startswith(b"HTTP/1.1 200")


async def test_a_connection_that_sends_nothing_is_kept_for_a_while_and_then_closed(server: Server) -> None:
    reader, writer = await server.connect()
    server.pass_time(KEEP_ALIVE_S - 1)
    assert not reader.at_eof()
    server.pass_time(1)
    assert b"" == await reader.read()
    writer.close()


async def test_each_response_restarts_the_idle_time(server: Server) -> None:
    connection = await server.connect()
    for _ in range(4):
        server.pass_time(KEEP_ALIVE_S - 1)
        assert await is_open(*connection)
    server.pass_time(KEEP_ALIVE_S)
    assert not await is_open(*connection)
    connection[1].close()


async def test_line_breaks_do_not_keep_an_idle_connection_open(server: Server) -> None:
    reader, writer = await server.connect()
    assert await is_open(reader, writer)
    for _ in range(3):
        await server.send(writer, b"\r\n")
        server.pass_time(KEEP_ALIVE_S / 3)
    assert not await is_open(reader, writer)
    writer.close()


async def test_a_closed_connection_has_no_deadline(server: Server) -> None:
    _, writer = await server.connect()
    assert len(server.connections._deadlines_s) == 1
    writer.close()
    await until(lambda: not server.connections.connected, "the server has noticed")
    assert not server.connections._deadlines_s


class FakeConnection:
    """Counts how often its deadline passed."""

    def __init__(self, *, fails: bool = False, is_idle: bool = True) -> None:
        self.times = 0
        self.is_cut_off = False
        self._fails = fails
        self._is_idle = is_idle

    def is_idle(self) -> bool:
        return self._is_idle

    def cut_off(self) -> None:
        self.is_cut_off = True

    def deadline_passed(self) -> None:
        self.times += 1
        if self._fails:
            raise RuntimeError("no way")


def test_a_deadline_passes_once_and_the_last_one_set_counts() -> None:
    clock: Any = SimpleNamespace(now_s=0.0)
    connections = Connections(Settings(), clock=lambda: clock.now_s)
    late: list[FakeConnection] = [FakeConnection(), FakeConnection(), FakeConnection()]
    for one in late:
        connections.set_deadline(one, 5)
    connections.set_deadline(late[1], 9)
    connections.clear_deadline(late[2])
    for now_s, times in ((4.9, [0, 0, 0]), (5, [1, 0, 0]), (8.9, [1, 0, 0]), (9, [1, 1, 0]), (99, [1, 1, 0])):
        clock.now_s = now_s
        connections.close_overdue()
        assert times == [one.times for one in late]


class FullServer:
    """As many connections as may be open, and a clock that the test moves."""

    def __init__(self, *connections: FakeConnection) -> None:
        self.now_s = 1000.0
        self.connections = Connections(Settings(max_connections=len(connections)), clock=lambda: self.now_s)
        assert [True] * len(connections) == [self.connections.add(one) for one in connections]

    def serve(self, connection: FakeConnection, *, idle_s: float) -> None:
        """The connection was served and has been idle since."""
        self.now_s -= idle_s
        self.connections.head_received(connection)
        self.connections.set_deadline(connection, KEEP_ALIVE_S)
        self.now_s += idle_s


def test_a_new_connection_replaces_the_one_that_was_silent_longest() -> None:
    spoke, first, second = FakeConnection(), FakeConnection(), FakeConnection()
    full = FullServer(spoke, first, second)
    full.serve(spoke, idle_s=60)
    newer = [FakeConnection(), FakeConnection(), FakeConnection()]
    assert [True] * 3 == [full.connections.add(one) for one in newer]
    assert [False, True, True] == [one.is_cut_off for one in (spoke, first, second)]
    assert [True, False, False] == [one.is_cut_off for one in newer]


def test_without_silent_connections_those_idle_longest_are_replaced() -> None:
    busy, recent, longest, long = FakeConnection(is_idle=False), FakeConnection(), FakeConnection(), FakeConnection()
    full = FullServer(busy, recent, longest, long)
    for one, idle_s in ((busy, 60), (recent, IDLE_S - 1), (longest, 40), (long, IDLE_S)):
        full.serve(one, idle_s=idle_s)
    assert full.connections.add(FakeConnection())
    assert [False, False, True, True] == [one.is_cut_off for one in (busy, recent, longest, long)]


def test_a_new_connection_is_rejected_when_all_are_busy(caplog: pytest.LogCaptureFixture) -> None:
    busy, recent = FakeConnection(is_idle=False), FakeConnection()
    full = FullServer(busy, recent)
    full.serve(busy, idle_s=60)
    full.serve(recent, idle_s=0)
    for _ in range(3):
        assert not full.connections.add(FakeConnection())
    assert caplog.text.count("connections are refused: 2 are open, the most that this process allows") == 1
    full.now_s += IDLE_S
    assert full.connections.add(FakeConnection())
    assert [False, True] == [one.is_cut_off for one in (busy, recent)]


def test_a_connection_keeps_its_place_when_its_handshake_ends() -> None:
    handshake, connection = FakeConnection(), FakeConnection()
    full = FullServer(handshake)
    full.connections.replace(handshake, connection)
    full.connections.remove(handshake)
    assert full.connections.add(FakeConnection())
    assert [False, True] == [one.is_cut_off for one in (handshake, connection)]
    full.connections.remove(connection)


def test_a_connection_that_cannot_be_closed_does_not_keep_the_others_open(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(Settings(), clock=lambda: 0.0)
    late: list[TimedConnection] = [FakeConnection(fails=True), FakeConnection()]
    for one in late:
        connections.set_deadline(one, 0)
    connections.close_overdue()
    assert [1, 1] == [one.times for one in late if isinstance(one, FakeConnection)]
    assert "could not be closed" in caplog.text
