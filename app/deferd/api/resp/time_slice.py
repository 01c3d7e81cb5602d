"""Keeps long work in the event loop from delaying all others."""

from __future__ import annotations

import asyncio
import time

SLICE_S = 0.005


class TimeSlice:
    """The time since the event loop last had a turn, as far as this work has given it one."""

    def __init__(self) -> None:
        self._began_s = time.perf_counter()

    async def end_if_over(self) -> None:
        """Let others run after 5 ms."""
        if time.perf_counter() - self._began_s >= SLICE_S:
            await self.end()

    async def end(self) -> None:
        """Let others run."""
        await asyncio.sleep(0)
        self._began_s = time.perf_counter()
