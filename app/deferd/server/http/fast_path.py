"""The short way for the requests that make the load.

A request to an operation that comes plainly (HTTP/1.1, no pipelining, a body of known length within the limit) is
answered without ASGI between: no scope, no receive and send, no event, and head and body of the answer in one write.
All others go uvicorn's way. For operations both ways end at `Boundary.answer`; see `deferd.api.call`.
"""

from __future__ import annotations

from typing import Any, cast

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from deferd.api.dispatch import KEY_NAME
from deferd.api.service import Service
from deferd.server.http.fast_path_request import PlainCall
from deferd.server.http.limits import Connections
from deferd.server.http.protocol import BODY, UNSENT_BYTES, LimitedProtocol
from deferd.server.http.request_head import is_host

_READ_UNASKED_BYTES = 16 * 1024
"""The largest body that is read before it is known whose it is: thousands of strangers can send one at a time."""
_TELLING = frozenset((b"content-length", b"host", b"transfer-encoding", b"expect", b"upgrade"))
"""Headers of which the last three say that a request is not plain."""


class PlainCallProtocol(LimitedProtocol):
    """LimitedProtocol with the short way to the operations of `service`."""

    def __init__(self, service: Service, limited: Connections, *args: Any, **options: Any) -> None:
        super().__init__(limited, *args, **options)
        self._service = service
        self._body_max_bytes = service.settings.max_body_bytes
        if service.access is not None:
            self._body_max_bytes = min(self._body_max_bytes, _READ_UNASKED_BYTES)
        self._unsent = service.unsent
        self._is_slow = False
        self._key_name: str | None = None  # of the key with which the last call came
        self._known_host = b""  # a client gives the same one each time
        self._incoming: PlainCall | None = None
        self._answering: PlainCall | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has hung up, or was cut off."""
        super().connection_lost(exc)
        self._unsent.forget(self)
        if self._answering is not None:
            self._answering.hang_up()

    def _begin_request(self) -> None:
        call = self._plain_call()
        if call is None:
            super()._begin_request()
        else:
            self._part = BODY
            self._incoming = self.cycle = call  # type: ignore[assignment]  # see PlainCall

    def _plain_call(self) -> PlainCall | None:
        """The call whose head is read, if it comes plainly."""
        before: RequestResponseCycle | None = self.cycle
        if (
            (before is not None and not before.response_complete)  # pipelined
            or self.flow.write_paused
            or self.parser.get_http_version() != "1.1"
        ):
            return None
        body_length = hosts = 0
        host = b""
        for name, value in self.headers:
            if name not in _TELLING:
                continue
            if name == b"content-length":
                body_length = int(value)
            elif name == b"host":
                hosts += 1
                host = value
            else:
                return None
        if hosts != 1 or (host != self._known_host and not is_host(host)) or body_length > self._body_max_bytes:
            return None
        self._known_host = host
        query = b""
        path_values: dict[str, str] = {}
        fixed = self._service.boundary.find_at_fixed_url(self.parser.get_method(), self.url)
        if fixed is not None:
            operation, method = fixed
        else:
            url = self.url
            if not url.startswith(b"/") or b"%" in url or b"#" in url or not url.isascii():
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

    def _known_body_bytes(self) -> int:
        return 0 if self._incoming is None else self._incoming.body_length - len(self._incoming.body)

    def on_body(self, body: bytes) -> None:
        """A piece of the body has come."""
        if self._incoming is None:
            super().on_body(body)
        else:
            self._body_came = True
            self._incoming.take(body)

    def on_message_complete(self) -> None:
        """The request is there as a whole."""
        call, self._incoming = self._incoming, None
        if call is None:
            super().on_message_complete()
            return
        self._came_as_a_whole()
        self._answering = call
        call.task = self.loop.create_task(self._answer(call))
        self.tasks.add(call.task)

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
                self._key_name = call.key_name
                self._write(answer, keep_alive=call.keep_alive)

    def _write(self, answer: Response, *, keep_alive: bool) -> None:
        size = len(answer.body)
        if size <= UNSENT_BYTES:
            self.transport.write(self._bytes_of(answer, keep_alive=keep_alive))
        else:
            self.transport.write(self._head_of(answer, keep_alive=keep_alive))
            self.transport.write(bytes(answer.body))
            self._note_unsent(size)
        if not keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _note_unsent(self, size: int = 0) -> None:
        if self._asgi_answering is not None:
            self._key_name = cast("str | None", self._asgi_answering.scope.get(KEY_NAME))
        if self.unsent_bytes() > UNSENT_BYTES:
            self._is_slow = True
            self._unsent.note(self, self._key_name, size)
        elif self._is_slow:
            self._is_slow = False
            self._unsent.forget(self)

    def _gave_up_on_body(self) -> bool:
        call, self._incoming = self._incoming, None
        if call is None:
            return super()._gave_up_on_body()
        call.response_complete = True  # it is not behind another, and has not begun
        return True

    def _under_way(self) -> RequestResponseCycle | None:
        return cast("RequestResponseCycle | None", self._answering) or super()._under_way()
