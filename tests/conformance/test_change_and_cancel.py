"""Changes and cancels of a job by its id."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conformance.door import ENDS, GROWN, RESP, Door, Job, also_eager, on_batches, one_partition, refused


def test_a_missing_job_is_not_found(door: Door) -> None:
    door.put("other", delay=60)
    with refused("job_not_found", f"topic {door.topic!r} has no job 'a'"):
        door.get("a")
    with refused("job_not_found"):
        door.change("a", delay=5)
    with refused("job_not_found"):
        door.cancel("a")


def test_a_change_of_the_due_time_keeps_the_rest(door: Door) -> None:
    put = door.put("a", {"n": 1}, delay=5, ttr=7)
    changed = door.change("a", delay=60)
    assert changed["due_at"] - put["due_at"] == pytest.approx(55, abs=10)
    assert {**changed, "due_at": None} == {**put, "due_at": None}
    assert door.get() == changed
    door.pass_time(10)
    assert door.pop() == []
    door.pass_time(51)
    assert door.pop_one()["id"] == "a"


def test_a_job_can_be_rescheduled_to_an_instant(door: Door) -> None:
    door.put("a", delay=60)
    at = (datetime.now(UTC) + timedelta(days=3000)).replace(microsecond=125_000)
    assert door.change("a", run_at=at.isoformat())["due_at"] == at.timestamp()


def test_a_delayed_job_can_be_made_ready_at_once(door: Door) -> None:
    door.put("a", delay=600)
    assert door.change("a", delay=0)["state"] == "ready"
    assert door.pop_one()["id"] == "a"


def test_a_ready_job_can_be_delayed_again(door: Door) -> None:
    door.put("a")
    assert door.change("a", delay=5)["state"] == "delayed"
    assert door.pop() == []
    door.pass_time(6)
    assert [job["id"] for job in door.pop_all()] == ["a"]


@one_partition
def test_a_ready_job_that_is_changed_to_be_due_now_keeps_its_place(door: Door) -> None:
    for job_id in ("a", "b"):
        door.put(job_id)
    door.change("a", delay=0, body="new")
    assert [job["id"] for job in door.pop(5)] == ["a", "b"]


CHANGES: list[dict[str, Any]] = [
    {"body": [1, 2]},
    {"body": None},
    {"ttr": 7, "max_attempts": 9, "ttl": 50, "retain": 3.5},
    {"time_limit": 7, "dead_retain": 9},
    {"backoff": {"kind": "fixed", "seconds": 1, "jitter": 0}},
    {"tags": ["x"], "headers": {"h": "v"}},
]


@pytest.mark.parametrize("delay", [0, 600], ids=["ready", "delayed"])
def test_each_field_of_a_waiting_job_can_change(door: Door, delay: int) -> None:
    job = door.put("a", "old", delay=delay, ttr=5)
    for change in CHANGES:
        changed = door.change("a", **change)
        job = Job({name: value for name, value in {**job, **change}.items() if value is not None})
        assert changed == job
        assert door.get() == changed


@one_partition
@pytest.mark.parametrize("delay", [0, 600], ids=["ready", "delayed"])
def test_group_and_priority_of_a_waiting_job_can_change(door: Door, delay: int) -> None:
    before = door.put("a", delay=delay)
    for group, priority in ((None, 3), ("g", 3), ("h", 9), ("h", None), (None, None)):
        changed = door.change("a", group=door.no_group if group is None else group, priority=priority or 0)
        expected = {"group": group, "priority": priority}
        assert changed == Job({**before, **{name: value for name, value in expected.items() if value is not None}})
        assert door.get() == changed


@pytest.mark.doors(without=(RESP,))  # it has no null
def test_null_removes_limits(door: Door) -> None:
    limits: dict[str, Any] = {"ttl": 10, "max_attempts": 3, "deadline": 20, "time_limit": 30}
    put = door.put("a", **limits)
    assert put["deadline_at"] - put["due_at"] == pytest.approx(20)
    changed = door.change("a", **dict.fromkeys(limits))
    assert not [name for name in (*limits, "deadline_at") if changed[name] is not None]
    door.pass_time(60)
    assert door.state() == "ready"


def test_a_changed_ttl_applies(door: Door) -> None:
    door.put("a", delay=5)
    door.change("a", ttl=10)
    door.pass_time(16)
    assert door.state() == "dead"


def test_only_a_waiting_job_can_change(door: Door) -> None:
    door.in_each_state()
    before = door.get("reserved")
    with refused("job_reserved", "a consumer holds job 'reserved'"):
        door.change("reserved", body=2)
    with refused("job_not_found", "finished and cannot change: it is done"):
        door.change("finished", delay=5)
    with refused("job_not_found", "dead and cannot change: redrive it"):
        door.change("dead", delay=5)
    assert door.get("reserved") == before


@also_eager
def test_a_cancelled_job_is_gone(door: Door) -> None:
    door.put("a", delay=60)
    assert door.cancel("a") == "delayed"
    with refused("job_not_found"):
        door.cancel("a")
    assert not door.has("a")


def test_cancel_returns_the_state_of_the_job(door: Door) -> None:
    for state in door.in_each_state():
        assert door.cancel(state) == state
        assert not door.has(state)
    door.pass_time(700)
    assert (door.pop_all(), door.counts()) == ([], {})


def test_cancel_can_refuse_a_reserved_job(door: Door) -> None:
    held = door.reserve("a")
    with refused("job_reserved"):
        door.cancel("a", if_reserved="refuse")
    door.finish("a", held["receipt"])
    door.put("b")
    assert door.cancel("b", if_reserved="refuse") == "ready"


@pytest.mark.doors(without=(GROWN,))  # the mark of the cancel is in another partition than the job that is put then
def test_calls_without_a_receipt_mean_the_job_that_was_put_after_a_cancel(door: Door) -> None:
    door.reserve("a")
    door.cancel("a")
    door.finish("a", door.reserve("a")["receipt"])
    with refused("job_not_found"):
        door.finish("a")


def test_the_holder_of_a_cancelled_job_gets_job_cancelled(door: Door) -> None:
    held = door.reserve("a")
    assert door.cancel("a") == "reserved"
    for verb in ENDS:
        for receipt in (held["receipt"], None):
            with refused("job_cancelled", "was cancelled"):
                door.end(verb, "a", receipt)


@pytest.mark.doors(without=(GROWN,))  # there it learns of the cancel: the next job is elsewhere
def test_the_holder_of_a_cancelled_job_cannot_touch_the_next_job_of_that_id(door: Door) -> None:
    held = door.reserve("a")
    door.cancel("a")
    door.put("a")
    with refused("receipt_stale"):
        door.finish("a", held["receipt"])
    again = door.pop_one()
    with refused("receipt_stale"):
        door.finish("a", held["receipt"])
    door.finish("a", again["receipt"])


def test_a_cancelled_delivery_is_forgotten_a_minute_after_its_lease(door: Door) -> None:
    held = door.reserve("a", ttr=5)
    door.cancel("a")
    door.pass_time(66)
    with refused("job_not_found"):
        door.finish("a", held["receipt"])


@one_partition
def test_a_job_that_was_cancelled_or_replaced_and_put_again_is_last(door: Door) -> None:
    for job_id in ("a", "b", "c", "d"):
        door.put(job_id)
    door.cancel("b")
    door.put("b")
    door.put("c", on_conflict="replace")
    assert [job["id"] for job in door.pop(5)] == ["a", "d", "b", "c"]


@on_batches
def test_many_jobs_are_cancelled_with_a_result_for_each(door: Door) -> None:
    door.in_each_state()
    items = [{"id": job_id, "if_reserved": "refuse"} for job_id in ("ready", "none", "reserved", "delayed", "ready")]
    assert door.cancel_batch(items) == [
        (200, None),
        (404, "job_not_found"),
        (409, "job_reserved"),
        (200, None),
        (404, "job_not_found"),
    ]
    assert door.counts() == {"dead": 1, "finished": 1, "reserved": 1}
