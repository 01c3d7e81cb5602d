"""Topics: lists, counts, redrive and purge."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.door import DOORS, PARTITIONED, RESP, Door, on_topics, one_partition, refused


@on_topics
def test_a_topic_without_jobs_and_settings_does_not_exist(door: Door) -> None:
    if door.partitions is None:
        with refused("topic_not_found", f"there is no topic {door.topic!r}"):
            door.view()
        for call in (door.resume, door.jobs, door.redrive, door.purge):
            with refused("topic_not_found"):
                call()
        door.pause()
        assert door.view()["paused"]
        assert door.counts() == {}


@on_topics
def test_jobs_are_counted_and_listed_by_state(door: Door) -> None:
    states = door.in_each_state(ttr=600)
    assert door.counts() == dict.fromkeys(states, 1)
    assert {job["id"] for job in door.jobs()} == {*states}
    for state in states:
        [job] = door.jobs(state)
        assert (job["id"], job["state"]) == (state, state)
        assert job == door.get(state)


@on_topics
def test_a_list_spans_pages(door: Door) -> None:
    ids = {f"j{number}" for number in range(250)}
    door.put_batch([{"id": job_id, "delay": 60} for job_id in ids])
    assert {job["id"] for job in door.jobs("delayed")} == ids


@on_topics
def test_redriven_jobs_are_as_new(door: Door) -> None:
    old = door.reserve("a", ttl=10, max_attempts=1)
    door.bury("a", old["receipt"], error="no use")
    door.pass_time(100)
    assert door.redrive() == 1
    job = door.get("a")
    assert (job["state"], job["attempts"], job["reason"], job["last_error"]) == ("ready", 0, None, "no use")
    again = door.pop_one()
    assert again["attempt"] == 1
    with refused("receipt_stale"):
        door.finish("a", old["receipt"])
    door.finish("a", again["receipt"])


@on_topics
@one_partition
def test_redrive_takes_the_longest_dead_up_to_its_limit(door: Door) -> None:
    for job_id in ("a", "b", "c"):
        door.kill(job_id)
        door.pass_time(0.01)
    assert door.redrive(limit=2) == 2
    assert [job["id"] for job in door.pop(5)] == ["a", "b"]


@on_topics
def test_redrive_by_id_skips_jobs_that_are_not_dead(door: Door) -> None:
    for job_id in ("a", "b"):
        door.kill(job_id)
    door.put("ready")
    assert door.redrive(["a", "ready", "nobody", "a"]) == 1
    assert door.counts() == {"dead": 1, "ready": 2}
    assert door.redrive(["a", "b"]) == 1


@on_topics
def test_a_purge_removes_the_jobs_of_a_state_or_all(door: Door) -> None:
    states = door.in_each_state()
    assert door.purge("delayed") == 1
    assert door.counts() == dict.fromkeys({*states} - {"delayed"}, 1)
    assert door.purge() == 4
    assert door.counts() == {}
    door.pass_time(700)
    assert door.pop_all() == []


@on_topics
def test_the_holder_of_a_purged_job_gets_job_cancelled(door: Door) -> None:
    held = door.reserve("a")
    assert door.purge() == 1
    with refused("job_cancelled"):
        door.finish("a", held["receipt"])


@on_topics
def test_a_paused_topic_takes_jobs_promotes_them_and_lets_deliveries_end(door: Door) -> None:
    held = door.reserve("held")
    door.set_topic(ttr=5)
    door.pause()
    assert door.view()["settings"]["ttr"] == 5
    door.put("a", delay=50)
    door.pass_time(51)
    assert (door.state("a"), door.pop()) == ("ready", [])
    door.finish("held", held["receipt"])


@on_topics
def test_a_purge_keeps_the_settings(door: Door) -> None:
    door.set_topic(ttr=5)
    door.put("a")
    assert door.purge() == 1
    assert door.put("a")["ttr"] == 5


def test_tags_and_headers_stay_through_the_life_of_a_job(door: Door) -> None:
    labels: dict[str, Any] = {"tags": ["customer:7", "mail"], "headers": {"kind": "reminder"}}
    door.put("a", delay=50, **labels)
    assert {name: door.get()[name] for name in labels} == labels
    door.pass_time(51)
    assert door.pop_one()["tags"] == labels["tags"]
    door.release("a", delay=0)
    door.pass_time(0.001)
    again = door.pop_one()
    assert {name: again[name] for name in labels} == labels
    door.bury("a")
    door.redrive()
    changed = door.change("a", tags=["other"])
    assert (changed["tags"], changed["headers"]) == (["other"], labels["headers"])


@on_topics
@one_partition
def test_groups_are_listed_and_hand_out_nothing_while_they_are_paused(door: Door) -> None:
    with refused("topic_not_found"):
        door.groups()
    with refused("topic_not_found"):
        door.pause_group("a", resume=True)
    door.put("held", group="a", ttr=600)
    held = door.pop_one()
    for job_id in ("a1", "a2", "a3"):
        door.put(job_id, group="a", priority=len(job_id))
    door.pass_time(20)
    door.put("b1", group="b")
    door.put("b2", group="b", delay=600)
    for job_id in ("p1", "p2"):
        door.put(job_id)
    assert not door.view()["paused"]
    paused = door.pause_group("a")
    assert (paused["group"], paused["ready"], paused["reserved"], paused["paused"]) == ("a", 3, 1, True)
    found = door.groups()
    names = ("group", "ready", "reserved", "delayed", "paused")
    assert [tuple(one[name] for name in names) for one in found] == [
        ("a", 3, 1, 0, True),
        (None, 2, 0, 0, False),
        ("b", 1, 0, 1, False),
    ]
    ages = {one["group"]: one["oldest_ready_age"] for one in found}
    assert 20 <= ages["a"] < 50
    assert max(ages[None], ages["b"]) < 20
    assert [one["group"] for one in door.groups("age")][0:1] == ["a"]
    assert [one["group"] for one in door.groups("reserved")][0:1] == ["a"]
    assert sorted(job["id"] for job in door.pop_all()) == ["b1", "p1", "p2"]
    door.finish("held", held["receipt"])
    assert not door.pause_group("a", resume=True)["paused"]
    assert sorted(job["id"] for job in door.pop_all()) == ["a1", "a2", "a3"]
    for job_id in ("a1", "a2", "a3", "b1", "b2", "p1", "p2"):
        door.cancel(job_id)
    assert door.pause_group("c")["ready"] == 0
    door.pass_time(3 * 3600)
    assert [(one["group"], one["paused"]) for one in door.groups()] == [("c", True)]


@pytest.mark.doors(without=(RESP, *(door for door in DOORS if door not in PARTITIONED)))
def test_a_topic_with_several_partitions_has_no_groups(door: Door) -> None:
    door.put("a")
    with refused("validation", "has several"):
        door.pause_group("g")
    assert [one["group"] for one in door.groups()] == [None]
