"""HTTP/1.1 without I/O: writes requests and parses responses and streams of events, for both transports.

Redirects and cookies are not followed, and no content encoding is requested or decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import urlencode

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from deferd.client.requests import ApiRequest
from deferd.contract.clocks import NOT_AFTER_HEADER, TIME_HEADER, RemoteClock, epoch_s

HEAD_MAX_BYTES = 100 * 1024
"""How much may arrive without any byte of the body in it: heads, chunk sizes, trailers. Checked after each read."""
BODY_MAX_BYTES = 256 * 1024 * 1024
"""The largest body: four times the largest request that a service can be set to accept."""
_SENT_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_TIME_HEADER = TIME_HEADER.encode()
_NOT_AFTER = f"{NOT_AFTER_HEADER}: "
_MAX_DIGITS = 15
_MESSAGE_MAX_BYTES = 1024 * 1024
_OK = 200
_MEDIA_TYPE = b"text/event-stream"


class HttpResponse(NamedTuple):
    """A response as it was received. `retry_after` and `content_type` are the headers of these names."""

    status: int
    content: bytes
    retry_after: str | None
    content_type: bytes = b""


class MalformedResponse(Exception):
    """The server sent something that is not HTTP/1.1, or is too large."""


class RequestWriter:
    """Writes the requests to one service.

    `target` is what precedes the path of a request, `headers` are sent with each one.

    Raises:
        ValueError: a header has characters other than visible ASCII and spaces; it is not quoted.
    """

    def __init__(self, target: str, headers: Mapping[str, str]) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        if not _is_plain("".join(headers) + "".join(headers.values())):
            raise ValueError("a header of the requests has characters that are not visible ASCII")
        self._headers = headers
        self._target = target
        self._end = f" HTTP/1.1\r\n{lines}"
        self._end_without_content = f" HTTP/1.1\r\n{lines}content-length: 0\r\n"
        self._end_with_body = f" HTTP/1.1\r\n{lines}content-type: application/json\r\ncontent-length: "

    def write(self, request: ApiRequest[Any], last_line: str = "") -> bytes:
        """The bytes of a request; `last_line` is one more header, with its CRLF.

        Raises:
            ValueError: method or path have characters that do not belong there.
        """
        line = f"{request.method} {self._target}{request.path}"
        if request.query:
            line = f"{line}?{urlencode(request.query)}"
        if not _is_plain(line) or line.count(" ") != 1:
            raise ValueError(f"{line!r} is not the first line of a request")
        if request.headers:
            writer = RequestWriter(self._target, {**self._headers, **request.headers})
            return writer.write(replace(request, headers=None), last_line)
        body = request.body
        if body is not None:
            return f"{line}{self._end_with_body}{len(body)}\r\n{last_line}\r\n".encode() + body
        end = self._end_without_content if request.method in _SENT_WITH_BODY else self._end
        return f"{line}{end}{last_line}\r\n".encode()


def connect_request(authority: str, headers: Mapping[str, str]) -> bytes:
    """The request that asks a proxy for a tunnel to `authority`, a host and a port."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in {"host": authority, **headers}.items())
    return f"CONNECT {authority} HTTP/1.1\r\n{lines}\r\n".encode()


def _is_plain(text: str) -> bool:
    return text.isascii() and text.isprintable()


