"""Tasks: actions on many jobs in the background."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.door import Door, Job, on_tasks, refused
from tests.waiting import BUSY_S, wait_until

SELECTED: dict[str, dict[str, Any]] = {
    "cancel": {"select": {"state": "delayed"}},
    "reschedule": {"select": {"state": "delayed"}, "delay": 7200},
    "redrive": {"error": "no *", "reason": "buried"},
    "purge": {"state": "dead"},
}


def begin(door: Door, verb: str, **more: Any) -> Job:
    """Begin a task on jobs of the topic that were put before."""
    door.pass_time(0.01)
    call = {**SELECTED[verb], **more}
    if "select" in call:
        call["select"] = {**call["select"], "topics": [door.topic]}
    return door.begin_task(verb, **call)


def ended(door: Door, task: Job) -> Job:
    wait_until(lambda: door.task(task["id"])["state"] != "running", BUSY_S, "the task ends")
    return door.task(task["id"])


@pytest.mark.parametrize("verb", SELECTED)
@on_tasks
def test_a_task_acts_on_all_selected_jobs_and_no_others(door: Door, verb: str) -> None:
    for number in range(3):
        door.kill(f"dead{number}", error=f"no {number}")
        door.put(f"j{number}", delay=60)
    door.kill("other", error="another")
    door.put("ready")
    task = begin(door, verb)
    assert (task["kind"], task["topic"], task["by"]) == (verb, door.topic, "127.0.0.1")
    assert task["select"].items() >= SELECTED[verb].get("select", SELECTED[verb]).items()
    done = ended(door, task)
    acted_on = 4 if verb == "purge" else 3
    assert (done["state"], done["done"], done["total"]) == ("done", acted_on, acted_on)
    assert done["started_at"] <= done["ended_at"]
    assert (
        door.counts()
        == {
            "cancel": {"dead": 4, "ready": 1},
            "reschedule": {"dead": 4, "delayed": 3, "ready": 1},
            "redrive": {"dead": 1, "delayed": 3, "ready": 4},
            "purge": {"delayed": 3, "ready": 1},
        }[verb]
    )
    if verb == "reschedule":
        [due_at] = {job["due_at"] for job in door.jobs("delayed")}
        assert due_at - task["started_at"] == pytest.approx(7200, abs=BUSY_S)
    assert door.task(task["id"], "stop") == done, "it has ended"


@on_tasks
def test_a_repeated_request_is_that_of_the_first_task(door: Door) -> None:
    door.put("a", delay=60)
    task = ended(door, begin(door, "cancel", request_id=door.topic))
    door.put("b", delay=60)
    assert begin(door, "cancel", request_id=door.topic) == task
    assert door.counts() == {"delayed": 1}
    with refused("validation", task["id"]):
        begin(door, "cancel", request_id=door.topic, if_reserved="refuse")
    moved = begin(door, "reschedule", request_id=door.topic)
    assert ended(door, moved)["done"] == 1
    assert moved["id"] != task["id"]


@on_tasks
def test_at_a_rate_jobs_stay_dead_until_their_turn(door: Door) -> None:
    for number in range(3):
        door.kill(f"dead{number}", error=f"no {number}")
    task = begin(door, "redrive", rate=0.01)
    assert task["action"] == {"rate": 0.01}
    wait_until(lambda: door.task(task["id"])["done"] == 1, BUSY_S, "the first one's turn")
    assert door.counts() == {"dead": 2, "ready": 1}
    door.task(task["id"], "stop")
    stopped = ended(door, task)
    assert (stopped["state"], stopped["done"], stopped["total"]) == ("stopped", 1, 3)
    assert door.counts() == {"dead": 2, "ready": 1}


@on_tasks
def test_a_limit_bounds_a_task(door: Door) -> None:
    for job_id in ("a", "b", "c"):
        door.put(job_id, delay=60)
    assert ended(door, begin(door, "cancel", limit=2))["done"] == 2
    assert door.counts() == {"delayed": 1}


@on_tasks
def test_an_unknown_task_or_topic_is_refused(door: Door) -> None:
    for verb in ("", "stop"):
        with refused("task_not_found"):
            door.task("none", verb)
    for verb in ("redrive", "purge"):
        if door.partitions is None:
            with refused("topic_not_found"):
                begin(door, verb)
