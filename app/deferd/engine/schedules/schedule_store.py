"""Reads schedules from the store, and changes them by compare-and-set: `lua/schedule_apply.lua`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

from deferd.engine.history.counts import CountedTopics
from deferd.engine.placement import members_of
from deferd.engine.redis_keys import Keys
from deferd.engine.schedules.planning import PlannedRun
from deferd.engine.schedules.run_placing import NOT_MOVED, RunPlacer, RunPlacing
from deferd.engine.schedules.stored_schedule import (
    StoredSchedule,
    read_schedule,
    run_head,
)
from deferd.engine.scripts import Scripts
from deferd.engine.terms import ANY_DEFAULT, ANY_NUMBER, OUTDATED, Terms, read_terms
from deferd.engine.timing import zones

_DONE, _FULL, _MORE = 1, -3, -4
_DELETE = -1
_PAGE = 100
_ZONES = "schedules/zones"
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)
"""What reading a schedule raises when another program has written it."""


class FullError(Exception):
    """The topic has no room for a run. Nothing was changed."""


class Found(NamedTuple):
    """The schedules with one name, the valid one first; more than one while it moves. `now_ms` is the store's time."""

    now_ms: int
    schedules: list[StoredSchedule]


@dataclass(frozen=True, slots=True)
class Change:
    """What to do with a schedule in one step. `rev` None: it must not exist yet.

    `withdraw` is the next run if it is to be cancelled, as topic and id; if that does not wait, nothing is done. With
    `withdraw_earlier`, all earlier runs that wait in that topic are cancelled too. `advance_at_ms` None: it makes no
    runs.
    """

    topic: str
    name: str
    rev: int | None
    advance_at_ms: int | None
    withdraw: tuple[str, str] = ("", "")
    withdraw_earlier: bool = False
    missed: int = 0
    fields: Mapping[str, str | bytes | int] = field(default_factory=dict)
    runs: Sequence[PlannedRun] = ()
    policy: str = ""
    max_jobs: int | None = None
    placing: RunPlacing = NOT_MOVED


class DueSchedule(NamedTuple):
    """A schedule that must be advanced, or whose next run must be derived again. Its job has about `rest_bytes`.

    `next_ms` is when its next run was to be due, None for none; `is_next_waiting`: it waits for that, as it was put.
    """

    name: str
    rev: int
    topic: str
    definition: bytes
    state: bytes
    next_id: str
    next_ms: int | None
    runs: int
    waiting: int
    rest_bytes: int
    is_next_waiting: bool


class DueSchedules(NamedTuple):
    """Schedules that must be advanced, and the store's time.

    `zones_progress`: how far the shard's schedules are derived again by another release of the zones, if they are.
    """

    now_ms: int
    zones_progress: ZonesProgress
    looked_to: str
    schedules: list[DueSchedule]


class ZonesProgress(Enum):
    """How far the runs of a shard's schedules are derived again; as in lua/schedules_due.lua."""

    UP_TO_DATE = 0
    MORE = 1
    LAST_STEP = 2


