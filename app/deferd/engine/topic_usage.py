"""Measures how much of the store topics use, in bounded steps on a live service; quotas are checked against it.

The names here are names of partitions: the caller matches and counts their topics.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence

from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

JOB_OVERHEAD_BYTES = 200
"""What a job uses beyond its id and record, rounded up; measured by `python -m tests.benchmarks.memory`."""
TOMBSTONE_BYTES = 300
"""What a tombstone of a cancelled delivery uses, with an id of usual length."""
ITEM_OVERHEAD_BYTES = 8
"""What a collected item uses beyond its bytes, rounded up."""
TAG_OVERHEAD_BYTES = 150
"""What a tag of a job uses in the tag index beyond the names of tag, topic and job, rounded up. What is known of a
group, and of its jobs of one priority, uses as much."""
HELD_OVERHEAD_BYTES = 550
"""What a held job uses in addition, including its touches and its part of a request, rounded up."""
SCHEDULE_OVERHEAD_BYTES = 700
"""What a schedule uses beyond its texts, rounded up."""
CALL_OVERHEAD_BYTES = 300
"""What the note of a call on many jobs, or of a task, uses beyond its name and description, rounded up."""
CALL_NOTE_BYTES = 60
"""What such a note uses for each job in it, beyond the names of job and topic."""
_OVERHEADS = (JOB_OVERHEAD_BYTES, ITEM_OVERHEAD_BYTES, TAG_OVERHEAD_BYTES, HELD_OVERHEAD_BYTES)
_NAMES_PER_CALL = 1000
_TOPICS_PER_CALL = 250
_SCHEDULES_PER_CALL = 250
_CALLS_PER_CALL = 500


class TopicUsage:
    """Counts jobs and bytes. Every method raises StoreUnavailable when the store does not respond."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys

    @property
    def shards(self) -> int:
        """The number of shards; each is counted separately."""
        return self._keys.shards

    async def names(self, shard: int, prefixes: Iterable[str]) -> AsyncIterator[list[str]]:
        """The shard's partitions of topics that begin with one of `prefixes`, up to 1000 at a time. Reads no others."""
        key = self._keys.of_shard(shard, "topics")
        for prefix in without_covered(prefixes):
            start, end = (f"[{prefix}", f"({prefix}\x7f") if prefix else ("-", "+")  # 0x7f is in no name
            async for page in self._scripts.pages_by_name(key, start, end, _NAMES_PER_CALL):
                yield page

    async def jobs(self, shard: int, names: Sequence[str]) -> tuple[int, int]:
        """Count the jobs of these partitions of a shard, in any state, with their follow-ups, and the tombstones."""
        jobs = tombstones = 0
        for at in range(0, len(names), _TOPICS_PER_CALL):
            keys = [key for name in names[at : at + _TOPICS_PER_CALL] for key in self._keys.of_kept(shard, name)]
            some_jobs, some_tombstones = await self._scripts.run("count_kept", keys, ())
            jobs += some_jobs
            tombstones += some_tombstones
        return jobs, tombstones

    async def schedules(self, shard: int) -> AsyncIterator[list[tuple[str, int, int]]]:
        """The schedules of a shard, paused and ended ones too, some at a time: topic, how many, and their bytes."""
        key, start = self._keys.of_shard(shard, "schedules"), "-"
        while start:
            args = (start, _SCHEDULES_PER_CALL, SCHEDULE_OVERHEAD_BYTES)
            last, *rows = await self._scripts.run("schedule_usage", (key,), args)
            start = f"({last.decode()}" if last else ""
            yield [(topic.decode(), *rest) for topic, *rest in zip(rows[::3], rows[1::3], rows[2::3], strict=True)]

    async def calls(self, shard: int, key_name: str) -> tuple[int, int]:
        """The calls on many jobs and the tasks that a shard remembers for a key of the API, and their bytes."""
        keys = self._keys.of_caller(shard, key_name)
        calls = used_bytes = 0
        rank: int | None = 0
        while rank is not None:
            args = (rank, _CALLS_PER_CALL, CALL_OVERHEAD_BYTES, CALL_NOTE_BYTES)
            next_rank, some_calls, some_bytes = await self._scripts.run("key_usage", keys, args)
            calls += some_calls
            used_bytes += some_bytes
            rank = next_rank or None
        return calls, used_bytes

    async def record_bytes(self, name: str) -> AsyncIterator[int]:
        """The bytes that the jobs of a partition use, with follow-ups, items, tags, groups, consumers and request ids.

        Yields one number a step; the sum is its usage.
        """
        keys = self._keys.of_topic(name)
        part, cursor = b"pool", b"0"
        while part:
            part, cursor, step = await self._scripts.run("usage", keys, (name, part, cursor, *_OVERHEADS))
            yield step


def without_covered(prefixes: Iterable[str]) -> list[str]:
    """The prefixes that do not begin with another prefix."""
    shortest: list[str] = []
    for prefix in sorted(prefixes):  # a prefix of another one precedes it
        if not shortest or not prefix.startswith(shortest[-1]):
            shortest.append(prefix)
    return shortest
