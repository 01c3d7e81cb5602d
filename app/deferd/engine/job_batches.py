"""Batches of calls on jobs of one topic: in steps, each job to its partition, and few of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from operator import itemgetter
from typing import Any, TypeVar

from deferd.contract.errors import StoreUnavailable
from deferd.engine.partition_store import PartitionStore
from deferd.engine.script_arguments import Args

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
SlotAt = Callable[[str], AbstractAsyncContextManager[None]]
"""Makes what is held around one call of the store for a batch, at a partition."""


async def send_batch(
    topic: str,
    items: Sequence[Item],
    args_of: Callable[[Item], Args],
    send: Callable[[str, list[Args], SlotAt], Awaitable[Sequence[Outcome]]],
    *,
    most: int,
    partitions: PartitionStore,
    throttle: BulkThrottle,
) -> list[Outcome | StoreUnavailable]:
    """What `send(partition, jobs, slot)` returns for each item, in order; it is called with at most `most` jobs.

    It holds a `slot` around each call of the store, but not while it waits for the shelf. `args_of` gives the arguments
    of an item, of which the first is the id. When the store fails in the middle, the items that it did not confirm have
    its error as their outcome.

    Raises:
        StoreUnavailable: the store confirmed none of them.
    """

    def slot(partition: str) -> AbstractAsyncContextManager[None]:
        return throttle.slot(partition, len(items))

    async def send_step(partition: str, jobs: list[Args]) -> Sequence[Outcome]:
        return await send(partition, jobs, slot)

    outcomes: list[Outcome | StoreUnavailable] = []
    for start in range(0, len(items), most):
        jobs = [args_of(item) for item in items[start : start + most]]
        try:
            outcomes += await partitions.send_by_home(topic, jobs, itemgetter(0), send_step)
        except StoreUnavailable as exc:
            if not outcomes:
                raise
            outcomes.append(exc)
        error = next((outcome for outcome in outcomes[start:] if isinstance(outcome, StoreUnavailable)), None)
        if error is not None:  # wait only once for a shard that is away
            return outcomes + [error] * (len(items) - len(outcomes))
    return outcomes


async def all_results(works: Iterable[Awaitable[Any]]) -> list[Any]:
    """The results of all; waits for all, then raises the first error."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


AT_ONCE = 2
SMALL_AT_ONCE = 8
"""Together they are about as large as the bulk calls."""
FROM_JOBS = 50
"""A call for more jobs than this is bulk."""
MOST_JOBS = 250
"""Most jobs in one bulk put or finish: about two milliseconds of the store's time."""


class BulkThrottle:
    """Lets at most AT_ONCE bulk calls and SMALL_AT_ONCE smaller batches run in each failure domain.

    So calls for single jobs do not queue up behind them.
    Further ones wait, in order of arrival; smaller batches do not wait for bulk calls. `failure_domain` maps a topic to
    the part of the store that can fail on its own.
    """

    def __init__(self, failure_domain: Callable[[str], int]) -> None:
        self.failure_domain = failure_domain
        self._throttles: dict[tuple[int, int], _Throttle] = {}

    def slot(self, topic: str, jobs: int = MOST_JOBS) -> AbstractAsyncContextManager[None]:
        """Hold a slot around one call of a batch of `jobs` jobs of the topic; see `_Throttle.slot`."""
        key = self.failure_domain(topic), AT_ONCE if jobs > FROM_JOBS else SMALL_AT_ONCE
        throttle = self._throttles.get(key)
        if throttle is None:
            throttle = self._throttles[key] = _Throttle(key[1])
        return throttle.slot()


class _Throttle:
    def __init__(self, at_once: int) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._timed_out_at = 0.0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a slot around one call.

        Raises StoreUnavailable when another call timed out while this one waited: its own time is up as well.
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