class ScheduleStore:
    """Every method raises StoreUnavailable when the store does not respond."""

    def __init__(self, scripts: Scripts, keys: Keys, placer: RunPlacer, counted: CountedTopics) -> None:
        self._scripts = scripts
        self._counted = counted
        self.keys = keys
        self._placer = placer

    async def find(self, name: str) -> Found:
        """All schedules with this name. Raises one of UNREADABLE."""
        replies = await asyncio.gather(*(self._get(shard, name) for shard in range(self.keys.shards)))
        found = [
            replace(
                read_schedule(name, shard, pairs),
                next_job_due_ms=due_ms or None,
                first_earlier=(earlier_id.decode(), earlier_due_ms) if earlier_id else None,
            )
            for shard, (_, pairs, due_ms, earlier_id, earlier_due_ms) in enumerate(replies)
            if pairs
        ]
        found.sort(key=lambda schedule: (schedule.version, schedule.shard), reverse=True)
        return Found(replies[0][0], found)

    async def now_ms(self) -> int:
        """The store's time."""
        now_ms, *_ = await self._get(0, "")
        return now_ms

    async def _get(self, shard: int, name: str) -> tuple[int, list[bytes], int, bytes, int]:
        now_ms, pairs, due_ms, earlier_id, earlier_due_ms = await self._scripts.run(
            "schedule_get", [self.keys.of_schedule(shard, name)], ()
        )
        return now_ms, pairs, due_ms, earlier_id, earlier_due_ms

    async def apply(self, change: Change) -> int | None:
        """Carry out a change; returns the new `rev`, None when the schedule or its topic's defaults have changed.

        Raises:
            FullError: the topic has no room for the runs.
        """
        return await self._apply(change, [part for pair in change.fields.items() for part in pair], len(change.fields))

    async def delete(self, change: Change) -> bool:
        """Delete a schedule, and withdraw a run; false when it has changed meanwhile."""
        return await self._apply(change, [], _DELETE) is not None

    async def _apply(self, change: Change, fields: list[Any], count: int) -> int | None:
        other = change.withdraw[0]
        keys = self.keys.of_topic(change.topic)
        if other and other != change.topic:
            keys = (*keys, *self.keys.of_topic(other))
        runs: list[str | bytes] = []
        placing = change.placing
        for run in change.runs:
            head = run_head(run.due_ms, change.max_jobs)
            moved = members_of(placing.window, placing.spread_ms, run.moved_ms)
            runs += (run.id, head, f"{run.following_ms} {change.policy}", moved)
        args = (
            change.topic,
            change.name,
            "" if change.rev is None else change.rev,
            *change.withdraw,
            int(change.withdraw_earlier),
            "" if change.advance_at_ms is None else change.advance_at_ms,
            change.missed,
            Terms(ANY_DEFAULT, ANY_NUMBER, placing.placed_by).argument(),
            count,
            *fields,
            *runs,
        )
        verb = "schedule_apply" if change.runs or "rest" in change.fields else "schedule_update"
        reply = await self._scripts.run(verb, keys, args)
        while reply[0] == _MORE:
            reply = await self._scripts.run(verb, keys, args)
        if reply[0] == _FULL:
            raise FullError
        if reply[0] == OUTDATED:
            self._placer.placer.note_defaults(change.topic, read_terms(reply[1:]).placing)
        if reply[0] != _DONE:
            return None
        self._counted.of(change.topic).put += len(change.runs)
        rev: int = reply[2]
        return rev

    async def due(self, shard: int, most: int, after: str) -> DueSchedules:
        """Up to `most` schedules of a shard that must be advanced.

        If its runs were derived by another release of the zones, also schedules by name, those after `after`.
        """
        keys = [self.keys.of_shard(shard, name) for name in ("schedule_due", "schedules", _ZONES, "due")]
        reply = await self._scripts.run("schedules_due", keys, (most, zones.TZDATA_VERSION, after))
        now_ms, progress, looked_to, *rows = reply
        found = []
        for name, fields in zip(rows[::2], rows[1::2], strict=True):
            rev, topic, definition, state, next_id, next_ms, runs, waiting, rest_bytes, is_next_waiting = fields
            found.append(
                DueSchedule(
                    name.decode(),
                    int(rev or 0),
                    topic.decode(),
                    definition or b"",
                    state or b"",
                    (next_id or b"").decode(),
                    int(next_ms or 0) or None,
                    int(runs or 0),
                    int(waiting or 0),
                    rest_bytes,
                    is_next_waiting == 1,
                )
            )
        return DueSchedules(now_ms, ZonesProgress(progress), looked_to.decode(), found)

    async def note_zones(self, shard: int) -> None:
        """Note that all runs of a shard were derived by this release of the zones."""
        await self._scripts.write("SET", self.keys.of_shard(shard, _ZONES), zones.TZDATA_VERSION)

    async def first_due_ms(self) -> int | None:
        """When the first schedule of all shards must be advanced; None when there is none."""
        firsts = await asyncio.gather(
            *(
                self._scripts.command("ZRANGE", self.keys.of_shard(shard, "schedule_due"), 0, 0, "WITHSCORES")
                for shard in range(self.keys.shards)
            )
        )
        return min((int(float(first[1])) for first in firsts if first), default=None)

    async def page(
        self, shard: int, after: str, prefix: str, *, with_jobs: bool
    ) -> tuple[list[tuple[str, StoredSchedule | None]], bool]:
        """Schedules of a shard after the name `after`, in order, and whether there are more.

        One that cannot be read is None.
        """
        first = f"({after}" if after >= prefix and after else f"[{prefix}" if prefix else "-"
        last = f"({prefix}\x7f" if prefix else "+"  # 0x7f is in no name
        key = self.keys.of_shard(shard, "schedules")
        more, *rows = await self._scripts.run("schedules_page", [key], (first, last, _PAGE, int(with_jobs)))
        found: list[tuple[str, StoredSchedule | None]] = []
        for name, pairs in zip(rows[::2], rows[1::2], strict=True):
            try:
                found.append((name.decode(), read_schedule(name.decode(), shard, pairs)))
            except UNREADABLE:
                found.append((name.decode(errors="backslashreplace"), None))
        return found, more == 1
