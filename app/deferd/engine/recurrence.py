"""When a schedule runs: its occurrences, instants in whole seconds.

`every` counts elapsed seconds. `cron` and `at` name local times: cronsim reads the expressions and finds the times. A
time that the clock skips runs at the next that exists; one that it shows twice runs once, the first time. Only an
expression that runs in each of the 24 hours goes by elapsed time instead: it runs in both hours when one comes twice,
and has no times in an hour that is left out.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import groupby, islice, takewhile
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.operations.schedules_and_calendars import Timing
from deferd.engine.caches import BoundedCache
from deferd.engine.zones import instant_by_new_rules_ms, offset_ms, zone_named

LAST_S = int(datetime(9900, 1, 1, tzinfo=UTC).timestamp())
"""No occurrence is later: the calendar ends with the year 9999."""


def run_id(name: str, at_ms: int) -> str:
    """The id of the run of a schedule at an occurrence: ``nightly:20261122T030000Z``."""
    return f"{name}:{datetime.fromtimestamp(at_ms // 1000, UTC):%Y%m%dT%H%M%SZ}"


class Recurrence:
    """The occurrences of one definition; made by `Recurrence.of`."""

    def __init__(self, rule: _CronTimes | _Every, zone: ZoneInfo, first_s: int, last_s: int) -> None:
        self.zone = zone
        self._is_local = isinstance(rule, _CronTimes) and rule.is_local
        self._rule = rule
        self._before_s = first_s - 1
        self._last_s = last_s

    @staticmethod
    def of(timing: Timing, created_ms: int) -> Recurrence:
        """The occurrences of a definition of the instant `created_ms`, from which `every` counts without a `start_at`.

        Raises:
            InvalidInput: the expression or the zone is invalid, or there is no occurrence after `created_ms`. The paths
                of the field errors start with ``"body"``.
        """
        definition = _Definition(
            timing.cron,
            None if timing.every is None else round(timing.every * 1000),
            tuple(timing.at or ()),
            tuple(timing.days or ()),
            timing.zone,
            timing.start_at,
            timing.end_at,
        )
        found = _recurrences.get((definition, created_ms))
        if found is None:
            found = _recurrence(definition, created_ms)
            text = len(definition.cron or "") + _BYTES_OF_A_TIME * len(definition.at)
            _recurrences.put((definition, created_ms), found, _RECURRENCE_BYTES + _BYTES_OF_A_CHARACTER * text)
        return found

    def offset_ms(self, at_ms: int) -> int | None:
        """How far the local times of occurrences are ahead of UTC then; None if they go by elapsed time."""
        return offset_ms(self.zone, at_ms) if self._is_local else None

    def by_new_rules(self, at_ms: int, offset_then_ms: int | None) -> int:
        """The instant that has the local time that `at_ms` had by the rules of another release of the zones.

        `offset_then_ms` is what `offset_ms` returned by those, None for an instant that counts as it is.
        """
        if offset_then_ms is None:
            return at_ms
        return instant_by_new_rules_ms(self.zone, at_ms, offset_then_ms)

    def after(self, at_ms: int) -> int | None:
        """The first occurrence later than `at_ms`, in milliseconds; None: there is none."""
        return next(self.upcoming(at_ms), None)

    def upcoming(self, at_ms: int) -> Iterator[int]:
        """The occurrences later than `at_ms`, in milliseconds, in order; faster than calls of `after`."""
        for second in self._rule.later_than(max(at_ms // 1000, self._before_s)):
            if second > self._last_s:
                return
            yield second * 1000

    def missed(self, after_ms: int, until_ms: int, most: int) -> Generator[None, None, tuple[list[int], int]]:
        """The latest occurrences in (`after_ms`, `until_ms`], at most `most`, in order, and how many there are in all.

        It yields after each. It finds only these; the others are counted by days. The number is exact for `every` and
        for up to `most`; for more, it may be off by the occurrences in the hours around changes of the clock.
        """
        latest = []
        for at_ms in islice(self.earlier(after_ms, until_ms), most):
            latest.append(at_ms)
            yield
        older = 0
        if len(latest) == most:
            older = self.count(after_ms, latest[-1] - 1000 if latest else until_ms)
        return latest[::-1], len(latest) + older

    def earlier(self, after_ms: int, until_ms: int) -> Iterator[int]:
        """The occurrences in (`after_ms`, `until_ms`], the latest first."""
        after, until = self._bounded(after_ms, until_ms)
        return (second * 1000 for second in takewhile(after.__lt__, self._rule.earlier_than(until + 1)))

    def count(self, after_ms: int, until_ms: int) -> int:
        """The number of occurrences in (`after_ms`, `until_ms`], but for those around changes of the clock."""
        after, until = self._bounded(after_ms, until_ms)
        return self._rule.count(after, until) if after < until else 0

    def _bounded(self, after_ms: int, until_ms: int) -> tuple[int, int]:
        """In seconds, within the bounds of the definition."""
        return max(after_ms // 1000, self._before_s), min(until_ms // 1000, self._last_s)


class _Every:
    """Each `every_ms` after `anchor_ms`, from the multiple `least` on, in the whole second in which that is."""

    def __init__(self, every_ms: int, anchor_ms: int, least: int) -> None:
        self._every_ms = every_ms
        self._anchor_ms = anchor_ms
        self._least = least

    def later_than(self, second: int) -> Iterator[int]:
        multiple = self._multiples_before(second + 1)
        while (found := self._second(multiple)) <= LAST_S:
            yield found
            multiple += 1

    def earlier_than(self, second: int) -> Iterator[int]:
        return map(self._second, range(self._multiples_before(second) - 1, self._least - 1, -1))

    def count(self, after: int, until: int) -> int:
        return self._multiples_before(until + 1) - self._multiples_before(after + 1)

    def _second(self, multiple: int) -> int:
        return (self._anchor_ms + multiple * self._every_ms) // 1000

    def _multiples_before(self, second: int) -> int:
        """The first multiple that is not before `second`."""
        return max(-((self._anchor_ms - second * 1000) // self._every_ms), self._least)


class _Definition(NamedTuple):
    """A `Timing` that can be hashed."""

    cron: str | None
    every_ms: int | None
    at: tuple[str, ...]
    days: tuple[str, ...]
    zone: str
    start_at: datetime | None
    end_at: datetime | None


_RECURRENCES_BYTES = 16 * 1024 * 1024
_recurrences: BoundedCache[tuple[_Definition, int], Recurrence] = BoundedCache(_RECURRENCES_BYTES)
_RECURRENCE_BYTES = 2500
_BYTES_OF_A_CHARACTER = 8
_BYTES_OF_A_TIME = 32
"""Of characters that stand for a time of day: they become up to 24 expressions."""


def _recurrence(given: _Definition, created_ms: int) -> Recurrence:
    try:
        zone = zone_named(given.zone)
    except ValueError as error:
        raise _invalid("zone", error, given.zone) from None
    # Instants have microseconds; the first whole second that is not before `start_at` counts.
    first_s = created_ms // 1000 if given.start_at is None else -(-_microseconds(given.start_at) // 1_000_000)
    last_s = LAST_S if given.end_at is None else min(_microseconds(given.end_at) // 1_000_000, LAST_S)
    if first_s > LAST_S:
        raise _invalid("start_at", "never runs: it starts after the year 9899", str(given.start_at))
    rule: _CronTimes | _Every
    if given.every_ms is None:
        rule = _CronTimes(
            [_expression(given.cron)] if given.cron is not None else _of_times(given.at, given.days), zone
        )
    elif given.start_at is None:
        rule = _Every(given.every_ms, created_ms, 1)
    else:
        rule = _Every(given.every_ms, first_s * 1000, 0)
    recurrence = Recurrence(rule, zone, first_s, last_s)
    is_bounded = given.start_at is not None or given.end_at is not None
    if is_bounded and recurrence.after(created_ms) is None:
        raise _never_runs(Recurrence(rule, zone, first_s, LAST_S).after(created_ms), zone, given.end_at)
    return recurrence


def _expression(cron: str) -> _CronExpression:
    try:
        return _parse_cron(cron)
    except ValueError as error:
        raise _invalid("cron", error, cron) from None


def _of_times(at: tuple[str, ...], days: tuple[str, ...]) -> list[_CronExpression]:
    """As few expressions as possible, at most 24: one for all hours with the same minutes, or the other way round."""
    times = sorted((int(time[:2]), int(time[3:])) for time in at)
    by_hour = _grouped(times)
    by_minute = [(hours, minutes) for minutes, hours in _grouped([(minute, hour) for hour, minute in times])]
    on = ",".join(days or "*")
    return [
        _CronExpression(f"{_listed(minutes)} {_listed(hours)} * * {on}", (0,), every_hour=False)
        for hours, minutes in min(by_hour, by_minute, key=len)
    ]


def _grouped(pairs: list[tuple[int, int]]) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The pairs as products: all first values with the same second ones, and these."""
    seconds: defaultdict[int, list[int]] = defaultdict(list)
    for first, second in pairs:
        seconds[first].append(second)
    firsts: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for first, of_first in seconds.items():
        firsts[tuple(of_first)].append(first)
    return [(tuple(found), of_them) for of_them, found in firsts.items()]


