"""The form of a schedule: it has every field of the API, and shows its runs about changes of the clocks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import orjson
import pytest

from deferd.console.api_calls import ApiRefused
from deferd.console.views.forms import Form
from deferd.console.views.schedule_form import fields, read_days, shown_runs
from deferd.console.views.schedule_pages import days_words
from deferd.contract.operations.schedules_and_calendars import PutSchedule, ScheduledJob

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
BERLIN = fields(NOW, "Europe/Berlin")


def test_the_form_has_every_field_of_a_schedule() -> None:
    named = {field.name for field in BERLIN}
    of_job = {name.removeprefix("job.") for name in named if name.startswith("job.")}

    assert {name for name in named if not name.startswith("job.")} == set(PutSchedule.model_fields) - {"job", "paused"}
    assert of_job == set(ScheduledJob.model_fields) - {"traceparent", "durability"}


def test_a_stored_schedule_is_the_same_after_the_form() -> None:
    stored: dict[str, Any] = {
        "topic": "reports",
        "at": ["09:00", "17:30"],
        "days": ["mon", "tue", "wed", "sun"],
        "zone": "Europe/Berlin",
        "start_at": "2030-01-31T08:30:00.000Z",
        "max_runs": 3,
        "window": [{"from": "09:00"}],
        "overlap": "skip",
        "job": {"tags": ["a", "b"], "ttr": 30, "ttl": None, "backoff": {"kind": "fixed", "seconds": 1}},
    }
    form = Form.of_stored(BERLIN, stored)

    assert (form.body(), form.errors) == (stored, {})


@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("mon-fri", ["mon", "tue", "wed", "thu", "fri"]),
        ("Sat - mon", ["sat", "sun", "mon"]),
        ("Tue, mo", ["tue", "mo"]),
    ],
)
def test_days_are_read(text: str, days: list[str]) -> None:
    assert read_days(text) == days


@pytest.mark.parametrize("days", [["mon"], ["mon", "tue", "wed", "sun"], ["sat", "sun"]])
def test_days_are_read_as_they_are_written(days: list[str]) -> None:
    assert read_days(days_words(days)) == days


def test_an_instant_is_in_the_zone_of_the_schedule() -> None:
    form = Form(BERLIN, {"start_at": "2030-01-31 09:30", "end_at": "whenever"})

    assert form.body() == {"start_at": "2030-01-31T08:30:00.000Z"}
    assert form.errors["end_at"].startswith("must be an instant")


def test_the_body_keeps_its_numbers() -> None:
    form = Form(BERLIN, {"job.body": '{"n": 12345678901234567890123, "f": 1.50}'})

    assert orjson.dumps(form.body()) == b'{"job":{"body":{"n":12345678901234567890123,"f":1.50}}}'


def test_errors_come_to_the_fields_that_they_are_within() -> None:
    form = Form(BERLIN, {})
    errors = [
        {"field": "body.at[1]", "message": "must be a time of day"},
        {"field": "body.window[0].from", "message": "must be a time of day"},
        {"field": "body.job.ttr", "message": "must be at least 0.1 seconds"},
        {"field": "body", "message": "must have exactly one of them"},
        {"field": "body.job.later", "message": "is not a known field"},
    ]
    form.add_refusal(ApiRefused(422, {"errors": errors}))

    assert [tuple(one) for one in form.problems] == [
        ("at", "Or at times of day", "number 2 must be a time of day"),
        ("window", "Opening hours", "number 1 from must be a time of day"),
        ("job.ttr", "Time to run, seconds", "must be at least 0.1 seconds"),
        (None, "", "must have exactly one of them"),
        (None, "job.later", "is not a known field"),
    ]


def test_a_refusal_that_is_not_about_values_is_raised() -> None:
    with pytest.raises(ApiRefused):
        Form(BERLIN, {}).add_refusal(ApiRefused(403, {"detail": "no"}))


def test_what_could_not_be_read_is_not_said_to_be_missing() -> None:
    form = Form(BERLIN, {"topic": "t", "every": "soon", "max_runs": "0"})
    form.check(PutSchedule, form.body())

    assert set(form.errors) == {"every", "max_runs"}


def test_the_runs_about_a_change_of_the_clocks_are_shown() -> None:
    zone = ZoneInfo("Europe/Berlin")
    first = datetime(2031, 3, 1, 4, tzinfo=zone)
    local = [(first + timedelta(days=day)).replace(tzinfo=zone) for day in range(60)]
    runs = [{"at": at.isoformat(), "utc": at.astimezone(UTC).isoformat()} for at in local]
    shown = shown_runs({"runs": runs, "tzdata": "2031.1"})

    assert [run.at.day for run in shown.next] == list(range(1, 13))
    assert [(run.at.day, run.clocks_change) for run in shown.about_changes] == [(29, False), (30, True)]
    assert shown_runs({"runs": runs[:20], "tzdata": ""}).about_changes == []
