"""What happened in each topic over the last two days: counted by every process, added up in the store.

Each partition of a topic has its own history. The history of a topic is their sum.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgspec

from deferd.contract.errors import StoreUnavailable, TopicNotFound
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.caches import SharedReads
from deferd.engine.metrics import (
    LATENESS_BUCKETS,
    MOST_TOPICS,
    RUN_TIME_BUCKETS,
    RUN_TIMES_FROM,
    CountedTopics,
    TopicCounts,
    add_to,
)
from deferd.engine.partitions import topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts, WrongType

_LOG = logging.getLogger("deferd.engine.history.publisher")  # logs are filtered by the name
_TOPICS_READ = 100
_CALLS_AT_ONCE = 4
_KEPT_S = 2.0
_TOPICS_KEPT = 16
_LARGEST_KEPT = 2 * 1024 * 1024
_BUCKET_BYTES = 3500
_KEPT_OF_MANY_S = 10.0


@dataclass(slots=True)
class History:
    """What happened in each bucket of a period.

    In a history of many topics, `is_complete` is false when some topics are missing; `unreadable` are the shards that
    cannot be reached.
    """

    period: Period
    buckets: list[Bucket]
    is_complete: bool = True
    unreadable: set[int] = field(default_factory=set)


def whole_of(history: History) -> Bucket:
    """The lateness and run times of the whole period."""
    lateness: dict[int, int] = {}
    run_times: dict[int, int] = {}
    for bucket in history.buckets:
        add_to(lateness, bucket.lateness)
        add_to(run_times, bucket.run_times)
    return Bucket(lateness=Counter(lateness), run_times=Counter(run_times))


def _size(history: History) -> int:
    """Its memory in bytes."""
    return _BUCKET_BYTES * len(history.buckets)


class Histories:
    """Reads histories. The history of one topic is cached for 2 s, the history of many topics for 10 s."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys
        self._reads: SharedReads[History] = SharedReads(_KEPT_S, _TOPICS_KEPT, size=_size, largest=_LARGEST_KEPT)
        self._reads_of_many: SharedReads[History] = SharedReads(_KEPT_OF_MANY_S, 8, size=_size, largest=_LARGEST_KEPT)

    async def of_topic(self, topic: str, minutes: int) -> History:
        """The last `minutes` of a topic. The number of jobs is known for a bucket if it is known for every partition.

        Raises:
            TopicNotFound: there is no such topic, and nothing was seen of it for two days.
            StoreUnavailable: one of its partitions cannot be reached.
        """
        return await self._reads.get((topic, minutes), lambda: self._read_topic(topic, minutes))

    async def _read_topic(self, topic: str, minutes: int) -> History:
        partitions = self._keys.partitions.of(topic)
        replies = await asyncio.gather(*(self._read_partition(partition, minutes) for partition in partitions))
        period = _period_of(max(now_ms for now_ms, *_ in replies), minutes)
        histories: list[list[Bucket]] = []
        for _, fine, coarse, is_known, *gauges in replies:
            records = _Records(fine, coarse)
            if is_known or not records.are_none:
                # Without a history nothing has changed for two days.
                histories.append(_buckets_of(records, period, tuple(gauges) if records.are_none else None))
        if not histories:
            raise TopicNotFound(topic)
        return History(period, histories[0] if len(histories) == 1 else sums_of(histories))

    async def _read_partition(self, partition: str, minutes: int) -> list[Any]:
        shard = self._keys.shard_of(partition)
        _, delay, ready, reserved, dead, *_ = self._keys.of_topic(partition)
        history, settings = self._keys.of_history(shard, partition), self._keys.of_shard(shard, "settings")
        shelf = self._keys.named(partition, "shelf")
        return await self._run((*history, settings, delay, ready, reserved, dead, shelf), minutes, partition)

    async def of_all(self, visible: TopicPatterns | None, minutes: int) -> History:
        """The last `minutes` of all topics together, deleted topics included; numbers of jobs are not known.

        With `visible` None it is read from the sums in the store. Otherwise it covers the matching topics, at most the
        100 partitions that changed last.

        Raises:
            StoreUnavailable: no shard of the store can be reached.
        """
        patterns = None if visible is None else visible.patterns
        return await self._reads_of_many.get((patterns, minutes), lambda: self._read_all(visible, minutes))

    async def _read_all(self, visible: TopicPatterns | None, minutes: int) -> History:
        unreadable: dict[int, StoreUnavailable] = {}
        changed: list[tuple[int, str]] = []
        are_all_listed = True

        async def look(shard: int) -> None:
            nonlocal are_all_listed
            try:
                found = await self._scripts.command(
                    "ZRANGE", self._keys.of_shard(shard, "history/topics"), 0, -1, "WITHSCORES"
                )
            except StoreUnavailable as exc:
                unreadable[shard] = exc
                return
            except WrongType:  # the next process that publishes makes it again
                are_all_listed = False
                return
            names = [(int(float(at_ms)), name.decode()) for name, at_ms in zip(found[::2], found[1::2], strict=True)]
            changed.extend((at_ms, name) for at_ms, name in names if visible is None or visible.match(topic_of(name)))

        wanted = [(shard, "") for shard in range(self._keys.shards)]
        if visible is not None:
            await asyncio.gather(*(look(shard) for shard, _ in wanted))
            changed.sort(reverse=True)
            wanted = [(self._keys.shard_of(name), name) for _, name in changed[:_TOPICS_READ]]
        slots = asyncio.Semaphore(_CALLS_AT_ONCE)
        found: list[tuple[int, _Records]] = []

        async def read(shard: int, topic: str) -> None:
            async with slots:
                try:
                    now_ms, fine, coarse = await self._run(self._keys.of_history(shard, topic), minutes)
                except StoreUnavailable as exc:
                    unreadable[shard] = exc
                    return
                found.append((now_ms, _Records(fine, coarse)))

        await asyncio.gather(*(read(shard, topic) for shard, topic in wanted))
        if len(unreadable) == self._keys.shards:
            raise next(iter(unreadable.values()))
        if not found:
            shard = next(shard for shard in range(self._keys.shards) if shard not in unreadable)
            found.append((await self._scripts.run("now", (self._keys.of_shard(shard, "due"),), ()), _Records((), ())))
        period = _period_of(max(now_ms for now_ms, _ in found), minutes)
        buckets = [Bucket() for _ in range(period.buckets)]
        for _, records in found:
            for at, record in records.of_period(period):
                if at >= 0:
                    buckets[at].add(record)
        for bucket in buckets:
            bucket.gauges = None
        is_complete = are_all_listed and len(changed) <= _TOPICS_READ and not unreadable
        return History(period, buckets, is_complete, set(unreadable))

    async def _run(self, keys: tuple[str, ...], minutes: int, *args: str) -> list[Any]:
        reply: list[Any] = await self._scripts.run("history", keys, (*_records_needed(minutes), *args))
        return reply


