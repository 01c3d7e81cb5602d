"""Pops that finish their jobs in the same step, at most once: pops of one topic that arrive together share a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from deferd.contract.errors import StoreUnavailable
from deferd.contract.limits import POP_COUNT_MAX
from deferd.engine.bulk_throttle import MOST_JOBS
from deferd.engine.group_commit import GroupCommit
from deferd.engine.record import JobRecord

Send = Callable[[str, Sequence[int]], Awaitable[tuple[list[list[JobRecord]], bool]]]
"""One call of lua/pop_and_finish.lua: the jobs for each count, and whether the topic may have further ready ones."""


class PopsAndFinishes:
    """Pops that finish their jobs; `send` makes the calls. A call is for at most 1000 jobs."""

    def __init__(self, send: Send) -> None:
        self._send_once = send
        self._calls: GroupCommit[int, list[JobRecord] | StoreUnavailable] = GroupCommit(
            self._send, size=int, most_items=MOST_JOBS, most_bytes=POP_COUNT_MAX
        )

    async def pop(self, topic: str, count: int) -> list[JobRecord]:
        """Up to `count` ready jobs, 1 to 1000, which are finished: none only if the topic had none to hand out.

        Raises:
            TopicPushed
            StoreUnavailable: the jobs of the call, if it was carried out, are finished and lost.
        """
        result = await self._calls.submit(topic, count)
        if isinstance(result, StoreUnavailable):
            raise result
        return result

    async def _send(self, topic: str, counts: Sequence[int]) -> Sequence[list[JobRecord] | StoreUnavailable]:
        """For each count its jobs. Counts that got none, as the reply was full, are sent again.

        The jobs of earlier calls are finished, so an error of a later one concerns its counts alone.
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
