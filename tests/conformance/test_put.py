"""Puts: due times, ids that are taken, defaults and limits of the topic, batches."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.conformance.door import (
    ASYNC,
    CLIENT,
    GROWN,
    RESP,
    Door,
    Job,
    also_eager,
    on_batches,
    on_topics,
    one_partition,
    refused,
)


@also_eager
def test_a_job_without_delay_is_ready(door: Door) -> None:
    put = door.put("a", {"order": 1})
    assert (put["id"], put["state"], put["body"]) == ("a", "ready", {"order": 1})
    assert put["topic"] == door.topic
    assert door.state() == "ready"


def test_a_put_shows_the_job_as_it_is_stored(door: Door) -> None:
    put = door.put("a", delay=60)
    assert put == door.get()
    assert (put["ttr"], put["attempts"], put["max_attempts"], put["ttl"], put["retain"]) == (60, 0, None, None, 0)
    assert put["backoff"] == {"kind": "exponential", "base": 2, "cap": 212, "jitter": 0}


def test_a_job_is_due_after_its_delay_and_not_before(door: Door) -> None:
    put = door.put("a", delay=30)
    assert put["state"] == "delayed"
    assert put["due_at"] - put["created_at"] == pytest.approx(30)
    assert door.pop() == []
    door.pass_time(29)
    assert door.state() == "delayed"
    door.pass_time(1.1)
    assert door.state() == "ready"
    assert door.pop_one()["id"] == "a"


def test_a_delay_is_kept_to_the_millisecond(door: Door) -> None:
    put = door.put("a", delay=100.125)
    assert put["due_at"] - put["created_at"] == pytest.approx(100.125, abs=0.0005)


def test_run_at_is_the_instant_at_which_a_job_is_due(door: Door) -> None:
    at = datetime.fromisoformat("2030-01-31T10:30:00.125+02:00")
    put = door.put("a", run_at=at.isoformat())
    assert (put["state"], put["due_at"]) == ("delayed", at.timestamp())
    door.put("b", delay=5)
    assert door.change("b", run_at=at.isoformat())["due_at"] == at.timestamp()


@pytest.mark.doors(without=(RESP, CLIENT, ASYNC))  # they send numbers, and datetimes, which have no second 60
def test_a_run_at_in_a_leap_second_is_the_second_after_it(door: Door) -> None:
    leap, due_at = "2030-06-30T23:59:60Z", datetime(2030, 7, 1, tzinfo=UTC).timestamp()
    assert door.put("a", run_at=leap)["due_at"] == due_at
    door.put("b", delay=5)
    assert door.change("b", run_at=leap)["due_at"] == due_at
    assert door.put_batch([{"id": "c", "run_at": leap}])[0].status == 201
    assert door.get("c")["due_at"] == due_at


def test_a_run_at_in_the_past_means_now(door: Door) -> None:
    put = door.put("a", run_at="2001-01-01T00:00:00Z")
    assert (put["state"], put["due_at"]) == ("ready", put["created_at"])
    assert door.pop_one()["id"] == "a"


BODIES: list[Any] = [None, 0, False, "", [], {}, [[[{}]]], -0.5, 1e308, 2**80]
BODIES += [{"text": "\u00fc\u2028\U0001f600\x00", "list": [None, True, 12345678901234567890123], "none": {}}]


def test_a_body_is_any_json_value_and_comes_back_exactly(door: Door) -> None:
    for number, body in enumerate(BODIES):
        door.put(f"j{number}", body)
        assert door.get(f"j{number}")["body"] == body
    assert {job["id"]: job["body"] for job in door.pop_all()} == {f"j{n}": body for n, body in enumerate(BODIES)}


def test_a_job_put_without_an_id_gets_one(door: Door) -> None:
    ids = {door.put(None)["id"] for _ in range(3)}
    assert len(ids) == 3
    assert {job["id"] for job in door.pop_all()} == ids


def test_the_same_id_in_another_topic_is_another_job(door: Door) -> None:
    other = f"{door.topic}.b"
    door.put("a")
    door.put("a", topic=other)
    assert [job["topic"] for job in door.pop(5, topics=[door.topic, other])] == [door.topic, other]


@also_eager
def test_a_taken_id_is_refused_and_the_old_job_stays(door: Door) -> None:
    door.put("a", "old", delay=60)
    with refused("job_exists", "already has a job 'a'"):
        door.put("a", "new")
    assert (door.get()["body"], door.state()) == ("old", "delayed")


@also_eager
def test_keep_returns_the_old_job_as_it_is(door: Door) -> None:
    old = door.put("a", "old", delay=60)
    kept = door.put("a", "new", on_conflict="keep")
    assert {**kept, "created_at": None, "due_at": None} == {**old, "created_at": None, "due_at": None}
    assert door.get()["body"] == "old"


@also_eager
def test_without_a_conflict_keep_and_replace_put(door: Door) -> None:
    for on_conflict in ("keep", "replace"):
        assert door.put(on_conflict, "new", on_conflict=on_conflict)["body"] == "new"
        assert door.state(on_conflict) == "ready"


def test_replace_takes_the_old_jobs_place_with_its_own_fields(door: Door) -> None:
    delays = [(old, new) for old in (0, 60) for new in (0, 60)]
    for number, (old_delay, new_delay) in enumerate(delays):
        door.put(f"j{number}", "old", delay=old_delay, ttr=5)
        new = door.put(f"j{number}", "new", delay=new_delay, on_conflict="replace")
        assert (new["body"], new["ttr"], new["state"]) == ("new", 60, "delayed" if new_delay else "ready")
    assert door.counts() == {"delayed": 2, "ready": 2}
    door.pass_time(61)
    assert [job["body"] for job in door.pop_all()] == ["new"] * 4


def test_a_job_that_a_consumer_holds_is_kept_but_not_replaced(door: Door) -> None:
    door.put("a", "old")
    held = door.pop_one(consumer="worker-1")
    with refused("job_reserved", "a consumer holds job 'a'"):
        door.put("a", "new", on_conflict="replace")
    with refused("job_exists"):
        door.put("a", "new")
    kept = door.put("a", "new", on_conflict="keep")
    assert (kept["state"], kept["reserved_by"], kept["body"]) == ("reserved", "worker-1", "old")
    door.finish("a", held["receipt"])


def test_replace_brings_a_dead_job_back_as_new(door: Door) -> None:
    door.kill("a", max_attempts=1)
    assert door.put("a", on_conflict="replace")["attempts"] == 0
    assert door.counts() == {"ready": 1}
    assert door.pop_one()["attempt"] == 1


def test_an_id_is_free_again_when_its_job_is_gone_and_taken_while_its_record_is_kept(door: Door) -> None:
    for retain in (0, 60):
        door.finish("a", door.reserve("a", retain=retain)["receipt"])
    with refused("job_exists"):
        door.put("a")
    door.pass_time(61)
    door.put("a")


POLICY: dict[str, Any] = {
    "ttr": 5,
    "max_attempts": 3,
    "ttl": 9,
    "retain": 7,
    "dead_retain": 20,
    "time_limit": 50,
    "deadline": 100,
    "backoff": {"kind": "fixed", "seconds": 4, "jitter": 0},
}


FIELDS: list[dict[str, Any]] = [
    POLICY,
    {"ttr": 0.5, "backoff": {"kind": "schedule", "seconds": [120, 600], "then": "dead", "jitter": 0}},
    {"backoff": {"kind": "schedule", "seconds": [120, 600.5], "then": "repeat_last", "jitter": 0.1}},
    {"dead_retain": 0, "time_limit": 90.5, "deadline": 7200},
    {"tags": ["x", "y"], "headers": {"h": "v", "body": "b"}},
]


def test_fields_of_a_put_are_those_of_the_job(door: Door) -> None:
    for number, fields in enumerate(FIELDS):
        door.put(f"j{number}", delay=60, **fields)
        job = door.get(f"j{number}")
        assert {name: job[name] for name in fields} == fields


@one_partition
def test_a_job_has_its_group_and_its_priority_through_its_life(door: Door) -> None:
    assert door.put_batch([{"id": "b", "group": "customer-7"}, {"id": "c", "priority": 0}]) == [(201, None)] * 2
    put = door.put("a", delay=60, group="customer:7", priority=9)
    assert (put["group"], put["priority"]) == ("customer:7", 9)
    assert (door.get("b")["group"], door.get("b")["priority"]) == ("customer-7", None)
    assert not {"group", "priority"} & door.get("c").keys()
    assert door.put("a", on_conflict="keep")["group"] == "customer:7"
    replaced = door.put("a", on_conflict="replace", group="g")
    assert (replaced["group"], replaced["priority"]) == ("g", None)
    listed = {job["id"]: job["group"] for job in door.jobs()}
    assert listed == {"a": "g", "b": "customer-7", "c": None}
    assert {job["id"]: job["group"] for job in door.pop_all()} == listed


def test_a_topic_with_several_partitions_takes_no_group_and_no_priority(door: Door) -> None:
    door.set_topic(partitions=door.partitions or 4)
    with refused("validation", "must be left out: topic"):
        door.put("a", group="g", priority=1)
    with refused("validation", "must be left out: topic"):
        door.put("a", priority=1, delay=60)
    assert not door.has("a")
    assert door.put("a", delay=60, priority=0)["priority"] is None
    with refused("validation", "must be left out: topic"):
        door.change("a", priority=2)
    door.put("held")
    held = door.pop_one()
    with refused("validation", "must be left out: topic"):
        door.finish("held", held["receipt"], put=[{"id": "c", "group": "g"}])
    assert door.state("held") == "reserved"


def test_fields_that_a_job_leaves_out_come_from_its_topic(door: Door) -> None:
    door.put("old", delay=60)
    door.set_topic(**POLICY)
    job = door.put("a", delay=60)
    assert {name: job[name] for name in POLICY} == POLICY
    own = door.put("b", delay=60, ttr=7)
    assert (own["ttr"], own["retain"]) == (7, 7)
    assert door.get("old")["ttr"] == 60, "the topic's new defaults are not for jobs that it has"


@pytest.mark.doors(without=(RESP,))  # it has no null
def test_null_lifts_a_limit_of_the_topic(door: Door) -> None:
    door.set_topic(**POLICY)
    job = door.put("a", ttl=None, max_attempts=None, deadline=None, time_limit=None)
    assert (job["ttl"], job["max_attempts"], job["retain"]) == (None, None, 7)
    assert (job["deadline_at"], job["time_limit"], job["dead_retain"]) == (None, None, 20)


@one_partition  # each of several counts for itself
def test_a_full_topic_refuses_puts_but_not_replacements(door: Door) -> None:
    door.set_topic(max_jobs=2)
    door.put("a", delay=60)
    door.put("b")
    with refused("topic_full", "max_jobs"):
        door.put("c")
    assert not door.has("c")
    with refused("job_exists"):
        door.put("a")
    door.put("a", on_conflict="replace", delay=60)
    door.cancel("a")
    door.put("c")


@one_partition
def test_dead_and_finished_jobs_do_not_fill_a_topic(door: Door) -> None:
    door.set_topic(max_jobs=1)
    door.kill("dead")
    door.finish("done", door.reserve("done", retain=60)["receipt"])
    door.put("c")
    for job_id in ("dead", "done"):
        with refused("topic_full"):
            door.put(job_id, on_conflict="replace")


@pytest.mark.doors(without=(RESP,), also=("eager",))
def test_each_job_of_a_batch_has_its_own_result_in_order(door: Door) -> None:
    door.put("taken", "old", delay=60)
    results = door.put_batch(
        [
            {"id": "one", "delay": 60},
            {"id": "taken"},
            {"id": "taken", "on_conflict": "keep", "body": "kept"},
            {"id": "one"},
            {"id": "one", "on_conflict": "replace", "delay": 3600, "body": "new"},
        ]
    )
    assert results == [(201, None), (409, "job_exists"), (200, None), (409, "job_exists"), (200, None)]
    assert (door.get("one")["body"], door.get("taken")["body"]) == ("new", "old")


@on_topics
@pytest.mark.doors(without=(GROWN,))  # jobs from before it grew leave room in the other partitions
def test_a_batch_stops_at_the_limit_of_the_topic_and_at_jobs_that_are_held(door: Door) -> None:
    door.set_topic(max_jobs=2)
    door.reserve("held")
    results = door.put_batch(
        [{"id": "a"}, {"id": "b"}, {"id": "a"}, {"id": "held", "on_conflict": "replace"}],
    )
    assert results == [(201, None), (429, "topic_full"), (409, "job_exists"), (409, "job_reserved")]


@on_batches
def test_a_batch_may_have_jobs_of_several_topics(door: Door) -> None:
    other = f"{door.topic}.b"
    assert [(201, None)] * 2 == door.put_batch([{"id": "a"}, {"topic": other, "id": "a"}])
    assert [job["topic"] for job in door.pop(5, topics=[other, door.topic])] == [other, door.topic]


@on_topics
def test_a_thousand_jobs_go_in_one_batch(door: Door) -> None:
    results = door.put_batch([{"id": f"j{number}", "delay": 600 * (number % 3)} for number in range(1000)])
    assert [result.status for result in results] == [201] * 1000
    assert door.counts() == {"delayed": 666, "ready": 334}


def test_a_job_shows_only_what_it_has(door: Door) -> None:
    job: Job = door.put("a", delay=60)
    extras = {"last_error", "reason", "reserved_until", "reserved_by", "finished_at", "result", "receipt", "tags"}
    assert not extras & job.keys()
