"""Requests written byte for byte on connections of their own, and their responses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

_TIMEOUT_S = 10.0


class WireResponse(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Wire:
    """A connection on which requests are written byte for byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *pieces: bytes) -> None:
        self.writer.writelines(pieces)

    async def head(self, within_s: float = _TIMEOUT_S) -> str:
        async with asyncio.timeout(within_s):
            return (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")

    async def read_response(self, within_s: float = _TIMEOUT_S) -> WireResponse:
        async with asyncio.timeout(within_s):
            status_line, *lines = (await self.head(within_s)).rstrip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            body = await self.reader.readexactly(int(headers["content-length"]))
        return WireResponse(int(status_line.split()[1]), headers, body)

    async def is_closed(self) -> bool:
        async with asyncio.timeout(_TIMEOUT_S):
            return await self.reader.read(1) == b""


@contextlib.asynccontextmanager
async def connected(port: int, tls: ssl.SSLContext | None = None) -> AsyncIterator[Wire]:
    """A connection that ends with the block."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        yield Wire(reader, writer)
    finally:
        await cut(writer)


async def cut(writer: asyncio.StreamWriter) -> None:
    """End the connection now; after a mere `close` TLS still sends its close_notify, and outlives the loop."""
    writer.transport.abort()
    async with asyncio.timeout(_TIMEOUT_S):
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def request(method: str, path: str, body: Any = None, *headers: str, through_asgi: bool = False) -> bytes:
    """A request; one that is to go through ASGI has its body in chunks."""
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: x", *headers]
    if through_asgi:
        lines.append("Transfer-Encoding: chunked")
        raw = b"".join((b"%x\r\n%b\r\n" % (len(raw), raw) if raw else b"", b"0\r\n\r\n"))
    elif body is not None:
        lines.append(f"Content-Length: {len(raw)}")
    return "\r\n".join((*lines, "", "")).encode() + raw
