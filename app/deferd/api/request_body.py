"""Read the JSON body of a request.

A body over the size limit is abandoned as soon as that is known. What Python would accept and JSON does not allow
(NaN, Infinity, numbers beyond a float's range, half a surrogate pair, bytes that are not UTF-8) is refused, and so is
nesting deeper than `limits.JSON_DEPTH_MAX`, where the parser stops. Of two members with the same name the last counts.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from math import isinf
from typing import Any, TypedDict

import msgspec
from orjson import Fragment
from pydantic_core import from_json
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from deferd.api.problem_details import UnsupportedMediaType
from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput, PayloadTooLarge
from deferd.contract.json_values import may_be_infinite, path_of_infinity
from deferd.engine.record import json_bytes

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
        value = read_object(raw, _ROOT) if has_many_parts(raw) else _parse(raw)
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
    with without_collections():
        return from_json(raw, allow_inf_nan=False, cache_strings="none")


def _reason(message: str) -> str:
    if message.startswith("recursion limit exceeded"):
        return f"is nested deeper than {limits.JSON_DEPTH_MAX} levels"
    return f"is not valid JSON: {message}"


# Bodies that have very many lists and objects. A call of a parser holds the GIL, and so does the collection after it:
# for half a million lists a fifth of a second. So no objects are made from the values of producers and consumers in
# such a body: their JSON is checked as text and kept as it is, without whitespace. Everything else in a request is
# small, or it is refused.

Path = tuple[str | int, ...]

_PARTS_AT_ONCE = 50_000
"""The most lists and objects that are made by one call, and that a request may have beside the values of users."""
_PIECE_BYTES = 64 * 1024
_VALUES = ("body", "result")
"""The fields of users: any JSON value."""
_LISTS_OF_OBJECTS = ("jobs", "put")
_OBJECTS = ("job",)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""A bracket as a signed byte: one level more or less."""
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_NUMBER = re.compile(rb"[0-9][0-9.eE+-]*")
_MOST_DIGITS = 4300
"""Of an integer: parsers refuse more."""
_HALF_OF_A_PAIR = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD])[c-fC-F])"
)
"""An escape of a surrogate without the other one. Escapes of backslashes must be gone."""


class _Values(TypedDict, total=False):
    """The fields of users."""

    body: msgspec.Raw
    result: msgspec.Raw


class _HoldersOfValues(_Values, total=False):
    """The JSON of a body: the fields of users, and the objects that may hold them, one level deep."""

    jobs: msgspec.Raw
    put: msgspec.Raw
    job: msgspec.Raw


_outer: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_HoldersOfValues)
_inner: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Values)
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


def has_many_parts(raw: bytes) -> bool:
    """Whether a JSON text may have more lists and objects than should be made at once."""
    return len(raw) > 2 * _PARTS_AT_ONCE and _parts(raw) > _PARTS_AT_ONCE


def _parts(text: bytes) -> int:
    """The number of lists and objects, or more if there are brackets in strings."""
    return text.count(b"[") + text.count(b"{")


def read_object(raw: bytes, path: Path) -> dict[str, Any]:
    """The JSON object of a body, in which the values of users are Fragments.

    Unlike everywhere else, objects within these may have several members with the same name.

    Raises:
        InvalidInput: it is no object, a value is nested too deeply, or another field has too many lists and objects.
        ValueError: it is not valid JSON.
    """
    try:
        raw.decode()
        text = msgspec.json.format(raw, indent=-1)  # checks all of it
        if b"\\u" in text and _HALF_OF_A_PAIR.search(text.replace(b"\\\\", b"")):
            raise ValueError("unexpected end of hex escape")
        if not text.startswith(b"{"):
            raise InvalidInput([FieldError(path, "must be a JSON object")])
        with without_collections():
            return _Reader().read_object(text, path, _outer)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error).removeprefix("JSON is malformed: ")) from None
    except RecursionError:
        raise InvalidInput([FieldError(path, f"is nested deeper than {limits.JSON_DEPTH_MAX} levels")]) from None


