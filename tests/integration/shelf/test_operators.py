"""What operators see of the shelf in the engine: its alerts while it is behind, and where a job was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import cast

import pytest

from deferd.contract.model import PutJob, TopicSettings
from deferd.engine import shelf as shelf_module
from deferd.engine.inspection.attention import Alert, overview_of
from deferd.engine.inspection.job_facts import JobFacts, MissingJob
from deferd.engine.shelf import ShelfCalls, Status
from deferd.shelf.rows import Rows
from tests.integration.engine.engine_driver import TOPIC, EngineDriver
from tests.integration.shelf.test_process import FAR_S, Running
from tests.integration.store.store_servers import StoreServer
from tests.waiting import BUSY_S, until

AHEAD_S = 1800.0
"""Of a shelf as in test_process."""


@pytest.fixture
async def running(driver: EngineDriver, server: StoreServer, tmp_path: Path) -> AsyncIterator[Running]:
    """A shelf with three jobs that are due at the same time, which the driver's engine uses."""
    jobs = [PutJob(topic=TOPIC, id=job_id, delay=FAR_S) for job_id in "abc"]
    await driver.engine.puts.put_many(jobs)
    async with Running(server, tmp_path) as running:
        await running.status_when(lambda status: status.jobs == 3)
        driver.engine.shelf.calls = running.client
        yield running


async def alerts(driver: EngineDriver) -> list[Alert]:
    driver.engine.alerts._reads._values.clear()
    found = await driver.engine.alerts.now(lambda _: True)
    return [one for one in found.alerts if one.code == "shelf_behind"]


async def severity(driver: EngineDriver) -> str | None:
    return next((one.severity for one in await alerts(driver)), None)


async def test_a_shelf_that_loads_too_slowly_warns_before_it_is_critical(
    running: Running, driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await severity(driver) is None

    def damaged(*_: object) -> list[str]:
        raise Exception("Corruption: block checksum mismatch")  # noqa: TRY002 (as rocksdict)

    monkeypatch.setattr(Rows, "due_until", damaged)
    await until(lambda: bool(running.process._shelving and running.process._shelving.returning.firsts), "a look")
    left_s: float = FAR_S
    for to_s, expected in ((0.6 * AHEAD_S, None), (0.4 * AHEAD_S, "warning"), (0.05 * AHEAD_S, "critical")):
        driver.move_clock(left_s - to_s)
        left_s = to_s
        assert await severity(driver) == expected
    [alert] = await alerts(driver)
    first_ms = await running.client.first_due(TOPIC)
    assert first_ms is not None
    assert alert.facts["jobs"] == 3
    assert alert.facts["within_ms"] == AHEAD_S * 500
    assert abs(alert.facts["first_due_at_ms"] - first_ms) < BUSY_S * 1000
    monkeypatch.undo()
    await running.status_when(lambda status: status.jobs == 0)
    assert await severity(driver) is None


class Hanging:
    """A shelf that does not respond. `asked`: how often it was called."""

    def __init__(self) -> None:
        self.asked = 0

    async def status(self) -> Status:
        return Status(await self._hang())

    async def first_due(self, _: str) -> int | None:
        return await self._hang()

    async def _hang(self) -> int:
        self.asked += 1
        await asyncio.sleep(3600)
        return 0


async def test_a_shelf_that_hangs_delays_pages_by_a_bounded_time_and_is_critical(
    running: Running, driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver.engine.puts.put_many([PutJob(topic=f"t{at}", id="a", delay=FAR_S) for at in range(40)])
    await running.status_when(lambda status: status.jobs == 3 + 40)
    monkeypatch.setattr(shelf_module, "PAGE_S", 0.2)
    hanging = Hanging()
    driver.engine.shelf.calls = cast("ShelfCalls", hanging)
    began_s = monotonic()
    [alert] = await alerts(driver)
    assert (alert.severity, alert.facts) == ("critical", {"why": "the shelf did not respond in time"})
    now = await driver.engine.alerts.now(lambda _: True)
    assert (now.next_due_ms, now.is_complete) == (None, False)
    system = await driver.engine.system.read()
    assert system.shelf is not None
    assert system.shelf.fault == "the shelf did not respond in time"
    assert system.timers != []
    assert len((await driver.engine.topic_list.page()).views) == 41
    assert monotonic() - began_s < 0.2 + BUSY_S
    forecast = await driver.engine.forecasts.forecast(None, lambda _: True, from_ms=None, to_ms=None, buckets=6)
    assert (forecast.is_complete, forecast.unreadable, forecast.total().delayed) == (False, set(), 0)
    assert hanging.asked == 1


async def test_without_a_shelf_nothing_is_known_of_one(driver: EngineDriver) -> None:
    assert await severity(driver) is None
    assert (await driver.engine.system.read()).shelf is None


@pytest.mark.parametrize("partitions", [1, 4])
async def test_only_the_look_that_loads_a_job_says_that_it_was_on_the_shelf(
    running: Running, driver: EngineDriver, partitions: int
) -> None:
    await driver.topics.set("wide", TopicSettings(partitions=partitions))
    jobs = [PutJob(topic="wide", id=f"j{at}", delay=FAR_S) for at in range(8)]
    await driver.engine.puts.put_many([*jobs, PutJob(topic="wide", id="near", delay=60)])
    await running.status_when(lambda status: status.jobs == 3 + 8)

    async def was_shelved(job_id: str) -> bool:
        facts = await driver.topics.why("wide", job_id)
        assert isinstance(facts, JobFacts)
        return facts.was_shelved

    assert not await was_shelved("near")
    assert [await was_shelved(f"j{at}") for at in range(8)] == [True] * 8
    assert [await was_shelved(f"j{at}") for at in range(8)] == [False] * 8
    assert isinstance(await driver.topics.why("wide", "none"), MissingJob)


async def test_a_job_that_is_put_during_the_look_was_not_on_the_shelf(
    running: Running, driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = running.client.load

    async def put_meanwhile(topic: str, ids: Sequence[str]) -> int:
        monkeypatch.undo()
        generation = await load(topic, ids)
        driver.move_clock(0.005)
        await driver.put("new", delay=60)
        return generation

    monkeypatch.setattr(running.client, "load", put_meanwhile)
    facts = await driver.topics.why(TOPIC, "new")
    assert isinstance(facts, JobFacts)
    assert not facts.was_shelved


@pytest.mark.parametrize("partitions", [1, 4])
async def test_what_is_due_next_may_be_on_the_shelf(running: Running, driver: EngineDriver, partitions: int) -> None:
    await driver.topics.set("wide", TopicSettings(partitions=partitions))
    begin = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=FAR_S - 100)
    for at, later in enumerate((0, 0, 0.4, 0.999, 1, 50)):
        due_at = begin + timedelta(seconds=later)
        await driver.puts.put(PutJob(topic="wide", id=f"j{at}", run_at=due_at))
    await running.status_when(lambda status: status.jobs == 3 + 6)
    begin_ms = round(begin.timestamp() * 1000)
    driver.engine.alerts._reads._values.clear()
    found = await driver.engine.alerts.now(lambda _: True)
    assert (found.next_due_ms, found.next_due_jobs, found.is_complete) == (begin_ms, 4, True)
    rows = overview_of(await driver.engine.alerts.read(), lambda _: True, sort="due", offset=0, limit=9).rows
    assert [(row.topic, row.counts[0]) for row in rows] == [("wide", 6), (TOPIC, 3)]
    assert rows[0].next_due_ms == begin_ms
