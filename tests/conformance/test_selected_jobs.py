"""Calls on jobs that are selected by a tag, a state, their ids or how they died: each job once, and no other."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from tests.conformance.door import Door, Job, on_topics, one_partition, refused

RUN_AT = datetime(datetime.now(UTC).year + 2, 1, 12, 20, tzinfo=UTC)


def selected(door: Door, verb: str, select: dict[str, Any] | None = None, **call: Any) -> Job:
    """Act on jobs that have the topic's name as a tag, unless others are selected."""
    return door.on_selected(verb, select=select or {"tag": door.topic}, **call)


def outcome(done: int, matched: int | None = None, *, complete: bool = True, **was: Any) -> dict[str, Any]:
    return {"matched": done if matched is None else matched, "done": done, "was": was, "complete": complete}


def one_each(states: Iterable[str]) -> dict[str, Any]:
    return dict.fromkeys(states, 1)


@on_topics
def test_a_tag_cancels_its_jobs_in_every_state_and_no_others(door: Door) -> None:
    states = door.in_each_state(tags=[door.topic])
    door.put("other", tags=[f"{door.topic}-2"])
    assert selected(door, "cancel") == outcome(5, **one_each(states))
    assert [job["id"] for job in door.jobs()] == ["other"]
    with refused("job_cancelled"):
        door.touch("reserved")
    assert selected(door, "cancel") == outcome(0)


@on_topics
@one_partition
def test_a_group_selects_its_jobs_in_every_state_and_no_others(door: Door) -> None:
    states = door.in_each_state(group="g", ttr=600)
    door.put("other", group="g2")
    door.put("later", delay=60)
    select = {"group": "g", "topics": [door.topic]}
    assert selected(door, "cancel", select, dry_run=True) == outcome(0, 5, **one_each(states))
    assert selected(door, "reschedule", select, by=60) == outcome(2, delayed=1, ready=1)
    assert door.counts() == {"dead": 1, "finished": 1, "reserved": 1, "delayed": 3, "ready": 1}
    assert selected(door, "cancel", select, limit=1)["complete"] is False
    assert selected(door, "cancel", select, if_reserved="refuse")["done"] == 3
    assert selected(door, "cancel", select) == outcome(1, reserved=1)
    assert {job["id"] for job in door.jobs()} == {"other", "later"}
    for job_id, group in (("a", "g"), ("b", "g2"), ("c", "g"), ("d", "g")):
        door.put(job_id, group=group, priority=9)
        door.bury(job_id, door.pop_one()["receipt"])
    assert door.preview("redrive", group="g")["samples"] == {"a", "c", "d"}
    assert door.redrive(group="g", limit=2) == 2
    assert door.preview("purge", group="g")["matched"] == 3
    assert door.purge(state="dead", group="g") == 1
    assert door.purge(group="g") == 2
    assert {job["id"] for job in door.jobs()} == {"other", "later", "b"}


@on_topics
def test_jobs_that_a_consumer_holds_can_be_left(door: Door) -> None:
    states = door.in_each_state(tags=[door.topic])
    assert selected(door, "cancel", if_reserved="refuse") == outcome(4, 5, **one_each(states))
    assert door.counts() == {"reserved": 1}


@on_topics
def test_jobs_are_selected_by_their_ids(door: Door) -> None:
    other = f"{door.topic}-other"
    for topic in (door.topic, other):
        door.put("a", topic=topic, delay=60)
        door.put("b", topic=topic)
    names = [{"topic": topic, "id": job_id} for topic in (door.topic, other) for job_id in ("a", "missing", "a")]
    select = {"ids": names[:-3] + names[:1]}
    assert selected(door, "cancel", select) == outcome(1, delayed=1)
    assert selected(door, "cancel", {"ids": names}) == outcome(1, delayed=1)
    assert door.counts() == {"ready": 1}
    assert selected(door, "cancel", {"state": "ready", "topics": [f"{door.topic}*"]}) == outcome(2, ready=2)


