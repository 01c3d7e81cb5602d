"""Touches the jobs in hand, so that no lease ends while this process lives and reaches the service.

A job is touched when half of its ttr is over, counted from when it came or from its last touch: by this process's own
clock, so no clock of another host matters. When a touch fails the handler goes on and the touch is tried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from deferd.client import AsyncClient
from deferd.contract.errors import DeferdError, JobCancelled, JobNotFound, ReceiptStale
from deferd.worker.held_job import Held
from deferd.worker.transient_errors import LOG, Trouble, spread

_AT_ONCE = 16
_SCAN_PAUSE_S = 0.02
_SHORTEST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0
_SHORTEST_TIMEOUT_S = 1.0


class LeaseKeeper:
    """Keeps the leases of what was added until it is dropped.

    `on_over` is called with a job whose delivery is over, as the service said with that error; it is dropped already.
    """

    def __init__(self, client: AsyncClient, on_over: Callable[[Held, DeferdError], None]) -> None:
        self._client = client
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._held: set[Held] = set()
        self._touches: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._trouble = Trouble("extending leases")
        self._scan_at_s = float("inf")
        self._timer: asyncio.TimerHandle | None = None

    def add(self, held: Held, *, old: bool) -> None:
        """Keep a job that has just come. `old`: how long ago its lease began is not known, so it is touched now."""
        held.touch_at_s = self._loop.time() + (0 if old else held.ttr_s / 2)
        self._held.add(held)
        self._scan_by(held.touch_at_s)

    def drop(self, held: Held) -> None:
        """The delivery is over; nothing when it was dropped before."""
        self._held.discard(held)

    async def touch(self, held: Held) -> None:
        """Touch a job now, unless its delivery is over."""
        if held not in self._held:
            return
        began_s = self._loop.time()
        try:
            # A connection that hangs must not cost the lease, there may be a better one.
            async with asyncio.timeout(max(held.ttr_s / 8, _SHORTEST_TIMEOUT_S)):
                await self._client.touch(held.job)
        except (JobCancelled, JobNotFound, ReceiptStale) as error:
            if held in self._held:
                self._held.discard(held)
                self._on_over(held, error)
        except (DeferdError, TimeoutError) as error:
            self._trouble.met(error)
            pause_s = min(max(held.ttr_s / 8, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
            held.touch_at_s = self._loop.time() + spread(pause_s)
        else:
            self._trouble.over()
            held.touch_at_s = began_s + held.ttr_s / 2

    async def close(self) -> None:
        """Touch no more."""
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
                touch = self._loop.create_task(self._touch_in_turn(held))
                self._touches.add(touch)
                touch.add_done_callback(self._touches.discard)
            else:
                next_s = min(next_s, held.touch_at_s)
        self._timer, self._scan_at_s = None, float("inf")
        if next_s != float("inf"):
            self._scan_by(max(next_s, now_s + _SCAN_PAUSE_S))

    async def _touch_in_turn(self, held: Held) -> None:
        try:
            async with self._turns:
                await self.touch(held)
        except Exception as error:  # noqa: BLE001 (whatever it is, the next touch is to come)
            LOG.error("a touch of %s failed", held, extra=held.facts(), exc_info=error)
            held.touch_at_s = self._loop.time() + _LONGEST_PAUSE_S
        finally:
            held.touching = False
            if held in self._held:
                self._scan_by(held.touch_at_s)
