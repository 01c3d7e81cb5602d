"""Waits for the end of a job, and for its progress."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from tests.conformance.door import Door, Job, refused
from tests.waiting import BUSY_S, wait_until


@contextlib.contextmanager
def waiting(door: Door, job_id: str = "a", **options: Any) -> Iterator[Future[Job]]:
    """A call waits for a job from before the block on, and must end soon after it, long before its time is over."""
    with ThreadPoolExecutor(1) as pool:
        before = door.waits()
        call = pool.submit(door.wait, job_id, seconds=3 * BUSY_S, **options)
        wait_until(lambda: door.waits() == before + 1 or call.done(), BUSY_S, f"a call waits for {job_id}")
        yield call
        call.exception(BUSY_S)


def test_a_wait_ends_with_the_job_and_says_how(door: Door) -> None:
    held = door.reserve("finished", {"n": 1}, retain=60)
    with waiting(door, "finished") as call:
        door.finish("finished", held["receipt"], result={"sum": [1, None]})
    job = call.result()
    assert (job["outcome"], job["state"], job["result"]) == ("finished", "finished", {"sum": [1, None]})
    assert (job["body"], job["attempts"]) == ({"n": 1}, 1)

    held = door.reserve("dead", retain=60)
    with waiting(door, "dead") as call:
        door.release("dead", held["receipt"], delay=0)
        door.pass_time(1)
        held = door.pop_one()
        door.bury("dead", held["receipt"], error="no use")
    job = call.result()
    assert (job["outcome"], job["state"], job["last_error"], job["attempts"]) == ("dead", "dead", "no use", 2)


def test_a_job_of_which_nothing_is_left_is_as_it_was_last_seen(door: Door) -> None:
    held = door.reserve("finished", {"n": 1}, tags=["t"])
    with waiting(door, "finished") as call:
        door.finish("finished", held["receipt"], result="lost")
    job = call.result()
    assert (job["outcome"], job["state"], job["body"], job["tags"]) == ("finished", "reserved", {"n": 1}, ["t"])
    assert job["result"] is None

    for state in ("delayed", "reserved"):
        door.put(state, [state], delay=60 if state == "delayed" else 0)
        if state == "reserved":
            door.pop_one()
        with waiting(door, state) as call:
            door.cancel(state)
        job = call.result()
        assert (job["outcome"], job["state"], job["body"]) == ("cancelled", state, [state])
        assert not door.has(state)


def test_a_wait_for_a_job_that_has_ended_responds_at_once(door: Door) -> None:
    door.finish("a", door.reserve("a", retain=60)["receipt"], result=1)
    assert (door.wait()["outcome"], door.wait(seconds=0)["outcome"], door.wait()["result"]) == ("finished",) * 2 + (1,)
    door.kill("b")
    assert (door.wait("b")["outcome"], door.wait("b", until="progress")["outcome"]) == ("dead", "dead")
    assert door.get("b")["outcome"] is None
    with refused("job_not_found"):
        door.wait("c")


def test_a_wait_without_an_end_returns_the_job_as_it_is(door: Door) -> None:
    door.put("a", delay=60)
    for seconds in (0, 0.05):
        job = door.wait(seconds=seconds)
        assert (job["outcome"], job["state"]) == (None, "delayed")


def test_a_wait_goes_on_with_the_job_that_replaces_its_own(door: Door) -> None:
    door.put("a", "old", delay=60)
    with waiting(door) as call:
        door.put("a", "new", on_conflict="replace", retain=60)
        held = door.pop_one()
        assert not call.done()
        door.finish("a", held["receipt"], result=2)
    job = call.result()
    assert (job["outcome"], job["body"], job["result"]) == ("finished", "new", 2)


def test_a_wait_for_progress_ends_with_the_next_one_or_with_the_job(door: Door) -> None:
    held = door.reserve("a", retain=60)
    with waiting(door, until="progress") as call:
        door.touch("a", held["receipt"])
        assert not call.done()
        door.touch("a", held["receipt"], progress=0.5)
    first = call.result()
    assert (first["progress"], first["outcome"], first["state"]) == (0.5, None, "reserved")
    assert door.wait(until="progress", after=first["progress_at"] - 1)["progress"] == 0.5
    with waiting(door, until="progress", after=first["progress_at"]) as call, waiting(door) as to_the_end:
        door.pass_time(1)
        door.touch("a", held["receipt"], progress={"left": 1})
        assert call.result(BUSY_S)["progress"] == {"left": 1}
        assert not to_the_end.done()
        door.finish("a", held["receipt"])
    assert (to_the_end.result()["outcome"], to_the_end.result()["progress"]) == ("finished", {"left": 1})
