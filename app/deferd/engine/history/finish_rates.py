"""How fast consumers finished jobs in the last hour."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from deferd.contract.errors import StoreUnavailable
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.history.records import TOPICS_OF_SHARD
from deferd.engine.inspection.shared_reads import SharedReads
from deferd.engine.partitions import topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts, WrongType

_HOUR_MS = 3_600_000
_TOPICS_PER_CALL = 50
_MOST_TOPICS = 200
_KEPT_S = 10.0
_KEPT = 16


@dataclass(slots=True)
class Rates:
    """Finished jobs per second, averaged over the last hour: by topic, and for all requested topics together.

    A missing topic or None means that the rate is not known.
    """

    of_topic: dict[str, float] = field(default_factory=dict)
    in_all: float | None = None


class FinishRates:
    """Reads the rates, and caches them for 10 s."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys
        self._reads: SharedReads[dict[str, float]] = SharedReads(_KEPT_S, _KEPT)

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
        if matching is None or len(matching) > _MOST_TOPICS:
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
        for at in range(0, len(names), _TOPICS_PER_CALL):
            some = names[at : at + _TOPICS_PER_CALL]
            keys = [self._keys.of_shard(shard, "history/topics")]
            keys += [key for name in some for key in self._keys.of_history(shard, name)]
            try:
                span_ms, *counts = await self._scripts.run("finished", keys, (_HOUR_MS, TOPICS_OF_SHARD))
            except StoreUnavailable:
                return
            for name, finished in zip(some, counts, strict=True):
                if finished >= 0:
                    rates[name] = finished * 1000 / span_ms
