"""Opening hours and spread as defaults of topics, and calendars, on a real store."""

from __future__ import annotations

import pytest

from deferd.contract.errors import InvalidInput
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.contract.operations.schedules_and_calendars import PutCalendar
from deferd.engine.calendars import Calendars
from deferd.engine.openings import spread_of
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, started_engine
from tests.integration.engine.window_times import (
    MONDAY_EVENING,
    NIGHT,
    OFFICE,
    TUESDAY_OPENING,
    instant,
    move_to,
    set_topic,
)

# Defaults of topics


async def test_another_service_learns_the_defaults_from_the_store(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_EVENING)
    await driver.put("before")
    async with started_engine(driver.server.url, movable_clock=True) as other:
        await other.topics.set(TOPIC, TopicSettings.model_validate({"window": OFFICE, "ttr": 5}))
        first = await driver.put("a")
        assert (instant(first.due_at_ms), first.stored("ttr")) == (TUESDAY_OPENING, 5000)
        assert TOPIC in driver.engine.placer.defaults
        await other.topics.set(TOPIC, TopicSettings.model_validate({"window": NIGHT}))
        assert instant((await driver.put("b")).due_at_ms) == "2030-01-14T22:00:00+00:00"
        await other.topics.set(TOPIC, TopicSettings())
        assert (await driver.put("c")).state is JobState.READY
        assert TOPIC not in driver.engine.placer.defaults
        await other.topics.set(TOPIC, TopicSettings.model_validate({"spread": 60}))
        for level in (None, "memory"):
            put = await driver.put(f"d-{level}", durability=level)
            assert put.placement.moved_ms == spread_of(f"d-{level}", 60_000)


async def test_chains_learn_the_defaults_of_several_topics(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_EVENING)
    names = [f"topic-{each}" for each in range(8)]
    async with started_engine(driver.server.url, movable_clock=True) as other:
        for name in names:
            await other.topics.set(name, TopicSettings.model_validate({"window": OFFICE, "durability": "memory"}))
    await driver.put()
    held = await driver.pop_one()
    chained = [PutJob(topic=name, id="x") for name in names]
    results = await driver.queue.finish_and_put(TOPIC, "a", held.receipt, chained)
    assert [result.status for result in results] == [201] * 8
    for name in names:
        assert instant((await driver.queue.get(name, "x")).due_at_ms) == TUESDAY_OPENING


# Calendars


async def test_jobs_of_a_deleted_or_damaged_calendar_are_always_open(driver: EngineDriver) -> None:
    await move_to(driver, "2030-01-14T15:59:00+00:00")
    calendars = driver.engine.calendars
    await calendars.put("office", PutCalendar.model_validate({"windows": [OFFICE]}))
    await set_topic(driver, window="office")
    await driver.put("a")
    held = await driver.pop_one()
    await calendars.delete("office")
    released = await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=120_000)
    assert instant(released.due_at_ms) == "2030-01-14T16:01:00+00:00"
    with pytest.raises(InvalidInput):
        await driver.put("b", window="office")
    await driver.put("b")
    driver.server.command("HSET", "deferd:{0}:calendars", "office", "{")
    fresh = Calendars(driver.engine._scripts, driver.engine._keys)
    assert await fresh.openings_of("office") is None
    assert await fresh.all() == []
