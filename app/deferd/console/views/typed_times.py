"""Times that people type, in the zone that their form names, and a new due time that they see before it is set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any, NamedTuple

from deferd.contract.limits import SPREAD_MAX_S
from deferd.contract.timestamps import format_instant, parse_instant
from deferd.engine.zones import instant_ms, zone_named

EXAMPLES = "19:00, tomorrow 9:00, 2030-01-31 09:30, 2030-01-31T09:30+01:00, now, +2h30m or -1d"
_STEP = r"\s*\d{1,9}\s*(?:s|min|m|h|d|w)"
_RELATIVE = re.compile(rf"(?:now)?\s*(?:(?P<sign>[+-])(?P<steps>(?:{_STEP})+))?", re.IGNORECASE)
_LENGTH = re.compile(rf"(?P<sign>[+-])?(?P<steps>(?:{_STEP})+)", re.IGNORECASE)
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
        length = timedelta(seconds=_length_s(relative["steps"] or ""))
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


def read_length(text: str) -> float:
    """Seconds of a length of time that was typed, such as 30m or 2h30m; with a - they are negative.

    Raises:
        ValueError: with what it must be.
    """
    typed = _LENGTH.fullmatch(text.strip())
    length_s = 0.0 if typed is None else _length_s(typed["steps"])
    if typed is None or not length_s:
        raise ValueError("a length of time, such as 30m, 2h30m or 1d")
    return -length_s if typed["sign"] == "-" else length_s


def _length_s(steps: str) -> float:
    return float(sum(int(count) * _UNITS_S[unit] for count, unit in re.findall(r"(\d+)\s*([a-z]+)", steps.lower())))


class NewDueTime(NamedTuple):
    """A new due time: as it was typed, in which zone, and the instant that this is; or the `problem` with it.

    Of many jobs each may be moved `by_s` instead, and they may be spread over `spread_s`; `given_by` and `given_spread`
    are that as it was typed. `is_seen`: the form showed what this means. So `+2h` means what it meant then.
    """

    when: str
    zone: str
    at: str | None
    problem: str | None
    is_seen: bool = False
    is_past: bool = False
    given_by: str = ""
    given_spread: str = ""
    by_s: float | None = None
    spread_s: float | None = None

    @property
    def is_read(self) -> bool:
        """Whether it says when the jobs are to be due."""
        return self.problem is None

    @property
    def seen(self) -> str:
        """What was typed, for the field `seen`."""
        spread = self.given_spread and f"over {self.given_spread}"
        return " ".join(filter(None, (self.when, self.given_by, spread, self.zone)))

    def options(self) -> dict[str, Any]:
        """The members of a reschedule of many jobs."""
        when = {"run_at": self.at} if self.by_s is None else {"by": self.by_s}
        return when if self.spread_s is None else {**when, "spread": self.spread_s}


def read_new_due_time(fields: Mapping[str, str], now_ms: int | None) -> NewDueTime:
    """The new due time in a form, whose fields `seen` and `seen_at` have what it showed."""
    when, zone = fields.get("when", "").strip(), fields.get("when_zone") or "UTC"
    by, spread = fields.get("by", "").strip(), fields.get("spread", "").strip()
    now = datetime.fromtimestamp((now_ms or 0) / 1000, UTC)
    new = NewDueTime(when, zone, None, None, given_by=by, given_spread=spread)
    is_seen = fields.get("seen") == new.seen
    if when and by:
        return new._replace(problem="Give a new due time or by how much each job moves, not both.")
    try:
        new = new._replace(spread_s=read_length(spread) if spread else None)
    except ValueError as error:
        return new._replace(problem=f"Say over which time the jobs are spread: it must be {error}.")
    if new.spread_s is not None and not 0 < new.spread_s <= SPREAD_MAX_S:
        return new._replace(problem="Jobs can be spread over more than 0 s and at most a day.")
    try:
        if by:
            return new._replace(by_s=read_length(by), is_seen=is_seen)
    except ValueError as error:
        return new._replace(problem=f"Say by how much each job moves: it must be {error}.")
    try:
        at = read_instant(when, now, zone)
        if is_seen:
            at = format_instant(parse_instant(fields.get("seen_at", "")))
    except ValueError as error:
        return new._replace(problem=f"Say when: it must be {error}.")
    except OverflowError:  # of `seen_at`
        return new._replace(problem="Say when: it must be within the years 1 to 9999.")
    return new._replace(at=at, is_seen=is_seen, is_past=parse_instant(at) <= now)
