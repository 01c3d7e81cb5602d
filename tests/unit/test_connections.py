"""Connections that are idle, or overdue: real sockets, and a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from deferd.api.app import create_app
from deferd.server.http.fast_path import FastPathProtocol
from deferd.server.http.limits import IDLE_S, KEEP_ALIVE_S, Connections, Overdue
from deferd.settings import Settings
from tests.waiting import until

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


class Premises:
    """A listening socket whose connections are looked after by `connections`, at times that the test says."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.settings = Settings(log_level="info")
        self.connections = Connections(self.settings, clock=lambda: self.now_s)
        self.state = ServerState()
        self.port = 0
        self.bytes_read = 0

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        service = create_app(self.settings, "")

        config = uvicorn.Config(
            service, log_config=None, access_log=False, ws="none", timeout_keep_alive=KEEP_ALIVE_S, interface="asgi3"
        )
        make = partial(Reading, self, service, self.connections, config, self.state, {})
        server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
        async with server:
            self.port = server.sockets[0].getsockname()[1]
            yield

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and look."""
        self.now_s += seconds
        self.connections.look()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        before = len(self.state.connections)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        await until(lambda: len(self.state.connections) > before, "the connection is accepted")
        return reader, writer

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        """Send it, and wait until all of it has been read."""
        read_then = self.bytes_read + len(data)
        writer.write(data)
        await until(lambda: self.bytes_read == read_then, "all of it has been read")


class Reading(FastPathProtocol):
    """Lets the test see how much has been read."""

    def __init__(self, premises: Premises, *args: Any) -> None:
        super().__init__(*args)
        self._premises = premises

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._premises.bytes_read += len(data)


@pytest.fixture
async def premises() -> AsyncIterator[Premises]:
    premises = Premises()
    async with premises.open():
        yield premises


async def is_open(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Whether the connection answers, all of it."""
    try:
        async with asyncio.timeout(5):
            writer.write(HEALTH)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(b'{"status":"ok"}'))
    except (ConnectionError, asyncio.IncompleteReadError):
        return False
    return head.startswith(b"HTTP/1.1 200")


async def test_a_connection_that_sends_nothing_is_kept_for_a_while_and_then_closed(premises: Premises) -> None:
    reader, writer = await premises.connect()
    premises.pass_time(KEEP_ALIVE_S - 1)
    assert not reader.at_eof()
    premises.pass_time(1)
    assert b"" == await reader.read()
    writer.close()


async def test_each_answer_lets_an_idle_connection_live_on(premises: Premises) -> None:
    connection = await premises.connect()
    for _ in range(4):
        premises.pass_time(KEEP_ALIVE_S - 1)
        assert await is_open(*connection)
    premises.pass_time(KEEP_ALIVE_S)
    assert not await is_open(*connection)
    connection[1].close()


async def test_line_breaks_do_not_keep_an_idle_connection(premises: Premises) -> None:
    reader, writer = await premises.connect()
    assert await is_open(reader, writer)
    for _ in range(3):
        await premises.send(writer, b"\r\n")
        premises.pass_time(KEEP_ALIVE_S / 3)
    assert not await is_open(reader, writer)
    writer.close()


async def test_a_connection_that_was_closed_is_forgotten(premises: Premises) -> None:
    _, writer = await premises.connect()
    [protocol] = premises.state.connections
    writer.close()
    await until(lambda: not premises.state.connections, "the server has noticed")
    assert not premises.connections.is_expecting(protocol)  # type: ignore[arg-type]


class Late:
    """Something that counts how often it was overdue."""

    def __init__(self, *, fails: bool = False, is_idle: bool = True) -> None:
        self.times = 0
        self.is_cut_off = False
        self._fails = fails
        self._is_idle = is_idle

    def is_idle(self) -> bool:
        return self._is_idle

    def cut_off(self) -> None:
        self.is_cut_off = True

    def overdue(self) -> None:
        self.times += 1
        if self._fails:
            raise RuntimeError("no way")


def test_what_is_expected_comes_due_once_and_the_last_word_counts() -> None:
    clock: Any = SimpleNamespace(now_s=0.0)
    connections = Connections(Settings(), clock=lambda: clock.now_s)
    late: list[Late] = [Late(), Late(), Late()]
    for one in late:
        connections.expect(one, 5)
    connections.expect(late[1], 9)
    connections.settle(late[2])
    for now_s, times in ((4.9, [0, 0, 0]), (5, [1, 0, 0]), (8.9, [1, 0, 0]), (9, [1, 1, 0]), (99, [1, 1, 0])):
        clock.now_s = now_s
        connections.look()
        assert times == [one.times for one in late]


class Full:
    """Connections of which there may be no more, and a clock that the test moves."""

    def __init__(self, *connections: Late) -> None:
        self.now_s = 1000.0
        self.connections = Connections(Settings(max_connections=len(connections)), clock=lambda: self.now_s)
        assert [True] * len(connections) == [self.connections.enter(one) for one in connections]

    def speak(self, connection: Late, *, idle_s: float) -> None:
        """It was served, and is idle since."""
        self.now_s -= idle_s
        self.connections.spoke(connection)
        self.connections.expect(connection, KEEP_ALIVE_S)
        self.now_s += idle_s


def test_a_new_connection_takes_the_place_of_the_one_that_was_silent_longest() -> None:
    spoke, first, second = Late(), Late(), Late()
    full = Full(spoke, first, second)
    full.speak(spoke, idle_s=60)
    newer = [Late(), Late(), Late()]
    assert [True] * 3 == [full.connections.enter(one) for one in newer]
    assert [False, True, True] == [one.is_cut_off for one in (spoke, first, second)]
    assert [True, False, False] == [one.is_cut_off for one in newer]


def test_without_silent_ones_those_that_were_idle_longest_give_way() -> None:
    busy, recent, longest, long = Late(is_idle=False), Late(), Late(), Late()
    full = Full(busy, recent, longest, long)
    for one, idle_s in ((busy, 60), (recent, IDLE_S - 1), (longest, 40), (long, IDLE_S)):
        full.speak(one, idle_s=idle_s)
    assert full.connections.enter(Late())
    assert [False, False, True, True] == [one.is_cut_off for one in (busy, recent, longest, long)]


def test_where_all_are_busy_a_new_connection_is_turned_away() -> None:
    busy, recent = Late(is_idle=False), Late()
    full = Full(busy, recent)
    full.speak(busy, idle_s=60)
    full.speak(recent, idle_s=0)
    assert not full.connections.enter(Late())
    full.now_s += IDLE_S
    assert full.connections.enter(Late())
    assert [False, True] == [one.is_cut_off for one in (busy, recent)]


def test_a_connection_keeps_its_place_when_its_handshake_ends() -> None:
    handshake, connection = Late(), Late()
    full = Full(handshake)
    full.connections.replace(handshake, connection)
    full.connections.leave(handshake)
    assert full.connections.enter(Late())
    assert [False, True] == [one.is_cut_off for one in (handshake, connection)]
    full.connections.leave(connection)


def test_a_connection_that_cannot_be_closed_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(Settings(), clock=lambda: 0.0)
    late: list[Overdue] = [Late(fails=True), Late()]
    for one in late:
        connections.expect(one, 0)
    connections.look()
    assert [1, 1] == [one.times for one in late if isinstance(one, Late)]
    assert "could not be closed" in caplog.text
