"""Follow-ups, collected items and tags count in the usage of topics, as long as they are in the store."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.engine.topic_usage import HELD_OVERHEAD_BYTES, ITEM_OVERHEAD_BYTES, JOB_OVERHEAD_BYTES, TAG_OVERHEAD_BYTES
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job

AFTER = {"on_conflict": "replace", "if_reserved": "after"}


async def used(driver: EngineDriver) -> tuple[int, int]:
    """Jobs and bytes."""
    jobs, _ = await driver.engine.usage.jobs(0, [TOPIC])
    return jobs, sum([step async for step in driver.engine.usage.record_bytes(TOPIC)])


def stored_bytes(driver: EngineDriver, of: str, job_id: str) -> int:
    return int(driver.server.command("HSTRLEN", f"{KEY}:{of}", job_id)) + 2 * len(job_id) + JOB_OVERHEAD_BYTES


async def test_a_follow_up_counts_until_it_is_gone(driver: EngineDriver) -> None:
    await driver.put(body="held")
    held = await driver.pop_one()
    await driver.put(body="x" * 5000, **AFTER)
    both = stored_bytes(driver, "pool", "a") + HELD_OVERHEAD_BYTES + stored_bytes(driver, "follow", "a")
    assert await used(driver) == (2, both)
    assert both > 5000
    await driver.queue.finish(TOPIC, "a", held.receipt)
    assert await used(driver) == (1, stored_bytes(driver, "pool", "a"))
    await driver.cancels.cancel(TOPIC, "a")
    assert await used(driver) == (0, 0)


@pytest.mark.parametrize("is_follow_up", [False, True])
async def test_collected_items_count_until_they_are_handed_out(driver: EngineDriver, is_follow_up: bool) -> None:
    held = None
    if is_follow_up:
        await driver.put(body="held")
        held = await driver.pop_one()
    for _ in range(3):
        await driver.put(body="x" * 998, on_conflict="append", if_reserved="after")
    where = "follow" if is_follow_up else "pool"
    items = 3 * (1000 + ITEM_OVERHEAD_BYTES) + 1 + len(f"{KEY}:items/a") + JOB_OVERHEAD_BYTES
    jobs, all_bytes = await used(driver)
    assert jobs == (2 if held else 1)
    assert all_bytes == items + stored_bytes(driver, where, "a") + (
        stored_bytes(driver, "pool", "a") + HELD_OVERHEAD_BYTES if held else 0
    )
    if held:
        await driver.queue.finish(TOPIC, "a", held.receipt)
    await driver.run_timer()
    taken = await driver.pop_one()
    assert await used(driver) == (1, stored_bytes(driver, "pool", "a") + HELD_OVERHEAD_BYTES)
    assert stored_bytes(driver, "pool", "a") > 3000
    await driver.queue.finish(TOPIC, "a", taken.receipt)
    assert await used(driver) == (0, 0)


async def test_tags_count_in_the_index_too(driver: EngineDriver) -> None:
    await driver.put(tags=["user:7", "x"])
    in_index = 1 + 2 * len("user:7 x") + 2 * (len(TOPIC) + 1 + TAG_OVERHEAD_BYTES)
    assert await used(driver) == (1, stored_bytes(driver, "pool", "a") + in_index)
    await driver.cancels.cancel(TOPIC, "a")
    assert await used(driver) == (0, 0)


async def test_the_log_of_attempts_counts_with_its_record(driver: EngineDriver) -> None:
    await driver.put()
    before = (await used(driver))[1]
    held = await driver.pop_one()
    await driver.queue.release(TOPIC, "a", held.receipt, error="x" * 1000)
    assert (await used(driver))[1] > before + 1500  # the error, and its first 500 bytes in the log


async def test_many_of_each_are_counted_in_bounded_steps(driver: EngineDriver) -> None:
    many: list[dict[str, Any]] = [{"body": "x" * 998, "on_conflict": "append"} for _ in range(2500)]
    for start in range(0, len(many), 500):
        puts = [job(f"j{start + at}", tags=["t"], **fields) for at, fields in enumerate(many[start : start + 500])]
        await driver.puts.put_many(puts)
    steps = [step async for step in driver.engine.usage.record_bytes(TOPIC)]
    assert sum(steps) > 2500 * (998 + 2 * JOB_OVERHEAD_BYTES + TAG_OVERHEAD_BYTES)
    assert max(steps) < 3 * 1024 * 1024
    assert len(steps) >= 7


async def test_a_topic_with_jobs_only_is_counted_in_one_step(driver: EngineDriver) -> None:
    await driver.put()
    assert len([step async for step in driver.engine.usage.record_bytes(TOPIC)]) == 1
