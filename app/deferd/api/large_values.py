"""Read bodies of requests that have very many lists and objects.

A call of a parser holds the GIL, and so does the collection after it: for half a million lists a fifth of a second. So
such a body is read in pieces, between which other threads run, and of the values of producers and consumers only the
JSON is kept. Everything else in a request is small, or it is refused.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
from orjson import Fragment
from pydantic_core import from_json

from deferd.contract import limits
from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.json_depth import is_deeper
from deferd.contract.json_numbers import may_be_infinite, path_of_infinity
from deferd.engine.record import json_bytes

Path = tuple[str | int, ...]

_PARTS_AT_ONCE = 50_000
"""The most lists and objects that are made by one call, and that a request may have beside the values of users."""
_PIECE_BYTES = 64 * 1024
_CUTS_TRIED = 4
"""For the end of a piece of a list: the last comma may be within an item."""
_VALUES = frozenset({"body", "result"})
"""The fields of users: any JSON value."""
_LISTS_OF_OBJECTS = frozenset({"jobs", "put"})
_OBJECTS = frozenset({"job"})
_WRITTEN = -1
_WHITESPACE = b" \t\r\n"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items = msgspec.json.Decoder(list[msgspec.Raw])


def has_many_parts(raw: bytes) -> bool:
    """Whether a JSON text may have more lists and objects than should be made at once."""
    return len(raw) > 2 * _PARTS_AT_ONCE and _parts(raw) > _PARTS_AT_ONCE


def _parts(text: bytes) -> int:
    """The number of lists and objects, or more if there are brackets in strings."""
    return text.count(b"[") + text.count(b"{")


def read_object(raw: bytes, path: Path) -> dict[str, Any]:
    """The JSON object of a body, in which the values of users are Fragments, as `json_bytes` writes them.

    Raises:
        InvalidInput: it is no object, a value is nested too deeply, or another field has too many lists and objects.
        ValueError: it is not valid JSON.
    """
    if _first(raw) != b"{":
        raise InvalidInput([FieldError(path, "must be a JSON object")])
    try:
        return _Reader().read_object(raw, path)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error).removeprefix("JSON is malformed: ")) from None
    except RecursionError:
        raise InvalidInput([FieldError(path, f"is nested deeper than {limits.JSON_DEPTH_MAX} levels")]) from None


class _Reader:
    """Reads one body. `_parts_left`: of what is not a value of users."""

    def __init__(self) -> None:
        self._parts_left = _PARTS_AT_ONCE

    def read_object(self, text: bytes, path: Path) -> dict[str, Any]:
        members = _members.decode(text)
        return {name: self._read_member(name, bytes(value), (*path, name)) for name, value in members.items()}

    def _read_member(self, name: str, text: bytes, path: Path) -> Any:
        kind = _first(text)
        if name in _VALUES:
            return Fragment(_normal(text, limits.VALUE_DEPTH_MAX, path))
        if name in _OBJECTS and kind == b"{":
            return self.read_object(text, path)
        if name in _LISTS_OF_OBJECTS and kind == b"[" and len(items := _items.decode(text)) <= limits.BATCH_MAX:
            return [self._read_item(bytes(item), (*path, index)) for index, item in enumerate(items)]
        return self._read_small(text, path)

    def _read_item(self, text: bytes, path: Path) -> Any:
        return self.read_object(text, path) if _first(text) == b"{" else self._read_small(text, path)

    def _read_small(self, text: bytes, path: Path) -> Any:
        self._parts_left -= _parts(text)
        if self._parts_left < 0:
            message = f"has more lists and objects than the {_PARTS_AT_ONCE} that are allowed outside of values"
            raise InvalidInput([FieldError(path, message)])
        return _parsed(text, path)


def _first(text: bytes) -> bytes:
    return text.lstrip(_WHITESPACE)[:1]


def _parsed(text: bytes, path: Path) -> Any:
    value = from_json(text, allow_inf_nan=False, cache_strings="none")
    if may_be_infinite(text) and path_of_infinity(value) is not None:  # within it, which may be a piece of a list
        raise InvalidInput([FieldError(path, "has a number beyond 1.8e308, the maximum")])
    return value


def _normal(text: bytes, levels: int, path: Path) -> bytes:
    """The JSON as `json_bytes` writes it, of at most so many levels.

    What is still to be read is kept in a list, in which no text is a part of another: the frames of a recursion would
    keep a copy of the whole for each level.
    """
    written: list[bytes] = []
    todo = [_Todo(text, levels)]
    while todo:
        text, levels = todo.pop()
        if levels == _WRITTEN:
            written.append(text)
        elif _parts(text) <= _PARTS_AT_ONCE or _first(text) not in {b"[", b"{"}:
            written.append(_normal_at_once(text, levels, path))
        elif not levels:
            raise _too_deep(path)
        else:
            read = _read_list if _first(text) == b"[" else _read_members
            todo += reversed([*read(text, levels, path)])
    return b"".join(written)


class _Todo(NamedTuple):
    """JSON of at most so many levels; or, if that is _WRITTEN, a text that is ready."""

    text: bytes
    levels: int


def _normal_at_once(text: bytes, levels: int, path: Path) -> bytes:
    with without_collections():
        value = _parsed(text, path)
        if is_deeper(value, levels):
            raise _too_deep(path)
        written = json_bytes(value)
        del value  # before the next collection
    return written


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


def _read_members(text: bytes, levels: int, path: Path) -> Iterator[_Todo]:
    comma = b"{"
    for name, value in _members.decode(text).items():
        yield _Todo(b"%b%b:" % (comma, json_bytes(name)), _WRITTEN)
        yield _Todo(bytes(value), levels - 1)
        comma = b","
    yield _Todo(b"}", _WRITTEN)


def _read_list(text: bytes, levels: int, path: Path) -> Iterator[_Todo]:
    """First as many items as can be cut off without a look at each, then the others."""
    at = begin = text.index(b"[") + 1
    comma = b"["
    while len(text) - at > _PIECE_BYTES and (end := _end_of_items(text, at)) is not None:
        yield _Todo(comma + _written_items([text[at:end]], levels, path), _WRITTEN)
        at, comma = end + 1, b","
    items = _items.decode(b"[" + text[at:])
    if not items and at > begin:
        raise ValueError("trailing comma")
    together: list[bytes] = []
    parts = 0
    for item in map(bytes, items):
        more = _parts(item)
        if together and parts + more > _PARTS_AT_ONCE:
            yield _Todo(comma + _written_items(together, levels, path), _WRITTEN)
            together, parts, comma = [], 0, b","
        if more > _PARTS_AT_ONCE:
            yield _Todo(comma, _WRITTEN)
            yield _Todo(item, levels - 1)
            comma = b","
        else:
            together.append(item)
            parts += more
    if together:
        yield _Todo(comma + _written_items(together, levels, path), _WRITTEN)
    yield _Todo(b"]", _WRITTEN)


def _end_of_items(text: bytes, at: int) -> int | None:
    """Where the items of a list end that begin at `at`, before one of the next commas; None if it is not found.

    A comma is between two items if what is before it is a list: it begins with an item.
    """
    end = at + _PIECE_BYTES
    for _ in range(_CUTS_TRIED):
        end = text.rfind(b",", at, end)
        if end <= at:
            return None
        try:
            if _items.decode(b"[%b]" % text[at:end]):
                return end
        except msgspec.MsgspecError:
            continue
    return None


def _written_items(items: list[bytes], levels: int, path: Path) -> bytes:
    """The JSON of small neighbours in a list of so many levels."""
    return _normal_at_once(b"[%b]" % b",".join(items), levels, path)[1:-1]


def _too_deep(path: Path) -> InvalidInput:
    return InvalidInput([FieldError(path, f"is nested deeper than {limits.VALUE_DEPTH_MAX} levels")])
