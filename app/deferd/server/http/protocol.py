"""One connection within the limits of `connections`.

What comes slowly, too large, too far ahead or not at all is dealt with here, as are answers that are not taken. A
request that comes as a whole, as nearly all do, pays for that with a few comparisons.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NoReturn, cast

import httptools
from starlette.responses import Response
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent
from uvicorn._types import Scope as AsgiScope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from deferd.api import metrics, problem_details
from deferd.contract.errors import DeferdError
from deferd.contract.limits import HEADERS_MAX, URL_MAX_BYTES
from deferd.server.http.limits import LAST_ANSWERS_S, LINGER_S, TURNED_AWAY_MAX, Connections, Counted
from deferd.server.http.request_head import fault_of_host, head_bytes, too_large, without_upgrade

_log = logging.getLogger("deferd.connections")
_NOTHING, _HEAD, BODY = 0, 1, 2
"""What of a request has come in part."""
_SENT_AHEAD_MAX = 8
"""Requests that wait for one before them to be answered while more is read; those beyond wait in the system's buffers,
and with them the news that the client has gone."""
UNSENT_BYTES = 16 * 1024
"""How much of its responses a client may leave unread before it is held to be slow. Nothing more is done for it then
until it has read on."""
_PIECE_BYTES = 2048
"""What is read at once may be a hundred times as much, and thousands of requests."""


class _Deaf:
    """Stands for the parser of a connection whose client is not listened to any longer."""

    def feed_data(self, _data: bytes) -> None:
        """Drop it."""


class _Flow(FlowControl):
    """Reads nothing on while the protocol `holds` what was read before."""

    holds = False

    def resume_reading(self) -> None:
        if not self.holds:
            super().resume_reading()


def _hanging_up_unless_asked_on(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """`app`, which hangs up behind an answer that comes in place of the word to go on.

    The client may then leave out the body that it has announced (RFC 9110, section 10.1.1), and its next request would
    be taken for that.
    """

    async def run(scope: AsgiScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def answer(message: ASGISendEvent) -> None:
            if cycle.waiting_for_100_continue and cycle.more_body and not cycle.body:
                cycle.keep_alive = False
            await send(message)

        await app(scope, receive, answer)

    return run


class LimitedProtocol(HttpToolsProtocol):
    """HttpToolsProtocol within the limits of `limited`. Each request goes through ASGI, unless a subclass has a way."""

    def __init__(self, limited: Connections, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._limited = limited
        self._head_max_bytes = limited.max_head_bytes
        self._asgi_answering: RequestResponseCycle | None = None
        self._default_headers: list[tuple[bytes, bytes]] | None = None
        self._default_head = b""
        self._held = b""
        self._again = b""
        self._part = _NOTHING
        self._awaited = _NOTHING  # the part whose rest is awaited since an earlier read
        self._fed_bytes = 0  # of the awaited part, without the read in which it began
        self._large_read = False
        self._body_came = False
        self._refusal: DeferdError | None = None
        self._turned_away = False
        self._is_silent = True  # the head of its first request has not come
        self._handshake: Counted | None = None
        self._wire: asyncio.Transport | None = None  # below TLS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """A client has connected. It may be one too many; and if it sends nothing it is not kept for ever."""
        super().connection_made(transport)
        self.flow = self._flow = _Flow(transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        if self._handshake is not None:
            self._limited.replace(self._handshake, self)
            self._handshake = None
        elif not self._limited.enter(self):
            self._turn_away()
            return
        self._limited.expect(self, self.timeout_keep_alive)

    def begin_after(self, handshake: Counted, wire: asyncio.Transport) -> None:
        """Before it is made: the connection speaks TLS over `wire`, and was counted as `handshake`."""
        self._handshake, self._wire = handshake, wire
        wire.set_write_buffer_limits(high=UNSENT_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has hung up, or was cut off."""
        super().connection_lost(exc)
        self._limited.settle(self)
        self._limited.leave(self)
        if self._turned_away:
            self._limited.turned_away -= 1
        if self._asgi_answering is not None:  # uvicorn tells the newest request only, and this may be an older one
            self._asgi_answering.disconnected = True
            self._asgi_answering.message_event.set()

    # What comes

    def data_received(self, data: bytes) -> None:
        """Some bytes have come: requests or parts of them."""
        if len(data) <= _PIECE_BYTES and not self._held and not self.flow.write_paused:
            self._take(data)
        else:
            self._held += data
            self._take_held()

    def _take_held(self) -> None:
        """Take what was read piece by piece, and hold the rest back while requests that were sent ahead wait.

        Else a client that sends a megabyte of requests ahead of the first answer would have a hundred times as much
        made of it here. The same while the client does not read its responses: it would have jobs handed out to it that
        it does not take.
        """
        held, self._held = self._held, b""
        at = 0
        while at < len(held) and not self._is_ending():
            if len(self.pipeline) > _SENT_AHEAD_MAX or self.flow.write_paused:
                self._held = held[at:]
                self._flow.holds = True
                self.flow.pause_reading()
                return
            piece_bytes = max(_PIECE_BYTES, self._known_body_bytes())
            self._take(held[at : at + piece_bytes])
            at += piece_bytes
        if self._flow.holds:
            self._flow.holds = False
            self.flow.resume_reading()

    def _known_body_bytes(self) -> int:
        """How much is known to be the rest of a body, and so can be taken at once."""
        return 0

    def _take(self, data: bytes) -> None:
        self._large_read = len(data) > self._head_max_bytes
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            refusal, self._refusal = self._refusal, None
            if refusal is None:
                _log.debug("what came from %s is no HTTP: %s", self.client, error)
            self._refuse(refusal or problem_details.BadRequest("what came is no HTTP/1.1 request"))
            return
        except httptools.HttpParserUpgrade as upgrade:
            again, self._again = self._again, b""
            self._take(again + data[upgrade.args[0] :])
            return
        if self._part:
            self._came_in_part(len(data))

    def _came_in_part(self, read_bytes: int) -> None:
        """The read ended within a request: expect the rest, and keep what has come of it bounded."""
        if self._part != self._awaited:
            self._awaited, self._fed_bytes = self._part, 0
            self._expect_rest()
        else:
            self._fed_bytes += read_bytes
            if self._part == BODY and self._body_came:
                self._fed_bytes = 0
            if self._fed_bytes > self._head_max_bytes:
                self._refuse(too_large(self.url, self.headers, self._head_max_bytes))
        self._body_came = False

    def on_message_begin(self) -> None:
        """A request begins. Its ASGI scope is made when it is known to need one."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._part = _HEAD

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has come. Those behind a body are for nobody here."""
        if self._part == _HEAD:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head of a request is read: begin with it, unless it is too large."""
        if (
            len(self.url) > URL_MAX_BYTES
            or len(self.headers) > HEADERS_MAX
            or ((self._large_read or self._awaited) and head_bytes(self.url, self.headers) > self._head_max_bytes)
        ):
            self._refuse_head(too_large(self.url, self.headers, self._head_max_bytes))
        if self._is_silent:
            self._is_silent = False
            self._limited.spoke(self)
        self._begin_request()

    def _begin_request(self) -> None:
        refusal = fault_of_host(self.headers, self.parser.get_http_version())
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
        self._part = BODY
        if 0 < len(self.pipeline) <= _SENT_AHEAD_MAX:
            self.flow.resume_reading()  # else nobody would notice that the client of a waiting pop hangs up

    def _ignore_upgrade(self) -> None:
        """Have the request read again as if it had not asked for another protocol; none is spoken here.

        The parser takes what follows for that protocol. So the request would lose its body, and what is in the body
        could pass for requests.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse_head(problem_details.BadRequest("CONNECT is for proxies"))
        self._again = without_upgrade(method, self.url, self.parser.get_http_version(), self.headers)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._asgi_answering = cycle
        super()._start_asgi_task(
            cycle, _hanging_up_unless_asked_on(cycle, app) if cycle.waiting_for_100_continue else app
        )

    def on_body(self, body: bytes) -> None:
        """A piece of the body has come."""
        self._body_came = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is there as a whole."""
        self._came_as_a_whole()
        if not self._again:
            super().on_message_complete()

    def _came_as_a_whole(self) -> None:
        self._part = _NOTHING
        if self._awaited:
            self._awaited = _NOTHING
            self._expect_next()

    # What does not come in time, or is not taken in time

    def _expect_rest(self) -> None:
        if not self.flow.write_paused:  # else it is expected to take an answer first
            within_s = self._limited.head_timeout_s if self._part == _HEAD else self._limited.body_timeout_s
            self._limited.expect(self, within_s)

    def _expect_next(self) -> None:
        """The next request, that is, but an idle connection is kept for a good while; see also `overdue`."""
        if not self.flow.write_paused:
            self._limited.expect(self, self.timeout_keep_alive)

    def overdue(self) -> None:
        """What was expected of the client has not come in time.

        When it was the next request it may have come: that is not noted, since it would be for each request, but the
        answer to it will be.
        """
        if self.flow.write_paused or self._is_ending():
            self.transport.abort()
        elif self._part and self.flow.read_paused:  # it cannot be taken yet: the client is not to blame
            self._expect_rest()
        elif self._part == _HEAD:
            within_s = self._limited.head_timeout_s
            self._refuse(problem_details.RequestTimeout(f"the request's head did not come within {within_s:g} s"))
        elif self._part == BODY:
            within_s = self._limited.body_timeout_s
            self._refuse(problem_details.RequestTimeout(f"the request's body did not come within {within_s:g} s"))
        elif not self._has_answers_under_way():
            if self.transport.get_write_buffer_size():
                self.transport.abort()  # the last answer is not taken, so closing would wait for ever
            else:
                self.transport.close()

    def pause_writing(self) -> None:
        """The client does not take its answer as fast as it is sent."""
        super().pause_writing()
        self._note_unsent()
        self._limited.expect(self, self._limited.answer_timeout_s)

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        self._note_unsent()
        if self._is_ending():
            return  # it must take all of it
        if self._part:
            self._expect_rest()
        else:
            self._expect_next()
        under_way = self._under_way()
        if under_way is None or under_way.response_complete:
            self._go_on()

    def _note_unsent(self, size: int = 0) -> None:
        """Note whether the client is slow to read its responses, the last of `size` bytes; 0 where that is not known.

        Over TLS `pause_writing` comes too late: not before the next response.
        """

    def unsent_bytes(self) -> int:
        """What the client has not read of its responses, but for what is in the system's buffers."""
        unsent = self.transport.get_write_buffer_size()
        return unsent if self._wire is None else unsent + self._wire.get_write_buffer_size()

    def is_idle(self) -> bool:
        """See Overdue."""
        return not (self._part or self._is_ending() or self.flow.write_paused or self._has_answers_under_way())

    def cut_off(self) -> None:
        """See Overdue."""
        self.transport.abort()

    def on_response_complete(self) -> None:
        """An answer was given: go on with the request that was sent ahead, or expect the next one."""
        if self._asgi_answering is not None:
            self._note_unsent()
            self._asgi_answering = None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            if self.transport.get_write_buffer_size():  # do not wait for ever for the client to take that
                self._limited.expect(self, self._limited.answer_timeout_s)
            return
        self._go_on()

    def _go_on(self) -> None:
        """With what was sent ahead, once the client has read what it asked for before."""
        if self.flow.write_paused:
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif not self._part:
            self._expect_next()
        if len(self.pipeline) <= _SENT_AHEAD_MAX:
            if self._held:
                self.loop.call_soon(self._take_held)
            else:
                self.flow.resume_reading()

    # What is refused

    def _turn_away(self) -> None:
        """Tell the client of a connection too many so, or, when many are told already, close at once."""
        self.connections.discard(self)
        self._turned_away = True
        self._limited.turned_away += 1
        if self._limited.turned_away <= TURNED_AWAY_MAX:
            self._refuse(problem_details.TooManyConnections(f"{self._limited.max_open} connections are open already"))
        else:
            self.transport.abort()

    def _refuse_head(self, error: DeferdError) -> NoReturn:
        """Have the parser stop; `_take` refuses then."""
        self._refusal = error
        raise error

    def _refuse(self, error: DeferdError) -> None:
        """Answer with `error` and hang up. Answers that are under way go first; then only they are given."""
        self.parser = cast("httptools.HttpRequestParser", _Deaf())
        if self._gave_up_on_part():
            answer = problem_details.response(error)
            metrics.observe_request(None, "other", answer.status_code, 0)
            self.transport.write(self._bytes_of(answer, keep_alive=False))
        elif self._has_answers_under_way():
            self.cycle.keep_alive = False
            self._limited.expect(self, LAST_ANSWERS_S)
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()
        self._limited.expect(self, LINGER_S)

    def _gave_up_on_part(self) -> bool:
        """Let go of the request that came in part; False when it has its answer, or earlier ones wait for theirs."""
        part, self._part, self._awaited = self._part, _NOTHING, _NOTHING
        return self._gave_up_on_body() if part == BODY else not self._has_answers_under_way()

    def _gave_up_on_body(self) -> bool:
        cycle = self.cycle
        if cycle.response_started:
            return False
        if self.pipeline:  # it is the last there, so another one gives the last answer
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else cast("RequestResponseCycle", self._under_way())
            return False
        cycle.disconnected = True
        cycle.message_event.set()
        return True

    def _has_answers_under_way(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return bool(self.pipeline) or (cycle is not None and not cycle.response_complete)

    def _under_way(self) -> RequestResponseCycle | None:
        """The request that is being answered; those in the pipeline wait for that."""
        return self._asgi_answering

    def _is_ending(self) -> bool:
        return self.transport.is_closing() or isinstance(self.parser, _Deaf)

    def shutdown(self) -> None:
        """The server stops: the answer that is under way is the last; requests sent ahead of it are not begun."""
        self._held = b""
        self.pipeline.clear()
        under_way = self._under_way()
        if under_way is None or under_way.response_complete:
            self.transport.close()
        else:
            under_way.keep_alive = False

    def _bytes_of(self, answer: Response, *, keep_alive: bool) -> bytes:
        if self.server_state.default_headers is not self._default_headers:
            self._default_headers = self.server_state.default_headers
            self._default_head = b"".join(b"%b: %b\r\n" % header for header in self._default_headers)
        lines = [STATUS_LINE[answer.status_code], self._default_head]
        lines += [b"%b: %b\r\n" % header for header in answer.raw_headers]
        lines += [b"\r\n" if keep_alive else b"connection: close\r\n\r\n", bytes(answer.body)]
        return b"".join(lines)