def _listed(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def _never_runs(without_end: int | None, zone: ZoneInfo, end_at: datetime | None) -> InvalidInput:
    if without_end is None:
        return _invalid("start_at", "never runs: no run comes before the year 9900")
    first = datetime.fromtimestamp(without_end // 1000, zone).isoformat()
    return _invalid("end_at", f"never runs: the first run would be {first}", str(end_at))


def _invalid(field: str, message: object, value: Any = None) -> InvalidInput:
    return InvalidInput([FieldError(("body", field), str(message), value)])


def _microseconds(instant: datetime) -> int:
    return round(instant.timestamp() * 1_000_000)


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (local times are computed without a zone)
_MINUTE_S = 60
_LONGEST_CHANGE = timedelta(hours=3)
"""No change of the clock is longer."""


class _CronTimes:
    """The instants at which any of some expressions runs, each once, in a zone. All must have the same dates."""

    def __init__(self, expressions: list[_CronExpression], zone: ZoneInfo) -> None:
        self._expressions = expressions
        self._zone = zone
        self.is_local = not any(expression.every_hour for expression in expressions)
        """Whether each local time is an instant of its own, and not elapsed time."""

    def later_than(self, second: int) -> Iterator[int]:
        """The instants later than `second`, in order."""
        return self._from(second, 1)

    def earlier_than(self, second: int) -> Iterator[int]:
        """The instants earlier than `second`, the latest first."""
        return self._from(second, -1)

    def _from(self, second: int, direction: int) -> Iterator[int]:
        found = [self._of_expression(expression, second, direction) for expression in self._expressions]
        return (instant for instant, _ in groupby(heapq.merge(*found, reverse=direction < 0)))

    def count(self, after: int, until: int) -> int:
        """The number of times that clocks showed in (`after`, `until`], but for those around changes of the clock.

        It walks over days, not over instants.
        """
        start = datetime.fromtimestamp(after, self._zone).replace(tzinfo=None, fold=0)
        end = datetime.fromtimestamp(until, self._zone).replace(tzinfo=None, fold=0)
        return _count(self._expressions, start, end)

    def _of_expression(self, expression: _CronExpression, second: int, direction: int) -> Iterator[int]:
        minutes = self._by_elapsed_time if expression.every_hour else self._by_local_time
        start = second - second % _MINUTE_S - 1 if direction > 0 else second
        seconds = expression.seconds[::direction]
        for minute in minutes(expression.minutes, start, direction):
            for within in seconds:
                if (minute + within - second) * direction > 0:
                    yield minute + within

    def _by_local_time(self, expression: str, start: int, direction: int) -> Iterator[int]:
        """The instants after `start`, or before it; cronsim treats changes of the clock."""
        local = datetime.fromtimestamp(start, self._zone)
        if direction < 0 and local.fold:
            # The clock shows these times again; later ones of them ran the first time, before `start`.
            local += _LONGEST_CHANGE
        last = start
        for found in CronSim(expression, local, reverse=direction < 0):
            instant = int(found.timestamp())
            # Times that do not exist become the same instant, and those shown again are before `start`.
            if (instant - last) * direction > 0:
                yield instant
                last = instant

    def _by_elapsed_time(self, expression: str, start: int, direction: int) -> Iterator[int]:
        """The instants after `start`, or before it, whose local time matches.

        From one change of the clock to the next, without a zone: with one, cronsim jumps over times that follow a
        change by half an hour (Lord Howe).
        """
        offset = self._offset(start)
        local = _at(start + offset)
        while True:
            for found in CronSim(expression, local, reverse=direction < 0):
                instant = _seconds(found) - offset
                if self._offset(instant) != offset:
                    break
                yield instant
                start = instant
            else:
                return
            change = self._change(start, instant, offset)
            offset = self._offset(change)
            local = _at(change - direction + offset)  # the second of the change may match
            start = change

    def _change(self, inside: int, outside: int, offset: int) -> int:
        """The second with another offset that is next to one with `offset`."""
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            if self._offset(middle) == offset:
                inside = middle
            else:
                outside = middle
        return outside

    def _offset(self, second: int) -> int:
        return _seconds(datetime.fromtimestamp(second, self._zone).replace(tzinfo=None)) - second


def _at(seconds: int) -> datetime:
    return _EPOCH + timedelta(seconds=seconds)


def _seconds(local: datetime) -> int:
    return int(local.replace(tzinfo=UTC).timestamp())


def _count(expressions: list[_CronExpression], start: datetime, end: datetime) -> int:
    """How many times there are in (`start`, `end`]. All expressions have the same dates."""
    parsed = [(CronSim(expression.minutes, _EPOCH), expression.seconds) for expression in expressions]
    dates = parsed[0][0]
    whole_day = sum(len(times.hours) * len(times.minutes) * len(seconds) for times, seconds in parsed)

    def matches(day: date) -> bool:
        return day.month in dates.months and dates.match_day(day)

    def up_to(local: datetime) -> int:
        return sum(_count_up_to(local, *times) for times in parsed) if matches(local.date()) else 0

    first = start.toordinal()
    days = sum(matches(date.fromordinal(ordinal)) for ordinal in range(first, end.toordinal()))
    return max(days * whole_day + up_to(end) - up_to(start), 0)


def _count_up_to(local: datetime, times: CronSim, seconds: tuple[int, ...]) -> int:
    """How many times of a day that matches are not later than `local`, a time of it."""
    minute = (local.hour, local.minute)
    earlier = sum((hour, shown) < minute for hour in times.hours for shown in times.minutes)
    during = local.hour in times.hours and local.minute in times.minutes
    return earlier * len(seconds) + during * sum(second <= local.second for second in seconds)


_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of month": "1 to 31, L (the last day) or LW (the last weekday)",
    "month": "1 to 12 or JAN to DEC",
    "day of week": "0 to 7 (0 and 7 are Sunday) or SUN to SAT, 5L (the last Friday) or FRI#2 (the second Friday)",
}
_SOME_MONDAY = datetime(2024, 1, 1)  # noqa: DTZ001 (expressions are read without a zone)


@dataclass(frozen=True)
class _CronExpression:
    """An expression in the form in which its times are computed."""

    minutes: str
    """Five fields: the minutes at which it runs."""
    seconds: tuple[int, ...]
    """The seconds of each of these minutes."""
    every_hour: bool
    """Whether it runs in each of the 24 hours."""


@lru_cache(maxsize=1024)
def _parse_cron(text: str) -> _CronExpression:
    """The expression of five fields, of six with seconds first, or a nickname.

    Raises:
        ValueError: it is not one; the message says what is wrong, without the field of the request.
    """
    fields = _fields(text)
    seconds, minute, hour, *date = fields if len(fields) == len(_FIELDS) else ["0", *fields]
    for name, value in zip(_FIELDS, (seconds, minute, hour, *date), strict=True):
        if not _is_valid(name, value):
            raise ValueError(f"is not a cron expression: its {name} is {value!r}; {_allowed(name, value)}")
    try:
        parsed = CronSim(" ".join((seconds, minute, hour, *date)), _SOME_MONDAY)
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
    return _CronExpression(" ".join((minute, hour, *date)), tuple(sorted(parsed.seconds)), every_hour)


def _fields(text: str) -> list[str]:
    stripped = text.strip()
    if stripped.startswith("@"):
        try:
            return _NICKNAMES[stripped.lower()].split()
        except KeyError:
            raise ValueError(f"is not a nickname: {text!r:.100}; there are {', '.join(_NICKNAMES)}") from None
    fields = stripped.upper().split()
    if len(fields) not in (len(_FIELDS) - 1, len(_FIELDS)):
        raise ValueError(
            f"is not a cron expression: {text!r:.100} must have five fields (minute, hour, day of month, month, "
            f"day of week), or six with seconds first; it has {len(fields)}"
        )
    return fields


def _is_valid(name: str, value: str) -> bool:
    position = list(_FIELDS).index(name)
    alone = ["*"] * len(_FIELDS)
    alone[position] = value
    try:
        CronSim(" ".join(alone), _SOME_MONDAY)
    except (CronSimError, AssertionError):  # the library asserts that a step begins with a number
        return False
    return True


def _allowed(name: str, value: str) -> str:
    if "-" in value and not value.startswith("L") and all(_is_valid(name, part) for part in value.split("-")):
        return "a range must not go backwards"
    return f"allowed are * and {_FIELDS[name]}, also as lists (1,2), ranges (1-5) and steps (*/5)"
