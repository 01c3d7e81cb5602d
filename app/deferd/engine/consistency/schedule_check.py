"""The part of the check of a store that concerns schedules."""

from __future__ import annotations

from deferd.contract.finding_kinds import FindingKind
from deferd.engine.consistency.findings import STEP, Finding, StoreReport, paced, read_findings, text
from deferd.engine.redis_keys import Keys
from deferd.engine.schedules.schedule_store import UNREADABLE
from deferd.engine.schedules.schedules import Schedules
from deferd.engine.schedules.stored_schedule import ScheduleState, read_definition
from deferd.engine.scripts import Scripts


class ScheduleCheck:
    """Checks the schedules of all shards; findings go into `report`, which says whether to repair them."""

    def __init__(self, scripts: Scripts, keys: Keys, schedules: Schedules, report: StoreReport) -> None:
        self._scripts = scripts
        self._keys = keys
        self._schedules = schedules
        self._report = report

    async def run(self) -> None:
        """Check all schedules that are in a list. Raises StoreUnavailable."""
        seen: dict[str, int] = {}
        for shard in range(self._keys.shards):
            for where in ("schedules", "schedule_due", "earlier_runs"):
                cursor: bytes | int = 0
                while cursor != b"0":
                    cursor, names = await self._step(shard, where, cursor)
                    for name in names:
                        if seen.setdefault(name, shard) != shard:
                            await self._check_twice(name)

    async def check(self, shard: int, names: list[str]) -> None:
        """Check schedules of a shard by their names. Raises StoreUnavailable."""
        await self._step(shard, "names", 0, *names)

    async def _check_twice(self, name: str) -> None:
        found = await self._schedules.shards_of(name)
        if len(found) < 2:
            return
        shards = " and ".join(map(str, sorted(found)))
        self._report.findings.add(Finding(FindingKind.SCHEDULE_TWICE, name, f"in shards {shards}"))
        if self._report.repaired:
            await self._schedules.settle_move(name)

    async def _step(self, shard: int, where: str, cursor: bytes | int, *names: str) -> tuple[bytes, list[str]]:
        """One step; returns the next cursor and the names of the schedules that were read."""
        keys = [
            self._keys.of_shard(shard, name) for name in ("schedules", "schedule_due", "due", "aside", "earlier_runs")
        ]
        report = self._report
        args = (where, int(report.repaired), cursor, STEP, *names)
        next_cursor, found, texts = await paced(self._scripts.run("audit_schedules", keys, args))
        for one in read_findings(found):
            report.findings.add(one)
        unreadable = [
            text(name)
            for name, definition, state in zip(texts[::3], texts[1::3], texts[2::3], strict=True)
            if not _is_readable(definition, state)
        ]
        for name in unreadable:
            report.findings.add(Finding(FindingKind.SCHEDULE_UNREADABLE, name, f"in shard {shard}"))
        if unreadable and report.repaired:
            await paced(self._scripts.run("audit_schedules", keys, ("unreadable", 1, 0, STEP, *unreadable)))
        readable = [text(name) for name in texts[::3]]
        return next_cursor, [name for name in readable if name not in unreadable]


def _is_readable(definition: bytes, state: bytes) -> bool:
    try:
        read_definition(definition)
        ScheduleState.read(state)
    except UNREADABLE:
        return False
    return True
