"""The fast path for requests to operations.

A plain request (HTTP/1.1, not pipelined, a body of known length within the limit, no stream) is handled without ASGI:
no scope, no receive and send, no events, and one write for head and body of the response. All others become an
`AsgiCall`. Both end at `deferd.api.dispatch.RequestHandler.handle`.
"""

from __future__ import annotations

from starlette.responses import Response

from deferd.api import problem_details
from deferd.api.app import Service
from deferd.api.direct.call import DirectCall
from deferd.server.http.asgi_call import AsgiCall
from deferd.server.http.connections import KEEP_ALIVE_S, Connections
from deferd.server.http.direct_path import READ_MAX_BYTES, DirectPath
from deferd.server.http.fast_path_request import FastPathRequest
from deferd.server.http.protocol import BODY, UNSENT_BYTES, LimitedProtocol
from deferd.server.http.request_head import is_host
from deferd.server.http.response_head import STATUS_LINE, response_head

_UNAUTHENTICATED_BODY_BYTES = 16 * 1024
"""The largest body that is read before the key is checked: thousands of strangers can send one at a time."""
_RELEVANT_HEADERS = frozenset((b"content-length", b"host", b"transfer-encoding", b"expect", b"upgrade"))
"""A request with one of the last three is not plain."""


class FastPathProtocol(LimitedProtocol):
    """LimitedProtocol with the fast path to the operations of `service`.

    The connections of a process share `direct_path`.
    """

    def __init__(self, service: Service, limits: Connections, direct_path: DirectPath) -> None:
        super().__init__(limits, service)
        self._direct_path = direct_path
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

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected, or was cut off."""
        super().connection_lost(exc)
        self._unsent.forget(self)

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
        self._in_progress = call
        self.limits.tasks.add(call)

    def _may_take_direct_path(self, data: bytes) -> bool:
        """Whether `data` may be one whole request, and nothing is due before its response."""
        return (
            len(data) <= self._direct_max_bytes
            and self._in_progress is None
            and self.room is None
            and not (self._part or self._buffered or self._awaits_first_head or self._ignores_input)
            and not self.limits.is_stopping  # the response would keep the connection
            and not self.transport.is_closing()  # over TLS, data may still come
        )

    def end_call(self, call: DirectCall, status: int, fields: bytes, body: bytes) -> None:
        """See `deferd.api.direct.call.Connection`."""
        self._in_progress = None
        self.limits.tasks.discard(call)
        if call.disconnected:
            return
        self._key_name = call.admission.key_name
        size = len(body)
        head = b"%b%bcontent-type: application/json\r\ncontent-length: %d\r\n%b%b\r\n" % (
            STATUS_LINE[status],
            self.limits.date_line,
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
        elif self._is_reading and self.room is None and not (self._pipeline or self._part or self._buffered):
            self.limits.set_deadline(self, KEEP_ALIVE_S)  # as below, when there is nothing else to do
            return
        self._on_response_complete()

    def end_call_with(self, call: DirectCall, response: Response | None) -> None:
        """See `deferd.api.direct.call.Connection`."""
        self._in_progress = None
        self.limits.tasks.discard(call)
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
                self._direct_path.learn(read, request.operation, self._headers)
            self._part = BODY
            self._incoming = self._in_progress = request

    def _plain_request(self) -> FastPathRequest | None:
        """The request whose head was read; None when it is not plain."""
        is_pipelined = self._has_pending_responses()
        if is_pipelined or self.room is not None or self._parser.get_http_version() != "1.1":
            return None
        body_length = hosts = 0
        host = b""
        for name, value in self._headers:
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
        fixed = self._handler.find_at_fixed_url(self._parser.get_method(), self._url)
        if fixed is not None:
            operation, method = fixed
        else:
            url = self._url
            if not url.startswith(b"/") or b"%" in url or b"#" in url or not url.isascii():
                return None
            path, _, query = url.partition(b"?")
            method = self._parser.get_method().decode("ascii")
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
            headers=self._headers,
            body_length=body_length,
            keep_alive=self._parser.should_keep_alive() and not self.limits.is_stopping,
            client=self.client,
        )

    def on_message_complete(self) -> None:
        """Handle the request, all of which has come."""
        request = self._incoming
        super().on_message_complete()
        if not isinstance(request, FastPathRequest):
            return
        if len(request.body) <= READ_MAX_BYTES:
            line = b"%b %b" % (self._parser.get_method(), self._url)
            call = self._direct_path.begin_parsed(self, line, request, bytes(request.body))
            if call is not None:
                call.keep_alive = request.keep_alive
                self._begin_call(call)
                return
        request.task = self._loop.create_task(self._handle(request))
        self.limits.tasks.add(request.task)

    async def _handle(self, request: FastPathRequest) -> None:
        response: Response | None = None
        try:
            response = await self._handler.handle(request.operation, request)
        finally:
            self._in_progress = None
            request.body = b""
            self.limits.tasks.discard(request.task)
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

    def _write(self, response: Response, *, keep_alive: bool) -> None:
        size = len(response.body)
        head = response_head(response.status_code, self.limits.date_line, response.raw_headers, keep_alive=keep_alive)
        if size <= UNSENT_BYTES:
            self.transport.write(head + bytes(response.body))
        else:
            self.transport.write(head)
            self.transport.write(bytes(response.body))
            self._note_unsent(size)
        if not keep_alive:
            self.transport.close()
        self._on_response_complete()

    def _note_unsent(self, size: int = 0) -> None:
        if isinstance(self._in_progress, AsgiCall):
            self._key_name = self._in_progress.key_name
        if self.unsent_bytes() > UNSENT_BYTES:
            self._is_slow = True
            self._unsent.note(self, self._key_name, size)
        elif self._is_slow:
            self._is_slow = False
            self._unsent.forget(self)
