"""Ends of jobs in the store; what every door does is in tests/conformance/test_endings.py."""

from __future__ import annotations

import asyncio
from typing import Any

from deferd.contract.model import ChangeJob
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.engine_driver import TOPIC, EngineDriver


async def test_a_job_finished_twice_in_one_call_is_finished_already(driver: EngineDriver) -> None:
    await driver.put(retain=60)
    await driver.pop_one()
    both = [driver.queue.finish(TOPIC, "a", ANY_RECEIPT) for _ in range(2)]
    first, second = await asyncio.gather(*both, return_exceptions=True)
    assert first is None
    assert "it is finished" in str(second)


async def release_after(driver: EngineDriver, attempts: int, **fields: Any) -> list[float | None]:
    """The waits after each of `attempts` releases, to ten seconds, as the calls take time too; None for dead."""
    put = await driver.put(**fields)
    waits: list[float | None] = []
    for _ in range(attempts):
        held = await driver.pop_one()
        assert held.reserved_until_ms is not None
        released = await driver.deliveries.release(TOPIC, "a", held.receipt)
        if released.due_at_ms is None:
            waits.append(None)
            break
        wait_ms = released.due_at_ms - (held.reserved_until_ms - (put.stored("ttr") or 60_000))
        waits.append(round(wait_ms / 1000, -1))
        await driver.pass_time(wait_ms / 1000 + 0.1)
    return waits


async def test_the_wait_stays_at_its_cap_after_very_many_attempts(driver: EngineDriver) -> None:
    driver_waits = await release_after(driver, 60, backoff={"kind": "exponential", "base": 1000, "cap": 500})
    assert set(driver_waits) == {500}


async def test_a_schedule_may_repeat_its_last_wait(driver: EngineDriver) -> None:
    backoff = {"kind": "schedule", "seconds": [100, 500], "then": "repeat_last"}
    assert await release_after(driver, 4, backoff=backoff) == [100, 500, 500, 500]


async def test_jitter_spreads_a_wait_within_its_fraction(driver: EngineDriver) -> None:
    waits = await release_after(driver, 40, backoff={"kind": "fixed", "seconds": 10_000, "jitter": 0.1})
    assert all(wait is not None and 9_000 <= wait <= 11_010 for wait in waits)
    assert len(set(waits)) > 20


async def test_no_key_is_left_of_jobs_that_are_over(driver: EngineDriver) -> None:
    for job_id in ("finished", "kept", "buried", "held"):
        await driver.put(job_id, ttr=5, retain=60 if job_id == "kept" else 0)
    for job_id, end in (
        ("finished", driver.queue.finish),
        ("kept", driver.queue.finish),
        ("buried", driver.deliveries.bury),
    ):
        await driver.pop_one(consumer="worker-1")
        await end(TOPIC, job_id, ANY_RECEIPT)
    await driver.pop_one()
    for job_id, delay in (("ready", 0), ("delayed", 60)):
        await driver.put(job_id, delay=delay, ttl=5)
    for job_id in ("held", "ready", "delayed"):
        await driver.cancels.cancel(TOPIC, job_id)
    await driver.put("expired", ttl=5)
    await driver.put("unlimited", ttl=5)
    await driver.queue.change(TOPIC, "unlimited", ChangeJob(ttl=None))
    await driver.pass_time(70)
    assert await driver.counts() == {"dead": 2, "ready": 1}
    assert "expiry" not in driver.keys_left()
    await driver.cancels.cancel(TOPIC, "unlimited")
    await driver.pass_time(3601)
    assert driver.keys_left() == set()
