"""A response that is read while it comes, over both transports: Server-Sent Events (WHATWG HTML, section 9.2)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from deferd.client.http1 import HEAD_MAX_BYTES, HttpResponse, MalformedResponse

_MESSAGE_MAX_BYTES = 1024 * 1024
_OK = 200
_MEDIA_TYPE = b"text/event-stream"


class ServerSentEvent(NamedTuple):
    """One message. `event` and `data` are empty when it only has an id; `id` is None when it has none of its own."""

    id: str | None
    event: str
    data: str


class ResponseStream(Protocol):
    """A response whose body has not ended. Close it."""

    async def read(self, wait_s: float) -> list[ServerSentEvent]:
        """The next messages, also none: a comment came. Waits for `wait_s` at most.

        Raises:
            EOFError: the service has ended the stream.
            OSError, MalformedResponse: it broke off, or nothing came in time.
        """

    async def close(self) -> None:
        """Close the connection at once."""


class StreamParser:
    """Parses the only response on a connection. One that is no stream of events is read as a whole: `refusal`."""

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
