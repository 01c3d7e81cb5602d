"""One request under way: its jobs, its task, and which of its jobs are still held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from deferd.contract.errors import JobCancelled, JobNotFound, ReceiptStale, StoreUnavailable
from deferd.engine.queue import JobQueue
from deferd.engine.record import JobRecord

_LEASE_IS_ENOUGH = 0.8
"""A request that ends within this part of the lease needs no touch: the rest is for the finish."""
_TOUCHES_PER_LEASE = 3
_ATTEMPTS = 4
_RETRY_S = 0.25


class Delivery:
    """Jobs that are sent in one request. `lease_s` is the shortest lease that they have, at `now_ms` of the store."""

    __slots__ = ("_ahead_ms", "held", "is_probe", "is_sending", "is_withdrawn", "jobs", "lease_s", "task")

    def __init__(self, jobs: list[JobRecord], lease_s: float, now_ms: int, *, is_probe: bool) -> None:
        self._ahead_ms = now_ms - time.monotonic() * 1000
        self.jobs = jobs
        self.held = {job.id: job for job in jobs}
        self.lease_s = lease_s
        self.is_probe = is_probe
        self.is_sending = True
        self.is_withdrawn = False
        self.task: asyncio.Task[None] | None = None

    def now_s(self) -> float:
        """The time of the store's clock, in seconds since the epoch."""
        return (time.monotonic() * 1000 + self._ahead_ms) / 1000

    def needs_touch(self, timeout_s: float) -> bool:
        """Whether the request may take longer than the lease."""
        return timeout_s > self.lease_s * _LEASE_IS_ENOUGH

    def lose(self, job: JobRecord) -> None:
        """A job is not held any more. When none is left, the request is closed."""
        self.held.pop(job.id, None)
        if not self.held and self.is_sending and self.task is not None:
            self.is_withdrawn = True
            self.task.cancel()


class Leases:
    """Extends the leases of requests under way, and notices jobs that were cancelled or lost."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue

    async def keep(self, delivery: Delivery) -> None:
        """Touch the jobs again and again, until cancelled."""
        while delivery.held:
            await asyncio.sleep(delivery.lease_s / _TOUCHES_PER_LEASE)
            for job in list(delivery.held.values()):
                await self.touch(delivery, job)

    async def touch(self, delivery: Delivery, job: JobRecord) -> None:
        """Touch one job; the delivery loses it if it was cancelled or has another holder."""
        try:
            await self._queue.touch(job.topic, job.id, job.receipt)
        except (JobCancelled, JobNotFound, ReceiptStale):
            delivery.lose(job)
        except StoreUnavailable:
            pass  # the next touch may succeed, and so may the finish


async def settled(call: Callable[[], Awaitable[object]]) -> bool:
    """Make a call that ends a delivery, some times while the store is unavailable.

    False: the delivery is not live any more, or the store did not respond; then the job comes back when its lease ends.
    """
    for attempt in range(_ATTEMPTS):
        try:
            await call()
        except (JobCancelled, JobNotFound, ReceiptStale):
            return False
        except StoreUnavailable:
            await asyncio.sleep(_RETRY_S * 2**attempt)
        else:
            return True
    return False
