"""Schedules whose topic is often full: no occurrence runs twice or after its cancel, and the schedule goes on."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deferd.contract.errors import TopicFull
from tests.integration.engine.engine_driver import TOPIC
from tests.integration.engine.schedule_driver import NAME, ScheduleDriver
from tests.integration.engine.window_times import set_topic
from tests.zone_releases import ZONE, ZoneReleases

STEPS = 70
TIMINGS: tuple[dict[str, Any], ...] = ({"every": 60}, {"cron": "* * * * *", "zone": ZONE}, {"cron": "* * * * *"})


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ZoneReleases]:
    made = ZoneReleases(tmp_path, monkeypatch)
    made.use(2)
    yield made
    made.forget()


class Life:
    """A schedule, and what happens to its topic by chance."""

    def __init__(self, schedules: ScheduleDriver, releases: ZoneReleases, seed: int) -> None:
        self._random = random.Random(seed)
        self._schedules = schedules
        self._releases = releases
        self._timing = {
            **self._random.choice(TIMINGS),
            "catch_up": self._random.choice(["last", "all", "none"]),
            "spread": self._random.choice([None, 20]),
        }
        self.ran: set[str] = set()
        self._cancelled: set[str] = set()

    async def begin(self) -> None:
        await self.change_the_limit()
        await self.edit()

    async def change_the_limit(self) -> None:
        await set_topic(self._schedules, max_jobs=self._random.choice([1, 1, 2, 3]))

    async def edit(self) -> None:
        await self._schedules.schedule(**self._timing, job={"body": self._random.random()})

    async def pass_time(self) -> None:
        await self._schedules.pass_outage(self._random.choice([1, 5, 31, 61, 200]))

    async def finish_all(self) -> None:
        for job in await self._schedules.pop(100):
            if job.id.startswith(NAME):
                assert job.id not in self.ran | self._cancelled
                self.ran.add(job.id)
            await self._schedules.queue.finish(TOPIC, job.id, job.receipt)

    async def cancel_one(self) -> None:
        ids = self._schedules.delayed() + self._schedules.ready_list()
        if ids:
            job_id = self._random.choice(ids)
            await self._schedules.engine.cancels.cancel(TOPIC, job_id)
            self._cancelled.add(job_id)

    async def put_another(self) -> None:
        with contextlib.suppress(TopicFull):
            await self._schedules.put(f"other-{self._random.random()}", delay=100_000)

    async def cancel_others(self) -> None:
        for job_id in self._schedules.delayed():
            if not job_id.startswith(NAME):
                await self._schedules.engine.cancels.cancel(TOPIC, job_id)

    async def change_zones(self) -> None:
        self._releases.use(self._random.choice([1, 2]))
        self._schedules.engine.timers[0]._look_for_schedules_at = 0
        await self._schedules.run_timer()

    async def step(self) -> None:
        await self._random.choice(
            [
                self.change_the_limit,
                self.edit,
                self.pass_time,
                self.pass_time,
                self.finish_all,
                self.cancel_one,
                self.put_another,
                self.cancel_others,
                self.change_zones,
            ]
        )()


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))])
async def test_a_schedule_in_a_topic_that_is_often_full(
    schedules: ScheduleDriver, releases: ZoneReleases, seed: int
) -> None:
    life = Life(schedules, releases, seed)
    await life.begin()
    for _ in range(STEPS):
        await life.step()
    await life.cancel_others()
    await life.finish_all()
    before = len(life.ran)
    for _ in range(12):
        await schedules.pass_outage(31)
        await life.finish_all()
    assert len(life.ran) >= before + 4
    await schedules.assert_clean()
