"""Calls on many jobs in many steps, topics and shards: each job once, also when a call is repeated.

What they do to a few jobs is in tests/conformance/test_selected_jobs.py.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.errors import StoreUnavailable
from deferd.contract.limits import DELAY_MAX_S
from deferd.contract.model import JobState, PutJob
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine import metrics
from deferd.engine.bulk_actions import BulkOutcome
from deferd.engine.engine import Engine
from deferd.engine.record import ANY_RECEIPT
from deferd.store.connection import Store
from tests.integration.engine.engine_driver import TOPIC, EngineDriver
from tests.integration.store.store_contents import read_contents
from tests.integration.store.store_servers import StoreServer
from tests.waiting import until

DELAYED, READY, RESERVED, DEAD, FINISHED = JobState


async def cancel(driver: EngineDriver, visible: TopicPatterns | None = None, **call: Any) -> BulkOutcome:
    return await driver.engine.bulk.cancel(CancelSelected.model_validate(call), visible)


async def reschedule(driver: EngineDriver, visible: TopicPatterns | None = None, **call: Any) -> BulkOutcome:
    return await driver.engine.bulk.reschedule(RescheduleSelected.model_validate(call), visible)


async def put_one_in_every_state(driver: EngineDriver, **fields: Any) -> None:
    await driver.put("reserved", **fields)
    await driver.put("dead", **fields)
    await driver.put("finished", retain=3600, **fields)
    await driver.pop(3, consumer="worker-1", ttr_ms=3_000_000)
    await driver.deliveries.bury(TOPIC, "dead", ANY_RECEIPT)
    await driver.queue.finish(TOPIC, "finished", ANY_RECEIPT)
    await driver.put("delayed", delay=60, ttl=1000, **fields)
    await driver.put("ready", ttl=1000, **fields)


async def put_many(driver: EngineDriver, count: int, *, topic: str = TOPIC, **fields: Any) -> None:
    for at in range(0, count, 1000):
        jobs = [PutJob(topic=topic, id=f"j{n}", **fields) for n in range(at, min(at + 1000, count))]
        await driver.puts.put_many(jobs)


async def due_times(driver: EngineDriver) -> dict[str, int]:
    with driver.server.client() as client:
        return read_contents(client, TOPIC).scores[DELAYED]


async def assert_consistent(driver: EngineDriver, *topics: str) -> None:
    for topic in topics or (TOPIC,):
        assert (await driver.engine.consistency.audit_topic(topic)).clean
    assert (await driver.engine.consistency.audit_store()).clean


# Cancel


async def test_a_tag_is_found_in_all_topics_and_shards(store: Store, server: StoreServer) -> None:
    engine = Engine(store, shards=5, movable_clock=True)
    topics = [f"t{number}" for number in (0, 1, 2, 3, 10, 11, 12, 20)]
    for topic in topics:
        await engine.puts.put_many([PutJob(topic=topic, id=f"j{n}", delay=60, tags=["all"]) for n in range(7)])
        await engine.puts.put(PutJob(topic=topic, id="plain", delay=60))
    call = CancelSelected.model_validate({"select": {"tag": "all", "topics": ["t1*", "t0"]}})
    assert await engine.bulk.cancel(call) == BulkOutcome(35, 35, {DELAYED: 35}, True)
    call = CancelSelected.model_validate({"select": {"tag": "all"}})
    assert (await engine.bulk.cancel(call, TopicPatterns(["t2", "t3"]))).done == 14
    assert (await engine.bulk.cancel(call)).done == 56 - 35 - 14
    assert server.command("KEYS", "deferd:*:tag/*") == []
    assert (await engine.consistency.audit_store()).clean
    await engine.close()


async def test_ready_jobs_are_cancelled_by_when_they_were_due(driver: EngineDriver) -> None:
    due = [(await driver.put(f"j{number}", delay=10 + number)).due_at_ms for number in range(5)]
    after, before = (datetime.fromtimestamp(due[number] / 1000, UTC).isoformat() for number in (1, 3))
    await driver.pass_time(30)
    select = {"state": "ready", "topics": [TOPIC], "due_after": after, "due_before": before}
    assert await cancel(driver, select=select) == BulkOutcome(2, 2, {READY: 2}, True)
    assert sorted(driver.ready_list()) == ["j0", "j3", "j4"]
    await assert_consistent(driver)


@pytest.mark.parametrize("state", ["delayed", "ready"])
async def test_a_limit_is_kept_and_the_rest_can_be_asked_for(driver: EngineDriver, state: str) -> None:
    await put_many(driver, 1200, delay=60 if state == "delayed" else 0)
    select = {"state": state, "topics": ["orders.*"]}
    assert await cancel(driver, select=select, limit=700) == BulkOutcome(700, 700, {JobState(state): 700}, False)
    assert await cancel(driver, select=select, limit=500) == BulkOutcome(500, 500, {JobState(state): 500}, True)
    assert await driver.counts() == {}
    await assert_consistent(driver)


async def test_a_limit_is_shared_by_the_shards(store: Store) -> None:
    engine = Engine(store, shards=4)
    for number in range(40):
        await engine.puts.put_many([PutJob(topic=f"t{number}", id=f"j{n}", delay=60, tags=["x"]) for n in range(10)])
    call = CancelSelected.model_validate({"select": {"tag": "x"}, "limit": 390})
    first, second = await engine.bulk.cancel(call), await engine.bulk.cancel(call)
    assert (first.done, first.complete, second.done, second.complete) == (390, False, 10, True)
    await engine.close()


async def test_jobs_are_found_after_the_stores_clock_stepped_back(driver: EngineDriver) -> None:
    await put_many(driver, 3, delay=7200, tags=["x"])
    driver.move_clock(-3600)
    assert (await reschedule(driver, select={"tag": "x"}, by=5)).done == 3
    assert (await cancel(driver, select={"tag": "x"})).done == 3


async def test_no_due_time_is_clipped_at_ten_years(driver: EngineDriver) -> None:
    await driver.put("near", delay=60, tags=["x"])
    await driver.put("far", delay=DELAY_MAX_S - 1000, tags=["x"])
    driver.move_clock(-400 * 86_400)  # "far" is more than ten years ahead now, as runs of schedules may be
    before = await due_times(driver)
    later: dict[str, Any] = {"select": {"tag": "x"}, "by": 3600, "request_id": "r"}
    for _ in range(2):
        assert await reschedule(driver, **later) == BulkOutcome(2, 1, {DELAYED: 2}, True)
        assert await due_times(driver) == before | {"near": before["near"] + 3_600_000}
    assert (await reschedule(driver, select={"tag": "x"}, by=-3600)).done == 2
    assert await due_times(driver) == before | {"far": before["far"] - 3_600_000}
    run_at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=DELAY_MAX_S - 1000)
    assert (await reschedule(driver, select={"tag": "x"}, run_at=run_at)).done == 2
    assert set((await due_times(driver)).values()) == {run_at.timestamp() * 1000}
    await assert_consistent(driver)


async def test_a_call_is_remembered_for_an_hour(driver: EngineDriver) -> None:
    await put_many(driver, 3, delay=60, tags=["x"])
    await reschedule(driver, select={"tag": "x"}, by=5, request_id="r")
    key = "deferd:{0}:bulk/reschedule/r"
    assert 3_500_000 < driver.server.command("PTTL", key) <= 3_600_000
    assert (await driver.engine.consistency.audit_store()).stray_count == 0
    await driver.engine.bulk.cancel(CancelSelected.model_validate({"select": {"tag": "x"}}))
    assert driver.server.command("KEYS", "deferd:{0}:bulk/*") == [key.encode()]


async def test_a_store_that_is_out_of_memory_lets_jobs_be_cancelled(driver: EngineDriver) -> None:
    await put_many(driver, 300, delay=60, tags=["x"])
    await driver.engine.bulk.cancel(CancelSelected.model_validate({"select": {"tag": "none"}}))
    driver.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        assert (await cancel(driver, select={"tag": "x"}, request_id="r")).done == 300
    finally:
        driver.server.command("CONFIG", "SET", "maxmemory", "0")
    await assert_consistent(driver)


async def test_records_of_a_megabyte_are_taken_in_small_steps(driver: EngineDriver) -> None:
    for number in range(5):
        await driver.put(f"j{number}", delay=60, body="x" * 900_000, tags=["x"])
    assert (await reschedule(driver, select={"tag": "x"}, by=5)).done == 5
    assert (await reschedule(driver, select={"state": "delayed", "topics": [TOPIC]}, by=5)).done == 5
    due = await due_times(driver)
    assert {due[f"j{n}"] - (await driver.queue.get(TOPIC, f"j{n}")).created_at_ms for n in range(5)} == {70_000}
    assert (await cancel(driver, select={"state": "delayed", "topics": ["*"]})).done == 5


async def test_cancelled_and_rescheduled_jobs_are_counted(driver: EngineDriver) -> None:
    await put_one_in_every_state(driver, tags=["undo"])
    moved = metrics.RESCHEDULES.labels(TOPIC)._value.get()
    await reschedule(driver, select={"tag": "undo"}, by=5)
    assert metrics.RESCHEDULES.labels(TOPIC)._value.get() == moved + 2
    await assert_consistent(driver)  # the ttl moved with the due time
    before = {state: metrics.CANCELS.labels(TOPIC, state.value)._value.get() for state in JobState}
    for _ in range(2):  # the second leaves the held one as well, and counts nothing twice
        found = await cancel(driver, select={"tag": "undo"}, if_reserved="refuse", request_id="r")
        assert (found.matched, found.done) == (5, 4)
    await assert_consistent(driver)
    after = {state: metrics.CANCELS.labels(TOPIC, state.value)._value.get() for state in JobState}
    assert {state: after[state] - before[state] for state in JobState} == {
        DELAYED: 2, READY: 0, RESERVED: 0, DEAD: 1, FINISHED: 1
    }  # fmt: skip


# Reschedule


@pytest.mark.parametrize("fields", [{"by": -1000}, {"run_at": "2020-01-01T00:00:00Z"}])
async def test_jobs_moved_to_the_past_are_due_now(driver: EngineDriver, fields: dict[str, Any]) -> None:
    await put_many(driver, 600, delay=60, ttl=100)
    await driver.put("ready")
    assert (await reschedule(driver, select={"state": "delayed", "topics": [TOPIC]}, **fields)).done == 600
    assert driver.ready_list()[0] == "ready"
    assert await driver.counts() == {"ready": 601}
    await assert_consistent(driver)
    assert len(await driver.pop(700)) == 601


@pytest.mark.parametrize(
    ("fields", "step"),
    [
        ({"by": 30}, 1),
        ({"by": 30}, 30),
        ({"by": -30}, 30),
        ({"by": -30}, 1000),
        ({"delay": 90}, 30),
        ({"delay": 5}, 1000),
    ],
)
async def test_each_job_is_moved_once_wherever_it_lands(
    driver: EngineDriver, fields: dict[str, Any], step: int
) -> None:
    """Jobs are due `step` ms apart: moved ones land among those that are not moved yet."""
    start = (await driver.put("first", delay=3600)).due_at_ms // 1000 * 1000 - 3_500_000
    jobs = [
        PutJob(topic=TOPIC, id=f"j{n}", run_at=datetime.fromtimestamp((start + n * step) / 1000, UTC))
        for n in range(900)
    ]
    await driver.puts.put_many(jobs)
    before = await due_times(driver)
    found = await reschedule(driver, select={"state": "delayed", "topics": [TOPIC]}, **fields)
    assert found == BulkOutcome(901, 901, {DELAYED: 901}, True)
    after = await due_times(driver)
    if "by" in fields:
        assert after == {job_id: due + fields["by"] * 1000 for job_id, due in before.items()}
    else:
        assert max(after.values()) - min(after.values()) < 30_000  # all at about one instant
        assert len(after) == 901
    assert driver.server.command("KEYS", "deferd:{0}:bulk/*") == []
    await assert_consistent(driver)


async def test_a_repeated_call_moves_the_rest_and_no_job_twice(driver: EngineDriver) -> None:
    await put_many(driver, 600, delay=3600)
    before = await due_times(driver)
    select = {"state": "delayed", "topics": [TOPIC]}
    first = await reschedule(driver, select=select, by=100, request_id="r", limit=400)
    assert first == BulkOutcome(400, 400, {DELAYED: 400}, False)
    await driver.puts.put(PutJob(topic=TOPIC, id="another", delay=3600))
    await reschedule(driver, select=select, by=-7)  # another call in between
    driver.move_clock(1)
    await driver.puts.put(PutJob(topic=TOPIC, id="late", delay=3600))
    second = await reschedule(driver, select=select, by=100, request_id="r", limit=400)
    assert second == BulkOutcome(600, 600, {DELAYED: 600}, True)
    third = await reschedule(driver, select=select, by=100, request_id="r")
    assert third == second
    after = await due_times(driver)
    assert {job_id: after[job_id] - due for job_id, due in before.items()} == dict.fromkeys(before, 93_000)


async def test_a_call_that_failed_in_the_middle_is_continued(driver: EngineDriver, monkeypatch: Any) -> None:
    await put_many(driver, 1000, delay=3600, tags=["x"])
    before = await due_times(driver)
    step, steps = driver.engine.bulk.step, 0

    async def failing(*args: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3:
            await step(*args)
            raise StoreUnavailable("the response was lost")
        return await step(*args)

    monkeypatch.setattr(driver.engine.bulk, "step", failing)
    with pytest.raises(StoreUnavailable):
        await reschedule(driver, select={"tag": "x"}, by=100, request_id="r")
    moved = [job_id for job_id, due in (await due_times(driver)).items() if due != before[job_id]]
    assert 0 < len(moved) < 1000
    assert await reschedule(driver, select={"tag": "x"}, by=100, request_id="r") == BulkOutcome(
        1000, 1000, {DELAYED: 1000}, True
    )
    after = await due_times(driver)
    assert {after[job_id] - due for job_id, due in before.items()} == {100_000}


async def test_attempts_at_the_same_time_move_each_job_once(driver: EngineDriver) -> None:
    await put_many(driver, 1000, delay=3600)
    before = await due_times(driver)
    select = {"state": "delayed", "topics": [TOPIC]}
    await asyncio.gather(*(reschedule(driver, select=select, by=100, request_id="r") for _ in range(4)))
    assert await reschedule(driver, select=select, by=100, request_id="r") == BulkOutcome(
        1000, 1000, {DELAYED: 1000}, True
    )
    after = await due_times(driver)
    assert {after[job_id] - due for job_id, due in before.items()} == {100_000}


async def test_ready_jobs_are_moved_by_state(driver: EngineDriver) -> None:
    await put_many(driver, 600)
    await driver.pop(3, ttr_ms=600_000)
    await driver.engine.held_jobs.return_popped(await driver.pop(2))
    found = await reschedule(driver, select={"state": "ready", "topics": [TOPIC]}, delay=60)
    assert found == BulkOutcome(597, 597, {READY: 597}, True)
    assert await driver.counts() == {"delayed": 597, "reserved": 3}
    await driver.pass_time(61)
    assert await driver.counts() == {"ready": 597, "reserved": 3}
    await assert_consistent(driver)


async def test_waiting_consumers_get_rescheduled_jobs(engine: Engine) -> None:
    await engine.puts.put(PutJob(topic=TOPIC, id="a", delay=3600, tags=["x"]))
    waiting = asyncio.create_task(engine.dispatcher.pop([TOPIC], wait_ms=5000))
    await until(lambda: engine.dispatcher.waiting.count == 1, "it waits")
    await engine.bulk.reschedule(RescheduleSelected.model_validate({"select": {"tag": "x"}, "delay": 0.2}))
    [job] = await waiting
    assert job.id == "a"


async def test_a_dry_run_changes_nothing(driver: EngineDriver) -> None:
    await put_many(driver, 600, delay=60, tags=["x"])
    before = driver.server.command("DBSIZE"), await due_times(driver)
    for select in ({"tag": "x"}, {"state": "delayed", "topics": [TOPIC]}):
        expected = BulkOutcome(600, 0, {DELAYED: 600}, True)
        assert await reschedule(driver, select=select, by=5, dry_run=True, request_id="r") == expected
        assert await cancel(driver, select=select, dry_run=True, request_id="r") == expected
        assert (await cancel(driver, select=select, dry_run=True, limit=300)).complete is False
    assert (driver.server.command("DBSIZE"), await due_times(driver)) == before
