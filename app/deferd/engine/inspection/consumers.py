"""Who consumes: consumers that have popped within a minute, and those that hold jobs, over all processes."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from deferd.contract.errors import StoreUnavailable
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.engine.caches import SharedReads
from deferd.engine.partitions import topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.topic_list import TopicList, select_topics

_LOG = logging.getLogger("deferd.engine.inspection.consumer_registry")  # logs are filtered by the name
_TOPICS_PER_COUNT = 500
_TOPICS_READ = 200
_JOBS_OF_TOPIC = 1000
_CALLS_AT_ONCE = 4
_KEPT_S = 5.0


@dataclass(slots=True)
class Consumer:
    """One consumer: pops with the same name; or without one, from the same address with the same client.

    `topics` are the topics of its pops and of the jobs that it holds. `waiting` of its pops wait now. `seen_ms`: how
    long ago it was last seen; None when it only holds jobs. `held` jobs, of which the first lease ends at
    `lease_end_ms`; None for a consumer without a name, of which this is not known.
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


SEEN_MS = 60_000
"""For how long a consumer counts after its last pop."""
_LOOK_EVERY_S = 2.0
_REPORT_EVERY_S = 10.0
"""Unless consumers came or went: that is published at the next look."""
_REPORT_KEPT_MS = SEEN_MS + 10_000
_CURRENT_MS = 25_000
"""A report that is older tells nothing about the present rate."""
_TOPICS_KEPT_MS = 30 * 86_400_000
_TOPICS_KEPT = 10_000
_TOPICS_OF_REPORT = 1000
_CONSUMERS_OF_REPORT = 500
_REPORTS_READ = 200
_TOPICS_OF_LOOK = 500
_REPORTS_KEPT_S = 2.0
_KEPT = 4
_LARGEST_KEPT = 4 * 1024 * 1024
_CONSUMER_BYTES, _TOPIC_BYTES = 800, 250


class SeenConsumer(NamedTuple):
    """Pops that have name, address, topics and client in common. `topics` are names and patterns with commas between.

    `waiting` of them wait now. `seen_ms`: how long ago the last one was under way.
    """

    name: str | None
    address: str | None
    topics: str
    client: str | None
    waiting: int
    seen_ms: int


class Sample(NamedTuple):
    """The consumers that a process has seen within a minute. `left_out` counts those above the limit."""

    consumers: list[SeenConsumer]
    left_out: int = 0


@dataclass(slots=True)
class Reports:
    """What all processes have published.

    `consumers` were seen within a minute. `popped` are jobs per second by topic. `left_out` consumers did not fit.
    """

    now_ms: int
    consumers: list[SeenConsumer] = field(default_factory=list)
    popped: Counter[str] = field(default_factory=Counter)
    left_out: int = 0
    last_seen_ms: int | None = None


class TopicActivity(NamedTuple):
    """The known consumers of one topic, in all processes.

    `is_consumed`: somebody has popped the topic, or waits for it, within a minute. `last_consumer_ms`: when the last
    one was seen, None if that is not known. `rate`: jobs handed out per second in the last seconds, None if that is not
    known.
    """

    is_consumed: bool
    last_consumer_ms: int | None
    rate: float | None


