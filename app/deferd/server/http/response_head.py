"""The head of a response, as bytes."""

from __future__ import annotations

import http
from collections.abc import Iterable

from deferd.api.responses import Header

_PHRASES = {status.value: status.phrase.encode() for status in http.HTTPStatus}
STATUS_LINE = {status: b"HTTP/1.1 %d %b\r\n" % (status, _PHRASES.get(status, b"")) for status in range(100, 600)}


def response_head(
    status: int, date_line: bytes, headers: Iterable[Header], *, keep_alive: bool, is_chunked: bool = False
) -> bytes:
    """All lines of the head, and the empty one that ends it."""
    lines = [STATUS_LINE[status], date_line]
    lines += [b"%b: %b\r\n" % header for header in headers]
    if not keep_alive:
        lines.append(b"connection: close\r\n")
    if is_chunked:
        lines.append(b"transfer-encoding: chunked\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
