"""The forecast: delayed jobs of many topics by due time."""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import NamedTuple

import orjson

from deferd.contract.errors import FieldError, InvalidInput, StoreUnavailable
from deferd.contract.operations.schedules_and_calendars import Timing
from deferd.engine.caches import SharedReads
from deferd.engine.partitions import topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.schedule_planning import RunTimes, RunWindow, RunWindows
from deferd.engine.schedule_store import ScheduleStore, StoredSchedule
from deferd.engine.scripts import Scripts, WrongType
from deferd.engine.shelf import Shelf, ShelfCalls
from deferd.engine.time_slice import TimeSlice, WorkTooLongError
from deferd.engine.topic_list import SelectedTopics, TopicList, raise_if_none_is_readable, select_topics

SPAN_DEFAULT_MS = 6 * 3_600_000
_TOPICS_PER_COUNT = 500
_SETTINGS_PER_CALL = 50
_SEARCHES_PER_CALL = 600
"""In sorted sets: one to three milliseconds of the store's time."""
_KEPT_S = 10.0
_KEPT = 2
_LARGEST_KEPT = 32 * 1024 * 1024
_TOPIC_BYTES, _COUNT_BYTES = 600, 8
_NUMBERS = "Q"
"""The type of arrays of counts: lists would take four times the memory."""


class TopicForecast(NamedTuple):
    """Delayed jobs of one topic: all, those due before the first bucket, and those due in each.

    `scheduled` are further runs of schedules in each bucket, which are not put yet; empty for none.
    """

    delayed: int
    before: int
    counts: Sequence[int]
    scheduled: Sequence[int] = ()

    @property
    def after(self) -> int:
        """The jobs that are due after the last bucket."""
        return self.delayed - self.before - sum(self.counts)

    def plus(self, other: TopicForecast) -> TopicForecast:
        """Both together: of two partitions, before runs of schedules are added."""
        counts = array(_NUMBERS, map(sum, zip(self.counts, other.counts, strict=True)))
        return TopicForecast(self.delayed + other.delayed, self.before + other.before, counts)


