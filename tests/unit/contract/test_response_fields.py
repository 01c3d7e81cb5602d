"""Responses as the JSON that `fields` shows."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.client.requests import reader_of
from deferd.contract.operations.events import Dropped
from deferd.contract.operations.schedules_and_calendars import Calendar, PreviewedRun, Schedule

_SCHEDULE = (
    b'{"name": "nightly", "topic": "reports", "every": 60, "zone": "UTC", "overlap": "later", "catch_up": "last", '
    b'"paused": false, "ended": false, "next_run_at": null, "next_job": null, "last_run_at": null, "last_job": null, '
    b'"runs": 0, "skips": 0, "missed": 0, "created_at": "2026-10-11T06:56:58.123Z", '
    b'"updated_at": "2026-10-11T06:56:58.123Z"'
)


def test_the_job_of_a_schedule_is_shown_as_it_was_received() -> None:
    schedule = reader_of(Schedule)(_SCHEDULE + b', "job": {"ttr": 5, "body": [1.0, 1e300]}}')
    assert repr(schedule.fields["job"]) == repr({"ttr": 5, "body": [1.0, 1e300]})
    assert repr(schedule.fields["every"]) == "60"
    assert schedule.definition.keys() == {"every", "zone", "topic", "job", "overlap", "catch_up", "paused"}


def test_what_was_left_out_is_not_in_the_fields() -> None:
    schedule = reader_of(Schedule)(_SCHEDULE + b"}")
    assert schedule.job == {}
    assert not {"job", "cron", "start_at"} & schedule.fields.keys()
    assert schedule.fields["next_run_at"] is None


def test_an_instant_keeps_its_zone() -> None:
    run = reader_of(PreviewedRun)(b'{"at": "2026-11-23T03:00:00+01:00", "utc": "2026-11-23T02:00:00Z"}')
    assert run.fields == {"at": "2026-11-23T03:00:00.000+01:00", "utc": "2026-11-23T02:00:00.000Z"}


def test_an_instant_is_not_cut_to_the_millisecond() -> None:
    schedule = reader_of(Schedule)(_SCHEDULE + b', "start_at": "2030-01-01T00:00:00.123456+01:00"}')
    assert schedule.definition["start_at"] == "2030-01-01T00:00:00.123456+01:00"


def test_windows_are_shown_without_what_was_not_sent() -> None:
    fields: dict[str, Any] = {"name": "office", "windows": [{"from": "09:00"}]}
    assert reader_of(Calendar)(b'{"name": "office", "windows": [{"from": "09:00"}]}').fields == fields


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"topic": 7}', b'{"x": ' + b"[" * 100_000])
def test_what_is_no_such_response_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (the texts are those of msgspec)
        reader_of(Dropped)(content)
