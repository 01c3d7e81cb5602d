"""Schedules on a real store: the next run is a job, and what becomes of it when it is due."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from deferd.engine.engine import Engine
from deferd.engine.timing.recurrence import run_id
from deferd.store.connection import Store
from tests.integration.engine.engine_driver import TOPIC
from tests.integration.engine.schedule_driver import NAME, ScheduleDriver
from tests.integration.store.store_servers import StoreServer


@pytest.fixture
async def driver(store: Store, server: StoreServer) -> AsyncIterator[ScheduleDriver]:
    engine = Engine(store, movable_clock=True, dead_retention_ms=3_600_000)
    yield ScheduleDriver(engine, server)
    await engine.close()


async def test_the_next_run_is_a_delayed_job_and_the_one_after_follows_it(driver: ScheduleDriver) -> None:
    schedule, created = await driver.schedule(cron="0 3 * * *", job={"body": {"report": "daily"}, "tags": ["x"]})
    assert created
    assert schedule.next_due_ms is not None
    assert schedule.next_id == run_id(NAME, schedule.next_due_ms)
    job = await driver.queue.get(TOPIC, schedule.next_id)
    assert (job.state, job.due_at_ms, job.body, job.tags) == (
        "delayed",
        schedule.next_due_ms,
        b'{"report":"daily"}',
        ["x"],
    )
    await driver.until_due()
    assert driver.ready_list() == [schedule.next_id]
    after = await driver.get()
    assert after.next_due_ms == schedule.next_due_ms + 86_400_000
    assert (after.runs, after.last_id, after.last_due_ms) == (1, schedule.next_id, schedule.next_due_ms)
    assert driver.delayed() == [after.next_id]
    await driver.assert_clean()
