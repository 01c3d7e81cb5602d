"""Times that people type, in the zone that their form names, and a new due time that they see before it is set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from typing import NamedTuple

from deferd.contract.timestamps import format_instant, parse_instant
from deferd.engine.zones import instant_ms, zone_named

EXAMPLES = "19:00, tomorrow 9:00, 2030-01-31 09:30, 2030-01-31T09:30+01:00, now, +2h30m or -1d"
_STEP = r"\s*\d{1,9}\s*(?:s|min|m|h|d|w)"
_RELATIVE = re.compile(rf"(?:now)?\s*(?:(?P<sign>[+-])(?P<steps>(?:{_STEP})+))?", re.IGNORECASE)
_UNITS_S = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LOCAL = re.compile(
    r"(?:(?P<day>today|tomorrow|yesterday|\d{4}-\d\d-\d\d)(?:(?:T|\s+)(?=\d)|$))?"
    r"(?P<clock>\d{1,2}:\d\d(?::\d\d(?:\.\d{1,6})?)?)?"
    r"\s*(?P<offset>Z|UTC|[+-]\d\d:?\d\d)?",
    re.IGNORECASE,
)
_DAYS = {"today": 0, "tomorrow": 1, "yesterday": -1}
_ZONE_SHOWN = 60


def read_instant(text: str, now: datetime, zone: str = "UTC") -> str:
    """An instant that was typed, as RFC 3339: relative to `now`, or what the clocks of `zone` show.

    A time of day without a day is today's. An offset counts in place of the zone. Of a time that clocks show twice it
    is the first; one that they skip is the instant of that change.

    Raises:
        ValueError: with what it must be, such as "an instant, such as 19:00".
    """
    typed = text.strip()
    try:
        at = _read(typed, now, zone)
    except (ValueError, OverflowError) as error:
        raise ValueError(str(error) if isinstance(error, _UnknownZone) else f"an instant, such as {EXAMPLES}") from None
    return format_instant(at)


class _UnknownZone(ValueError):
    pass


def _read(typed: str, now: datetime, zone: str) -> datetime:
    relative = _RELATIVE.fullmatch(typed)
    if relative is not None and typed:
        steps = re.findall(r"(\d+)\s*([a-z]+)", (relative["steps"] or "").lower())
        length = timedelta(seconds=sum(int(count) * _UNITS_S[unit] for count, unit in steps))
        return now - length if relative["sign"] == "-" else now + length
    local = _LOCAL.fullmatch(typed)
    if local is None or not (local["day"] or local["clock"]):
        raise ValueError(typed)
    if local["offset"]:
        offset = local["offset"].upper()
        tz = UTC if offset in {"Z", "UTC"} else datetime.strptime(offset, "%z").tzinfo
        return datetime.combine(_day(local["day"], now.astimezone(tz)), _clock(local["clock"]), tz).astimezone(UTC)
    try:
        named = zone_named(zone)
    except ValueError:
        raise _UnknownZone(f"in a known time zone, which {zone[:_ZONE_SHOWN]} is not") from None
    at = datetime.combine(_day(local["day"], now.astimezone(named)), _clock(local["clock"]))
    return datetime.fromtimestamp(instant_ms(named, at) / 1000, UTC)


def _day(text: str | None, now: datetime) -> datetime:
    by_name = _DAYS.get((text or "today").lower())
    return datetime.fromisoformat(text or "") if by_name is None else now + timedelta(days=by_name)


def _clock(text: str | None) -> time:
    return time.fromisoformat("00:00" if text is None else f"0{text}" if text[1] == ":" else text)


class NewDueTime(NamedTuple):
    """A new due time: as it was typed, in which zone, and the instant that this is; or the `problem` with it.

    `is_seen`: the form showed this instant for what is typed. So `+2h` means what it meant when it was shown.
    """

    when: str
    zone: str
    at: str | None
    problem: str | None
    is_seen: bool = False
    is_past: bool = False


def read_new_due_time(fields: Mapping[str, str], now_ms: int | None) -> NewDueTime:
    """The new due time in a form, whose fields `seen` and `seen_at` have what it showed."""
    when, zone = fields.get("when", "").strip(), fields.get("when_zone") or "UTC"
    now = datetime.fromtimestamp((now_ms or 0) / 1000, UTC)
    try:
        if fields.get("seen") == f"{when} {zone}":
            at = format_instant(parse_instant(fields.get("seen_at", "")))
            return NewDueTime(when, zone, at, None, is_seen=True, is_past=parse_instant(at) <= now)
        at = read_instant(when, now, zone)
    except ValueError as error:
        return NewDueTime(when, zone, None, f"Say when: it must be {error}.")
    return NewDueTime(when, zone, at, None, is_past=parse_instant(at) <= now)
