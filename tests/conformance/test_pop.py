"""Pops: order, leases, priorities, repeated requests, what expires."""

from __future__ import annotations

import pytest

from tests.conformance.door import CLI, ENGINE, SHELVED, Door, Job, on_batches, one_partition, refused

without_request_ids = pytest.mark.doors(without=(CLI,))


def test_a_popped_job_carries_its_delivery(door: Door) -> None:
    put = door.put("a", {"n": 1}, ttr=30)
    job = door.pop_one(consumer="worker-1")
    assert job == {
        **put,
        "state": "reserved",
        "attempts": 1,
        "attempt": 1,
        "reserved_by": "worker-1",
        "reserved_until": job["reserved_until"],
        "receipt": job["receipt"],
    }
    assert job["reserved_until"] - put["created_at"] == pytest.approx(30, abs=20)
    assert door.pop() == []
    shown = {name: value for name, value in job.items() if name not in {"receipt", "attempt"}}
    shown["reserved_since"] = pytest.approx(job["reserved_until"] - 30, abs=0.001)
    assert door.get() == shown, "getting a job changes nothing, and shows no receipt"
    assert door.get() == shown


def test_a_pop_can_set_the_lease(door: Door) -> None:
    door.put("a", ttr=5)
    door.pop_one(ttr=3600)
    door.pass_time(3000)
    assert door.state() == "reserved"
    door.pass_time(601)
    assert door.state() == "ready"


@one_partition
def test_jobs_are_handed_out_in_the_order_they_became_due(door: Door) -> None:
    door.put("late", delay=20)
    door.put("early", delay=10)
    door.put("now")
    door.pass_time(30)
    assert [job["id"] for job in door.pop()] == ["now"], "one, when no count is given"
    assert [job["id"] for job in door.pop(1000)] == ["early", "late"]


def test_a_topic_that_does_not_exist_has_no_jobs(door: Door) -> None:
    assert door.pop() == []


@one_partition
def test_topics_are_served_in_strict_priority_and_fill_up_one_pop(door: Door) -> None:
    low, high = f"{door.topic}.low", f"{door.topic}.high"
    for number, topic in enumerate((low, high, low, high)):
        door.put(f"j{number}", topic=topic)
    popped = [job["topic"] for count in (1, 2, 1) for job in door.pop(count, topics=[high, low])]
    assert popped == [high, high, low, low]


@pytest.mark.doors(without=(ENGINE, SHELVED))  # patterns are read before it
@one_partition
def test_topics_that_match_a_pattern_come_after_those_that_are_named(door: Door) -> None:
    low, high = f"{door.topic}.low", f"{door.topic}.high"
    for topic in (low, high):
        door.put("a", topic=topic)
    assert [job["topic"] for job in door.pop(2, topics=[high, f"{door.topic}.*"])] == [high, low]


def test_a_job_whose_lease_ends_is_ready_again_with_a_new_receipt(door: Door) -> None:
    door.put("a", ttr=5)
    first = door.pop_one(consumer="worker-1")
    door.pass_time(5.1)
    job = door.get()
    assert (job["state"], job["attempts"], job["reserved_by"]) == ("ready", 1, None)
    second = door.pop_one()
    assert (second["attempt"], second["reserved_by"]) == (2, None)
    with refused("receipt_stale"):
        door.finish("a", first["receipt"])
    door.finish("a", second["receipt"])


def test_a_lease_that_ends_on_the_last_attempt_ends_in_dead(door: Door) -> None:
    door.reserve("a", ttr=5, max_attempts=1)
    door.pass_time(6)
    job = door.get()
    assert (job["state"], job["reason"], job["attempts"]) == ("dead", "attempts_exhausted", 1)
    assert job["last_error"]


def test_a_job_not_delivered_within_its_ttl_is_dead(door: Door) -> None:
    door.put("a", ttl=10, delay=10)
    door.pass_time(19)
    assert door.state() == "ready"
    door.pass_time(2)
    assert door.pop() == []
    job = door.get()
    assert (job["state"], job["reason"], job["attempts"]) == ("dead", "expired", 0)


@pytest.mark.parametrize("fields", [{}, {"time_limit": 60}, {"deadline": 3600}], ids=["plain", "limit", "deadline"])
def test_a_ttl_applies_only_to_the_first_delivery(door: Door, fields: dict[str, int]) -> None:
    door.reserve("a", ttl=10, ttr=5, **fields)
    door.pass_time(30)
    door.pass_time(11)
    assert door.pop_one()["attempt"] == 2


