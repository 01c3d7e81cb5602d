"""Occurrences against a model that looks at each minute, over the changes of the clock of several years."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.contract.operations.schedules_and_calendars import Timing
from deferd.engine.recurrence import Recurrence
from deferd.engine.zones import zone_named
from tests.drawn_input import drawn
from tests.generators import result_of

MINUTE = 60
HOUR = 3600
DAY = 24 * HOUR
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/Nuuk",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "UTC",
)
WITH_CHANGES = ZONES[:5]
START = {year: int(datetime.fromisoformat(f"{year}-01-01T00:00:00Z").timestamp()) for year in range(2023, 2030)}


def offset(zone: str, second: int) -> int:
    found = datetime.fromtimestamp(second, zone_named(zone)).utcoffset()
    assert found is not None
    return int(found.total_seconds())


def changes(zone: str, year: int) -> list[int]:
    days = range(START[year], START[year + 1], DAY)
    with_change = (day for day in days if offset(zone, day - 1) != offset(zone, day + DAY - 1))
    hours = (hour for day in with_change for hour in range(day, day + DAY, HOUR))
    return [hour for hour in hours if offset(zone, hour) != offset(zone, hour - 1)]


def periods() -> list[tuple[str, int]]:
    """Zones with an instant, 36 hours before a change of the clock, or before the start of March."""
    found = []
    for zone in ZONES:
        for year in range(2024, 2029):
            of_year = changes(zone, year)
            assert bool(of_year) == (zone in WITH_CHANGES)
            found += [(zone, change - 36 * HOUR) for change in of_year or [START[year] + 59 * 24 * HOUR]]
    return found


PERIODS = periods()


@lru_cache(maxsize=len(PERIODS))
class Clock:
    """What a clock on the wall shows in each minute of three days, and when."""

    def __init__(self, zone: str, start: int) -> None:
        self.start = start - start % MINUTE
        self.end = self.start + 72 * HOUR
        minutes = range(self.start - 24 * HOUR, self.end + 24 * HOUR, MINUTE)
        walls = [(second, datetime.fromtimestamp(second, zone_named(zone)).replace(tzinfo=None)) for second in minutes]
        self.shown = walls
        self.first: dict[datetime, int] = {}
        latest = walls[0][1] - timedelta(minutes=1)
        for second, wall in walls:
            # The minutes between are those that the clock skips.
            while latest < wall:
                latest += timedelta(minutes=1)
                self.first[latest] = second

    def fixed(self, minutes: set[int], hours: set[int], days: set[str]) -> list[int]:
        matching = {
            second
            for wall, second in self.first.items()
            if wall.minute in minutes and wall.hour in hours and DAYS[wall.weekday()] in days
        }
        return sorted(second for second in matching if self.start < second <= self.end)

    def elapsed(self, minutes: set[int], days: set[str]) -> list[int]:
        return [
            second
            for second, wall in self.shown
            if wall.minute in minutes and DAYS[wall.weekday()] in days and self.start < second <= self.end
        ]


def occurrences(definition: dict[str, object], start: int, end: int) -> list[int]:
    recurrence = Recurrence.of(Timing.model_validate(definition), start * 1000)
    found = list(takewhile((end * 1000).__ge__, recurrence.upcoming(start * 1000)))
    assert result_of(recurrence.missed(start * 1000, end * 1000, 100_000)) == (found, len(found))
    return [at_ms // 1000 for at_ms in found]


def listed(values: set[int] | set[str]) -> str:
    return ",".join(map(str, values))


some_minutes = st.sets(st.sampled_from([0, 1, 10, 15, 29, 30, 31, 40, 45, 59]), min_size=1, max_size=4)
night_hours = st.sets(st.sampled_from([0, 1, 2, 3, 4, 12, 22, 23]), min_size=1, max_size=5)
some_days = st.just(set(DAYS)) | st.sets(st.sampled_from(DAYS), min_size=3)


@drawn(100)
@given(st.sampled_from(PERIODS), some_minutes, night_hours, some_days)
def test_times_of_day_run_once_and_skipped_ones_at_the_next_that_exists(
    period: tuple[str, int], minutes: set[int], hours: set[int], days: set[str]
) -> None:
    zone, start = period
    clock = Clock(zone, start)
    expected = clock.fixed(minutes, hours, days)
    expression = f"{listed(minutes)} {listed(hours)} * * {listed(days)}"
    assert occurrences({"cron": expression, "zone": zone}, clock.start, clock.end) == expected
    times = [f"{hour:02}:{minute:02}" for hour in hours for minute in minutes]
    assert occurrences({"at": times, "days": list(days), "zone": zone}, clock.start, clock.end) == expected


@drawn(100)
@given(st.sampled_from(PERIODS), some_minutes, some_days, st.sampled_from(["*", "0-23", "*/1"]))
def test_expressions_of_every_hour_run_whenever_the_clock_matches(
    period: tuple[str, int], minutes: set[int], days: set[str], hours: str
) -> None:
    zone, start = period
    clock = Clock(zone, start)
    expression = f"{listed(minutes)} {hours} * * {listed(days)}"
    found = occurrences({"cron": expression, "zone": zone}, clock.start, clock.end)
    assert found == clock.elapsed(minutes, days)


@pytest.mark.parametrize(
    ("zone", "time"),
    [
        ("Europe/Berlin", "02:00"),
        ("Europe/Berlin", "02:30"),
        ("America/New_York", "02:30"),
        ("America/New_York", "01:45"),
        ("Australia/Lord_Howe", "02:10"),
        ("Australia/Lord_Howe", "01:45"),
        ("America/Nuuk", "23:30"),
        ("Asia/Beirut", "00:00"),
        ("Asia/Beirut", "23:30"),
        ("Asia/Kathmandu", "00:00"),
    ],
)
def test_a_daily_time_runs_once_on_each_day_of_a_year(zone: str, time: str) -> None:
    for definition in ({"at": [time]}, {"cron": f"{int(time[3:])} {int(time[:2])} * * *"}):
        found = occurrences({**definition, "zone": zone}, START[2026] - 24 * HOUR, START[2027] + 24 * HOUR)
        in_year = [datetime.fromtimestamp(second, zone_named(zone)) for second in found]
        # One that is skipped at the end of a day runs at the first minute of the next.
        days = [(at - timedelta(minutes=1 if at.strftime("%H:%M") != time else 0)).date() for at in in_year]
        days = [day for day in days if day.year == 2026]
        assert len(days) == len(set(days)) == 365


@drawn(50)
@given(
    st.sampled_from(PERIODS),
    st.sampled_from(
        ["30 2 * * *", "*/20 1-3 * * *", "15,45 */3 * * *", "5 * * * *", "*/30 * * * * *", "*/20 45 1,2 * * *"]
    ),
    st.lists(st.integers(0, 48 * HOUR * 1000), min_size=1, max_size=3),
)
@pytest.mark.slow
def test_the_next_occurrence_is_the_same_from_every_instant_before_it(
    period: tuple[str, int], expression: str, instants: list[int]
) -> None:
    zone, start = period
    recurrence = Recurrence.of(Timing(cron=expression, zone=zone), start * 1000)
    end = start * 1000 + 48 * HOUR * 1000
    found = list(takewhile(lambda at: at <= end + 30 * HOUR * 1000, recurrence.upcoming(start * 1000)))
    assert found == sorted(set(found))
    for instant in instants:
        at_ms = start * 1000 + instant
        assert recurrence.after(at_ms) == next(at for at in found if at > at_ms)
        missed = [at for at in found if at_ms < at <= end]
        assert result_of(recurrence.missed(at_ms, end, 100_000)) == (missed, len(missed))
        assert result_of(recurrence.missed(at_ms, end, 3))[0] == missed[-3:]


def test_a_clock_that_is_put_back_by_three_hours_runs_each_time_once() -> None:
    """At 02:00 on 5 March clocks of Casey were put back to 23:00."""

    def at(text: str) -> int:
        return int(datetime.fromisoformat(text).timestamp() * 1000)

    recurrence = Recurrence.of(Timing(cron="45 1 * * *", zone="Antarctica/Casey"), at("2010-03-01T00:00Z"))
    earlier = recurrence.earlier(at("2010-03-03T12:00Z"), at("2010-03-04T23:30+08:00"))
    assert list(earlier) == [at("2010-03-05T01:45+11:00"), at("2010-03-04T01:45+11:00")]


def test_a_job_at_half_past_two_in_berlin() -> None:
    day = int(datetime.fromisoformat("2026-03-28T12:00:00Z").timestamp() * 1000)
    recurrence = Recurrence.of(Timing(cron="30 2 * * *", zone="Europe/Berlin"), day)
    spring = recurrence.after(day)
    assert spring is not None
    assert datetime.fromtimestamp(spring / 1000, recurrence.zone).isoformat() == "2026-03-29T03:00:00+02:00"
    autumn = result_of(
        recurrence.missed(day, int(datetime.fromisoformat("2026-10-25T23:00:00Z").timestamp() * 1000), 1)
    )[0][0]
    assert datetime.fromtimestamp(autumn / 1000, recurrence.zone).isoformat() == "2026-10-25T02:30:00+02:00"
