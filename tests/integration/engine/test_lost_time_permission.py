"""Scripts read the clock before they write: without the permission for TIME they change nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import CancelItem, TopicSettings
from deferd.engine.record import JobRecord
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, started_engine

Call = Callable[[EngineDriver, JobRecord], Awaitable[None]]


async def finish(driver: EngineDriver, held: JobRecord) -> None:
    await driver.queue.finish(TOPIC, held.id, held.receipt)


async def cancel(driver: EngineDriver, held: JobRecord) -> None:
    await driver.cancels.cancel_many(TOPIC, [CancelItem(id="delayed"), CancelItem(id=held.id)])


async def return_popped(driver: EngineDriver, held: JobRecord) -> None:
    await driver.held_jobs.return_popped([held])


@pytest.mark.parametrize("call", [finish, cancel, return_popped])
async def test_nothing_changes(driver: EngineDriver, call: Call) -> None:
    await driver.topics.set(TOPIC, TopicSettings(events=100))
    await driver.put("held")
    held = await driver.pop_one()
    await driver.put("held", if_reserved="after", on_conflict="keep")
    await driver.put("delayed", delay=60)
    before = await driver.counts()
    driver.server.command("ACL", "SETUSER", "default", "-time")
    try:
        with pytest.raises(StoreUnavailable):
            await call(driver, held)
    finally:
        driver.server.command("ACL", "SETUSER", "default", "+time")
    async with started_engine(driver.server.url) as engine:  # the other one calls its store no more
        assert await EngineDriver(engine, driver.server).counts() == before
        report = await engine.consistency.audit_topic(TOPIC)
        assert report.clean, report