@without_request_ids
def test_a_repeated_request_gets_the_same_deliveries_but_those_that_are_finished(door: Door) -> None:
    for job_id in ("a", "b", "c"):
        door.put(job_id)
    first = door.pop(2, request_id="r1", consumer="worker-1")
    again = door.pop(2, request_id="r1", consumer="worker-1")
    assert sorted(again, key=_id_of) == sorted(first, key=_id_of)
    done, held, left = first[0]["id"], first[1]["id"], {"a", "b", "c"} - {job["id"] for job in first}
    door.finish(done)
    assert [job["id"] for job in door.pop(2, request_id="r1")] == [held]
    assert {job["id"] for job in door.pop(2, request_id="r2")} == left
    door.finish(held)
    door.put("d")
    assert [job["id"] for job in door.pop(1, request_id="r1")] == ["d"], "nothing is left of the earlier response"


@without_request_ids
def test_the_consumer_that_repeats_a_request_is_the_holder(door: Door) -> None:
    door.put("a")
    for consumer in ("worker-1", "worker-2"):
        assert door.pop_one(request_id="r1", consumer=consumer)["reserved_by"] == consumer
        assert door.get()["reserved_by"] == consumer


def test_a_paused_topic_hands_out_nothing_until_it_is_resumed(door: Door) -> None:
    door.put("a")
    door.pause()
    assert door.view()["paused"]
    assert door.pop() == []
    door.resume()
    assert not door.view()["paused"]
    assert door.pop_one()["id"] == "a"


@without_request_ids
def test_a_paused_topic_repeats_deliveries(door: Door) -> None:
    door.put("a")
    first = door.pop(request_id="r1")
    door.pause()
    assert door.pop(request_id="r1") == first


@on_batches
def test_deliveries_are_checked_and_returned_without_counting_an_attempt(door: Door) -> None:
    held = [door.reserve(job_id, max_attempts=1) for job_id in ("a", "b", "c")]
    door.cancel("b")
    items = [{"id": job["id"], "receipt": job["receipt"]} for job in held]
    expected = [(200, None), (410, "job_cancelled"), (200, None)]
    for verb in ("check", "return"):
        assert door.on_deliveries(verb, [{"id": "a", "receipt": "nonsense"}]) == [(409, "receipt_stale")]
        assert door.on_deliveries(verb, items) == expected
    assert door.on_deliveries("check", items[:1]) == [(409, "receipt_stale")]
    again = sorted(door.pop_all(), key=_id_of)
    assert [(job["id"], job["attempt"], job["reserved_by"]) for job in again] == [("a", 1, None), ("c", 1, None)]
    with refused("receipt_stale"):
        door.finish("a", held[0]["receipt"])


@on_batches
@one_partition
def test_returned_jobs_are_next_in_their_order(door: Door) -> None:
    for job_id in ("a", "b", "c"):
        door.put(job_id)
    held = door.pop(2, consumer="gone")
    door.on_deliveries("return", [{"id": job["id"], "receipt": job["receipt"]} for job in held])
    assert [job["id"] for job in door.pop(3)] == ["a", "b", "c"]


@on_batches
def test_a_returned_job_still_expires(door: Door) -> None:
    held = door.reserve("a", ttl=10)
    door.on_deliveries("return", [{"id": "a", "receipt": held["receipt"]}])
    door.pass_time(11)
    assert (door.state(), door.get()["reason"]) == ("dead", "expired")


@on_batches
def test_jobs_are_taken_back_from_their_consumer(door: Door) -> None:
    held = door.reserve("a", max_attempts=1, ttl=10)
    door.put("b")
    [other] = door.pop(consumer="other")
    door.pass_time(11)
    items = [{"id": "a"}, {"id": "b"}, {"id": "none"}]
    expected = [(409, "receipt_stale"), (200, None), (404, "job_not_found")]
    assert door.on_deliveries("return", items, consumer="other") == expected
    assert door.on_deliveries("return", items[:1]) == [(200, None)]
    for job in (held, other):
        with refused("receipt_stale"):
            door.finish(job["id"], job["receipt"])
    again = sorted(door.pop_all(), key=_id_of)
    assert [(job["id"], job["attempt"], job["snoozes"]) for job in again] == [("a", 1, 1), ("b", 1, 1)]


@on_batches
def test_a_delivery_that_is_over_is_not_returned(door: Door) -> None:
    held = door.reserve("a", ttr=5)
    door.pass_time(6)
    door.pop_one()
    items = [{"id": "a", "receipt": held["receipt"]}]
    assert door.on_deliveries("return", items) == [(409, "receipt_stale")]
    door.cancel("a")
    assert door.on_deliveries("return", items)[0].status != 200
    assert not door.has("a")


def _id_of(job: Job) -> str:
    job_id: str = job["id"]
    return job_id
