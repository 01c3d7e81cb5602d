"""The forecast: delayed jobs of many topics by due time."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from deferd.contract.errors import FieldError, InvalidInput, StoreUnavailable
from deferd.engine.inspection.scheduled_runs import ScheduledCounts, ScheduledRuns
from deferd.engine.inspection.selected_topics import SelectedTopics, select_topics
from deferd.engine.inspection.shared_reads import SharedReads
from deferd.engine.partitions import topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.topic_list import TopicList, raise_if_none_is_readable

SPAN_DEFAULT_MS = 6 * 3_600_000
_TOPICS_PER_COUNT = 500
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


@dataclass(slots=True)
class Forecast:
    """`topics` have delayed jobs or planned runs. `now_ms` is the store's clock.

    `unreadable` are shards of the store that cannot be reached; with `is_complete` false there are further topics, or
    runs of schedules.
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

    def __init__(self, scripts: Scripts, keys: Keys, topics: TopicList, scheduled_runs: ScheduledRuns) -> None:
        self._scripts = scripts
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
        change meanwhile.

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
        span_ms = period.to_ms - period.from_ms
        ends = [period.from_ms + at * span_ms // period.buckets for at in range(period.buckets + 1)]
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
                if reply:
                    of_partition = TopicForecast(reply[0], reply[1], array(_NUMBERS, reply[2:]) or none)
                    before = forecast.topics.get(topic_of(name))
                    forecast.topics[topic_of(name)] = of_partition if before is None else before.plus(of_partition)
