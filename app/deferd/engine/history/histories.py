"""Reads the history of a topic, and of many topics together.

Each partition of a topic has its own history. The history of a topic is their sum.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from deferd.contract.errors import StoreUnavailable, TopicNotFound
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.history.records import Bucket, Gauges, Period, Records, period_of, records_needed
from deferd.engine.inspection.shared_reads import SharedReads
from deferd.engine.partitions import topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts, WrongType

_TOPICS_READ = 100
_CALLS_AT_ONCE = 4
_KEPT_S = 2.0
_TOPICS_KEPT = 16
_LARGEST_KEPT = 2 * 1024 * 1024
_BUCKET_BYTES = 3000
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
        period = period_of(max(now_ms for now_ms, *_ in replies), minutes)
        histories: list[list[Bucket]] = []
        for _, fine, coarse, is_known, *gauges in replies:
            records = Records(fine, coarse)
            if is_known or not records.are_none:
                # Without a history nothing has changed for two days.
                histories.append(buckets_of(records, period, tuple(gauges) if records.are_none else None))
        if not histories:
            raise TopicNotFound(topic)
        return History(period, histories[0] if len(histories) == 1 else sums_of(histories))

    async def _read_partition(self, partition: str, minutes: int) -> list[Any]:
        shard = self._keys.shard_of(partition)
        _, delay, ready, reserved, dead, *_ = self._keys.of_topic(partition)
        history, settings = self._keys.of_history(shard, partition), self._keys.of_shard(shard, "settings")
        return await self._run((*history, settings, delay, ready, reserved, dead), minutes, partition)

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
        found: list[tuple[int, Records]] = []

        async def read(shard: int, topic: str) -> None:
            async with slots:
                try:
                    now_ms, fine, coarse = await self._run(self._keys.of_history(shard, topic), minutes)
                except StoreUnavailable as exc:
                    unreadable[shard] = exc
                    return
                found.append((now_ms, Records(fine, coarse)))

        await asyncio.gather(*(read(shard, topic) for shard, topic in wanted))
        if len(unreadable) == self._keys.shards:
            raise next(iter(unreadable.values()))
        if not found:
            shard = next(shard for shard in range(self._keys.shards) if shard not in unreadable)
            found.append((await self._scripts.run("now", (self._keys.of_shard(shard, "due"),), ()), Records((), ())))
        period = period_of(max(now_ms for now_ms, _ in found), minutes)
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
        reply: list[Any] = await self._scripts.run("history", keys, (*records_needed(minutes), *args))
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


def buckets_of(records: Records, period: Period, gauges: Gauges | None) -> list[Bucket]:
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
