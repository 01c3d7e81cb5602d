"""Topics whose attempts fail, so that their jobs are tried again and again: by their histories, with the usual error.

What fails and is retried has no state of its own: it is delayed, or ready, as jobs that wait for their first attempt.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from typing import Any, NamedTuple

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import JobState
from deferd.engine.history import TOPICS_OF_SHARD, Outcomes, read_outcomes
from deferd.engine.inspection.normalized_errors import normalized
from deferd.engine.partitions import topic_of
from deferd.engine.record import read_record
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts, WrongType

WINDOW_MS = 900_000
"""How long it is looked back. The first 5 minutes of it do not count unless they are complete."""
_JOBS_LOOKED_AT = 250
_TOPICS_LOOKED_AT = 20
_CALLS_AT_ONCE = 4


class Failing(NamedTuple):
    """How attempts in a topic ended within `window_ms`: jobs that were finished, deliveries that were released."""

    window_ms: int
    finished: int
    released: int


class Retrying(NamedTuple):
    """Delayed jobs of a topic that had an attempt, and their most frequent normalized error, which `top_jobs` have.

    With `is_exact` false there may be more: the jobs that are due first were looked at.
    """

    jobs: int = 0
    is_exact: bool = True
    top_error: str | None = None
    top_jobs: int = 0


class FailingTopics:
    """Reads topics that have failed lately, and the jobs that wait there for another attempt."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys

    async def read(self, shard: int, now_ms: int) -> dict[str, Failing]:
        """By partition, those of a shard in which deliveries were released lately.

        One short call where there are none. Topics without a history of their own are not known. Raises
        StoreUnavailable.
        """
        whole = await read_outcomes(self._scripts, self._keys, shard, [""], WINDOW_MS)
        if not any(released > 0 for _, released in whole.of_topic.values()):
            return {}
        try:
            names = await self._scripts.command(
                "ZRANGE",
                self._keys.of_shard(shard, "history/topics"),
                "+inf",
                now_ms - WINDOW_MS,
                *("BYSCORE", "REV", "LIMIT", 0, TOPICS_OF_SHARD),
            )
        except WrongType:  # the next process that publishes makes it again
            return {}
        changed = [name.decode() for name in names]
        found: Outcomes = await read_outcomes(self._scripts, self._keys, shard, changed, WINDOW_MS)
        return {
            name: Failing(found.span_ms, finished, released)
            for name, (finished, released) in found.of_topic.items()
            if released > 0
        }

    async def retrying(self, topics: Collection[str]) -> dict[str, Retrying]:
        """The jobs that wait for another attempt, of the first 20 topics; those that cannot be read are left out."""
        slots = asyncio.Semaphore(_CALLS_AT_ONCE)

        async def read(topic: str) -> Retrying | None:
            async with slots:
                try:
                    return await self._read_retrying(topic)
                except (StoreUnavailable, WrongType):
                    return None

        some = list(topics)[:_TOPICS_LOOKED_AT]
        found = await asyncio.gather(*map(read, some))
        return {topic: one for topic, one in zip(some, found, strict=True) if one is not None}

    async def _read_retrying(self, topic: str) -> Retrying:
        errors: Counter[str] = Counter()
        jobs, is_exact = 0, True
        partitions = self._keys.partitions.of(topic)
        replies = await asyncio.gather(*map(self._read_partition, partitions))
        for partition, (delayed, looked_at, *rows) in zip(partitions, replies, strict=True):
            is_exact &= looked_at >= delayed
            jobs += len(rows) // 2
            for job_id, raw in zip(rows[::2], rows[1::2], strict=True):
                error = _error_of(topic_of(partition), job_id.decode(), raw)
                if error:
                    errors[error] += 1
        top_error, top_jobs = next(iter(errors.most_common(1)), (None, 0))
        return Retrying(jobs, is_exact, top_error, top_jobs)

    async def _read_partition(self, partition: str) -> list[Any]:
        keys = (self._keys.named(partition, "delay"), self._keys.named(partition, "pool"))
        reply: list[Any] = await self._scripts.run("retrying", keys, (_JOBS_LOOKED_AT,))
        return reply


def _error_of(topic: str, job_id: str, raw: bytes) -> str:
    try:
        return normalized(read_record(topic, job_id, JobState.DELAYED, raw).last_error or "")
    except (ValueError, TypeError, AttributeError, LookupError):  # something other than deferd has written it
        return ""
