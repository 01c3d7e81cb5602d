"""Page cursors: where the next page of a list begins, as an opaque text."""

from __future__ import annotations

import base64
import binascii
from typing import Any

import orjson

from deferd.contract.errors import FieldError, InvalidInput


def write_cursor(*parts: int | str) -> str:
    """Encode a cursor of these parts."""
    return base64.urlsafe_b64encode(orjson.dumps(parts)).decode().rstrip("=")


def read_cursor(cursor: str | None, first: tuple[Any, ...], kinds: tuple[type, ...]) -> tuple[Any, ...]:
    """Decode a cursor into parts of these `kinds`; `first` for None. Raises InvalidInput."""
    if cursor is None:
        return first
    try:
        parts = orjson.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as exc:
        raise bad_cursor(cursor) from exc
    if not isinstance(parts, list) or [type(part) for part in parts] != list(kinds):
        raise bad_cursor(cursor)
    return tuple(parts)


def bad_cursor(cursor: str | None) -> InvalidInput:
    """The error for a cursor that the list did not return."""
    message = "must be the `next_cursor` of an earlier response for the same list"
    return InvalidInput([FieldError(("query", "cursor"), message, cursor)])
