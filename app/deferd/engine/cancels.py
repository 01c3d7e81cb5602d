"""Cancels jobs: single ones, which share store calls by group commit, and batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

from deferd.contract.errors import JobNotFound, JobReserved, StoreUnavailable
from deferd.contract.model import CancelItem, JobState
from deferd.contract.operations.jobs import CancelResult
from deferd.engine import metrics
from deferd.engine.deliveries import NOT_FOUND
from deferd.engine.group_commit import GroupCommit, OnResult
from deferd.engine.job_batches import BulkThrottle, SlotAt, send_batch
from deferd.engine.partition_store import PartitionStore
from deferd.engine.record import STATES_BY_NAME
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import Args, size
from deferd.engine.scripts import DurableCalls, Scripts, Sending
from deferd.store.durability_levels import FSYNC, level_named, name_of

_CANCELS_PER_CALL = 100


class Cancels:
    """Single cancels, which share store calls by group commit, and batches, which use `throttle`."""

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        labels: metrics.TopicLabels,
        throttle: BulkThrottle,
        *,
        partitions: PartitionStore,
        durable_calls: DurableCalls,
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._labels = labels
        self._durable_calls = durable_calls
        self._throttle = throttle
        self._partitions = partitions
        self._home = partitions.known.home
        self._commit: GroupCommit[Args, JobState | int] = partitions.commit(
            self._send, self._cancel, _is_missing, size=size, most_items=_CANCELS_PER_CALL
        )
        self._durable_commits: dict[str, GroupCommit[Args, tuple[JobState | int, str]]] = {}

    async def cancel(
        self, topic: str, job_id: str, *, refuse_reserved: bool = False, keep_follow_up: bool = False
    ) -> JobState:
        """Cancel a job in any state and return the state it was in; after this it is never handed out.

        Later calls of a reserved job's holder raise JobCancelled. The job's follow-up is cancelled too, or, with
        `keep_follow_up`, takes its place; not before the holder's lease would have ended.

        Raises:
            JobNotFound: there is no such job.
            JobReserved: a consumer holds it and `refuse_reserved` is set.
        """
        args = (job_id, _flags(refuse_reserved=refuse_reserved, keep_follow_up=keep_follow_up))
        result = await self._commit.submit(self._home(topic, job_id), args)
        return state_when_cancelled(result, topic, job_id)

    async def cancel_durably(
        self,
        topic: str,
        job_id: str,
        durability: str,
        *,
        refuse_reserved: bool = False,
        keep_follow_up: bool = False,
    ) -> tuple[JobState, str]:
        """As `cancel`; return, also with its errors, when that has reached the durability. Also returns that.

        Raises:
            DurabilityUnavailable: the store does not support the durability. Nothing was cancelled.
        """
        args = (job_id, _flags(refuse_reserved=refuse_reserved, keep_follow_up=keep_follow_up))
        result, reached = await self._durable_commit(durability).submit(self._home(topic, job_id), args)
        return state_when_cancelled(result, topic, job_id), reached

    def add(
        self,
        topic: str,
        job_id: str,
        durability: str | None,
        on_result: OnResult[Any],
        *,
        refuse_reserved: bool = False,
        keep_follow_up: bool = False,
    ) -> None:
        """As `cancel` or `cancel_durably` for callers without a task; `state_when_cancelled` reads the result.

        With a durability the result is a pair of that and of the durability that was reached.
        """
        args = (job_id, _flags(refuse_reserved=refuse_reserved, keep_follow_up=keep_follow_up))
        commit: GroupCommit[Args, Any] = self._commit if durability is None else self._durable_commit(durability)
        commit.add(self._home(topic, job_id), args, on_result)

    def _durable_commit(self, durability: str) -> GroupCommit[Args, tuple[JobState | int, str]]:
        commit = self._durable_commits.get(durability)
        if commit is None:
            level = level_named(durability)
            commit = self._partitions.commit(
                partial(self._send_durably, level),
                partial(self._cancel_durably, level),
                _is_durably_missing,
                size=size,
                most_items=_CANCELS_PER_CALL,
            )
            self._durable_commits[durability] = commit
        return commit

    async def cancel_many(self, topic: str, items: Sequence[CancelItem]) -> list[CancelResult]:
        """Cancel jobs of one topic; each has its own result, in order.

        When the store fails in the middle, the jobs it did not confirm have status 503.

        Raises:
            StoreUnavailable: the store confirmed none of them.
        """
        outcomes = await send_batch(
            topic,
            items,
            _args_of,
            self._send_batch,
            most=_CANCELS_PER_CALL,
            partitions=self._partitions,
            throttle=self._throttle,
        )
        return _results_of(items, outcomes)

    async def _send(self, topic: str, jobs: list[Args]) -> list[JobState | int | StoreUnavailable]:
        """For each job the state it was in, or the code that says why it was not cancelled. `topic`: a partition."""
        return await self._partitions.find(topic, jobs, _id_of, self._cancel, _is_missing)

    async def _send_batch(self, topic: str, jobs: list[Args], slot: SlotAt) -> list[JobState | int | StoreUnavailable]:
        """As `_send`, for a part of a batch."""

        async def cancel(partition: str, some: Sequence[Args]) -> list[JobState | int]:
            async with slot(partition):
                return await self._cancel(partition, some)

        return await self._partitions.find(topic, jobs, _id_of, cancel, _is_missing)

    async def _cancel(self, topic: str, jobs: Sequence[Args], sending: Sending | None = None) -> list[JobState | int]:
        args = (topic, *chain.from_iterable(jobs))
        reply = await self._scripts.run("cancel", self._keys.of_topic(topic), args, sending=sending)
        results: list[JobState | int] = [
            result if isinstance(result, int) else STATES_BY_NAME[result] for result in reply
        ]
        for was, count in Counter(result for result in results if isinstance(result, JobState)).items():
            metrics.CANCELS.labels(self._labels.label(topic), was.value).inc(count)
            self._labels.counted.of(topic).cancelled += count
        return results

    async def _send_durably(
        self, level: int, topic: str, jobs: list[Args]
    ) -> list[tuple[JobState | int, str] | StoreUnavailable]:
        """As `_send`, each with the durability that was reached, which is at least `level`."""
        cancel = partial(self._cancel_durably, level)
        return await self._partitions.find(topic, jobs, _id_of, cancel, _is_durably_missing)

    async def _cancel_durably(
        self, level: int, partition: str, jobs: Sequence[Args]
    ) -> list[tuple[JobState | int, str]]:
        async def send(_reached: int, sending: Sending) -> list[Any]:
            return await self._cancel(partition, jobs, sending)

        results, reached = await self._durable_calls.run(partition, level, send, nothing="nothing was cancelled")
        if reached < min(level, FSYNC):
            raise StoreUnavailable(
                "the job may be cancelled; that is not confirmed at durability fsync, because the store's "
                "configuration, or the node that has the topic, changed meanwhile; repeating the cancel is safe"
            )
        return [(result, name_of(reached)) for result in results]


def _flags(*, refuse_reserved: bool, keep_follow_up: bool) -> int:
    """As lua/cancel.lua has them."""
    return refuse_reserved + 2 * keep_follow_up


def _args_of(item: CancelItem) -> Args:
    return item.id, _flags(refuse_reserved=item.if_reserved == "refuse", keep_follow_up=item.follow_up == "keep")


def _id_of(job: Args) -> str:
    return job[0]


def _is_missing(result: JobState | int) -> bool:
    return result == NOT_FOUND


def _is_durably_missing(result: tuple[JobState | int, str]) -> bool:
    return _is_missing(result[0])


def _results_of(
    items: Sequence[CancelItem], outcomes: Sequence[JobState | int | StoreUnavailable]
) -> list[CancelResult]:
    results = []
    for item, outcome in zip(items, outcomes, strict=True):
        if isinstance(outcome, StoreUnavailable):
            results.append(CancelResult(id=item.id, status=503, code=outcome.code))
        elif isinstance(outcome, JobState):
            results.append(CancelResult(id=item.id, status=200, was=outcome))
        elif outcome == NOT_FOUND:
            results.append(CancelResult(id=item.id, status=404, code=JobNotFound.code))
        else:
            results.append(CancelResult(id=item.id, status=409, code=JobReserved.code))
    return results


def state_when_cancelled(result: JobState | int, topic: str, job_id: str) -> JobState:
    """Turn the result of a cancel into a state. Raises as `Cancels.cancel`."""
    if isinstance(result, JobState):
        return result
    raise (JobNotFound if result == NOT_FOUND else JobReserved)(topic, job_id)
