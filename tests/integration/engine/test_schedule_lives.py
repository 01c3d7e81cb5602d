"""Random lives of schedules: what runs is what the preview showed, each occurrence once, and nothing is left behind."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from deferd.contract.model import TopicSettings
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.engine_driver import TOPIC
from tests.integration.engine.schedule_driver import NAME, ScheduleDriver, anyone

TOGETHER_MS = 5
"""When the job's spread moves a run past a closing, and the next one is due at that opening too, that one is put then:
it is due in a millisecond."""
WINDOWS: list[Any] = [
    {"from": "09:00", "to": "10:00"},
    {"from": "22:00", "to": "02:00"},
    [{"from": "06:00", "to": "06:30"}, {"from": "12:00", "to": "18:00"}],
]
TIMINGS: list[dict[str, Any]] = [
    {"every": 600},
    {"every": 3700},
    {"cron": "*/7 * * * *"},
    {"at": ["03:00", "09:30", "23:00"]},
    {"cron": "30 2,9,12 * * *", "zone": "Europe/Berlin"},
]
OTHERS: dict[str, list[Any]] = {
    "window": WINDOWS,
    "spread": [30, 1000, 20_000],
    "job": [{"spread": 30}, {"spread": 1000}, {"spread": 20_000}],
    "max_runs": [1, 5, 9],
}


class Life:
    """One schedule, what ran of it, and what was cancelled."""

    def __init__(self, schedules: ScheduleDriver, seed: int) -> None:
        self.drawn = random.Random(seed)
        self.schedules = schedules
        self.fields: dict[str, Any] = {
            **self.drawn.choice(TIMINGS),
            **{name: self.drawn.choice(values) for name, values in OTHERS.items() if self.drawn.random() < 0.4},
            "catch_up": self.drawn.choice(["none", "last", "all"]),
        }
        self.ran: list[tuple[str, int]] = []
        self.cancelled: set[str] = set()

    async def expected(self) -> list[int]:
        _, runs = await self.schedules.engine.schedules.preview(NAME, anyone, 3)
        return [run.due_ms for run in runs]

    async def work(self) -> None:
        while self.schedules.ready_list():
            for job in await self.schedules.pop(100):
                self.ran.append((job.id, job.due_at_ms))
                await self.schedules.queue.finish(TOPIC, job.id, ANY_RECEIPT)

    async def cancel_next(self) -> None:
        schedule = await self.schedules.get()
        if schedule.next_job_due_ms is not None:
            await self.schedules.cancels.cancel(TOPIC, schedule.next_id)
            self.cancelled.add(schedule.next_id)

    async def change(self, step: int) -> None:
        before = await self.expected()
        self.fields["job"] = {**self.fields.get("job", {}), "body": step}
        await self.schedules.schedule(**self.fields)
        assert await self.expected() == before

    async def run_as_expected(self) -> None:
        expected, begin = await self.expected(), len(self.ran)
        began = time.monotonic()
        for due_ms in expected:
            await self.schedules.advance(max(due_ms - await self.schedules.now_ms(), TOGETHER_MS) / 1000)
            await self.work()
        passed_ms = (time.monotonic() - began) * 1000  # the store's clock went on by this, beside what it was moved by
        ran = [due_ms for _, due_ms in self.ran[begin:]]
        assert len(ran) >= len(expected)
        late_ms = [due_ms - shown for due_ms, shown in zip(ran, expected, strict=False)]
        assert 0 <= min(late_ms, default=0) <= max(late_ms, default=0) <= TOGETHER_MS + passed_ms
        further = ran[len(expected) :]  # due just behind the last one that was shown, in the time that passed
        assert not further or max(further) <= expected[-1] + TOGETHER_MS + passed_ms

    async def pass_outage(self) -> None:
        await self.schedules.pass_outage(self.drawn.choice([30, 3000, 86_400, 200_000]))
        await self.work()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 30))])
async def test_what_runs_is_what_the_preview_showed(schedules: ScheduleDriver, seed: int) -> None:
    life = Life(schedules, seed)
    await schedules.topics.set(TOPIC, TopicSettings(max_jobs=10_000))  # it is not forgotten
    schedules.move_clock(life.drawn.randrange(86_400))
    await schedules.schedule(**life.fields)
    for step in range(12):
        what = life.drawn.random()
        if what < 0.15:
            await life.cancel_next()
        elif what < 0.3:
            await life.change(step)
        elif what < 0.45:
            await life.pass_outage()
            continue
        await life.run_as_expected()
        await schedules.assert_clean()
    ids = [job_id for job_id, _ in life.ran]
    assert len(set(ids)) == len(ids)
    assert not life.cancelled & set(ids)
    runs, _, _, waiting = await schedules.counters()
    assert runs == len(ids) <= life.fields.get("max_runs", len(ids))
    assert waiting == len(schedules.waiting_runs()) <= 1
