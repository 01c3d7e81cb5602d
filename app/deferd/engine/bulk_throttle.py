"""Turns for bulk calls, those for many jobs, so that a call for one job finds no long line at the store."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from deferd.contract.errors import StoreUnavailable

AT_ONCE = 2
FROM_JOBS = 50
"""A call for more jobs than this is bulk."""
MOST_JOBS = 250
"""Most jobs that a bulk put or finish takes in one call: about two milliseconds of the store's time."""


class BulkThrottle:
    """At most AT_ONCE bulk calls are on their way to a part of the store; further ones wait for their turn, in order.

    `part_of` tells a topic's part: one that can fail while the others work.
    """

    def __init__(self, part_of: Callable[[str], int]) -> None:
        self.part_of = part_of
        self._parts: defaultdict[int, _Turns] = defaultdict(_Turns)

    def turn(self, topic: str) -> AbstractAsyncContextManager[None]:
        """Around one bulk call for the topic; see `_Turns.turn`."""
        return self._parts[self.part_of(topic)].turn()


class _Turns:
    def __init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)
        self._timed_out_at = 0.0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Around one bulk call.

        Raises StoreUnavailable when the store left another bulk call without an answer meanwhile: who waited behind
        that has waited for as long as a call may take.
        """
        loop = asyncio.get_running_loop()
        came_at = loop.time()
        async with self._places:
            if self._timed_out_at > came_at:
                raise StoreUnavailable("the store did not answer in time", timed_out=True)
            try:
                yield
            except StoreUnavailable as exc:
                if exc.timed_out:
                    self._timed_out_at = loop.time()
                raise
