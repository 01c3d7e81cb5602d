"""Calls on many deliveries at once: which of them have ended, and the return of jobs that nobody worked on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import HeldJob
from deferd.contract.responses.job_calls import FinishResult
from deferd.engine import metrics
from deferd.engine.bulk_throttle import MOST_JOBS, BulkThrottle
from deferd.engine.call_results import NOT_FOUND, OK, finish_results
from deferd.engine.partition_store import PartitionStore
from deferd.engine.record import JobRecord, Receipt
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

_Delivery = tuple[str, int, int]
"""The id, the nonce and the attempt."""
_Send = Callable[[str, Sequence[_Delivery]], Awaitable[list[int]]]


class HeldJobs:
    """Calls on deliveries that one consumer holds."""

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        labels: metrics.TopicLabels,
        partitions: PartitionStore,
        throttle: BulkThrottle,
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._labels = labels
        self._partitions = partitions
        self._throttle = throttle

    async def check_many(self, topic: str, jobs: Sequence[HeldJob]) -> list[FinishResult]:
        """Which of 1 to 1000 deliveries of one topic have ended. Changes nothing, and costs the store little.

        A delivery counts as held even if its lease has ended and another consumer holds the job; only a touch tells.

        Raises:
            StoreUnavailable: the store confirmed none of them; else those that it did not confirm have status 503.
        """
        return await self._send(topic, jobs, self._check)

    async def return_many(self, topic: str, jobs: Sequence[HeldJob]) -> list[FinishResult]:
        """Return 1 to 1000 deliveries of one topic to the head of the queue in their order; no attempt is counted.

        Raises:
            StoreUnavailable: the store confirmed none of them; else those that it did not confirm have status 503.
        """
        return await self._send(topic, jobs, self._return)

    async def return_popped(self, deliveries: Iterable[JobRecord]) -> int:
        """As `return_many`, for deliveries of any topics that never reached their consumer.

        Returns how many were returned. Deliveries that are no longer live stay as they are, and those whose request was
        repeated: another consumer may hold them.
        """
        of_topic: dict[str, list[JobRecord]] = {}
        for job in deliveries:
            for home in self._partitions.known.homes(job.topic, job.id):  # one of which has the delivery
                of_topic.setdefault(home, []).append(job)
        returned, error = 0, None
        for topic, jobs in of_topic.items():
            try:
                codes = await self._prepend(
                    topic, [(job.id, job.nonce, job.attempts, job.request_id or "") for job in jobs]
                )
            except StoreUnavailable as exc:  # those of other shards are returned
                error = exc
                continue
            returned += codes.count(OK)
        if error is not None:
            raise error
        return returned

    async def _send(self, topic: str, jobs: Sequence[HeldJob], send: _Send) -> list[FinishResult]:
        async def find(partition: str, items: Sequence[_Delivery]) -> list[int | StoreUnavailable]:
            return await self._partitions.find(partition, items, itemgetter(0), send, NOT_FOUND.__eq__)

        items: list[_Delivery] = [(job.id, *Receipt.of(job.receipt)) for job in jobs]
        return finish_results(jobs, await self._partitions.send_by_home(topic, items, itemgetter(0), find))

    async def _check(self, partition: str, items: Sequence[_Delivery]) -> list[int]:
        args: tuple[Any, ...] = (partition, *chain.from_iterable(items))
        codes: list[int] = await self._scripts.run("check", self._keys.of_topic(partition), args)
        return codes

    async def _return(self, partition: str, items: Sequence[_Delivery]) -> list[int]:
        codes: list[int] = []
        for end in range(len(items), 0, -MOST_JOBS):  # the last ones first: each call puts its jobs before all others
            some = items[max(end - MOST_JOBS, 0) : end]
            async with self._throttle.slot(partition, len(items)):
                codes = await self._prepend(partition, [(*item, "") for item in some]) + codes
        return codes

    async def _prepend(self, partition: str, deliveries: Sequence[tuple[Any, ...]]) -> list[int]:
        args: tuple[Any, ...] = (partition, *chain.from_iterable(deliveries))
        codes: list[int] = await self._scripts.run("return", self._keys.of_topic(partition), args)
        metrics.RETURNS.labels(self._labels.label(partition)).inc(codes.count(OK))
        self._labels.counted.of(partition)
        return codes
