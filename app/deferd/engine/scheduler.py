"""Schedules: the verbs put, get, list, delete, pause, resume, run now, preview, and what puts runs that have come due.

A name is unique over all shards of the store, although a schedule is in the shard of its topic. So a PUT into another
shard takes two steps. The next call or the scheduler completes one that was cut off: see `settle_move`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from msgspec import structs

from deferd.contract import limits
from deferd.contract.errors import (
    FieldError,
    InvalidInput,
    JobExists,
    ScheduleExists,
    ScheduleNotFound,
    StoreUnavailable,
)
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.cursors import bad_cursor, read_cursor, write_cursor
from deferd.engine.ends import check_end_topic
from deferd.engine.puts import PutOutcome, Puts, flow_refusal
from deferd.engine.schedule_planning import NO_RUNS, NOT_MOVED, Plan, Run, RunTimes, RunWindow, RunWindows
from deferd.engine.schedule_store import (
    UNREADABLE,
    Change,
    DueSchedule,
    Found,
    FullError,
    ScheduleState,
    ScheduleStore,
    StoredSchedule,
    ZonesProgress,
    definition_to_store,
    read_definition,
    rest_to_store,
)
from deferd.engine.script_arguments import PutBounds, flow_code, record_code
from deferd.engine.shelf import OTHERS_WAIT_S
from deferd.engine.time_slice import TimeSlice, WorkTooLongError
from deferd.engine.zones import zone_named

_LOG = logging.getLogger("deferd.engine.schedules.scheduler")  # logs are filtered by the name
_TRIES = 20
_RUN_TRIES = 100
_LOOKED_AT_MAX = 2000
_PREVIEW_S = 1.0
"""The CPU time of a preview: enough for 1000 runs on a rare date with 20 windows."""
_PAGE_BYTES = 1024 * 1024
Authorize = Callable[[str], None]
"""Raises the error for a caller who may not use a topic."""


class PutResult(NamedTuple):
    """A schedule as it is now, and whether the put created it."""

    schedule: StoredSchedule
    created: bool


@dataclass(frozen=True, slots=True)
class ScheduleFilter:
    """The conditions on a listed schedule. `visible`: topics that the caller may see, None for all."""

    topic: str | None = None
    paused: bool | None = None
    prefix: str = ""
    visible: TopicPatterns | None = None

    def matches(self, schedule: StoredSchedule) -> bool:
        """Whether a schedule meets the conditions; the prefix is not checked."""
        return (
            (self.topic is None or schedule.topic == self.topic)
            and (self.paused is None or schedule.state.is_paused == self.paused)
            and (self.visible is None or self.visible.match(schedule.topic))
        )


class Schedules:
    """Every method raises StoreUnavailable when the store does not respond, or schedules change too fast."""

    def __init__(self, store: ScheduleStore, puts: Puts, windows: RunWindows) -> None:
        self._store = store
        self._puts = puts
        self._windows = windows

    async def get(self, name: str) -> StoredSchedule:
        """The schedule as it is stored. Raises ScheduleNotFound."""
        return (await self._found(name)).schedules[0]

    async def with_next_run(self, schedule: StoredSchedule) -> StoredSchedule:
        """The schedule with the run that will be due next: not one that was cancelled, and when it was moved to."""
        planned = await self._with_planned_run(schedule)
        if schedule.first_earlier is None:
            return planned
        job_id, due_ms = schedule.first_earlier
        if planned.next_due_ms is not None and planned.next_due_ms <= due_ms:
            return planned
        return replace(schedule, next_id=job_id, next_due_ms=due_ms)

    async def _with_planned_run(self, schedule: StoredSchedule) -> StoredSchedule:
        definition, state = schedule.definition, schedule.state
        if not state.is_active or schedule.next_due_ms is None:
            return schedule
        if schedule.next_job_due_ms is not None:
            return replace(schedule, next_due_ms=schedule.next_job_due_ms)
        runs: list[Run] = []
        if definition.max_runs is None or definition.max_runs > schedule.runs + schedule.waiting:
            runs = await self._upcoming(schedule.name, definition, state.created_ms, state.occurrence_ms or 0, 1)
        return replace(schedule, next_id="", next_due_ms=runs[0].due_ms if runs else None)

    async def put(
        self, name: str, definition: PutSchedule, bounds: PutBounds, authorize: Authorize, *, only_new: bool = False
    ) -> PutResult:
        """Create or replace a schedule. One that is put again unchanged is left alone, with its next run.

        Counters and the time of creation stay. So does a pause, if the definition does not say `paused`. `authorize`
        is called with the topic of a schedule that exists.

        Raises:
            ScheduleExists: with `only_new` there is one.
            InvalidInput: it never runs, what it names does not exist, or its topic has several partitions and its job
                a group or a priority.
        """
        await self._windows.check(definition)
        job = definition.job
        if job.on_end is not None:
            check_end_topic(self._store.keys, (definition.topic,), job.on_end.topic, ("body", "job"))
        if flow_code(job) and self._store.keys.partitions.count(definition.topic) > 1:
            raise flow_refusal(definition.topic, ("body", "job"), job.group, job.priority)
        for _ in range(_TRIES):
            found = await self._find(name)
            now_ms, old = found.now_ms, found.schedules[0] if found.schedules else None
            if old is not None:
                authorize(old.topic)
                if only_new:
                    raise ScheduleExists(name)
                if old.state.is_moving:
                    await self.settle_move(name)
                    continue
            is_paused = definition.paused
            if old is not None and "paused" not in definition.model_fields_set:
                is_paused = old.state.is_paused
            state = ScheduleState(
                now_ms if old is None else old.state.created_ms,
                now_ms,
                None,
                is_paused,
                max_jobs=bounds.max_jobs,
                dead_retain_ms=bounds.dead_retain_ms,
            )
            rest = rest_to_store(definition, bounds)
            fields: dict[str, str | bytes | int] = {
                "topic": definition.topic,
                "definition": definition_to_store(definition),
                "rest": rest,
                "version": 1 if old is None else old.version + 1,
            }
            if old is not None and _is_same(old, state, fields):
                return PutResult(old, False)
            change, waiting = await self._planned(name, old, definition, state, now_ms, len(rest))
            shard = self._store.keys.shard_of(definition.topic)
            if self._store.keys.shards > 1 and (old is None or old.shard != shard):
                if await self._put_moving(found, change, fields, state):
                    await self.settle_move(name)
                    return PutResult(await self.get(name), old is None)
            elif await self._apply(change, waiting, fields, now_ms):
                return PutResult(await self.get(name), old is None)
        raise _too_fast(name)

    async def _planned(  # noqa: PLR0917 (what a schedule was and is)
        self,
        name: str,
        old: StoredSchedule | None,
        definition: PutSchedule,
        state: ScheduleState,
        now_ms: int,
        rest_bytes: int,
    ) -> tuple[Change, ScheduleState]:
        """The change that plans the next run, and the state to store if the run cannot be put.

        Raises:
            InvalidInput: the definition makes no runs.
        """
        run_window = await self._windows.window_of(definition)
        times = RunTimes(name, definition, state.created_ms, run_window)
        plan, after_ms, done_ms = NO_RUNS, now_ms, None
        is_withdrawn = old is not None and (old.next_job_due_ms or 0) > now_ms
        if old is not None and _timing(old.definition) == _timing(definition):
            # It goes on where it was: with the run that is withdrawn, and without one that was cancelled.
            done_ms = old.state.dealt_with_ms(times.recurrence, but_next=is_withdrawn)
        if old is not None and done_ms is not None:
            after_ms = done_ms if old.state.is_active else max(done_ms, now_ms)
        if not state.is_paused:
            remaining = definition.max_runs
            if remaining is not None and old is not None:
                remaining -= old.runs + old.waiting - is_withdrawn
            if remaining is None or remaining > 0:
                try:
                    plan = await TimeSlice().run(times.plan(now_ms, after_ms, remaining, _most_runs(rest_bytes)))
                except ValueError as error:
                    raise InvalidInput([FieldError(("body", "window"), str(error))]) from None
        waiting = state
        if not state.is_paused:
            waiting = state.going_on_from(after_ms, None, times.recurrence)
        elif done_ms is not None:
            state = waiting = state.going_on_from(done_ms, None, times.recurrence)
        change = _planned_change(name, None if old is None else old.rev, definition, state, plan, times, run_window)
        if old is not None:
            change = replace(
                change,
                withdraw=(old.topic, old.next_id if is_withdrawn else ""),
                withdraw_earlier=state.is_paused or old.topic != definition.topic,
            )
        return change, waiting

    async def _replanned(self, old: StoredSchedule, state: ScheduleState, now_ms: int) -> tuple[Change, ScheduleState]:
        rest_bytes = len(old.rest or b"")
        return await self._planned(old.name, old, old.definition, state, now_ms, rest_bytes)

    async def _apply(
        self, change: Change, state: ScheduleState, fields: dict[str, str | bytes | int], now_ms: int
    ) -> bool:
        """Carry out a change of a schedule; when its topic is full, without the run, which is put later."""
        change = replace(change, fields={**change.fields, **fields})
        try:
            return await self._store.apply(change) is not None
        except FullError:
            later = {**change.fields, "state": state.stored(), "next_id": ""}
            waiting = replace(change, runs=(), advance_at_ms=now_ms + _RETRY_MS, fields=later)
            return await self._store.apply(waiting) is not None

    async def _put_moving(
        self, found: Found, change: Change, fields: dict[str, str | bytes | int], state: ScheduleState
    ) -> bool:
        """Put a schedule into a shard that does not have it, without runs as long as another one may have it."""
        old = found.schedules[0] if found.schedules else None
        if old is not None:
            fields = fields | {
                "runs": old.runs,
                "skips": old.skips,
                "missed": old.missed,
                "last": old.last_due_ms or "",
                "last_id": old.last_id,
            }
        fields |= {"state": structs.replace(state, is_moving=True).stored(), "active": 1, "next_id": "", "next": ""}
        shard = self._store.keys.shard_of(change.topic)
        here = next((one for one in found.schedules if one.shard == shard), None)
        rev = None if here is None else here.rev
        moving = Change(change.topic, change.name, rev, found.now_ms, fields=fields)
        return await self._store.apply(moving) is not None

    async def shards_of(self, name: str) -> list[int]:
        """The shards that have a schedule with this name; more than one only while it moves."""
        return [schedule.shard for schedule in (await self._find(name)).schedules if not schedule.state.is_moving]

    async def settle_move(self, name: str) -> None:
        """Delete a schedule from all shards but the one that it was put into last, where it then begins.

        Each step is safe to repeat: until the others are deleted, it makes no runs there.
        """
        for _ in range(_TRIES):
            found = await self._find(name)
            if not found.schedules:
                return
            valid, *others = found.schedules
            gone = [await self._store.delete(_deletion(other)) for other in others]
            if not all(gone):
                continue
            if not valid.state.is_moving:
                return
            state = structs.replace(valid.state, is_moving=False)
            if await self._apply(*await self._replanned(valid, state, found.now_ms), {}, found.now_ms):
                return
        raise _too_fast(name)

    async def delete(self, name: str, authorize: Authorize) -> StoredSchedule:
        """Delete a schedule and its runs that wait; returns it as it was. Raises ScheduleNotFound."""
        found = await self._found(name)
        for _ in range(_TRIES):
            for schedule in found.schedules:
                authorize(schedule.topic)
            gone = [await self._store.delete(_deletion(schedule)) for schedule in found.schedules]
            if all(gone):
                return found.schedules[0]
            found = await self._found(name)
        raise _too_fast(name)

    async def pause(self, name: str, authorize: Authorize) -> StoredSchedule:
        """Make no more runs until `resume`; those that wait are cancelled. Raises ScheduleNotFound."""
        return await self._set_paused(name, authorize, is_paused=True)

    async def resume(self, name: str, authorize: Authorize) -> StoredSchedule:
        """Make runs again, from now on. Raises ScheduleNotFound."""
        return await self._set_paused(name, authorize, is_paused=False)

    async def _set_paused(self, name: str, authorize: Authorize, *, is_paused: bool) -> StoredSchedule:
        for _ in range(_TRIES):
            found = await self._found(name)
            schedule = found.schedules[0]
            authorize(schedule.topic)
            if schedule.state.is_moving:
                await self.settle_move(name)
                continue
            if schedule.state.is_paused == is_paused:
                return schedule
            state = structs.replace(schedule.state, is_paused=is_paused, updated_ms=found.now_ms)
            if await self._apply(*await self._replanned(schedule, state, found.now_ms), {}, found.now_ms):
                return await self.get(name)
        raise _too_fast(name)

    async def run(self, schedule: StoredSchedule, bounds: PutBounds) -> PutOutcome:
        """Put the job of a schedule now, in addition to its runs and independent of them. Raises as a put."""
        begin_ms = await self._store.now_ms()
        for now_ms in range(begin_ms, begin_ms + _RUN_TRIES):
            job_id = f"{schedule.name}:{datetime_of(now_ms):%Y%m%dT%H%M%S}.{now_ms % 1000:03d}Z"
            try:
                return await self._puts.put(schedule.job_now(job_id, now_ms, bounds), bounds)
            except JobExists:  # put in the same millisecond
                continue
        raise _too_fast(schedule.name)

    async def preview(self, name: str, authorize: Authorize, count: int) -> tuple[StoredSchedule, list[Run]]:
        """A schedule and its next runs, as if it was not paused; none when it has ended. Raises ScheduleNotFound."""
        now_ms, [schedule, *_] = await self._found(name)
        authorize(schedule.topic)
        if schedule.state.is_ended:
            return schedule, []
        definition = schedule.definition
        if definition.max_runs is not None:
            remaining = definition.max_runs - schedule.runs - schedule.waiting
            remaining += schedule.next_job_due_ms is not None
            count = max(min(count, remaining), 0)
        begin_ms = now_ms
        runs: list[Run] = []
        if schedule.state.is_paused:
            begin_ms = max(now_ms, schedule.state.occurrence_ms or 0)
        elif count and schedule.next_due_ms is not None and schedule.state.occurrence_ms is not None:
            begin_ms = max(schedule.state.occurrence_ms, 0)
            if schedule.next_job_due_ms is not None:
                runs.append(Run(begin_ms, schedule.next_due_ms))
        count = max(count - len(runs), 0)
        return schedule, runs + await self._upcoming(name, definition, schedule.state.created_ms, begin_ms, count)

    async def preview_of(self, name: str, definition: PutSchedule, count: int) -> list[Run]:
        """The first runs of a schedule that is not stored. Raises InvalidInput."""
        await self._windows.check(definition)
        now_ms = await self._store.now_ms()
        if definition.max_runs is not None:
            count = min(count, definition.max_runs)
        return await self._upcoming(name, definition, now_ms, now_ms, count)

    async def _upcoming(
        self, name: str, definition: PutSchedule, created_ms: int, after_ms: int, count: int
    ) -> list[Run]:
        times = RunTimes(name, definition, created_ms, await self._windows.window_of(definition))
        runs: list[Run] = []
        slice_ = TimeSlice(_PREVIEW_S)
        if count > 1:
            await slice_.start()
        try:
            for run in islice(times.runs_after(after_ms), count):
                runs.append(run)
                await slice_.end_if_over()
        except ValueError as error:
            raise InvalidInput([FieldError(("body", "window"), str(error))]) from None
        except WorkTooLongError:
            message = f"takes more than {_PREVIEW_S:g} s to compute: ask for at most {len(runs)}"
            raise InvalidInput([FieldError(("query", "count"), message, count)]) from None
        return runs

    async def page(
        self, wanted: ScheduleFilter, cursor: str | None, limit: int, *, with_jobs: bool
    ) -> tuple[list[StoredSchedule], str | None]:
        """Up to `limit` schedules by name within each shard, and the cursor of the next page, None after the last.

        Looks at about 2000 schedules at most, and ends after 1 MiB of jobs, so a page may be short without being the
        last; for a caller who may not see all, at as many as are needed, because a cursor reveals a name. One that
        cannot be read is left out.

        Raises:
            InvalidInput: this method did not return the cursor.
        """
        first, after = read_cursor(cursor, (0, ""), (int, str))
        if not 0 <= first < self._store.keys.shards:
            raise bad_cursor(cursor)
        last = self._store.keys.shards - 1
        if wanted.topic is not None:
            last = self._store.keys.shard_of(wanted.topic)
            if first < last:
                first, after = last, ""
        found: list[StoredSchedule] = []
        looked_at = found_bytes = 0
        for shard in range(first, last + 1):
            more = True
            while more:
                if looked_at >= _LOOKED_AT_MAX and wanted.visible is None:
                    return found, write_cursor(shard, after)
                schedules, more = await self._store.page(shard, after, wanted.prefix, with_jobs=with_jobs)
                for name, schedule in schedules:
                    if len(found) == limit or found_bytes >= _PAGE_BYTES:
                        return found, write_cursor(found[-1].shard, found[-1].name)
                    after = name
                    looked_at += 1
                    if schedule is not None and wanted.matches(schedule):
                        found.append(schedule)
                        found_bytes += len(schedule.rest or b"")
            after = ""
        return found, None

    async def _find(self, name: str) -> Found:
        try:
            return await self._store.find(name)
        except UNREADABLE:
            raise StoreUnavailable(f"schedule {name!r} cannot be read (run `deferd audit --repair`)") from None

    async def _found(self, name: str) -> Found:
        found = await self._find(name)
        if not found.schedules:
            raise ScheduleNotFound(name)
        return found


def datetime_of(at_ms: int, zone: str = "UTC") -> datetime:
    """An instant in a zone."""
    return datetime.fromtimestamp(at_ms / 1000, zone_named(zone))


def _is_same(old: StoredSchedule, state: ScheduleState, fields: dict[str, str | bytes | int]) -> bool:
    return (
        definition_to_store(old.definition) == fields["definition"]
        and old.rest == fields["rest"]
        and old.state.is_paused == state.is_paused
        and old.state.max_jobs == state.max_jobs
    )


def _timing(definition: PutSchedule) -> tuple[object, ...]:
    names = ("cron", "every", "at", "days", "zone", "start_at")
    return tuple(getattr(definition, name) for name in names)


def _deletion(schedule: StoredSchedule) -> Change:
    withdraw = (schedule.topic, schedule.next_id)
    return Change(schedule.topic, schedule.name, schedule.rev, None, withdraw=withdraw, withdraw_earlier=True)


def _too_fast(name: str) -> StoreUnavailable:
    return StoreUnavailable(f"schedule {name!r} kept changing during the call")


_AT_ONCE = 8
"""Most schedules that one step advances: some milliseconds of the store's time, for which other calls wait."""
_RUNS_AT_ONCE = 100
_RUN_BYTES_AT_ONCE = 4 * 1024 * 1024
_RETRY_MS = 1000
"""How long a schedule waits for room in its topic or in the store, or for the shelf."""
_LAST_RUNS_RETRY_MS = 5000
_FAILED_RETRY_MS = 60_000
_FULL_MOST = 1000


class Scheduler:
    """Advances the schedules of a shard: puts the next run of each whose run has come due.

    The timer calls it, in any number of processes: each step is one compare-and-set. `move` makes the name of a
    schedule valid in one shard only; see `Schedules.settle_move`.
    """

    def __init__(self, store: ScheduleStore, windows: RunWindows, move: Callable[[str], Awaitable[None]]) -> None:
        self._store = store
        self._windows = windows
        self._derived_to: dict[int, str] = {}
        """By shard: the last schedule whose runs were derived again by this release of the zones."""
        self._move = move
        self._full: set[str] = set()
        """Schedules whose wait for room in their topics was logged; some of them may be gone."""

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
        retry = Change(due.topic, due.name, due.rev, now_ms + _RETRY_MS)
        try:
            definition, state = read_definition(due.definition), ScheduleState.read(due.state)
            if state.is_moving:
                await self._move(due.name)
                return
            most = _most_runs(due.rest_bytes)
            while True:
                change, waiting = await self._change(due, definition, state, now_ms, most)
                try:
                    await self._store.apply(change, shelf_s=OTHERS_WAIT_S)
                except FullError:
                    most = len(change.runs) // 2  # there may be room for some of them
                    if not most:
                        break
                else:
                    self._full.discard(due.name)
                    return
            if due.name not in self._full:  # it tries again each second
                _LOG.warning("schedule %s waits: topic %s is full", due.name, due.topic)
                if len(self._full) == _FULL_MOST:
                    self._full.clear()
                self._full.add(due.name)
            if not change.keeps_run:
                fields = {"state": waiting.stored(), "next_id": "", "next": change.fields["next"]}
                retry = replace(retry, withdraw=change.withdraw, fields=fields)
            await self._store.apply(retry)
        except StoreUnavailable as error:
            # A store that is out of memory refuses runs, but not this; the timer is not to wait because of them.
            await self._store.apply(retry)
            _LOG.warning("schedule %s waits: %s", due.name, error)
        except Exception:  # noqa: BLE001 (one schedule must not keep the others waiting)
            _LOG.exception("schedule %s cannot be advanced; the next attempt follows in a minute", due.name)
            await self._store.apply(replace(retry, advance_at_ms=now_ms + _FAILED_RETRY_MS))

    async def _change(
        self, due: DueSchedule, definition: PutSchedule, state: ScheduleState, now_ms: int, most: int
    ) -> tuple[Change, ScheduleState]:
        """The change that advances a schedule by at most `most` runs, and the state to store if they cannot be put."""
        run_window = await self._windows.window_of(definition)
        times = RunTimes(due.name, definition, state.created_ms, run_window)
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
            return _planned_change(due.name, due.rev, definition, state, NO_RUNS, times), state
        after_ms = now_ms if dealt_with_ms is None else dealt_with_ms
        plan = await TimeSlice().run(times.plan(now_ms, after_ms, remaining, most))
        change = _planned_change(due.name, due.rev, definition, state, plan, times, run_window)
        is_same = plan.next_run is not None and (plan.next_run.id, plan.next_run.due_ms) == (due.next_id, due.next_ms)
        if due.is_next_waiting:
            change = replace(change, withdraw=(due.topic, due.next_id), keeps_run=is_same)
        return change, state.going_on_from(after_ms, None, times.recurrence)


def _most_runs(rest_bytes: int) -> int:
    """How many runs with a job of this size one call puts."""
    return max(1, min(_RUNS_AT_ONCE, limits.CATCH_UP_MAX, _RUN_BYTES_AT_ONCE // max(rest_bytes, 1)))


def _planned_change(  # noqa: PLR0917 (the parts of a schedule)
    name: str,
    rev: int | None,
    definition: PutSchedule,
    state: ScheduleState,
    plan: Plan,
    times: RunTimes,
    run_window: RunWindow = NOT_MOVED,
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
        run_window=run_window,
        record_code=record_code(definition.job),
    )
