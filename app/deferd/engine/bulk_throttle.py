"""Bounds the bulk calls (those for many jobs) under way, so that calls for single jobs do not queue up behind them."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from deferd.contract.errors import StoreUnavailable

AT_ONCE = 2
FROM_JOBS = 50
"""A call for more jobs than this is bulk."""
MOST_JOBS = 250
"""Most jobs in one bulk put or finish: about two milliseconds of the store's time."""


class BulkThrottle:
    """Lets at most AT_ONCE bulk calls run in each failure domain; further ones wait, in order of arrival.

    `failure_domain` maps a topic to the part of the store that can fail on its own.
    """

    def __init__(self, failure_domain: Callable[[str], int]) -> None:
        self.failure_domain = failure_domain
        self._domains: defaultdict[int, _DomainThrottle] = defaultdict(_DomainThrottle)

    def slot(self, topic: str, jobs: int = MOST_JOBS) -> AbstractAsyncContextManager[None]:
        """Hold a slot around one call for `jobs` jobs of the topic, if that is bulk; see `_DomainThrottle.slot`."""
        if jobs <= FROM_JOBS:
            return nullcontext()
        return self._domains[self.failure_domain(topic)].slot()


class _DomainThrottle:
    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._timed_out_at = 0.0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot around one bulk call.

        Raises StoreUnavailable when another bulk call timed out while this one waited: its own time is up as well.
        """
        loop = asyncio.get_running_loop()
        arrived_at = loop.time()
        async with self._slots:
            if self._timed_out_at > arrived_at:
                raise StoreUnavailable("the store did not respond in time", timed_out=True)
            try:
                yield
            except StoreUnavailable as exc:
                if exc.timed_out:
                    self._timed_out_at = loop.time()
                raise
