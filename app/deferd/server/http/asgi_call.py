"""A request that goes through ASGI, from its head to its response."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import unquote

import httptools
from starlette.types import ASGIApp, Message, Scope

from deferd.api import problem_details
from deferd.api.dispatch import KEY_NAME
from deferd.api.event_stream_response import CUT_OFF
from deferd.api.responses import Header
from deferd.server.http.connections import Connections
from deferd.server.http.heads import response_head
from deferd.server.http.paced_transport import PacedTransport

_UNREAD_BODY_BYTES = 64 * 1024
"""So much of a body that the application has not received yet ends reading until it has."""
_DISCONNECT: Message = {"type": "http.disconnect"}
_has_control_character = re.compile(b"[\x00-\x08\x0a-\x1f\x7f]").search
_log = logging.getLogger("deferd.connections")


class Connection(Protocol):
    """The connection that a call came by. While its client does not read there is a `room`, which is set later."""

    transport: PacedTransport
    limits: Connections
    room: asyncio.Event | None

    def caller(self, headers: Sequence[Header]) -> tuple[str, int] | None:
        """The address of who made the request with these headers, if it has one."""

    def pause_reading(self) -> None:
        """Receive nothing for now."""

    def resume_reading(self) -> None:
        """Receive again, unless buffered input is to be parsed first."""

    def end_asgi_call(self) -> None:
        """The response is complete."""


class AsgiCall:
    """One request, and its response.

    When the client has closed its side of the connection, a wait for it ends as if it had disconnected, and it still
    gets a response.
    """

    def __init__(
        self,
        connection: Connection,
        parser: httptools.HttpRequestParser,
        url: bytes,
        headers: list[Header],
        scheme: str,
    ) -> None:
        parsed = httptools.parse_url(url)
        http_version = parser.get_http_version()
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": http_version,
            "method": parser.get_method().decode("ascii"),
            "scheme": scheme,
            "path": unquote(parsed.path.decode("ascii")),
            "raw_path": parsed.path,
            "query_string": parsed.query or b"",
            "root_path": "",
            "headers": headers,
            "client": connection.caller(headers),
            "extensions": {CUT_OFF: {"call": connection.transport.abort}},
        }
        self._connection = connection
        self.keep_alive = http_version != "1.0" and parser.should_keep_alive() and not connection.limits.is_stopping
        self.response_started = False
        self._response_complete = False
        self._disconnected = False
        self._half_closed = False
        self._expects_continue = any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)
        self._body = bytearray()
        self._more_body = True
        self._body_received = False  # by the application
        self._changed = asyncio.Event()
        self._is_chunked = False
        self._left_bytes = 0  # of the Content-Length

    @property
    def key_name(self) -> str | None:
        """The name of the API key that the request was admitted with, if any, once the response begins."""
        name: str | None = self.scope.get(KEY_NAME)
        return name

    def add_to_body(self, piece: bytes) -> None:
        """Add the next piece of the body. After the response nobody receives it."""
        if not self._response_complete:
            self._body += piece
            if len(self._body) > _UNREAD_BODY_BYTES:
                self._connection.pause_reading()
            self._changed.set()

    def end_body(self) -> None:
        """The body is complete."""
        self._more_body = False
        self._changed.set()

    def disconnect(self) -> None:
        """The client has disconnected."""
        self._disconnected = True
        self._changed.set()

    def half_close(self) -> None:
        """The client sends no more, and may have disconnected."""
        self._half_closed = True
        self._changed.set()

    async def run(self, app: ASGIApp) -> None:
        """Have the application respond. An error is logged; the client gets 500, or the response is cut off."""
        try:
            await self._respond(app)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 (every error gets a response)
            if isinstance(error, Exception):
                _log.exception("unexpected error while handling a request")
            if self._response_complete or self._disconnected:
                return
            if isinstance(error, asyncio.CancelledError) and self._connection.room is not None:
                self._connection.transport.abort()  # to wait for a client that does not read would hold up the stop
            elif self.response_started:
                self._response_complete = True
                self._connection.transport.close()
                self._connection.end_asgi_call()
            else:
                await self._send_internal_error()

    async def _respond(self, app: ASGIApp) -> None:
        await app(self.scope, self._receive, self._send)
        if self._half_closed and not self.response_started:
            await problem_details.response(problem_details.HalfClosed())(self.scope, self._receive, self._send)
        if not (self._response_complete or self._disconnected):
            raise RuntimeError("the application has not completed its response")

    async def _send_internal_error(self) -> None:
        self.keep_alive = False
        headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"21")]
        await self._send({"type": "http.response.start", "status": 500, "headers": headers})
        await self._send({"type": "http.response.body", "body": b"Internal Server Error"})

    async def _receive(self) -> Message:
        if self._half_closed and self._body_received:
            return _DISCONNECT
        transport = self._connection.transport
        if self._expects_continue and not (self._disconnected or transport.is_closing()):
            transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects_continue = False
        if not (self._disconnected or self._response_complete):
            self._connection.resume_reading()
            await self._changed.wait()
            self._changed.clear()
        if self._disconnected or self._response_complete or (self._half_closed and self._body_received):
            return _DISCONNECT
        self._body_received = not self._more_body
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self._more_body}

    async def _send(self, message: Message) -> None:
        room = self._connection.room
        if room is not None:
            await room.wait()
        if self._disconnected:
            return
        if not self.response_started:
            self._begin_response(message["status"], message["headers"])
        elif self._response_complete:
            raise RuntimeError("the response is complete already")
        else:
            self._send_body(message.get("body", b""), more_body=message.get("more_body", False))

    def _begin_response(self, status: int, headers: list[Header]) -> None:
        self.response_started = True
        if self._expects_continue and self._more_body and not self._body:
            # Instead of 100 Continue: the client may then omit the announced body (RFC 9110, section 10.1.1), and its
            # next request would be read as that body.
            self.keep_alive = False
        self._expects_continue = False
        if any(_has_control_character(value) for _, value in headers):
            raise RuntimeError("a header of the response has a control character")
        length = next((value for name, value in headers if name == b"content-length"), None)
        self._left_bytes = int(length or 0)
        self._is_chunked = length is None and self.scope["method"] != "HEAD" and status not in (204, 304)
        head = response_head(
            status,
            self._connection.limits.date_line,
            headers,
            keep_alive=self.keep_alive,
            is_chunked=self._is_chunked,
        )
        self._connection.transport.write(head)

    def _send_body(self, body: bytes, *, more_body: bool) -> None:
        if self._is_chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more_body else b"0\r\n\r\n")
        elif self.scope["method"] == "HEAD":
            body = b""
        else:
            self._left_bytes -= len(body)
            if self._left_bytes < 0 or (self._left_bytes and not more_body):
                raise RuntimeError("the body of the response is not as long as its Content-Length")
        if body:
            self._connection.transport.write(body)
        if not more_body:
            self._response_complete = True
            self._changed.set()
            if not self.keep_alive:
                self._connection.transport.close()
            self._connection.end_asgi_call()
