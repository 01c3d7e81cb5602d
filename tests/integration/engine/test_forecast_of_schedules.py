"""Runs of schedules in a forecast: those after the next one of each, exactly, in bounded time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deferd.contract.model import PutJob
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.engine import time_slice
from deferd.engine.inspection import forecast as forecast_module
from deferd.engine.inspection.forecast import Forecast
from deferd.engine.schedule_planning import Run
from deferd.engine.script_arguments import NO_BOUNDS
from tests.integration.engine.engine_driver import TOPIC, EngineDriver

HOUR_MS = 3_600_000


async def forecast(driver: EngineDriver, *topics: str, **options: Any) -> Forecast:
    driver.engine.forecasts._reads._values.clear()
    return await driver.engine.forecasts.forecast(topics or None, lambda _: True, **options)


async def put_schedule(driver: EngineDriver, name: str = "s", topic: str = TOPIC, **fields: Any) -> None:
    schedule = PutSchedule.model_validate({"topic": topic, **fields})
    await driver.engine.schedules.put(name, schedule, NO_BOUNDS, lambda _: None)


def in_buckets(runs: list[Run], made: Forecast) -> list[int]:
    """The runs after the next one in each bucket."""
    begin_ms, end_ms, buckets = made.period
    ends = [begin_ms + at * (end_ms - begin_ms) // buckets for at in range(buckets + 1)]
    return [sum(ends[at] <= run.due_ms < ends[at + 1] for run in runs[1:]) for at in range(buckets)]


@pytest.mark.parametrize(
    "schedule",
    [
        {"every": 60},
        {"every": 45.5},
        {"every": 700, "job": {"spread": 300}},
        {"every": 600, "spread": 500},
        {"cron": "*/7 * * * *", "zone": "Europe/Berlin"},
        {"at": ["09:00", "09:30", "21:15"], "zone": "America/New_York"},
        {"every": 900, "window": {"from": "08:00", "to": "09:00"}},
        {"every": 600, "max_runs": 5},
        {"cron": "0 * * * *", "max_runs": 3},
        {"every": 86_400},
    ],
)
async def test_the_runs_are_those_of_the_preview(driver: EngineDriver, schedule: dict[str, Any]) -> None:
    await put_schedule(driver, **schedule)
    now_ms = (await forecast(driver)).now_ms
    _, runs = await driver.engine.schedules.preview("s", lambda _: None, 2500)
    for hours in (6, 30):
        made = await forecast(driver, from_ms=now_ms, to_ms=now_ms + hours * HOUR_MS, buckets=48)
        total = made.total()
        assert list(total.scheduled) == in_buckets(runs, made)
        assert made.is_complete
        assert (total.delayed, total.before + total.after + sum(total.counts)) == (1, 1)


async def test_many_runs_are_counted_by_arithmetic(driver: EngineDriver) -> None:
    await put_schedule(driver, every=1)
    await put_schedule(driver, "spread", every=10, job={"spread": 5})
    await put_schedule(driver, "cron", cron="* * * * * *")
    made = await forecast(driver)
    made = await forecast(driver, from_ms=made.now_ms + HOUR_MS, to_ms=made.now_ms + 11 * HOUR_MS, buckets=10)
    assert made.is_complete
    for count in made.total().scheduled:
        assert count == pytest.approx(3600 + 360 + 3600, abs=5)


async def test_schedules_with_the_same_times_share_them(driver: EngineDriver) -> None:
    """Each counts only its own: those after its next run, from its beginning on, until its end."""
    cron = {"cron": "*/5 * * * *", "zone": "Asia/Kolkata"}
    now = datetime.now(UTC)
    await put_schedule(driver, "a", "a", **cron)
    await put_schedule(driver, "b", "b", **cron)
    await put_schedule(driver, "starts", "starts", **cron, start_at=now + timedelta(hours=3))
    await put_schedule(driver, "ends", "ends", **cron, end_at=now + timedelta(hours=2))
    await put_schedule(driver, "other", "other", cron="*/5 * * * *", zone="Asia/Kathmandu")
    made = await forecast(driver)
    counts = {name: sum(topic.scheduled) for name, topic in made.topics.items()}
    assert counts.pop("ends") in {22, 23, 24}
    assert counts.pop("starts") in {34, 35, 36}
    assert set(counts.values()) <= {70, 71, 72}
    assert len(counts) == 3


async def test_a_period_far_in_the_future(driver: EngineDriver) -> None:
    await put_schedule(driver, every=60)
    begin_ms = round((datetime.now(UTC) + timedelta(days=1000)).timestamp() * 1000)
    made = await forecast(driver, from_ms=begin_ms, to_ms=begin_ms + HOUR_MS, buckets=2)
    assert list(made.total().scheduled) == [30, 30]


async def test_what_makes_no_further_runs(driver: EngineDriver) -> None:
    await put_schedule(driver, "paused", every=60)
    await driver.engine.schedules.pause("paused", lambda _: None)
    await put_schedule(driver, "once", every=60, max_runs=1)
    await put_schedule(driver, "ends", every=60, end_at=datetime.now(UTC) + timedelta(seconds=90))
    made = await forecast(driver)
    assert sum(made.total().scheduled) == 0
    assert made.is_complete


async def test_topics_that_are_wanted_and_visible(driver: EngineDriver) -> None:
    for name, topic in (("a", "shop.a"), ("b", "shop.b"), ("c", "bank.c")):
        await put_schedule(driver, name, topic, every=3600)
    await driver.puts.put(PutJob(topic="plain", id="a", delay=60))
    made = await forecast(driver, "shop.*")
    assert {name: sum(topic.scheduled) for name, topic in made.topics.items()} == {"shop.a": 5, "shop.b": 5}
    made = await driver.engine.forecasts.forecast(None, lambda topic: topic in {"bank.c", "plain"})
    assert {name: sum(topic.scheduled) for name, topic in made.topics.items()} == {"bank.c": 5, "plain": 0}
    assert sum(made.total().scheduled) == 5


async def test_a_run_that_was_cancelled_counts_nowhere(driver: EngineDriver) -> None:
    await put_schedule(driver, every=3600)
    schedule = await driver.engine.schedules.get("s")
    await driver.cancels.cancel(TOPIC, schedule.next_id)
    await driver.put("other", delay=60)
    made = await forecast(driver)
    assert (made.total().delayed, sum(made.total().scheduled)) == (1, 5)


async def test_too_many_runs_or_schedules_are_said(driver: EngineDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    window = {"from": "00:00", "to": "23:59"}
    await put_schedule(driver, every=10, window=window)
    assert not (await forecast(driver)).is_complete
    await put_schedule(driver, every=600, window=window)
    assert (await forecast(driver)).is_complete
    monkeypatch.setattr(forecast_module, "_SCHEDULES_READ", 150)
    for number in range(250):
        await put_schedule(driver, f"n{number:03}", every=3600)
    made = await forecast(driver)
    assert (made.is_complete, sum(made.total().scheduled)) == (False, 200 * 5)
    monkeypatch.setattr(forecast_module, "_SCHEDULES_READ", 4000)
    monkeypatch.setattr(forecast_module, "_BUDGET_S", 0.0)
    monkeypatch.setattr(time_slice, "SLICE_S", 0.0)
    assert not (await forecast(driver)).is_complete


async def test_others_run_meanwhile(driver: EngineDriver) -> None:
    for number in range(100):
        await put_schedule(driver, f"n{number:03}", cron="* * * * *", job={"spread": 30})
    longest_s, running = 0.0, True

    async def tick() -> None:
        nonlocal longest_s
        before_s = time.thread_time()  # what the loop computes, whatever else runs on the machine
        while running:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            longest_s, before_s = max(longest_s, now_s - before_s), now_s

    ticking = asyncio.create_task(tick())
    made = await forecast(driver)
    running = False
    await ticking
    assert sum(made.total().scheduled) > 5000
    assert longest_s < 0.1


async def test_a_damaged_schedule_is_left_out(driver: EngineDriver) -> None:
    await put_schedule(driver, "good", every=3600)
    await put_schedule(driver, "bad", every=3600)
    driver.server.command("HSET", "deferd:{0}:schedule/bad", "definition", "{}")
    assert sum((await forecast(driver)).total().scheduled) == 5
