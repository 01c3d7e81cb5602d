"""One request under way: its task, its jobs, and which of them are still held."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from deferd.contract.errors import JobCancelled, JobNotFound, ReceiptStale, StoreUnavailable
from deferd.engine.deliveries import Deliveries
from deferd.engine.record import JobRecord

_LEASE_IS_ENOUGH = 0.8
"""A request that ends within this part of the lease needs no touch; the rest of the lease is for the finish."""
_TOUCHES_PER_LEASE = 3
_RETRY_FIRST_S, _RETRY_MOST_S = 0.25, 5.0


class UnderWay:
    """The requests of one topic in this process, over all versions of its push, so that they share one limit.

    `on_end` is called after each; the newest version sets it.
    """

    def __init__(self) -> None:
        self.deliveries: set[Delivery] = set()
        self.bytes = 0
        self.on_end: Callable[[], None] = lambda: None

    def add(self, delivery: Delivery) -> None:
        """A request begins."""
        self.deliveries.add(delivery)
        self.bytes += delivery.size

    def remove(self, delivery: Delivery) -> None:
        """It has ended."""
        self.deliveries.discard(delivery)
        self.bytes -= delivery.size
        self.on_end()


class Delivery:
    """Jobs that are sent in one request.

    `lease_s` is the shortest of their leases, at `now_ms` of the store. `lease_ends_s` is when it ends if no touch
    succeeds, by the clock of the event loop.
    """

    def __init__(self, jobs: list[JobRecord], lease_s: float, now_ms: int, *, is_probe: bool) -> None:
        self._ahead_ms = now_ms - time.monotonic() * 1000
        self.jobs = jobs
        self.held = {job.id: job for job in jobs}
        self.size = sum(len(job.body) for job in jobs)
        self.lease_s = lease_s
        self.lease_ends_s = time.monotonic() + lease_s
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
        """A job is not held any more. When no held job is left, the request is closed."""
        self.held.pop(job.id, None)
        if not self.held and self.is_sending and self.task is not None:
            self.is_withdrawn = True
            self.task.cancel()


class Leases:
    """Extends the leases of requests under way, and notices jobs that were cancelled or lost."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    async def keep(self, delivery: Delivery) -> None:
        """Touch the jobs again and again, until cancelled.

        When the store is unavailable until their lease has ended, the request is closed: as soon as the store is back,
        another process may send the jobs.
        """
        while delivery.held:
            await asyncio.sleep(delivery.lease_s / _TOUCHES_PER_LEASE)
            began_s = time.monotonic()
            are_touched = [await self.touch(delivery, job) for job in list(delivery.held.values())]
            if all(are_touched):
                delivery.lease_ends_s = began_s + delivery.lease_s
            elif time.monotonic() > delivery.lease_ends_s:
                for job in list(delivery.held.values()):
                    delivery.lose(job)

    async def touch(self, delivery: Delivery, job: JobRecord) -> bool:
        """Touch one job; the delivery loses it if it was cancelled or has another holder. False: the store is away."""
        try:
            await self._deliveries.touch(job.topic, job.id, job.receipt)
        except (JobCancelled, JobNotFound, ReceiptStale):
            delivery.lose(job)
        except StoreUnavailable:
            return False  # the next touch may succeed, and so may the finish
        return True


async def settled(call: Callable[[], Awaitable[object]], until_s: float) -> bool:
    """Make a call that ends a delivery, again and again while the store is unavailable, until the lease has ended.

    `until_s` is the end of the lease, by the clock of the event loop. False: the delivery is not live any more, or the
    store did not respond in time; then the job comes back when its lease ends.
    """
    pause_s = _RETRY_FIRST_S
    while True:
        try:
            await call()
        except (JobCancelled, JobNotFound, ReceiptStale):
            return False
        except StoreUnavailable:
            if time.monotonic() + pause_s > until_s:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_MOST_S)
        else:
            return True
