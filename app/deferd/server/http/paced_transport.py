"""A transport that writes large responses in pieces.

To encrypt some megabytes takes 20 ms, in which every other client of the process waits. With a turn of the event loop
after each piece they wait for one piece. A client that does not read costs a piece or two: the rest is encrypted
when there is room for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

PIECE_BYTES = 64 * 1024
"""Over TLS a piece takes some 0.2 ms."""


class PacedTransport:
    """`transport` with `write` in pieces; everything else is passed on.

    `on_pause` is called when the client does not take what was written as fast as it comes, `on_resume` when it has.
    The protocol hands its own `pause_writing` and `resume_writing` to `pause` and `resume`.
    """

    __slots__ = (  # there are thousands, most of them idle
        "_end",
        "_is_closing",
        "_is_paused",
        "_next_piece",
        "_on_pause",
        "_on_resume",
        "_queue",
        "_queued_bytes",
        "_transport",
    )

    def __init__(
        self, transport: asyncio.Transport, *, on_pause: Callable[[], None], on_resume: Callable[[], None]
    ) -> None:
        self._transport = transport
        self._on_pause = on_pause
        self._on_resume = on_resume
        self._queue: list[memoryview] = []
        self._queued_bytes = 0
        self._next_piece: asyncio.Handle | None = None
        self._is_paused = False
        self._end: Callable[[], None] | None = None
        self._is_closing = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def peer_address(self) -> tuple[str, int] | None:
        """Host and port of the client, if it has them and is still connected."""
        peer = self._transport.get_extra_info("peername")
        return (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) and len(peer) >= 2 else None

    def write(self, data: bytes) -> None:
        """Write at once what fits into a piece, and the rest piece by piece."""
        if not self._queue and len(data) <= PIECE_BYTES:
            self._transport.write(data)
            return
        if self._end is not None or self._transport.is_closing():
            return
        if not self._queue and not self._is_paused:
            self._on_pause()
        self._queue.append(memoryview(data))
        self._queued_bytes += len(data)
        if self._next_piece is None and not self._is_paused:
            self._write_piece()

    def _write_piece(self) -> None:
        self._next_piece = None
        data = self._queue.pop(0)
        piece, rest = data[:PIECE_BYTES], data[PIECE_BYTES:]
        if rest:
            self._queue.insert(0, rest)
        self._queued_bytes -= len(piece)
        self._transport.write(piece)
        if not self._is_paused:
            self._go_on()

    def _go_on(self) -> None:
        if self._queue:
            if self._next_piece is None:
                self._next_piece = asyncio.get_running_loop().call_soon(self._write_piece)
            return
        self._on_resume()
        if self._end is not None:
            self._end()

    def pause(self) -> None:
        """The transport's buffer is full."""
        self._is_paused = True
        if self._next_piece is not None:
            self._next_piece.cancel()
            self._next_piece = None
        if not self._queue:
            self._on_pause()

    def resume(self) -> None:
        """The transport's buffer has room again."""
        self._is_paused = False
        self._go_on()

    def get_write_buffer_size(self) -> int:
        """How many bytes are not yet in the system's buffers."""
        return self._queued_bytes + self._transport.get_write_buffer_size()

    def close(self) -> None:
        """Close when everything is written."""
        self._is_closing = True
        self._end_with(self._transport.close)

    def write_eof(self) -> None:
        """Close the sending side when everything is written."""
        self._end_with(self._transport.write_eof)

    def _end_with(self, end: Callable[[], None]) -> None:
        if self._queue:
            self._end = end
        else:
            end()

    def flush(self) -> None:
        """Hand everything over to the transport now, even if it takes no more at the moment."""
        waiting = self._queue.copy()
        self._queue.clear()
        self._queued_bytes = 0
        if self._next_piece is not None:
            self._next_piece.cancel()
            self._next_piece = None
        for data in waiting:
            self._transport.write(data)
        if waiting and self._end is not None:
            self._end()

    def is_writing(self) -> bool:
        """Whether a part of what was written waits here for its turn."""
        return bool(self._queue)

    def is_closing(self) -> bool:
        """Whether it is closed, or will be when everything is written."""
        return self._is_closing or self._transport.is_closing()

    def abort(self) -> None:
        """Close at once and drop what is not written."""
        self._drop()
        self._transport.abort()

    def connection_lost(self) -> None:
        """Drop what is not written, and the references to the protocol: their circle would keep both in memory."""
        self._drop()
        self._on_pause = self._on_resume = _nothing

    def _drop(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0
        self._end = None
        if self._next_piece is not None:
            self._next_piece.cancel()
            self._next_piece = None


def _nothing() -> None:
    """There is nobody to call."""
