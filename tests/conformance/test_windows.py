"""Opening hours and spread: of jobs, of topics, under the name of a calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from deferd.engine.openings import spread_of
from tests.conformance.door import Door, Job, on_batches, on_topics, one_partition, refused

OFFICE = {"zone": "Europe/Berlin", "from": "09:00", "to": "17:00"}
NIGHT = {"from": "22:00", "to": "06:00"}
YEAR = datetime.now(UTC).year + 2
NOON = f"{YEAR}-01-12T12:00:00+00:00"
EVENING = f"{YEAR}-01-12T20:00:00+00:00"
AT_NIGHT = f"{YEAR}-01-12T22:00:00+00:00"
OPENING = f"{YEAR}-01-13T08:00:00+00:00"
HOUR = timedelta(hours=1)


def instant(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def due(job: Job) -> tuple[str, str | None]:
    """When it is due, and when it was asked for if that is another time."""
    asked = job["asked_for"]
    return instant(job["due_at"]), None if asked is None else instant(asked)


def spread_later(at: str, job_id: str, seconds: int) -> str:
    return (datetime.fromisoformat(at) + timedelta(milliseconds=spread_of(job_id, seconds * 1000))).isoformat()


def test_a_put_outside_the_window_is_due_at_the_next_opening(door: Door) -> None:
    job = door.put("a", run_at=EVENING, window=OFFICE)
    assert (due(job), job["window"], job["state"]) == ((OPENING, EVENING), OFFICE, "delayed")
    stored = door.get()
    assert (due(stored), stored["window"]) == (due(job), OFFICE)
    assert due(door.put("b", run_at=NOON, window=OFFICE)) == (NOON, None)
    several = door.put("c", run_at=EVENING, window=[OFFICE, NIGHT], tags=["x"])
    assert (due(several), several["window"]) == ((AT_NIGHT, EVENING), [OFFICE, NIGHT])


def test_a_spread_makes_a_job_later_by_a_hash_of_its_id(door: Door) -> None:
    job = door.put("a", run_at=NOON, spread=3600)
    assert (due(job), job["spread"]) == ((spread_later(NOON, "a", 3600), NOON), 3600)
    both = door.put("b", run_at=EVENING, window=OFFICE, spread=3600)
    assert due(both) == (spread_later(OPENING, "b", 3600), EVENING)


def test_a_change_places_a_job_again(door: Door) -> None:
    door.put("a", run_at=EVENING, window=OFFICE)
    assert due(door.change("a", body=2)) == (OPENING, EVENING)
    assert due(door.change("a", window=NIGHT)) == (AT_NIGHT, EVENING)
    assert due(door.change("a", run_at=NOON)) == (AT_NIGHT, NOON)
    assert due(door.change("a", window=None)) == (NOON, None)
    assert due(door.change("a", spread=60)) == (spread_later(NOON, "a", 60), NOON)


def test_a_retry_waits_for_the_opening(door: Door) -> None:
    door.reserve("a")
    opens = datetime.fromtimestamp(door.get()["created_at"], UTC) + 2 * HOUR
    window = {"from": f"{opens:%H:%M}", "to": f"{opens + HOUR:%H:%M}"}
    opening = opens.replace(second=0, microsecond=0).isoformat()
    door.release("a", delay=60)
    assert due(door.change("a", window=window, delay=0))[0] == opening
    assert door.change("a", window=None, delay=0)["state"] == "ready"
    assert door.change("a", window=window)["state"] == "ready", "it is due already"
    held = door.pop_one()
    assert instant(door.release("a", held["receipt"], delay=0)["due_at"]) == opening
    assert door.get()["asked_for"] < opens.timestamp()


@on_topics
def test_a_put_without_its_own_has_those_of_its_topic(door: Door) -> None:
    door.set_topic(window=OFFICE, spread=60)
    job = door.put("a", run_at=EVENING)
    assert due(job) == (spread_later(OPENING, "a", 60), EVENING)
    assert (job["window"], job["spread"]) == (OFFICE, 60)
    own = door.put("b", run_at=EVENING, window=NIGHT, spread=None)
    assert (due(own), own["spread"]) == ((AT_NIGHT, EVENING), None)
    free = door.put("c", window=None, spread=None)
    assert (free["state"], free["window"], free["asked_for"]) == ("ready", None, None)
    door.set_topic()
    assert due(door.put("d", run_at=EVENING)) == (EVENING, None)


@on_batches
@one_partition  # a job put by a finish may be in another shard
def test_jobs_of_a_batch_and_those_that_a_finish_puts_are_placed(door: Door) -> None:
    placed: dict[str, Any] = {"run_at": EVENING, "window": OFFICE}
    assert [one.status for one in door.put_batch([{"id": "a", **placed}, {"id": "b"}])] == [201, 201]
    assert due(door.get()) == (OPENING, EVENING)
    held = door.pop_one()
    with refused("validation", "is not the name of a calendar"):
        door.finish("b", held["receipt"], put=[{"id": "c", "window": door.topic}])
    door.finish("b", held["receipt"], put=[{"id": "c", **placed}])
    assert due(door.get("c")) == (OPENING, EVENING)


@on_topics
def test_a_calendar_is_a_window_under_a_name(door: Door) -> None:
    with refused("calendar_not_found"):
        door.calendar()
    door.put_calendar(OFFICE)
    assert door.calendar() == [OFFICE]
    job = door.put("a", run_at=EVENING, window=door.topic)
    assert (due(job), job["window"]) == ((OPENING, EVENING), door.topic)
    door.put_calendar(NIGHT)
    assert due(door.put("b", run_at=EVENING, window=door.topic))[0] == AT_NIGHT
    door.delete_calendar()
    with refused("calendar_not_found"):
        door.delete_calendar()
    with refused("validation", "is not the name of a calendar"):
        door.put("c", window=door.topic)


@on_topics
def test_a_window_that_never_opens_is_refused_wherever_it_is_given(door: Door) -> None:
    door.put("a", delay=60)
    wrong: tuple[tuple[Any, str], ...] = (
        ({"zone": "Europe/Atlantis"}, "is not a time zone"),
        ({"from": "08:00", "to": "08:00"}, "never opens"),
        ([OFFICE, {"zone": "Nowhere"}], "is not a time zone"),
        (door.topic, "is not the name of a calendar"),
    )
    for window, text in wrong:
        with refused("validation", text):
            door.put("b", window=window)
        with refused("validation", text):
            door.change("a", window=window)
        with refused("validation", text):
            door.set_topic(window=window)
    with refused("validation", "never opens"):
        door.put_calendar({"from": "08:00", "to": "08:00"})
    assert door.counts() == {"delayed": 1}
