"""Opening hours against a model that looks at every minute, over changes of the zones' offsets."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import accumulate, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.contract.errors import InvalidInput
from deferd.contract.windows import Window
from deferd.engine.openings import Openings, place, read_openings, spread_of
from deferd.engine.zones import zone_named
from tests.drawn_input import drawn

_MINUTE = timedelta(minutes=1)
_NAMES = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CHANGES = {
    "Europe/Berlin": (datetime(2026, 3, 27, tzinfo=UTC), datetime(2026, 10, 23, tzinfo=UTC)),
    "America/New_York": (datetime(2026, 3, 6, tzinfo=UTC), datetime(2026, 10, 30, tzinfo=UTC)),
    "Australia/Lord_Howe": (datetime(2026, 4, 3, tzinfo=UTC), datetime(2026, 10, 2, tzinfo=UTC)),
    "Asia/Kathmandu": (datetime(2026, 6, 5, tzinfo=UTC),),
    "UTC": (datetime(2026, 12, 30, tzinfo=UTC),),
    "Pacific/Apia": (datetime(2011, 12, 28, tzinfo=UTC),),  # 30 December 2011 did not exist there
}
_DAYS = 5


def window(**fields: object) -> Window:
    return Window.model_validate(fields)


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def at(text: str) -> int:
    return ms(datetime.fromisoformat(text))


class LocalMinutes:
    """Each minute of some days: its instant in ms, and the latest time of a clock on the wall until then, and the
    earliest from then on."""

    def __init__(self, zone: str, begin: datetime) -> None:
        tz = zone_named(zone)
        instants = [begin + _MINUTE * minute for minute in range(-3 * 1440, (_DAYS + 3) * 1440)]
        self.locals = [instant.astimezone(tz).replace(tzinfo=None) for instant in instants]
        self.latest = [*accumulate(self.locals, max)]
        self.earliest = [*accumulate(reversed(self.locals), min)][::-1]
        self.first_ms = ms(instants[0])


local_minutes = cache(LocalMinutes)


def modelled(hours: Window, begin: datetime) -> list[bool]:
    """Whether it is open, for each minute: from the first that shows the opening time or a later one, until the last
    that shows the closing time, or if none does, the last that shows an earlier one."""
    minutes = local_minutes(hours.zone, begin)
    is_open = [False] * len(minutes.locals)
    opening, closing = (int(text[:2]) * 60 + int(text[3:]) for text in (hours.from_, hours.to))
    day, last_day = minutes.locals[0].date(), minutes.locals[-1].date()
    while day <= last_day:
        midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001
        opens = midnight + _MINUTE * opening
        closes = midnight + _MINUTE * (closing + (1440 if closing < opening else 0))
        if _NAMES[day.weekday()] in (hours.days or _NAMES) and day not in hours.except_:
            start = bisect_left(minutes.latest, opens)
            last = bisect_right(minutes.earliest, closes) - 1
            for index in range(start, last + (minutes.locals[last] < closes)):
                is_open[index] = True
        day += timedelta(days=1)
    return is_open


def check(windows: list[Window], begin: datetime) -> None:
    """Compare with the model at each minute at which it begins or ends to be open, and at each 61st of the others."""
    openings = Openings.of(windows)
    by_minute = [any(each) for each in zip(*(modelled(hours, begin) for hours in windows), strict=True)]
    first_ms = local_minutes(windows[0].zone, begin).first_ms
    since, until = 3 * 1440, (3 + _DAYS) * 1440
    following = first_ms + (len(by_minute) - 1) * 60_000 if by_minute[-1] else None
    for index in range(len(by_minute) - 2, since - 1, -1):
        instant = first_ms + index * 60_000
        if by_minute[index]:
            following = instant
        changes = not by_minute[index - 1] == by_minute[index] == by_minute[index + 1]
        if index < until and following is not None and (changes or index % 61 == 0):
            assert openings.next_open(instant) == following, (windows, instant)
            last_ms = instant + 59_999
            assert openings.next_open(last_ms) == (last_ms if by_minute[index] else following), (windows, instant)


@pytest.mark.parametrize("zone", _CHANGES)
@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        ("09:00", "17:00"),
        ("22:00", "06:00"),
        ("02:30", "02:45"),
        ("02:15", "04:00"),
        ("01:30", "02:00"),
        ("01:00", "02:30"),
        ("00:00", "24:00"),
        ("02:20", "02:10"),
    ],
)
def test_opens_as_the_clock_on_the_wall_says(zone: str, opening: str, closing: str) -> None:
    for begin in _CHANGES[zone]:
        check([window(zone=zone, **{"from": opening, "to": closing})], begin)


_MINUTES_OF_DAY = range(24 * 60 + 1)
_MINUTES_OF_CHANGES = range(4 * 60)


def made_windows(seed: int) -> tuple[list[Window], datetime, Random]:
    """Up to three windows of a zone, around a change of its offset; Hypothesis would draw each part for longer."""
    made = Random(seed)
    zone = made.choice(sorted(_CHANGES))
    begin = made.choice(_CHANGES[zone])
    windows = []
    for _ in range(made.randint(1, 3)):
        opening, closing = made.sample(made.choice([_MINUTES_OF_DAY, _MINUTES_OF_CHANGES]), 2)
        dates = [(begin + timedelta(days=made.randint(0, _DAYS))).date() for _ in range(made.randint(0, 3))]
        fields = {"from": _time(opening % (24 * 60)), "to": _time(closing), "except": dates}
        if fields["from"] != fields["to"]:
            days = made.sample(_NAMES, made.randint(1, 7)) if made.random() < 0.5 else None
            windows.append(window(zone=zone, days=days, **fields))
    return windows or [window(zone=zone)], begin, made


def _time(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


_SEEDS = st.integers(0, 2**32)


@drawn(100)
@given(_SEEDS)
def test_drawn_windows_are_open_as_the_model_says(seed: int) -> None:
    windows, begin, _ = made_windows(seed)
    check(windows, begin)


@drawn(300)
@given(_SEEDS)
def test_a_placed_time_and_the_last_open_instant_are_open(seed: int) -> None:
    windows, begin, made = made_windows(seed)
    openings = Openings.of(windows)
    for _ in range(5):
        asked, offset = ms(begin) + made.randint(0, 40 * 86_400_000), made.randint(0, 86_400_000)
        placed = place(asked, offset, openings)
        assert placed >= asked + offset
        assert placed == openings.next_open(openings.next_open(asked) + offset)
        assert openings.next_open(placed) == placed
        assert place(asked, offset, None) == asked + offset
        last, following = openings.last_open(asked), openings.next_open(asked)
        assert last is not None
        assert openings.next_open(last) == last
        if following == asked:
            assert last == asked
        else:
            assert last < asked < openings.next_open(last + 1) == following


def test_a_clock_that_is_put_back_by_three_hours_shows_the_end_of_a_window_again() -> None:
    """At 02:00 on 5 March clocks of Casey were put back to 23:00."""
    hours = Openings.of([window(zone="Antarctica/Casey", **{"from": "12:00", "to": "23:30"})])
    assert hours.next_open(at("2010-03-05T01:59+11:00")) == at("2010-03-05T01:59+11:00")
    assert hours.next_open(at("2010-03-04T23:30+08:00")) == at("2010-03-05T12:00+08:00")


def test_a_window_of_the_next_day_may_open_before_the_clock_is_put_back_over_midnight() -> None:
    """At 00:01 on 7 November clocks of St. John's were put back to 23:01."""
    hours = Openings.of([window(zone="America/St_Johns", **{"from": "00:00", "to": "06:00"})])
    assert hours.last_open(at("2010-11-06T23:30-03:30")) == at("2010-11-06T23:30-03:30")


