"""Touches the worker's jobs, so that no lease ends while this process lives and reaches the service.

A job is touched when half of its ttr has passed since it was received or last touched, by this process's own clock: the
clocks of other hosts do not matter. When a touch fails, the handler continues and the touch is retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from deferd.client import AsyncClient
from deferd.client.retry import jittered
from deferd.contract.errors import DeferdError, JobCancelled, JobNotFound, ReceiptStale
from deferd.worker.held_job import HeldJob
from deferd.worker.log import LOG, FailureLog

_CONCURRENT_TOUCHES = 16
_MIN_SCAN_INTERVAL_S = 0.02
_MIN_PAUSE_S = 0.05
_MAX_PAUSE_S = 5.0
_MIN_TIMEOUT_S = 1.0


class LeaseKeeper:
    """Extends the leases of the jobs that were added, until they are dropped.

    `on_over` is called with a job whose delivery is over and the error of the service; the job is dropped already.
    """

    def __init__(self, client: AsyncClient, on_over: Callable[[HeldJob, DeferdError], None]) -> None:
        self._client = client
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._held: set[HeldJob] = set()
        self._touches: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_CONCURRENT_TOUCHES)
        self._failures = FailureLog("extending leases")
        self._scan_at_s = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def add(self, held: HeldJob, *, old: bool) -> None:
        """Keep the lease of a job. With `old` it began at an unknown time, so the job is touched now."""
        held.touch_at_s = self._loop.time() + (0 if old else held.ttr_s / 2)
        self._held.add(held)
        self._scan_by(held.touch_at_s)

    def drop(self, held: HeldJob) -> None:
        """Stop extending the lease of a job; may be called twice."""
        self._held.discard(held)

    async def touch(self, held: HeldJob) -> None:
        """Touch a job now, unless its delivery is over."""
        if held not in self._held:
            return
        began_s = self._loop.time()
        try:
            # A connection that hangs must not cost the lease: the retry uses another one.
            async with asyncio.timeout(max(held.ttr_s / 8, _MIN_TIMEOUT_S)):
                await self._client.touch(held.job)
        except (JobCancelled, JobNotFound, ReceiptStale) as error:
            if held in self._held:
                self._held.discard(held)
                self._on_over(held, error)
        except (DeferdError, TimeoutError) as error:
            self._failures.failed(error)
            pause_s = min(max(held.ttr_s / 8, _MIN_PAUSE_S), _MAX_PAUSE_S)
            held.touch_at_s = self._loop.time() + jittered(pause_s)
        else:
            self._failures.succeeded()
            held.touch_at_s = began_s + held.ttr_s / 2

    async def close(self) -> None:
        """Stop extending leases."""
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
        for touch in self._touches:
            touch.cancel()
        await asyncio.gather(*self._touches, return_exceptions=True)

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
                touch = self._loop.create_task(self._touch_in_slot(held))
                self._touches.add(touch)
                touch.add_done_callback(self._touches.discard)
            else:
                next_s = min(next_s, held.touch_at_s)
        self._timer, self._scan_at_s = None, float("inf")
        if next_s != float("inf"):
            self._scan_by(max(next_s, now_s + _MIN_SCAN_INTERVAL_S))

    async def _touch_in_slot(self, held: HeldJob) -> None:
        try:
            async with self._slots:
                await self.touch(held)
        except Exception as error:  # noqa: BLE001 (a bug here must not end the touches)
            LOG.error("a touch of %s failed", held, extra=held.facts(), exc_info=error)
            held.touch_at_s = self._loop.time() + _MAX_PAUSE_S
        finally:
            held.touching = False
            if held in self._held:
                self._scan_by(held.touch_at_s)