class _Reader:
    """Reads one body, which is valid JSON without whitespace. `_parts_left`: of what is not a value of users."""

    def __init__(self) -> None:
        self._parts_left = _PARTS_AT_ONCE

    def read_object(self, text: bytes, path: Path, decoder: msgspec.json.Decoder[Any] = _inner) -> dict[str, Any]:
        values = {name: bytes(value) for name, value in decoder.decode(text).items()}
        self._note_parts(_parts(text) - sum(map(_parts, values.values())), path)
        others = _members.decode(text).items()
        small = [b"%b:%b" % (json_bytes(name), value) for name, value in others if name not in values]
        read: dict[str, Any] = _parsed(b"{%b}" % b",".join(small), path)
        return read | {name: self._read_value(name, value, (*path, name)) for name, value in values.items()}

    def _read_value(self, name: str, text: bytes, path: Path) -> Any:
        if name in _VALUES and text != b"null":
            return Fragment(_checked(text, path))
        if name in _OBJECTS and text.startswith(b"{"):
            return self.read_object(text, path)
        if name in _LISTS_OF_OBJECTS and text.startswith(b"[{"):
            return self._read_list(text, path)
        return self._read_small(text, path)

    def _read_list(self, text: bytes, path: Path) -> Any:
        begun_or_between = sum(depths.count(1) for depths in _depths(_outside_of_strings(text)))
        if begun_or_between > limits.BATCH_MAX + 1:  # the decoder would make hundreds of thousands of items
            return self._read_small(text, path)
        items = _items.decode(text)
        if len(items) > limits.BATCH_MAX:
            return self._read_small(text, path)
        return [self._read_item(bytes(item), (*path, index)) for index, item in enumerate(items)]

    def _read_item(self, text: bytes, path: Path) -> Any:
        return self.read_object(text, path) if text.startswith(b"{") else self._read_small(text, path)

    def _read_small(self, text: bytes, path: Path) -> Any:
        self._note_parts(_parts(text), path)
        return _parsed(text, path)

    def _note_parts(self, parts: int, path: Path) -> None:
        self._parts_left -= parts
        if self._parts_left < 0:
            message = (
                f"has more lists and objects than the {_PARTS_AT_ONCE} that are allowed outside of body and result"
            )
            raise InvalidInput([FieldError(path, message)])


def _parsed(text: bytes, path: Path) -> Any:
    value = from_json(text, allow_inf_nan=False, cache_strings="none")
    if may_be_infinite(text) and (inner := path_of_infinity(value)) is not None:
        raise _too_large((*path, *inner))
    return value


def _too_large(path: Path) -> InvalidInput:
    return InvalidInput([FieldError(path, "has a number beyond 1.8e308, the maximum")])


def _checked(text: bytes, path: Path) -> bytes:
    """The value of a user, if it is not nested too deeply and has no number that is too large."""
    outside = _outside_of_strings(text)
    if _depth(outside) > limits.VALUE_DEPTH_MAX:
        raise InvalidInput([FieldError(path, f"is nested deeper than {limits.VALUE_DEPTH_MAX} levels")])
    if may_be_infinite(outside) and any(map(_is_too_large, _NUMBER.finditer(outside))):
        raise _too_large(path)
    return text


def _is_too_large(number: re.Match[bytes]) -> bool:
    """Whether it is an infinite float, as the parser has it, or an integer that no parser reads."""
    return len(number[0]) > _MOST_DIGITS if number[0].isdigit() else isinf(float(number[0]))


def _outside_of_strings(text: bytes) -> bytes:
    """What remains of a valid JSON text without its strings. It is cut off in pieces, so that no call takes long."""
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside: list[bytes] = []
    inside = False
    for at in range(0, len(text), _PIECE_BYTES):
        pieces = text[at : at + _PIECE_BYTES].split(b'"')
        outside += pieces[inside::2]
        inside ^= len(pieces) % 2 == 0
    return b"".join(outside)


def _depth(text: bytes) -> int:
    """How deeply the lists and objects of a JSON text without strings are nested."""
    return max(map(max, _depths(text)), default=0)


def _depths(text: bytes) -> Iterator[list[int]]:
    """The depth after each bracket of a JSON text without strings."""
    depth = 0
    steps = text.translate(_STEPS, _ALL_BUT_BRACKETS)
    for at in range(0, len(steps), _PIECE_BYTES):
        depths = list(accumulate(memoryview(steps[at : at + _PIECE_BYTES]).cast("b"), initial=depth))
        depth = depths[-1]
        yield depths[1:]


@contextmanager
def without_collections() -> Iterator[None]:
    """Around the parsing of a large body, which holds the GIL: collections for its lists and dicts double the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
