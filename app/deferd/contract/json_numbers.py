"""The forms of JSON numbers in texts, and those beyond the range of a float.

The parser of JSON turns the latter into infinity without an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

is_whole_number = re.compile(r"-?(?:0|[1-9][0-9]*)").fullmatch
is_number = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").fullmatch
"""RFC 8259, section 6. Python's own conversions accept more: `1_0`, `+0`, spaces around it, other digits."""
_CANONICAL = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE_EXPONENT = b"e000"
_MANY_DIGITS = b"0" * 200


def may_be_infinite(raw: bytes) -> bool:
    """Whether the JSON text has an exponent of three digits or a number of 200 digits; others fit into a float.

    It may also be true because of a string.
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
