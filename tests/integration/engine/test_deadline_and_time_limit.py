"""When jobs must end: deadline over all attempts, time limit of one attempt, and how long dead jobs are kept."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.errors import JobNotFound
from deferd.contract.model import ChangeJob, JobState
from deferd.engine import metrics
from deferd.engine.queue import PopRequest
from deferd.engine.script_arguments import PutBounds
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import redrive_jobs


async def reason(driver: EngineDriver, job_id: str = "a") -> str | None:
    return (await driver.queue.get(TOPIC, job_id)).reason


def deaths(of: str) -> float:
    return sum(
        sample.value
        for metric in metrics.DEATHS.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["reason"] == of
    )


# Deadline


async def test_a_pop_after_the_deadline_gets_nothing_while_the_timer_is_late(driver: EngineDriver) -> None:
    before = deaths("deadline"), deaths("expired")
    await driver.put("a", deadline=10)
    await driver.put("b", ttl=10, deadline=20)
    await driver.put("c", ttl=20, deadline=10)
    driver.move_clock(20)
    assert await driver.pop(5) == []
    assert [await reason(driver, job_id) for job_id in "abc"] == ["deadline", "expired", "deadline"]
    assert (deaths("deadline") - before[0], deaths("expired") - before[1]) == (2, 1)


@pytest.mark.parametrize("counts", [True, False])
async def test_a_release_after_the_deadline_makes_the_job_dead(driver: EngineDriver, counts: bool) -> None:
    await driver.put(deadline=10)
    held = await driver.pop_one()
    driver.move_clock(11)
    released = await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=1000, counts=counts)
    assert (released.state, released.attempts) == (JobState.DEAD, int(counts))
    assert await reason(driver) == "deadline"


async def test_a_finish_before_the_timer_has_ended_the_delivery_succeeds(driver: EngineDriver) -> None:
    await driver.put(deadline=10, retain=60)
    held = await driver.pop_one()
    driver.move_clock(11)
    await driver.queue.finish(TOPIC, "a", held.receipt)
    await driver.run_timer()
    assert await driver.state() is JobState.FINISHED
    assert "expiry" not in driver.keys_left()


async def test_a_redrive_and_a_new_due_time_after_a_retry_begin_a_new_deadline(driver: EngineDriver) -> None:
    await driver.put(deadline=10)
    await driver.deliveries.release(TOPIC, "a", (await driver.pop_one()).receipt, delay_ms=1000)
    await driver.pass_time(10)
    assert await reason(driver) == "deadline"
    await redrive_jobs(driver.engine, TOPIC)
    redriven = await driver.queue.get(TOPIC, "a")
    assert redriven.deadline_at_ms == redriven.due_at_ms + 10_000
    await driver.deliveries.release(TOPIC, "a", (await driver.pop_one()).receipt, delay_ms=1000)
    changed = await driver.queue.change(TOPIC, "a", ChangeJob(delay=60))
    assert changed.deadline_at_ms == changed.due_at_ms + 10_000
    changed = await driver.queue.change(TOPIC, "a", ChangeJob(deadline=None))
    assert changed.deadline_at_ms is None
    await driver.pass_time(600)
    assert await driver.state() is JobState.READY


async def test_many_held_jobs_die_at_their_deadlines_in_bounded_steps(driver: EngineDriver) -> None:
    """More than one step of the timer: no job may be in two states meanwhile."""
    for start in range(0, 1200, 400):
        await driver.puts.put_many([job(f"j{start + n}", deadline=10, ttr=60) for n in range(400)])
    for _ in range(3):
        assert len(await driver.pop(400)) == 400
    driver.move_clock(10)
    for _ in range(2):
        await driver.engine.timers[0].run_once()
        view = await driver.topics.get(TOPIC)
        assert sum(view.counts.values()) == 1200
    await driver.run_timer()
    assert await driver.counts() == {"dead": 1200}


# Time limit


async def test_the_earlier_one_of_time_limit_and_deadline_ends_the_lease(driver: EngineDriver) -> None:
    await driver.put(time_limit=30, deadline=100, ttr=3600)
    driver.move_clock(20)
    first = await driver.pop_one()
    deadline_at_ms = first.due_at_ms + 100_000
    assert (first.reserved_until_ms or 0) < deadline_at_ms - 40_000
    await driver.deliveries.release(TOPIC, "a", first.receipt, delay_ms=0)
    await driver.pass_time(60)
    assert (await driver.pop_one()).reserved_until_ms == deadline_at_ms


async def test_a_time_limit_leaves_nothing_behind(driver: EngineDriver) -> None:
    async def take() -> Any:
        return (await driver.pop_one()).receipt

    await driver.put(time_limit=30)
    await driver.deliveries.release(TOPIC, "a", await take(), delay_ms=0)
    await driver.run_timer()
    assert "expiry" not in driver.keys_left()
    await driver.held_jobs.return_popped([await driver.pop_one()])
    assert "expiry" not in driver.keys_left()
    await driver.deliveries.bury(TOPIC, "a", await take())
    assert "expiry" not in driver.keys_left()
    await redrive_jobs(driver.engine, TOPIC)
    await driver.queue.finish(TOPIC, "a", await take())
    assert "expiry" not in driver.keys_left()
    await driver.put(time_limit=30)
    await take()
    await driver.cancels.cancel(TOPIC, "a")
    assert "expiry" not in driver.keys_left()


async def test_jobs_with_and_without_limits_are_popped_together(driver: EngineDriver) -> None:
    await driver.put("plain")
    await driver.put("limited", time_limit=5)
    await driver.put("ttl", ttl=100)
    reply = await driver.queue.pop(TOPIC, [PopRequest(3, ttr_ms=60_000)])
    ends = {one.id: one.reserved_until_ms or 0 for one in reply.jobs[0]}
    assert ends["plain"] == ends["ttl"] == ends["limited"] + 55_000


# Dead jobs


@pytest.mark.parametrize("by", ["bury", "release", "lease", "ttl", "pop", "deadline"])
async def test_a_job_that_is_not_kept_when_dead_is_removed_at_once_and_counted(driver: EngineDriver, by: str) -> None:
    why = {"bury": "buried", "ttl": "expired", "pop": "expired", "deadline": "deadline"}.get(by, "attempts_exhausted")
    before = deaths(why)
    await driver.put(dead_retain=0, max_attempts=1, ttl=10, deadline=1000, ttr=2000)
    if by in {"ttl", "pop"}:
        driver.move_clock(10)
        assert await driver.pop() == [] if by == "pop" else await driver.run_timer()
    else:
        held = await driver.pop_one(ttr_ms=5000 if by == "lease" else None)
        if by == "bury":
            await driver.deliveries.bury(TOPIC, "a", held.receipt)
        elif by == "release":
            assert (await driver.deliveries.release(TOPIC, "a", held.receipt)).state is JobState.DEAD
        else:
            await driver.pass_time(5 if by == "lease" else 1000)
    with pytest.raises(JobNotFound):
        await driver.state()
    assert driver.server.command("HGETALL", f"{KEY}:tally") == {b"put": b"1", b"dropped": b"1"}
    assert deaths(why) == before + 1
    assert driver.keys_left() == set()


async def test_the_limit_of_an_api_key_bounds_how_long_a_dead_job_is_kept(driver: EngineDriver) -> None:
    for job_id, dead_retain, kept_s in (("more", 100, 20), ("less", 5, 5)):
        await driver.puts.put(job(job_id, dead_retain=dead_retain), PutBounds(dead_retain_ms=20_000))
        await driver.deliveries.bury(TOPIC, job_id, (await driver.pop_one()).receipt)
        await driver.pass_time(kept_s - 1)
        assert await driver.state(job_id) is JobState.DEAD
        await driver.pass_time(1)
        with pytest.raises(JobNotFound):
            await driver.state(job_id)


# Topics