class ConsumerRegistry:
    """Publishes the consumers that this process has seen to the store, and reads what all processes have published.

    A process publishes only while it sees consumers, and its reports expire by themselves: a service without consumers
    writes nothing. All of it is in shard 0 of the store. While that cannot be reached, nothing is known of consumers.

    A report is a JSON object: `w` ms over which `p`, jobs handed out by topic, were counted; `c` the consumers, each
    with name `n`, address `a`, topics `t` as its pop names them, client `v`, waiting pops `w`, and ms since it was last
    seen `s`; `m` consumers that were left out.

    `take_popped` returns how many jobs of each topic were handed out since its last call, `sample` the consumers that
    this process has seen within a minute.
    """

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        take_popped: Callable[[], dict[str, int]],
        sample: Callable[[], Sample],
    ) -> None:
        self._scripts = scripts
        self._keys = [keys.of_shard(0, f"consumers/{name}") for name in ("reports", "reported", "topics")]
        self._take_popped = take_popped
        self.sample = sample
        self._process = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._published: bytes = b""
        self._published_consumers: set[tuple[Any, ...]] = set()
        self._published_at_s = 0.0
        self._reads: SharedReads[Reports] = SharedReads(
            _REPORTS_KEPT_S,
            _KEPT,
            size=lambda reports: _CONSUMER_BYTES * len(reports.consumers) + _TOPIC_BYTES * len(reports.popped),
            largest=_LARGEST_KEPT,
        )

    async def run(self) -> None:
        """Publish until cancelled. Errors of the store are waited out."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                await self.look()
            except StoreUnavailable as exc:
                _LOG.debug("the consumers of this process could not be published: %s", exc)
            except Exception:  # noqa: BLE001 (nothing else depends on this)
                _LOG.exception("the consumers of this process could not be published")

    async def look(self) -> None:
        """Publish if consumers have come or gone, or it is time. Does nothing without consumers."""
        sample = self.sample()
        identities = {consumer[:4] for consumer in sample.consumers}
        if not identities and not self._published_consumers:
            self._published_at_s = 0.0
            return
        is_late = asyncio.get_running_loop().time() >= self._published_at_s + _REPORT_EVERY_S
        if identities != self._published_consumers or (identities and is_late):
            await self.publish(sample)

    async def publish(self, sample: Sample) -> None:
        """Publish these consumers, and the jobs handed out since the last time. Raises StoreUnavailable."""
        now_s = asyncio.get_running_loop().time()
        window_ms = round(1000 * min(now_s - self._published_at_s, _REPORT_EVERY_S)) if self._published_at_s else 0
        popped = self._take_popped()
        self._published_at_s = now_s
        self._published_consumers = {consumer[:4] for consumer in sample.consumers}
        latest = sorted(sample.consumers, key=lambda one: one.seen_ms)[:_CONSUMERS_OF_REPORT]
        topics: dict[str, None] = dict.fromkeys(popped)
        for consumer in latest:
            if not consumer.seen_ms:
                topics |= dict.fromkeys(name for name in consumer.topics.split(",") if not is_pattern(name))
        report = orjson.dumps(
            {
                "w": (window_ms or round(1000 * _LOOK_EVERY_S)) if popped else 1,
                "p": dict(Counter(popped).most_common(_TOPICS_OF_REPORT)),
                "c": [dict(zip("natvws", consumer, strict=True)) for consumer in latest],
                "m": sample.left_out + len(sample.consumers) - len(latest),
            }
        )
        is_known = report == self._published and await self._send(b"", topics)
        if not is_known:
            await self._send(report, topics)
        self._published = report

    async def _send(self, report: bytes, topics: dict[str, None]) -> bool:
        names = list(topics)[:_TOPICS_OF_REPORT]
        args: tuple[str | bytes | int, ...] = (
            self._process,
            report,
            _REPORT_KEPT_MS,
            _TOPICS_KEPT_MS,
            _TOPICS_KEPT,
            *names,
        )
        return bool(await self._scripts.run("publish_consumers", self._keys, args))

    async def read(self, topic: str | None = None) -> Reports:
        """What all processes have published, kept for 2 s; with `topic`, also when its last consumer was seen.

        Raises StoreUnavailable.
        """
        return await self._reads.get(topic, lambda: self._read(topic))

    async def _read(self, topic: str | None) -> Reports:
        topics = () if topic is None else (topic,)
        now_ms, rows, last_seen = await self._look(_REPORTS_READ, topics)
        found = Reports(now_ms, last_seen_ms=(last_seen[0] or None) if last_seen else None)
        for at_ms, raw in zip(rows[::2], rows[1::2], strict=True):
            _add_report(found, now_ms - at_ms, orjson.loads(raw))
        return found

    async def _look(self, most_reports: int, topics: Sequence[str]) -> tuple[int, list[Any], list[int]]:
        *found, is_readable = await self._scripts.run("consumers", self._keys, (most_reports, *topics))
        if not is_readable:
            raise StoreUnavailable("what processes report of consumers cannot be read: its keys are damaged", 10)
        now_ms, rows, seen = found
        return now_ms, rows, seen

    async def count(self, topics: Sequence[str]) -> dict[str, int]:
        """How many consumers of each topic were seen within a minute; topics for which that is not known are left out.

        Raises StoreUnavailable.
        """
        found = await self.read()
        seen: dict[str, set[tuple[str | None, ...]]] = {topic: set() for topic in topics}
        for consumer in found.consumers:
            who = (consumer.name,) if consumer.name is not None else (consumer.address, consumer.client)
            names = consumer.topics.split(",")
            patterns = TopicPatterns(name for name in names if is_pattern(name))
            for topic in filter(patterns.match, topics) if patterns.patterns else ():
                seen[topic].add(who)
            for name in names:
                if name in seen:
                    seen[name].add(who)
        return {topic: len(consumers) for topic, consumers in seen.items() if consumers or not found.left_out}

    async def last_seen(self, topics: Sequence[str]) -> dict[str, int]:
        """When the last consumer of each topic was seen, as far as that is known; of the first 500. Not kept."""
        names = topics[:_TOPICS_OF_LOOK]
        if not names:
            return {}
        _, _, seen = await self._look(1, names)
        return {name: at_ms for name, at_ms in zip(names, seen, strict=True) if at_ms}

    async def activity_of(self, topic: str) -> TopicActivity | None:
        """The known consumers of a topic; None while the store cannot say."""
        try:
            found = await self.read(topic)
        except StoreUnavailable:
            return None
        own = self.sample().consumers  # also those that are not published yet
        is_consumed = any(TopicPatterns(one.topics.split(",")).match(topic) for one in (*found.consumers, *own))
        if not is_consumed and found.left_out:
            return None
        return TopicActivity(is_consumed, found.last_seen_ms, found.popped[topic] if is_consumed else None)


def _add_report(found: Reports, age_ms: int, report: dict[str, Any]) -> None:
    for consumer in report["c"]:
        seen_ms = consumer["s"] + age_ms
        if seen_ms < SEEN_MS:
            waiting = consumer["w"] if age_ms < _CURRENT_MS else 0
            found.consumers.append(
                SeenConsumer(consumer["n"], consumer["a"], consumer["t"], consumer["v"], waiting, seen_ms)
            )
    found.left_out += report["m"]
    if age_ms < _CURRENT_MS:
        for topic, jobs in report["p"].items():
            found.popped[topic] += jobs * 1000 / report["w"]
