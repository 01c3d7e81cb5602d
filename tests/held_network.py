"""A network that holds up what clients send to a server, and delivers it later, also when they have closed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from tests.proxy_server import PIECE_BYTES, ProxyServer


class HeldNetwork(ProxyServer):
    """What is sent on the connections that are open at `hold` waits for `deliver`. Later ones are not concerned."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self._open: set[_Connection] = set()
        self._held: set[_Connection] = set()

    def hold(self) -> None:
        """From now on hold up what is sent on the connections that are open; from any thread."""
        self._held |= self._open

    async def deliver(self) -> bytes:
        """Deliver what was held up, and return it when the server has executed it; on any event loop."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._deliver(), self._loop))

    async def _deliver(self) -> bytes:
        late = b""
        for connection in self._held:
            late += connection.late
            connection.may_pass.set()
            await connection.is_over.wait()
        self._held.clear()
        return late

    def relay(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> tuple[Coroutine[Any, Any, None], Coroutine[Any, Any, None]]:
        connection = _Connection()
        return self._requests(connection, client[0], server[1]), self._responses(connection, server[0], client[1])

    async def _requests(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._open.add(connection)
        try:
            while piece := await reader.read(PIECE_BYTES):
                if connection in self._held:
                    connection.late += piece
                else:
                    writer.write(piece)
        except OSError:  # the client has reset it
            pass
        self._open.discard(connection)
        if connection in self._held:
            await connection.may_pass.wait()
            writer.write(connection.late)
            writer.write_eof()  # then the server executes all, and closes
            await connection.is_over.wait()

    @staticmethod
    async def _responses(connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(PIECE_BYTES):
            if not writer.is_closing():
                writer.write(piece)
        connection.is_over.set()


class _Connection:
    def __init__(self) -> None:
        self.late = b""
        self.may_pass, self.is_over = asyncio.Event(), asyncio.Event()