def sums_of(histories: Sequence[Sequence[Bucket]]) -> list[Bucket]:
    """The sums over several histories of one period. A bucket has numbers of jobs only if every history has them."""
    sums: list[Bucket] = []
    for buckets in zip(*histories, strict=True):
        whole = Bucket()
        for bucket in buckets:
            whole.add_counts(bucket)
        gauges = [bucket.gauges for bucket in buckets if bucket.gauges is not None]
        whole.gauges = tuple(map(sum, zip(*gauges, strict=True))) if len(gauges) == len(buckets) else None
        sums.append(whole)
    return sums


def _buckets_of(records: _Records, period: Period, gauges: _Gauges | None) -> list[Bucket]:
    """The buckets of a period.

    A bucket without a record has the numbers of jobs of the bucket before it; the first one has `gauges`.
    """
    buckets = [Bucket() for _ in range(period.buckets)]
    for at, record in records.of_period(period):
        if at < 0:
            before = Bucket()
            before.add(record)
            gauges = before.gauges
        else:
            buckets[at].add(record)
    for bucket in buckets:
        if bucket.gauges is None:
            bucket.gauges = gauges
        gauges = bucket.gauges
    return buckets


RECENT_BUCKETS = 36
"""How many buckets of 5 min `ReadyHistories` reads: 3 hours."""
_RECENT_KEPT_S = 30.0
_RECENT_KEPT = 16
_RECENT_PER_CALL = 100
_DECODED_AT_ONCE = 20
"""Topics, for some 2 ms."""


