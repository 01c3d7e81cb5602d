"""Touches the worker's jobs, so that no lease ends while this process lives and reaches the service.

A job is touched when half of its ttr has passed since it was received or last touched, by this process's own clock: the
clocks of other hosts do not matter. When a touch fails, the handler continues and the touch is retried.

Twice a second one call for each topic asks which of its jobs were cancelled. Jobs that are done sooner are never asked
about, and a worker without jobs asks nothing. Such a call is not retried: the next one asks the same.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from deferd.client import AsyncClient
from deferd.client.sender import jittered
from deferd.contract.errors import DeferdError, JobCancelled, JobNotFound, ReceiptStale
from deferd.contract.limits import BATCH_MAX
from deferd.worker.held_job import HeldJob
from deferd.worker.log import LOG, FailureLog

_CONCURRENT_TOUCHES = 16
_CONCURRENT_CHECKS = 16
_MIN_SCAN_INTERVAL_S = 0.02
_MIN_PAUSE_S = 0.05
_MAX_PAUSE_S = 5.0
_MIN_TIMEOUT_S = 1.0
_CHECK_INTERVAL_S = 0.5
_CHECK_TIMEOUT_S = 5.0
_OVER = {error.code: error for error in (JobCancelled, JobNotFound, ReceiptStale)}


class LeaseKeeper:
    """Extends the leases of the jobs that were added, until they are dropped.

    `on_over` is called with a job whose delivery is over and the error of the service; the job is dropped already.
    """

    def __init__(self, client: AsyncClient, on_over: Callable[[HeldJob, DeferdError], None]) -> None:
        self._client = client
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._held: set[HeldJob] = set()
        self._calls: set[asyncio.Task[None]] = set()
        self._checking: set[str] = set()
        self._check_timer: asyncio.TimerHandle | None = None
        self._touch_slots = asyncio.Semaphore(_CONCURRENT_TOUCHES)
        self._check_slots = asyncio.Semaphore(_CONCURRENT_CHECKS)  # checks that hang must not delay touches
        self._failures = FailureLog("extending leases")
        self._scan_at_s = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def add(self, held: HeldJob, *, old: bool) -> None:
        """Keep the lease of a job. With `old` it began at an unknown time, so the job is touched now."""
        held.touch_at_s = self._loop.time() + (0 if old else held.ttr_s / 2)
        self._held.add(held)
        self._scan_by(held.touch_at_s)
        if self._check_timer is None:
            self._check_timer = self._loop.call_later(_CHECK_INTERVAL_S, self._check)

    def drop(self, held: HeldJob) -> None:
        """Stop extending the lease of a job; may be called twice."""
        self._held.discard(held)

    async def touch(self, held: HeldJob, progress: Any = None) -> bool:
        """Touch a job now, unless its delivery is over. Returns whether the service has confirmed that it is live.

        `progress` is reported with it, unless it is None.
        """
        if held not in self._held:
            return False
        began_s = self._loop.time()
        try:
            # A connection that hangs must not cost the lease: the retry uses another one.
            async with asyncio.timeout(max(held.ttr_s / 8, _MIN_TIMEOUT_S)):
                await self._client.touch(held.job, progress=progress)
        except (JobCancelled, JobNotFound, ReceiptStale) as error:
            self._end(held, error)
            return False
        except (DeferdError, TimeoutError) as error:
            self._failures.failed(error)
            pause_s = min(max(held.ttr_s / 8, _MIN_PAUSE_S), _MAX_PAUSE_S)
            held.touch_at_s = self._loop.time() + jittered(pause_s)
            return False
        self._failures.succeeded()
        held.confirmed_s = began_s
        held.touch_at_s = began_s + held.ttr_s / 2
        return True

    async def confirm(self, jobs: Sequence[HeldJob]) -> set[HeldJob]:
        """Those of the jobs that the service confirms now, by one call for each topic. It extends no lease.

        A lease that is due for a touch may have ended, and another consumer may have its job: it is touched.
        """
        now_s = self._loop.time()
        live = {held for held in jobs if held.touch_at_s > now_s}
        due = [held for held in jobs if held not in live]
        await asyncio.gather(
            *(self._keep_live(topic, some, live) for topic, some in _by_topic(live).items()),
            *(self._touch_in_slot(held) for held in due),
        )
        return live | {held for held in due if held.confirmed_s >= now_s}

    async def _keep_live(self, topic: str, jobs: Sequence[HeldJob], live: set[HeldJob]) -> None:
        """Remove from `live` the jobs that the service does not confirm."""
        confirmed = await self._ask(topic, jobs)
        live.difference_update(held for held in jobs if held not in confirmed)

    async def close(self) -> None:
        """Stop extending leases."""
        self._held.clear()
        for timer in (self._timer, self._check_timer):
            if timer is not None:
                timer.cancel()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    def _end(self, held: HeldJob, error: DeferdError) -> None:
        if held in self._held:
            self._held.discard(held)
            self._on_over(held, error)

    def _spawn(self, call: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _scan_by(self, at_s: float) -> None:
        if at_s < self._scan_at_s:
            if self._timer is not None:
                self._timer.cancel()
            self._scan_at_s = at_s
            self._timer = self._loop.call_at(at_s, self._scan)

    def _scan(self) -> None:
        now_s = self._loop.time()
        next_s = float("inf")
        for held in self._held:
            if held.touching:
                continue
            if held.touch_at_s <= now_s:
                held.touching = True
                self._spawn(self._touch_in_slot(held))
            else:
                next_s = min(next_s, held.touch_at_s)
        self._timer, self._scan_at_s = None, float("inf")
        if next_s != float("inf"):
            self._scan_by(max(next_s, now_s + _MIN_SCAN_INTERVAL_S))

    async def _touch_in_slot(self, held: HeldJob) -> None:
        try:
            async with self._touch_slots:
                await self.touch(held)
        except Exception as error:  # noqa: BLE001 (a bug here must not end the touches)
            LOG.error("a touch of %s failed", held, extra=held.facts(), exc_info=error)
            held.touch_at_s = self._loop.time() + _MAX_PAUSE_S
        finally:
            held.touching = False
            if held in self._held:
                self._scan_by(held.touch_at_s)

    def _check(self) -> None:
        """Ask about the jobs that have been held for a moment, and again later while there are any."""
        self._check_timer = None
        if not self._held:
            return
        self._check_timer = self._loop.call_later(_CHECK_INTERVAL_S, self._check)
        received_by_s = self._loop.time() - _CHECK_INTERVAL_S / 2
        held = [held for held in self._held if held.received_s <= received_by_s]
        for topic, jobs in _by_topic(held).items():
            if topic not in self._checking:
                self._checking.add(topic)
                self._spawn(self._check_topic(topic, jobs))

    async def _check_topic(self, topic: str, jobs: Sequence[HeldJob]) -> None:
        try:
            await self._ask(topic, jobs)
        finally:
            self._checking.discard(topic)

    async def _ask(self, topic: str, jobs: Sequence[HeldJob]) -> set[HeldJob]:
        """Ask about jobs of a topic, and end those that are over. Returns those that the service holds to be live."""
        live: set[HeldJob] = set()
        for start in range(0, len(jobs), BATCH_MAX):
            some = jobs[start : start + BATCH_MAX]
            with contextlib.suppress(DeferdError, TimeoutError):
                async with self._check_slots, asyncio.timeout(_CHECK_TIMEOUT_S):
                    results = await self._client.check_many(topic, [held.job for held in some])
                for held, result in zip(some, results, strict=False):
                    if result.code is None:
                        live.add(held)
                    elif (over := _OVER.get(result.code)) is not None:
                        self._end(held, over(topic, held.job.id))
        return live


def _by_topic(jobs: Iterable[HeldJob]) -> dict[str, list[HeldJob]]:
    of_topic: dict[str, list[HeldJob]] = {}
    for held in jobs:
        of_topic.setdefault(held.job.topic, []).append(held)
    return of_topic
