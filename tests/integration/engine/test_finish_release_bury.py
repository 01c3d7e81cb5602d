"""Ends of jobs in the store; what every door does is in tests/conformance/test_endings.py."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deferd.contract.errors import JobCancelled, ReceiptStale
from deferd.contract.model import ChangeJob, JobState
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver
from tests.integration.engine.sweeping import redrive_jobs


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


# Snoozes


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


# The log of attempts that ended without a finish


async def entries(driver: EngineDriver) -> list[tuple[int, str, str, str]]:
    """Number, how it ended, consumer and error of each logged attempt."""
    log = (await driver.queue.get(TOPIC, "a")).endings.attempts_log
    return [(number, how, consumer, error) for number, _, how, consumer, error in log]


async def test_each_failed_attempt_is_logged_with_consumer_and_error(driver: EngineDriver) -> None:
    await driver.put(ttr=10, max_attempts=3)
    await driver.deliveries.release(
        TOPIC, "a", (await driver.pop_one(consumer="w1")).receipt, delay_ms=0, error="é: no"
    )
    await driver.run_timer()
    await driver.pop_one(consumer="w2")
    await driver.pass_time(10)
    await driver.deliveries.bury(TOPIC, "a", (await driver.pop_one()).receipt, error="never")
    assert await entries(driver) == [
        (1, "released", "w1", "é: no"),
        (2, "lease_ended", "w2", ""),
        (3, "buried", "", "never"),
    ]
    [first, *_] = (await driver.queue.get(TOPIC, "a")).endings.attempts_log
    seconds, _ = driver.server.client().time()
    assert abs(first[1] / 1000 - seconds) < 5


async def test_the_end_of_time_limit_and_deadline_is_logged_as_such(driver: EngineDriver) -> None:
    await driver.put(time_limit=20, deadline=50, ttr=30)
    for _ in range(3):
        await driver.pop_one()
        await driver.pass_time(20)
    assert [how for _, how, *_ in await entries(driver)] == ["time_limit", "time_limit", "deadline"]


async def test_a_lease_that_ends_before_the_time_limit_is_logged_as_such(driver: EngineDriver) -> None:
    await driver.put(time_limit=20, ttr=10)
    await driver.pop_one()
    await driver.pass_time(10)
    assert [how for _, how, *_ in await entries(driver)] == ["lease_ended"]


async def test_only_the_last_ten_attempts_and_the_begin_of_their_errors_are_kept(driver: EngineDriver) -> None:
    await driver.put()
    for number in range(1, 13):
        error = f"{number}: " + "ü" * 10_000
        await driver.deliveries.release(TOPIC, "a", (await driver.pop_one()).receipt, delay_ms=0, error=error[:10_000])
        await driver.run_timer()
    logged = await entries(driver)
    assert [number for number, *_ in logged] == [*range(3, 13)]
    for number, _, _, error in logged:
        whole = f"{number}: " + "ü" * 300
        assert 498 < len(error.encode()) <= 500
        assert whole.startswith(error)


async def test_an_error_is_cut_between_characters(driver: EngineDriver) -> None:
    for text in ("x" * 500, "x" * 499 + "é", "x" * 498 + "😀", "😀" * 125, "x" + "😀" * 125):
        await driver.put()
        await driver.deliveries.bury(TOPIC, "a", (await driver.pop_one()).receipt, error=text)
        [(_, _, _, error)] = await entries(driver)
        assert error == text.encode()[:500].decode(errors="ignore")
        await driver.cancels.cancel(TOPIC, "a")


async def test_snoozes_and_successes_are_not_logged_and_cost_nothing(driver: EngineDriver) -> None:
    await driver.put(retain=60)
    before = driver.server.command("HSTRLEN", f"{KEY}:pool", "a")
    await driver.pop_one(consumer="w1")
    assert driver.server.command("HSTRLEN", f"{KEY}:pool", "a") == before
    held = await driver.queue.get(TOPIC, "a")
    await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=1000, counts=False)
    await driver.pass_time(1)
    await driver.queue.finish(TOPIC, "a", (await driver.pop_one()).receipt)
    assert await entries(driver) == []


async def test_a_redrive_keeps_the_log(driver: EngineDriver) -> None:
    await driver.put()
    for _ in range(2):
        await driver.deliveries.bury(TOPIC, "a", (await driver.pop_one()).receipt)
        await redrive_jobs(driver.engine, TOPIC)
    assert [number for number, *_ in await entries(driver)] == [1, 1]
