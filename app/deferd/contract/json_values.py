"""JSON values: how deeply they are nested, and their numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any


def is_deeper(value: Any, levels: int) -> bool:
    """Whether the lists and dicts of a parsed JSON value are nested deeper than `levels`; 0 allows none at all.

    Each value is visited once, at any depth.
    """
    containers = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        containers = [
            inner
            for outer in containers
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not containers:
            return False
    return bool(containers)


is_whole_number = re.compile(r"-?(?:0|[1-9][0-9]*)").fullmatch
is_number = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").fullmatch
"""RFC 8259, section 6. Python's own conversions accept more: `1_0`, `+0`, spaces around it, other digits."""
_CANONICAL = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE_EXPONENT = b"e000"
_MANY_DIGITS = b"0" * 200


def may_be_infinite(raw: bytes) -> bool:
    """Whether the JSON text has an exponent of three digits or a number of 200 digits; others fit into a float.

    The parser of JSON turns a number beyond the range of a float into infinity, without an error. It may also be true
    because of a string.
    """
    canonical = raw.translate(_CANONICAL, b"+")
    return _LARGE_EXPONENT in canonical or _MANY_DIGITS in canonical


def path_of_infinity(value: Any) -> tuple[str | int, ...] | None:
    """The path of the first infinite float in `value`; None when there is none."""
    if isinstance(value, float):
        return () if math.isinf(value) else None
    steps: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, dict):
        steps = value.items()
    elif isinstance(value, list):
        steps = enumerate(value)
    for step, inner in steps:
        path = path_of_infinity(inner)
        if path is not None:
            return (step, *path)
    return None
