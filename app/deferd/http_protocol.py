"""uvicorn's HTTP protocol, except that the head and the body of an answer go out in one write.

uvicorn writes them one after the other: two system calls and two packets for each answer, which is a fifth of the
time of a small one.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1.1 "


class OneWriteProtocol(HttpToolsProtocol):
    """HttpToolsProtocol over a transport that holds an answer's head until its body follows."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(_HeadWithBody(transport, self.loop))  # type: ignore[arg-type]


class _HeadWithBody:
    """A transport of which `write` keeps a head back until the next write, at the longest for one turn of the loop."""

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Write `data`, after the head that was kept back, or keep it back if it is one."""
        head, self._head = self._head, None
        if head is not None:
            self._transport.write(head + data)
        elif data.startswith(_HEAD):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Write what was kept back, then close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, None
        if head is not None:
            self._transport.write(head)
