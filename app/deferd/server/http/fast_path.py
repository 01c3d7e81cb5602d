"""The fast path for requests to operations.

A plain request (HTTP/1.1, not pipelined, a body of known length within the limit, no stream) is handled without ASGI:
no scope, no receive and send, no events, and one write for head and body of the response. All others take uvicorn's
way. Both end at `deferd.api.dispatch.RequestHandler.handle`.
"""

from __future__ import annotations

from typing import Any, cast

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from deferd.api import problem_details
from deferd.api.app import Service
from deferd.api.direct.call import DirectCall
from deferd.api.dispatch import KEY_NAME
from deferd.server.http.connections import Connections
from deferd.server.http.direct_path import READ_MAX_BYTES, DirectPath
from deferd.server.http.fast_path_request import FastPathRequest
from deferd.server.http.protocol import BODY, UNSENT_BYTES, LimitedProtocol
from deferd.server.http.request_head import is_host

_UNAUTHENTICATED_BODY_BYTES = 16 * 1024
"""The largest body that is read before the key is checked: thousands of strangers can send one at a time."""
_RELEVANT_HEADERS = frozenset((b"content-length", b"host", b"transfer-encoding", b"expect", b"upgrade"))
"""A request with one of the last three is not plain."""


class FastPathProtocol(LimitedProtocol):
    """LimitedProtocol with the fast path to the operations of `service`.

    The connections of a process share `direct_path`.
    """

    def __init__(
        self,
        service: Service,
        limited: Connections,
        *args: Any,
        direct_path: DirectPath | None = None,
        **options: Any,
    ) -> None:
        super().__init__(limited, *args, **options)
        self._direct_path = direct_path or DirectPath(service)
        self._own_parser: Any = self.parser  # it is replaced when a request is refused
        self._read = b""  # in which a request begins
        self._handler = service.request_handler
        self._body_max_bytes = service.context.settings.max_body_bytes
        if service.context.gate.has_keys:
            self._body_max_bytes = min(self._body_max_bytes, _UNAUTHENTICATED_BODY_BYTES)
        self._direct_max_bytes = min(READ_MAX_BYTES, self._body_max_bytes, self._head_max_bytes)
        self._unsent = service.context.unsent
        self._is_slow = False
        self._key_name: str | None = None  # of the last request
        self._known_host = b""  # clients send the same one each time
        self._incoming: FastPathRequest | None = None
        self._handling: FastPathRequest | DirectCall | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected, or was cut off."""
        super().connection_lost(exc)
        self._own_parser = None  # it refers to this protocol, and the collector of cycles does not traverse it
        self._unsent.forget(self)
        if self._handling is not None:
            self._handling.disconnect()

    def data_received(self, data: bytes) -> None:
        """Receive requests or parts of them; one that takes a direct path is not parsed."""
        if self._may_take_direct_path(data):
            call = self._direct_path.begin(self, data)
            if call is not None:
                self._begin_call(call)
                return
            self._read = data
        super().data_received(data)
        self._read = b""

    def _begin_call(self, call: DirectCall) -> None:
        self._handling = self.cycle = call  # type: ignore[assignment]  # see DirectCall
        self.tasks.add(call)  # type: ignore[arg-type]  # the same

    def _may_take_direct_path(self, data: bytes) -> bool:
        """Whether `data` may be one whole request, and nothing is due before its response."""
        before: RequestResponseCycle | None = self.cycle
        return (
            len(data) <= self._direct_max_bytes
            and not (self._part or self._buffered or self._awaits_first_head or self.flow.write_paused)
            and (before is None or before.response_complete)
            and self.parser is self._own_parser
            and not self.transport.is_closing()  # over TLS, data may still come
        )

    def end_call(self, call: DirectCall, status: int, fields: bytes, body: bytes) -> None:
        """See `deferd.api.direct.call.Connection`."""
        self._handling = None
        self.tasks.discard(call)
        if call.disconnected:
            return
        self._key_name = call.admission.key_name
        self._refresh_default_head()
        size = len(body)
        head = b"%b%bcontent-type: application/json\r\ncontent-length: %d\r\n%b%b\r\n" % (
            STATUS_LINE[status],
            self._default_head,
            size,
            fields,
            b"" if call.keep_alive else b"connection: close\r\n",
        )
        if size <= UNSENT_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.write(head)
            self.transport.write(body)
            self._note_unsent(size)
        if not call.keep_alive:
            self.transport.close()
        elif not (self.pipeline or self._part or self._buffered or self.flow.read_paused or self.flow.write_paused):
            self.server_state.total_requests += 1  # as below, when there is nothing else to do
            self._limits.set_deadline(self, self.timeout_keep_alive)
            return
        self.on_response_complete()

    def end_call_with(self, call: DirectCall, response: Response | None) -> None:
        """See `deferd.api.direct.call.Connection`."""
        self._handling = None
        self.tasks.discard(call)
        if response is None:
            self._end_without_response(call)
        elif not call.disconnected:
            self._key_name = call.admission.key_name
            self._write(response, keep_alive=call.keep_alive)

    def _begin_request(self) -> None:
        request = self._plain_request()
        read, self._read = self._read, b""
        if request is None:
            super()._begin_request()
        else:
            if read and request.keep_alive:
                self._direct_path.learn(read, request.operation, self.headers)
            self._part = BODY
            self._incoming = self.cycle = request  # type: ignore[assignment]  # see FastPathRequest

    def _plain_request(self) -> FastPathRequest | None:
        """The request whose head was read; None when it is not plain."""
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
            if name not in _RELEVANT_HEADERS:
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
        fixed = self._handler.find_at_fixed_url(self.parser.get_method(), self.url)
        if fixed is not None:
            operation, method = fixed
        else:
            url = self.url
            if not url.startswith(b"/") or b"%" in url or b"#" in url or not url.isascii():
                return None
            path, _, query = url.partition(b"?")
            method = self.parser.get_method().decode("ascii")
            found = self._handler.find(method, path.decode("ascii"))
            if found is None:
                return None
            operation, path_values = found
        if operation.streams:
            return None
        return FastPathRequest(
            operation,
            path_values,
            method=method,
            query=query,
            headers=self.headers,
            body_length=body_length,
            keep_alive=self.parser.should_keep_alive() and not self._limits.is_stopping,
            client=self.client,
        )

    def _known_body_bytes(self) -> int:
        return 0 if self._incoming is None else self._incoming.body_length - len(self._incoming.body)

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        if self._incoming is None:
            super().on_body(body)
        else:
            self._body_came = True
            self._incoming.add_to_body(body)

    def on_message_complete(self) -> None:
        """Handle the request, all of which has come."""
        request, self._incoming = self._incoming, None
        if request is None:
            super().on_message_complete()
            return
        self._came_as_a_whole()
        if len(request.body) <= READ_MAX_BYTES:
            line = b"%b %b" % (self.parser.get_method(), self.url)
            call = self._direct_path.begin_parsed(self, line, request, bytes(request.body))
            if call is not None:
                call.keep_alive = request.keep_alive
                self._begin_call(call)
                return
        self._handling = request
        request.task = self.loop.create_task(self._handle(request))
        self.tasks.add(request.task)

    async def _handle(self, request: FastPathRequest) -> None:
        response: Response | None = None
        try:
            response = await self._handler.handle(request.operation, request)
        finally:
            self._handling = None
            request.response_complete = True
            request.body = b""
            self.tasks.discard(request.task)
            if response is None:
                self._end_without_response(request)
            elif not request.disconnected:
                self._key_name = request.key_name
                self._write(response, keep_alive=request.keep_alive)

    def _end_without_response(self, request: FastPathRequest | DirectCall) -> None:
        """The client has closed its side or all, or the server stops without waiting any longer."""
        if self._has_half_closed and not request.disconnected:
            self._write(problem_details.response(problem_details.HalfClosed()), keep_alive=request.keep_alive)
        else:
            self.transport.close()

    def _end_wait(self) -> None:
        if self._handling is None:
            super()._end_wait()
        else:
            self._handling.half_close()

    def _write(self, response: Response, *, keep_alive: bool) -> None:
        size = len(response.body)
        if size <= UNSENT_BYTES:
            self.transport.write(self._bytes_of(response, keep_alive=keep_alive))
        else:
            self.transport.write(self._bytes_of(response, keep_alive=keep_alive, with_body=False))
            self.transport.write(bytes(response.body))
            self._note_unsent(size)
        if not keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _note_unsent(self, size: int = 0) -> None:
        if self._asgi_cycle is not None:
            self._key_name = cast("str | None", self._asgi_cycle.scope.get(KEY_NAME))
        if self.unsent_bytes() > UNSENT_BYTES:
            self._is_slow = True
            self._unsent.note(self, self._key_name, size)
        elif self._is_slow:
            self._is_slow = False
            self._unsent.forget(self)

    def _gave_up_on_body(self) -> bool:
        request, self._incoming = self._incoming, None
        if request is None:
            return super()._gave_up_on_body()
        request.response_complete = True  # no other response is due before its own
        return True

    def shutdown(self) -> None:
        """See `LimitedProtocol`. From now on nothing takes a direct path, whose responses would keep the connection."""
        self._own_parser = None
        if self._incoming is not None:
            self._incoming.keep_alive = False
        super().shutdown()

    def _under_way(self) -> RequestResponseCycle | None:
        return cast("RequestResponseCycle | None", self._handling) or super()._under_way()
