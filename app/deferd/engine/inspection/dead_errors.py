"""Dead jobs by topic, reason and error."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import JobState
from deferd.engine.caches import SharedReads
from deferd.engine.inspection.normalized_errors import cut_off, first_line, normalized_line
from deferd.engine.partitions import topic_of
from deferd.engine.record import read_record
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.topic_list import TopicList, raise_if_none_is_readable, select_topics

_TOPICS_PER_CALL = 500
_JOBS_PER_CALL = 250
"""About three milliseconds of the store's time."""
_CALLS_AT_ONCE = 4
_CALLS_OF_TOPIC = 100
"""Jobs with large bodies need more calls. Each topic gets at most this many, each of 1 MiB of records."""
_KEPT_S = 5.0
_KEPT = 2
_LARGEST_KEPT = 32 * 1024 * 1024
_JOB_BYTES = 900
_SAMPLES = 3
_ORIGINALS = 3
UNKNOWN = "unknown"
"""The reason of a job whose record does not say one."""


class _DeadJob(NamedTuple):
    id: str
    reason: str
    error: str | None
    original: str | None
    dead_at_ms: int | None


@dataclass(slots=True)
class DeadGroup:
    """Dead jobs of one topic with the same reason and normalized error; `error` None: they have none.

    `samples` are ids of up to three of them. `first_ms` and `last_ms`: when the first and the last died, None if that
    is not known of any. `of_original` counts the jobs by the first line of their error as it is, cut off like `error`.
    """

    topic: str
    reason: str
    error: str | None
    count: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    samples: list[str] = field(default_factory=list)
    of_original: Counter[str] = field(default_factory=Counter)

    @property
    def originals(self) -> list[tuple[str, int]]:
        """The most frequent first lines of the errors, at most three, and how many jobs have each."""
        return self.of_original.most_common(_ORIGINALS)

    def add(self, job: _DeadJob) -> None:
        self.count += 1
        if job.original is not None:
            self.of_original[job.original] += 1
        if len(self.samples) < _SAMPLES:
            self.samples.append(job.id)
        at_ms = job.dead_at_ms
        if at_ms is not None:
            self.first_ms = at_ms if self.first_ms is None else min(self.first_ms, at_ms)
            self.last_ms = at_ms if self.last_ms is None else max(self.last_ms, at_ms)


@dataclass(slots=True)
class DeadErrors:
    """The groups, the largest first. Of the `dead` jobs in the selected topics, `looked_at` were read.

    `unreadable` are shards of the store that cannot be reached.
    """

    groups: list[DeadGroup]
    dead: int
    looked_at: int
    is_complete: bool
    unreadable: list[int]


@dataclass(slots=True)
class _Read:
    """By partition."""

    jobs: dict[str, list[_DeadJob]] = field(default_factory=dict)
    dead: Counter[str] = field(default_factory=Counter)
    looked_at: Counter[str] = field(default_factory=Counter)
    is_complete: bool = True
    unreadable: set[int] = field(default_factory=set)


