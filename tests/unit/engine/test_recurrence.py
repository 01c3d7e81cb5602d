"""Bounds, intervals, missed runs and errors of recurrences, and what they do when the clock changes."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.contract.errors import InvalidInput
from deferd.contract.operations.schedules_and_calendars import Timing
from deferd.engine.recurrence import Recurrence, run_id
from deferd.engine.zones import zone_named
from tests.drawn_input import drawn
from tests.generators import result_of

DAY_MS = 86_400_000


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


CREATED = ms("2026-11-22T12:00:00.400Z")


def recurrence(**definition: Any) -> Recurrence:
    return Recurrence.of(Timing.model_validate(definition), CREATED)


def first(count: int, after: int = CREATED, **definition: Any) -> list[str]:
    of = recurrence(**definition)
    return [datetime.fromtimestamp(at / 1000, of.zone).isoformat() for at in islice(of.upcoming(after), count)]


def test_the_id_of_a_run_is_its_instant_in_utc() -> None:
    assert run_id("nightly", ms("2026-11-22T04:00:00+01:00")) == "nightly:20261122T030000Z"


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ({"cron": "*/5 9-17 * * mon-fri"}, ["2026-11-23T09:00:00+00:00", "2026-11-23T09:05:00+00:00"]),
        ({"cron": "0 9 * jan MON#1"}, ["2027-01-04T09:00:00+00:00", "2028-01-03T09:00:00+00:00"]),
        ({"cron": "0 9 L * *"}, ["2026-11-30T09:00:00+00:00", "2026-12-31T09:00:00+00:00"]),
        ({"cron": "0 9 LW * *"}, ["2026-11-30T09:00:00+00:00", "2026-12-31T09:00:00+00:00"]),
        ({"cron": "0 9 * * 5L"}, ["2026-11-27T09:00:00+00:00", "2026-12-25T09:00:00+00:00"]),
        ({"cron": "0 0 29 2 *"}, ["2028-02-29T00:00:00+00:00", "2032-02-29T00:00:00+00:00"]),
        ({"cron": "0 0 1 * mon"}, ["2026-11-23T00:00:00+00:00", "2026-11-30T00:00:00+00:00"]),
        ({"cron": "7,30 0 12 * * *"}, ["2026-11-22T12:00:07+00:00", "2026-11-22T12:00:30+00:00"]),
        ({"cron": "@hourly"}, ["2026-11-22T13:00:00+00:00", "2026-11-22T14:00:00+00:00"]),
        ({"cron": "@DAILY", "zone": "Asia/Kathmandu"}, ["2026-11-23T00:00:00+05:45", "2026-11-24T00:00:00+05:45"]),
        ({"cron": "@midnight"}, ["2026-11-23T00:00:00+00:00", "2026-11-24T00:00:00+00:00"]),
        ({"cron": "@weekly"}, ["2026-11-29T00:00:00+00:00", "2026-12-06T00:00:00+00:00"]),
        ({"cron": "@monthly"}, ["2026-12-01T00:00:00+00:00", "2027-01-01T00:00:00+00:00"]),
        ({"cron": "@yearly"}, ["2027-01-01T00:00:00+00:00", "2028-01-01T00:00:00+00:00"]),
        ({"cron": "@annually"}, ["2027-01-01T00:00:00+00:00", "2028-01-01T00:00:00+00:00"]),
        ({"at": ["17:30", "09:00"]}, ["2026-11-22T17:30:00+00:00", "2026-11-23T09:00:00+00:00"]),
        ({"at": ["09:00"], "days": ["sat"]}, ["2026-11-28T09:00:00+00:00", "2026-12-05T09:00:00+00:00"]),
        ({"every": 90}, ["2026-11-22T12:01:30+00:00", "2026-11-22T12:03:00+00:00"]),
        ({"every": 1.4}, ["2026-11-22T12:00:01+00:00", "2026-11-22T12:00:03+00:00"]),
        (
            {"every": 90, "start_at": "2026-11-22T12:00:10.2Z"},
            ["2026-11-22T12:00:11+00:00", "2026-11-22T12:01:41+00:00"],
        ),
        (
            {"every": 3600, "start_at": "2026-11-01T00:30:00Z"},
            ["2026-11-22T12:30:00+00:00", "2026-11-22T13:30:00+00:00"],
        ),
        (
            {"cron": "0 * * * *", "start_at": "2026-11-22T15:00:00Z"},
            ["2026-11-22T15:00:00+00:00", "2026-11-22T16:00:00+00:00"],
        ),
        ({"cron": "0 * * * *", "end_at": "2026-11-22T13:00:00Z"}, ["2026-11-22T13:00:00+00:00"]),
        ({"every": 60, "end_at": "2026-11-22T12:02:59Z"}, ["2026-11-22T12:01:00+00:00", "2026-11-22T12:02:00+00:00"]),
    ],
)
def test_the_first_two_occurrences(definition: dict[str, Any], expected: list[str]) -> None:
    assert first(2, **definition) == expected


def test_many_times_of_day_are_all_found() -> None:
    regular = [f"{hour:02}:{minute:02}" for hour in range(24) for minute in (0, 15, 30, 45)]
    odd = [f"{index // 4:02}:{index * 7 % 60:02}" for index in range(96)]
    for times in (regular, odd):
        found = first(96, ms("2026-11-22T23:59:59Z"), at=times, zone="UTC")
        assert found == [f"2026-11-23T{time}:00+00:00" for time in sorted(times)]


def test_none_is_after_the_last() -> None:
    bounded = recurrence(cron="@hourly", end_at="2026-11-22T13:00:00Z")
    assert bounded.after(CREATED) == ms("2026-11-22T13:00:00Z")
    assert bounded.after(ms("2026-11-22T13:00:00Z")) is None
    assert result_of(bounded.missed(CREATED, CREATED + DAY_MS, 10)) == ([ms("2026-11-22T13:00:00Z")], 1)


def test_none_is_before_the_start() -> None:
    later = recurrence(cron="@hourly", start_at="2026-11-22T20:00:00Z")
    assert result_of(later.missed(CREATED, ms("2026-11-22T19:59:59Z"), 10)) == ([], 0)
    assert result_of(later.missed(CREATED, ms("2026-11-22T20:00:00Z"), 10)) == ([ms("2026-11-22T20:00:00Z")], 1)
    assert result_of(later.missed(CREATED, CREATED, 10)) == ([], 0)


@pytest.mark.parametrize(
    ("definition", "in_a_year"),
    [
        ({"every": 1}, 365 * 86_400),
        ({"every": 1.5}, 365 * 86_400 * 2 // 3),
        ({"cron": "* * * * *"}, 365 * 1440),
        ({"cron": "* * * * * *", "zone": "Asia/Kathmandu"}, 365 * 86_400),
        ({"cron": "0 2 * * *", "zone": "Europe/Berlin"}, 365),
        ({"at": ["02:00", "02:30"], "zone": "Europe/Berlin"}, 730),
    ],
)
def test_a_year_of_missed_runs_is_counted_and_the_latest_are_found(definition: dict[str, Any], in_a_year: int) -> None:
    of = recurrence(**definition)
    until = CREATED + 365 * DAY_MS
    latest, in_all = result_of(of.missed(CREATED, until, 3))
    assert in_all == in_a_year
    assert len(latest) == 3
    assert latest == list(takewhile(until.__ge__, of.upcoming(latest[0] - 1)))
    assert result_of(of.missed(CREATED, until, 0)) == ([], in_a_year)


@drawn(300)
@given(
    every=st.integers(1000, 400_000),
    created=st.integers(CREATED, CREATED + 10_000),
    at_ms=st.integers(CREATED - 10_000, CREATED + 400_000),
    long=st.integers(0, 200_000),
)
def test_every_is_arithmetic(every: int, created: int, at_ms: int, long: int) -> None:
    of = Recurrence.of(Timing(every=every / 1000), created)
    expected = [(created + multiple * every) // 1000 * 1000 for multiple in range(1, 620_000 // every + 3)]
    following = next(at for at in expected if at > at_ms)
    assert of.after(at_ms) == following
    missed = [at for at in expected if at_ms < at <= at_ms + long]
    assert result_of(of.missed(at_ms, at_ms + long, 5)) == (missed[-5:], len(missed))


@pytest.mark.parametrize(
    ("definition", "field", "message"),
    [
        ({"cron": "* * * *"}, "cron", "'* * * *' must have five fields"),
        ({"cron": ""}, "cron", "it has 0"),
        ({"cron": "0 25 * * *"}, "cron", "its hour is '25'; allowed are * and 0 to 23"),
        ({"cron": "60 * * * *"}, "cron", "its minute is '60'"),
        ({"cron": "60 * * * * *"}, "cron", "its second is '60'"),
        ({"cron": "*/0 * * * *"}, "cron", "its minute is '*/0'"),
        ({"cron": "0 0 32 * *"}, "cron", "its day of month is '32'"),
        ({"cron": "0 0 * foo *"}, "cron", "its month is 'FOO'; allowed are * and 1 to 12 or JAN to DEC"),
        ({"cron": "0 0 * * friday"}, "cron", "its day of week is 'FRIDAY'"),
        ({"cron": "0 0 * * fri-mon"}, "cron", "a range must not go backwards"),
        ({"cron": "0 0 L-3 * *"}, "cron", "its day of month is 'L-3'; allowed are"),
        ({"cron": "0 0 * * mon#6"}, "cron", "its day of week is 'MON#6'"),
        ({"cron": "0 0 * * mon#1/2"}, "cron", "its day of week is 'MON#1/2'"),
        ({"cron": "@reboot"}, "cron", "is not a nickname: '@reboot'; there are @hourly, @daily"),
        ({"cron": "0 0 30 2 *"}, "cron", "never runs: no date is day of month '30' in month '2'"),
        ({"cron": "0 0 31 4,6 *"}, "cron", "never runs: no date is day of month '31' in month '4,6'"),
        ({"cron": "0 0 */31 2 mon#2"}, "cron", "on day of week 'MON#2'"),
        ({"cron": "@daily", "zone": "Mars/Base"}, "zone", "is not a time zone of the IANA database"),
        ({"every": 5, "zone": "../UTC"}, "zone", "is not a time zone of the IANA database"),
        ({"every": 5, "zone": "Europe//Berlin"}, "zone", "is not a time zone of the IANA database"),
        ({"every": 5, "zone": "./UTC"}, "zone", "is not a time zone of the IANA database"),
        ({"cron": "@yearly", "end_at": "2026-12-01T00:00:00Z"}, "end_at", "the first run would be 2027-01-01T00:00:00"),
        (
            {"every": 60, "end_at": "2026-11-22T12:00:30Z"},
            "end_at",
            "never runs: the first run would be 2026-11-22T12:01:00",
        ),
        ({"every": 60, "start_at": "9999-01-01T00:00:00Z"}, "start_at", "never runs: it starts after the year 9899"),
        ({"cron": "0 0 29 2 *", "start_at": "9899-01-01T00:00:00Z"}, "start_at", "no run comes before the year 9900"),
    ],
)
def test_a_refused_definition_names_the_field_and_what_is_wrong(
    definition: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(InvalidInput) as raised:
        recurrence(**definition)
    (error,) = raised.value.field_errors
    assert error.path == ("body", field)
    assert message in error.message


@drawn(500)
@given(st.text(st.sampled_from("0123456789*/-,#LWmonjafe @?"), max_size=30))
def test_any_text_is_a_recurrence_or_a_field_error(text: str) -> None:
    try:
        of = recurrence(cron=text)
    except InvalidInput as invalid:
        fields = [error.path for error in invalid.field_errors]
    else:
        fields = []
        assert of.after(CREATED) is not None
    assert fields in ([], [("body", "cron")])


def test_recurrences_are_kept() -> None:
    assert recurrence(cron="0 3 * * *") is recurrence(cron="0 3 * * *")


# Changes of the clock

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
