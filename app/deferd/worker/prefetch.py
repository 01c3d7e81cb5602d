"""How many jobs a worker fetches ahead of its handlers."""

from __future__ import annotations

import asyncio

AHEAD_S = 0.25
"""How far ahead of their start jobs are fetched. If a job has waited longer, its lease is confirmed before it
starts."""
_MEAN_WEIGHT = 0.1


class Prefetch:
    """Limits prefetched jobs to those that will start within 0.25 s: others could start earlier at another worker.

    Judges by a moving average of the run times of handlers.
    """

    def __init__(self, concurrency: int, limit: int) -> None:
        self._concurrency = concurrency
        self._limit = limit
        self._mean_run_s: float | None = None
        self._last_end_s = float("-inf")
        self._loop = asyncio.get_running_loop()

    def handler_ended(self, began_s: float) -> float:
        """Count a handler that began at this time of the loop and ends now; returns how long it ran."""
        self._last_end_s = self._loop.time()
        run_s = self._last_end_s - began_s
        if self._mean_run_s is None:
            self._mean_run_s = run_s
        else:
            self._mean_run_s += _MEAN_WEIGHT * (run_s - self._mean_run_s)
        return run_s

    def count(self, busy: int) -> int:
        """How many jobs may wait in the worker while `busy` handlers run."""
        stuck = busy >= self._concurrency and self._loop.time() - self._last_end_s > AHEAD_S
        if self._mean_run_s is None or stuck:
            return 0
        return int(min(self._limit, self._concurrency * AHEAD_S / max(self._mean_run_s, 1e-6)))