@on_topics
def test_jobs_are_selected_by_their_state_and_when_they_are_due(door: Door) -> None:
    for hour in range(10, 16):
        door.put(f"at-{hour}", run_at=RUN_AT.replace(hour=hour).isoformat())
    door.put("ready")
    between = {"due_after": RUN_AT.replace(hour=11).isoformat(), "due_before": RUN_AT.replace(hour=14).isoformat()}
    select = {"state": "delayed", "topics": [door.topic], **between}
    assert selected(door, "cancel", select) == outcome(3, delayed=3)
    assert {job["id"] for job in door.jobs()} == {"at-10", "at-14", "at-15", "ready"}


@on_topics
def test_a_limit_leaves_the_rest_for_the_next_call(door: Door) -> None:
    door.put_batch([{"id": f"j{number}", "delay": 60, "tags": [door.topic]} for number in range(30)])
    of_state = {"state": "delayed", "topics": [door.topic]}
    assert selected(door, "cancel", limit=20) == outcome(20, complete=False, delayed=20)
    assert selected(door, "cancel", of_state, limit=4) == outcome(4, complete=False, delayed=4)
    assert selected(door, "cancel", limit=9) == outcome(6, delayed=6)
    assert door.counts() == {}


@on_topics
def test_delayed_and_ready_jobs_are_moved_and_others_stay(door: Door) -> None:
    states = door.in_each_state(tags=[door.topic])
    before = {state: door.get(state) for state in states}
    expected = outcome(2, 5, **one_each(states))
    assert selected(door, "reschedule", by=100.5) == expected
    for state in states:
        job = door.get(state)
        if state in {"delayed", "ready"}:
            assert (job["state"], round(job["due_at"] - before[state]["due_at"], 3)) == ("delayed", 100.5)
        else:
            assert job == before[state]
    assert selected(door, "reschedule", run_at=RUN_AT.isoformat())["done"] == 2
    assert {door.get(state)["due_at"] for state in ("delayed", "ready")} == {RUN_AT.timestamp()}
    selected(door, "reschedule", delay=50)
    door.pass_time(49)
    assert door.counts()["delayed"] == 2
    door.pass_time(2)
    assert "delayed" not in door.counts()
    selected(door, "reschedule", delay=50)
    selected(door, "reschedule", by=-1000)
    assert "delayed" not in door.counts(), "what is moved to the past is due now"


@on_topics
def test_a_repeated_call_moves_no_job_twice_and_none_that_was_put_since(door: Door) -> None:
    for job_id in ("a", "b"):
        door.put(job_id, delay=600, tags=[door.topic])
    before = door.get()["due_at"]
    call: dict[str, Any] = {"by": 60, "request_id": door.topic}
    assert selected(door, "reschedule", **call) == outcome(2, delayed=2)
    door.pass_time(0.01)
    late = door.put("late", delay=600, tags=[door.topic])["due_at"]
    assert selected(door, "reschedule", **call) == outcome(2, delayed=2)
    assert (round(door.get()["due_at"] - before), door.get("late")["due_at"]) == (60, late)
    for _ in range(2):
        assert selected(door, "cancel", request_id=door.topic) == outcome(3, delayed=3)
        door.pass_time(0.01)
        door.put("a", delay=600, tags=[door.topic])
        door.cancel("a")


@on_topics
def test_jobs_that_are_rescheduled_together_can_be_spread(door: Door) -> None:
    ids = [f"j{number}" for number in range(20)]
    door.put_batch([{"id": job_id, "delay": 600, "tags": [door.topic]} for job_id in ids])
    before = {job_id: door.get(job_id)["due_at"] for job_id in ids}
    assert selected(door, "reschedule", by=100, spread=50)["done"] == 20
    moved = {job_id: door.get(job_id)["due_at"] - before[job_id] for job_id in ids}
    assert all(100 <= round(by, 3) <= 150 for by in moved.values()), moved
    assert len(set(moved.values())) > 10, "each by another part of the spread"
    for _ in range(2):
        selected(door, "reschedule", run_at=RUN_AT.isoformat(), spread=50)
        again = {job_id: door.get(job_id)["due_at"] - RUN_AT.timestamp() for job_id in ids}
        assert {job_id: round(by + 100, 3) for job_id, by in again.items()} == {
            job_id: round(by, 3) for job_id, by in moved.items()
        }, "the part depends on the id"


