"""Schedules through both clients."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest

from deferd import Client, InvalidInput, JobState, NoAnswer, Run, ScheduleNotFound
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.testing import ServiceForTests
from tests.acceptance.client.lossy_proxy import lossy_proxy


@pytest.fixture
def client(clocked_service: ServiceForTests) -> Iterator[Client]:
    clocked_service.purge()
    with clocked_service.client() as client:
        yield client


def test_a_schedule_is_put_shown_and_deleted(client: Client) -> None:
    made = client.put_schedule(
        "nightly",
        "reports",
        at=["03:00"],
        days=["mon", "tue"],
        zone="Europe/Berlin",
        spread=timedelta(minutes=1),
        start_at=datetime(2030, 1, 1, tzinfo=timezone(timedelta(hours=1))),
        overlap="skip",
        job={"body": {"all": True}, "ttr": timedelta(minutes=5), "max_attempts": None},
    )
    assert made.fields == client.schedule("nightly").fields
    assert (made.name, made.topic, made.zone, made.at, made.days) == (
        *("nightly", "reports", "Europe/Berlin", ["03:00"], ["mon", "tue"]),
    )
    assert (made.overlap, made.catch_up, made.paused, made.ended) == ("skip", "last", False, False)
    assert (made.cron, made.every, made.last_run_at, made.last_job) == (None, None, None, None)
    assert (made.runs, made.skips, made.missed) == (0, 0, 0)
    assert made.job == {"body": {"all": True}, "ttr": 300, "max_attempts": None}
    assert made.created_at == made.updated_at
    assert made.next_job == "nightly:20300101T020000Z"
    assert made.next_run_at is not None
    assert timedelta() <= made.next_run_at - datetime(2030, 1, 1, 2, tzinfo=UTC) <= timedelta(minutes=1)
    assert made.definition["start_at"] == "2029-12-31T23:00:00.000Z"
    PutSchedule.model_validate(made.definition)
    assert client.get("reports", made.next_job).state is JobState.DELAYED

    client.delete_schedule("nightly")
    with pytest.raises(ScheduleNotFound) as raised:
        client.delete_schedule("nightly")
    assert raised.value.schedule == "nightly"
    assert sum(client.topic("reports").counts.values()) == 0


def test_an_unknown_option_is_refused(client: Client) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'crn': the options are every"):
        client.put_schedule("bad", "reports", crn="@daily")  # type: ignore[call-arg]


def test_schedules_are_listed_in_pages_and_filtered(client: Client) -> None:
    for number in range(105):
        client.put_schedule(f"many-{number:03}", "reports", every=3600, paused=number % 2 == 0, job={"body": number})
    client.put_schedule("other", "mail", every=3600)
    assert [one.name for one in client.schedules(topic="reports")] == [f"many-{number:03}" for number in range(105)]
    assert [one.name for one in client.schedules(prefix="o")] == ["other"]
    assert sum(one.paused for one in client.schedules(paused=True)) == 53
    assert [one.name for one in client.schedules(paused=False, prefix="many-00")] == [
        f"many-00{odd}" for odd in "13579"
    ]
    assert next(client.schedules()).job == {"body": 0}
    assert next(client.schedules(jobs=False)).job == {}


def test_runs_to_come_are_shown_in_the_zone_and_in_utc(client: Client) -> None:
    definition = {
        "topic": "reports",
        "cron": "30 2 * * *",
        "zone": "Europe/Berlin",
        "start_at": datetime(2037, 3, 28, tzinfo=UTC),
    }
    [first, second] = client.preview_schedule(definition, count=2)
    at = datetime(2037, 3, 28, 2, 30, tzinfo=timezone(timedelta(hours=1)))
    assert first == Run(at=at, utc=datetime(2037, 3, 28, 1, 30, tzinfo=UTC))
    assert (first.at.isoformat(), second.at.isoformat()) == ("2037-03-28T02:30:00+01:00", "2037-03-29T03:00:00+02:00")
    assert second.utc == datetime(2037, 3, 29, 1, 0, tzinfo=UTC)
    del definition["topic"]
    client.put_schedule("spring", "reports", **definition)  # type: ignore[arg-type]
    assert client.preview_schedule("spring", count=2) == [first, second]
    assert len(client.preview_schedule("spring")) == 20
    with pytest.raises(ScheduleNotFound):
        client.preview_schedule("autumn")
    with pytest.raises(InvalidInput):
        client.preview_schedule("spring", count=1001)


def test_after_a_lost_response_only_calls_that_are_safe_to_repeat_are_repeated(
    clocked_service: ServiceForTests,
) -> None:
    clocked_service.purge()
    with lossy_proxy(clocked_service.url) as proxy, Client(proxy.url) as client:
        proxy.lose_responses()
        made = client.put_schedule("hourly", "reports", cron="@hourly")
        proxy.lose_responses()
        assert client.pause_schedule("hourly").paused
        proxy.lose_responses()
        assert not client.resume_schedule("hourly").paused
        assert client.schedule("hourly").next_job == made.next_job

        proxy.lose_responses()
        with pytest.raises(NoAnswer):
            client.run_schedule("hourly")
        assert client.topic("reports").counts[JobState.READY] == 1

        proxy.lose_responses()
        client.delete_schedule("hourly")
        proxy.lose_responses()
        with pytest.raises(NoAnswer):
            client.put_schedule("hourly", "reports", cron="@hourly", create_only=True)
        client.delete_schedule("hourly")
        clocked_service.purge()
