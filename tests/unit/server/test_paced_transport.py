"""Large responses are written piece by piece, in order, and none is lost at a close."""

from __future__ import annotations

import asyncio

import pytest

from deferd.server.http.paced_transport import PIECE_BYTES, PacedTransport


class RecordingTransport(asyncio.Transport):
    """Takes pieces until `room` of them are written; then it pauses its writer, as a socket that is full does."""

    def __init__(self, room: int = 1000) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.room = room
        self.calls: list[str] = []
        self.paced = PacedTransport(
            self, on_pause=lambda: self.calls.append("pause"), on_resume=lambda: self.calls.append("resume")
        )

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))
        if len(self.written) == self.room:
            self.paced.pause()

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.calls.append("close")

    def write_eof(self) -> None:
        self.calls.append("eof")

    def abort(self) -> None:
        self.calls.append("abort")

    def is_closing(self) -> bool:
        return "close" in self.calls


LARGE = bytes(range(256)) * (PIECE_BYTES // 64)  # four pieces


async def run_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_small_response_is_written_at_once() -> None:
    transport = RecordingTransport()
    transport.paced.write(b"small")
    assert (transport.written, transport.calls) == ([b"small"], [])


async def test_a_large_response_takes_a_turn_of_the_loop_for_each_piece() -> None:
    transport = RecordingTransport()
    transport.paced.write(LARGE)
    assert (len(transport.written), transport.calls) == (1, ["pause"])
    assert transport.paced.get_write_buffer_size() == len(LARGE) - PIECE_BYTES
    await run_loop(1)
    assert len(transport.written) == 2
    await run_loop(5)
    assert (b"".join(transport.written), transport.calls) == (LARGE, ["pause", "resume"])
    assert transport.paced.get_write_buffer_size() == 0


async def test_data_after_a_large_response_is_sent_after_it() -> None:
    transport = RecordingTransport()
    transport.paced.write(LARGE)
    transport.paced.write(b"next")
    await run_loop(10)
    assert b"".join(transport.written) == LARGE + b"next"
    assert transport.calls == ["pause", "resume"]


async def test_nothing_is_written_while_the_client_does_not_read() -> None:
    transport = RecordingTransport(room=2)
    transport.paced.write(LARGE)
    await run_loop(10)
    assert len(transport.written) == 2
    assert transport.paced.get_write_buffer_size() == len(LARGE) - 2 * PIECE_BYTES
    transport.paced.resume()
    await run_loop(10)
    assert (b"".join(transport.written), transport.calls) == (LARGE, ["pause", "resume"])


async def test_a_pause_between_responses_is_passed_on() -> None:
    transport = RecordingTransport()
    transport.paced.pause()
    transport.paced.resume()
    assert transport.calls == ["pause", "resume"]


@pytest.mark.parametrize(("end", "call"), [("close", "close"), ("write_eof", "eof")])
async def test_it_ends_when_everything_is_written(end: str, call: str) -> None:
    transport = RecordingTransport()
    transport.paced.write(LARGE)
    getattr(transport.paced, end)()
    assert transport.paced.is_closing() == (end == "close")
    assert transport.calls == ["pause"]
    transport.paced.write(b"too late")
    await run_loop(10)
    assert (b"".join(transport.written), transport.calls) == (LARGE, ["pause", "resume", call])


async def test_a_flush_writes_everything_though_the_client_does_not_read() -> None:
    transport = RecordingTransport(room=2)
    transport.paced.write(LARGE)
    transport.paced.close()
    await run_loop(10)
    transport.paced.flush()
    assert (b"".join(transport.written), transport.calls) == (LARGE, ["pause", "close"])
    await run_loop(10)
    assert b"".join(transport.written) == LARGE


async def test_an_abort_drops_what_is_not_written() -> None:
    transport = RecordingTransport()
    transport.paced.write(LARGE)
    transport.paced.abort()
    await run_loop(10)
    assert (len(transport.written), transport.calls) == (1, ["pause", "abort"])
    assert transport.paced.get_write_buffer_size() == 0


async def test_a_lost_connection_is_not_called_back() -> None:
    transport = RecordingTransport(room=2)
    transport.paced.write(LARGE)
    await run_loop(10)
    transport.paced.connection_lost()
    transport.paced.resume()
    await run_loop(10)
    assert (len(transport.written), transport.calls) == (2, ["pause"])
