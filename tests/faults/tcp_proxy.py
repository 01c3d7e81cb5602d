"""A TCP proxy that passes bytes on, and at a word from the test cuts responses in their middle, brings them late, or
drops all that is sent on some connections, which stay open.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextlib import AbstractContextManager

from tests.in_thread import in_thread

_PIECE = 65536
_ENOUGH = 60_000
"""How much of what went to the server is looked through for a watched word that came in two pieces."""


class TcpProxy:
    """In front of the server at `host:port`. Its methods may be called from any thread."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self.port = 0
        self.cuts = 0
        """Answers that were cut in their middle so far."""
        self.held_back = 0
        """Pieces of answers so far that came late, or for which nobody waited that long."""
        self._to_cut = 0
        self._delay_s = 0.0
        self._silent_word: bytes | None = None
        self._watched: dict[bytes, asyncio.Event] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def cut_answers(self, count: int) -> None:
        """The next answers end in their middle, and with them their connections."""
        self._to_cut = count

    def delay_answers(self, seconds: float) -> None:
        """From now on each piece of an answer comes so much later; 0 is the end of that."""
        self._delay_s = seconds

    def silence(self, word: bytes | None) -> None:
        """From now on nothing passes, either way, where `word` was sent first; None: everything does again."""
        self._silent_word = word

    async def passes(self, word: bytes, within_s: float) -> bool:
        """Whether `word` is sent to the server within a time. On any event loop."""
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

    async def serve(self, ready: threading.Event) -> None:
        """Serve until `stop`."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self) -> None:
        """End `serve`."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection(*self._server)
            with contextlib.closing(server_writer):
                first = bytearray()
                ways = {
                    asyncio.create_task(self._ask(reader, server_writer, first)),
                    asyncio.create_task(self._answer(server_reader, writer, first)),
                }
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)

    def _is_silent(self, first: bytearray) -> bool:
        return self._silent_word is not None and self._silent_word in first

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytearray) -> None:
        before = b""
        while piece := await reader.read(_PIECE):
            first += piece[: _PIECE - len(first)]
            if self._is_silent(first):
                continue
            if self._watched:
                before = before[-_ENOUGH:] + piece
                for word, seen in self._watched.items():
                    if word in before:
                        seen.set()
            writer.write(piece)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytearray) -> None:
        while piece := await reader.read(_PIECE):
            if self._is_silent(first):
                continue
            if self._delay_s:
                self.held_back += 1
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
    """A proxy that runs in a thread of its own until the end of the block."""
    return in_thread(TcpProxy(host, port))
