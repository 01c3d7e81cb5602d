"""The deadlines of a connection of the Redis protocol whose client does not read at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from deferd.api.app import create_app
from deferd.api.resp.session import RespApi
from deferd.server.http.connections import LINGER_S, Connections
from deferd.server.http.paced_transport import PIECE_BYTES
from deferd.server.resp.connection import RespConnection
from deferd.settings import Settings
from tests.waiting import until

HALF = b"*2\r\n$4\r\nECHO\r\n$5\r\nab"
API = RespApi(create_app(Settings(), ""))


class RecordingTransport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = False
        self.on_write: Callable[[], None] | None = None

    def write(self, data: Any) -> None:
        self.written += bytes(data)
        if self.on_write is not None:
            self.on_write()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing: the test says when the buffer is full."""

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        """Nothing."""

    def resume_reading(self) -> None:
        """Nothing."""

    def abort(self) -> None:
        self.is_aborted = True


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def limits(clock: Clock) -> Connections:
    return Connections(Settings(), clock)


@pytest.fixture
def transport() -> RecordingTransport:
    return RecordingTransport()


@pytest.fixture
def connection(limits: Connections, transport: RecordingTransport) -> RespConnection:
    connection = RespConnection(API, limits)
    connection.connection_made(transport)
    return connection


@pytest.mark.parametrize("is_paused_first", [True, False])
def test_half_a_command_has_a_deadline_after_the_client_has_read(
    connection: RespConnection, transport: RecordingTransport, limits: Connections, clock: Clock, is_paused_first: bool
) -> None:
    if is_paused_first:
        connection.pause_writing()
        connection.data_received(HALF)
    else:
        connection.data_received(HALF)
        connection.pause_writing()
    connection.resume_writing()
    clock.now_s += limits.body_timeout_s + 1
    limits.close_overdue()
    assert b"a command did not arrive in time" in transport.written


@pytest.mark.parametrize("data", [HALF, HALF + b"cde\r\n"], ids=["half", "whole"])
async def test_a_command_does_not_extend_the_time_to_read(
    connection: RespConnection, transport: RecordingTransport, limits: Connections, clock: Clock, data: bytes
) -> None:
    limits.response_timeout_s, limits.body_timeout_s = 5.0, 50.0
    connection.pause_writing()
    connection.data_received(data)
    await asyncio.sleep(0)
    assert not transport.written
    clock.now_s += 6
    limits.close_overdue()
    assert transport.is_aborted


async def test_a_command_goes_on_when_the_last_piece_of_a_reply_fills_the_buffer(
    connection: RespConnection, transport: RecordingTransport
) -> None:
    def fill_the_buffer() -> None:
        if len(transport.written) > PIECE_BYTES:
            transport.on_write = None
            connection.pause_writing()

    transport.on_write = fill_the_buffer
    size = PIECE_BYTES + 1
    connection.data_received(b"*2\r\n$4\r\nECHO\r\n$%d\r\n%b\r\n*1\r\n$4\r\nPING\r\n" % (size, b"x" * size))
    await until(lambda: len(transport.written) > size, "the last piece is written")
    connection.resume_writing()
    await until(lambda: transport.written.endswith(b"+PONG\r\n"), "the next command is carried out")


def test_a_connection_that_has_ended_does_not_stay_open_because_its_client_read_late(
    connection: RespConnection, transport: RecordingTransport, limits: Connections, clock: Clock
) -> None:
    connection.data_received(b"GET / HTTP/1.1\r\n")
    assert b"Protocol error" in transport.written
    connection.pause_writing()
    connection.resume_writing()
    clock.now_s += LINGER_S + 1
    limits.close_overdue()
    assert transport.is_aborted
