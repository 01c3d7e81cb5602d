"""Who consumes: consumers that have popped within a minute, and those that hold jobs, over all processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from deferd.contract.errors import StoreUnavailable
from deferd.engine.inspection.consumer_registry import ConsumerRegistry, Reports
from deferd.engine.inspection.selected_topics import select_topics
from deferd.engine.inspection.shared_reads import SharedReads
from deferd.engine.partitions import topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.topic_list import TopicList

_TOPICS_PER_COUNT = 500
_TOPICS_READ = 200
_JOBS_OF_TOPIC = 1000
_CALLS_AT_ONCE = 4
_KEPT_S = 5.0


@dataclass(slots=True)
class Consumer:
    """One consumer: pops with the same name; or without one, from the same address with the same client.

    `topics` are those of its pops and of the jobs that it holds. `waiting` of its pops wait now. `seen_ms`: how long
    ago it was last seen; None when it only holds jobs. `held` jobs, of which the first lease ends at `lease_end_ms`;
    None for a consumer without a name, of which this is not known.
    """

    name: str | None
    addresses: set[str] = field(default_factory=set)
    clients: set[str] = field(default_factory=set)
    topics: set[str] = field(default_factory=set)
    waiting: int = 0
    seen_ms: int | None = None
    held: int | None = None
    lease_end_ms: int | None = None

    def hold(self, topic: str, jobs: int, lease_end_ms: int) -> None:
        """Add jobs of a topic that it holds."""
        self.topics.add(topic)
        self.held = (self.held or 0) + jobs
        self.lease_end_ms = lease_end_ms if self.lease_end_ms is None else min(self.lease_end_ms, lease_end_ms)


@dataclass(slots=True)
class Consumers:
    """All consumers, the ones with the most jobs first. `nameless` jobs are held by consumers that gave no name.

    With `is_complete` false some are missing, or some of their jobs.
    """

    now_ms: int
    consumers: list[Consumer]
    nameless: int
    is_complete: bool


@dataclass(slots=True)
class _Held:
    """Jobs by topic: for each partition and consumer, how many, and the end of the first lease."""

    of_topic: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    is_complete: bool = True


class ConsumerList:
    """Reads who consumes. The jobs that consumers hold are cached for 5 s."""

    def __init__(self, scripts: Scripts, keys: Keys, topics: TopicList, registry: ConsumerRegistry) -> None:
        self._scripts = scripts
        self._keys = keys
        self._topics = topics
        self._registry = registry
        self._reads: SharedReads[_Held] = SharedReads(_KEPT_S, 1)

    async def all(self, is_visible: Callable[[str], bool]) -> Consumers:
        """The consumers of visible topics. A pattern is visible when `is_visible` says so.

        While what processes publish cannot be read, only those that hold jobs are known.

        Raises:
            StoreUnavailable: no shard of the store can be reached.
        """
        reports, held = await asyncio.gather(self._reports(), self._reads.get(None, self._read_held))
        found: dict[tuple[str | None, ...], Consumer] = {}
        _add_reported(found, reports, is_visible)
        nameless = 0
        for topic, of_topic in held.of_topic.items():
            for name, jobs, lease_end_ms in of_topic if is_visible(topic) else ():
                if name:
                    found.setdefault((name,), Consumer(name)).hold(topic, jobs, lease_end_ms)
                else:
                    nameless += jobs
        for consumer in found.values():
            if consumer.name is not None and consumer.held is None:
                consumer.held = 0
        in_order = sorted(found.values(), key=lambda one: (-(one.held or 0), one.name or "~", sorted(one.addresses)))
        return Consumers(reports.now_ms, in_order, nameless, held.is_complete and not reports.left_out)

    async def _reports(self) -> Reports:
        try:
            return await self._registry.read()
        except StoreUnavailable:
            return Reports(0, left_out=1)

    async def _read_held(self) -> _Held:
        selected = await select_topics(self._topics, self._keys, None)
        held = _Held(is_complete=selected.is_complete and not selected.unreadable)
        counts: dict[str, int] = {}
        for names in selected.partitions.values():
            for at in range(0, len(names), _TOPICS_PER_COUNT):
                some = names[at : at + _TOPICS_PER_COUNT]
                try:
                    reply = await self._scripts.run(
                        "count_members", [self._keys.named(name, "reserved") for name in some], ()
                    )
                except StoreUnavailable:
                    held.is_complete = False
                    break
                held.is_complete &= min(reply) >= 0
                counts |= {name: count for name, count in zip(some, reply, strict=True) if count > 0}
        most = sorted(counts, key=lambda name: -counts[name])
        held.is_complete &= len(most) <= _TOPICS_READ
        slots = asyncio.Semaphore(_CALLS_AT_ONCE)
        await asyncio.gather(*(self._read_partition(name, slots, held) for name in most[:_TOPICS_READ]))
        return held

    async def _read_partition(self, partition: str, slots: asyncio.Semaphore, held: _Held) -> None:
        async with slots:
            try:
                reply = await self._scripts.run("held", self._keys.of_topic(partition), (partition, _JOBS_OF_TOPIC))
            except StoreUnavailable:
                held.is_complete = False
                return
        in_all, counted, *rows = reply
        held.is_complete &= counted == in_all
        names = (name.decode() for name in rows[::3])
        held.of_topic.setdefault(topic_of(partition), []).extend(zip(names, rows[1::3], rows[2::3], strict=True))


def _add_reported(
    found: dict[tuple[str | None, ...], Consumer], reports: Reports, is_visible: Callable[[str], bool]
) -> None:
    for seen in reports.consumers:
        topics = [topic for topic in seen.topics.split(",") if is_visible(topic)]
        if not topics:
            continue
        identity = (seen.address, seen.client, "") if seen.name is None else (seen.name,)
        consumer = found.setdefault(identity, Consumer(seen.name))
        consumer.topics.update(topics)
        consumer.waiting += seen.waiting
        consumer.seen_ms = seen.seen_ms if consumer.seen_ms is None else min(consumer.seen_ms, seen.seen_ms)
        if seen.address is not None:
            consumer.addresses.add(seen.address)
        if seen.client is not None:
            consumer.clients.add(seen.client)
