"""The Ready list under changes and cancels; what every door does is in tests/conformance/test_change_and_cancel.py."""

from __future__ import annotations

from typing import Any

from deferd.contract.model import ChangeJob
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job


def change(**fields: Any) -> ChangeJob:
    return ChangeJob.model_validate(fields)


async def test_an_id_that_becomes_ready_again_goes_to_the_end_of_the_ready_list(driver: EngineDriver) -> None:
    ids = [f"j{number:02}" for number in range(20)]
    await driver.puts.put_many([job(job_id) for job_id in ids])
    await driver.cancels.cancel(TOPIC, "j05")
    await driver.put("j05")
    await driver.put("j06", on_conflict="replace")
    await driver.queue.change(TOPIC, "j07", change(delay=5))
    await driver.put("j08", on_conflict="replace", delay=5.1)
    await driver.pass_time(6)
    again = ["j05", "j06", "j07", "j08"]
    assert [popped.id for popped in await driver.pop(20)] == [*ids[:5], *ids[9:], *again]


async def test_churn_inside_a_ready_list_leaves_only_ready_jobs_in_it(driver: EngineDriver) -> None:
    """If ids were left in it, put-only topics would make it grow without limit, and every pop slower."""
    ids = [f"j{number}" for number in range(300)]
    await driver.puts.put_many([job(job_id) for job_id in ids])
    for _ in range(3):
        for delay in (60, 0):
            churn = [job(job_id, on_conflict="replace", delay=delay) for job_id in ids[100:200]]
            await driver.puts.put_many(churn)
    assert len(driver.ready_list()) == len(ids)
    assert await driver.counts() == {"ready": len(ids)}


async def test_the_ready_list_does_not_grow_with_jobs_that_are_put_and_cancelled(driver: EngineDriver) -> None:
    await driver.put("stays")
    await driver.put("j0")
    for number in range(1, 50):
        await driver.put(f"j{number}")
        await driver.cancels.cancel(TOPIC, f"j{number - 1}")
    assert driver.ready_list() == ["stays", "j49"]


async def test_the_ready_list_does_not_grow_with_a_job_that_is_replaced_or_delayed(driver: EngineDriver) -> None:
    await driver.put("stays")
    for _ in range(50):
        await driver.put("a", on_conflict="replace")
        await driver.put("a", on_conflict="replace")
        await driver.put("a", on_conflict="replace", delay=60)
        await driver.queue.change(TOPIC, "a", change(delay=0))
        await driver.queue.change(TOPIC, "a", change(delay=60))
    assert driver.ready_list() == ["stays"]
