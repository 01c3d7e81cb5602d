"""Batches: one job is put when all jobs of a batch have ended."""

from __future__ import annotations

from typing import Any

from tests.conformance.door import Door, Job, on_batches, on_topics, one_partition, refused
from tests.conformance.shards import beside

pytestmark = one_partition
DAY_S = 86_400


def begin(door: Door, **fields: Any) -> str:
    """Create a batch named as the test's topic; returns the topic into which it puts its job."""
    topic = beside(door)
    door.set_batch(door.topic, on_end={"topic": topic}, **fields)
    return topic


def put(door: Door, job_id: str = "a", **fields: Any) -> Job:
    return door.put(job_id, batch=door.topic, **fields)


def finish(door: Door, job_id: str, **fields: Any) -> None:
    """Put a job of the batch, and finish it."""
    put(door, job_id, **fields)
    door.finish(job_id, door.pop_one()["receipt"])


def seal(door: Door) -> Job:
    return door.set_batch(door.topic, seal=True)


def counts(door: Door) -> tuple[int, int, int, int]:
    batch = door.batch(door.topic)
    return batch["joined"], batch["finished"], batch["dead"], batch["cancelled"]


def completed(door: Door, topic: str) -> list[tuple[int, int, int]]:
    """The counts in the jobs that the batch has put."""
    bodies = [job["body"] for job in door.pop_all(topics=(topic,))]
    assert all(body["batch"] == door.topic for body in bodies)
    return [(body["finished"], body["dead"], body["cancelled"]) for body in bodies]


def test_a_job_is_put_when_all_have_ended(door: Door) -> None:
    topic = begin(door)
    for job_id in ("finished", "dead", "cancelled"):
        put(door, job_id, delay=60 if job_id == "cancelled" else 0, tags=["t"])
    assert door.get("dead")["batch"] == door.topic
    assert door.get("dead")["tags"] == ["t", f"batch:{door.topic}"]
    held = {job["id"]: job["receipt"] for job in door.pop_all()}
    door.bury("dead", held["dead"])
    door.cancel("cancelled")
    assert not seal(door)["completed_at"]
    assert counts(door) == (3, 0, 1, 1)
    assert completed(door, topic) == []
    door.finish("finished", held["finished"])
    batch = door.batch(door.topic)
    assert (batch["sealed"], batch["finished"]) == (True, 1)
    assert batch["completed_at"] >= batch["created_at"]
    [job] = door.pop(topics=(topic,))
    assert job["body"] == {"batch": door.topic, "finished": 1, "dead": 1, "cancelled": 1}
    assert door.pop(topics=(topic,)) == []


def test_the_seal_may_come_last(door: Door) -> None:
    topic = begin(door)
    finish(door, "a")
    finish(door, "b", retain=60)
    assert completed(door, topic) == []
    seal(door)
    seal(door)
    assert completed(door, topic) == [(2, 0, 0)]


def test_a_batch_without_jobs_completes_when_it_is_sealed(door: Door) -> None:
    topic = begin(door, seal=True)
    assert completed(door, topic) == [(0, 0, 0)]


def test_the_job_has_the_id_that_was_asked_for(door: Door) -> None:
    topic = beside(door)
    batch = door.set_batch(door.topic, on_end={"topic": topic, "id": "done"}, seal=True)
    assert batch["on_end"] == {"topic": topic, "id": "done"}
    assert [job["id"] for job in door.pop(topics=(topic,))] == ["done"]


def test_it_seals_itself_when_as_many_have_joined_as_are_expected(door: Door) -> None:
    topic = begin(door, expect=2)
    finish(door, "a")
    finish(door, "b")
    assert completed(door, topic) == [(2, 0, 0)]
    with refused("batch_sealed"):
        put(door, "c")
    assert not door.has("c")


def test_an_expectation_that_is_met_already_seals(door: Door) -> None:
    topic = begin(door)
    finish(door, "a")
    assert door.set_batch(door.topic, expect=1)["expect"] == 1
    assert completed(door, topic) == [(1, 0, 0)]


def test_it_must_exist_and_not_be_sealed(door: Door) -> None:
    with refused("batch_not_found", door.topic):
        put(door)
    with refused("validation", "end"):  # as the field, or the option
        door.set_batch(door.topic, seal=True)
    with refused("batch_not_found"):
        door.batch(door.topic)
    with refused("batch_not_found"):
        door.delete_batch(door.topic)
    begin(door)
    put(door, delay=60, on_end=None)
    seal(door)
    with refused("batch_sealed"):
        put(door, "b")
    assert put(door, on_conflict="keep")["state"] == "delayed"
    with refused("job_exists"):
        put(door)
    assert counts(door) == (1, 0, 0, 0)


@on_batches
def test_each_job_of_many_joins_or_is_refused(door: Door) -> None:
    begin(door, expect=2)
    jobs = [{"id": job_id, "batch": door.topic, "delay": 60} for job_id in ("a", "b", "c")]
    other = {"id": "d", "batch": f"{door.topic}.none"}
    results = door.put_batch([*jobs, other, {"id": "e"}])
    assert results == [(201, None), (201, None), (409, "batch_sealed"), (404, "batch_not_found"), (201, None)]
    assert counts(door) == (2, 0, 0, 0)


def test_its_jobs_are_in_its_shard(door: Door) -> None:
    begin(door)
    elsewhere = beside(door, same_shard=False)
    with refused("different_shard", elsewhere):
        door.put("a", topic=elsewhere, batch=door.topic)
    with refused("different_shard"):
        door.set_batch(door.topic, on_end={"topic": elsewhere})


