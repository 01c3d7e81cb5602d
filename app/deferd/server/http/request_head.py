"""What the head of a request must keep to: the limits of its size, and that it names one host."""

from __future__ import annotations

import re

from deferd.api import problem_details
from deferd.api.responses import Header
from deferd.contract.errors import DeferdError
from deferd.contract.limits import HEADERS_MAX, URL_MAX_BYTES

is_host = re.compile(rb"(?:[\w.~%!$&'()*+,;=-]*|\[[\w.~%:-]+\])(?::[0-9]*)?[ \t]*").fullmatch
"""Whether the value of a Host header is empty or may be a host, with or without a port (RFC 9110, section 7.2).

Whether its name, address or port can exist is not asked.
"""


def head_bytes(url: bytes, headers: list[Header]) -> int:
    """The size of a head, but for its first line's method and version."""
    return len(url) + sum(len(name) + len(value) + len(b": \r\n") for name, value in headers)


def too_large(url: bytes, headers: list[Header], max_bytes: int) -> DeferdError:
    """The refusal of a head that is over one of the limits, as far as it has come."""
    if len(url) > URL_MAX_BYTES:
        return problem_details.UriTooLong(f"the URL is longer than {URL_MAX_BYTES} bytes")
    if len(headers) > HEADERS_MAX:
        return problem_details.HeadTooLarge(f"the request has more than {HEADERS_MAX} headers")
    return problem_details.HeadTooLarge(f"the request's head is larger than {max_bytes} bytes")


def fault_of_host(headers: list[Header], http_version: str) -> DeferdError | None:
    """The refusal of a head that RFC 9112, section 3.2, has a server refuse; None when it names one host."""
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        return problem_details.BadRequest(f"the request has {len(hosts)} Host headers")
    if not hosts and http_version == "1.1":
        return problem_details.BadRequest("the request has no Host header, which HTTP/1.1 asks for")
    if hosts and not is_host(hosts[0]):
        return problem_details.BadRequest("what the Host header has is no host")
    return None


def without_upgrade(method: bytes, url: bytes, http_version: str, headers: list[Header]) -> bytes:
    """The head once more, as if it had not asked for another protocol."""
    lines = [b"%b %b HTTP/%b" % (method, url, http_version.encode())]
    lines += [b"%b: %b" % header for header in headers if header[0] != b"upgrade"]
    return b"\r\n".join((*lines, b"", b""))
