"""Finds the topics that match the patterns of a pop and have ready jobs, or that have served the same request before.

It finds partitions. Patterns match the names of topics, and each topic counts once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass, field

from deferd.contract.limits import POP_MATCHES_MAX
from deferd.contract.topic_patterns import WILDCARD, TopicPatterns
from deferd.engine.group_commit import GroupCommit
from deferd.engine.partitions import topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.topic_usage import without_covered

_CHECKS_PER_CALL = 5000
"""How many names times patterns one call checks: about two milliseconds of the store's time."""
_NAMES_PER_CALL_MIN, _NAMES_PER_CALL_MAX = 20, 2000
_COUNTED_NAMES = 10_000
"""A search reads at least this many names before it ends because more topics match than a pop may have."""
_AFTER_ALL_NAMES = b"\xff"


class TopicSelection:
    """The topics that match one of `patterns` and one of `allowed` (None: any), except those in `names`.

    `names` are the topics that the pop names itself. Selections with the same topics have the same `key`.
    """

    __slots__ = ("_allowed", "_patterns", "key", "names")

    def __init__(
        self, patterns: Collection[str], names: Iterable[str] = (), allowed: TopicPatterns | None = None
    ) -> None:
        self.names = frozenset(names)
        self._patterns = TopicPatterns(sorted(patterns))
        self._allowed: TopicPatterns | None = None
        if allowed is not None and not all(map(allowed.include, patterns)):
            overlapping = {one for pattern in patterns for one in allowed.overlapping(pattern)}
            self._allowed = TopicPatterns(sorted(overlapping))
        of_key = None if self._allowed is None else self._allowed.patterns
        self.key = (self._patterns.patterns, of_key, self.names)

    def match(self, partition: str) -> bool:
        """Whether `partition` is a partition of one of the topics."""
        topic = topic_of(partition)
        return (
            topic not in self.names
            and self._patterns.match(topic)
            and (self._allowed is None or self._allowed.match(topic))
        )

    def ranges(self) -> list[str]:
        """The prefixes of all topics that can match; no prefix begins with another one."""
        if self._allowed is None:
            prefixes = set(self._patterns.prefixes)
        else:
            prefixes = {
                max(pattern.partition(WILDCARD)[0], one.partition(WILDCARD)[0], key=len)
                for pattern in self._patterns.patterns
                for one in self._allowed.overlapping(pattern)
            }
        return without_covered(prefixes)

    def arguments(self) -> tuple[int, tuple[str | bytes | int, ...]]:
        """How many names one call may check, and the arguments of lua/ready_topics.lua from ARGV[4] on."""
        wanted, allowed = self._patterns.patterns, () if self._allowed is None else self._allowed.patterns
        names = _CHECKS_PER_CALL // (len(wanted) + len(allowed))
        most = min(max(names, _NAMES_PER_CALL_MIN), _NAMES_PER_CALL_MAX)
        return most, (len(wanted), len(allowed), *wanted, *allowed, *self.names)


@dataclass(slots=True)
class FoundTopics:
    """What a search found: partitions with ready jobs, and how many; `errors` of the shards that could not be searched.

    `matching` is the number of topics that match, each of which counts in the shard of its first partition. With
    `is_complete` false there may be more: the search ended early because these are too many.
    """

    ready: dict[str, int] = field(default_factory=dict)
    matching: int = 0
    is_complete: bool = True
    errors: dict[int, Exception] = field(default_factory=dict)


class TopicSearch:
    """Searches shards at the same time. `by_shard`: each shard can fail on its own, else only all together."""

    def __init__(self, scripts: Scripts, keys: Keys, *, by_shard: bool = False) -> None:
        self._scripts = scripts
        self._keys = keys
        self.shards = range(keys.shards)
        self.by_shard = by_shard
        self._look_ups: GroupCommit[str, list[bytes]] = GroupCommit(self._look_up, size=len)

    def failure_domain(self, shard: int) -> int:
        """The part of the store that fails with a shard; see Dispatcher."""
        return shard if self.by_shard else 0

    async def probe(self, shard: int) -> None:
        """Call a shard. Raises StoreUnavailable."""
        await self._scripts.command("EXISTS", self._keys.of_shard(shard, "topics"))

    async def ready(self, selection: TopicSelection, shards: Collection[int]) -> FoundTopics:
        """The partitions of the topics of `selection` in these shards that have ready jobs and are not paused."""
        found = FoundTopics()
        names_read = 0
        most, args = selection.arguments()
        ranges = selection.ranges()

        async def search(shard: int) -> None:
            nonlocal names_read
            keys = (self._keys.of_shard(shard, "settings"), self._keys.of_shard(shard, "topics"))
            for prefix in ranges:
                start = f"[{prefix}" if prefix else "-"
                end = f"({prefix}".encode() + _AFTER_ALL_NAMES if prefix else "+"
                while start:
                    if found.matching + len(selection.names) > POP_MATCHES_MAX and names_read >= _COUNTED_NAMES:
                        found.is_complete = False
                        return
                    last, matching, *ready = await self._scripts.run("ready_topics", keys, (start, end, most, *args))
                    names_read += most
                    found.matching += matching
                    found.ready.update(zip((name.decode() for name in ready[::2]), ready[1::2], strict=True))
                    start = f"({last.decode()}" if last else ""

        await _in_each(shards, search, found.errors)
        return found

    async def served(
        self, request_id: str, selection: TopicSelection, shards: Collection[int]
    ) -> tuple[list[str], dict[int, Exception]]:
        """The partitions of topics of `selection` that may have served an earlier pop with this id; errors by shard."""
        topics: list[str] = []
        errors: dict[int, Exception] = {}

        async def read(shard: int) -> None:
            found = await self._look_ups.submit(str(shard), self._keys.of_pattern_request(shard, request_id))
            topics.extend(filter(selection.match, (name.decode() for name in found)))

        await _in_each(shards, read, errors)
        return list(dict.fromkeys(topics)), errors

    async def _look_up(self, _shard: str, keys: list[str]) -> list[list[bytes]]:
        found: list[list[bytes]] = await self._scripts.run("served_topics", keys, ())
        return found


async def _in_each(
    shards: Collection[int], call: Callable[[int], Awaitable[None]], errors: dict[int, Exception]
) -> None:
    """Call it for all shards at the same time."""
    results = await asyncio.gather(*map(call, shards), return_exceptions=True)
    for shard, result in zip(shards, results, strict=True):
        if isinstance(result, Exception):
            errors[shard] = result
        elif result is not None:
            raise result
