"""Recognizes requests for the direct paths of `deferd.api.direct`, most of which are not parsed by httptools.

Clients send the same headers with each request. So what httptools made of a block of headers is remembered, and a
request in one read whose headers are the same, byte for byte, needs no parser: its first line is matched, and its body
is what follows the headers. Three headers may differ: the length of the body, the instant of `Deferd-Not-After`, and
the trace context of `traceparent`. All other requests are parsed, and may take a direct path then.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from deferd.api.app import Service
from deferd.api.change_recording import VIA_HEADER
from deferd.api.direct.deliveries import DirectBury, DirectFinish, DirectRelease, DirectTouch
from deferd.api.direct.jobs import DirectCancel, DirectPut
from deferd.api.direct.pop import DirectPop
from deferd.api.direct.verb import Connection, DirectCall, DirectRequest, DirectVerb, KnownHead
from deferd.api.incoming_request import TRACEPARENT, IncomingRequest
from deferd.api.operation import OperationRoute
from deferd.api.request_body import check_media_type
from deferd.api.responses import Header
from deferd.contract.clocks import INSTANT_DIGITS, NOT_AFTER_HEADER
from deferd.contract.errors import DeferdError
from deferd.contract.limits import HEADERS_MAX
from deferd.engine.scripts import request_ending_at

READ_MAX_BYTES = 8 * 1024
"""The largest request that may take a direct path."""
_KNOWN_MAX = 1000
_SEEN_MAX = 10_000
_BLOCK_MAX_BYTES = 1024
_BLOCK_MAX_HEADERS = HEADERS_MAX - 2
"""An instant and a trace context may be added to those of a block."""
_LINE_MAX_BYTES = 256
_NOT_AFTER = NOT_AFTER_HEADER.encode()
_NOT_AFTER_LINE = b"\r\n%b: " % _NOT_AFTER
"""As the client library writes it; in another form the request is parsed."""
_TRACEPARENT = b"traceparent"
_TRACEPARENT_LINES = (b"\r\ntraceparent: ", b"\r\nTraceparent: ")
_TRACEPARENT_END = b"raceparent: "
"""As clients write it. One that is not valid, which has no effect, is parsed."""
_TRACEPARENT_BYTES = 55
_EFFECTIVE_HEADERS = frozenset((_TRACEPARENT, VIA_HEADER, _NOT_AFTER))
"""Headers on which the effect of a request depends: the way by which people make changes, which are recorded, and an
instant or trace context in another form, or a second one.
"""
_Line = tuple[DirectVerb, tuple[str, ...]]
"""What the first line of a request means: its verb, and the values in its path and query."""
_VERBS: tuple[type[DirectVerb], ...] = (
    DirectPut,
    DirectPop,
    DirectFinish,
    DirectCancel,
    DirectRelease,
    DirectTouch,
    DirectBury,
)


class DirectPath:
    """The direct paths of a process, and the headers that it knows."""

    def __init__(self, service: Service) -> None:
        routes = {route.operation_id: route for route in service.routes if isinstance(route, OperationRoute)}
        self._verbs: dict[str | None, DirectVerb] = {}
        patterns = []
        # A traced request has headers on which its span depends: all go the general way.
        for kind in () if service.context.settings.tracing else _VERBS:
            for operation in kind.operations:
                self._verbs[operation.id] = kind(service.context, routes[operation.id])
                patterns.append(f"(?P<{operation.id}>{kind.line_of(operation)})")
        self._context = service.context
        self._match_line = re.compile(f"(?:{'|'.join(patterns)}) HTTP/1\\.1", re.ASCII).fullmatch
        self._known: dict[bytes | None, KnownHead] = {}
        self._seen_once: set[int] = set()  # hashes
        self._lines: dict[bytes, _Line] = {}

    def begin(self, connection: Connection, data: bytes) -> DirectCall | None:
        """Begin the call of the request that `data` consists of; None, without any effect, when it must be parsed."""
        line_end = data.find(b"\r\n")
        body_at = data.find(b"\r\n\r\n", line_end) + 4
        block, not_after_ms, traceparent = _block(data, line_end, body_at)
        head = self._known.get(_key(block, len(data) - body_at))
        line = None if head is None else self._line(data[:line_end])
        if head is None or line is None:
            return None
        verb, values = line
        return self._begin(verb, DirectRequest(connection, head, values, data[body_at:], traceparent), not_after_ms)

    def begin_parsed(
        self, connection: Connection, line: bytes, request: IncomingRequest, body: bytes
    ) -> DirectCall | None:
        """As `begin`, for a plain request that was parsed; `line` is its first line, without the HTTP version."""
        headers = request.headers
        found = self._line(line + b" HTTP/1.1")
        if found is None or any(name == VIA_HEADER for name, _ in headers):
            return None
        verb, values = found
        try:
            if body:
                check_media_type(headers)
            not_after_ms = request.not_after_ms()
        except DeferdError:
            return None
        parsed = DirectRequest(connection, KnownHead(headers), values, body, request.traceparent())
        return self._begin(verb, parsed, not_after_ms)

    def _begin(self, verb: DirectVerb, request: DirectRequest, not_after_ms: int | None) -> DirectCall | None:
        if not_after_ms is None:
            return verb.begin(request)
        clock = self._context.engine.request_clock
        if not clock.is_trusted or (left_s := clock.left_s(not_after_ms)) <= 0:
            return None
        with request_ending_at(asyncio.get_running_loop().time() + left_s):
            call = verb.begin(request)
        if call is not None:
            call.clock = clock
        return call

    def _line(self, first_line: bytes) -> _Line | None:
        """What the first line of a request means; None if it is of no direct path."""
        return self._lines.get(first_line) or self._find_verb(first_line)

    def _find_verb(self, first_line: bytes) -> _Line | None:
        match = self._match_line(first_line.decode("latin-1"))
        if match is None:
            return None
        verb = self._verbs[match.lastgroup]
        at = match.lastindex or 0  # the group around the pattern of the verb's operation
        line = verb, match.groups("")[at : at + verb.values]
        if verb.has_same_lines and len(first_line) <= _LINE_MAX_BYTES:
            _bound(self._lines, _KNOWN_MAX)
            self._lines[first_line] = line
        return line

    def learn(self, data: bytes, operation: OperationRoute, headers: list[Header]) -> None:
        """Remember the headers of a plain request that httptools found at the beginning of `data`.

        Only when they come for the second time, since some clients send others each time.
        """
        if operation.operation_id not in self._verbs:
            return
        body_at = data.find(b"\r\n\r\n") + 4
        block, not_after_ms, traceparent = _block(data, data.find(b"\r\n"), body_at)
        if not_after_ms is not None:
            headers = [header for header in headers if header != (_NOT_AFTER, b"%d" % not_after_ms)]
        if traceparent is not None:
            headers = [header for header in headers if header != (_TRACEPARENT, traceparent.encode())]
        key = _key(block, len(data) - body_at)
        if key is None or key in self._known or not _is_usual(block, headers, key):
            return
        found = hash(key)
        if found not in self._seen_once:
            _bound(self._seen_once, _SEEN_MAX)
            self._seen_once.add(found)
        else:
            self._seen_once.discard(found)
            _bound(self._known, _KNOWN_MAX)
            self._known[key] = KnownHead(headers)


def _bound(known: dict[Any, Any] | set[Any], most: int) -> None:
    if len(known) >= most:
        known.clear()


def _block(data: bytes, line_end: int, body_at: int) -> tuple[bytes, int | None, str | None]:
    """The header lines without an instant and a trace context, and these two; they may be in another form.

    Of several, only the first one is left out.
    """
    block, not_after_ms, traceparent = data[line_end : body_at - 2], None, None
    at = block.find(_NOT_AFTER_LINE)
    if at >= 0:
        instant_at = at + len(_NOT_AFTER_LINE)
        end = instant_at + INSTANT_DIGITS
        instant = block[instant_at:end]
        if instant.isdigit() and block[end : end + 2] == b"\r\n":
            block, not_after_ms = block[:at] + block[end:], int(instant)
    at = block.find(_TRACEPARENT_END)
    if at >= 0:
        value_at = at + len(_TRACEPARENT_END)
        line_at, end = value_at - len(_TRACEPARENT_LINES[0]), value_at + _TRACEPARENT_BYTES
        value = block[value_at:end]
        is_whole = block[line_at:value_at] in _TRACEPARENT_LINES and block[end : end + 2] == b"\r\n"
        if is_whole and TRACEPARENT.fullmatch(value) is not None:
            block, traceparent = block[:line_at] + block[end:], value.decode()
    return block, not_after_ms, traceparent


def _key(block: bytes, body_bytes: int) -> bytes | None:
    """The header lines in a block without a Content-Length of `body_bytes`; None when the length must be another.

    NUL marks where it was: headers contain none, so that no other block has the same key.
    """
    key = block.replace(b"ength: %d\r\n" % body_bytes, b"\0\r\n", 1)
    if len(key) == len(block) and (body_bytes or b"\0" in block):
        return None
    return key


def _is_usual(block: bytes, headers: list[Header], key: bytes) -> bool:
    """Whether a block consists of these headers in a form that always means the same, and the effect depends on none.

    It must have one place at most where `_key` may find a length. A Content-Length must be marked in its key: the body
    of a block without a mark is empty, and the announced one, which may come later, would be read as a request.
    """
    lines = block.lower()
    names = [name for name, _ in headers]
    try:
        check_media_type(headers)
    except DeferdError:
        return False
    return (
        len(block) <= _BLOCK_MAX_BYTES
        and len(headers) <= _BLOCK_MAX_HEADERS
        and lines == b"".join([b"\r\n%b: %b" % header for header in headers]).lower() + b"\r\n"
        and lines.count(b"ength: ") == names.count(b"content-length") == key.count(b"\0")
        and b"\0" not in block
        and _EFFECTIVE_HEADERS.isdisjoint(names)
    )
