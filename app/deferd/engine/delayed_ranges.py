"""Goes through the delayed jobs of a topic in their order, for calls on many jobs: also through those on the shelf.

It goes range by range. Those jobs of a range that are on the shelf are loaded, or for a count only read, and then the
caller does its steps on the range in the store. No job leaves the store meanwhile: so none is missed, and one that
others load is met in its place. Without a shelf there is one range, of all jobs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from time import monotonic
from typing import Any, NamedTuple

from deferd.contract.errors import StoreUnavailable
from deferd.engine.shelf import KEPT_S, Job, ShelfCalls, Wanted

LOADED_AT_ONCE = 125
"""Jobs of a range that are loaded: four milliseconds of the store's time."""
_READ_AT_ONCE = 1000


class Range(NamedTuple):
    """`options` are those of a script for its steps on the range, see lua/lib/paging.lua; `on_shelf` are the jobs of
    the range that match and were not loaded.
    """

    options: dict[str, Any]
    on_shelf: list[Job]


class DelayedRanges:
    """The ranges of a topic, which is a partition; `calls` are those of the shelf, if there is one.

    `wanted` leaves jobs on the shelf that the call does not act on. `loads` is false for a count. `slot` is held while
    jobs are loaded.
    """

    def __init__(
        self,
        calls: ShelfCalls | None,
        topic: str,
        wanted: Wanted,
        slot: Callable[[str], AbstractAsyncContextManager[None]],
        *,
        last_first: bool = False,
        loads: bool = True,
    ) -> None:
        self._calls = calls
        self._topic = topic
        self._wanted = wanted
        self._slot = slot
        self._last_first = last_first
        self._loads = loads
        self._kept_at_s: float | None = None

    async def __aiter__(self) -> AsyncIterator[Range]:
        if self._calls is None:
            yield Range({}, [])
            return
        most = LOADED_AT_ONCE if self._loads else _READ_AT_ONCE
        position, has_more = None, True
        while has_more:
            async with self.kept():
                page = await self._calls.page(self._topic, self._wanted, most, position, reverse=self._last_first)
                if self._loads and page.jobs:
                    async with self._slot(self._topic):
                        await self._calls.load(self._topic, [job.id for job in page.jobs])
            position, has_more = page.end, page.has_more
            # The last one has no end: it is also that of the jobs that only the store has.
            options = {"to_score": str(position[0]), "to_id": position[1]} if position and has_more else {}
            yield Range(options, [] if self._loads else page.jobs)

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """No job of the topic leaves the store between the first such block and the end of this one.

        Raises StoreUnavailable, also at the end of a block that took so long that jobs may have left.
        """
        if self._calls is None:
            yield
            return
        now_s = monotonic()
        if self._kept_at_s is None or now_s - self._kept_at_s > KEPT_S / 2:
            await self._calls.keep(self._topic)
            self._check()
            self._kept_at_s = now_s
        yield
        self._check()

    def _check(self) -> None:
        if self._kept_at_s is not None and monotonic() - self._kept_at_s > KEPT_S:
            raise StoreUnavailable("the steps of the call took so long that jobs may have left the store")
