"""What consumers each process has seen, published to the store for all processes.

A process publishes only while it sees consumers, and its reports expire by themselves: a service without consumers
writes nothing. All of it is in shard 0 of the store. While that cannot be reached, nothing is known of consumers.

A report is a JSON object: `w` ms over which `p`, jobs handed out by topic, were counted; `c` the consumers, each with
name `n`, address `a`, topics `t` as its pop names them, client `v`, waiting pops `w`, and ms since it was last seen
`s`; `m` consumers that were left out.
"""

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
from deferd.engine.inspection.shared_reads import SharedReads
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

_LOG = logging.getLogger(__name__)
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
_KEPT_S = 2.0
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
    """Publishes the consumers of this process, and reads those of all.

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
            _KEPT_S,
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
