"""A TCP proxy in front of a real server that says other things of itself in INFO, as a look-alike does."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.in_thread import in_thread

_INFO = re.compile(rb"\$(\d+)\r\n(?=# Server\r\n)")


class InfoProxy:
    """Passes everything on, and each reply to INFO through `rewrite`."""

    def __init__(self, port: int, rewrite: Callable[[str], str]) -> None:
        self._upstream = port
        self._rewrite = rewrite
        self.port = 0
        self.rewritten = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    async def serve(self, ready: threading.Event) -> None:
        """Serve until `stop`."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def stop(self) -> None:
        """End `serve`; from any thread."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
            with contextlib.closing(up_writer):
                both = asyncio.gather(_pass_on(reader, up_writer), self._replies(up_reader, writer))
                with contextlib.suppress(OSError):
                    await both

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held = b""
        while piece := await reader.read(65536):
            held += piece
            info = _INFO.search(held)
            if info is not None:
                end = info.end() + int(info[1])
                if len(held) < end:
                    continue
                text = self._rewrite(held[info.end() : end].decode()).encode()
                held = held[: info.start()] + b"$%d\r\n" % len(text) + text + held[end:]
                self.rewritten += 1
            writer.write(held)
            await writer.drain()
            held = b""
        writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()
    writer.close()


def info_proxy(port: int, rewrite: Callable[[str], str]) -> AbstractContextManager[InfoProxy]:
    """A proxy that runs in a thread of its own until the end of the block."""
    return in_thread(InfoProxy(port, rewrite))


def instead_of_server_section(lines: str) -> Callable[[str], str]:
    """A rewrite by which the section Server has these lines, and what stands behind it stays."""
    section = "# Server\r\n" + "".join(f"{line}\r\n" for line in lines.split())

    def rewrite(info: str) -> str:
        _, blank, others = info.partition("\r\n\r\n")
        return section + blank + others

    return rewrite