class ReadyHistories:
    """Reads how many jobs of each of many topics were ready lately, by one call of each shard. Cached for 30 s."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys
        self._reads: SharedReads[dict[str, list[int | None]]] = SharedReads(_RECENT_KEPT_S, _RECENT_KEPT)

    async def of_topics(self, topics: Sequence[str]) -> dict[str, list[int | None]]:
        """The ready jobs at the end of each of `RECENT_BUCKETS`, the oldest first; that of the last one is yet to come.

        A number is None before anything is known. A topic is missing when it has no history, or a shard of it cannot be
        reached. A partition in which nothing changed for two days has no history, and is taken as empty.
        """
        partitions = self._keys.partitions.of_all(topics)
        found = await self._reads.get(tuple(partitions), lambda: self._read(partitions))
        if len(found) < len(partitions):  # a shard may be back before long
            self._reads.forget(tuple(partitions))
        histories = {}
        for topic in topics:
            of_each = [found.get(partition) for partition in self._keys.partitions.of(topic)]
            known = [numbers for numbers in of_each if numbers]
            if known and None not in of_each:
                histories[topic] = [_sum_of_known(numbers) for numbers in zip(*known, strict=True)]
        return histories

    async def _read(self, partitions: list[str]) -> dict[str, list[int | None]]:
        """By partition, an empty list for one without a history; without those that cannot be read now."""
        found: dict[str, list[int | None]] = {}

        async def read(shard: int, names: list[str]) -> None:
            for at in range(0, len(names), _RECENT_PER_CALL):
                some = names[at : at + _RECENT_PER_CALL]
                keys = [key for name in some for key in self._keys.of_history(shard, name)]
                try:
                    now_ms, *records = await self._scripts.run("latest_history", keys, (RECENT_BUCKETS + 1,))
                except StoreUnavailable:
                    return
                for place, name in enumerate(some):
                    found[name] = _ready_of(records[2 * place], records[2 * place + 1], now_ms)
                    if place % _DECODED_AT_ONCE == 0:
                        await asyncio.sleep(0)

        await asyncio.gather(*(read(shard, names) for shard, names in self._keys.by_shard(partitions).items()))
        return found


def _sum_of_known(numbers: Iterable[int | None]) -> int | None:
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def _ready_of(coarse: list[bytes], fine: list[bytes], now_ms: int) -> list[int | None]:
    """The ready jobs at the end of each bucket; without a record as many as before."""
    place = _FIRST_GAUGE + GAUGES.index("ready")
    try:
        records = _Records(fine, coarse)
        known = [(record[0], record[place]) for record in records.coarse]
        known += [(record[0] // _OF_5_MIN, record[place]) for record in records.fine]
    except (msgspec.MsgspecError, IndexError):  # another program has damaged it; the next publication makes it again
        return []
    present = now_ms // COARSE_MS
    ready, at = None, 0
    numbers: list[int | None] = []
    for bucket in range(present - RECENT_BUCKETS + 1, present + 1) if known else ():
        while at < len(known) and known[at][0] <= bucket:
            ready = known[at][1] if known[at][1] >= 0 else ready
            at += 1
        numbers.append(ready)
    return numbers


_HOUR_MS = 3_600_000
_RATES_PER_CALL = 50
_RATES_SUMMED = 200
_RATES_KEPT_S = 10.0
_RATES_KEPT = 16
_BEST_KEPT_S = 300.0
_BEST_KEPT = 1000


@dataclass(slots=True)
class Rates:
    """Finished jobs per second, averaged over the last hour: by topic, and for all requested topics together.

    A missing topic or None means that the rate is not known.
    """

    of_topic: dict[str, float] = field(default_factory=dict)
    in_all: float | None = None


class BestRate(NamedTuple):
    """Finished jobs per second in the best complete 5 minutes of two days, which began at `at_ms`; 0 and None for none.

    For a topic with several partitions the sum of their best rates, and when the busiest one had its own.
    """

    per_s: float
    at_ms: int | None


class FinishRates:
    """Reads how fast consumers finished jobs in the last hour, and at their best in two days.

    The former is cached for 10 s, the latter for 5 minutes.
    """

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys
        self._reads: SharedReads[dict[str, float]] = SharedReads(_RATES_KEPT_S, _RATES_KEPT)
        self._best: SharedReads[BestRate | None] = SharedReads(_BEST_KEPT_S, _BEST_KEPT)
        self._slots = asyncio.Semaphore(_CALLS_AT_ONCE)

    async def read(
        self, topics: Collection[str], wanted: Sequence[str] | None, is_visible: Callable[[str], bool]
    ) -> Rates:
        """The rates of `topics`, and of all visible topics that match one of the names and patterns in `wanted`.

        `wanted` None: of all that there are, visible or not; also topics without a history of their own count. The sum
        is not known if more than 200 partitions match. Rates in a shard that cannot be reached are not known.
        """
        of_topic = await self.of_topics(topics)
        if wanted is None:
            shards = await asyncio.gather(*(self._rates([""], shard) for shard in range(self._keys.shards)))
            known = [rates[""] for rates in shards if rates]
            return Rates(of_topic, sum(known) if len(known) == len(shards) else None)
        matching = await self._matching(TopicPatterns(wanted), is_visible)
        if matching is None or len(matching) > _RATES_SUMMED:
            return Rates(of_topic)
        rates = await self._rates(sorted(matching))
        return Rates(of_topic, sum(rates.values()) if len(rates) == len(matching) else None)

    async def of_topics(self, topics: Collection[str]) -> dict[str, float]:
        """The rates of these topics, summed over their partitions, where they are known."""
        partitions = self._keys.partitions
        rates = await self._rates(partitions.of_all(sorted(topics)))
        if not partitions.layouts:
            return rates
        known = (topic for topic in topics if all(one in rates for one in partitions.of(topic)))
        return {topic: sum(rates[one] for one in partitions.of(topic)) for topic in known}

    async def best_of(self, topics: Collection[str]) -> dict[str, BestRate]:
        """The best rates of these topics, where they are known."""
        found = await asyncio.gather(*map(self._best_of_topic, topics))
        return {topic: best for topic, best in zip(topics, found, strict=True) if best is not None}

    async def _best_of_topic(self, topic: str) -> BestRate | None:
        of_each = [
            await self._best.get(partition, partial(self._read_best, partition))
            for partition in self._keys.partitions.of(topic)
        ]
        known = [best for best in of_each if best is not None]
        if len(known) < len(of_each):
            return None
        return BestRate(sum(best.per_s for best in known), max(known).at_ms)

    async def _read_best(self, partition: str) -> BestRate | None:
        shard = self._keys.shard_of(partition)
        keys = (self._keys.of_shard(shard, "history/topics"), self._keys.of_history(shard, partition)[1])
        async with self._slots:
            try:
                finished, at = await self._scripts.run("best_finishes", keys, (TOPICS_OF_SHARD,))
            except (StoreUnavailable, WrongType):
                return None
        if finished < 0:
            return None
        return BestRate(finished * 1000 / COARSE_MS, at * COARSE_MS if finished else None)

    async def _matching(self, patterns: TopicPatterns, is_visible: Callable[[str], bool]) -> list[str] | None:
        """The partitions of the topics that have a history; None when a shard cannot be read."""
        keys = [self._keys.of_shard(shard, "history/topics") for shard in range(self._keys.shards)]
        try:
            listed = await asyncio.gather(*(self._scripts.command("ZRANGE", key, 0, -1) for key in keys))
        except (StoreUnavailable, WrongType):
            return None
        names = (name.decode() for of_shard in listed for name in of_shard)
        return [name for name in names if patterns.match(topic_of(name)) and is_visible(topic_of(name))]

    async def _rates(self, partitions: list[str], shard: int | None = None) -> dict[str, float]:
        """The rates of partitions; the name '' with a shard means the whole shard."""
        return await self._reads.get((shard, *partitions), lambda: self._read(partitions, shard))

    async def _read(self, partitions: list[str], shard: int | None) -> dict[str, float]:
        of_shard = self._keys.by_shard(partitions) if shard is None else {shard: partitions}
        rates: dict[str, float] = {}
        await asyncio.gather(*(self._read_shard(shard, names, rates) for shard, names in of_shard.items()))
        return rates

    async def _read_shard(self, shard: int, names: list[str], rates: dict[str, float]) -> None:
        try:
            found = await read_outcomes(self._scripts, self._keys, shard, names, _HOUR_MS)
        except StoreUnavailable:
            return
        rates.update((name, finished * 1000 / found.span_ms) for name, (finished, _) in found.of_topic.items())


@dataclass(slots=True)
class Outcomes:
    """Jobs that were finished and deliveries that were released within `span_ms`, by partition, where that is known."""

    span_ms: int = 1
    of_topic: dict[str, tuple[int, int]] = field(default_factory=dict)


async def read_outcomes(scripts: Scripts, keys: Keys, shard: int, partitions: Sequence[str], back_ms: int) -> Outcomes:
    """How attempts in these partitions of a shard have ended lately; '' stands for the whole shard.

    What happened in the first 5 minutes of `back_ms` is left out unless these are complete. Raises StoreUnavailable.
    """
    found = Outcomes()
    for at in range(0, len(partitions), _RATES_PER_CALL):
        some = partitions[at : at + _RATES_PER_CALL]
        of_call = [keys.of_shard(shard, "history/topics")]
        of_call += [key for name in some for key in keys.of_history(shard, name)]
        found.span_ms, *counts = await scripts.run("outcomes", of_call, (back_ms, TOPICS_OF_SHARD))
        for name, finished, released in zip(some, counts[::2], counts[1::2], strict=True):
            if finished >= 0:
                found.of_topic[name] = (finished, released)
    return found


_TOPICS_PER_PUBLICATION = 50
_KEEPS_ITS_HISTORY_MS = 600_000
_BEFORE_END_MS = (300, 1500)
"""How long before the end of a bucket to publish: each process at its own moment."""
_SHORTEST_WAIT_MS = 2000
_LAST_CALL_S = 1.0


_Call = tuple[list[str], tuple[int | bytes, ...]]
"""The keys and arguments of a call as it is sent, also again."""


class _ShardCounts:
    """Counts that are still to be sent to one shard. `rest` is added to the shard's sums only."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicCounts] = {}
        self.rest: TopicCounts | None = None
        self.unconfirmed: _Call | None = None
        self.calls = 0

    def add(self, topic: str | None, counts: TopicCounts) -> None:
        """Add the counts of a topic, or with None the counts of topics that are not counted separately."""
        known = None if topic is None else self.topics.get(topic)
        if known is not None:
            known.add(counts)
        elif topic is not None and len(self.topics) < MOST_TOPICS:
            self.topics[topic] = counts
        elif self.rest is None:
            self.rest = counts
        else:
            self.rest.add(counts)


