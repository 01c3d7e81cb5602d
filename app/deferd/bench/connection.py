"""A minimal HTTP/1.1 connection with which the load generator sends single calls.

It sends the requests of the official client and parses the same responses, without its pool and its retries, so that
the generator takes as little CPU time from the service as it can.
"""

from __future__ import annotations

import asyncio
import functools
import re
import ssl
from typing import NamedTuple
from urllib.parse import unquote, urlencode, urlsplit

from deferd.client import NoAnswer
from deferd.client.requests import ApiRequest, Result
from deferd.client.tls import default_context

_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)")
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked")
_CLOSING = re.compile(rb"\r\nconnection:[ \t]*close|^http/1\.0")


class _Response(NamedTuple):
    status: int
    content: bytes
    stays_open: bool


class Connection(asyncio.Protocol):
    """Sends one call at a time to a service. It connects at the first call and reconnects after a close.

    `timeout_s` applies to connecting, and to a response on top of the wait that the call requests.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        parts = urlsplit(url)
        self._tls = _tls() if parts.scheme == "https" else None
        self._socket_path = unquote(parts.path) if parts.scheme == "unix" else None
        self._host = parts.hostname or "localhost"
        self._port = parts.port or (443 if self._tls else 80)
        self._prefix = "" if self._socket_path else parts.path.rstrip("/")
        self._shared_head = f"host: {parts.netloc or self._host}\r\naccept-encoding: identity\r\n"
        self._timeout_s = timeout_s
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[_Response] | None = None
        self._received = bytearray()

    async def send(self, call: ApiRequest[Result]) -> Result:
        """Send the call and parse its response. Raises the errors that the client raises."""
        loop = asyncio.get_running_loop()
        what = f"{call.method} {call.path}"
        transport = self._transport
        if transport is None or transport.is_closing():
            transport = await self._connect(what)
        self._waiting = loop.create_future()
        timer = loop.call_later(self._timeout_s + call.wait_s, self._fail, "it took too long")
        try:
            transport.write(self._request(call))
            response = await self._waiting
        except OSError as error:
            raise NoAnswer(f"{what}: {error}") from error
        finally:
            timer.cancel()
            if not self._waiting.done() or self._waiting.cancelled():  # a late response is not the next one
                self.close()
            self._waiting = None
        if not response.stays_open:
            self.close()
        return call.read_response(response.status, response.content)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    async def _connect(self, what: str) -> asyncio.Transport:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._socket_path:
                    transport, _ = await loop.create_unix_connection(lambda: self, self._socket_path)
                else:
                    transport, _ = await loop.create_connection(lambda: self, self._host, self._port, ssl=self._tls)
        except TimeoutError as error:
            raise NoAnswer(f"{what}: connecting took more than {self._timeout_s:g} s") from error
        except OSError as error:
            raise NoAnswer(f"{what}: {error}") from error
        self._transport = transport
        return transport

    def _request(self, call: ApiRequest[Result]) -> bytes:
        query = f"?{urlencode(call.query)}" if call.query else ""
        head = f"{call.method} {self._prefix}{call.path}{query} HTTP/1.1\r\n{self._shared_head}"
        if call.body is None:
            return f"{head}content-length: 0\r\n\r\n".encode()
        about = f"content-type: application/json\r\ncontent-length: {len(call.body)}\r\n\r\n"
        return f"{head}{about}".encode() + call.body

    def _fail(self, reason: str) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError(reason))
        self.close()

    def connection_made(self, _transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._received.clear()

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        if self._waiting is not None and not self._waiting.done():
            response = None if error else _read_response(self._received, ended=True)
            if response is not None:
                self._waiting.set_result(response)
            else:
                self._waiting.set_exception(ConnectionError(str(error or "the connection was closed")))
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._received += data
        try:
            response = _read_response(self._received)
        except ValueError as error:
            self._fail(f"the response is not HTTP: {error}")
            return
        if response is not None:
            self._received.clear()
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(response)


@functools.cache
def _tls() -> ssl.SSLContext:
    """The trust settings of the client; made once because that takes longer than many calls."""
    return default_context()


def _read_response(received: bytearray, *, ended: bool = False) -> _Response | None:
    """The response; None while it is incomplete. Raises ValueError for anything but HTTP."""
    head_end = received.find(_HEAD_END)
    if head_end < 0:
        return None
    head = bytes(received[:head_end]).lower()
    status, body_at = int(head[9:12]), head_end + len(_HEAD_END)
    content: bytes | None
    if length := _LENGTH.search(head):
        end = body_at + int(length[1])
        content = bytes(received[body_at:end]) if len(received) >= end else None
    elif _CHUNKED.search(head):
        content = _read_chunks(received, body_at)
    else:  # it ends with the connection
        content = bytes(received[body_at:]) if ended else None
    return None if content is None else _Response(status, content, _CLOSING.search(head) is None)


def _read_chunks(received: bytearray, at: int) -> bytes | None:
    """The chunked content that starts at `at`; None while it is incomplete."""
    content = bytearray()
    while (line_end := received.find(b"\r\n", at)) >= 0:
        size = int(received[at:line_end].partition(b";")[0], 16)
        chunk_at = line_end + 2
        if size == 0:  # deferd sends no trailers; the empty line ends the response
            return bytes(content) if received.find(b"\r\n", chunk_at) >= 0 else None
        at = chunk_at + size + 2
        if len(received) < at:
            return None
        content += received[chunk_at : chunk_at + size]
    return None
