"""JSON numbers beyond the range of a float, which the parser turns into infinity without an error."""

from __future__ import annotations

_CANONICAL = bytes.maketrans(b"123456789E", b"000000000e")
_LARGE_EXPONENT = b"e000"
_MANY_DIGITS = b"0" * 200


def may_be_infinite(raw: bytes) -> bool:
    """Whether the JSON text has an exponent of three digits or a number of 200 digits; others fit into a float.

    It may also be true because of a string.
    """
    canonical = raw.translate(_CANONICAL, b"+")
    return _LARGE_EXPONENT in canonical or _MANY_DIGITS in canonical
