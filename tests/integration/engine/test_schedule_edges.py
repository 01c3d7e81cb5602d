"""Rare ways through the scripts of schedules: conflicts, damaged entries, a store without memory, another program."""

from __future__ import annotations

import time

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import ChangeJob, JobState, TopicSettings
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.schedule_planning import PlannedRun
from deferd.engine.schedule_store import Change, FullError
from tests.integration.engine.engine_driver import KEY, TOPIC
from tests.integration.engine.schedule_driver import NAME, ScheduleDriver

SHARD = "deferd:{0}:"


async def test_a_change_for_another_rev_does_nothing(schedules: ScheduleDriver) -> None:
    schedule = (await schedules.schedule()).schedule
    store = schedules.engine.schedules._store
    for rev in (None, schedule.rev - 1, schedule.rev + 1):
        change = Change(TOPIC, NAME, rev, None, withdraw=(TOPIC, schedule.next_id), missed=5, fields={"next": 1})
        assert await store.apply(change) is None
        assert not await store.delete(change)
    assert await schedules.get() == schedule
    await schedules.assert_clean()


async def test_a_full_topic_refuses_a_run_before_anything_is_done(schedules: ScheduleDriver) -> None:
    schedule = (await schedules.schedule()).schedule
    await schedules.topics.set(TOPIC, TopicSettings(max_jobs=1))
    runs = [PlannedRun("x", 9, 0, 0)]
    change = Change(TOPIC, NAME, schedule.rev, 5, fields={"next": 1}, runs=runs, policy="allow all")
    with pytest.raises(FullError):
        await schedules.engine.schedules._store.apply(change)
    assert await schedules.get() == schedule


async def test_a_job_that_has_the_id_of_a_run_stays(schedules: ScheduleDriver) -> None:
    """Delayed, it becomes the run. In any other state nothing waits, and the schedule goes on when it would be due."""
    first = (await schedules.schedule(every=60)).schedule
    assert first.next_due_ms is not None
    for number, state in enumerate(("delayed", "finished")):
        due_ms = first.next_due_ms + 60_000 * (number + 1)
        job_id = schedules_id(due_ms)
        await schedules.put(job_id, delay=6000 if state == "delayed" else 0, body="mine", retain=6000)
        if state == "finished":
            await schedules.pop(100)
            await schedules.queue.finish(TOPIC, job_id, ANY_RECEIPT)
        await schedules.until_due()
        job = await schedules.queue.get(TOPIC, job_id)
        assert (job.state, job.body) == (state, b'"mine"')
        assert (await schedules.get()).next_id == job_id
    await schedules.until_due()
    assert (await schedules.queue.get(TOPIC, schedules_id(first.next_due_ms + 120_000))).state is JobState.FINISHED
    assert (await schedules.counters())[0] == 1
    await schedules.advance(6000)
    assert schedules_id(first.next_due_ms + 60_000) in schedules.ready_list()


def schedules_id(due_ms: int) -> str:
    return f"{NAME}:{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(due_ms // 1000))}"


@pytest.mark.parametrize("entry", ["nonsense", "", f"{NAME} 1 2"])
async def test_a_damaged_entry_keeps_no_job_waiting(schedules: ScheduleDriver, entry: str) -> None:
    next_id = (await schedules.schedule()).schedule.next_id
    schedules.server.command("HSET", f"{KEY}:runs", next_id, entry)
    await schedules.until_due()
    assert schedules.ready_list() == [next_id]
    assert next_id not in schedules.waiting_runs()


async def test_a_delivered_run_that_comes_due_again_is_not_skipped(schedules: ScheduleDriver) -> None:
    """It was moved to now, and released for a retry that is due before the schedule goes on."""
    await schedules.schedule(every=60, overlap="skip")
    await schedules.until_due()
    second = await schedules.next_id()
    await schedules.queue.change(TOPIC, second, ChangeJob(delay=0))
    await schedules.pop(2)
    await schedules.deliveries.release(TOPIC, second, ANY_RECEIPT, delay_ms=1000)
    await schedules.pass_time(2)
    assert schedules.ready_list() == [second]
    assert await schedules.counters() == (2, 0, 0, 0)


async def test_a_run_that_was_delivered_early_is_not_missed(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60, catch_up="none")
    moved = await schedules.next_id()
    await schedules.queue.change(TOPIC, moved, ChangeJob(delay=1))
    await schedules.pass_outage(600)
    assert moved in schedules.ready_list()


async def test_a_last_run_that_still_waits_is_waited_for(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60, max_runs=1)
    moved = await schedules.next_id()
    await schedules.queue.change(TOPIC, moved, ChangeJob(delay=100))
    await schedules.advance(90)
    schedule = await schedules.get()
    assert (schedule.runs, schedule.waiting, schedule.state.is_ended) == (0, 1, False)
    await schedules.advance(30)
    schedule = await schedules.get()
    assert (schedule.runs, schedule.waiting, schedule.state.is_ended) == (1, 0, True)
    assert schedules.ready_list() == [moved]


async def test_without_memory_runs_become_ready_and_the_next_ones_follow_later(schedules: ScheduleDriver) -> None:
    first = (await schedules.schedule(every=60, catch_up="all")).schedule
    schedules.move_clock(61)
    schedules.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        for _ in range(3):
            await schedules.engine.timers[0].run_once()
        assert schedules.engine.timers[0]._patient_until == 0.0, "no turn has failed"
        assert schedules.ready_list() == [first.next_id]
        assert (await schedules.get()).next_id == first.next_id
        with pytest.raises(StoreUnavailable, match="memory"):
            await schedules.schedule("new")
    finally:
        schedules.server.command("CONFIG", "SET", "maxmemory", "0")
    schedules.move_clock(5)
    await schedules.run_timer()
    assert await schedules.counters() == (1, 0, 0, 1)
    await schedules.assert_clean()


async def test_a_visit_that_another_program_removed_is_made_up_for(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60)
    schedules.move_clock(61)
    schedules.server.command("ZREM", f"{SHARD}due", ":schedules")
    timer = schedules.engine.timers[0]
    timer._look_for_schedules_at = time.perf_counter()
    await schedules.run_timer()
    assert await schedules.counters() == (1, 0, 0, 1)
    assert schedules.server.command("ZSCORE", f"{SHARD}due", ":schedules") is not None
    await schedules.run_timer()
    assert timer._look_for_schedules_at > time.perf_counter() + 30