class Period(NamedTuple):
    """Buckets of equal length from `from_ms` on, the last one up to `to_ms`."""

    from_ms: int
    to_ms: int
    buckets: int

    @property
    def ends(self) -> list[int]:
        """The begin of the first bucket and the end of each, in ms."""
        span_ms = self.to_ms - self.from_ms
        return [self.from_ms + at * span_ms // self.buckets for at in range(self.buckets + 1)]


@dataclass(slots=True)
class Forecast:
    """`topics` have delayed jobs or planned runs. `now_ms` is the store's clock.

    `unreadable` are shards of the store that cannot be reached; with `is_complete` false there are further topics, runs
    of schedules, or jobs on the shelf.
    """

    now_ms: int
    period: Period
    topics: dict[str, TopicForecast] = field(default_factory=dict)
    is_complete: bool = True
    unreadable: set[int] = field(default_factory=set)

    def with_most(self, limit: int) -> dict[str, TopicForecast]:
        """The topics with the most that comes due in the period, most first."""
        in_order = sorted(
            self.topics.items(), key=lambda item: (-sum(item[1].counts) - sum(item[1].scheduled), item[0])
        )
        return dict(in_order[:limit])

    def total(self) -> TopicForecast:
        """The sums over all topics."""
        sums, scheduled = [0] * self.period.buckets, [0] * self.period.buckets
        for topic in self.topics.values():
            for at, count in enumerate(topic.counts):
                sums[at] += count
            for at, count in enumerate(topic.scheduled):
                scheduled[at] += count
        of_all = self.topics.values()
        return TopicForecast(sum(one.delayed for one in of_all), sum(one.before for one in of_all), sums, scheduled)


class Forecasts:
    """Makes forecasts. A forecast is cached for 10 s, so that refreshing a page costs little."""

    def __init__(
        self, scripts: Scripts, keys: Keys, topics: TopicList, scheduled_runs: ScheduledRuns, shelf: Shelf
    ) -> None:
        self._scripts = scripts
        self._shelf = shelf
        self._scheduled_runs = scheduled_runs
        self._keys = keys
        self._topics = topics
        self._reads: SharedReads[Forecast] = SharedReads(
            _KEPT_S,
            _KEPT,
            size=lambda forecast: len(forecast.topics) * (_TOPIC_BYTES + 2 * _COUNT_BYTES * forecast.period.buckets),
            largest=_LARGEST_KEPT,
        )

    async def forecast(
        self,
        wanted: Iterable[str] | None,
        is_visible: Callable[[str], bool],
        *,
        from_ms: int | None = None,
        to_ms: int | None = None,
        buckets: int = 60,
    ) -> Forecast:
        """Count the delayed jobs of the topics that match one of `wanted` (None: of all) and are visible.

        `from_ms` None: now. `to_ms` None: six hours later. Jobs are counted topic by topic in short calls, and may
        change in between.

        Raises:
            InvalidInput: the end is not at least a millisecond for each bucket after the beginning.
            StoreUnavailable: no shard of the store can be reached.
        """
        names = None if wanted is None else tuple(sorted(wanted))
        key = (names, from_ms, to_ms, buckets)
        whole = await self._reads.get(key, lambda: self._read(names, from_ms, to_ms, buckets))
        visible = {name: counts for name, counts in whole.topics.items() if is_visible(name)}
        return Forecast(whole.now_ms, whole.period, visible, whole.is_complete, whole.unreadable)

    async def _read(
        self, names: tuple[str, ...] | None, from_ms: int | None, to_ms: int | None, buckets: int
    ) -> Forecast:
        selected = await select_topics(self._topics, self._keys, names)
        now_ms, period = await self._period(selected, from_ms, to_ms, buckets)
        readable = selected.readable
        forecast = Forecast(now_ms, period, {}, selected.is_complete, set(selected.unreadable))
        await asyncio.gather(*(self._read_shard(shard, of_shard, forecast) for shard, of_shard in readable.items()))
        await self._add_schedules(readable, forecast)
        raise_if_none_is_readable(self._keys, forecast.unreadable)
        return forecast

    async def rate_limits(self, topics: Collection[str]) -> dict[str, float]:
        """How many jobs a second the `rate` of a topic's limits lets out at most: of those of `topics` that have one.

        Topics of a shard that cannot be reached are left out.
        """
        found: dict[str, float] = {}
        for shard, names in self._keys.by_shard(topics).items():
            for at in range(0, len(names), _SETTINGS_PER_CALL):
                some = names[at : at + _SETTINGS_PER_CALL]
                try:
                    stored = await self._scripts.command("HMGET", self._keys.of_shard(shard, "settings"), *some)
                except (StoreUnavailable, WrongType):
                    break
                limits = zip(some, map(_rate_limit, stored), strict=True)
                found |= {name: limit for name, limit in limits if limit is not None}
        return found

    async def _period(
        self, selected: SelectedTopics, from_ms: int | None, to_ms: int | None, buckets: int
    ) -> tuple[int, Period]:
        """The period, by the store's clock."""
        error = StoreUnavailable("no shard of the store can be reached")
        for shard in [*selected.partitions, 0]:
            if shard in selected.unreadable:
                continue
            keys = (self._keys.of_shard(shard, "topics"),)  # a sorted set; what is counted in it does not matter
            bounds = ("" if from_ms is None else from_ms, "" if to_ms is None else to_ms)
            try:
                reply = await self._scripts.run("due_counts", keys, (*bounds, SPAN_DEFAULT_MS, 1))
            except StoreUnavailable as exc:
                selected.unreadable.add(shard)
                error = exc
                continue
            now_ms, begin_ms, end_ms, *_ = reply
            if end_ms - begin_ms < buckets:
                message = "must be later than `from`, by at least a millisecond for each bucket"
                raise InvalidInput([FieldError(("query", "to"), message)])
            return now_ms, Period(begin_ms, end_ms, buckets)
        raise error

    async def _read_shard(self, shard: int, names: list[str], forecast: Forecast) -> None:
        try:
            for at in range(0, len(names), _TOPICS_PER_COUNT):
                await self._read_topics(names[at : at + _TOPICS_PER_COUNT], forecast)
        except StoreUnavailable:
            forecast.unreadable.add(shard)

    async def _add_schedules(self, of_shard: dict[int, list[str]], forecast: Forecast) -> None:
        """Add the runs of schedules, shard by shard."""
        period, counted = forecast.period, ScheduledCounts()
        ends = period.ends
        for shard, topics in of_shard.items():
            if shard not in forecast.unreadable:
                try:
                    await self._scheduled_runs.count(shard, topics, ends, counted)
                except StoreUnavailable:
                    forecast.unreadable.add(shard)
        none = TopicForecast(0, 0, [0] * period.buckets)
        for topic, counts in counted.of_topic.items():
            forecast.topics[topic] = forecast.topics.get(topic, none)._replace(scheduled=array(_NUMBERS, counts))
        forecast.is_complete &= counted.is_complete

    async def _read_topics(self, names: list[str], forecast: Forecast) -> None:
        delayed = await self._scripts.run("count_members", [self._keys.named(name, "delay") for name in names], ())
        forecast.is_complete &= min(delayed) >= 0
        names = [name for name, count in zip(names, delayed, strict=True) if count > 0]
        period = forecast.period
        together = max(_SEARCHES_PER_CALL // (period.buckets + 3), 1)
        none = array(_NUMBERS, [0] * period.buckets)
        for at in range(0, len(names), together):
            some = names[at : at + together]
            args = (period.from_ms, period.to_ms, 0, period.buckets)
            keys = [self._keys.named(name, "delay") for name in some]
            replies = (await self._scripts.run("due_counts", keys, args))[3:]
            for name, reply in zip(some, replies, strict=True):
                if not reply:
                    continue
                shelved, in_store, before_first, *counts = reply
                of_partition = TopicForecast(in_store, before_first, array(_NUMBERS, counts) or none)
                if shelved:
                    of_partition = await self._with_shelved(name, forecast) or of_partition
                before = forecast.topics.get(topic_of(name))
                forecast.topics[topic_of(name)] = of_partition if before is None else before.plus(of_partition)

    async def _with_shelved(self, name: str, forecast: Forecast) -> TopicForecast | None:
        """The counts of a partition with its jobs on the shelf; None if that cannot be read: then they are missing."""
        try:
            if self._shelf.calls is not None:
                return await self._shelf.for_page(partial(self._both, self._shelf.calls, name, forecast.period))
        except StoreUnavailable:
            pass
        forecast.is_complete = False
        return None

    async def _both(self, calls: ShelfCalls, name: str, period: Period) -> TopicForecast:
        """Count the jobs of a partition in the store and on the shelf at the same instant."""
        ends = period.ends
        async with calls.still(name):
            args = (period.from_ms, period.to_ms, 0, period.buckets)
            *_, reply = await self._scripts.run("due_counts", [self._keys.named(name, "delay")], args)
            before_each = await calls.counts_before(name, ends)
        shelved, in_store, before_first, *counts = reply or (0, 0, 0)
        on_shelf = [end - begin for begin, end in pairwise(before_each)]
        both = map(sum, zip(counts or [0] * period.buckets, on_shelf, strict=True))
        return TopicForecast(in_store + shelved, before_first + before_each[0], array(_NUMBERS, both))


def _rate_limit(settings: bytes | None) -> float | None:
    """Most deliveries a second by the stored settings of a topic; None for any number."""
    try:
        rate = orjson.loads(settings or b"{}")["li"]["r"]
        return float(rate["c"] * 1000 / rate["p"])
    except (ValueError, KeyError, TypeError, ZeroDivisionError):  # it has none, or another program has damaged them
        return None


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

    def __init__(self, store: ScheduleStore, windows: RunWindows) -> None:
        self._store = store
        self._windows = windows

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
        run_window = await self._windows.window_of(schedule.definition)
        counts = [0] * (len(ends) - 1)
        try:
            counting = _counting(schedule, run_window, ends, counts, counted.shared)
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
    schedule: StoredSchedule, run_window: RunWindow, ends: Sequence[int], counts: list[int], shared: _Shared
) -> Iterator[bool]:
    """Count into `counts`, in short steps; each yields whether all was counted so far."""
    definition, remaining = schedule.definition, _remaining(schedule)
    times = RunTimes(schedule.name, definition, schedule.state.created_ms, run_window)
    after_ms = schedule.state.occurrence_ms or 0
    is_moved = run_window.openings is not None or run_window.spread_ms or definition.spread
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
    if remaining is not None or run_window.openings is not None:
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
