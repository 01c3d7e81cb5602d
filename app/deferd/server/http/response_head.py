"""The head of a response, as bytes."""

from __future__ import annotations

import http
from collections.abc import Iterable

from deferd.api.responses import Header

STATUS_LINE = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in http.HTTPStatus}


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
