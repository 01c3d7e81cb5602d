"""check.lua and return.lua as consumers call them: every result they can have."""

from __future__ import annotations

from deferd.contract.model import CancelItem, FinishItem, HeldJob
from deferd.engine.record import ANY_RECEIPT, JobRecord
from tests.integration.engine.engine_driver import TOPIC, EngineDriver

HELD, MISSING, STALE, CANCELLED = (
    (200, None),
    (404, "job_not_found"),
    (409, "receipt_stale"),
    (410, "job_cancelled"),
)


def held(*jobs: JobRecord) -> list[HeldJob]:
    return [HeldJob(id=job.id, receipt=str(job.receipt)) for job in jobs]


async def checked(driver: EngineDriver, *jobs: JobRecord) -> list[tuple[int, str | None]]:
    return [(one.status, one.code) for one in await driver.held_jobs.check_many(TOPIC, held(*jobs))]


async def returned(driver: EngineDriver, *jobs: JobRecord) -> list[tuple[int, str | None]]:
    return [(one.status, one.code) for one in await driver.held_jobs.return_many(TOPIC, held(*jobs))]


async def in_all_states(driver: EngineDriver) -> list[JobRecord]:
    """Deliveries of jobs that became what their ids say."""
    names = ("held", "cancelled", "finished", "kept", "dead", "delayed", "ready", "popped", "replaced")
    for name in names:
        await driver.put(name, ttr=5 if name in {"ready", "popped"} else 600, retain=60 if name == "kept" else 0)
    deliveries = await driver.pop(len(names))
    await driver.pass_time(6)
    [again] = await driver.pop()
    assert again.id == "popped"
    await driver.cancels.cancel_many(TOPIC, [CancelItem(id=name) for name in ("cancelled", "replaced")])
    await driver.queue.finish_many(TOPIC, [FinishItem(id=name) for name in ("finished", "kept")])
    await driver.deliveries.bury(TOPIC, "dead", ANY_RECEIPT)
    await driver.deliveries.release(TOPIC, "delayed", ANY_RECEIPT, delay_ms=60_000)
    await driver.put("replaced")
    return deliveries


async def test_a_check_tells_which_deliveries_are_over(driver: EngineDriver) -> None:
    deliveries = await in_all_states(driver)
    # Another consumer has "popped": only a touch tells.
    expected = [HELD, CANCELLED, MISSING, STALE, STALE, STALE, STALE, HELD, CANCELLED]
    assert await checked(driver, *deliveries) == expected
    assert await driver.counts() == {"delayed": 1, "ready": 2, "reserved": 2, "dead": 1, "finished": 1}


async def test_a_check_forgets_a_cancel_with_its_tombstone(driver: EngineDriver) -> None:
    await driver.put(ttr=5)
    delivery = await driver.pop_one()
    await driver.cancels.cancel(TOPIC, "a")
    driver.move_clock(64)
    assert await checked(driver, delivery) == [CANCELLED]
    driver.move_clock(2)  # and before the timer has removed it
    assert await checked(driver, delivery) == [MISSING]


async def test_a_return_counts_nothing_and_only_live_deliveries_return(driver: EngineDriver) -> None:
    deliveries = await in_all_states(driver)
    expected = [HELD, CANCELLED, MISSING, *[STALE] * 6]
    assert await returned(driver, *deliveries) == expected
    assert driver.ready_list()[0] == "held"
    [again] = await driver.pop()
    assert (again.id, again.attempts, again.endings.snoozes) == ("held", 1, 0)
    assert await returned(driver, deliveries[0]) == [STALE]


async def test_more_jobs_than_one_call_of_the_script_takes_return_in_their_order(driver: EngineDriver) -> None:
    names = [f"j{number:03}" for number in range(600)]
    for name in names:
        await driver.put(name)
    deliveries = await driver.pop(599, request_id="r1")
    assert {HELD} == set(await returned(driver, *deliveries))
    assert driver.ready_list() == names
