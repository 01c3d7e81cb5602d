"""Opening hours and calendars on a cluster, in copies, and for the consistency check."""

from __future__ import annotations

from pathlib import Path

import pytest

from deferd.contract.errors import InvalidInput
from deferd.contract.limits import CALENDARS_MAX
from deferd.contract.model import PutJob
from deferd.contract.operations.schedules_and_calendars import PutCalendar
from deferd.engine.engine import Engine
from deferd.engine.openings import Openings, spread_of
from deferd.engine.store_copy import copy_store
from deferd.store.connection import Store, connect
from deferd.store.preflight import check
from tests.integration.engine.engine_driver import TOPIC, EngineDriver
from tests.integration.engine.window_times import NIGHT, OFFICE
from tests.integration.store.store_servers import StoreServer

CALENDAR = PutCalendar.model_validate({"windows": [OFFICE, NIGHT]})


async def assert_placed(engine: Engine, topics: list[str]) -> None:
    openings = Openings.of(CALENDAR.windows)
    for topic in topics:
        put = PutJob.model_validate({"topic": topic, "id": "a", "window": "office", "spread": 600, "delay": 3600})
        record = (await engine.puts.put(put)).record
        asked_ms = record.due_at_ms - record.placement.moved_ms
        assert record.due_at_ms == openings.next_open(openings.next_open(asked_ms) + spread_of("a", 600_000))


async def test_a_copy_takes_calendars_and_placed_jobs_along(store: Store, tmp_path: Path) -> None:
    await check(store, shards=2)
    engine = Engine(store, shards=2)
    await engine.calendars.put("office", CALENDAR)
    await assert_placed(engine, [TOPIC])
    await engine.close()
    with StoreServer(tmp_path) as server:
        target = await connect(server.url, timeout_s=5)
        assert (await copy_store(store, target, shards=1)).adds_up
        copied = Engine(target, shards=1)
        assert (await copied.calendars.get("office")).windows == tuple(CALENDAR.windows)
        assert (await copied.queue.get(TOPIC, "a")).placement.window == '"office"'
        await copied.close()
        await target.close()


async def test_a_check_finds_nothing_wrong_with_calendars_and_placed_jobs(driver: EngineDriver) -> None:
    await driver.engine.calendars.put("office", CALENDAR)
    await driver.put(window="office", spread=60)
    report = await driver.engine.consistency.audit_store()
    assert (report.clean, report.stray_keys) == (True, [])
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


@pytest.mark.slow
async def test_there_are_so_many_calendars_at_most(driver: EngineDriver) -> None:
    key = "deferd:{0}:calendars"
    text = CALENDAR.model_dump_json(by_alias=True)
    for number in range(CALENDARS_MAX):
        driver.server.command("HSET", key, f"c{number}", text)
    with pytest.raises(InvalidInput, match="1000"):
        await driver.engine.calendars.put("one.more", CALENDAR)
    assert (await driver.engine.calendars.put("c0", CALENDAR))[1] is False
