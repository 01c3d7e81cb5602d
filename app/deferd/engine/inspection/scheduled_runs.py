"""Runs of schedules that are not put yet: those after the next one, which is a delayed job already."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

from deferd.contract.errors import InvalidInput
from deferd.contract.schedules import Timing
from deferd.engine.schedules.planning import RunTimes
from deferd.engine.schedules.run_placing import RunPlacer, RunPlacing
from deferd.engine.schedules.schedule_store import ScheduleStore
from deferd.engine.schedules.stored_schedule import StoredSchedule
from deferd.engine.time_slice import TimeSlice, WorkTooLongError

_SCHEDULES_READ = 4000
_RUNS_LISTED = 500
"""Most occurrences of one schedule that are computed exactly. Further ones are counted as if neither a window nor a
spread moved them."""
_BUDGET_S = 0.25
"""CPU time of one forecast, which is kept for 10 s."""
_RUNS_PER_LOOK = 20
_RUNS_COUNTED = 100
"""More runs of a schedule with `every` are counted by arithmetic, which is faster."""

_Shared = dict[Hashable, list[int]]
"""Occurrences in the period, by what gives them."""


@dataclass(slots=True)
class ScheduledCounts:
    """Runs in each bucket, by topic; topics without any are left out. With `is_complete` false some are missing.

    `schedules` were read; `shared` are lists that several of them need.
    """

    of_topic: dict[str, list[int]] = field(default_factory=dict)
    is_complete: bool = True
    schedules: int = 0
    shared: _Shared = field(default_factory=dict)
    slice: TimeSlice = field(default_factory=lambda: TimeSlice(_BUDGET_S))

    async def has_time(self) -> bool:
        """Whether computing time is left. Yields to other tasks every few milliseconds."""
        try:
            await self.slice.end_if_over()
        except WorkTooLongError:
            self.is_complete = False
        return self.slice.used_s <= _BUDGET_S

    def add(self, topic: str, counts: Sequence[int]) -> None:
        """Add the runs of a schedule."""
        if any(counts):
            before = self.of_topic.get(topic)
            self.of_topic[topic] = list(counts) if before is None else [*map(sum, zip(before, counts, strict=True))]


class ScheduledRuns:
    """Counts the runs of all schedules of some topics, in bounded steps."""

    def __init__(self, store: ScheduleStore, placer: RunPlacer) -> None:
        self._store = store
        self._placer = placer

    async def count(self, shard: int, topics: Collection[str], ends: Sequence[int], counted: ScheduledCounts) -> None:
        """Add the runs of a shard's schedules. `ends` are the begin of the first bucket and the end of each, in ms.

        Raises StoreUnavailable.
        """
        wanted, after, more = set(topics), "", True
        while more:
            if counted.schedules >= _SCHEDULES_READ:
                counted.is_complete = False
                return
            schedules, more = await self._store.page(shard, after, "", with_jobs=False)
            await counted.slice.start()  # the time until now was not spent on computing
            for name, schedule in schedules:
                after = name
                counted.schedules += 1
                if schedule is not None and schedule.topic in wanted and _has_further_runs(schedule):
                    await self._add(schedule, ends, counted)
                    if not await counted.has_time():
                        return

    async def _add(self, schedule: StoredSchedule, ends: Sequence[int], counted: ScheduledCounts) -> None:
        """Add the runs of one schedule."""
        placing = await self._placer.placing_of(schedule.definition)
        counts = [0] * (len(ends) - 1)
        try:
            counting = _counting(schedule, placing, ends, counts, counted.shared)
            while await counted.has_time() and (is_complete := next(counting, None)) is not None:
                counted.is_complete &= is_complete
        except (InvalidInput, ValueError):  # its zone or its calendar is gone, or never opens
            counted.is_complete = False
        counted.add(schedule.topic, counts)


def _has_further_runs(schedule: StoredSchedule) -> bool:
    state = schedule.state
    return state.is_active and not state.is_moving and state.occurrence_ms is not None and _remaining(schedule) != 0


def _remaining(schedule: StoredSchedule) -> int | None:
    """How many runs may follow those that have run or wait; None: any number."""
    most = schedule.definition.max_runs
    return None if most is None else max(most - schedule.runs - schedule.waiting, 0)


def _counting(
    schedule: StoredSchedule, placing: RunPlacing, ends: Sequence[int], counts: list[int], shared: _Shared
) -> Iterator[bool]:
    """Count into `counts`, in short steps; each yields whether all was counted so far."""
    definition, remaining = schedule.definition, _remaining(schedule)
    times = RunTimes(schedule.name, definition, schedule.state.created_ms, placing)
    after_ms = schedule.state.occurrence_ms or 0
    is_moved = placing.openings is not None or placing.spread_ms or definition.spread
    if remaining is None and not is_moved:
        yield from _counting_occurrences(times, definition, max(after_ms, ends[0] - 1), ends, counts, shared)
        return
    for listed, run in enumerate(islice(times.runs_after(after_ms), remaining), 1):
        if run.due_ms >= ends[-1]:
            return
        if run.due_ms >= ends[0]:
            counts[bisect_right(ends, run.due_ms) - 1] += 1
        after_ms = run.occurrence_ms
        if listed % _RUNS_PER_LOOK == 0:
            yield True
        if listed == _RUNS_LISTED:
            break
    else:
        return
    if remaining is not None or placing.openings is not None:
        yield False
        return
    _count_by_arithmetic(times, after_ms, ends, counts)
    yield True


def _counting_occurrences(  # noqa: PLR0917 (as _counting)
    times: RunTimes, timing: Timing, after_ms: int, ends: Sequence[int], counts: list[int], shared: _Shared
) -> Iterator[bool]:
    """Count the occurrences after `after_ms`, at which the runs are due. Schedules with the same times share a list."""
    if timing.every is not None and timing.every * 1000 * _RUNS_COUNTED < ends[-1] - ends[0]:
        _count_by_arithmetic(times, after_ms, ends, counts)
        yield True
        return
    is_own = timing.every is not None or timing.start_at is not None or timing.end_at is not None
    times_of = (timing.cron, tuple(timing.at or ()), tuple(timing.days or ()), timing.zone)
    occurrences = None if is_own else shared.get(times_of)
    if occurrences is None:
        occurrences = []
        for at_ms in islice(times.recurrence.upcoming(after_ms if is_own else ends[0] - 1), _RUNS_LISTED):
            if at_ms >= ends[-1]:
                break
            occurrences.append(at_ms)
            if len(occurrences) % _RUNS_PER_LOOK == 0:
                yield True
        if not is_own:
            shared[times_of] = occurrences
    for at_ms in occurrences[bisect_right(occurrences, after_ms) :]:
        counts[bisect_right(ends, at_ms) - 1] += 1
    if len(occurrences) == _RUNS_LISTED:
        _count_by_arithmetic(times, max(after_ms, occurrences[-1]), ends, counts)
    yield True


def _count_by_arithmetic(times: RunTimes, after_ms: int, ends: Sequence[int], counts: list[int]) -> None:
    """Add the occurrences after `after_ms`. Many take hardly longer than few."""
    for at, (begin_ms, end_ms) in enumerate(pairwise(ends)):
        if end_ms - 1 > after_ms:
            counts[at] += times.recurrence.count(max(after_ms, begin_ms - 1), end_ms - 1)
