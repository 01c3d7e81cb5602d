"""The deadlines of a connection of the Redis protocol whose client does not read at once."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.api.app import create_app
from deferd.api.resp.session import RespApi
from deferd.server.http.connections import LINGER_S, Connections
from deferd.server.http.paced_transport import PIECE_BYTES
from deferd.server.resp_connection import CommandReader, ProtocolViolation, RespConnection
from deferd.settings import Settings
from tests.drawn_input import drawn
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


MOST_WORDS, MOST_BYTES = 10, 1000


def reader(most_words: int = MOST_WORDS, most_bytes: int = MOST_BYTES) -> CommandReader:
    return CommandReader(most_words, most_bytes)


def packed(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def take_all(reading: CommandReader, data: bytes) -> list[list[bytes]]:
    reading.add(data)
    return reading.take(10_000, 1 << 30, 1 << 30)


def test_a_pipeline_is_split_into_its_commands() -> None:
    commands = [[b"PING"], [b"SADD", b"t", b"a\r\n$1\r\n", b"0"], [b"ECHO", b""]]
    assert take_all(reader(), b"".join(packed(*words) for words in commands)) == commands


def test_at_most_so_many_commands_are_taken() -> None:
    reading = reader()
    reading.add(packed(b"PING") * 5)
    assert [len(reading.take(2, 1 << 30, 1 << 30)) for _ in range(4)] == [2, 2, 1, 0]
    reading.add(packed(b"ECHO", b"x" * 500) * 5)
    assert [len(reading.take(10, 3, 1 << 30)) for _ in range(4)] == [2, 2, 1, 0]
    reading.add(packed(b"ECHO", b"x" * 500) * 5)
    assert [len(reading.take(10, 1 << 30, 600)) for _ in range(4)] == [2, 2, 1, 0]
    assert len(reading) == 0


WORDS = st.lists(st.binary(max_size=40), min_size=1, max_size=6)


@drawn(500)
@given(st.lists(WORDS, max_size=5), st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_the_pieces_in_which_commands_arrive_make_no_difference(commands: list[list[bytes]], sizes: list[int]) -> None:
    data = b"".join(packed(*words) for words in commands)
    reading, found, at = reader(), [], 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        found += take_all(reading, data[at : at + size])
        at += size
    assert found == commands
    assert len(reading) == 0


REFUSED = {
    "a line of text": b"PING\r\n",
    "HTTP": b"POST / HTTP/1.1\r\n",
    "too many words": b"*11\r\n",
    "four billion words": b"*4294967295\r\n",
    "no words": b"*0\r\n",
    "a null array": b"*-1\r\n",
    "a long number": b"*" + b"1" * 20,
    "no number": b"*x\r\n",
    "a sign": b"*+1\r\n",
    "a zero in front": b"*01\r\n$4\r\nPING\r\n",
    "a zero in front of a length": b"*1\r\n$04\r\nPING\r\n",
    "two zeros": b"*1\r\n$00\r\n\r\n",
    "an underscore": b"*1_0\r\n",
    "a space": b"* 1\r\n",
    "half of a wrong number": b"*1x",
    "an empty number": b"*\r\n",
    "a nested array": b"*1\r\n*1\r\n$4\r\nPING\r\n",
    "a number as a word": b"*1\r\n:1\r\n",
    "a map": b"%1\r\n+a\r\n+b\r\n",
    "a null word": b"*1\r\n$-1\r\n",
    "a missing length": b"*2\r\n$\r\n",
    "a wrong end": b"*1\r\n$4\r\nPINGxx",
    "zeros": b"\0" * 1000,
    "half a gigabyte": b"*2\r\n$4\r\nECHO\r\n$536870912\r\n",
    "too much together": b"*2\r\n$600\r\n" + b"x" * 600 + b"\r\n$600\r\n",
    "a wrong length": b"*1\r\n$3\r\nPING\r\n",
    "lines that end by LF": b"*1\n$4\nPING\n",
    "bytes of TLS": b"\x16\x03\x01\x02\x00",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
def test_what_is_no_command_is_refused_after_the_commands_before_it(data: bytes) -> None:
    reading = reader()
    assert take_all(reading, packed(b"PING") * 2 + data) == [[b"PING"], [b"PING"]]
    with pytest.raises(ProtocolViolation, match=r"^Protocol error: "):
        reading.take(10, 1000, 1000)


@drawn(800)
@given(st.binary(max_size=60) | st.lists(st.sampled_from(sorted(REFUSED.values())), max_size=3).map(b"".join))
def test_any_bytes_are_commands_or_refused(data: bytes) -> None:
    reading = reader()
    try:
        commands = take_all(reading, data)
    except ProtocolViolation:
        return
    assert b"".join(packed(*words) for words in commands) == data[: len(data) - len(reading)]


def test_announcements_reserve_no_memory() -> None:
    readings = [reader(4000, 1 << 20) for _ in range(1000)]
    tracemalloc.start()
    try:
        for reading in readings:
            assert take_all(reading, b"*4000\r\n$4\r\nECHO\r\n$1048000\r\nx") == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1000 * 500


def test_a_large_word_is_not_copied_for_each_piece() -> None:
    """Its size is known, so a piece costs the same however much came before."""
    reading = reader(4000, 1 << 24)
    word = b"x" * (1 << 23)
    data = packed(b"ECHO", word)
    for at in range(0, len(data), 1 << 16):
        found = take_all(reading, data[at : at + (1 << 16)])
    assert found == [[b"ECHO", word]]
