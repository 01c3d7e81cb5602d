"""Ends of a delivery: finish, release, touch and bury; backoff, attempts, retention."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.door import ENDS, STALE_RECEIPT, Door, on_batches, one_partition, refused

BAD_RECEIPTS = (STALE_RECEIPT, "nonsense", "x" * 64)


def test_a_finished_job_is_gone(door: Door) -> None:
    held = door.reserve("a")
    door.finish("a", held["receipt"], result={"x": 1})
    assert not door.has("a")
    with refused("job_not_found"):
        door.finish("a", held["receipt"])
    assert door.pop() == []
    assert door.counts() == {}


def test_a_retained_job_is_kept_with_its_result_until_its_retention_ends(door: Door) -> None:
    held = door.reserve("a", [1], retain=60)
    result = {"paid": [True, {}, None], "total": 12.5}
    door.finish("a", held["receipt"], result=result)
    job = door.get()
    assert (job["state"], job["attempts"], job["result"], job["body"]) == ("finished", 1, result, [1])
    assert (job["reserved_until"], job["reserved_by"]) == (None, None)
    assert job["finished_at"] >= job["created_at"]
    door.pass_time(59)
    assert door.state() == "finished"
    door.pass_time(2)
    assert not door.has("a")


def test_a_retained_job_says_who_finished_it(door: Door) -> None:
    for job_id, consumer in (("a", "worker-1"), ("b", None)):
        door.put(job_id, retain=60)
        held = door.pop_one(**({"consumer": consumer} if consumer else {}))
        door.finish(job_id, held["receipt"])
        assert door.get(job_id).get("finished_by") == consumer


def test_a_repeated_finish_succeeds_while_the_record_is_kept(door: Door) -> None:
    held = door.reserve("a", retain=60)
    door.finish("a", held["receipt"])
    door.finish("a", held["receipt"])
    for receipt in (*BAD_RECEIPTS, None):
        with refused("receipt_stale", "it is finished"):
            door.finish("a", receipt)


def test_without_a_receipt_the_live_delivery_ends(door: Door) -> None:
    for verb, state in {"finish": "finished", "release": "delayed", "touch": "reserved", "bury": "dead"}.items():
        door.reserve(verb, retain=60)
        door.end(verb, verb)
        assert door.state(verb) == state


def test_an_unknown_job_cannot_end(door: Door) -> None:
    for verb in ENDS:
        with refused("job_not_found", "has no job 'a'"):
            door.end(verb, "a")


def test_a_job_that_nobody_holds_is_refused_with_its_state(door: Door) -> None:
    for state in door.in_each_state():
        for verb in ENDS if state != "reserved" else ():
            for receipt in (None, STALE_RECEIPT):
                with refused("receipt_stale", f"nobody holds job {state!r} of topic {door.topic!r}: it is {state}"):
                    door.end(verb, state, receipt)
        assert door.state(state) == state


def test_a_receipt_of_no_delivery_changes_nothing(door: Door) -> None:
    earlier = door.reserve("a")
    door.finish("a", earlier["receipt"])
    held = door.reserve("a")
    before = door.get()
    zero = held["receipt"].replace(".1", ".0")
    for verb in ENDS:
        for receipt in (earlier["receipt"], zero, *BAD_RECEIPTS):
            with refused("receipt_stale", "under another receipt"):
                door.end(verb, "a", receipt)
    assert door.get() == before


def waits_of(door: Door, attempts: int, **fields: Any) -> list[float | None]:
    """The waits in seconds after each of `attempts` releases; None for dead."""
    waits: list[float | None] = []
    door.put("a", ttr=60, **fields)
    for number in range(1, attempts + 1):
        held = door.pop_one()
        released = door.release("a", held["receipt"])
        assert released["attempts"] == number
        if released["state"] == "dead":
            assert released["due_at"] is None
            return [*waits, None]
        wait = released["due_at"] - held["reserved_until"] + 60
        waits.append(round(wait, 1 if wait < 10 else None))
        door.pass_time(wait + 0.1)
    return waits


def near(waits: list[float | None], expected: list[float | None]) -> bool:
    """Between a pop and its release, time passes."""
    return len(waits) == len(expected) and all(
        one == other if one is None or other is None else other <= one < other + 10
        for one, other in zip(waits, expected, strict=True)
    )


BACKOFFS: dict[str, tuple[dict[str, Any], list[float | None]]] = {
    "default": ({}, [2, 4, 8, 16, 32, 64, 128, 212, 212]),
    "exponential": ({"backoff": {"kind": "exponential", "base": 30, "cap": 1000}}, [30, 900, 1000, 1000]),
    "fixed": ({"backoff": {"kind": "fixed", "seconds": 70}}, [70, 70, 70]),
    "schedule": ({"backoff": {"kind": "schedule", "seconds": [120, 60, 3600]}}, [120, 60, 3600, None]),
    "repeat": ({"backoff": {"kind": "schedule", "seconds": [100, 500], "then": "repeat_last"}}, [100, 500, 500, 500]),
    "attempts": ({"max_attempts": 3}, [2, 4, None]),
}


@pytest.mark.parametrize("name", BACKOFFS)
def test_a_released_job_waits_its_backoff(door: Door, name: str) -> None:
    fields, expected = BACKOFFS[name]
    waits = waits_of(door, len(expected), **fields)
    assert near(waits, expected), waits
    if None in expected:
        job = door.get()
        reason = "schedule_ended" if name == "schedule" else "attempts_exhausted"
        assert (job["state"], job["reason"], job["attempts"]) == ("dead", reason, len(expected))


def test_a_release_can_set_its_delay_and_an_error(door: Door) -> None:
    door.put("a")
    held = door.pop_one(consumer="worker-1")
    released = door.release("a", held["receipt"], delay=30, error="no response")
    assert (released["state"], released["attempts"]) == ("delayed", 1)
    job = door.get()
    assert (job["state"], job["last_error"], job["attempts"], job["reserved_by"]) == ("delayed", "no response", 1, None)
    assert job["due_at"] == released["due_at"]
    door.pass_time(29)
    assert door.pop() == []
    door.pass_time(2)
    second = door.pop_one()
    assert (second["attempt"], second["last_error"]) == (2, "no response")
    with refused("receipt_stale"):
        door.finish("a", held["receipt"])
    door.release("a", second["receipt"], delay=0)
    door.pass_time(0.001)
    assert door.pop_one()["last_error"] == "no response"


def test_the_last_attempt_ends_in_dead_even_with_a_delay(door: Door) -> None:
    door.reserve("a", max_attempts=1)
    released = door.release("a", delay=5, error="no luck")
    assert (released["state"], released["attempts"], released["due_at"]) == ("dead", 1, None)
    job = door.get()
    assert (job["reason"], job["last_error"]) == ("attempts_exhausted", "no luck")


def test_a_snooze_counts_no_attempt(door: Door) -> None:
    door.reserve("a", max_attempts=1)
    released = door.release("a", delay=5, count=False)
    assert (released["state"], released["attempts"]) == ("delayed", 0)
    assert door.get()["snoozes"] == 1
    door.pass_time(6)
    assert (door.pop_one()["attempt"], door.get()["snoozes"]) == (1, 1)


def test_touch_extends_the_lease_by_the_jobs_ttr(door: Door) -> None:
    held = door.reserve("a", ttr=50)
    for _ in range(3):
        door.pass_time(40)
        until = door.touch("a", held["receipt"])
        assert door.get()["reserved_until"] == until
    assert until - held["reserved_until"] == pytest.approx(120, abs=20)
    assert door.state() == "reserved"
    door.pass_time(51)
    assert door.state() == "ready"


def test_touch_can_set_the_lease(door: Door) -> None:
    held = door.reserve("a", ttr=5)
    until = door.touch("a", ttr=600)
    assert until - held["reserved_until"] == pytest.approx(595, abs=10)
    door.pass_time(550)
    assert door.state() == "reserved"
    door.pass_time(51)
    assert door.state() == "ready"


def test_a_touch_reports_the_progress_of_the_job(door: Door) -> None:
    held = door.reserve("a", {"n": 1}, retain=60, tags=["one"])
    assert door.get()["progress"] is None
    for progress in (0.25, {"done": 40, "of": [1, None, True, 1.5]}, 0, False, "x" * 1022):
        until = door.touch("a", held["receipt"], progress=progress)
        job = door.get()
        assert (job["progress"], job["reserved_until"]) == (progress, until)
        assert (job["body"], job["tags"]) == ({"n": 1}, ["one"])
    assert job["created_at"] <= job["progress_at"] < until
    door.touch("a", held["receipt"], ttr=600)
    assert (door.get()["progress"], door.get()["progress_at"]) == (progress, job["progress_at"])
    door.release("a", held["receipt"], delay=0)
    with refused("receipt_stale"):
        door.touch("a", held["receipt"], progress=1)
    door.pass_time(1)
    again = door.pop_one()
    assert (again["progress"], again["attempt"]) == (progress, 2)
    door.touch("a", again["receipt"], progress=1)
    door.finish("a", again["receipt"])
    assert (door.get()["progress"], door.state()) == (1, "finished")


def test_a_buried_job_is_dead_and_not_handed_out(door: Door) -> None:
    held = door.reserve("a")
    door.bury("a", held["receipt"], error="poison")
    job = door.get()
    assert (job["state"], job["reason"], job["last_error"], job["attempts"]) == ("dead", "buried", "poison", 1)
    assert door.pop() == []
    assert door.counts() == {"dead": 1}


def test_a_dead_job_is_kept_for_its_dead_retain(door: Door) -> None:
    door.kill("a", dead_retain=60)
    door.kill("b", dead_retain=0)
    assert (door.has("a"), door.has("b")) == (True, False)
    door.pass_time(61)
    assert not door.has("a")


@on_batches
def test_each_job_of_a_batch_finish_has_its_own_result(door: Door) -> None:
    receipts = {job_id: door.reserve(job_id)["receipt"] for job_id in ("a", "b", "gone")}
    door.cancel("gone")
    door.put("waits")
    items = [
        {"id": "a", "receipt": receipts["a"]},
        {"id": "b", "receipt": receipts["a"]},
        {"id": "b", "result": {"kept": False}},
        {"id": "a"},
        {"id": "gone", "receipt": receipts["gone"]},
        {"id": "waits"},
        {"id": "none", "receipt": "nonsense"},
    ]
    assert door.on_deliveries("finish", items) == [
        (200, None),
        (409, "receipt_stale"),
        (200, None),
        (404, "job_not_found"),
        (410, "job_cancelled"),
        (409, "receipt_stale"),
        (404, "job_not_found"),
    ]
    assert door.counts() == {"ready": 1}


@on_batches
def test_a_thousand_jobs_are_popped_and_finished_together(door: Door) -> None:
    door.put_batch([{"id": f"j{number}"} for number in range(1000)])
    popped = door.pop_all()
    results = door.on_deliveries("finish", [{"id": job["id"], "receipt": job["receipt"]} for job in popped])
    assert [result.status for result in results] == [200] * 1000
    assert door.counts() == {}


@one_partition  # jobs of others may be in another shard
def test_a_finish_puts_jobs_in_the_same_step(door: Door) -> None:
    held = door.reserve("a")
    door.finish("a", held["receipt"], put=[{"id": "b", "body": 1}, {"id": "c", "delay": 60}])
    assert (door.has("a"), door.state("b"), door.state("c")) == (False, "ready", "delayed")
    with refused("job_not_found"):
        door.finish("a", held["receipt"], put=[{"id": "d"}])
    second = door.pop_one()
    with refused("job_exists"):
        door.finish("b", second["receipt"], put=[{"id": "d"}, {"id": "c"}])
    assert (door.state("b"), door.has("d")) == ("reserved", False)