@on_topics
def test_a_dry_run_changes_nothing(door: Door) -> None:
    for job_id in ("a", "b"):
        door.put(job_id, delay=60, tags=[door.topic])
    before = door.get()
    for select in ({"tag": door.topic}, {"state": "delayed", "topics": [door.topic]}):
        assert selected(door, "reschedule", select, by=5, dry_run=True) == outcome(0, 2, delayed=2)
        assert selected(door, "cancel", select, dry_run=True) == outcome(0, 2, delayed=2)
        assert selected(door, "cancel", select, dry_run=True, limit=1)["complete"] is False
    assert (door.get(), door.counts()) == (before, {"delayed": 2})


@on_topics
def test_dead_jobs_are_selected_by_how_they_died(door: Door) -> None:
    door.kill("a", error="it failed: 1", tags=["x"])
    door.kill("b", error="it failed: 2")
    door.kill("other", tags=["x"])
    door.put("alive", tags=["x"], delay=60)
    door.put("late", ttl=5)
    door.pass_time(6)
    for verb in ("redrive", "purge"):
        found = door.preview(verb, error="it failed: *")
        assert (found["matched"], found["complete"], found["samples"]) == (2, True, {"a", "b"})
    assert door.redrive(reason="buried", error="it failed: *") == 2
    assert door.redrive(reason="attempts_exhausted") == 0
    assert door.redrive(tag="x", reason="buried") == 1
    assert door.purge(reason="expired") == 1
    assert door.purge(tag="x") == 3
    assert [job["id"] for job in door.jobs()] == ["b"]


@on_topics
def test_what_came_after_a_preview_is_left_alone(door: Door) -> None:
    for job_id in ("a", "again"):
        door.kill(job_id)
    cutoff = door.preview("redrive")["cutoff"]
    door.pass_time(0.01)
    door.kill("b")
    door.redrive(["again"])
    door.bury("again", door.pop_one()["receipt"])
    assert door.redrive(cutoff=cutoff) == 1
    assert (door.state("a"), door.state("b"), door.state("again")) == ("ready", "dead", "dead")
    cutoff = door.preview("purge")["cutoff"]
    door.pass_time(0.01)
    door.put("c")
    assert door.purge(cutoff=cutoff) == 3
    assert {job["id"] for job in door.jobs()} == {"c"}


@on_topics
def test_a_call_with_a_cutoff_leaves_what_was_put_or_died_since(door: Door) -> None:
    tagged: dict[str, Any] = {"tags": [door.topic]}
    for job_id in ("a", "b", "replaced"):
        door.put(job_id, delay=60, **tagged)
    door.put("dies", **tagged)
    cutoff = door.preview("purge")["cutoff"]
    door.pass_time(0.01)
    door.put("replaced", delay=60, on_conflict="replace", **tagged)
    door.put("late", delay=60, **tagged)
    door.bury("dies", door.pop_one()["receipt"])
    before = {job["id"]: job["due_at"] for job in door.jobs()}
    for select in (
        {"tag": door.topic},
        {"state": "delayed", "topics": [door.topic]},
        {"ids": [{"topic": door.topic, "id": job_id} for job_id in before]},
    ):
        assert selected(door, "reschedule", {**select, "cutoff": cutoff}, by=5) == outcome(2, delayed=2)
    moved = {job["id"] for job in door.jobs() if round(job["due_at"] - before[job["id"]], 3) == 15}
    assert moved == {"a", "b"}
    assert selected(door, "cancel", {"tag": door.topic, "cutoff": cutoff}) == outcome(2, delayed=2)
    assert {job["id"] for job in door.jobs()} == {"replaced", "late", "dies"}
