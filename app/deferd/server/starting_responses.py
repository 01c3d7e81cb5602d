"""What a service responds while its store loads its data: nothing can be served yet, but probes ask how far it is.

For the first seconds connections wait in the listener's queue, so that clients do not notice a quick restart. After
that each request gets a 503 with the progress, and `/healthz` a 200, on a connection that is then closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from deferd.api import problem_details
from deferd.contract.errors import StoreUnavailable
from deferd.store.load_progress import LoadProgress

RESPOND_AFTER_S = 2.0
_HEAD_BYTES = 16 * 1024
_HEAD_S = 5.0
_AT_ONCE = 64
_DETAIL = "the store is starting"
_UNAVAILABLE = b"503 Service Unavailable"

Read = Callable[[], Awaitable[LoadProgress | None]]


@contextlib.asynccontextmanager
async def starting_responses(
    listener: socket.socket, read_progress: Read, context: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Respond to requests on the socket during the block, if that takes long. The socket stays open."""
    responder = asyncio.create_task(_Responder(read_progress).run(listener, context), name="starting-responses")
    try:
        yield
    finally:
        responder.cancel()
        await asyncio.wait((responder,))


class _Responder:
    def __init__(self, read_progress: Read) -> None:
        self._read_progress = read_progress
        self._connections: set[asyncio.StreamWriter] = set()

    async def run(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        await asyncio.sleep(RESPOND_AFTER_S)
        # Of its own, as a server closes its socket; both have one queue of connections.
        server = await asyncio.start_server(
            self._respond,
            sock=listener.dup(),
            limit=_HEAD_BYTES,
            ssl=context,
            ssl_handshake_timeout=None if context is None else _HEAD_S,
        )
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
            for connection in self._connections:
                connection.transport.abort()

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            if len(self._connections) <= _AT_ONCE:
                async with asyncio.timeout(_HEAD_S):
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._response(head))
                    await writer.drain()
                    writer.close()
                    await writer.wait_closed()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client has gone, or sends no request
        finally:
            self._connections.discard(writer)
            writer.transport.abort()

    async def _response(self, head: bytes) -> bytes:
        first_line, _, headers = head.partition(b"\r\n")
        method, _, target = first_line.partition(b" ")
        if target.startswith(b"/healthz"):
            return _http(b"200 OK", b"application/json", b'{"status":"ok"}', method)
        progress = await self._read_progress()
        detail = _DETAIL if progress is None else f"the store {progress}"
        error = StoreUnavailable(detail, 1 if progress is None else progress.retry_after_s)
        retry = b"retry-after: %d\r\n" % error.retry_after_s
        if b"text/html" in headers.lower():
            page = _PAGE.format(seconds=max(error.retry_after_s, 2), detail=html.escape(detail)).encode()
            return _http(_UNAVAILABLE, b"text/html; charset=utf-8", page, method, retry)
        problem = problem_details.response(error)
        return _http(_UNAVAILABLE, problem_details.MEDIA_TYPE.encode(), bytes(problem.body), method, retry)


def _http(status: bytes, media_type: bytes, body: bytes, method: bytes, more: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n" % (status, media_type, len(body))
    head += b"cache-control: no-store\r\n" + more + b"connection: close\r\n\r\n"
    return head if method == b"HEAD" else head + body


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="{seconds}">
<title>deferd is starting</title></head>
<body><h1>deferd is starting</h1><p>{detail}</p><p>This page reloads by itself.</p></body></html>
"""
