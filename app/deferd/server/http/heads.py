"""Heads of HTTP/1.1: checks of a request's size, Host header and transfer coding; the bytes of a response's head."""

from __future__ import annotations

import http
import re
from collections.abc import Iterable

from deferd.api import problem_details
from deferd.api.responses import Header
from deferd.contract.errors import DeferdError
from deferd.contract.limits import HEADERS_MAX, URL_MAX_BYTES

is_host = re.compile(rb"(?:[\w.~%!$&'()*+,;=-]*|\[[\w.~%:-]+\])(?::[0-9]*)?[ \t]*").fullmatch
"""Whether a Host header is empty or has the form of a host, with or without a port (RFC 9110, section 7.2).

Whether that name, address or port can exist is not checked.
"""


def head_bytes(url: bytes, headers: list[Header]) -> int:
    """Size of a head without the method and version of its first line."""
    return len(url) + sum(len(name) + len(value) + len(b": \r\n") for name, value in headers)


def too_large(url: bytes, headers: list[Header], max_bytes: int) -> DeferdError:
    """The error for a head, complete or not, that exceeds one of the limits."""
    if len(url) > URL_MAX_BYTES:
        return problem_details.UriTooLong(f"the URL is longer than {URL_MAX_BYTES} bytes")
    if len(headers) > HEADERS_MAX:
        return problem_details.HeadTooLarge(f"the request has more than {HEADERS_MAX} headers")
    return problem_details.HeadTooLarge(f"the request's head is larger than {max_bytes} bytes")


def head_error(headers: list[Header], http_version: str) -> DeferdError | None:
    """The error for a head that says too little or too much about its host or its framing; None when it is valid."""
    return _host_error(headers, http_version) or _coding_error(headers, http_version)


def _coding_error(headers: list[Header], http_version: str) -> DeferdError | None:
    """The parser refuses what does not end with `chunked`, but would take `gzip, chunked` as chunks of plain text.

    RFC 9112, section 6.1: 501 for an unknown coding. With HTTP/1.0 any Transfer-Encoding is an error, since a proxy of
    that version may have passed it on without reading it.
    """
    values = [value for name, value in headers if name == b"transfer-encoding"]
    if not values:
        return None
    if http_version != "1.1":
        return problem_details.BadRequest("HTTP/1.0 has no Transfer-Encoding")
    codings = [coding.strip() for coding in b",".join(values).lower().split(b",")]
    if len(codings) > 1 and codings[-1] == b"chunked":
        return problem_details.UnsupportedTransferCoding("the only supported Transfer-Encoding is `chunked`")
    return None


def _host_error(headers: list[Header], http_version: str) -> DeferdError | None:
    """The error for a Host header that a server must refuse (RFC 9112, section 3.2); None when it is valid."""
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        return problem_details.BadRequest(f"the request has {len(hosts)} Host headers")
    if not hosts and http_version == "1.1":
        return problem_details.BadRequest("the request has no Host header, which HTTP/1.1 requires")
    if hosts and not is_host(hosts[0]):
        return problem_details.BadRequest("the value of the Host header is not a host")
    return None


def without_upgrade(method: bytes, url: bytes, http_version: str, headers: list[Header]) -> bytes:
    """The head without its Upgrade header."""
    lines = [b"%b %b HTTP/%b" % (method, url, http_version.encode())]
    lines += [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
    return b"\r\n".join((*lines, b"", b""))


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
