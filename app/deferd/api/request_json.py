"""Reading a request's JSON body: the only place where bytes from outside become values.

The body is read piece by piece and given up as soon as it is over the limit. Everything that Python would take
and JSON does not allow (NaN, Infinity, a number beyond a float's range, half a surrogate pair, bytes that are not
UTF-8) is refused, and so is what is nested deeper than `limits.JSON_DEPTH_MAX`, which is where the parser stops.
Of two members with the same name the last one counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from deferd import limits
from deferd.api.problems import UnsupportedMediaType
from deferd.errors import FieldFault, InvalidInput, PayloadTooLarge

_ROOT = ("body",)
_WHITESPACE = b" \t\r\n"
_PLAIN_JSON_TYPE = b"application/json"
_JSON_TYPE = re.compile(rb"\s*application/(?:[!#$&^_.+a-z0-9-]+\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)
# Only a number with such an exponent, or with so many digits, can be too large for a float. What stands before it is
# part of the pattern since the ids that the service makes are full of digits and e's.
_MAYBE_INFINITE = re.compile(rb"[\s:,\[]-?(?:\d[\d.]*[eE]\+?\d{3}|\d{200})")

_TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BRACES_AS_BRACKETS = bytes.maketrans(b"{}", b"[]")
_ALL_BUT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """The whole body as bytes; empty when there is none.

    Raises PayloadTooLarge as soon as more than `limit_bytes` are announced or come in. The rest is then left
    unread: the server takes it off the connection when the answer is out, so the connection stays usable.
    Raises UnsupportedMediaType when there is a body that does not say it is JSON (saying nothing is fine), and
    ClientDisconnect when the client hangs up before all is read.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit_bytes:
            raise PayloadTooLarge(limit_bytes)
    body = await _pieces(receive, limit_bytes)
    if body:
        check_media_type(scope["headers"])
    return body


def check_media_type(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise UnsupportedMediaType when the headers of a request with a body say that it is no plain JSON."""
    for name, value in headers:
        if name == b"content-type":
            if value != _PLAIN_JSON_TYPE and _JSON_TYPE.fullmatch(value) is None:
                given = value[:100].decode("latin-1")
                raise UnsupportedMediaType(f"Content-Type is {given!r} and must be application/json")
        elif name == b"content-encoding" and value.strip().lower() != b"identity":
            given = value[:100].decode("latin-1")
            raise UnsupportedMediaType(f"Content-Encoding is {given!r}; only plain JSON is read")


async def _pieces(receive: Receive, limit_bytes: int) -> bytes:
    read = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece: bytes = message.get("body", b"")
        if len(read) + len(piece) > limit_bytes:
            raise PayloadTooLarge(limit_bytes)
        if not message.get("more_body", False):
            return bytes(read + piece) if read else piece
        read += piece


def is_null(raw: bytes) -> bool:
    """Whether the JSON text is `null`, which generated clients send for a body that the caller left out."""
    return raw.strip(_WHITESPACE) == b"null"


def parse_object(raw: bytes) -> dict[str, Any]:
    """The JSON object that `raw` is. Raises InvalidInput that says what is wrong and where."""
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidInput([FieldFault(_ROOT, _reason(str(error)))]) from error
    if not isinstance(value, dict):
        raise InvalidInput([FieldFault(_ROOT, "must be a JSON object", value)])
    if _MAYBE_INFINITE.search(raw) and (at := _path_of_infinity(value)) is not None:
        raise InvalidInput([FieldFault(at, "is a number beyond 1.8e308, the largest there can be")])
    return value


def is_deeper(raw: bytes, levels: int) -> bool:
    """Whether the arrays and objects of a JSON text are nested deeper than so many levels; 0 for none at all.

    Of what is no JSON it may say either; the parser refuses that. It takes no step in Python for each bracket: a body
    can have a million.
    """
    brackets = _TEXT.sub(b"", raw).translate(_BRACES_AS_BRACKETS, _ALL_BUT_BRACKETS)
    for _ in range(levels):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")  # the innermost level
    return bool(brackets)


def _reason(parser_says: str) -> str:
    if parser_says.startswith("recursion limit exceeded"):
        return f"is nested deeper than {limits.JSON_DEPTH_MAX} levels"
    return f"is not valid JSON: {parser_says}"


def _path_of_infinity(root: dict[str, Any]) -> tuple[str | int, ...] | None:
    ahead: list[tuple[tuple[str | int, ...], Any]] = [(_ROOT, root)]
    while ahead:
        path, value = ahead.pop()
        if isinstance(value, float):
            if math.isinf(value):
                return path
        elif isinstance(value, dict):
            ahead.extend(((*path, name), inner) for name, inner in value.items())
        elif isinstance(value, list):
            ahead.extend(((*path, index), inner) for index, inner in enumerate(value))
    return None
