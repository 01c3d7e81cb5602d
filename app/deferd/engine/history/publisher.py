"""Publishes what a process has counted to the history of its topics in the store.

Every 10 s, shortly before a bucket of the history ends, it sends the counts of the topics that changed, at most 50
topics a call. Without changes nothing is sent. Calls are numbered: a call whose response is lost is sent again
unchanged, and the store carries it out once. New counts accumulate in the process until then. A process that is killed
loses up to 10 s of counts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from contextlib import suppress

import msgspec

from deferd.contract.errors import StoreUnavailable
from deferd.engine.history.counts import MOST_TOPICS, CountedTopics, TopicCounts
from deferd.engine.history.records import BUCKET_MS, KEPT_MS, MOST_COARSE, MOST_FINE, TOPICS_OF_SHARD
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

_LOG = logging.getLogger(__name__)
_TOPICS_PER_CALL = 50
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
    """Publishes the counts of this process."""

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
        names = list(counts.topics)[:_TOPICS_PER_CALL]
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