class DeadJobs:
    """Reads dead jobs of many topics. A result is cached for 5 s, so that refreshing a page costs little."""

    def __init__(self, scripts: Scripts, keys: Keys, topics: TopicList) -> None:
        self._scripts = scripts
        self._keys = keys
        self._topics = topics
        self._reads: SharedReads[_Read] = SharedReads(
            _KEPT_S,
            _KEPT,
            size=lambda read: _JOB_BYTES * sum(map(len, read.jobs.values())),
            largest=_LARGEST_KEPT,
        )

    async def by_error(
        self,
        wanted: Iterable[str] | None,
        is_visible: Callable[[str], bool],
        *,
        since_ms: int | None = None,
        look_at: int = 5000,
    ) -> DeadErrors:
        """Group the dead jobs of visible topics that match one of `wanted` (None: all topics).

        About `look_at` jobs are read. Each topic gets an equal share; what topics with few dead jobs do not need goes
        to the others. Jobs whose retention ends last are read: without a `dead_retain` of their own, the jobs that died
        last. With `since_ms`, jobs that died before it do not count.

        Raises:
            StoreUnavailable: no shard of the store can be reached.
        """
        key = None if wanted is None else tuple(sorted(wanted))
        read = await self._reads.get((key, look_at), lambda: self._read(key, look_at))
        groups: dict[tuple[str, str, str | None], DeadGroup] = {}
        names = [name for name in read.dead if is_visible(topic_of(name))]
        for name in names:
            topic = topic_of(name)
            for job in read.jobs.get(name, ()):
                if since_ms is not None and job.dead_at_ms is not None and job.dead_at_ms < since_ms:
                    continue
                group = (topic, job.reason, job.error)
                if group not in groups:
                    groups[group] = DeadGroup(*group)
                groups[group].add(job)
        dead, looked_at = sum(read.dead[name] for name in names), sum(read.looked_at[name] for name in names)
        return DeadErrors(
            sorted(groups.values(), key=lambda one: (-one.count, one.topic, one.reason, one.error or "")),
            dead,
            looked_at,
            read.is_complete and all(read.looked_at[name] >= read.dead[name] for name in names),
            sorted(read.unreadable),
        )

    async def ids_with_error(
        self, partition: str, error: str, *, reason: str | None = None, until_ms: int | None = None
    ) -> AsyncIterator[list[str]]:
        """The ids of the dead jobs of a partition with a normalized error, '' for none, page by page.

        Those kept longest come first.
        `reason`: only jobs that are dead for it. `until_ms`: only jobs that died until then, or of which that is not
        known. Raises StoreUnavailable.
        """
        score, last_id, more = b"", b"", 1
        while more:
            page = (await self._pages({partition: _JOBS_PER_CALL}, score, last_id))[partition]
            read = _Read()
            score, last_id, more = _add_page(read, partition, page)
            yield [
                job.id
                for job in read.jobs[partition]
                if (job.error or "") == error
                and reason in (None, job.reason)
                and (until_ms is None or job.dead_at_ms is None or job.dead_at_ms <= until_ms)
            ]

    async def _read(self, wanted: tuple[str, ...] | None, look_at: int) -> _Read:
        selected = await select_topics(self._topics, self._keys, wanted)
        read = _Read(is_complete=selected.is_complete, unreadable=set(selected.unreadable))
        await asyncio.gather(*(self._count(shard, names, read) for shard, names in selected.readable.items()))
        raise_if_none_is_readable(self._keys, read.unreadable)
        shares = _shares(look_at, read.dead)
        slots = asyncio.Semaphore(_CALLS_AT_ONCE)
        of_shard: dict[int, dict[str, int]] = {}
        for name, share in shares.items():
            of_shard.setdefault(self._keys.shard_of(name), {})[name] = share
        chunks = [chunk for of_topics in of_shard.values() for chunk in _chunks(of_topics)]
        await asyncio.gather(*(self._read_topics(chunk, slots, read) for chunk in chunks))
        return read

    async def _count(self, shard: int, names: list[str], read: _Read) -> None:
        for at in range(0, len(names), _TOPICS_PER_CALL):
            some = names[at : at + _TOPICS_PER_CALL]
            try:
                counts = await self._scripts.run("count_members", [self._keys.named(name, "dead") for name in some], ())
            except StoreUnavailable:
                read.unreadable.add(shard)
                return
            read.is_complete &= min(counts) >= 0
            read.dead.update({name: count for name, count in zip(some, counts, strict=True) if count > 0})

    async def _read_topics(self, shares: dict[str, int], slots: asyncio.Semaphore, read: _Read) -> None:
        """Read a first page of each topic in one call, then the others, topic by topic."""
        async with slots:
            try:
                pages = await self._pages(shares, b"", b"")
                for topic, most in shares.items():
                    score, last_id, more = _add_page(read, topic, pages[topic])
                    calls = 1
                    while more and read.looked_at[topic] < most and calls < _CALLS_OF_TOPIC:
                        calls += 1
                        step = {topic: min(most - read.looked_at[topic], _JOBS_PER_CALL)}
                        page = (await self._pages(step, score, last_id))[topic]
                        score, last_id, more = _add_page(read, topic, page)
            except StoreUnavailable:
                read.unreadable.add(self._keys.shard_of(next(iter(shares))))

    async def _pages(self, shares: dict[str, int], score: bytes, last_id: bytes) -> dict[str, list[Any]]:
        keys = [key for topic in shares for key in (self._keys.named(topic, "dead"), self._keys.named(topic, "pool"))]
        most = [min(share, _JOBS_PER_CALL) for share in shares.values()]
        return dict(zip(shares, await self._scripts.run("dead", keys, (score, last_id, *most)), strict=True))


def _shares(look_at: int, dead: Counter[str]) -> dict[str, int]:
    """How many jobs to read of each partition: an equal share for each topic, which its partitions share equally."""
    of_topic: dict[str, Counter[str]] = {}
    for partition, jobs in dead.items():
        of_topic.setdefault(topic_of(partition), Counter())[partition] = jobs
    shares = equal_shares(look_at, Counter({topic: needs.total() for topic, needs in of_topic.items()}))
    return {
        partition: share
        for topic, needs in of_topic.items()
        for partition, share in equal_shares(shares[topic], needs).items()
    }


def _chunks(shares: dict[str, int]) -> Iterator[dict[str, int]]:
    """The topics, in groups whose shares fit into one call."""
    chunk: dict[str, int] = {}
    size = 0
    for topic, share in shares.items():
        if chunk and size + share > _JOBS_PER_CALL:
            yield chunk
            chunk, size = {}, 0
        chunk[topic] = share
        size += share
    if chunk:
        yield chunk


def _add_page(read: _Read, topic: str, page: list[Any]) -> tuple[bytes, bytes, int]:
    """Add what was read of a topic; returns where it ended, and whether there is more."""
    more, looked, score, last_id, *rows = page
    read.is_complete &= looked >= 0
    read.looked_at[topic] += max(looked, 0)
    jobs = read.jobs.setdefault(topic, [])
    jobs += (_read_job(topic, job_id.decode(), raw) for job_id, raw in zip(rows[::2], rows[1::2], strict=True))
    return score, last_id, more


def _read_job(topic: str, job_id: str, raw: bytes) -> _DeadJob:
    try:
        record = read_record(topic, job_id, JobState.DEAD, raw)
        line = first_line(record.last_error or "")
        original = cut_off(line) or None
        return _DeadJob(job_id, record.reason or UNKNOWN, normalized_line(line) or None, original, record.dead_at_ms)
    except (ValueError, TypeError, AttributeError, LookupError):  # something other than deferd has written it
        return _DeadJob(job_id, UNKNOWN, None, None, None)


def equal_shares(whole: int, needs: Counter[str]) -> dict[str, int]:
    """Share `whole` equally, at least 1 each. What one does not need goes to the others."""
    shares: dict[str, int] = {}
    in_order = sorted(needs.items(), key=lambda need: need[1])
    for done, (name, need) in enumerate(in_order):
        shares[name] = max(min(need, whole // (len(in_order) - done)), 1)
        whole -= shares[name]
    return shares
