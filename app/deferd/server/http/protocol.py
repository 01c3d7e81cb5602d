"""HTTP/1.1 on one connection within the limits of `Connections`.

It handles requests that are slow, too large, incomplete or pipelined too deeply, and clients that do not read their
responses. A request that arrives in one read, as nearly all do, costs a few comparisons more than in uvicorn.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NoReturn, cast

import httptools
from starlette.responses import Response
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from deferd.api import metrics, problem_details
from deferd.api.event_stream_response import CUT_OFF
from deferd.contract.errors import DeferdError
from deferd.contract.limits import HEADERS_MAX, URL_MAX_BYTES
from deferd.server.http.asgi_calls import on_connection
from deferd.server.http.connections import (
    LAST_REQUEST_S,
    LAST_RESPONSES_S,
    LINGER_S,
    REJECTED_MAX,
    Connections,
    OpenConnection,
)
from deferd.server.http.paced_transport import PacedTransport
from deferd.server.http.request_head import head_bytes, head_error, too_large, without_upgrade

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


class _DiscardingParser:
    """Replaces the parser of a connection whose further input is ignored."""

    def feed_data(self, _data: bytes) -> None:
        """Ignore the data."""


class _HoldableFlow(FlowControl):
    """Does not resume reading while the protocol holds back input (`is_held`)."""

    is_held = False

    def hold(self) -> None:
        self.is_held = True
        self.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's HttpToolsProtocol within limits. Requests go through ASGI unless a subclass has a fast path."""

    def __init__(self, limits: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limits = limits
        self._head_max_bytes = limits.max_head_bytes
        self._asgi_cycle: RequestResponseCycle | None = None
        self._default_headers: list[tuple[bytes, bytes]] | None = None
        self._default_head = b""
        self._buffered = b""
        self._replayed_head = b""
        self._part = _NOTHING
        self._awaited_part = _NOTHING  # the part that began in an earlier read and is incomplete
        self._fed_bytes = 0  # of that part, without the read in which it began
        self._large_read = False
        self._body_came = False
        self._refusal: DeferdError | None = None
        self._is_rejected = False
        self._has_half_closed = False
        self._awaits_first_head = True
        self._handshake: OpenConnection | None = None
        self._wire: asyncio.Transport | None = None  # below TLS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """A client has connected: reject it at the connection limit, and do not wait for its first request for ever."""
        self._paced = PacedTransport(transport, on_pause=self._pause_responses, on_resume=self._resume_responses)
        super().connection_made(cast("asyncio.Transport", self._paced))
        self.flow = self._flow = _HoldableFlow(transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        if self._handshake is not None:
            self._limits.replace(self._handshake, self)
            self._handshake = None
        elif not self._limits.add(self):
            self._reject_connection()
            return
        self._limits.set_deadline(self, self.timeout_keep_alive)
        if self._limits.is_stopping:
            self.shutdown()

    def begin_after(self, handshake: OpenConnection, wire: asyncio.Transport) -> None:
        """Called before `connection_made` on a TLS connection over `wire` that was counted as `handshake`."""
        self._handshake, self._wire = handshake, wire
        wire.set_write_buffer_limits(high=UNSENT_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed, by either side."""
        self._paced.connection_lost()
        super().connection_lost(exc)
        self._limits.clear_deadline(self)
        self._limits.remove(self)
        if self._is_rejected:
            self._limits.rejected -= 1
        if self._asgi_cycle is not None:  # uvicorn only notifies the newest request; this may be an older one
            self._asgi_cycle.disconnected = True
            self._asgi_cycle.message_event.set()

    def eof_received(self) -> bool | None:  # type: ignore[override]  # as in asyncio
        """The client sends no more, but may still read the responses to what it has sent.

        It may also have closed the connection, which looks the same until something is written. So what waits for a
        connected client ends, as a pop, whose jobs nobody might get. All else goes on, and the last response closes the
        connection. Over TLS the transport closes in any case, but not before it has sent what it has.
        """
        if self._wire is not None:
            self._paced.flush()
            return None
        if self._part and self._abandon_partial_request():
            self._send_refusal(problem_details.BadRequest("the request is incomplete, and the client sends no more"))
        elif self._has_pending_responses() and not self.cycle.disconnected:
            self._has_half_closed = True
            self.cycle.keep_alive = False
            self._end_wait()
            return True
        if not self._paced.is_writing():
            return None
        self._paced.close()
        return True

    def _end_wait(self) -> None:
        """End what the request under way waits for, if that is of use to a connected client only."""
        if self._asgi_cycle is not None:
            self._asgi_cycle.message_event.set()

    # Receiving

    def data_received(self, data: bytes) -> None:
        """Receive requests or parts of them."""
        is_first = self._awaits_first_head and not self._part
        if is_first and not self._limits.first_requests.may_begin(self._feed_buffered):
            self._buffered += data
            self._flow.hold()
        elif len(data) <= _PIECE_BYTES and not self._buffered and not self.flow.write_paused:
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
            if len(self.pipeline) > _SENT_AHEAD_MAX or self.flow.write_paused:
                self._buffered = data[at:]
                self._flow.hold()
                return
            piece_bytes = max(_PIECE_BYTES, self._known_body_bytes())
            self._feed(data[at : at + piece_bytes])
            at += piece_bytes
        if self._flow.is_held and not self._is_closing():
            self._flow.is_held = False
            self.flow.resume_reading()

    def _known_body_bytes(self) -> int:
        """Bytes that certainly belong to the current body and so can be parsed at once."""
        return 0

    def _feed(self, data: bytes) -> None:
        self._large_read = len(data) > self._head_max_bytes
        try:
            self.parser.feed_data(data)
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
                self._refuse(too_large(self.url, self.headers, self._head_max_bytes))
        self._body_came = False

    def on_message_begin(self) -> None:
        """A request begins. Its ASGI scope is built later, and only if it needs one."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._part = _HEAD

    def on_header(self, name: bytes, value: bytes) -> None:
        """Record a header; trailers after the body are ignored."""
        if self._part == _HEAD:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Start the request unless its head is too large."""
        if (
            len(self.url) > URL_MAX_BYTES
            or len(self.headers) > HEADERS_MAX
            or ((self._large_read or self._awaited_part) and head_bytes(self.url, self.headers) > self._head_max_bytes)
        ):
            self._refuse_head(too_large(self.url, self.headers, self._head_max_bytes))
        if self._awaits_first_head:
            self._awaits_first_head = False
            self._limits.head_received(self)
        self._begin_request()

    def _begin_request(self) -> None:
        refusal = head_error(self.headers, self.parser.get_http_version())
        if refusal is not None:
            self._refuse_head(refusal)
        if self.parser.should_upgrade():
            self._ignore_upgrade()
            return
        url, headers, expect = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers += headers
        super().on_headers_complete()
        if self._limits.is_stopping:
            self.cycle.keep_alive = False
        self._part = BODY
        if 0 < len(self.pipeline) <= _SENT_AHEAD_MAX:
            self.flow.resume_reading()  # or a disconnect during a waiting pop would go unnoticed

    def _ignore_upgrade(self) -> None:
        """Have the request parsed again without its Upgrade header, since no other protocol is supported.

        The parser stops at an upgrade: the request would lose its body, and the body could be parsed as requests.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse_head(problem_details.BadRequest("CONNECT is for proxies only"))
        self._replayed_head = without_upgrade(method, self.url, self.parser.get_http_version(), self.headers)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._asgi_cycle = cycle
        cycle.scope["extensions"] = {CUT_OFF: {"call": self.transport.abort}}
        super()._start_asgi_task(cycle, on_connection(app, cycle, lambda: self._has_half_closed))

    def on_body(self, body: bytes) -> None:
        """Receive a piece of the body."""
        self._body_came = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._came_as_a_whole()
        if not self._replayed_head:
            super().on_message_complete()

    def _came_as_a_whole(self) -> None:
        self._part = _NOTHING
        if self._awaited_part:
            self._awaited_part = _NOTHING
            self._set_idle_deadline()

    # Deadlines

    def _set_rest_deadline(self) -> None:
        if not self.flow.write_paused:  # otherwise the deadline is for reading a response
            within_s = self._limits.head_timeout_s if self._part == _HEAD else self._limits.body_timeout_s
            self._limits.set_deadline(self, within_s)

    def _set_idle_deadline(self) -> None:
        """The client has to send its next request before the keep-alive time ends."""
        if not self.flow.write_paused:
            self._limits.set_deadline(self, self.timeout_keep_alive)

    def deadline_passed(self) -> None:
        """The client did not act in time.

        A deadline for the next request is not cleared when that arrives, to save work for each request; it is replaced
        with the response.
        """
        if self.flow.write_paused or self._is_closing():
            self.transport.abort()
        elif self._part and self.flow.read_paused:  # this side does not read: the client is not late
            self._set_rest_deadline()
        elif self._part == _HEAD:
            within_s = self._limits.head_timeout_s
            self._refuse(problem_details.RequestTimeout(f"the request's head did not arrive within {within_s:g} s"))
        elif self._part == BODY:
            within_s = self._limits.body_timeout_s
            self._refuse(problem_details.RequestTimeout(f"the request's body did not arrive within {within_s:g} s"))
        elif not self._has_pending_responses():
            if self.transport.get_write_buffer_size():
                self.transport.abort()  # the last response is unread: closing would wait for ever
            else:
                self.transport.close()

    def pause_writing(self) -> None:
        """The transport's buffer is full."""
        self._paced.pause()

    def resume_writing(self) -> None:
        """The transport's buffer has room again."""
        self._paced.resume()

    def _pause_responses(self) -> None:
        """The client does not read its response as fast as it is sent."""
        super().pause_writing()
        self._note_unsent()
        self._limits.set_deadline(self, self._limits.response_timeout_s)

    def _resume_responses(self) -> None:
        """The client has read most of it."""
        super().resume_writing()
        self._note_unsent()
        if self._is_closing():
            return  # the deadline for reading all of it stays
        if self._part:
            self._set_rest_deadline()
        else:
            self._set_idle_deadline()
        under_way = self._under_way()
        if under_way is None or under_way.response_complete:
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
        return not (self._part or self._is_closing() or self.flow.write_paused or self._has_pending_responses())

    def cut_off(self) -> None:
        """See `OpenConnection`."""
        self.transport.abort()

    def on_response_complete(self) -> None:
        """A response was sent: continue with the next pipelined request, or wait for one."""
        if self._asgi_cycle is not None:
            self._note_unsent()
            self._asgi_cycle = None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():  # do not wait for ever for the client to read it
                self._limits.set_deadline(self, self._limits.response_timeout_s)
            return
        self._continue_pipeline()

    def _continue_pipeline(self) -> None:
        """Start the next pipelined request once the client has read the responses before it."""
        if self.flow.write_paused:
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif not self._part:
            self._set_idle_deadline()
        if len(self.pipeline) <= _SENT_AHEAD_MAX:
            if self._buffered:
                self.loop.call_soon(self._feed_buffered)
            else:
                self.flow.resume_reading()

    # Refusing

    def _reject_connection(self) -> None:
        """Respond 503 to a connection above the limit; close at once when many get that already."""
        self.connections.discard(self)
        self._is_rejected = True
        self._limits.rejected += 1
        if self._limits.rejected <= REJECTED_MAX:
            self._refuse(problem_details.TooManyConnections(f"{self._limits.max_open} connections are open already"))
        else:
            self.transport.abort()

    def _refuse_head(self, error: DeferdError) -> NoReturn:
        """Stop the parser; `_feed` then sends the refusal."""
        self._refusal = error
        raise error

    def _refuse(self, error: DeferdError) -> None:
        """Respond with `error` and close. With responses pending, close after those, without the error."""
        self.parser = cast("httptools.HttpRequestParser", _DiscardingParser())
        if self._abandon_partial_request():
            self._send_refusal(error)
        elif self._has_pending_responses():
            self.cycle.keep_alive = False
            self._limits.set_deadline(self, LAST_RESPONSES_S)
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()
        self._limits.set_deadline(self, LINGER_S)

    def _send_refusal(self, error: DeferdError) -> None:
        response = problem_details.response(error)
        metrics.observe_request(None, "other", response.status_code, 0)
        self.transport.write(self._bytes_of(response, keep_alive=False))

    def _abandon_partial_request(self) -> bool:
        """Drop the incomplete request; False when its response, or an earlier one, has begun or is pending."""
        part, self._part, self._awaited_part = self._part, _NOTHING, _NOTHING
        return self._gave_up_on_body() if part == BODY else not self._has_pending_responses()

    def _gave_up_on_body(self) -> bool:
        cycle = self.cycle
        if cycle.response_started:
            return False
        if self.pipeline:  # it is the newest: an earlier one has the last response
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else cast("RequestResponseCycle", self._under_way())
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        return True

    def _has_pending_responses(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return bool(self.pipeline) or (cycle is not None and not cycle.response_complete)

    def _under_way(self) -> RequestResponseCycle | None:
        """The request in progress; those in the pipeline wait for it."""
        return self._asgi_cycle

    def _is_closing(self) -> bool:
        return self.transport.is_closing() or isinstance(self.parser, _DiscardingParser)

    def shutdown(self) -> None:
        """The server stops: finish the request in progress, or the next one, and drop the pipelined ones."""
        self._buffered = b""
        self.pipeline.clear()
        under_way = self._under_way()
        if under_way is None or under_way.response_complete:
            self.loop.call_later(LAST_REQUEST_S, self._close_unless_used)
        else:
            under_way.keep_alive = False

    def _close_unless_used(self) -> None:
        if not self._has_pending_responses():
            self.transport.close()

    def _refresh_default_head(self) -> None:
        """Follow uvicorn, which makes new default headers once a second, for the date."""
        if self.server_state.default_headers is not self._default_headers:
            self._default_headers = self.server_state.default_headers
            self._default_head = b"".join(b"%b: %b\r\n" % header for header in self._default_headers)

    def _bytes_of(self, response: Response, *, keep_alive: bool, with_body: bool = True) -> bytes:
        self._refresh_default_head()
        lines = [STATUS_LINE[response.status_code], self._default_head]
        lines += [b"%b: %b\r\n" % header for header in response.raw_headers]
        lines.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
        if with_body:
            lines.append(bytes(response.body))
        return b"".join(lines)
