"""RFC 3339 timestamps: the one parser and formatter of service, client and command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import cast

_RFC3339 = re.compile(
    r"\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII
)
_SECOND = slice(17, 19)


def format_instant(at: datetime) -> str:
    """``2030-01-31T09:30:00.000Z``: an aware datetime in UTC, cut to the millisecond."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@lru_cache(maxsize=4096)  # the jobs of a batch share most instants
def instant_text(at_ms: int) -> str:
    """Milliseconds since the epoch as RFC 3339 in UTC, always with three decimals."""
    epoch_s, ms = divmod(at_ms, 1000)
    return f"{_to_the_second(epoch_s)}.{ms:03d}Z"


@lru_cache(maxsize=4096)
def instant_bytes(at_ms: int) -> bytes:
    """The same as ASCII."""
    return f"{_to_the_second(at_ms // 1000)}.{at_ms % 1000:03d}Z".encode()


instant = cast("Callable[[int], datetime]", instant_text)
"""The text, with the type of the fields of `contract.operations`, which a client reads as a datetime: msgspec would
write a datetime with six decimals or none, and take longer."""


@lru_cache(maxsize=4096)
def _to_the_second(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).isoformat()[:19]


def parse_instant(text: str) -> datetime:
    """The instant of an RFC 3339 timestamp, truncated to the microsecond.

    A leap second, 23:59:60 in UTC, becomes 00:00:00 of the next day: neither Python nor the store can represent it. It
    may also be written with an offset, such as ``2016-12-31T18:59:60-05:00``. It is accepted on every date, because
    leap seconds are announced only half a year ahead (RFC 3339, section 5.7). Second 60 of any other minute is refused.

    Raises:
        ValueError: the text is not such a timestamp; the message says why.
    """
    text = text.upper()
    if _RFC3339.fullmatch(text) is None:
        raise ValueError("it must look like 2030-01-31T09:30:00.000Z or 2030-01-31T10:30:00+01:00")
    if text[_SECOND] != "60":
        return datetime.fromisoformat(text)
    before = datetime.fromisoformat(f"{text[: _SECOND.start]}59{text[_SECOND.stop :]}")
    try:
        in_utc = before.astimezone(UTC)
        after = before + timedelta(seconds=1)
    except OverflowError:
        raise ValueError("it must be within the years 1 to 9999") from None
    if (in_utc.hour, in_utc.minute) != (23, 59):
        raise ValueError("second 60 must be a leap second, which is 23:59:60 in UTC")
    return after
