"""Batches of calls on jobs of one topic: in steps, each job to its partition."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from operator import itemgetter
from typing import TypeVar

from deferd.contract.errors import StoreUnavailable
from deferd.engine.bulk_throttle import BulkThrottle
from deferd.engine.partition_store import PartitionStore
from deferd.engine.script_arguments import Args

Item = TypeVar("Item")
Outcome = TypeVar("Outcome")


async def send_batch(
    topic: str,
    items: Sequence[Item],
    args_of: Callable[[Item], Args],
    send: Callable[[str, list[Args]], Awaitable[Sequence[Outcome]]],
    *,
    most: int,
    partitions: PartitionStore,
    throttle: BulkThrottle,
) -> list[Outcome | StoreUnavailable]:
    """What `send(partition, jobs)` returns for each item, in order; it is called with at most `most` jobs.

    `args_of` gives the arguments of an item, of which the first is the id. When the store fails in the middle, the
    items that it did not confirm have its error as their outcome.

    Raises:
        StoreUnavailable: the store confirmed none of them.
    """

    async def send_in_slot(partition: str, jobs: list[Args]) -> Sequence[Outcome]:
        async with throttle.slot(partition, len(items)):
            return await send(partition, jobs)

    outcomes: list[Outcome | StoreUnavailable] = []
    for start in range(0, len(items), most):
        jobs = [args_of(item) for item in items[start : start + most]]
        try:
            outcomes += await partitions.send_by_home(topic, jobs, itemgetter(0), send_in_slot)
        except StoreUnavailable as exc:
            if not outcomes:
                raise
            outcomes.append(exc)
        error = next((outcome for outcome in outcomes[start:] if isinstance(outcome, StoreUnavailable)), None)
        if error is not None:  # wait only once for a shard that is away
            return outcomes + [error] * (len(items) - len(outcomes))
    return outcomes
