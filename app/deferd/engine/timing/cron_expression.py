"""Cron expressions, which cronsim reads: nicknames, and errors that say which field is wrong and what it may be."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from cronsim import CronSim, CronSimError

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
FIELDS = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of month": "1 to 31, L (the last day) or LW (the last weekday)",
    "month": "1 to 12 or JAN to DEC",
    "day of week": "0 to 7 (0 and 7 are Sunday) or SUN to SAT, 5L (the last Friday) or FRI#2 (the second Friday)",
}
SOME_MONDAY = datetime(2024, 1, 1)  # noqa: DTZ001 (expressions are read without a zone)


@dataclass(frozen=True)
class CronExpression:
    """An expression in the form in which its times are computed."""

    minutes: str
    """Five fields: the minutes at which it runs."""
    seconds: tuple[int, ...]
    """The seconds of each of these minutes."""
    every_hour: bool
    """Whether it runs in each of the 24 hours."""


@lru_cache(maxsize=1024)
def parse_cron(text: str) -> CronExpression:
    """The expression of five fields, of six with seconds first, or a nickname.

    Raises:
        ValueError: it is not one; the message says what is wrong, without the field of the request.
    """
    fields = _fields(text)
    seconds, minute, hour, *date = fields if len(fields) == len(FIELDS) else ["0", *fields]
    for name, value in zip(FIELDS, (seconds, minute, hour, *date), strict=True):
        if not _is_valid(name, value):
            raise ValueError(f"is not a cron expression: its {name} is {value!r}; {_allowed(name, value)}")
    try:
        parsed = CronSim(" ".join((seconds, minute, hour, *date)), SOME_MONDAY)
        next(parsed)
    except (CronSimError, StopIteration):
        day, month, weekday = date
        raise ValueError(
            f"never runs: no date is day of month {day!r} in month {month!r}"
            + (f" on day of week {weekday!r}" if weekday != "*" else "")
        ) from None
    every_hour = len(parsed.hours) == 24
    if not every_hour:
        # cronsim lets an expression with a star as its minute or hour go by elapsed time.
        minute, hour = minute.replace("*", "0-59"), hour.replace("*", "0-23")
    return CronExpression(" ".join((minute, hour, *date)), tuple(sorted(parsed.seconds)), every_hour)


def _fields(text: str) -> list[str]:
    stripped = text.strip()
    if stripped.startswith("@"):
        try:
            return NICKNAMES[stripped.lower()].split()
        except KeyError:
            raise ValueError(f"is not a nickname: {text!r:.100}; there are {', '.join(NICKNAMES)}") from None
    fields = stripped.upper().split()
    if len(fields) not in (len(FIELDS) - 1, len(FIELDS)):
        raise ValueError(
            f"is not a cron expression: {text!r:.100} must have five fields (minute, hour, day of month, month, "
            f"day of week), or six with seconds first; it has {len(fields)}"
        )
    return fields


def _is_valid(name: str, value: str) -> bool:
    position = list(FIELDS).index(name)
    alone = ["*"] * len(FIELDS)
    alone[position] = value
    try:
        CronSim(" ".join(alone), SOME_MONDAY)
    except (CronSimError, AssertionError):  # the library asserts that a step begins with a number
        return False
    return True


def _allowed(name: str, value: str) -> str:
    if "-" in value and not value.startswith("L") and all(_is_valid(name, part) for part in value.split("-")):
        return "a range must not go backwards"
    return f"allowed are * and {FIELDS[name]}, also as lists (1,2), ranges (1-5) and steps (*/5)"
