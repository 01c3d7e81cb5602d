"""Read the JSON body of a request.

A body over the size limit is abandoned as soon as that is known. What Python would accept and JSON does not allow
(NaN, Infinity, numbers beyond a float's range, half a surrogate pair, bytes that are not UTF-8) is refused, and so is
nesting deeper than `limits.JSON_DEPTH_MAX`, where the parser stops. Of two members with the same name the last counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pydantic_core import from_json
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from deferd.api import large_values
from deferd.api.problem_details import UnsupportedMediaType
from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput, PayloadTooLarge
from deferd.contract.json_numbers import may_be_infinite, path_of_infinity

PARSED_IN_THE_LOOP_BYTES = 128 * 1024
"""The largest body that is parsed in the event loop; a larger one would keep other requests waiting."""
_ROOT = ("body",)
_WHITESPACE = b" \t\r\n"
_PLAIN_JSON_TYPE = b"application/json"
_JSON_TYPE = re.compile(rb"\s*application/(?:[!#$&^_.+a-z0-9-]+\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """The whole body as bytes; empty when there is none.

    Raises:
        PayloadTooLarge: more than `limit_bytes` are announced or arrive. The rest stays unread: the server drops it
            after the response, so the connection stays usable.
        UnsupportedMediaType: see `check_media_type`.
        ClientDisconnect: the client disconnects before the end of the body.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit_bytes:
            raise PayloadTooLarge(limit_bytes)
    body = await _pieces(receive, limit_bytes)
    if body:
        check_media_type(scope["headers"])
    return body


def check_media_type(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise UnsupportedMediaType when the headers declare anything but uncompressed JSON. No Content-Type is fine."""
    for name, value in headers:
        if name == b"content-type":
            if value != _PLAIN_JSON_TYPE and _JSON_TYPE.fullmatch(value) is None:
                shown = value[:100].decode("latin-1")
                raise UnsupportedMediaType(f"Content-Type is {shown!r} and must be application/json")
        elif name == b"content-encoding" and value.strip().lower() != b"identity":
            shown = value[:100].decode("latin-1")
            raise UnsupportedMediaType(f"Content-Encoding is {shown!r}; a body must not be compressed")


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
    """Whether the JSON text is `null`, which generated clients send for an omitted body."""
    return raw.strip(_WHITESPACE) == b"null"


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises InvalidInput, which says what is wrong and where."""
    try:
        value = large_values.read_object(raw, _ROOT) if large_values.has_many_parts(raw) else _parse(raw)
    except ValueError as error:
        raise InvalidInput([FieldError(_ROOT, _reason(str(error)))]) from error
    if not isinstance(value, dict):
        raise InvalidInput([FieldError(_ROOT, "must be a JSON object")])  # not quoted: it may have secrets
    if may_be_infinite(raw) and (path := path_of_infinity(value)) is not None:
        raise InvalidInput([FieldError((*_ROOT, *path), "is a number beyond 1.8e308, the maximum")])
    return value


def _parse(raw: bytes) -> Any:
    if len(raw) <= PARSED_IN_THE_LOOP_BYTES:
        return from_json(raw, allow_inf_nan=False)
    with large_values.without_collections():
        return from_json(raw, allow_inf_nan=False, cache_strings="none")


def _reason(message: str) -> str:
    if message.startswith("recursion limit exceeded"):
        return f"is nested deeper than {limits.JSON_DEPTH_MAX} levels"
    return f"is not valid JSON: {message}"
