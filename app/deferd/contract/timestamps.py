"""Instants as text: the one parser of RFC 3339 that service, client and command line share."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_SHAPE = re.compile(
    r"\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII
)
_SECOND = slice(17, 19)


def parse_instant(text: str) -> datetime:
    """The instant that an RFC 3339 timestamp names, to the microsecond; further digits are cut off.

    A leap second, 23:59:60 in UTC, is the second after it, 00:00:00 of the next day: neither Python nor the store has
    a name for it. It may also be written with an offset, such as ``2016-12-31T18:59:60-05:00``. It is taken on every
    date, because which months end with one is known only half a year ahead (RFC 3339, section 5.7). Second 60 of any
    other minute is refused.

    Raises:
        ValueError: the text is no such timestamp; the message says what is wrong with it.
    """
    text = text.upper()
    if _SHAPE.fullmatch(text) is None:
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
