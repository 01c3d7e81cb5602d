"""`on_end`: the job that the end of a job puts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.door import Door, Job, also_eager, on_batches, on_topics, one_partition, refused
from tests.conformance.shards import beside

pytestmark = one_partition


def ended(door: Door, topic: str) -> list[Job]:
    """The jobs that ends have put into a topic."""
    return door.pop_all(topics=(topic,))


def outcomes(door: Door, topic: str) -> list[tuple[str, str]]:
    return sorted((job["body"]["id"], job["body"]["outcome"]) for job in ended(door, topic))


def test_a_finish_puts_a_job_that_says_so(door: Door) -> None:
    topic = beside(door)
    on_end = {"topic": topic, "body": True}
    held = door.reserve("a", {"n": [1.5, {}]}, on_end=on_end, tags=["t1", "t2"], headers={"h": 'x"/'})
    assert door.get()["on_end"] == on_end
    assert ended(door, topic) == []
    door.finish("a", held["receipt"], result={"sum": [1, {}, None]})
    [job] = ended(door, topic)
    assert job["body"] == {
        "topic": door.topic,
        "id": "a",
        "outcome": "finished",
        "attempts": 1,
        "result": {"sum": [1, {}, None]},
        "tags": ["t1", "t2"],
        "headers": {"h": 'x"/'},
        "body": {"n": [1.5, {}]},
    }
    assert job["on_end"] is None
    assert job["id"].startswith("end-")


def test_a_job_without_anything_says_only_how_it_ended(door: Door) -> None:
    topic = beside(door)
    door.finish("a", door.reserve("a", on_end={"topic": topic})["receipt"])
    [job] = ended(door, topic)
    body = {"topic": door.topic, "id": "a", "outcome": "finished", "attempts": 1, "tags": [], "headers": {}}
    assert job["body"] == body


def test_a_dead_job_says_why(door: Door) -> None:
    topic = beside(door)
    door.kill("a", on_end={"topic": topic}, error='no "use"')
    [job] = ended(door, topic)
    assert (job["body"]["outcome"], job["body"]["reason"]) == ("dead", "buried")
    assert (job["body"]["error"], job["body"]["attempts"]) == ('no "use"', 1)


@pytest.mark.parametrize(
    ("reason", "policy"),
    [
        ("attempts_exhausted", {"max_attempts": 1}),
        ("schedule_ended", {"backoff": {"kind": "schedule", "seconds": [1], "then": "dead"}}),
        ("deadline", {"deadline": 5}),
        ("expired", {"ttl": 5}),
    ],
)
def test_every_death_is_an_end(door: Door, reason: str, policy: dict[str, Any]) -> None:
    topic = beside(door)
    door.put("a", on_end={"topic": topic}, **policy)
    if reason == "expired":
        door.pass_time(6)
    else:
        door.release("a", door.pop_one()["receipt"], error="no use")
        door.pass_time(6)
    if reason == "schedule_ended":
        door.release("a", door.pop_one()["receipt"])
    [job] = ended(door, topic)
    assert (job["body"]["outcome"], job["body"]["reason"]) == ("dead", reason)


def test_a_lease_that_ends_for_the_last_time_is_an_end_also_of_a_job_that_is_not_kept(door: Door) -> None:
    topic = beside(door)
    door.reserve("a", max_attempts=1, ttr=1, dead_retain=0, on_end={"topic": topic})
    door.pass_time(2)
    assert outcomes(door, topic) == [("a", "dead")]
    assert not door.has("a")


def test_a_cancel_is_an_end_in_each_state_of_a_live_job(door: Door) -> None:
    topic = beside(door)
    for state in door.in_each_state(on_end={"topic": topic}):
        door.cancel(state)
    bodies = [job["body"] for job in ended(door, topic)]
    assert sorted((body["id"], body["outcome"], body["attempts"]) for body in bodies) == [
        ("dead", "dead", 1),
        ("delayed", "cancelled", 0),
        ("finished", "finished", 1),
        ("ready", "cancelled", 0),
        ("reserved", "cancelled", 0),
    ]


@on_batches
def test_a_cancel_of_many_is_an_end_of_each(door: Door) -> None:
    topic = beside(door)
    for number in range(3):
        door.put(f"a{number}", number, delay=60, on_end={"topic": topic, "body": True})
    door.put("plain", delay=60)
    door.cancel_batch([{"id": "a0"}, {"id": "a1"}, {"id": "plain"}, {"id": "none"}])
    assert outcomes(door, topic) == [("a0", "cancelled"), ("a1", "cancelled")]


@on_topics
def test_a_cancel_by_tag_and_a_purge_are_ends(door: Door) -> None:
    topic = beside(door)
    tag = door.topic
    door.kill("tag-dead", tags=[tag], on_end={"topic": topic})
    assert outcomes(door, topic) == [("tag-dead", "dead")]
    for state in ("delayed", "ready", "reserved"):
        door.put(f"tag-{state}", delay=60 if state == "delayed" else 0, tags=[tag], on_end={"topic": topic})
        if state == "reserved":
            door.pop(2)
    door.on_selected("cancel", select={"tag": tag})
    assert outcomes(door, topic) == [(f"tag-{state}", "cancelled") for state in ("delayed", "ready", "reserved")]
    for state in door.in_each_state(on_end={"topic": topic}):
        door.purge(state)
    assert len(ended(door, topic)) == 5


@also_eager
def test_a_put_that_replaces_a_job_is_no_end_of_it(door: Door) -> None:
    topic = beside(door)
    door.put("a", 1, delay=60, on_end={"topic": topic})
    door.put("a", 2, on_conflict="replace", delay=60, on_end={"topic": topic, "body": True}, tags=["t"])
    assert ended(door, topic) == []
    door.cancel("a")
    [job] = ended(door, topic)
    says = {"topic": door.topic, "id": "a", "outcome": "cancelled", "attempts": 0, "tags": ["t"], "headers": {}}
    assert job["body"] == {**says, "body": 2}
    door.put("b", delay=60, on_end={"topic": topic})
    door.put("b", on_conflict="replace", delay=60)
    door.cancel("b")
    assert ended(door, topic) == []


def test_a_follow_up_has_an_end_of_its_own(door: Door) -> None:
    topic = beside(door)
    held = door.reserve("a", 1, on_end={"topic": topic, "body": True})
    door.put(
        "a", 2, on_conflict="keep", if_reserved="after", on_end={"topic": topic, "on": ["cancelled"], "body": True}
    )
    door.finish("a", held["receipt"])
    assert [job["body"]["body"] for job in ended(door, topic)] == [1]
    door.cancel("a")
    assert [job["body"]["body"] for job in ended(door, topic)] == [2]


def test_collected_items_are_the_body(door: Door) -> None:
    topic = beside(door)
    for number in range(3):
        door.put("a", number, on_conflict="append", delay=60, on_end={"topic": topic, "body": True})
    door.cancel("a")
    assert [job["body"]["body"] for job in ended(door, topic)] == [[0, 1, 2]]


def test_only_the_outcomes_that_are_named_put_a_job(door: Door) -> None:
    topic = beside(door)
    on_end = {"topic": topic, "on": ["dead", "cancelled"]}
    door.finish("a", door.reserve("a", on_end=on_end)["receipt"])
    door.kill("b", on_end=on_end)
    door.put("c", on_end=on_end)
    door.cancel("c")
    assert outcomes(door, topic) == [("b", "dead"), ("c", "cancelled")]


def test_an_id_from_a_template_is_put_once(door: Door) -> None:
    topic = beside(door)
    on_end = {"topic": topic, "id": "{outcome}:{id}"}
    door.kill("a", "first", on_end=on_end)
    door.redrive()
    door.bury("a", door.pop_one()["receipt"], error="second")
    assert [(job["id"], job["body"]["error"]) for job in ended(door, topic)] == [("dead:a", "first")]


def test_a_redriven_job_ends_once_more(door: Door) -> None:
    topic = beside(door)
    door.kill("a", on_end={"topic": topic})
    door.redrive()
    door.finish("a", door.pop_one()["receipt"])
    assert outcomes(door, topic) == [("a", "dead"), ("a", "finished")]


def test_a_repeated_finish_is_one_end(door: Door) -> None:
    topic = beside(door)
    held = door.reserve("a", retain=60, on_end={"topic": topic})
    door.finish("a", held["receipt"])
    door.finish("a", held["receipt"])
    door.purge("finished")
    assert outcomes(door, topic) == [("a", "finished")]


def test_a_change_sets_and_removes_it(door: Door) -> None:
    topic = beside(door)
    door.put("a", delay=60)
    assert door.change("a", on_end={"topic": topic})["on_end"] == {"topic": topic}
    door.cancel("a")
    door.put("b", delay=60, on_end={"topic": topic})
    assert door.change("b", on_end=None)["on_end"] is None
    door.cancel("b")
    assert outcomes(door, topic) == [("a", "cancelled")]


@on_topics
def test_a_topic_has_one_for_its_jobs_which_a_put_may_refuse(door: Door) -> None:
    topic = beside(door)
    door.set_topic(on_end={"topic": topic})
    assert door.put("a", delay=60)["on_end"] == {"topic": topic}
    assert door.put("b", delay=60, on_end=None)["on_end"] is None
    door.cancel("a")
    door.cancel("b")
    assert outcomes(door, topic) == [("a", "cancelled")]


@on_topics
def test_the_job_of_an_end_has_none_of_its_own_also_in_the_same_topic(door: Door) -> None:
    door.set_topic(on_end={"topic": door.topic})
    door.finish("a", door.reserve("a")["receipt"])
    job = door.pop_one()
    assert (job["body"]["id"], job["on_end"]) == ("a", None)
    door.finish(job["id"], job["receipt"])
    assert door.pop() == []


@on_topics
def test_a_full_topic_gets_it_all_the_same(door: Door) -> None:
    held = door.reserve("a", on_end={"topic": door.topic})
    door.put("b", delay=60)
    door.set_topic(max_jobs=1)
    door.finish("a", held["receipt"])
    assert [job["body"]["id"] for job in door.pop_all()] == ["a"]


@on_topics
def test_runs_of_a_schedule_have_ends_but_for_one_that_is_withdrawn(door: Door) -> None:
    topic = beside(door)
    first = door.put_schedule(every=3600, overlap="replace", job={"on_end": {"topic": topic}})["next_job"]
    door.pass_time(3601)
    second = door.schedule()["next_job"]
    door.pass_time(3600)
    assert outcomes(door, topic) == [(first, "cancelled")]
    door.schedule("delete")
    held = door.pop_one()
    door.finish(held["id"], held["receipt"])
    assert outcomes(door, topic) == [(second, "finished")]


def test_a_finish_that_puts_jobs_is_an_end(door: Door) -> None:
    topic = beside(door)
    held = door.reserve("a", on_end={"topic": topic})
    door.finish("a", held["receipt"], put=[{"topic": door.topic, "id": "next", "on_end": {"topic": topic}}])
    assert outcomes(door, topic) == [("a", "finished")]
    door.cancel("next")
    assert outcomes(door, topic) == [("next", "cancelled")]


def test_a_topic_in_another_shard_is_refused(door: Door) -> None:
    on_end = {"topic": beside(door, same_shard=False)}
    with refused("different_shard", "nothing was done"):
        door.put("a", on_end=on_end)
    assert not door.has("a")
    held = door.reserve("b")
    with refused("different_shard"):
        door.finish("b", held["receipt"], put=[{"topic": door.topic, "on_end": on_end}])
    door.put("c", delay=60)
    with refused("different_shard"):
        door.change("c", on_end=on_end)
