"""Deadlines over all attempts, time limits of one attempt, logs of attempts."""

from __future__ import annotations

import pytest

from tests.conformance.door import Door, refused


def test_a_job_that_waits_is_dead_when_its_deadline_passes(door: Door) -> None:
    put = door.put("a", delay=60, deadline=100)
    assert put["deadline_at"] - put["due_at"] == pytest.approx(100)
    door.pass_time(150)
    assert door.state() == "ready"
    door.pass_time(10)
    assert door.pop() == []
    assert (door.state(), door.get()["reason"]) == ("dead", "deadline")


def test_the_lease_of_a_held_job_ends_with_its_deadline_at_the_latest(door: Door) -> None:
    door.put("a", deadline=100, ttr=60)
    door.pass_time(50)
    held = door.pop_one()
    assert held["reserved_until"] == held["deadline_at"] == pytest.approx(held["due_at"] + 100)
    assert door.touch("a", held["receipt"], ttr=3600) == held["deadline_at"]
    door.pass_time(30)
    assert door.state() == "reserved"
    door.pass_time(20)
    dead = door.get()
    assert (dead["state"], dead["reason"], dead["attempts"]) == ("dead", "deadline", 1)
    assert dead["last_error"] == "the deadline passed before the job was finished"
    with refused("receipt_stale"):
        door.finish("a", held["receipt"])


def test_retries_and_snoozes_do_not_move_the_deadline(door: Door) -> None:
    put = door.put("a", deadline=1000, ttr=100)
    door.release("a", door.pop_one()["receipt"], delay=200)
    door.pass_time(201)
    door.release("a", door.pop_one()["receipt"], delay=200, count=False)
    door.pass_time(201)
    door.pop_one()
    door.pass_time(101)
    job = door.get()
    assert (job["state"], job["deadline_at"]) == ("ready", put["deadline_at"])
    door.release("a", door.pop_one()["receipt"], delay=5000)
    door.pass_time(500)
    assert (door.state(), door.get()["reason"]) == ("dead", "deadline")


def test_a_redrive_and_a_new_due_time_begin_a_new_deadline(door: Door) -> None:
    door.put("a", deadline=100)
    door.pass_time(101)
    assert door.redrive() == 1
    redriven = door.get()
    assert redriven["deadline_at"] == pytest.approx(redriven["due_at"] + 100)
    changed = door.change("a", delay=60)
    assert changed["deadline_at"] == pytest.approx(changed["due_at"] + 100)


def test_a_time_limit_bounds_the_lease_and_its_extensions(door: Door) -> None:
    held = door.reserve("a", time_limit=300, ttr=200)
    began = held["reserved_until"] - 200
    door.pass_time(150)
    assert door.touch("a", held["receipt"]) == pytest.approx(began + 300)
    door.pass_time(100)
    assert door.touch("a", held["receipt"], ttr=86_400) == pytest.approx(began + 300)
    door.pass_time(51)
    again = door.pop_one(ttr=86_400)
    assert again["attempt"] == 2
    assert again["reserved_until"] - began == pytest.approx(600, abs=20)


def test_failed_attempts_are_logged(door: Door) -> None:
    door.put("a")
    for number in (1, 2):
        door.pop_one(consumer="w1")
        door.release("a", delay=0, error=f"try {number}")
        door.pass_time(0.001)
    [first, second] = door.pop_one()["attempts_log"]
    assert first == {"attempt": 1, "ended_at": first["ended_at"], "how": "released", "by": "w1", "error": "try 1"}
    assert (second["error"], second["ended_at"] >= first["ended_at"]) == ("try 2", True)
