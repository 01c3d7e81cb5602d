"""What a put finds under its id: `conflict_with`, `unique_for`, `max_wait`, follow-ups, appends."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.door import GROWN, Door, on_topics, refused

AFTER: dict[str, Any] = {"on_conflict": "replace", "if_reserved": "after"}
ITEM: dict[str, Any] = {"on_conflict": "append", "delay": 60, "max_wait": 60}


def test_only_live_jobs_are_in_the_way_if_the_put_says_so(door: Door) -> None:
    for on_conflict in ("reject", "keep", "replace"):
        for ending in ("bury", "finish"):
            job_id = f"{on_conflict}-{ending}"
            door.reserve(job_id, retain=60, unique_for=100)
            door.end(ending, job_id)
            put = door.put(job_id, "new", on_conflict=on_conflict, conflict_with="live", delay=50)
            assert (put["body"], put["state"], put["attempts"]) == ("new", "delayed", 0)
    assert door.counts() == {"delayed": 6}


def test_live_jobs_stay_in_the_way(door: Door) -> None:
    for job_id, delay in (("ready", 0), ("delayed", 60)):
        door.put(job_id, "old", delay=delay)
        with refused("job_exists"):
            door.put(job_id, conflict_with="live")
        assert door.put(job_id, conflict_with="live", on_conflict="keep")["body"] == "old"
        assert door.put(job_id, "new", conflict_with="live", on_conflict="replace", delay=60)["body"] == "new"
    held = door.reserve("held")
    with refused("job_reserved"):
        door.put("held", conflict_with="live", on_conflict="replace")
    with refused("job_exists"):
        door.put("held", conflict_with="live")
    door.finish("held", held["receipt"])


def test_the_id_of_a_finished_job_stays_taken(door: Door) -> None:
    held = door.reserve("a", unique_for=60)
    assert held["unique_for"] == 60
    door.finish("a", held["receipt"])
    assert not door.has("a")
    for on_conflict in ("reject", "keep", "replace"):
        with refused("job_exists"):
            door.put("a", on_conflict=on_conflict)
    assert door.put_batch([{"id": "a"}, {"id": "b"}]) == [(409, "job_exists"), (201, None)]
    door.pass_time(61)
    door.put("a")


def test_a_kept_record_and_its_unique_id_end_each_at_its_time(door: Door) -> None:
    door.finish("a", door.reserve("a", unique_for=120, retain=60)["receipt"])
    assert door.put("a", on_conflict="keep")["state"] == "finished"
    with refused("job_exists"):
        door.put("a", on_conflict="replace")
    door.pass_time(61)
    with refused("job_exists"):
        door.put("a", on_conflict="keep")
    door.pass_time(61)
    assert door.put("a", on_conflict="keep")["state"] == "ready"


def test_only_a_finish_takes_the_id_and_a_cancel_frees_it(door: Door) -> None:
    for retain in (0, 30):
        door.finish("a", door.reserve("a", unique_for=60, retain=retain)["receipt"])
        assert door.cancel("a") == "finished"
        with refused("job_not_found"):
            door.cancel("a")
    door.put("a", unique_for=60)
    assert door.cancel("a") == "ready"
    door.kill("a", unique_for=60)
    door.put("a", on_conflict="replace")


@on_topics
def test_a_purge_frees_the_ids(door: Door) -> None:
    for state in (None, "finished"):
        for number in range(3):
            job_id = f"j{number}"
            door.finish(job_id, door.reserve(job_id, unique_for=60, retain=30 * (number % 2))["receipt"])
        assert door.purge(state) == 1
        door.put("j0")
        door.cancel("j0")


def test_each_put_moves_the_due_time_but_not_beyond_the_longest_wait(door: Door) -> None:
    options: dict[str, Any] = {"delay": 100, "max_wait": 250, "on_conflict": "replace"}
    first = door.put("a", 0, **options)
    assert first["due_at"] - first["created_at"] == pytest.approx(100)
    assert first["due_by"] - first["created_at"] == pytest.approx(250)
    door.pass_time(80)
    second = door.put("a", 1, **options)
    assert second["due_at"] - second["created_at"] == pytest.approx(100)
    door.pass_time(80)
    third = door.put("a", 2, **options)
    assert third["due_at"] == third["due_by"] == first["due_by"]
    door.pass_time(100)
    assert door.put("a", 3, **options)["state"] == "ready"
    assert door.pop_one()["body"] == 3


def test_the_longest_wait_counts_from_the_first_put_that_is_still_live(door: Door) -> None:
    first = door.put("a", delay=100)
    door.pass_time(80)
    second = door.put("a", delay=100, max_wait=150, on_conflict="replace")
    assert second["due_at"] - first["created_at"] == pytest.approx(150)
    door.cancel("a")
    third = door.put("a", delay=100, max_wait=150, on_conflict="replace")
    assert third["due_at"] - third["created_at"] == pytest.approx(100)


def test_a_put_waits_while_a_consumer_holds_the_job(door: Door) -> None:
    held = door.reserve("a", retain=60)
    first = door.put("a", 1, **AFTER)
    assert (first["follow_up"], first["state"], first["body"]) == (True, "delayed", 1)
    assert door.put("a", [2], **AFTER)["follow_up"]
    shown = door.get("a")
    assert (shown["state"], shown["followed_by"]["body"]) == ("reserved", [2])
    assert door.put("a", 3, on_conflict="keep", if_reserved="after")["body"] == [2]
    door.finish("a", held["receipt"])
    door.pass_time(0.001)
    following = door.pop_one()
    assert (following["body"], following["attempt"]) == ([2], 1)
    assert door.get("a")["followed_by"] is None


def test_a_cancel_takes_a_follow_up_along_or_keeps_it(door: Door) -> None:
    for job_id in ("a", "b"):
        door.reserve(job_id, ttr=60)
        door.put(job_id, **AFTER)
    assert door.cancel("a") == "reserved"
    assert door.cancel("b", follow_up="keep") == "reserved"
    assert (door.has("a"), door.state("b")) == (False, "delayed")
    assert door.pop() == []
    door.pass_time(61)
    assert door.pop_one()["id"] == "b"


def test_appends_collect_bodies_in_an_array(door: Door) -> None:
    first = door.put("a", {"n": 1}, **ITEM)
    assert (first["body"], first["items"], first["state"]) == ([{"n": 1}], 1, "delayed")
    second = door.put("a", 2, **ITEM)
    assert (second["body"], second["items"], second["due_at"]) == ([2], 2, first["due_by"])
    assert door.get("a")["body"] == [{"n": 1}, 2]
    assert [job["body"] for job in door.jobs()] == [[{"n": 1}, 2]]
    third = door.put("a", "x", **ITEM, max_items=3)
    assert (third["items"], third["state"]) == (3, "ready")
    popped = door.pop_one()
    assert (popped["body"], popped["items"]) == ([{"n": 1}, 2, "x"], 3)


def test_a_job_that_was_put_otherwise_is_the_first_item(door: Door) -> None:
    door.put("a", "first", delay=60)
    door.put("a", "second", **ITEM)
    assert door.get("a")["body"] == ["first", "second"]


def test_an_append_to_a_held_job_is_refused_or_follows_it(door: Door) -> None:
    held = door.reserve("a", 1)
    with refused("job_reserved"):
        door.put("a", 2, on_conflict="append")
    for body in (3, 4):
        door.put("a", body, on_conflict="append", if_reserved="after")
    door.finish("a", held["receipt"])
    door.pass_time(0.001)
    assert door.pop_one()["body"] == [3, 4]


def test_a_collection_is_no_larger_than_a_body(door: Door) -> None:
    door.put("a", "x" * 600_000, on_conflict="append", delay=60)
    with refused("payload_too_large"):
        door.put("a", "x" * 600_000, on_conflict="append", delay=60)
    assert door.get("a")["items"] == 1


def test_a_repeated_finish_succeeds_when_another_job_has_taken_the_place(door: Door) -> None:
    followed = door.reserve("a")
    door.put("a", "next", **AFTER)
    for _ in range(2):
        door.finish("a", followed["receipt"])
    door.pass_time(0.001)
    following = door.pop_one()
    assert following["body"] == "next"
    door.finish("a", followed["receipt"])
    with refused("receipt_stale"):
        door.bury("a", followed["receipt"])
    door.finish("a", following["receipt"])
    with refused("job_not_found"):
        door.finish("a", followed["receipt"])


@pytest.mark.doors(without=(GROWN,))  # a job from before it grew may be in another shard than one of its id now
def test_a_repeated_finish_puts_nothing_again(door: Door) -> None:
    held = door.reserve("a")
    for _ in range(2):
        door.finish("a", held["receipt"], put=[{"id": "a", "body": "once more"}])
    assert [job["body"] for job in door.pop_all()] == ["once more"]
    kept = door.reserve("b", retain=60)
    door.finish("b", kept["receipt"], put=[{"id": "b", "on_conflict": "keep"}])
    assert door.state("b") == "finished"
