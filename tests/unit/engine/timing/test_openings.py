"""Opening hours against a model that looks at every minute, over changes of the zones' offsets."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.contract.errors import InvalidInput
from deferd.contract.windows import Window
from deferd.engine.timing.openings import Openings, place, read_openings, spread_of
from deferd.engine.timing.zones import zone_named
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


@cache
def local_minutes(zone: str, begin: datetime) -> list[tuple[datetime, datetime]]:
    """Each minute of some days: its instant, and what the clock on the wall says."""
    tz = zone_named(zone)
    instants = [begin + _MINUTE * minute for minute in range(-3 * 1440, (_DAYS + 3) * 1440)]
    return [(instant, instant.astimezone(tz).replace(tzinfo=None)) for instant in instants]


def modelled(hours: Window, begin: datetime) -> list[bool]:
    """Whether it is open, for each minute: from the first that shows the opening time or a later one, until the last
    that shows the closing time, or if none does, the last that shows an earlier one."""
    minutes = local_minutes(hours.zone, begin)
    is_open = [False] * len(minutes)
    opening, closing = (int(text[:2]) * 60 + int(text[3:]) for text in (hours.from_, hours.to))
    first_day, last_day = minutes[0][1].date(), minutes[-1][1].date()
    day = first_day
    while day <= last_day:
        midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001
        opens = midnight + _MINUTE * opening
        closes = midnight + _MINUTE * (closing + (1440 if closing < opening else 0))
        if _NAMES[day.weekday()] in (hours.days or _NAMES) and day not in hours.except_:
            start = next((i for i, (_, local) in enumerate(minutes) if local >= opens), len(minutes))
            end = max((i + (local < closes) for i, (_, local) in enumerate(minutes) if local <= closes), default=0)
            for index in range(start, end):
                is_open[index] = True
        day += timedelta(days=1)
    return is_open


def check(windows: list[Window], begin: datetime, step: int = 1) -> None:
    """Compare with the model at each minute at which it begins or ends to be open, and at each `step` of the others."""
    openings = Openings.of(windows)
    by_minute = [any(each) for each in zip(*(modelled(hours, begin) for hours in windows), strict=True)]
    instants = [instant for instant, _ in local_minutes(windows[0].zone, begin)]
    until = instants.index(begin + timedelta(days=_DAYS))
    since = instants.index(begin)
    following = ms(instants[-1]) if by_minute[-1] else None
    for index in range(len(instants) - 2, since - 1, -1):
        instant = ms(instants[index])
        if by_minute[index]:
            following = instant
        changes = not by_minute[index - 1] == by_minute[index] == by_minute[index + 1]
        if index < until and following is not None and (changes or index % step == 0):
            assert openings.next_open(instant) == following, (windows, instants[index])
            assert openings.next_open(instant + 59_999) == (instant + 59_999 if by_minute[index] else following), (
                windows,
                instants[index],
            )


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
        check([window(zone=zone, **{"from": opening, "to": closing})], begin, step=7)


_TIMES = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.integers(0, 59))


@st.composite
def drawn_windows(draw: st.DrawFn) -> tuple[list[Window], datetime]:
    zone = draw(st.sampled_from(sorted(_CHANGES)))
    begin = draw(st.sampled_from(_CHANGES[zone]))
    dates = st.integers(0, _DAYS).map(lambda days: (begin + timedelta(days=days)).date())
    return (
        draw(
            st.lists(
                st.builds(
                    lambda opening, closing, days, excepted: window(
                        zone=zone, days=days, **{"from": opening, "to": closing, "except": excepted}
                    ),
                    _TIMES,
                    _TIMES | st.just("24:00"),
                    st.none() | st.lists(st.sampled_from(_NAMES), min_size=1, unique=True),
                    st.lists(dates, max_size=3),
                ).filter(lambda hours: hours.from_ != hours.to),
                min_size=1,
                max_size=3,
            )
        ),
        begin,
    )


@drawn(100)
@given(drawn_windows())
def test_drawn_windows_are_open_as_the_model_says(some: tuple[list[Window], datetime]) -> None:
    check(*some)


@drawn(1000)
@given(
    drawn_windows(),
    st.integers(0, 40 * 86_400_000),
    st.integers(0, 86_400_000),
)
def test_a_placed_time_is_open_and_not_earlier(
    some: tuple[list[Window], datetime], asked_after: int, offset: int
) -> None:
    windows, begin = some
    asked = ms(begin) + asked_after
    openings = Openings.of(windows)
    placed = place(asked, offset, openings)
    assert placed >= asked + offset
    assert placed == openings.next_open(openings.next_open(asked) + offset)
    assert openings.next_open(placed) == placed
    assert place(asked, offset, None) == asked + offset


@drawn(1000)
@given(drawn_windows(), st.integers(0, 40 * 86_400_000))
def test_the_last_open_instant_is_before_the_next_opening(
    some: tuple[list[Window], datetime], asked_after: int
) -> None:
    windows, begin = some
    asked = ms(begin) + asked_after
    openings = Openings.of(windows)
    last, following = openings.last_open(asked), openings.next_open(asked)
    assert last is not None
    assert openings.next_open(last) == last
    if following == asked:
        assert last == asked
    else:
        assert last < asked < openings.next_open(last + 1) == following


def test_a_skipped_opening_is_at_the_change_of_the_offset() -> None:
    berlin = Openings.of([window(zone="Europe/Berlin", **{"from": "02:30", "to": "05:00"})])
    assert berlin.next_open(at("2026-03-29T00:00+01:00")) == at("2026-03-29T03:00+02:00")
    lord_howe = Openings.of([window(zone="Australia/Lord_Howe", **{"from": "02:15", "to": "05:00"})])
    assert lord_howe.next_open(at("2026-10-04T00:00+10:30")) == at("2026-10-04T02:30+11:00")


def test_of_a_time_that_occurs_twice_it_opens_at_the_first_and_closes_at_the_last() -> None:
    opens = Openings.of([window(zone="Europe/Berlin", **{"from": "02:30", "to": "05:00"})])
    assert opens.next_open(at("2026-10-25T00:00+02:00")) == at("2026-10-25T02:30+02:00")
    closes = Openings.of([window(zone="Europe/Berlin", **{"from": "00:00", "to": "02:30"})])
    assert closes.next_open(at("2026-10-25T02:29+01:00")) == at("2026-10-25T02:29+01:00")
    assert closes.next_open(at("2026-10-25T02:30+01:00")) == at("2026-10-26T00:00+01:00")


def test_a_day_whose_opening_and_closing_are_skipped_is_closed() -> None:
    hours = Openings.of([window(zone="Europe/Berlin", **{"from": "02:10", "to": "02:50"})])
    assert hours.next_open(at("2026-03-29T00:00+01:00")) == at("2026-03-30T02:10+02:00")


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
