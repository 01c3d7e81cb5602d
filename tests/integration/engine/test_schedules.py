"""Schedules on a real store: what becomes of a run that is due, moved, cancelled or has no room.

What all doors show of schedules is in tests/conformance/test_schedules.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from deferd.contract.bulk_model import CancelSelected
from deferd.contract.errors import InvalidInput, ScheduleNotFound, StoreUnavailable
from deferd.contract.model import ChangeJob, JobState
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.engine.engine import Engine
from deferd.engine.movable_clock import MOVED_MAX_S
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.scheduler import ScheduleFilter
from deferd.engine.script_arguments import NO_BOUNDS, PutBounds
from deferd.store.connection import connect
from tests.integration.engine.engine_driver import TOPIC
from tests.integration.engine.schedule_driver import NAME, ScheduleDriver, anyone, definition
from tests.integration.engine.sweeping import purge_jobs
from tests.integration.engine.window_times import set_topic
from tests.integration.store.store_servers import ClusterSet


async def test_a_move_of_the_clock_that_is_refused_moves_nothing(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60)
    assert schedules.engine.clock is not None
    with pytest.raises(InvalidInput, match="1000 years"):
        await schedules.engine.clock.advance(MOVED_MAX_S * 1000 + 1)
    assert (await schedules.engine.clock.read()).moved_ms == 0
    await schedules.advance(60)
    reading = await schedules.engine.clock.advance(0)
    assert reading.moved_ms == 60_000


async def test_a_new_definition_replaces_the_next_run(schedules: ScheduleDriver) -> None:
    first, _ = await schedules.schedule(every=60)
    second, _ = await schedules.schedule(every=90, topic="other")
    assert second.next_id != first.next_id
    assert schedules.delayed() == []
    assert schedules.waiting_runs() == {}
    assert (await schedules.queue.get("other", second.next_id)).due_at_ms == second.next_due_ms
    await schedules.assert_clean()


async def test_a_run_that_is_due_already_is_not_withdrawn(schedules: ScheduleDriver) -> None:
    first, _ = await schedules.schedule(every=60)
    schedules.move_clock(60.5)
    second, _ = await schedules.schedule(every=90)
    assert second.waiting == 2
    await schedules.run_timer()
    assert schedules.ready_list() == [first.next_id]
    assert await schedules.counters() == (1, 0, 0, 1)


async def test_a_run_that_did_not_take_place_does_not_count_for_max_runs(schedules: ScheduleDriver) -> None:
    await schedules.schedule(max_runs=1)
    await schedules.cancels.cancel(TOPIC, await schedules.next_id())
    await schedules.until_due()
    assert await schedules.counters() == (0, 1, 0, 1)
    await schedules.until_due()
    assert await schedules.counters() == (1, 1, 0, 0)


async def test_it_ends_with_end_at(schedules: ScheduleDriver) -> None:
    end_ms = await schedules.now_ms() + 150_000
    await schedules.schedule(every=60, end_at=datetime.fromtimestamp(end_ms / 1000, UTC).isoformat())
    await schedules.advance(600)
    schedule = await schedules.get()
    assert (schedule.runs, schedule.state.is_ended) == (2, True)
    await schedules.assert_clean()


@pytest.mark.parametrize("how", ["bulk", "purge"])
async def test_runs_that_are_cancelled_otherwise_are_skipped_too(schedules: ScheduleDriver, how: str) -> None:
    next_id = (await schedules.schedule()).schedule.next_id
    if how == "bulk":
        select = {"ids": [{"topic": TOPIC, "id": next_id}]}
        await schedules.engine.bulk.cancel(CancelSelected.model_validate({"select": select}))
    else:
        await purge_jobs(schedules.engine, TOPIC)
    assert await schedules.counters() == (0, 1, 0, 0)
    assert schedules.waiting_runs() == {}
    await schedules.advance(121)
    assert await schedules.counters() == (1, 1, 0, 1)
    await schedules.assert_clean()


async def test_a_run_that_is_moved_later_takes_place_then(schedules: ScheduleDriver) -> None:
    moved = (await schedules.schedule(every=60, catch_up="none")).schedule.next_id
    await schedules.queue.change(TOPIC, moved, ChangeJob(delay=250))
    await schedules.advance(200)
    assert moved not in schedules.ready_list()
    assert await schedules.counters() == (2, 0, 0, 2)
    await schedules.advance(60)
    assert moved in schedules.ready_list()
    assert await schedules.counters() == (4, 0, 0, 1)
    assert (await schedules.get()).last_id != ""
    await schedules.assert_clean()


@pytest.mark.parametrize("delay", [0, 5])
async def test_a_run_that_is_moved_earlier_takes_place_once(schedules: ScheduleDriver, delay: int) -> None:
    moved = (await schedules.schedule(every=60, overlap="skip")).schedule.next_id
    await schedules.queue.change(TOPIC, moved, ChangeJob(delay=delay))
    await schedules.advance(10)
    popped = await schedules.pop_one()
    assert popped.id == moved
    await schedules.queue.finish(TOPIC, moved, popped.receipt)
    await schedules.advance(51)
    assert (await schedules.get()).last_id == moved
    assert await schedules.counters() == (1, 0, 0, 1)
    assert schedules.ready_list() == []
    await schedules.assert_clean()


async def test_the_bounds_of_a_key_apply_to_the_runs(schedules: ScheduleDriver) -> None:
    await schedules.put("blocks")
    schedule, _ = await schedules.schedule(bounds=PutBounds(max_jobs=1, dead_retain_ms=7))
    assert schedule.waiting == 0
    await schedules.cancels.cancel(TOPIC, "blocks")
    await schedules.pass_time(1)
    run = await schedules.queue.get(TOPIC, await schedules.next_id())
    await schedules.queue.change(TOPIC, run.id, ChangeJob(delay=0))
    await schedules.deliveries.bury(TOPIC, (await schedules.pop_one()).id, ANY_RECEIPT)
    await schedules.pass_time(0.1)
    assert await schedules.counts() == {}  # it was kept for 7 ms


async def test_large_jobs_are_caught_up_with_in_several_calls(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60, catch_up="all", job={"body": "x" * 900_000})
    await schedules.pass_outage(60 * 9.5)
    assert await schedules.counters() == (9, 0, 0, 1)
    await schedules.assert_clean()


async def test_a_store_that_is_out_of_memory_delays_runs_and_no_other_work(schedules: ScheduleDriver) -> None:
    first = (await schedules.schedule(every=60)).schedule.next_id
    await schedules.schedule("other", every=60)
    await schedules.put("due", delay=60.5)
    schedules.move_clock(60.6)
    schedules.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        await schedules.run_timer()  # does not fail because of the schedules
        assert {first, "due"} <= set(schedules.ready_list())
        assert (await schedules.engine.schedules.pause("other", anyone)).state.is_paused
        with pytest.raises(StoreUnavailable):
            await schedules.schedule("paused", every=60, paused=True, job={"body": "x" * 1000})
    finally:
        schedules.server.command("CONFIG", "SET", "maxmemory", "0")
    await schedules.pass_time(1)
    assert await schedules.next_id() != first
    assert await schedules.counters() == (1, 0, 0, 1)
    await schedules.assert_clean()


async def test_a_long_preview_lets_other_work_go_on(schedules: ScheduleDriver) -> None:
    await schedules.schedule(cron="0 0 29 2 *")
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count_turns())
    _, runs = await schedules.engine.schedules.preview(NAME, anyone, 300)
    counting.cancel()
    assert len(runs) == 300
    assert turns >= 25


async def test_a_page_ends_after_a_mebibyte_of_jobs(schedules: ScheduleDriver) -> None:
    for number in range(5):
        await schedules.schedule(f"s{number}", job={"body": "x" * 600_000})
    page, everything = schedules.engine.schedules.page, ScheduleFilter()
    first, cursor = await page(everything, None, 1000, with_jobs=True)
    assert ([one.name for one in first], cursor is None) == (["s0", "s1"], False)
    second, cursor = await page(everything, cursor, 1000, with_jobs=True)
    third, cursor = await page(everything, cursor, 1000, with_jobs=True)
    assert ([one.name for one in (*second, *third)], cursor) == (["s2", "s3", "s4"], None)
    assert len((await page(everything, None, 1000, with_jobs=False))[0]) == 5


async def test_a_preview_that_takes_too_long_to_compute_says_how_many_runs_it_can_give(
    schedules: ScheduleDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deferd.engine.scheduler._PREVIEW_S", 0.02)
    definition = PutSchedule.model_validate({"topic": TOPIC, "cron": "0 0 29 2 *"})
    with pytest.raises(InvalidInput) as refused:
        await schedules.engine.schedules.preview_of(NAME, definition, 1000)
    [error] = refused.value.field_errors
    assert (error.path, error.value) == (("query", "count"), 1000)
    assert error.message.startswith("takes more than 0.02 s to compute: ask for at most ")


# Topics that are full

PERIOD_S = 60


async def finish_all(schedules: ScheduleDriver) -> list[str]:
    popped = await schedules.pop(100)
    for job in popped:
        await schedules.queue.finish(TOPIC, job.id, job.receipt)
    return [job.id for job in popped]


async def runs_of_ten_periods(schedules: ScheduleDriver) -> list[str]:
    """The runs of a topic whose consumer finishes each at once."""
    runs = []
    for _ in range(20):
        await schedules.advance(PERIOD_S / 2)
        runs += await finish_all(schedules)
    return runs


async def test_a_topic_for_one_job_that_was_full_for_longer_than_a_period(schedules: ScheduleDriver) -> None:
    await set_topic(schedules, max_jobs=1)
    await schedules.schedule(every=PERIOD_S)
    await schedules.advance(2.5 * PERIOD_S)
    assert len(await finish_all(schedules)) == 1
    assert len(await runs_of_ten_periods(schedules)) >= 9


async def test_an_outage_in_which_more_runs_were_missed_than_the_topic_may_have(schedules: ScheduleDriver) -> None:
    await set_topic(schedules, max_jobs=5)
    await schedules.schedule(every=PERIOD_S, catch_up="all")
    await schedules.pass_outage(10 * PERIOD_S)
    assert await finish_all(schedules)
    assert len(await runs_of_ten_periods(schedules)) >= 9


# On a cluster

SHARDS = 6
NAMES = [f"s{number:02}" for number in range(18)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSet]:
    with ClusterSet(Path(tmp_path_factory.mktemp("cluster"))) as cluster:
        yield cluster


@pytest.fixture
async def engine(cluster: ClusterSet) -> AsyncIterator[Engine]:
    for node in cluster.masters:
        node.command("FLUSHALL")
    store = await connect(cluster.url, timeout_s=5)
    engine = Engine(store, shards=SHARDS, movable_clock=True)
    yield engine
    await engine.close()
    await store.close()


@pytest.mark.slow
async def test_schedules_of_all_nodes_run_move_and_are_listed(engine: Engine) -> None:
    schedules = engine.schedules
    for number, name in enumerate(NAMES):
        await schedules.put(name, definition(topic=f"t{number}", every=60), NO_BOUNDS, anyone)
    assert {(await schedules.get(name)).shard for name in NAMES} == set(range(SHARDS))
    listed, cursor = [], None
    while True:
        page, cursor = await schedules.page(ScheduleFilter(), cursor, 5, with_jobs=True)
        listed += [schedule.name for schedule in page]
        if cursor is None:
            break
    assert sorted(listed) == NAMES
    for passed_ms in (150_000, 10):  # what is made up for is due a millisecond later
        for shard, timer in enumerate(engine.timers):
            await engine._scripts.command("INCRBY", f"deferd:{{{shard}}}:clock", passed_ms)
            while await timer.run_once() == 0:
                continue
    for number, name in enumerate(NAMES):
        assert (await schedules.get(name)).runs == 1
        assert (await engine.topics.get(f"t{number}")).counts[JobState.DELAYED] >= 1
    assert (await engine.consistency.audit_store()).clean
    for number, name in enumerate(NAMES):
        moved, created = await schedules.put(
            name, definition(topic=f"t{number + 1}", every=90), NO_BOUNDS, lambda _: None
        )
        assert (created, moved.topic, moved.waiting, moved.runs) == (False, f"t{number + 1}", 1, 1)
    assert (await engine.consistency.audit_store()).clean
    for name in NAMES:
        await schedules.delete(name, anyone)
        with pytest.raises(ScheduleNotFound):
            await schedules.get(name)
