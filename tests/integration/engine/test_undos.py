"""Undo of cancels of many jobs: each job as it was, once, and none in the place of another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deferd.contract.bulk_model import CancelSelected
from deferd.contract.model import FinishItem, JobState, PutJob, TopicSettings
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.bulk_actions import BulkOutcome
from deferd.engine.engine import Engine
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.undos import UndoOutcome
from deferd.store.connection import Store
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, started_engine
from tests.integration.engine.schedule_driver import NAME, ScheduleDriver, anyone
from tests.integration.engine.test_bulk_actions import assert_consistent, put_many, put_one_in_every_state
from tests.integration.engine.test_tasks import call, counted, killed_in_step, spec_of
from tests.integration.store.store_contents import Contents, read_contents
from tests.integration.store.store_servers import StoreServer
from tests.waiting import BUSY_S

BY_TAG = {"tag": "x"}
MOST_BYTES = 128 * 1024 * 1024


async def cancel(engine: Engine, caller: str | None = None, **fields: Any) -> BulkOutcome:
    fields = {"select": BY_TAG, "request_id": "r", "undo": True, **fields}
    return await engine.bulk.cancel(CancelSelected.model_validate(fields), None, caller)


async def undo(engine: Engine, caller: str | None = None, visible: TopicPatterns | None = None) -> tuple[int, int]:
    undone = await engine.undos.undo_cancel("r", caller, visible)
    return undone.put_back, undone.left


async def nothing(_: object) -> None:
    """Do nothing."""


def contents(driver: EngineDriver) -> Contents:
    with driver.server.client() as client:
        return read_contents(client, TOPIC)


async def test_jobs_that_waited_are_as_they_were(driver: EngineDriver) -> None:
    await driver.topics.set(TOPIC, TopicSettings(events=100))
    await put_one_in_every_state(driver, tags=["x", "y"], headers={"a": "b"}, body={"n": 1})
    await driver.put("failed", tags=["x"], deadline=5000, max_attempts=4)
    [failed] = [job for job in await driver.pop(2) if job.id == "failed"]
    await driver.deliveries.release(TOPIC, "failed", failed.receipt, delay_ms=60_000, error="no")
    await driver.put("ready-2", tags=["x"])
    before = contents(driver)
    assert (await cancel(driver.engine)).done == 7
    assert (await driver.engine.undos.undoable("r", None)).jobs == 3
    assert await undo(driver.engine) == (3, 0)
    after = contents(driver)
    for job_id in ("delayed", "failed", "ready-2"):
        assert after.of_job(job_id) == before.of_job(job_id)
    assert after.pool.keys() == {"delayed", "failed", "ready-2"}
    assert after.ready_list == ["ready-2"]
    assert (await driver.queue.get(TOPIC, "failed")).attempts == 1
    events = await driver.engine.event_reader.latest([TOPIC], None, 3)
    assert {(event.kind, event.id) for event in events.events} == {("put", job_id) for job_id in after.pool}
    await assert_consistent(driver)
    await driver.pass_time(5100)
    assert await driver.state("failed") is JobState.DEAD, "its deadline counts again"


async def test_an_id_that_was_put_again_or_is_taken_stays(driver: EngineDriver) -> None:
    await put_many(driver, 3, delay=60, tags=["x"], body="old")
    await cancel(driver.engine)
    await driver.put("j0", delay=100, body="new")
    await driver.put("j1", unique_for=600)
    await driver.pop(1)
    await driver.queue.finish(TOPIC, "j1", ANY_RECEIPT)
    assert await undo(driver.engine) == (1, 2)
    assert (await driver.queue.get(TOPIC, "j0")).body == b'"new"'
    assert set(contents(driver).pool) == {"j0", "j2"}
    await assert_consistent(driver)


async def test_what_was_put_back_and_finished_is_not_put_back_again(driver: EngineDriver) -> None:
    await put_many(driver, 400, tags=["x"])
    await cancel(driver.engine)
    assert [await undo(driver.engine) for _ in range(2)] == [(400, 0), (0, 0)]
    popped = await driver.pop(400)
    assert len(popped) == 400
    await driver.queue.finish_many(TOPIC, [FinishItem(id=job.id) for job in popped])
    assert await undo(driver.engine) == (0, 0)
    assert (await driver.engine.undos.undoable("r", None)).jobs == 0


async def test_two_undos_at_once_put_each_job_back_once(driver: EngineDriver) -> None:
    await put_many(driver, 1000, delay=60, tags=["x"])
    await cancel(driver.engine)
    both = await asyncio.gather(undo(driver.engine), undo(driver.engine))
    assert [sum(counts) for counts in zip(*both, strict=True)] == [1000, 0]
    assert contents(driver).tally["put"] == 2000
    await assert_consistent(driver)


async def test_follow_ups_and_collections_are_not_kept(driver: EngineDriver) -> None:
    await driver.put("held", tags=["x"])
    await driver.pop()
    await driver.put("held", on_conflict="replace", if_reserved="after")
    await driver.deliveries.release(TOPIC, "held", ANY_RECEIPT, delay_ms=1000)
    await driver.put("collected", on_conflict="append", delay=60, tags=["x"])
    await driver.put("plain", delay=60, tags=["x"])
    assert (await cancel(driver.engine)).done == 3
    assert await undo(driver.engine) == (1, 0)
    assert set(contents(driver).pool) == {"plain"}
    await assert_consistent(driver)


async def test_jobs_of_all_shards_and_topics_come_back(store: Store, server: StoreServer) -> None:
    engine = Engine(store, shards=5, movable_clock=True)
    topics = [f"t{number}" for number in range(12)]
    for topic in topics:
        await engine.puts.put_many([PutJob(topic=topic, id=f"j{n}", delay=60, tags=["x"]) for n in range(9)])
    await cancel(engine, "shop")
    assert await undo(engine) == (0, 0), "that of another key"
    assert await undo(engine, "shop", TopicPatterns(["t1"])) == (9, 0)
    assert await undo(engine, "shop") == (99, 0)
    assert {(await engine.topics.get(topic)).counts[JobState.DELAYED] for topic in topics} == {9}
    assert (await engine.consistency.audit_store()).clean
    await engine.close()


async def test_nothing_is_kept_where_there_is_no_room(driver: EngineDriver) -> None:
    await put_many(driver, 10, delay=60, tags=["x"])
    driver.server.command("HSET", "deferd:{0}:undos", 1, MOST_BYTES, 9_999_999_999, MOST_BYTES - 5000)
    assert (await cancel(driver.engine, limit=5)).done == 5
    assert (await cancel(driver.engine, limit=5, request_id="full")).done == 5
    driver.server.command("HSET", "deferd:{0}:undos", 9_999_999_999, MOST_BYTES - 10)
    await driver.put("later", tags=["x"])
    assert (await cancel(driver.engine, request_id="fuller")).done == 1
    assert [(await driver.engine.undos.undoable(name, None)).jobs for name in ("r", "full", "fuller")] == [5, 5, 0]
    assert driver.server.command("HEXISTS", "deferd:{0}:undos", 1) == 0, "what has expired does not count"
    await undo(driver.engine)
    kept = {int(at): int(size) for at, size in driver.server.client().hgetall("deferd:{0}:undos").items()}
    assert 0 < kept.pop(min(kept)) < 3000, "what was put back does not count"


async def test_it_can_be_undone_for_ten_minutes(driver: EngineDriver) -> None:
    await put_many(driver, 3, delay=60, tags=["x"])
    await cancel(driver.engine)
    assert 590_000 < (await driver.engine.undos.undoable("r", None)).left_ms <= 600_000
    assert 650_000 < driver.server.command("PTTL", "deferd:{0}:undo/r 0") <= 660_000
    assert driver.server.command("PTTL", "deferd:{0}:undos") > 660_000
    driver.server.command("PEXPIRE", "deferd:{0}:undo/r", 0)
    assert await undo(driver.engine) == (0, 0)


@pytest.mark.parametrize("key", ["undos", "undo/r"])
async def test_a_key_that_another_program_has_replaced_keeps_no_job_from_being_cancelled(
    driver: EngineDriver, key: str
) -> None:
    await put_many(driver, 3, delay=60, tags=["x"])
    driver.server.command("SET", f"deferd:{{0}}:{key}", "damaged")
    assert (await cancel(driver.engine)).done == 3


async def test_an_undo_after_the_topic_has_got_partitions_puts_nothing_back(store: Store) -> None:
    engine = Engine(store, shards=4, movable_clock=True)
    await engine.puts.put_many([PutJob(topic="t", id=f"j{n}", delay=60, tags=["x"]) for n in range(20)])
    await cancel(engine)
    await engine.topics.set("t", TopicSettings(partitions=4))
    assert await undo(engine) == (0, 20)
    await engine.puts.put_many([PutJob(topic="t", id=f"j{n}", delay=60, tags=["x"]) for n in range(20)])
    await cancel(engine, request_id="r2")
    assert await engine.undos.undo_cancel("r2", None) == UndoOutcome(20, 0)
    assert (await engine.topics.get("t")).counts[JobState.DELAYED] == 20
    assert (await engine.consistency.audit_topic("t")).clean
    await engine.close()


async def test_what_a_full_topic_has_no_room_for_comes_back_once_there_is_some(driver: EngineDriver) -> None:
    await put_many(driver, 3, delay=60, tags=["x"])
    await cancel(driver.engine)
    await driver.topics.set(TOPIC, TopicSettings(max_jobs=3))
    await driver.put("other")
    assert await undo(driver.engine) == (0, 3)
    await driver.topics.set(TOPIC, TopicSettings(max_jobs=4))
    assert await undo(driver.engine) == (3, 0)


async def test_a_task_can_be_undone(driver: EngineDriver) -> None:
    await put_many(driver, 700, delay=60)
    driver.move_clock(0.005)
    spec = await spec_of(driver.engine, "cancel", call=call(), undo="r", key="shop")
    await driver.engine.task_runner.begin("t1", spec)
    assert await counted(driver) == ("done", 700, 700)
    assert await undo(driver.engine, "shop") == (700, 0)
    assert contents(driver).pool.keys() == {f"j{number}" for number in range(700)}


async def test_a_topic_that_was_forgotten_comes_back(driver: EngineDriver) -> None:
    await put_many(driver, 2, delay=60, tags=["x"], on_end={"topic": "ended", "on": ["dead"]})
    await cancel(driver.engine)
    for key in driver.server.command("KEYS", f"{KEY}:*"):
        driver.server.command("DEL", key)
    driver.server.command("HDEL", "deferd:{0}:settings", TOPIC)
    driver.server.command("ZREM", "deferd:{0}:topics", TOPIC)
    assert await undo(driver.engine) == (2, 0)
    assert (await driver.topics.get(TOPIC)).counts[JobState.DELAYED] == 2
    assert driver.server.command("EXISTS", f"{KEY}:ends") == 1


async def test_a_cancel_that_is_repeated_after_its_undo_leaves_the_jobs(driver: EngineDriver) -> None:
    """A response may have been lost, and the repetition may come late: it acts on no job twice."""
    await put_many(driver, 3, delay=60, tags=["x"])
    assert (await cancel(driver.engine)).done == 3
    assert await undo(driver.engine) == (3, 0)
    assert (await cancel(driver.engine)).done == 3, "its numbers are those of the first attempt"
    assert contents(driver).pool.keys() == {"j0", "j1", "j2"}
    assert driver.server.command("PTTL", "deferd:{0}:bulk/cancel/r") > 0
    assert (await cancel(driver.engine, request_id="another")).done == 3


async def test_a_task_that_another_process_continues_leaves_what_an_undo_has_put_back(driver: EngineDriver) -> None:
    await put_many(driver, 700, delay=60)
    driver.move_clock(0.005)
    spec = await spec_of(driver.engine, "cancel", call=call(), undo="r")
    async with started_engine(driver.server.url, movable_clock=True) as other:
        goes_on = killed_in_step(other, "bulk_cancel", 2)
        await other.task_runner.begin("t1", spec)
        async with asyncio.timeout(BUSY_S):
            while len(contents(driver).pool) != 340:
                await asyncio.sleep(0.01)
        assert await undo(driver.engine) == (360, 0)
        driver.move_clock(5)
        await driver.engine.task_runner.look()
        assert await counted(driver) == ("done", 700, 700)
        goes_on()
    assert len(contents(driver).pool) == 360
    assert await undo(driver.engine) == (340, 0)


async def test_a_cancel_that_goes_on_when_its_undo_has_ended_keeps_its_own_jobs_only(driver: EngineDriver) -> None:
    """Steps are kept for a minute longer than their list."""
    await put_many(driver, 2, delay=60, tags=["x"])
    assert (await cancel(driver.engine, limit=1)).done == 1
    [first] = {"j0", "j1"} - contents(driver).pool.keys()
    driver.server.command("PEXPIRE", "deferd:{0}:undo/r", 0)
    assert (await cancel(driver.engine, limit=2)).done == 2
    assert contents(driver).pool.keys() == set()
    assert await undo(driver.engine) == (1, 0)
    assert contents(driver).pool.keys() == {"j0", "j1"} - {first}


async def test_a_job_is_put_back_once_when_another_program_has_replaced_the_sums(driver: EngineDriver) -> None:
    await driver.put("a", tags=["x"])
    await cancel(driver.engine)
    driver.server.command("SET", "deferd:{0}:undos", "damaged")
    assert await undo(driver.engine) == (1, 0)
    popped = await driver.pop_one()
    await driver.queue.finish(TOPIC, popped.id, popped.receipt)
    assert await undo(driver.engine) == (0, 0)
    assert await driver.counts() == {}
    await assert_consistent(driver)


async def test_another_process_undoes_a_cancel_after_a_restart_of_the_service(
    driver: EngineDriver, store: Store
) -> None:
    await put_many(driver, 200, delay=60, tags=["x"])
    before = contents(driver).pool
    await cancel(driver.engine, "shop")
    await driver.engine.close()
    after_restart = Engine(store, movable_clock=True)
    assert (await after_restart.undos.undoable("r", "shop")).jobs == 200
    assert await undo(after_restart, "shop") == (200, 0)
    assert contents(driver).pool == before
    assert (await after_restart.consistency.audit_store()).clean
    await after_restart.close()


async def test_jobs_whose_time_is_over_when_they_come_back_become_dead(driver: EngineDriver) -> None:
    await driver.put("late", tags=["x"], deadline=60)
    await driver.put("unwanted", tags=["x"], ttl=60)
    await cancel(driver.engine)
    driver.move_clock(100)
    assert await undo(driver.engine) == (2, 0)
    await driver.run_timer()
    assert await driver.counts() == {"dead": 2}
    assert await driver.pop(2) == []
    await assert_consistent(driver)


async def test_a_pop_before_the_timer_hands_out_no_job_whose_time_is_over(driver: EngineDriver) -> None:
    await driver.put("late", tags=["x"], deadline=60)
    await cancel(driver.engine)
    driver.move_clock(100)
    assert await undo(driver.engine) == (1, 0)
    assert await driver.pop(2) == []


async def cancel_next_run(schedules: ScheduleDriver, **options: Any) -> str:
    """Put a schedule that runs every minute, and cancel its next run."""
    await schedules.schedule(every=60, **options)
    run = await schedules.next_id()
    assert (await cancel(schedules.engine, select={"ids": [{"topic": TOPIC, "id": run}]})).done == 1
    assert await schedules.counters() == (0, 1, 0, 0)
    return run


async def test_the_next_run_of_a_schedule_comes_back_as_that(schedules: ScheduleDriver) -> None:
    run = await cancel_next_run(schedules)
    assert await undo(schedules.engine) == (1, 0)
    assert await schedules.counters() == (0, 0, 0, 1)
    assert schedules.waiting_runs().keys() == {run}
    await schedules.assert_clean()
    await schedules.advance(65)
    assert schedules.ready_list() == [run]
    assert await schedules.counters() == (1, 0, 0, 1)
    await schedules.assert_clean()


@pytest.mark.parametrize("verb", ["pause", "delete"])
async def test_what_ends_a_run_of_a_schedule_ends_one_that_came_back(schedules: ScheduleDriver, verb: str) -> None:
    await cancel_next_run(schedules)
    assert await undo(schedules.engine) == (1, 0)
    await getattr(schedules.engine.schedules, verb)(NAME, anyone)
    assert schedules.delayed() == []
    await schedules.assert_clean()


@pytest.mark.parametrize("verb", ["pause", "delete"])
async def test_a_run_of_a_schedule_that_has_ended_stays_cancelled(schedules: ScheduleDriver, verb: str) -> None:
    await cancel_next_run(schedules)
    await getattr(schedules.engine.schedules, verb)(NAME, anyone)
    assert await undo(schedules.engine) == (0, 1)
    assert schedules.delayed() == []
    await schedules.assert_clean()


async def test_a_run_whose_schedule_has_gone_on_stays_cancelled(schedules: ScheduleDriver) -> None:
    run = await cancel_next_run(schedules, overlap="skip")
    await schedules.advance(65)
    assert await schedules.next_id() != run
    assert await undo(schedules.engine) == (0, 1)
    assert await schedules.counters() == (0, 1, 0, 1)
    await schedules.assert_clean()


async def test_jobs_that_belong_to_another_partition_by_now_do_not_come_back(store: Store) -> None:
    """They may have been put again there, and a topic forgets where jobs of earlier numbers of partitions were."""
    engine = Engine(store, shards=4, movable_clock=True)
    jobs = {f"j{n}": PutJob(topic="t", id=f"j{n}", delay=60, tags=["x"]) for n in range(20)}
    await engine.puts.put_many(list(jobs.values()))
    await engine.topics.set("t", TopicSettings(partitions=4))
    layout = engine.partitions.known.layout_of("t")
    at_home = {job_id for job_id in jobs if layout.home("t", job_id) == "t"}
    assert (await cancel(engine)).done == 20
    again = set(list(jobs)[:10])
    await engine.puts.put_many([jobs[job_id] for job_id in again])
    assert 0 < len(at_home - again) < 10
    assert await undo(engine) == (len(at_home - again), 20 - len(at_home - again))
    page, _ = await engine.topics.jobs("t", JobState.DELAYED, None, 100)
    assert sorted(job.id for job in page) == sorted(again | at_home)
    assert (await engine.consistency.audit_store()).clean
    await engine.close()


async def test_an_undo_by_a_process_that_knows_an_earlier_number_of_partitions_can_be_repeated(store: Store) -> None:
    engine = Engine(store, shards=4, movable_clock=True)
    await engine.topics.set("t", TopicSettings(partitions=4))
    await engine.puts.put_many([PutJob(topic="t", id=f"j{n}", delay=60, tags=["x"]) for n in range(20)])
    await cancel(engine)
    other = Engine(store, shards=4, movable_clock=True)
    refresh = other.partitions.refresh_all
    other.partitions.refresh_all = nothing  # type: ignore[method-assign, assignment]
    assert await undo(other) == (0, 20)
    other.partitions.refresh_all = refresh  # type: ignore[method-assign]
    assert await undo(other) == (20, 0)
    await other.close()
    await engine.close()
