"""A shelf that hangs keeps nothing waiting that does not need its jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import JobState, PutJob
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.script_arguments import NO_BOUNDS
from tests.integration.engine.engine_driver import TOPIC
from tests.shelving import Shelved
from tests.waiting import BUSY_S


async def hang(*_: Any) -> int:
    return int(await asyncio.get_running_loop().create_future())


async def test_a_shelf_that_hangs_keeps_no_due_job_waiting_for_schedules(
    shelved: Shelved, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = shelved.engine
    await shelved.put("far", int(time.time() * 1000) + 100_000_000)
    await shelved.move_out()
    schedule = PutSchedule.model_validate({"topic": TOPIC, "every": 1})
    await engine.schedules.put("often", schedule, NO_BOUNDS, lambda *_: None)

    asked: list[str] = []

    def ask(topic: str, *_: Any) -> Awaitable[int]:
        asked.append(topic)
        return hang()

    monkeypatch.setattr(shelved.mover, "load", ask)
    [timer] = engine.timers
    while len(asked) < 2:  # by runs that are due, one each second
        async with asyncio.timeout(BUSY_S):
            wait_s = await timer.run_once()
        await asyncio.sleep(min(wait_s, 0.1))
    monkeypatch.undo()
    async with asyncio.timeout(5):
        while (await engine.topics.get(TOPIC)).counts[JobState.READY] < 2:
            await timer.run_once()
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("verb", ["finish", "release", "touch", "bury"])
async def test_a_delivery_that_is_over_keeps_no_other_waiting(
    shelved: Shelved, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """Calls on deliveries of a topic share calls of the store."""
    engine = shelved.engine
    await engine.puts.put(PutJob(topic=TOPIC, id="a"))
    [[popped]] = (await engine.queue.pop(TOPIC, [PopRequest(1)])).jobs
    monkeypatch.setattr(shelved.mover, "load", hang)
    calls = engine.queue if verb == "finish" else engine.deliveries
    async with asyncio.timeout(BUSY_S):
        over = asyncio.create_task(getattr(calls, verb)(TOPIC, "over", ANY_RECEIPT))
        await asyncio.sleep(0.05)
        await getattr(calls, verb)(TOPIC, popped.id, popped.receipt)
        with pytest.raises(StoreUnavailable, match="the shelf did not respond in time"):
            await over
