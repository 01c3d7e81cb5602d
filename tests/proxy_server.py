"""The part that TCP proxies in front of a real server share: they accept connections and relay both directions."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

PIECE_BYTES = 65536


class ProxyServer:
    """Relays connections to the server at `host:port`. A subclass decides what passes; run it with `in_thread`."""

    def __init__(self, host: str, port: int) -> None:
        self._upstream = (host, port)
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def relay(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        """The two directions of a connection, which ends with the first of them."""
        return forward(client[0], server[1]), forward(server[0], client[1])

    async def serve(self, ready: threading.Event) -> None:
        """Serve until `stop`."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
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

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connection(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection(*self._upstream)
            with contextlib.closing(server_writer):
                directions = self.relay((reader, writer), (server_reader, server_writer))
                tasks = {asyncio.create_task(direction) for direction in directions}
                try:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write all that is read."""
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