class RequestClock(RemoteClock):
    """The clock by which a request says until when it may be executed: the service's.

    A request that was given up may still come to the service, and it would take effect behind later ones. So each
    request that changes something names the instant at which the client gives it up, and the service does nothing from
    then on. Each response to such a request has the time of the service's clock, also the refusal of a request that
    came too late. Until the first response, the clock is that of this host.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_known = False
        """Whether the service has told it."""

    def note(self, text: bytes) -> None:
        """Note a header of a response at its reception; anything but a number is ignored."""
        if text.isdigit() and len(text) <= _MAX_DIGITS:
            self.note_ms(int(text))
            self.is_known = True

    def line(self, until_s: float) -> str:
        """The header of a request that is given up at `until_s` on the monotonic clock."""
        if not self.is_known:
            self.note_ms(epoch_s() * 1000)
        return f"{_NOT_AFTER}{self.at(until_s)}\r\n"


class ResponseParser:
    """Parses the responses on one connection, one after the other. They tell the service's `clock`.

    `is_reusable`: the last response was complete, and the next one may follow on this connection. `has_more`: the
    server has sent more than the response.
    """

    __slots__ = (
        "_body",
        "_body_size",
        "_clock",
        "_content_type",
        "_ends_with_connection",
        "_has_head",
        "_head_only",
        "_parser",
        "_response",
        "_retry_after",
        "_without_body",
        "has_more",
        "is_reusable",
    )

    def __init__(self, clock: RequestClock | None = None) -> None:
        self._parser = HttpResponseParser(self)
        self._clock = clock
        self.begin()

    def begin(self, *, head_only: bool = False) -> None:
        """Expect the next response; with `head_only` it has no body in spite of its head (HEAD, CONNECT)."""
        self._head_only = head_only
        self._response: HttpResponse | None = None
        self._body: bytes | bytearray = b""
        self._body_size = self._without_body = 0
        self.is_reusable = self.has_more = False
        self._begin_head()

    def _begin_head(self) -> None:
        self._has_head = False
        self._ends_with_connection = True
        self._retry_after: str | None = None
        self._content_type = b""

    def receive(self, data: bytes) -> HttpResponse | None:
        """Parse the next bytes. Returns the response once it is complete.

        Raises:
            MalformedResponse: these bytes are not a response, or there are too many.
        """
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            if self._response is None:
                raise MalformedResponse(f"the response is not HTTP/1.1: {error}") from error
            self.has_more = True
        if self._response is None:
            self._check_bounds(len(data))
        elif self.has_more:
            self.is_reusable = False
        return self._response

    def end(self) -> HttpResponse:
        """The server has closed the connection. Returns the response if that completes it.

        Raises:
            MalformedResponse: it ended early.
        """
        if self._has_head and self._ends_with_connection:
            self._complete()
        if self._response is None:
            raise MalformedResponse("the connection was closed before the response was complete")
        return self._response

    def _check_bounds(self, received: int) -> None:
        size = len(self._body)
        if size > BODY_MAX_BYTES:
            raise MalformedResponse(f"the response is larger than {BODY_MAX_BYTES} bytes")
        self._without_body = self._without_body + received if size == self._body_size else 0
        self._body_size = size
        if self._without_body > HEAD_MAX_BYTES:
            raise MalformedResponse(f"the head of the response is larger than {HEAD_MAX_BYTES} bytes")

    def _complete(self) -> None:
        self._response = HttpResponse(
            self._parser.get_status_code(), bytes(self._body), self._retry_after, self._content_type
        )

    # Called by the parser, also for what follows a complete response in the same bytes.

    def on_message_begin(self) -> None:
        """The first byte of a response."""
        if self._response is not None:
            self.has_more = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a field of a trailer."""
        if self._has_head:
            return
        size = len(name)
        if size == 11:
            name = name.lower()
            if name == _TIME_HEADER:
                if self._clock is not None:
                    self._clock.note(value)
            elif name == b"retry-after":
                text = value.decode("latin-1")
                self._retry_after = text if self._retry_after is None else f"{self._retry_after}, {text}"
        elif size == 12:
            if name.lower() == b"content-type":
                self._content_type = b", ".join(filter(None, (self._content_type, value)))
        elif size in {14, 17} and name.lower() in {b"content-length", b"transfer-encoding"}:
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        """The end of a head."""
        self._has_head = True
        if self._head_only and self._response is None and self._parser.get_status_code() >= 200:
            self._complete()

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if self._response is not None:
            self.has_more = True
        elif not self._body:
            self._body = data
        else:
            if type(self._body) is bytes:
                self._body = bytearray(self._body)
            self._body += data

    def on_message_complete(self) -> None:
        """The end of a response."""
        if self._response is not None:
            return
        if self._parser.get_status_code() < 200:  # such as 100 Continue: the response follows
            self._begin_head()
            return
        self.is_reusable = self._parser.should_keep_alive()
        self._complete()


class ServerSentEvent(NamedTuple):
    """One message. `event` and `data` are empty when it only has an id; `id` is None when it has none of its own."""

    id: str | None
    event: str
    data: str


class StreamParser:
    """Parses the only response on a connection while it comes: Server-Sent Events (WHATWG HTML, section 9.2).

    A response that is no stream of events is read as a whole: `refusal`.
    """

    def __init__(self) -> None:
        self._parser = HttpResponseParser(self)
        self._body = bytearray()
        self._without_body = 0
        self._retry_after: str | None = None
        self._content_type = b""
        self._has_ended = False
        self.has_begun = False
        self.refusal: HttpResponse | None = None

    def receive(self, data: bytes) -> None:
        """Parse the next bytes, b'' at the end of the connection. Raises MalformedResponse."""
        if not data:
            if not self.has_begun:
                raise MalformedResponse("the connection was closed before the response was complete")
            self._has_ended = True
            return
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            raise MalformedResponse(f"the response is not HTTP/1.1: {error}") from error
        self._without_body = 0 if self.has_begun else self._without_body + len(data)
        if self._without_body > HEAD_MAX_BYTES or len(self._body) > _MESSAGE_MAX_BYTES:
            raise MalformedResponse("the response is too large")

    def messages(self) -> list[ServerSentEvent]:
        """The messages that have come since the last call. Raises EOFError when there are none and will be none."""
        *whole, rest = bytes(self._body).split(b"\n\n")
        self._body = bytearray(rest)
        if not whole and self._has_ended:
            raise EOFError
        return [message for message in map(_read_message, whole) if message is not None]

    # Called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        match name.lower():
            case b"retry-after":
                self._retry_after = value.decode("latin-1")
            case b"content-type":
                self._content_type = value

    def on_headers_complete(self) -> None:
        """The end of a head."""
        is_stream = self._content_type.lower().startswith(_MEDIA_TYPE)
        self.has_begun = is_stream and self._parser.get_status_code() == _OK

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._body += data

    def on_message_complete(self) -> None:
        """The end of a response."""
        status = self._parser.get_status_code()
        if self.has_begun:
            self._has_ended = True
        elif status >= _OK:
            self.refusal = HttpResponse(status, bytes(self._body), self._retry_after, self._content_type)


def _read_message(text: bytes) -> ServerSentEvent | None:
    """One message, without its empty line; None for a comment. The service ends lines with a line feed."""
    fields: dict[str, str] = {}
    for line in text.decode(errors="replace").split("\n"):
        name, _, value = line.partition(":")
        if name in {"id", "event", "data"}:
            fields[name] = value.removeprefix(" ")
    if not fields:
        return None
    return ServerSentEvent(fields.get("id"), fields.get("event", ""), fields.get("data", ""))
