"""A TCP proxy that cuts and holds up requests, cuts and delays responses, or silently drops everything on some
connections, on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any

from tests.in_thread import in_thread
from tests.proxy_server import PIECE_BYTES, ProxyServer

_OVERLAP_BYTES = 60_000
"""How much of the last piece is searched again, for a watched word that came in two pieces."""


class TcpProxy(ProxyServer):
    """In front of the server at `host:port`. Its methods may be called from any thread."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.cuts = 0
        """Responses that were cut so far."""
        self.delayed = 0
        """Pieces of responses that were delayed so far, including those that nobody waited for."""
        self.request_cuts = 0
        """Requests that were cut so far."""
        self.held = 0
        """Requests that were held up so far."""
        self._to_cut = 0
        self._requests_to_cut = 0
        self._requests_to_hold = 0
        self._released: asyncio.Event | None = None
        self._delay_s = 0.0
        self._silent_word: bytes | None = None
        self._watched: dict[bytes, asyncio.Event] = {}

    def cut_responses(self, count: int) -> None:
        """Cut the next responses in the middle, and close their connections."""
        self._to_cut = count

    def cut_requests(self, count: int) -> None:
        """Cut the next requests in the middle, and close their connections."""
        self._requests_to_cut = count

    def hold_requests(self, count: int) -> None:
        """Hold up the next requests until `release_requests`, also when their client is gone by then."""
        self._requests_to_hold, self._released = count, asyncio.Event()

    def release_requests(self) -> None:
        """Let the requests through that are held up, and those that follow."""
        self._requests_to_hold = 0
        if self._released is not None:
            self._loop.call_soon_threadsafe(self._released.set)

    def delay_responses(self, seconds: float) -> None:
        """Delay each piece of a response by so much from now on; 0 ends that."""
        self._delay_s = seconds

    def silence(self, word: bytes | None) -> None:
        """From now on drop everything on connections whose client sent `word` first; None ends that."""
        self._silent_word = word

    async def passes(self, word: bytes, within_s: float) -> bool:
        """Whether a client sends `word` within a time. On any event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._passes(word, within_s), self._loop))

    async def _passes(self, word: bytes, within_s: float) -> bool:
        seen = self._watched[word] = asyncio.Event()
        try:
            async with asyncio.timeout(within_s):
                await seen.wait()
        except TimeoutError:
            return False
        finally:
            del self._watched[word]
        return True

    def relay(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        first = bytearray()
        return self._forward_requests(client[0], server[1], first), self._forward_responses(server[0], client[1], first)

    def _is_silent(self, first: bytearray) -> bool:
        return self._silent_word is not None and self._silent_word in first

    async def _forward_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytearray
    ) -> None:
        before = b""
        while piece := await reader.read(PIECE_BYTES):
            first += piece[: PIECE_BYTES - len(first)]
            if self._is_silent(first):
                continue
            if self._watched:
                before = before[-_OVERLAP_BYTES:] + piece
                for word, seen in self._watched.items():
                    if word in before:
                        seen.set()
            if self._requests_to_hold and self._released is not None:
                self._requests_to_hold -= 1
                self.held += 1
                await self._released.wait()
            if self._requests_to_cut and len(piece) > 1:
                self._requests_to_cut -= 1
                self.request_cuts += 1
                writer.write(piece[: len(piece) // 2])
                await writer.drain()
                return
            writer.write(piece)
            await writer.drain()

    async def _forward_responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytearray
    ) -> None:
        while piece := await reader.read(PIECE_BYTES):
            if self._is_silent(first):
                continue
            if self._delay_s:
                self.delayed += 1
                await asyncio.sleep(self._delay_s)
            if self._to_cut and len(piece) > 1:
                self._to_cut -= 1
                self.cuts += 1
                writer.write(piece[: len(piece) // 2])
                await writer.drain()
                return
            writer.write(piece)
            await writer.drain()


def tcp_proxy(host: str, port: int) -> AbstractContextManager[TcpProxy]:
    """A proxy that runs in a thread until the end of the block."""
    return in_thread(TcpProxy(host, port))
