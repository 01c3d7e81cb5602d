"""uvicorn's HTTP protocol with a short way for the requests that make the load.

A request to an operation that comes plainly (HTTP/1.1, no pipelining, a body of known length within the limit) is
answered without ASGI between: no scope, no receive and send, no event, and head and body of the answer in one write.
All others go uvicorn's way. For operations both ways end at `Boundary.answer`; see `deferd.api.call`.

This builds on the inside of uvicorn's HttpToolsProtocol, whose versions pyproject.toml bounds for that reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from deferd.api.call import Call, address_of
from deferd.api.operation import Operation
from deferd.api.request_json import check_media_type
from deferd.api.service import Service
from deferd.engine.record import JobRecord

_NOT_PLAIN = frozenset((b"transfer-encoding", b"expect", b"upgrade"))


class PlainCall(Call):
    """A call on the short way. Towards uvicorn's protocol it plays the part of a request-response cycle."""

    __slots__ = (
        "body",
        "body_length",
        "client",
        "disconnected",
        "keep_alive",
        "operation",
        "pop",
        "response_complete",
        "task",
    )

    message_event: ClassVar[asyncio.Event] = asyncio.Event()
    """What uvicorn wakes a cycle by. Nobody waits for this one, so it may stay set."""
    task: asyncio.Task[None]
    """What answers it; there from when the request has come as a whole."""

    def __init__(
        self,
        service: Service,
        operation: Operation,
        path_values: dict[str, str],
        *,
        method: str,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        body_length: int,
        keep_alive: bool,
        client: tuple[str, int] | None,
    ) -> None:
        super().__init__(service, method, path_values, query, headers)
        self.operation = operation
        self.body_length = body_length
        self.body: bytes | bytearray = b""
        self.keep_alive = keep_alive
        self.client = client
        self.disconnected = False
        self.response_complete = False
        self.pop: asyncio.Task[Any] | None = None

    def take(self, piece: bytes) -> None:
        """Add a piece of the body."""
        if not self.body:
            self.body = piece if len(piece) == self.body_length else bytearray(piece)
        else:
            self.body += piece

    def client_address(self) -> str | None:
        """See Call."""
        return address_of(self.client)

    def hang_up(self) -> None:
        """The client is gone."""
        self.disconnected = True
        if self.pop is not None:
            self.pop.cancel()

    async def read_body(self) -> bytes:
        """See Call."""
        if self.body:
            check_media_type(self.headers)
        body, self.body = bytes(self.body), b""  # a connection remembers its last call, however long it is idle
        return body

    async def unless_gone(self, popping: Coroutine[Any, Any, list[JobRecord]]) -> Sequence[JobRecord]:
        """See Call."""
        if self.disconnected:
            popping.close()
            raise ClientDisconnect
        self.pop = asyncio.current_task()
        try:
            return await popping
        except asyncio.CancelledError:
            if self.disconnected:
                raise ClientDisconnect from None
            raise
        finally:
            self.pop = None


class PlainCallProtocol(HttpToolsProtocol):
    """HttpToolsProtocol with the short way to the operations of `service`."""

    def __init__(self, service: Service, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._service = service
        self._incoming: PlainCall | None = None
        self._answering: PlainCall | None = None
        self._default_headers: list[tuple[bytes, bytes]] | None = None
        self._default_head = b""

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has hung up, or was cut off."""
        super().connection_lost(exc)
        if self._answering is not None:
            self._answering.hang_up()

    def on_message_begin(self) -> None:
        """A request begins. Its ASGI scope is made when it is known to need one."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False

    def on_headers_complete(self) -> None:
        """The head of a request is read: choose its way."""
        call = self._plain_call()
        if call is not None:
            self._incoming = self.cycle = call  # type: ignore[assignment]  # see PlainCall
            return
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers += headers
        super().on_headers_complete()
        if self._answering is not None and len(self.pipeline) == 1:
            self.flow.resume_reading()  # else nobody would notice that the client of a waiting pop hangs up

    def _plain_call(self) -> PlainCall | None:
        url = self.url
        before: RequestResponseCycle | None = self.cycle
        if (
            (before is not None and not before.response_complete)  # pipelined
            or self.flow.write_paused
            or self.parser.get_http_version() != "1.1"
            or not url.startswith(b"/")
            or b"%" in url
            or b"#" in url
            or not url.isascii()
        ):
            return None
        body_length = 0
        for name, value in self.headers:
            if name == b"content-length":
                body_length = int(value)
            elif name in _NOT_PLAIN:
                return None
        if body_length > self._service.settings.max_body_bytes:
            return None
        path, _, query = url.partition(b"?")
        method = self.parser.get_method().decode("ascii")
        found = self._service.boundary.find(method, path.decode("ascii"))
        if found is None:
            return None
        operation, path_values = found
        return PlainCall(
            self._service,
            operation,
            path_values,
            method=method,
            query=query,
            headers=self.headers,
            body_length=body_length,
            keep_alive=self.parser.should_keep_alive(),
            client=self.client,
        )

    def on_body(self, body: bytes) -> None:
        """A piece of the body has come."""
        if self._incoming is None:
            super().on_body(body)
        else:
            self._incoming.take(body)

    def on_message_complete(self) -> None:
        """The request is there as a whole."""
        call, self._incoming = self._incoming, None
        if call is None:
            super().on_message_complete()
            return
        self._answering = call
        call.task = self.loop.create_task(self._answer(call))
        self.tasks.add(call.task)

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP. The answer to a request before it goes first, and is the last one then."""
        if self._answering is None:
            super().send_400_response(msg)
        else:
            self._answering.keep_alive = False

    async def _answer(self, call: PlainCall) -> None:
        answer: Response | None = None
        try:
            answer = await self._service.boundary.answer(call.operation, call)
        finally:
            self._answering = None
            call.response_complete = True
            call.body = b""
            self.tasks.discard(call.task)
            if answer is None:  # the client is gone, or the server stops without waiting any longer
                self.transport.close()
            elif not call.disconnected:
                self._write(answer, keep_alive=call.keep_alive)

    def _write(self, answer: Response, *, keep_alive: bool) -> None:
        if self.server_state.default_headers is not self._default_headers:
            self._default_headers = self.server_state.default_headers
            self._default_head = b"".join(b"%b: %b\r\n" % header for header in self._default_headers)
        lines = [STATUS_LINE[answer.status_code], self._default_head]
        lines += [b"%b: %b\r\n" % header for header in answer.raw_headers]
        lines += [b"\r\n" if keep_alive else b"connection: close\r\n\r\n", bytes(answer.body)]
        self.transport.write(b"".join(lines))
        if not keep_alive:
            self.transport.close()
        self.on_response_complete()
