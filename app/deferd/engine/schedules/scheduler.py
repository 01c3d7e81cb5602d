"""Advances the schedules of a shard: puts the next run of each whose run has come due.

The timer calls it, in any number of processes: each step is one compare-and-set.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from msgspec import structs

from deferd.contract import limits
from deferd.contract.errors import StoreUnavailable
from deferd.contract.schedules import PutSchedule
from deferd.engine.schedules.planning import NO_RUNS, Plan, RunTimes
from deferd.engine.schedules.run_placing import NOT_MOVED, RunPlacer, RunPlacing
from deferd.engine.schedules.schedule_store import (
    Change,
    DueSchedule,
    FullError,
    ScheduleStore,
    ZonesProgress,
)
from deferd.engine.schedules.stored_schedule import ScheduleState, read_definition
from deferd.engine.time_slice import TimeSlice

_LOG = logging.getLogger(__name__)
_AT_ONCE = 8
"""Most schedules that one step advances: some milliseconds of the store's time, for which other calls wait."""
_RUNS_AT_ONCE = 100
_RUN_BYTES_AT_ONCE = 4 * 1024 * 1024
RETRY_MS = 1000
"""How long a schedule waits for room in its topic or in the store."""
_LAST_RUNS_RETRY_MS = 5000
_FAILED_RETRY_MS = 60_000


class Scheduler:
    """`move` makes the name of a schedule valid in one shard only; see `Schedules.settle_move`."""

    def __init__(self, store: ScheduleStore, placer: RunPlacer) -> None:
        self._store = store
        self._placer = placer
        self._derived_to: dict[int, str] = {}
        """By shard: the last schedule whose runs were derived again by this release of the zones."""
        self.move: Callable[[str], Awaitable[None]] = _cannot_move

    async def advance_due(self, shard: int) -> int:
        """Advance schedules of a shard that are due, at most 8; returns 0 when that was all.

        If its runs were derived by another release of the zones, also derive some of them again, in the same way.

        Raises:
            StoreUnavailable.
        """
        found = await self._store.due(shard, _AT_ONCE, self._derived_to.get(shard, ""))
        advances = (self._advance(one, found.now_ms) for one in found.schedules)
        for done in await asyncio.gather(*advances, return_exceptions=True):
            if isinstance(done, BaseException):
                raise done
        if found.zones_progress is ZonesProgress.MORE:
            self._derived_to[shard] = found.looked_to
            return 1
        self._derived_to.pop(shard, None)
        if found.zones_progress is ZonesProgress.LAST_STEP:
            with contextlib.suppress(StoreUnavailable):  # a store that is out of memory: the next call begins again
                await self._store.note_zones(shard)
            return 0
        return len(found.schedules)

    async def _advance(self, due: DueSchedule, now_ms: int) -> None:
        retry = Change(due.topic, due.name, due.rev, now_ms + RETRY_MS)
        try:
            definition, state = read_definition(due.definition), ScheduleState.read(due.state)
            if state.is_moving:
                await self.move(due.name)
                return
            change, waiting = await self._change(due, definition, state, now_ms)
            try:
                await self._store.apply(change)
            except FullError:
                _LOG.warning("schedule %s waits: topic %s is full", due.name, due.topic)
                fields = {"state": waiting.stored(), "next_id": "", "next": change.fields["next"]}
                await self._store.apply(replace(retry, withdraw=change.withdraw, fields=fields))
        except StoreUnavailable as error:
            # A store that is out of memory refuses runs, but not this; the timer is not to wait because of them.
            await self._store.apply(retry)
            _LOG.warning("schedule %s waits: %s", due.name, error)
        except Exception:  # noqa: BLE001 (one schedule must not keep the others waiting)
            _LOG.exception("schedule %s cannot be advanced; the next attempt follows in a minute", due.name)
            await self._store.apply(replace(retry, advance_at_ms=now_ms + _FAILED_RETRY_MS))

    async def _change(
        self, due: DueSchedule, definition: PutSchedule, state: ScheduleState, now_ms: int
    ) -> tuple[Change, ScheduleState]:
        """The change that advances a schedule, and the state to store if its runs cannot be put."""
        placing = await self._placer.placing_of(definition)
        times = RunTimes(due.name, definition, state.created_ms, placing)
        dealt_with_ms = state.dealt_with_ms(times.recurrence, but_next=due.is_next_waiting)
        if due.next_id and due.next_ms is not None and due.next_ms > now_ms and not due.is_next_waiting:
            # Only the rules of the zone have changed. Its next run was cancelled, or moved, and stays so.
            before_ms = state.dealt_with_ms(times.recurrence, but_next=True) or 0
            run = next(times.runs_after(before_ms), None)
            if run is not None and run.due_ms > now_ms:
                state = state.going_on_from(run.occurrence_ms, before_ms, times.recurrence)
                change = Change(due.topic, due.name, due.rev, run.due_ms)
                return replace(change, fields={"state": state.stored(), "next": run.due_ms}), state
        remaining = None
        if definition.max_runs is not None:
            remaining = definition.max_runs - due.runs - due.waiting + due.is_next_waiting
            if remaining <= 0 and due.waiting > 0 and due.runs < definition.max_runs:
                # Those that wait may still be skipped.
                return Change(due.topic, due.name, due.rev, now_ms + _LAST_RUNS_RETRY_MS), state
        if not state.is_active or (remaining is not None and remaining <= 0):
            return planned_change(due.name, due.rev, definition, state, NO_RUNS, times), state
        after_ms = now_ms if dealt_with_ms is None else dealt_with_ms
        plan = await TimeSlice().run(times.plan(now_ms, after_ms, remaining, most_runs(due.rest_bytes)))
        change = planned_change(due.name, due.rev, definition, state, plan, times, placing)
        is_same = plan.next_run is not None and (plan.next_run.id, plan.next_run.due_ms) == (due.next_id, due.next_ms)
        if due.is_next_waiting and not is_same:
            change = replace(change, withdraw=(due.topic, due.next_id))
        return change, state.going_on_from(after_ms, None, times.recurrence)


def most_runs(rest_bytes: int) -> int:
    """How many runs with a job of this size one call puts."""
    return max(1, min(_RUNS_AT_ONCE, limits.CATCH_UP_MAX, _RUN_BYTES_AT_ONCE // max(rest_bytes, 1)))


def planned_change(  # noqa: PLR0917 (the parts of a schedule)
    name: str,
    rev: int | None,
    definition: PutSchedule,
    state: ScheduleState,
    plan: Plan,
    times: RunTimes,
    placing: RunPlacing = NOT_MOVED,
) -> Change:
    """The change that carries out a plan."""
    state = structs.replace(state, is_ended=not state.is_paused and plan.advance_at_ms is None)
    if plan.occurrence_ms is not None:
        state = state.going_on_from(plan.occurrence_ms, plan.dealt_with_ms, times.recurrence)
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
