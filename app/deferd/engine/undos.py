"""Puts back what calls on many jobs have cancelled: for ten minutes, what waited then.

The script that cancels jobs keeps their records in the same atomic step, if the call asks for that (lua/lib/undo.lua).
The script that puts them back takes each step's once, so they are put back once, also when a call fails in between and
however many ask for it. What is kept is in the store: it outlives the processes of the service.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from deferd.contract.errors import StoreUnavailable
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine import metrics
from deferd.engine.job_batches import AT_ONCE, BulkThrottle, all_results
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import topic_of
from deferd.engine.redis_keys import UNDO_PREFIX, Keys
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import Asked

UNDO_S = 600
"""For how long after its last step a call can be undone, as in lua/lib/undo.lua."""
_STEPS_PER_PAGE = 1000
_ASKED_MOST = 5


def name_of(caller: str | None, request_id: str) -> str:
    """The name under which the cancelled jobs of a call are kept. `caller`: the name of the API key, None without."""
    return request_id if caller is None else f"{caller}/{request_id}"


@dataclass(frozen=True, slots=True)
class Undoable:
    """How many jobs can be put back, and for how many ms."""

    jobs: int
    left_ms: int


@dataclass(frozen=True, slots=True)
class UndoOutcome:
    """How many jobs are back, and how many are not: their ids are taken, or their topics have no room for them.

    Or their topics have another number of partitions now, or they are runs of schedules that have gone on.
    """

    put_back: int
    left: int


class Undos:
    """What can be put back, and putting it back. All methods raise StoreUnavailable."""

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        labels: metrics.TopicLabels,
        throttle: BulkThrottle,
        partitions: PartitionStore,
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._labels = labels
        self._throttle = throttle
        self._partitions = partitions
        self._shelf = partitions.shelf

    async def undoable(self, request_id: str, caller: str | None) -> Undoable:
        """What is kept of a call."""
        name = name_of(caller, request_id)

        async def in_shard(shard: int) -> tuple[int, int]:
            jobs = sum([jobs async for _, _, jobs in self._steps(shard, name)])
            return jobs, await self._scripts.command("PTTL", self._key(shard, name)) if jobs else 0

        found = await all_results(map(in_shard, range(self._keys.shards)))
        return Undoable(sum(jobs for jobs, _ in found), max(0, *(left_ms for _, left_ms in found)))

    async def undo_cancel(
        self, request_id: str, caller: str | None, visible: TopicPatterns | None = None
    ) -> UndoOutcome:
        """Put back what a call has cancelled, as far as it is kept. To repeat it does no harm.

        Such a job is as it was: due when it was due, with its attempts. An id that was put again meanwhile stays as it
        is. What a full topic has no room for can be put back later. The bounds of keys do not count: the jobs were
        there before. `visible`: the topics that the caller may see, None for all.
        """
        name = name_of(caller, request_id)

        counts = [0, 0]

        async def in_shard(shard: int) -> None:
            found = [step async for step in self._steps(shard, name)]
            await self._partitions.refresh_all({topic_of(partition) for _, partition, _ in found})
            steps = iter(found)

            async def work() -> None:
                for step, partition, jobs in steps:
                    if visible is None or visible.match(topic_of(partition)):
                        outcome = await self._undo_step(shard, name, step, partition, jobs)
                        counts[:] = (count + more for count, more in zip(counts, outcome, strict=True))

            await all_results(work() for _ in range(AT_ONCE))

        await all_results(map(in_shard, range(self._keys.shards)))
        return UndoOutcome(*counts)

    def _key(self, shard: int, name: str) -> str:
        return self._keys.of_shard(shard, f"{UNDO_PREFIX}/{name}")

    async def _steps(self, shard: int, name: str) -> AsyncIterator[tuple[int, str, int]]:
        """The number of each step that has jobs to put back, their partition, and how many they are."""
        start = 0
        while True:
            key = self._key(shard, name)
            page: list[bytes] = await self._scripts.command("LRANGE", key, start, start + _STEPS_PER_PAGE - 1)
            for step, kept in enumerate(page, start):
                if kept:
                    partition, _, jobs = kept.decode().partition(" ")
                    yield step, partition, int(jobs)
            if len(page) < _STEPS_PER_PAGE:
                return
            start += _STEPS_PER_PAGE

    async def _undo_step(self, shard: int, name: str, step: int, partition: str, jobs: int) -> tuple[int, int]:
        ids: list[str] = []
        topic = topic_of(partition)
        layout = self._keys.partitions.layout_of(topic)
        if self._shelf.calls is not None or layout.count > 1:
            kept = await self._scripts.command("LRANGE", f"{self._key(shard, name)} {step}", 1, 1)
            ids = kept[0].decode().split(" ") if kept else []
        # An id that was put before the topic had more partitions belongs to another one by now.
        elsewhere = [job_id for job_id in ids if layout.home(topic, job_id) != partition]
        keys = self._keys.of_topic(partition)
        for _ in range(_ASKED_MOST):
            asked = Asked(await self._shelf.ask(partition, ids), ids)
            async with self._throttle.slot(partition, jobs):
                args = [partition, name, str(step), str(asked.generation), str(layout.count), *elsewhere]
                back, left = await self._scripts.run("undo_cancel", keys, args)
            self._shelf.note_done(partition, asked)
            if back < 0:
                self._shelf.note_shelved(partition, left)
                continue
            if back:
                self._labels.counted.of(partition).put += back
                metrics.puts_of(self._labels.label(partition), "created").inc(back)
            return back, left
        raise StoreUnavailable("jobs leave the store faster than it can be asked for them", 1)
