"""Durations as people write them: seconds, or parts with units."""

from __future__ import annotations

import re
from typing import Final

UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)
_CHARACTERS_MAX = 100
"""Longest text: the search for its parts takes quadratic time."""


def parse_duration(text: str) -> float:
    """Seconds: a number of them, or parts such as ``90s``, ``30m``, ``1h30m``, ``7d``, ``250ms``, each unit once.

    Raises:
        ValueError: the text is none of them.
    """
    fits = len(text) <= _CHARACTERS_MAX
    if fits and re.fullmatch(r"-?\d+(\.\d+)?", text, re.ASCII):
        return float(text)
    parts = _PART.findall(text) if fits else []
    units = {unit for _, unit in parts}
    if not parts or len(units) != len(parts) or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("is not a duration: write seconds, such as 90, or 90s, 30m, 24h, 7d, 1h30m, 250ms")
    return round(sum(float(number) * UNITS_S[unit] for number, unit in parts), 3)
