"""The instants of cron expressions in a zone, in seconds since 1970, forwards and backwards, as cronsim finds them."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import groupby
from zoneinfo import ZoneInfo

from cronsim import CronSim

from deferd.engine.timing.cron_expression import CronExpression

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 (local times are computed without a zone)
MINUTE_S = 60
LONGEST_CHANGE = timedelta(hours=3)
"""No change of the clock is longer."""


class CronTimes:
    """The instants at which any of some expressions runs, each once, in a zone. All must have the same dates."""

    def __init__(self, expressions: list[CronExpression], zone: ZoneInfo) -> None:
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

    def _of_expression(self, expression: CronExpression, second: int, direction: int) -> Iterator[int]:
        minutes = self._by_elapsed_time if expression.every_hour else self._by_local_time
        start = second - second % MINUTE_S - 1 if direction > 0 else second
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
            local += LONGEST_CHANGE
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
    return EPOCH + timedelta(seconds=seconds)


def _seconds(local: datetime) -> int:
    return int(local.replace(tzinfo=UTC).timestamp())


def _count(expressions: list[CronExpression], start: datetime, end: datetime) -> int:
    """How many times there are in (`start`, `end`]. All expressions have the same dates."""
    parsed = [(CronSim(expression.minutes, EPOCH), expression.seconds) for expression in expressions]
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
