"""Drives schedules in tests: puts them into a store with a clock that is moved, and reads what became of their runs."""

from __future__ import annotations

from typing import Any

from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.engine.schedule_store import StoredSchedule
from deferd.engine.scheduler import PutResult
from deferd.engine.script_arguments import NO_BOUNDS, PutBounds
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver

NAME = "nightly"
DAY_S = 86_400


def definition(**fields: Any) -> PutSchedule:
    timing = {} if {"cron", "every", "at"} & fields.keys() else {"every": 60}
    return PutSchedule.model_validate({"topic": TOPIC, **timing, **fields})


def anyone(_: object) -> None:
    """Authorize everybody."""


class ScheduleDriver(EngineDriver):
    """An engine driver with the verbs of schedules."""

    async def schedule(
        self, name: str = NAME, bounds: PutBounds = NO_BOUNDS, *, only_new: bool = False, **fields: Any
    ) -> PutResult:
        return await self.engine.schedules.put(name, definition(**fields), bounds, anyone, only_new=only_new)

    async def get(self, name: str = NAME) -> StoredSchedule:
        return await self.engine.schedules.get(name)

    async def next_id(self, name: str = NAME) -> str:
        return (await self.get(name)).next_id

    async def now_ms(self) -> int:
        assert self.engine.clock is not None
        return (await self.engine.clock.read()).now_ms

    async def advance(self, seconds: float) -> None:
        """Move the clock, and stop wherever a schedule has work."""
        assert self.engine.clock is not None
        await self.engine.clock.advance(round(seconds * 1000))

    async def pass_outage(self, seconds: float) -> None:
        """Move the clock while no timer runs; then let the timer do what has come due."""
        await self.pass_time(seconds)
        await self.pass_time(0.005)  # what is made up for is due a millisecond later

    async def until_due(self, name: str = NAME) -> None:
        """Move the clock to when the next run is due, and let the timer run."""
        schedule = await self.get(name)
        assert schedule.next_due_ms is not None
        self.move_clock((schedule.next_due_ms - await self.now_ms()) / 1000)
        await self.run_timer()

    async def counters(self, name: str = NAME) -> tuple[int, int, int, int]:
        """Runs, skips, missed, and those that wait."""
        schedule = await self.get(name)
        return schedule.runs, schedule.skips, schedule.missed, schedule.waiting

    def waiting_runs(self) -> dict[str, str]:
        """The entries of the topic's `runs`."""
        with self.server.client() as client:
            return {name.decode(): entry.decode() for name, entry in client.hgetall(f"{KEY}:runs").items()}

    def delayed(self) -> list[str]:
        """The ids of the delayed jobs, the first due first."""
        return [entry.decode() for entry in self.server.command("ZRANGE", f"{KEY}:delay", 0, -1)]

    async def assert_clean(self) -> None:
        """The consistency checks find nothing."""
        assert (await self.engine.consistency.audit_store()).clean
        report = await self.engine.consistency.audit_topic(TOPIC)
        assert report.clean, report.findings.examples
