"""finish.lua, release.lua, bury.lua and redrive.lua: every code they can return."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deferd.contract.errors import JobNotFound, ReceiptStale
from deferd.contract.model import FinishItem, JobState
from deferd.engine.record import ANY_RECEIPT, IMPOSSIBLE_RECEIPT, Receipt
from tests.integration.engine.engine_driver import TOPIC, EngineDriver
from tests.integration.engine.sweeping import redrive_jobs


async def test_a_finished_job_is_gone(driver: EngineDriver) -> None:
    await driver.put()
    held = await driver.pop_one(consumer="worker-1")
    await driver.queue.finish(TOPIC, "a", held.receipt, result={"x": 1})
    with pytest.raises(JobNotFound):
        await driver.queue.get(TOPIC, "a")
    with pytest.raises(JobNotFound):
        await driver.queue.finish(TOPIC, "a", held.receipt)
    assert driver.keys_left() == set()


async def test_a_retained_job_is_kept_with_its_result_until_its_retention_ends(driver: EngineDriver) -> None:
    await driver.put(retain=60, body=[1])
    held = await driver.pop_one()
    await driver.queue.finish(TOPIC, "a", held.receipt, result={"paid": [True, {}]})
    stored = await driver.queue.get(TOPIC, "a")
    assert (stored.state, stored.attempts) == (JobState.FINISHED, 1)
    assert (stored.result, stored.body) == (b'{"paid":[true,{}]}', b"[1]")
    assert stored.finished_at_ms is not None
    await driver.pass_time(61)
    assert driver.keys_left() == set()


async def test_a_repeated_finish_succeeds_while_the_record_is_kept(driver: EngineDriver) -> None:
    await driver.put(retain=60)
    held = await driver.pop_one()
    await driver.queue.finish(TOPIC, "a", held.receipt)
    await driver.queue.finish(TOPIC, "a", held.receipt)
    with pytest.raises(ReceiptStale):
        await driver.queue.finish(TOPIC, "a", IMPOSSIBLE_RECEIPT)
    with pytest.raises(ReceiptStale):
        await driver.queue.finish(TOPIC, "a", ANY_RECEIPT)


async def test_finish_needs_a_live_delivery(driver: EngineDriver) -> None:
    await driver.put("ready")
    await driver.put("delayed", delay=5)
    for job_id in ("ready", "delayed"):
        with pytest.raises(ReceiptStale):
            await driver.queue.finish(TOPIC, job_id, ANY_RECEIPT)


STATES_NOBODY_HOLDS = ("delayed", "ready", "dead", "finished")


@pytest.mark.parametrize("receipt", [ANY_RECEIPT, IMPOSSIBLE_RECEIPT], ids=["any", "stale"])
async def test_a_finish_of_a_job_that_is_not_reserved_is_refused_with_its_state(
    driver: EngineDriver, receipt: Receipt
) -> None:
    for job_id in ("dead", "finished"):
        await driver.put(job_id, retain=60)
        await driver.pop_one()
    await driver.queue.bury(TOPIC, "dead", ANY_RECEIPT)
    await driver.queue.finish(TOPIC, "finished", ANY_RECEIPT)
    await driver.put("delayed", delay=5)
    await driver.put("ready")

    for job_id in STATES_NOBODY_HOLDS:
        for verb in (driver.queue.finish, driver.queue.release, driver.queue.touch, driver.queue.bury):
            with pytest.raises(ReceiptStale, match=f"nobody holds job '{job_id}' of topic '{TOPIC}': it is {job_id}$"):
                await verb(TOPIC, job_id, receipt)
    items = [FinishItem(id=job_id) for job_id in STATES_NOBODY_HOLDS]
    results = await driver.queue.finish_many(TOPIC, items)
    assert {(409, "receipt_stale")} == {(one.status, one.code) for one in results}


async def test_a_finish_of_a_job_held_under_another_receipt_is_refused(driver: EngineDriver) -> None:
    await driver.put()
    await driver.pop_one()
    for verb in (driver.queue.finish, driver.queue.release, driver.queue.touch, driver.queue.bury):
        with pytest.raises(ReceiptStale, match="under another receipt"):
            await verb(TOPIC, "a", IMPOSSIBLE_RECEIPT)


async def test_a_job_finished_twice_in_one_call_is_finished_already(driver: EngineDriver) -> None:
    await driver.put(retain=60)
    await driver.pop_one()
    both = [driver.queue.finish(TOPIC, "a", ANY_RECEIPT) for _ in range(2)]
    first, second = await asyncio.gather(*both, return_exceptions=True)
    assert first is None
    assert "it is finished" in str(second)


async def test_each_job_of_a_batch_finish_has_its_own_result(driver: EngineDriver) -> None:
    for job_id in ("a", "b", "c", "d"):
        await driver.put(job_id)
    held = await driver.pop(3)
    await driver.cancels.cancel(TOPIC, "c")
    results = await driver.queue.finish_many(
        TOPIC,
        [
            FinishItem(id="a", receipt=str(held[0].receipt)),
            FinishItem(id="b", receipt=str(held[0].receipt)),
            FinishItem(id="b"),
            FinishItem(id="a"),
            FinishItem(id="c"),
            FinishItem(id="d"),
            FinishItem(id="e", receipt="nonsense"),
        ],
    )
    assert [(result.status, result.code) for result in results] == [
        (200, None),
        (409, "receipt_stale"),
        (200, None),
        (404, "job_not_found"),
        (410, "job_cancelled"),
        (409, "receipt_stale"),
        (404, "job_not_found"),
    ]


async def release_after(driver: EngineDriver, attempts: int, **fields: Any) -> list[float | None]:
    """The waits in seconds after each of `attempts` releases; None for dead."""
    put = await driver.put(**fields)
    waits: list[float | None] = []
    for _ in range(attempts):
        held = await driver.pop_one()
        assert held.reserved_until_ms is not None
        released = await driver.queue.release(TOPIC, "a", held.receipt)
        if released.due_at_ms is None:
            waits.append(None)
            break
        wait_ms = released.due_at_ms - (held.reserved_until_ms - (put.stored("ttr") or 60_000))
        waits.append(round(wait_ms / 1000, 1))
        await driver.pass_time(wait_ms / 1000 + 0.1)
    return waits


async def test_the_default_wait_doubles_up_to_212_s_without_end(driver: EngineDriver) -> None:
    waits = await release_after(driver, 12)
    assert waits == [2, 4, 8, 16, 32, 64, 128, 212, 212, 212, 212, 212]


async def test_exponential_base_and_cap_are_the_jobs(driver: EngineDriver) -> None:
    waits = await release_after(driver, 4, backoff={"kind": "exponential", "base": 3, "cap": 10})
    assert waits == [3, 9, 10, 10]


async def test_the_wait_stays_at_its_cap_after_very_many_attempts(driver: EngineDriver) -> None:
    driver_waits = await release_after(driver, 60, backoff={"kind": "exponential", "base": 1000, "cap": 5})
    assert set(driver_waits) == {5}


async def test_a_fixed_wait(driver: EngineDriver) -> None:
    assert await release_after(driver, 3, backoff={"kind": "fixed", "seconds": 7}) == [7, 7, 7]


async def test_a_schedule_ends_in_dead(driver: EngineDriver) -> None:
    backoff = {"kind": "schedule", "seconds": [120, 600, 3600]}
    assert await release_after(driver, 9, backoff=backoff) == [120, 600, 3600, None]
    stored = await driver.queue.get(TOPIC, "a")
    assert (stored.state, stored.reason, stored.attempts) == (JobState.DEAD, "schedule_ended", 4)


async def test_a_schedule_may_repeat_its_last_wait(driver: EngineDriver) -> None:
    backoff = {"kind": "schedule", "seconds": [1, 5], "then": "repeat_last"}
    assert await release_after(driver, 4, backoff=backoff) == [1, 5, 5, 5]


async def test_jitter_spreads_a_wait_within_its_fraction(driver: EngineDriver) -> None:
    waits = await release_after(driver, 40, backoff={"kind": "fixed", "seconds": 100, "jitter": 0.1})
    assert all(wait is not None and 89.9 <= wait <= 110.1 for wait in waits)
    assert len(set(waits)) > 20


async def test_attempts_end_in_dead(driver: EngineDriver) -> None:
    waits = await release_after(driver, 9, max_attempts=3)
    assert waits == [2, 4, None]
    stored = await driver.queue.get(TOPIC, "a")
    assert (stored.state, stored.reason, stored.attempts) == (JobState.DEAD, "attempts_exhausted", 3)


async def test_a_release_can_set_its_delay_and_an_error(driver: EngineDriver) -> None:
    await driver.put()
    held = await driver.pop_one(consumer="worker-1")
    released = await driver.queue.release(TOPIC, "a", held.receipt, delay_ms=30_000, error="no response")
    assert (released.state, released.attempts) == (JobState.DELAYED, 1)
    stored = await driver.queue.get(TOPIC, "a")
    assert (stored.last_error, stored.attempts, stored.reserved_by) == ("no response", 1, None)
    assert stored.due_at_ms == released.due_at_ms
    await driver.pass_time(29)
    assert await driver.pop() == []
    await driver.pass_time(2)
    held = await driver.pop_one()
    await driver.queue.release(TOPIC, "a", held.receipt, delay_ms=0)
    await driver.run_timer()
    assert (await driver.pop_one()).last_error == "no response"


async def test_the_last_attempt_ends_in_dead_even_with_an_explicit_delay(driver: EngineDriver) -> None:
    await driver.put(max_attempts=1)
    await driver.pop_one()
    released = await driver.queue.release(TOPIC, "a", ANY_RECEIPT, delay_ms=5000)
    assert released.state is JobState.DEAD


async def test_release_and_bury_need_the_live_receipt(driver: EngineDriver) -> None:
    with pytest.raises(JobNotFound):
        await driver.queue.release(TOPIC, "a", ANY_RECEIPT)
    with pytest.raises(JobNotFound):
        await driver.queue.bury(TOPIC, "a", ANY_RECEIPT)
    await driver.put()
    await driver.pop_one()
    with pytest.raises(ReceiptStale):
        await driver.queue.release(TOPIC, "a", IMPOSSIBLE_RECEIPT)
    with pytest.raises(ReceiptStale):
        await driver.queue.bury(TOPIC, "a", IMPOSSIBLE_RECEIPT)
    assert await driver.state() is JobState.RESERVED


async def test_a_buried_job_is_dead_until_its_retention_ends(driver: EngineDriver) -> None:
    await driver.put()
    await driver.pop_one()
    await driver.queue.bury(TOPIC, "a", ANY_RECEIPT, error="poison")
    stored = await driver.queue.get(TOPIC, "a")
    assert (stored.state, stored.reason, stored.last_error) == (JobState.DEAD, "buried", "poison")
    await driver.pass_time(3601)
    assert driver.keys_left() == set()


async def dead_jobs(driver: EngineDriver, *job_ids: str, **fields: Any) -> None:
    for job_id in job_ids:
        await driver.put(job_id, **fields)
        held = await driver.pop_one()
        await driver.queue.bury(TOPIC, job_id, held.receipt, error="poison")
        driver.move_clock(0.01)


async def test_a_redriven_job_is_as_new(driver: EngineDriver) -> None:
    await dead_jobs(driver, "a", max_attempts=1, ttl=10)
    driver.move_clock(100)
    assert await redrive_jobs(driver.engine, TOPIC) == 1
    stored = await driver.queue.get(TOPIC, "a")
    assert (stored.state, stored.attempts, stored.reason, stored.last_error) == (JobState.READY, 0, None, "poison")
    held = await driver.pop_one()
    assert held.attempts == 1
    await driver.queue.finish(TOPIC, "a", held.receipt)


async def test_an_old_receipt_is_stale_for_a_redriven_job(driver: EngineDriver) -> None:
    await driver.put()
    old = await driver.pop_one()
    await driver.queue.bury(TOPIC, "a", old.receipt)
    await redrive_jobs(driver.engine, TOPIC)
    await driver.pop_one()
    with pytest.raises(ReceiptStale):
        await driver.queue.finish(TOPIC, "a", old.receipt)


async def test_redrive_takes_the_longest_dead_up_to_its_limit(driver: EngineDriver) -> None:
    await dead_jobs(driver, "a", "b", "c")
    assert await redrive_jobs(driver.engine, TOPIC, limit=2) == 2
    assert [popped.id for popped in await driver.pop(5)] == ["a", "b"]


async def test_redrive_by_id_skips_jobs_that_are_not_dead(driver: EngineDriver) -> None:
    await dead_jobs(driver, "a", "b")
    await driver.put("ready")
    assert await redrive_jobs(driver.engine, TOPIC, ids=["b", "ready", "nobody", "b"]) == 1
    assert await driver.counts() == {"dead": 1, "ready": 2}
