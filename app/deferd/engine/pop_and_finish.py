"""Pops that finish their jobs in the same step, at most once: pops of one topic that arrive together share a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from deferd.contract.errors import StoreUnavailable
from deferd.contract.limits import POP_COUNT_MAX
from deferd.engine.bulk_throttle import MOST_JOBS
from deferd.engine.group_commit import GroupCommit
from deferd.engine.partitions import Partitions
from deferd.engine.record import ENOUGH_BYTES, JobRecord, body_bytes

Send = Callable[[str, Sequence[int]], Awaitable[tuple[list[list[JobRecord]], bool]]]
"""One call of lua/pop_and_finish.lua: the jobs for each count, and whether the topic may have further ready ones."""


class PopsAndFinishes:
    """Pops that finish their jobs; `send` makes the calls, each of one partition. A call is for at most 1000 jobs."""

    def __init__(self, send: Send, partitions: Partitions) -> None:
        self._send_once = send
        self._partitions = partitions
        self._turn = 0
        self._calls: GroupCommit[int, list[JobRecord]] = GroupCommit(
            self._send, size=int, most_items=MOST_JOBS, most_bytes=POP_COUNT_MAX
        )

    async def pop(self, topic: str, count: int) -> list[JobRecord]:
        """Up to `count` ready jobs, 1 to 1000, which are finished: none only if the topic had none to hand out.

        In a topic with several partitions, each in turn is asked first; partitions that cannot be reached are left out
        if others have jobs.

        Raises:
            TopicPushed
            StoreUnavailable: the jobs of the call, if it was carried out, are finished and lost.
        """
        partitions = self._partitions.of(topic)
        if len(partitions) == 1:
            return await self._calls.submit(topic, count)
        self._turn += 1
        first = self._turn % len(partitions)
        jobs: list[JobRecord] = []
        error: StoreUnavailable | None = None
        for partition in (*partitions[first:], *partitions[:first]):
            try:
                jobs += await self._calls.submit(partition, count - len(jobs))
            except StoreUnavailable as exc:  # jobs of the others are finished already: they must not be lost, too
                error = exc
            if len(jobs) == count or body_bytes(jobs) >= ENOUGH_BYTES:
                break
        if error is not None and not jobs:
            raise error
        return jobs

    async def _send(self, topic: str, counts: Sequence[int]) -> Sequence[list[JobRecord] | StoreUnavailable]:
        """The jobs for each count.

        Counts that got none because the reply was full are sent again. The jobs of earlier calls are finished, so an
        error of a later call concerns only its own counts.
        """
        results: list[list[JobRecord] | StoreUnavailable] = [[] for _ in counts]
        left, is_first = list(range(len(counts))), True
        while left:
            try:
                jobs, more = await self._send_once(topic, [counts[index] for index in left])
            except StoreUnavailable as exc:
                if is_first:
                    raise
                for index in left:
                    results[index] = exc
                break
            is_first = False
            for index, some in zip(left, jobs, strict=True):
                results[index] = some
            left = [index for index in left if not results[index]] if more else []
        return results
