"""What the fast paths for bodies share: from JSON to the arguments of scripts, without models.

`deferd.contract.model` and `deferd.api.request_body` are the specification. What is accepted here is stored byte for
byte as they would have it stored; anything else gives None, and then they decide and say what is wrong.

A body is parsed, since it is stored as `json_bytes` writes it: without whitespace, of two members with the same name
only the last. msgspec checks all of it on the way, as the parser of `request_body` does: numbers beyond a float's
range, UTF-8 and surrogate pairs. Its `Raw` would not, and to find out whether raw bytes are in that form takes longer.
Only a member that a later one of the same name replaces may be nested deeper than `limits.JSON_DEPTH_MAX` here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
import orjson

from deferd.api.auth.api_keys import Bounds
from deferd.api.large_values import has_many_parts, without_collections
from deferd.api.request_body import PARSED_IN_THE_LOOP_BYTES
from deferd.contract import limits
from deferd.contract.json_depth import is_deeper
from deferd.engine.record import json_bytes

Decoded = TypeVar("Decoded")

SINGLE_MAX_BYTES = 16 * 1024
"""The largest body of a single call: twice the largest request that takes a direct path."""
_ID_MAX = 255
_IDS = re.compile(rf"(?:{limits.ID_PATTERN.strip('^$')}\n)+")
_SHORTEST_DEEP_BYTES = 2 * limits.VALUE_DEPTH_MAX


class UnusualError(Exception):
    """The general path decides."""


def decoded(decode: Callable[..., Decoded], raw: bytes, key: Bounds, *args: Any) -> Decoded | None:
    """The result of `decode` for a body, the bounds of its key and `args`; None when the general path must decide."""
    if has_many_parts(raw):
        return None
    try:
        if not raw.isascii():
            raw.decode()  # of a repeated window or backoff, msgspec checks only the last
        if len(raw) <= PARSED_IN_THE_LOOP_BYTES:
            if key.max_depth is not None:
                _check_depth(raw, key.max_depth)
            return decode(raw, key, *args)
        with without_collections():
            if key.max_depth is not None:
                _check_depth(raw, key.max_depth)
            return decode(raw, key, *args)
    except (msgspec.MsgspecError, UnusualError, ValueError, RecursionError):  # ValueError: invalid UTF-8, an instant
        return None


def _check_depth(raw: bytes, most: int) -> None:
    """As `KeyUsage.check_depth` does. Most bodies have fewer brackets than the bound has levels."""
    if raw.count(b"{") + raw.count(b"[") > most and is_deeper(orjson.loads(raw), most):
        raise UnusualError


def check_ids(ids: Sequence[str]) -> None:
    """Raise UnusualError unless all are valid ids."""
    if "".join(ids).encode().isalnum() and all(ids) and max(map(len, ids)) <= _ID_MAX:
        return  # in a tenth of the time
    lines = "\n".join(ids) + "\n"  # one match for all takes a third of the time
    if _IDS.fullmatch(lines) is None or lines.count("\n") != len(ids):
        raise UnusualError


def stored_json(value: Any) -> bytes:
    """A value as it is stored. Raises UnusualError if it is too deep."""
    try:
        encoded = orjson.dumps(value)  # as json_bytes does, without another call
    except TypeError:
        encoded = json_bytes(value)
    if len(encoded) >= _SHORTEST_DEEP_BYTES and is_deeper(value, limits.VALUE_DEPTH_MAX):
        raise UnusualError
    return encoded
