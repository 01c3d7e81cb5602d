"""Schedules of topics that have jobs on the shelf."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from deferd.contract.model import JobState
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.engine.script_arguments import NO_BOUNDS
from tests.integration.engine.engine_driver import TOPIC
from tests.shelving import Shelved
from tests.waiting import BUSY_S


async def test_a_shelf_that_hangs_keeps_no_due_job_waiting_for_schedules(
    shelved: Shelved, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = shelved.engine
    await shelved.put("far", int(time.time() * 1000) + 100_000_000)
    await shelved.move_out()
    schedule = PutSchedule.model_validate({"topic": TOPIC, "every": 1})
    await engine.schedules.put("often", schedule, NO_BOUNDS, lambda *_: None)

    async def hang(*_: Any) -> int:
        return int(await asyncio.get_running_loop().create_future())

    monkeypatch.setattr(shelved.mover, "load", hang)
    [timer] = engine.timers
    await asyncio.sleep(2)  # runs are due
    end_s = time.monotonic() + 3
    while time.monotonic() < end_s:
        async with asyncio.timeout(BUSY_S):
            wait_s = await timer.run_once()
        await asyncio.sleep(min(wait_s, 0.1))
    monkeypatch.undo()
    async with asyncio.timeout(5):
        while (await engine.topics.get(TOPIC)).counts[JobState.READY] < 2:
            await timer.run_once()
            await asyncio.sleep(0.05)