@on_batches
def test_its_jobs_are_in_its_shard_also_if_they_are_many(door: Door) -> None:
    begin(door)
    job = {"id": "a", "topic": beside(door, same_shard=False), "batch": door.topic}
    assert door.put_batch([job, {"id": "b"}]) == [(422, "different_shard"), (201, None)]


def test_a_job_that_is_replaced_by_one_of_the_batch_stays_in_it(door: Door) -> None:
    topic = begin(door, expect=1)
    put(door, delay=60)
    put(door, "a", body=2, delay=60, on_conflict="replace")
    assert counts(door) == (1, 0, 0, 0)
    door.cancel("a")
    assert completed(door, topic) == [(0, 0, 1)]
    with refused("batch_sealed"):
        put(door, on_conflict="replace")


def test_a_job_that_is_replaced_by_another_one_has_left(door: Door) -> None:
    topic = begin(door)
    put(door, delay=60)
    seal(door)
    door.put("a", delay=60, on_conflict="replace")
    assert door.get()["batch"] is None
    assert completed(door, topic) == [(0, 0, 1)]
    door.cancel("a")
    assert completed(door, topic) == []


def test_a_dead_job_that_is_replaced_was_counted(door: Door) -> None:
    begin(door)
    put(door)
    door.bury("a", door.pop_one()["receipt"])
    put(door, delay=60, on_conflict="replace")
    assert counts(door) == (2, 0, 1, 0)


def test_a_redrive_takes_the_end_back(door: Door) -> None:
    topic = begin(door)
    put(door)
    put(door, "b", delay=60)
    door.bury("a", door.pop_one()["receipt"])
    assert counts(door) == (2, 0, 1, 0)
    door.redrive(["a"])
    seal(door)
    door.cancel("b")
    assert counts(door) == (2, 0, 0, 1)
    door.finish("a", door.pop_one()["receipt"])
    assert completed(door, topic) == [(1, 0, 1)]


def test_nothing_changes_a_completed_batch(door: Door) -> None:
    topic = begin(door, expect=1)
    put(door)
    door.bury("a", door.pop_one()["receipt"])
    assert completed(door, topic) == [(0, 1, 0)]
    door.redrive(["a"])
    door.finish("a", door.pop_one()["receipt"])
    assert counts(door) == (1, 0, 1, 0)
    door.set_batch(door.topic, on_end={"topic": topic, "id": "again"}, expect=5, seal=True)
    assert door.batch(door.topic)["expect"] == 1
    assert completed(door, topic) == []


def test_a_finish_puts_more_jobs_into_the_batch(door: Door) -> None:
    topic = begin(door)
    put(door)
    held = door.pop_one()
    door.finish("a", held["receipt"], put=[{"id": job_id, "batch": door.topic} for job_id in ("b", "c")])
    assert counts(door) == (3, 1, 0, 0)
    seal(door)
    b, c = door.pop_all()
    with refused("batch_sealed"):
        door.finish(b["id"], b["receipt"], put=[{"id": "d", "batch": door.topic}])
    with refused("batch_not_found"):
        door.finish(b["id"], b["receipt"], put=[{"id": "d", "batch": f"{door.topic}.none"}])
    with refused("different_shard"):
        elsewhere = {"id": "d", "batch": door.topic, "topic": beside(door, same_shard=False)}
        door.finish(b["id"], b["receipt"], put=[elsewhere])
    assert counts(door) == (3, 1, 0, 0)
    for job in (b, c):
        door.finish(job["id"], job["receipt"])
    assert completed(door, topic) == [(3, 0, 0)]


def test_a_change_of_tags_keeps_that_of_the_batch(door: Door) -> None:
    begin(door)
    put(door, delay=60)
    assert door.change("a", tags=["t"])["tags"] == ["t", f"batch:{door.topic}"]
    assert door.change("a", tags=["t", f"batch:{door.topic}"])["tags"] == ["t", f"batch:{door.topic}"]


@on_topics
def test_a_deleted_batch_cancels_its_jobs_and_puts_none(door: Door) -> None:
    topic = begin(door)
    for job_id in ("held", "ready"):
        put(door, job_id)
    put(door, "delayed", delay=60)
    door.put("other", delay=60)
    held = door.pop_one()
    assert door.delete_batch(door.topic) == 3
    with refused("job_cancelled"):
        door.finish(held["id"], held["receipt"])
    assert door.counts() == {"delayed": 1}
    with refused("batch_not_found"):
        put(door, "again")
    assert completed(door, topic) == []


@on_topics
def test_the_deletion_may_leave_held_jobs(door: Door) -> None:
    topic = begin(door)
    put(door)
    put(door, "b", delay=60)
    held = door.pop_one()
    assert door.delete_batch(door.topic, if_reserved="refuse") == 1
    door.finish("a", held["receipt"])
    assert completed(door, topic) == []
    begin(door, seal=True)
    assert completed(door, topic) == [(0, 0, 0)]


def test_a_job_of_an_earlier_batch_is_not_of_its_namesake(door: Door) -> None:
    topic = begin(door, expect=1)
    put(door)
    door.bury("a", door.pop_one()["receipt"])
    completed(door, topic)
    door.pass_time(DAY_S + 1)
    with refused("batch_not_found"):
        door.batch(door.topic)
    assert door.topic not in door.batches()
    begin(door)
    door.redrive(["a"])
    door.finish("a", door.pop_one()["receipt"])
    assert counts(door) == (0, 0, 0, 0)


def test_all_are_listed_once(door: Door) -> None:
    topic = beside(door)
    names = {f"{door.topic}.{number}" for number in range(5)}
    for name in names:
        door.set_batch(name, on_end={"topic": topic})
    listed = [name for name in door.batches() if name.startswith(door.topic)]
    assert sorted(listed) == sorted(names)
