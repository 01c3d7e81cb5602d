"""HTTP/1.1 on one connection within the limits of `Connections`.

It handles requests that are slow, too large, incomplete or pipelined too deeply, and clients that do not read their
responses. A request that arrives in one read, as nearly all do, costs a few comparisons for that.

The fast path is for requests to operations. A plain request (HTTP/1.1, not pipelined, a body of known length within the
limit, no stream) is handled without ASGI: no scope, no receive and send, no events, and one write for head and body of
the response. All others become an `AsgiCall`. Both end at `deferd.api.dispatch.RequestHandler.handle`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn, cast

import httptools
from starlette.responses import Response
from starlette.types import ASGIApp

from deferd.api import metrics, problem_details
from deferd.api.app import Service
from deferd.api.direct.verb import DirectCall
from deferd.api.incoming_request import IncomingRequest, host_of
from deferd.api.operation import OperationRoute
from deferd.api.request_body import check_media_type
from deferd.api.responses import Header
from deferd.contract.errors import DeferdError
from deferd.contract.limits import HEADERS_MAX, URL_MAX_BYTES
from deferd.server.http.asgi_call import AsgiCall
from deferd.server.http.connections import (
    KEEP_ALIVE_S,
    LAST_RESPONSES_S,
    LINGER_S,
    REJECTED_MAX,
    Connections,
    OpenConnection,
)
from deferd.server.http.direct_path import READ_MAX_BYTES, DirectPath
from deferd.server.http.heads import (
    STATUS_LINE,
    head_bytes,
    head_error,
    is_host,
    response_head,
    too_large,
    without_upgrade,
)
from deferd.server.http.paced_transport import PacedTransport


class FastPathRequest(IncomingRequest):
    """A plain request to an operation, which is handled once all of it has come."""

    __slots__ = ("body", "body_length", "client", "keep_alive", "operation", "task")

    task: asyncio.Task[None]
    """Handles the request; set once the whole request has come."""

    def __init__(
        self,
        operation: OperationRoute,
        path_values: dict[str, str],
        *,
        method: str,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        body_length: int,
        keep_alive: bool,
        client: tuple[str, int] | None,
    ) -> None:
        super().__init__(method, path_values, query, headers)
        self.operation = operation
        self.body_length = body_length
        self.body: bytes | bytearray = b""
        self.keep_alive = keep_alive
        self.client = client

    def add_to_body(self, piece: bytes) -> None:
        """Add the next piece of the body."""
        if not self.body:
            self.body = piece if len(piece) == self.body_length else bytearray(piece)
        else:
            self.body += piece

    def missing_bytes(self) -> int:
        """How much of the body has not come: what follows in the input is a part of it, and can be parsed at once."""
        return self.body_length - len(self.body)

    def client_address(self) -> str | None:
        """See IncomingRequest."""
        return host_of(self.client)

    async def read_body(self) -> bytes:
        """See IncomingRequest."""
        if self.body:
            check_media_type(self.headers)
        body, self.body = bytes(self.body), b""  # an idle connection keeps its last request, but not the body
        return body


_log = logging.getLogger("deferd.connections")
_NOTHING, _HEAD, BODY = 0, 1, 2
"""The part of a request that is being received."""
_SENT_AHEAD_MAX = 8
"""Pipelined requests that are read while an earlier one is in progress; further ones stay in the system's buffers, and
with them the notice that the client has disconnected."""
UNSENT_BYTES = 16 * 1024
"""Unread response bytes above which a client counts as slow: its next request then waits until it has read them."""
_PIECE_BYTES = 2048
"""How much of a read is parsed at a time. One read can be a hundred times as large and hold thousands of requests."""


class LimitedProtocol(asyncio.Protocol):
    """HTTP/1.1 within limits. Requests go to `app` through ASGI unless a subclass has a fast path."""

    transport: PacedTransport

    def __init__(self, limits: Connections, app: ASGIApp) -> None:
        self.limits = limits
        self._app = app
        self._loop = asyncio.get_running_loop()
        self._head_max_bytes = limits.max_head_bytes
        self._parser: Any = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what follows is no reason to refuse
        self.client: tuple[str, int] | None = None
        self._is_of_proxy = False
        self._url = b""
        self._headers: list[Header] = []
        self._in_progress: AsgiCall | FastPathRequest | DirectCall | None = None  # its response is the next one
        self._incoming: AsgiCall | FastPathRequest | None = None  # the request whose body is being received
        self._pipeline: deque[AsgiCall] = deque()  # the requests that wait for the one in progress, newest first
        self._buffered = b""
        self._replayed_head = b""
        self._part = _NOTHING
        self._awaited_part = _NOTHING  # the part that began in an earlier read and is incomplete
        self._fed_bytes = 0  # of that part, without the read in which it began
        self._large_read = False
        self._body_came = False
        self._refusal: DeferdError | None = None
        self._ignores_input = False  # after a refusal
        self._is_reading = True
        self._is_held = False  # reading is not resumed while there is buffered input
        self.room: asyncio.Event | None = None
        self._is_rejected = self._has_half_closed = False
        self._awaits_first_head = True
        self._handshake: OpenConnection | None = None
        self._wire: asyncio.Transport | None = None  # below TLS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected: reject it at the connection limit, and do not wait for its first request for ever."""
        transport = cast("asyncio.Transport", transport)
        self.transport = PacedTransport(transport, on_pause=self._pause_responses, on_resume=self._resume_responses)
        self.client = self.transport.peer_address()
        self._is_of_proxy = self.client is not None and self.limits.trusted_proxies.is_trusted(self.client[0])
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        if self._handshake is not None:
            self.limits.replace(self._handshake, self)
            self._handshake = None
        elif not self.limits.add(self):
            self._reject_connection()
            return
        self.limits.connected.add(self)
        self.limits.set_deadline(self, KEEP_ALIVE_S)
        if self.limits.is_stopping:
            self.shutdown()

    def begin_after(self, handshake: OpenConnection, wire: asyncio.Transport) -> None:
        """Called before `connection_made` on a TLS connection over `wire` that was counted as `handshake`."""
        self._handshake, self._wire = handshake, wire
        wire.set_write_buffer_limits(high=UNSENT_BYTES)

    def caller(self, headers: Sequence[Header]) -> tuple[str, int] | None:
        """The address of who made the request with these headers, and the port of the connection."""
        if self._is_of_proxy and self.client is not None:
            host, port = self.client
            return self.limits.trusted_proxies.caller(host, headers), port
        return self.client

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (the reason makes no difference)
        """The connection is closed, by either side."""
        self.transport.connection_lost()
        self.limits.clear_deadline(self)
        self.limits.remove(self)
        self.limits.connected.discard(self)
        if self._is_rejected:
            self.limits.rejected -= 1
        # They refer to this protocol, and would keep it in memory until the next collection of cycles.
        in_progress, self._in_progress, self._incoming, self._parser = self._in_progress, None, None, None
        self._pipeline.clear()
        if in_progress is not None:
            in_progress.disconnect()
        if self.room is not None:
            self.room.set()
            self.room = None

    def eof_received(self) -> bool:
        """The client sends no more, but may still read the responses to what it has sent.

        It may also have closed the connection, which looks the same until something is written. So what waits for a
        connected client ends, as a pop, whose jobs nobody might get. All else goes on, and the last response closes the
        connection. Over TLS the transport closes in any case, but not before it has sent what it has.
        """
        if self._wire is not None:
            self.transport.flush()
            return False
        if self._part and self._abandon_partial_request():
            self._send_refusal(problem_details.BadRequest("the request is incomplete, and the client sends no more"))
        elif self._has_pending_responses():
            self._has_half_closed = True
            self._end_after_pending_responses()
            if self._in_progress is not None:
                self._in_progress.half_close()
            return True
        if not self.transport.is_writing():
            return False
        self.transport.close()
        return True

    # Receiving

    def data_received(self, data: bytes) -> None:
        """Receive requests or parts of them."""
        is_first = self._awaits_first_head and not self._part
        if is_first and not self.limits.first_requests.may_begin(self._feed_buffered):
            self._buffered += data
            self._hold()
        elif len(data) <= _PIECE_BYTES and not self._buffered and self.room is None:
            self._feed(data)
        else:
            self._buffered += data
            self._feed_buffered()

    def _feed_buffered(self) -> None:
        """Parse the buffered input in pieces; stop while pipelined requests wait or the client does not read.

        Otherwise a megabyte of pipelined requests would become a hundred times as much memory, and a client that does
        not read its responses would receive jobs that it never sees.
        """
        data, self._buffered = self._buffered, b""
        at = 0
        while at < len(data) and not self._is_closing():
            if len(self._pipeline) > _SENT_AHEAD_MAX or self.room is not None:
                self._buffered = data[at:]
                self._hold()
                return
            piece_bytes = _PIECE_BYTES
            if isinstance(self._incoming, FastPathRequest):
                piece_bytes = max(piece_bytes, self._incoming.missing_bytes())
            self._feed(data[at : at + piece_bytes])
            at += piece_bytes
        if self._is_held and not self._is_closing():
            self._is_held = False
            self.resume_reading()

    def _hold(self) -> None:
        """Do not read until the buffered input is parsed."""
        self._is_held = True
        self.pause_reading()

    def pause_reading(self) -> None:
        """See `deferd.server.http.asgi_call.Connection`."""
        if self._is_reading:
            self._is_reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """See `deferd.server.http.asgi_call.Connection`."""
        if not (self._is_reading or self._is_held):
            self._is_reading = True
            self.transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        if self._is_closing():
            return
        self._large_read = len(data) > self._head_max_bytes
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            refusal, self._refusal = self._refusal, None
            if refusal is None:
                _log.debug("invalid HTTP from %s: %s", self.client, error)
            self._refuse(refusal or problem_details.BadRequest("this is not a valid HTTP/1.1 request"))
            return
        except httptools.HttpParserUpgrade as upgrade:
            head, self._replayed_head = self._replayed_head, b""
            self._feed(head + data[upgrade.args[0] :])
            return
        if self._part:
            self._received_in_part(len(data))

    def _received_in_part(self, read_bytes: int) -> None:
        """A read ended within a request: set a deadline for the rest and bound the size of its head."""
        if self._part != self._awaited_part:
            self._awaited_part, self._fed_bytes = self._part, 0
            self._set_rest_deadline()
        else:
            self._fed_bytes += read_bytes
            if self._part == BODY and self._body_came:
                self._fed_bytes = 0
            if self._fed_bytes > self._head_max_bytes:
                self._refuse(too_large(self._url, self._headers, self._head_max_bytes))
        self._body_came = False

    def on_message_begin(self) -> None:
        """A request begins."""
        self._url = b""
        self._headers = []
        self._part = _HEAD

    def on_url(self, url: bytes) -> None:
        """Receive a piece of the URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record a header; trailers after the body are ignored."""
        if self._part == _HEAD:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Start the request unless its head is too large."""
        if (
            len(self._url) > URL_MAX_BYTES
            or len(self._headers) > HEADERS_MAX
            or (
                (self._large_read or self._awaited_part) and head_bytes(self._url, self._headers) > self._head_max_bytes
            )
        ):
            self._refuse_head(too_large(self._url, self._headers, self._head_max_bytes))
        if self._awaits_first_head:
            self._awaits_first_head = False
            self.limits.head_received(self)
        self._begin_request()

    def _begin_request(self) -> None:
        refusal = head_error(self._headers, self._parser.get_http_version())
        if refusal is not None:
            self._refuse_head(refusal)
        if self._parser.should_upgrade():
            self._ignore_upgrade()
            return
        call = AsgiCall(self, self._parser, self._url, self._headers, "http" if self._wire is None else "https")
        self._incoming = call
        self._part = BODY
        if not self._has_pending_responses():
            self._start(call)
        else:
            self._pipeline.appendleft(call)
            if len(self._pipeline) > _SENT_AHEAD_MAX:
                self.pause_reading()

    def _start(self, call: AsgiCall) -> None:
        self._in_progress = call
        if self._has_half_closed:
            call.half_close()
        task = self._loop.create_task(call.run(self._app))
        self.limits.tasks.add(task)
        task.add_done_callback(self.limits.tasks.discard)

    def _ignore_upgrade(self) -> None:
        """Have the request parsed again without its Upgrade header, since no other protocol is supported.

        The parser stops at an upgrade: the request would lose its body, and the body could be parsed as requests.
        """
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse_head(problem_details.BadRequest("CONNECT is for proxies only"))
        self._replayed_head = without_upgrade(method, self._url, self._parser.get_http_version(), self._headers)

    def on_body(self, body: bytes) -> None:
        """Receive a piece of the body."""
        self._body_came = True
        if self._incoming is not None:
            self._incoming.add_to_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._part = _NOTHING
        if self._awaited_part:
            self._awaited_part = _NOTHING
            self._set_idle_deadline()
        request, self._incoming = self._incoming, None
        if isinstance(request, AsgiCall):
            request.end_body()

    # Deadlines

    def _set_rest_deadline(self) -> None:
        if self.room is None:  # otherwise the deadline is for reading a response
            within_s = self.limits.head_timeout_s if self._part == _HEAD else self.limits.body_timeout_s
            self.limits.set_deadline(self, within_s)

    def _set_idle_deadline(self) -> None:
        """The client has to send its next request before the keep-alive time ends."""
        if self.room is None:
            self.limits.set_deadline(self, KEEP_ALIVE_S)

    def deadline_passed(self) -> None:
        """The client did not act in time.

        A deadline for the next request is not cleared when that arrives, to save work for each request; it is replaced
        with the response.
        """
        if self.room is not None or self._is_closing():
            self.transport.abort()
        elif self._part and not self._is_reading:  # this side does not read: the client is not late
            self._set_rest_deadline()
        elif self._part == _HEAD:
            within_s = self.limits.head_timeout_s
            self._refuse(problem_details.RequestTimeout(f"the request's head did not arrive within {within_s:g} s"))
        elif self._part == BODY:
            within_s = self.limits.body_timeout_s
            self._refuse(problem_details.RequestTimeout(f"the request's body did not arrive within {within_s:g} s"))
        elif not self._has_pending_responses():
            if self.transport.get_write_buffer_size():
                self.transport.abort()  # the last response is unread: closing would wait for ever
            else:
                self.transport.close()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self.transport.pause()

    def resume_writing(self) -> None:
        """The transport's buffer has room again."""
        self.transport.resume()

    def _pause_responses(self) -> None:
        """The client does not read its response as fast as it is sent."""
        if self.room is None:
            self.room = asyncio.Event()
        self._note_unsent()
        self.limits.set_deadline(self, self.limits.response_timeout_s)

    def _resume_responses(self) -> None:
        """The client has read most of it."""
        room, self.room = self.room, None
        if room is not None:
            room.set()
        self._note_unsent()
        if self._is_closing():
            return  # the deadline for reading all of it stays
        if self._part:
            self._set_rest_deadline()
        else:
            self._set_idle_deadline()
        if self._in_progress is None or self._part:
            self._continue_pipeline()

    def _note_unsent(self, size: int = 0) -> None:
        """Record whether the client reads its responses slowly; `size` is that of the last one, 0 if unknown.

        Over TLS `pause_writing` comes too late: only with the next response.
        """

    def unsent_bytes(self) -> int:
        """Response bytes that the client has not read, without those in the system's buffers."""
        unsent = self.transport.get_write_buffer_size()
        return unsent if self._wire is None else unsent + self._wire.get_write_buffer_size()

    def is_idle(self) -> bool:
        """See `OpenConnection`."""
        return not (self._part or self._is_closing() or self.room is not None or self._has_pending_responses())

    def cut_off(self) -> None:
        """See `OpenConnection`."""
        self.transport.abort()

    def end_asgi_call(self) -> None:
        """See `deferd.server.http.asgi_call.Connection`."""
        self._note_unsent()
        self._on_response_complete()

    def _on_response_complete(self) -> None:
        """A response was sent: continue with the next pipelined request, or wait for one."""
        self._in_progress = None
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():  # do not wait for ever for the client to read it
                self.limits.set_deadline(self, self.limits.response_timeout_s)
            return
        self._continue_pipeline()

    def _continue_pipeline(self) -> None:
        """Start the next pipelined request once the client has read the responses before it."""
        if self.room is not None:
            return
        if self._in_progress is None:
            if self._pipeline:
                self._start(self._pipeline.pop())
            elif not self._part:
                self._set_idle_deadline()
        if len(self._pipeline) <= _SENT_AHEAD_MAX:
            if self._buffered:
                self._loop.call_soon(self._feed_buffered)
            else:
                self.resume_reading()

    # Refusing

    def _reject_connection(self) -> None:
        """Respond 503 to a connection above the limit; close at once when many get that already."""
        self._is_rejected = True
        self.limits.rejected += 1
        if self.limits.rejected <= REJECTED_MAX:
            self._refuse(problem_details.TooManyConnections(f"{self.limits.max_open} connections are open already"))
        else:
            self.transport.abort()

    def _refuse_head(self, error: DeferdError) -> NoReturn:
        """Stop the parser; `_feed` then sends the refusal."""
        self._refusal = error
        raise error

    def _refuse(self, error: DeferdError) -> None:
        """Respond with `error` and close. With responses pending, close after those, without the error."""
        self._ignores_input = True
        if self._abandon_partial_request():
            self._send_refusal(error)
        elif self._has_pending_responses():
            self._end_after_pending_responses()
            self.limits.set_deadline(self, LAST_RESPONSES_S)
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()
        self.limits.set_deadline(self, LINGER_S)

    def _send_refusal(self, error: DeferdError) -> None:
        response = problem_details.response(error)
        metrics.observe_request(None, "other", response.status_code, 0)
        head = response_head(response.status_code, self.limits.date_line, response.raw_headers, keep_alive=False)
        self.transport.write(head + bytes(response.body))

    def _abandon_partial_request(self) -> bool:
        """Drop the incomplete request; False when its response, or an earlier one, has begun or is pending."""
        self._part = self._awaited_part = _NOTHING
        request, self._incoming = self._incoming, None
        if request is None:
            return not self._has_pending_responses()
        if request is not self._in_progress:  # an earlier response is due, or its own is complete
            if self._pipeline:
                self._pipeline.popleft()
            return False
        if isinstance(request, AsgiCall) and request.response_started:
            return False
        self._in_progress = None
        request.disconnect()
        return True

    def _has_pending_responses(self) -> bool:
        return self._in_progress is not None or bool(self._pipeline)

    def _end_after_pending_responses(self) -> None:
        """Close the connection after the last of them."""
        last = self._pipeline[0] if self._pipeline else self._in_progress
        if last is not None:
            last.keep_alive = False

    def _is_closing(self) -> bool:
        return self._ignores_input or self.transport.is_closing()

    def shutdown(self) -> None:
        """The server stops: finish the request in progress, or the next one, and drop the pipelined ones.

        An idle connection stays open for a while. A request that is on its way gets its response, which says that the
        connection closes. Closing at once would leave the client in doubt about its request.
        """
        if self._has_pending_responses() and not self._part:
            self._buffered = b""  # otherwise it is of the request that is to be finished
        self._pipeline.clear()
        if self._in_progress is None:
            self._loop.call_later(self.limits.last_request_s, self._close_unless_used)
        else:
            self._in_progress.keep_alive = False

    def _close_unless_used(self) -> None:
        if not (self._has_pending_responses() or self._buffered):
            self.transport.close()


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
        """See `deferd.api.direct.verb.Connection`."""
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
        """See `deferd.api.direct.verb.Connection`."""
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
            client=self.caller(self._headers),
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