def test_an_overnight_window_belongs_to_the_day_of_its_opening() -> None:
    hours = Openings.of([window(days=["fri"], **{"from": "22:00", "to": "06:00", "except": ["2026-11-27"]})])
    assert hours.next_open(at("2026-11-21T05:59Z")) == at("2026-11-21T05:59Z")
    assert hours.next_open(at("2026-11-21T06:00Z")) == at("2026-12-04T22:00Z")


def test_excepted_dates_close_only_their_own_window() -> None:
    christmas = [date(2026, 12, 25)]
    hours = Openings.of([window(**{"to": "12:00", "except": christmas}), window(**{"from": "11:00", "to": "13:00"})])
    assert hours.next_open(at("2026-12-25T00:00Z")) == at("2026-12-25T11:00Z")


def test_looks_over_years_of_excepted_dates() -> None:
    sundays = [date(2026, 11, 22) + timedelta(weeks=weeks) for weeks in range(400)]
    hours = Openings.of([window(days=["sun"], **{"except": sundays})])
    assert hours.next_open(at("2026-11-22T00:00Z")) == at("2034-07-23T00:00Z")


def test_is_open_on_each_day_and_night_of_two_years() -> None:
    always = Openings.of([window(zone="America/New_York")])
    nights = Openings.of([window(**{"from": "22:00", "to": "06:00"})])
    for first, second in pairwise(range(at("2026-01-01T00:00Z"), at("2028-01-01T00:00Z"), 86_400_000)):
        assert always.next_open(first) == first
        assert nights.next_open(first) == first
        assert nights.next_open(first + 6 * 3_600_000) == second - 2 * 3_600_000


@pytest.mark.parametrize(
    ("fields", "path", "message"),
    [
        ({"zone": "Europe/Atlantis"}, (1, "zone"), "is not a time zone"),
        ({"zone": "../UTC"}, (1, "zone"), "is not a time zone"),
        ({"from": "09:00", "to": "09:00"}, (1, "to"), "never opens"),
    ],
)
def test_refuses_windows_that_never_open(fields: dict[str, str], path: tuple[int, str], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Openings.of([window(), window(**fields)])
    (error,) = refused.value.field_errors
    assert error.path == path
    assert message in error.message


def test_equal_windows_share_their_openings() -> None:
    assert read_openings('{"zone":"Asia/Kathmandu"}') is read_openings('{"zone":"Asia/Kathmandu"}')


def test_spreads_evenly_and_always_alike() -> None:
    assert spread_of("order-1042", 3_600_000) == 1_911_139
    assert {spread_of(f"job-{number}", 3) for number in range(100)} == {0, 1, 2, 3}
    assert spread_of("any", 0) == 0
    buckets = [0] * 10
    for number in range(10_000):
        buckets[spread_of(f"job-{number}", 99_999) // 10_000] += 1
    assert min(buckets) > 850
    assert max(buckets) < 1150
