"""Snoozes: releases that do not count as an attempt."""

from __future__ import annotations

import pytest

from deferd.contract.errors import JobCancelled, ReceiptStale
from deferd.contract.model import ChangeJob, JobState
from tests.integration.engine.engine_driver import TOPIC, EngineDriver
from tests.integration.engine.sweeping import redrive_jobs


async def test_the_receipt_of_a_snoozed_delivery_is_void_also_while_the_job_is_held_again(driver: EngineDriver) -> None:
    await driver.put()
    first = await driver.pop_one()
    await driver.deliveries.release(TOPIC, "a", first.receipt, delay_ms=1000, counts=False)
    with pytest.raises(ReceiptStale):
        await driver.queue.finish(TOPIC, "a", first.receipt)
    await driver.pass_time(1)
    second = await driver.pop_one()
    assert second.attempts == first.attempts
    for call in (driver.queue.finish, driver.deliveries.release, driver.deliveries.touch, driver.deliveries.bury):
        with pytest.raises(ReceiptStale):
            await call(TOPIC, "a", first.receipt)
    await driver.queue.finish(TOPIC, "a", second.receipt)


async def test_a_cancel_tells_the_holder_of_a_delivery_after_a_snooze(driver: EngineDriver) -> None:
    await driver.put()
    first = await driver.pop_one()
    await driver.deliveries.release(TOPIC, "a", first.receipt, delay_ms=1000, counts=False)
    await driver.pass_time(1)
    second = await driver.pop_one()
    await driver.cancels.cancel(TOPIC, "a")
    with pytest.raises(JobCancelled):
        await driver.deliveries.touch(TOPIC, "a", second.receipt)


async def test_a_snoozed_job_has_met_its_ttl(driver: EngineDriver) -> None:
    await driver.put(ttl=10)
    first = await driver.pop_one()
    await driver.deliveries.release(TOPIC, "a", first.receipt, delay_ms=30_000, counts=False)
    await driver.pass_time(60)
    assert await driver.state() is JobState.READY
    assert "expiry" not in driver.keys_left()


async def test_a_redrive_forgets_snoozes(driver: EngineDriver) -> None:
    await driver.put()
    first = await driver.pop_one()
    await driver.deliveries.release(TOPIC, "a", first.receipt, delay_ms=1000, counts=False)
    await driver.pass_time(1)
    await driver.deliveries.bury(TOPIC, "a", (await driver.pop_one()).receipt)
    await redrive_jobs(driver.engine, TOPIC)
    assert (await driver.queue.get(TOPIC, "a")).endings.snoozes == 0


async def test_a_change_does_not_bring_the_ttl_of_a_snoozed_job_back(driver: EngineDriver) -> None:
    await driver.put(ttl=10)
    first = await driver.pop_one()
    await driver.deliveries.release(TOPIC, "a", first.receipt, delay_ms=1000, counts=False)
    await driver.queue.change(TOPIC, "a", ChangeJob(delay=1))
    await driver.pass_time(60)
    assert await driver.state() is JobState.READY
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean
