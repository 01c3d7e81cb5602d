"""The verbs on schedules: put, get, list, delete, pause, resume, run now, preview.

A name is unique over all shards of the store, although a schedule is in the shard of its topic. So a PUT into another
shard takes two steps. The next call or the scheduler completes one that was cut off: see `settle_move`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from msgspec import structs

from deferd.contract.errors import (
    FieldError,
    InvalidInput,
    JobExists,
    ScheduleExists,
    ScheduleNotFound,
    StoreUnavailable,
)
from deferd.contract.schedules import PutSchedule
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.cursors import bad_cursor, read_cursor, write_cursor
from deferd.engine.puts import PutOutcome, Puts
from deferd.engine.schedules.planning import NO_RUNS, Run, RunTimes
from deferd.engine.schedules.run_placing import RunPlacer
from deferd.engine.schedules.schedule_store import UNREADABLE, Change, Found, FullError, ScheduleStore
from deferd.engine.schedules.scheduler import RETRY_MS, Scheduler, most_runs, planned_change
from deferd.engine.schedules.stored_schedule import (
    ScheduleState,
    StoredSchedule,
    definition_to_store,
    rest_to_store,
)
from deferd.engine.script_arguments import PutBounds
from deferd.engine.time_slice import TimeSlice, WorkTooLongError
from deferd.engine.timing.zones import zone_named

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

    def __init__(self, store: ScheduleStore, puts: Puts, placer: RunPlacer, scheduler: Scheduler) -> None:
        self._store = store
        self._puts = puts
        self._placer = placer
        scheduler.move = self.settle_move

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
            InvalidInput: it never runs, or what it names does not exist.
        """
        await self._placer.check(definition)
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
        placing = await self._placer.placing_of(definition)
        times = RunTimes(name, definition, state.created_ms, placing)
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
                    plan = await TimeSlice().run(times.plan(now_ms, after_ms, remaining, most_runs(rest_bytes)))
                except ValueError as error:
                    raise InvalidInput([FieldError(("body", "window"), str(error))]) from None
        waiting = state
        if not state.is_paused:
            waiting = state.going_on_from(after_ms, None, times.recurrence)
        elif done_ms is not None:
            state = waiting = state.going_on_from(done_ms, None, times.recurrence)
        change = planned_change(name, None if old is None else old.rev, definition, state, plan, times, placing)
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
            waiting = replace(change, runs=(), advance_at_ms=now_ms + RETRY_MS, fields=later)
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
        await self._placer.check(definition)
        now_ms = await self._store.now_ms()
        if definition.max_runs is not None:
            count = min(count, definition.max_runs)
        return await self._upcoming(name, definition, now_ms, now_ms, count)

    async def _upcoming(
        self, name: str, definition: PutSchedule, created_ms: int, after_ms: int, count: int
    ) -> list[Run]:
        times = RunTimes(name, definition, created_ms, await self._placer.placing_of(definition))
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
