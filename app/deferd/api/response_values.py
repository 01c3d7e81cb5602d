"""Turns values of the engine into values of JSON responses."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from deferd.contract.timestamps import instant, instant_text

__all__ = ["instant", "instant_or_none", "instant_text", "seconds", "whole"]


def instant_or_none(at_ms: int | None) -> datetime | None:
    """`instant`; None if there is none."""
    return None if at_ms is None else instant(at_ms)


def seconds(duration_ms: int) -> int | float:
    """Milliseconds as seconds; a whole number of seconds has no decimals."""
    return duration_ms / 1000 if duration_ms % 1000 else duration_ms // 1000


def whole(value: Any) -> Any:
    """60 for 60.0, as people write it, also in lists and objects."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list() | tuple():
            return [whole(inner) for inner in value]
        case dict():
            return {name: whole(inner) for name, inner in value.items()}
        case _:
            return value
