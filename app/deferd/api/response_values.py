"""The values of responses as JSON has them, from those of the engine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, cast


@lru_cache(maxsize=4096)  # the jobs of a batch share most instants
def instant_text(at_ms: int) -> str:
    """Milliseconds since the epoch as RFC 3339 in UTC, always with three decimals."""
    epoch_s, ms = divmod(at_ms, 1000)
    return f"{_to_the_second(epoch_s)}.{ms:03d}Z"


instant = cast("Callable[[int], datetime]", instant_text)
"""The text, with the type of the fields of `contract.responses`, which a client reads as a datetime: msgspec would
write a datetime with six decimals or none, and take longer."""


def instant_or_none(at_ms: int | None) -> datetime | None:
    """The same; None if there is none."""
    return None if at_ms is None else instant(at_ms)


@lru_cache(maxsize=4096)
def _to_the_second(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat()[:19]


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