class HistoryPublisher:
    """Publishes what this process has counted to the history of its topics in the store.

    Every 10 s, shortly before a bucket of the history ends, it sends the counts of the topics that changed, at most 50
    topics a call. Without changes nothing is sent. Calls are numbered: a call whose response is lost is sent again
    unchanged, and the store carries it out once. New counts accumulate in the process until then. A process that is
    killed loses up to 10 s of counts.
    """

    def __init__(self, scripts: Scripts, keys: Keys, counted: CountedTopics) -> None:
        self._scripts = scripts
        self._keys = keys
        self._counted = counted
        self._process = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._shards = [_ShardCounts() for _ in range(keys.shards)]
        self._lock = asyncio.Lock()
        self._before_end_ms = random.randint(*_BEFORE_END_MS)  # noqa: S311 (spreads processes; nothing to guess)
        self._ahead_ms: float | None = None
        """The store's clock minus the clock of the event loop."""

    async def run(self) -> None:
        """Publish until cancelled. Errors of the store are waited out."""
        while True:
            await asyncio.sleep(self._wait_ms() / 1000)
            await self.try_publish()

    async def try_publish(self) -> None:
        """As `publish`; an error is only logged: nothing else depends on this."""
        try:
            await self.publish()
        except StoreUnavailable as exc:
            _LOG.debug("the history could not be published: %s", exc)
        except Exception:  # noqa: BLE001 (nothing else depends on this)
            _LOG.exception("the history could not be published")

    def _wait_ms(self) -> float:
        if self._ahead_ms is None:
            return BUCKET_MS
        now_ms = self._ahead_ms + asyncio.get_running_loop().time() * 1000
        wait_ms = (BUCKET_MS - self._before_end_ms - now_ms) % BUCKET_MS
        return wait_ms if wait_ms >= _SHORTEST_WAIT_MS else wait_ms + BUCKET_MS

    async def publish(self) -> None:
        """Publish what was counted until now.

        Raises:
            StoreUnavailable: a shard cannot be reached; its counts are published by a later call.
        """
        async with self._lock:
            topics, rest = self._counted.take()
            for topic, counts in topics.items():
                self._shards[self._keys.shard_of(topic)].add(topic, counts)
            if rest is not None:
                self._shards[0].add(None, rest)
            results = await asyncio.gather(
                *(self._publish_shard(shard) for shard in range(self._keys.shards)), return_exceptions=True
            )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def close(self) -> None:
        """Publish for the last time, within a second; what is not sent by then is lost."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_CALL_S):
                await self.try_publish()

    async def _publish_shard(self, shard: int) -> None:
        counts = self._shards[shard]
        while counts.unconfirmed or counts.topics or counts.rest:
            if counts.unconfirmed is None:
                counts.unconfirmed = self._next_call(shard, counts)
            try:
                now_ms, _ = await self._scripts.run("publish_history", *counts.unconfirmed)
            except (StoreUnavailable, asyncio.CancelledError):
                raise
            except Exception:
                counts.unconfirmed = None  # such as a key of a wrong type: it would fail again
                raise
            counts.unconfirmed = None
            self._ahead_ms = now_ms - asyncio.get_running_loop().time() * 1000

    def _next_call(self, shard: int, counts: _ShardCounts) -> _Call:
        names = list(counts.topics)[:_TOPICS_PER_PUBLICATION]
        total, counts.rest = counts.rest or TopicCounts(), None
        keys = [self._keys.of_shard(shard, name) for name in ("history/topics", f"history/process/{self._process}")]
        keys += self._keys.of_history(shard, "")
        added = []
        for name in names:
            of_topic = counts.topics.pop(name)
            total.add(of_topic)
            keys += self._keys.of_history(shard, name)
            added.append(msgspec.msgpack.encode(of_topic.numbers()))
        counts.calls += 1
        args = (counts.calls, KEPT_MS, TOPICS_OF_SHARD, _KEEPS_ITS_HISTORY_MS, MOST_FINE, MOST_COARSE)
        return keys, (*args, msgspec.msgpack.encode(total.numbers()), *added)


BUCKET_MS = 10_000
COARSE_MS = 300_000
FINE_MINUTES = 60
"""For how long there are buckets of 10 s."""
MOST_MINUTES = 2880
"""For how long there are buckets of 5 min."""
TOPICS_OF_SHARD = 1000
"""How many topics of one shard have a history at most."""
KEPT_MS = MOST_MINUTES * 60_000
MOST_FINE = FINE_MINUTES * 60_000 // BUCKET_MS + 2
MOST_COARSE = KEPT_MS // COARSE_MS + 2
COUNTS = ("put", "popped", "finished", "released", "dead", "cancelled")
GAUGES = ("delayed", "ready", "reserved", "dead")
"""Numbers of jobs by state."""
_FIRST_GAUGE, _FIRST_LATENESS = 1 + len(COUNTS), 1 + len(COUNTS) + len(GAUGES)
_OF_5_MIN = COARSE_MS // BUCKET_MS

_DECODER = msgspec.msgpack.Decoder(list[int])
_Gauges = tuple[int, ...]


@dataclass(slots=True)
class Bucket:
    """What happened in one bucket. `gauges` are the numbers of jobs at its end, None when these are not known.

    `lateness`: first deliveries by bucket of `LATENESS_BUCKETS`. `run_times`: finished jobs by bucket of
    `RUN_TIME_BUCKETS`, as far as their times are known.
    """

    counts: list[int] = field(default_factory=lambda: [0] * len(COUNTS))
    gauges: _Gauges | None = None
    lateness: Counter[int] = field(default_factory=Counter)
    run_times: Counter[int] = field(default_factory=Counter)

    def add(self, record: Sequence[int]) -> None:
        """Add a record that is later than those before, or of another shard or topic."""
        self.counts = [count + more for count, more in zip(self.counts, record[1:], strict=False)]
        gauges = tuple(record[_FIRST_GAUGE:_FIRST_LATENESS])
        if min(gauges) >= 0:
            self.gauges = gauges
        pairs = record[_FIRST_LATENESS:]
        lateness, run_times = self.lateness, self.run_times
        for bucket, jobs in zip(pairs[::2], pairs[1::2], strict=True):
            if bucket <= len(LATENESS_BUCKETS):
                lateness[bucket] = lateness.get(bucket, 0) + jobs
            elif RUN_TIMES_FROM <= bucket <= RUN_TIMES_FROM + len(RUN_TIME_BUCKETS):
                run_times[bucket - RUN_TIMES_FROM] = run_times.get(bucket - RUN_TIMES_FROM, 0) + jobs

    def add_counts(self, other: Bucket) -> None:
        """Add what happened in another partition, or at another time, but not its numbers of jobs."""
        self.counts = [count + more for count, more in zip(self.counts, other.counts, strict=True)]
        self.lateness.update(other.lateness)
        self.run_times.update(other.run_times)


def quantiles_s(jobs_in: Mapping[int, int], ends: Sequence[float], shares: Sequence[float]) -> list[float | None]:
    """The quantiles of these ascending shares, each None without any jobs.

    Values are taken as evenly spread within a bucket, which `ends` bound; those above all count as the last end.
    """
    total = sum(jobs_in.values())
    if not total:
        return [None] * len(shares)
    found: list[float | None] = []
    buckets = iter(sorted(jobs_in))
    bucket = next(buckets)
    before = 0
    for share in shares:
        rank = share * total
        while rank > before + jobs_in[bucket]:
            before += jobs_in[bucket]
            bucket = next(buckets)
        begin = ends[bucket - 1] if bucket else 0.0
        end = ends[bucket] if bucket < len(ends) else begin
        found.append(begin + (end - begin) * (rank - before) / jobs_in[bucket])
    return found


class _Records:
    """The records of one history, each with its bucket first; the earliest first.

    `lua/publish_history.lua` writes and describes them.
    """

    def __init__(self, fine: Iterable[bytes], coarse: Iterable[bytes]) -> None:
        self.fine = [_DECODER.decode(raw) for raw in fine]
        self.coarse = [_DECODER.decode(raw) for raw in coarse]

    @property
    def are_none(self) -> bool:
        """Whether there is no history."""
        return not self.fine

    def of_period(self, period: Period) -> Iterator[tuple[int, list[int]]]:
        """The records of a period, each with the index of its bucket.

        The last record before the period, if there is one, has index -1.
        """
        fine = [record for record in self.fine if record[0] * BUCKET_MS < period.to_ms]
        if period.bucket_ms == COARSE_MS:
            begin = period.from_ms // COARSE_MS
            found = [(record[0] - begin, record) for record in self.coarse]
            if fine[-1:] == self.fine[-1:]:  # else the last one before the end is in a record of 5 min
                found += [(record[0] // _OF_5_MIN - begin, record) for record in fine[-1:]]
        else:
            begin = period.from_ms // BUCKET_MS
            found = [(record[0] - begin, record) for record in fine]
            if not found or found[0][0] >= 0:
                coarse = [(-1, record) for record in self.coarse if (record[0] + 1) * COARSE_MS <= period.from_ms]
                found = [*coarse[-1:], *found]
        earlier = [record for at, record in found if at < 0]
        if earlier:
            yield -1, earlier[-1]
        yield from ((at, record) for at, record in found if 0 <= at < period.buckets)


@dataclass(frozen=True, slots=True)
class Period:
    """Buckets of equal length from `from_ms` on. The last one ends at `to_ms`, which may make it shorter."""

    from_ms: int
    to_ms: int
    bucket_ms: int

    @property
    def buckets(self) -> int:
        """How many."""
        return -((self.from_ms - self.to_ms) // self.bucket_ms)


def _records_needed(minutes: int) -> tuple[int, int]:
    """How many of the latest records of 10 s and of 5 min cover the last `minutes` and the state before them."""
    is_fine = minutes <= FINE_MINUTES
    return MOST_FINE if is_fine else 1, (FINE_MINUTES if is_fine else minutes) * 60_000 // COARSE_MS + 3


def _period_of(now_ms: int, minutes: int) -> Period:
    """The last `minutes` until the last bucket of 10 s that is over."""
    to_ms = now_ms // BUCKET_MS * BUCKET_MS
    bucket_ms = BUCKET_MS if minutes <= FINE_MINUTES else COARSE_MS
    from_ms = (to_ms - minutes * 60_000) // bucket_ms * bucket_ms
    return Period(from_ms, to_ms, bucket_ms)
