"""Advances the schedules of a shard: puts the next run of each whose run has come due.

The timer calls it, in any number of processes: each step is one compare-and-set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from deferd.contract import limits
from deferd.contract.errors import StoreUnavailable
from deferd.contract.schedules import PutSchedule
from deferd.engine.schedules.planning import Plan, RunTimes
from deferd.engine.schedules.run_placing import NOT_MOVED, RunPlacer, RunPlacing
from deferd.engine.schedules.schedule_store import Change, DueSchedule, FullError, ScheduleStore, read_due
from deferd.engine.schedules.stored_schedule import ScheduleState
from deferd.engine.time_slice import TimeSlice

_LOG = logging.getLogger(__name__)
_AT_ONCE = 8
"""Most schedules that one step advances: some milliseconds of the store's time, for which other calls wait."""
_RUNS_AT_ONCE = 100
_RUN_BYTES_AT_ONCE = 4 * 1024 * 1024
_RETRY_MS = 1000
"""How long a schedule waits for room in its topic or in the store."""
_LAST_RUNS_RETRY_MS = 5000
_FAILED_RETRY_MS = 60_000


class Scheduler:
    """`move` makes the name of a schedule valid in one shard only; see `Schedules.settle_move`."""

    def __init__(self, store: ScheduleStore, placer: RunPlacer) -> None:
        self._store = store
        self._placer = placer
        self.move: Callable[[str], Awaitable[None]] = _cannot_move

    async def advance_due(self, shard: int) -> int:
        """Advance schedules of a shard that are due, at most 8; returns how many it looked at.

        Raises:
            StoreUnavailable.
        """
        now_ms, due = await self._store.due(shard, _AT_ONCE)
        for done in await asyncio.gather(*(self._advance(one, now_ms) for one in due), return_exceptions=True):
            if isinstance(done, BaseException):
                raise done
        return len(due)

    async def _advance(self, due: DueSchedule, now_ms: int) -> None:
        retry = Change(due.topic, due.name, due.rev, now_ms + _RETRY_MS)
        try:
            definition, state = read_due(due)
            if state.is_moving:
                await self.move(due.name)
                return
            change = await self._change(due, definition, state, now_ms)
            try:
                await self._store.apply(change)
            except FullError:
                _LOG.warning("schedule %s waits: topic %s is full", due.name, due.topic)
                await self._store.apply(replace(retry, fields={"next_id": "", "next": change.fields["next"]}))
        except StoreUnavailable as error:
            # A store that is out of memory refuses runs, but not this; the timer is not to wait because of them.
            await self._store.apply(retry)
            _LOG.warning("schedule %s waits: %s", due.name, error)
        except Exception:  # noqa: BLE001 (one schedule must not keep the others waiting)
            _LOG.exception("schedule %s cannot be advanced; the next attempt follows in a minute", due.name)
            await self._store.apply(replace(retry, advance_at_ms=now_ms + _FAILED_RETRY_MS))

    async def _change(self, due: DueSchedule, definition: PutSchedule, state: ScheduleState, now_ms: int) -> Change:
        remaining = None
        if definition.max_runs is not None:
            remaining = definition.max_runs - due.runs - due.waiting
            if remaining <= 0 and due.waiting > 0 and due.runs < definition.max_runs:
                # Those that wait may still be skipped.
                return Change(due.topic, due.name, due.rev, now_ms + _LAST_RUNS_RETRY_MS)
        if not state.is_active or (remaining is not None and remaining <= 0):
            return planned_change(due.name, due.rev, definition, state, _ENDED)
        placing = await self._placer.placing_of(definition)
        times = RunTimes(due.name, definition, state.created_ms, placing)
        after_ms = now_ms if state.occurrence_ms is None else state.occurrence_ms
        plan = await TimeSlice().run(times.plan(now_ms, after_ms, remaining, most_runs(due.rest_bytes)))
        return planned_change(due.name, due.rev, definition, state, plan, placing)


_ENDED = Plan([], None, 0, None, None)


def most_runs(rest_bytes: int) -> int:
    """How many runs with a job of this size one call puts."""
    return max(1, min(_RUNS_AT_ONCE, limits.CATCH_UP_MAX, _RUN_BYTES_AT_ONCE // max(rest_bytes, 1)))


def planned_change(  # noqa: PLR0917 (the parts of a schedule)
    name: str,
    rev: int | None,
    definition: PutSchedule,
    state: ScheduleState,
    plan: Plan,
    placing: RunPlacing = NOT_MOVED,
) -> Change:
    """The change that carries out a plan."""
    state = state._replace(
        occurrence_ms=state.occurrence_ms if plan.occurrence_ms is None else plan.occurrence_ms,
        is_ended=not state.is_paused and plan.advance_at_ms is None,
    )
    next_run = plan.next_run
    return Change(
        definition.topic,
        name,
        rev,
        plan.advance_at_ms,
        missed=plan.missed,
        fields={
            "state": state.stored(),
            "active": int(state.is_active),
            "next_id": "" if next_run is None else next_run.id,
            "next": "" if next_run is None else next_run.due_ms,
        },
        runs=plan.runs,
        policy=f"{definition.overlap} {definition.catch_up}",
        max_jobs=state.max_jobs,
        placing=placing,
    )


async def _cannot_move(_name: str) -> None:
    raise RuntimeError("Schedules sets what moves a schedule")
