"""Durations and instants of Python as the HTTP contract writes them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from deferd.contract.errors import FieldError, InvalidInput

Seconds = float | timedelta
"""A duration: a number of seconds, or a timedelta."""


def seconds(value: Seconds) -> float:
    """A duration as a number of seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def instant(name: str, value: datetime) -> str:
    """An instant as RFC 3339.

    Raises:
        InvalidInput: it has no zone, or is outside the years 1 to 9999 in UTC.
    """
    if not isinstance(value, datetime):
        raise InvalidInput([FieldError((name,), "must be a datetime with a zone", value)])
    if value.utcoffset() is None:
        message = "must have a zone, as datetime.now(UTC) has: without one it means another instant in each zone"
        raise InvalidInput([FieldError((name,), message, value.isoformat())])
    try:
        return value.astimezone(UTC).isoformat(timespec="milliseconds")
    except OverflowError:
        message = "must be within the years 1 to 9999 of UTC"
        raise InvalidInput([FieldError((name,), message, value.isoformat())]) from None
