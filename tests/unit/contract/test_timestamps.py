"""RFC 3339 timestamps in the service, the client and the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.cli.framework import values
from deferd.contract.model import ChangeJob, PutJob
from deferd.contract.timestamps import parse_instant
from tests.drawn_input import drawn

MIDNIGHT = datetime(2017, 1, 1, tzinfo=UTC)
LEAP_SECONDS = [
    "2016-12-31T23:59:60Z",
    "2016-12-31t23:59:60z",
    "2016-12-31 23:59:60.000Z",
    "2016-12-31T23:59:60+00:00",
    "2016-12-31T23:59:60-00:00",
    "2016-12-31T18:59:60-05:00",
    "2017-01-01T05:29:60+05:30",
]


@pytest.mark.parametrize("text", LEAP_SECONDS)
def test_a_leap_second_is_the_second_after_it(text: str) -> None:
    assert parse_instant(text) == MIDNIGHT


def test_a_fraction_of_a_leap_second_is_kept() -> None:
    assert parse_instant("2016-12-31T23:59:60.250Z") == MIDNIGHT + timedelta(milliseconds=250)
    assert parse_instant("2016-12-31T23:59:60.123456789Z") == MIDNIGHT + timedelta(microseconds=123456)


@pytest.mark.parametrize("text", LEAP_SECONDS)
def test_leap_seconds_are_parsed_the_same_everywhere(text: str) -> None:
    assert PutJob.model_validate({"topic": "t", "run_at": text}).run_at == MIDNIGHT
    assert ChangeJob.model_validate({"run_at": text}).run_at == MIDNIGHT
    assert values.instant(text) == MIDNIGHT


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2016-12-31T23:58:60Z", "second 60 must be a leap second"),
        ("2016-12-31T22:59:60Z", "second 60 must be a leap second"),
        ("2016-12-31T23:59:60-05:00", "second 60 must be a leap second"),
        ("2016-12-31T18:59:60+05:00", "second 60 must be a leap second"),
        ("9999-12-31T23:59:60Z", "within the years 1 to 9999"),
        ("0001-01-01T23:59:60+23:59", "second 60 must be a leap second|within the years 1 to 9999"),
        ("2016-12-31T23:59:61Z", "must look like"),
        ("2016-12-31T24:00:00Z", "must look like"),
        ("2016-12-31T23:59:59,5Z", "must look like"),
        ("2016-12-31T23:59:59.1234567890Z", "must look like"),
        ("2016-12-31T23:59:59+24:00", "must look like"),
        ("2016-12-31T23:59:59+00:60", "must look like"),
        ("2016-12-31T23:59:59", "must look like"),
        ("2016-W52-6T23:59:59Z", "must look like"),
        ("20161231T235959Z", "must look like"),
        ("٢٠١٦-12-31T23:59:59Z", "must look like"),
        ("2016-12-31T23:59:59Z\n", "must look like"),
        ("2016-13-31T23:59:59Z", "month must be in 1..12"),
        ("2017-02-29T23:59:60Z", "day"),
    ],
)
def test_an_invalid_instant_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_instant(text)


offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@drawn(300)
@given(at=st.datetimes(timezones=offsets))
def test_an_instant_is_read_as_it_was_written(at: datetime) -> None:
    assert parse_instant(at.isoformat()) == at


@drawn(300)
@given(text=st.text(max_size=40) | st.from_regex(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)"))
def test_any_text_has_an_offset_or_raises_a_value_error(text: str) -> None:
    try:
        assert parse_instant(text).utcoffset() is not None
    except ValueError:
        return
