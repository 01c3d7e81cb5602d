"""Releases, touches and burials of single deliveries, which share store calls by group commit."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import JobState
from deferd.engine import metrics
from deferd.engine.call_results import NOT_FOUND, OK, Released, is_missing, raise_unless_ok
from deferd.engine.group_commit import GroupCommit, OnResult
from deferd.engine.partition_store import PartitionStore
from deferd.engine.placement import Placer, is_to_place, until_placed
from deferd.engine.record import STATES_BY_NAME, Receipt
from deferd.engine.redis_keys import Keys
from deferd.engine.request_end import request_ending_at, request_ends_at_s
from deferd.engine.script_arguments import (
    Args,
    EncodedRelease,
    encode_bury,
    encode_release,
    encode_touch,
    size,
    size_of_release,
)
from deferd.engine.scripts import Scripts

_MOST_JOBS = 100
"""Of a call, which then takes the store 2 to 5 ms."""
ReleaseReply = list[Any]
"""What lua/release.lua returns for a job; `released` reads it."""
_DEAD = JobState.DEAD.value.encode()


class Deliveries:
    """Ends of deliveries that are no finishes, and touches. `dead_retention_ms` is how long a dead job is kept."""

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        labels: metrics.TopicLabels,
        partitions: PartitionStore,
        placer: Placer,
        *,
        dead_retention_ms: int,
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._labels = labels
        self._partitions = partitions
        self._home = partitions.known.home
        self._placer = placer
        self._dead_retention_ms = dead_retention_ms
        self._placing: set[asyncio.Task[None]] = set()
        self._releases: GroupCommit[EncodedRelease, ReleaseReply] = GroupCommit(
            self._send_releases, size=size_of_release, most_items=_MOST_JOBS
        )
        self._touches = GroupCommit(self._send_touches, size=size, most_items=_MOST_JOBS)
        self._burials = GroupCommit(self._send_burials, size=size, most_items=_MOST_JOBS)

    async def release(
        self,
        topic: str,
        job_id: str,
        receipt: Receipt,
        *,
        delay_ms: int | None = None,
        error: str | None = None,
        counts: bool = True,
    ) -> Released:
        """Release a job for another attempt after `delay_ms` (None: after its backoff), in its opening hours.

        It becomes dead instead when this was its last attempt or its backoff schedule has ended. Unless the delivery
        `counts` as an attempt, it is a snooze, which needs a delay. The receipt is void afterwards.

        Raises:
            JobNotFound, ReceiptStale, JobCancelled.
        """
        release = encode_release(job_id, receipt, delay_ms=delay_ms, error=error, counts=counts)
        reply = await self._releases.submit(self._home(topic, job_id), release)
        return released(await self._until_placed(topic, release, reply), topic, job_id)

    def add_release(self, topic: str, release: EncodedRelease, on_result: OnResult[ReleaseReply]) -> None:
        """As `release` for callers without a task; `released` reads the result."""
        ends_at_s = request_ends_at_s()

        def on_reply(reply: ReleaseReply | None, error: Exception | None) -> None:
            if reply is None or not is_to_place(reply):
                on_result(reply, error)
                return
            task = asyncio.get_running_loop().create_task(self._place(topic, release, reply, ends_at_s, on_result))
            self._placing.add(task)
            task.add_done_callback(self._placing.discard)

        self._releases.add(self._home(topic, release.id), release, on_reply)

    async def _place(
        self,
        topic: str,
        release: EncodedRelease,
        reply: ReleaseReply,
        ends_at_s: float,
        on_result: OnResult[ReleaseReply],
    ) -> None:
        try:
            with request_ending_at(ends_at_s):
                placed = await self._until_placed(topic, release, reply)
        except Exception as exc:  # noqa: BLE001 (the caller must learn of any error)
            on_result(None, exc)
        else:
            on_result(placed, None)

    async def _until_placed(self, topic: str, release: EncodedRelease, reply: ReleaseReply) -> ReleaseReply:
        async def run(placing: bytes, due_ms: int, moved_ms: int) -> ReleaseReply:
            placed = release.placed_by(placing, due_ms, moved_ms)
            return await self._releases.submit(self._home(topic, release.id), placed)

        return await until_placed(reply, run, partial(self._placer.place_retry, release.id))

    async def touch(self, topic: str, job_id: str, receipt: Receipt, *, ttr_ms: int | None = None) -> int:
        """Extend the lease to `ttr_ms` from now (None: the job's own ttr) and return its new end.

        Raises:
            JobNotFound, ReceiptStale, JobCancelled.
        """
        result = await self._touches.submit(self._home(topic, job_id), encode_touch(job_id, receipt, ttr_ms))
        return lease_end_ms(result, topic, job_id)

    def add_touch(self, topic: str, touch: Args, on_result: OnResult[int]) -> None:
        """As `touch` for callers without a task; `lease_end_ms` reads the result."""
        self._touches.add(self._home(topic, touch[0]), touch, on_result)

    async def bury(self, topic: str, job_id: str, receipt: Receipt, *, error: str | None = None) -> None:
        """Make a reserved job dead.

        Raises:
            JobNotFound, ReceiptStale, JobCancelled.
        """
        code = await self._burials.submit(self._home(topic, job_id), encode_bury(job_id, receipt, error))
        raise_unless_ok(code, topic, job_id)

    def add_bury(self, topic: str, burial: Args, on_result: OnResult[int]) -> None:
        """As `bury` for callers without a task; `raise_unless_ok` reads the result."""
        self._burials.add(self._home(topic, burial[0]), burial, on_result)

    async def _send_releases(self, topic: str, releases: list[EncodedRelease]) -> list[ReleaseReply | StoreUnavailable]:
        return await self._partitions.find(topic, releases, _id_of_release, self._release, _is_missing_release)

    async def _send_touches(self, topic: str, touches: list[Args]) -> list[int | StoreUnavailable]:
        return await self._partitions.find(topic, touches, itemgetter(0), self._touch, is_missing)

    async def _send_burials(self, topic: str, burials: list[Args]) -> list[int | StoreUnavailable]:
        return await self._partitions.find(topic, burials, itemgetter(0), self._bury, is_missing)

    # In one partition

    async def _release(
        self, partition: str, releases: Sequence[EncodedRelease]
    ) -> list[ReleaseReply | StoreUnavailable]:
        jobs = [release.args for release in releases]
        replies: list[ReleaseReply | StoreUnavailable] = await self._run(
            "release", (partition, self._dead_retention_ms), jobs
        )
        done = [
            (release, reply)
            for release, reply in zip(releases, replies, strict=True)
            if isinstance(reply, list) and reply[0] == OK
        ]
        if done:
            label, counted = self._labels.label(partition), self._labels.counted.of(partition)
            attempts = sum([release.counts for release, _ in done])
            counted.released += attempts
            if attempts:
                metrics.RELEASES.labels(label).inc(attempts)
            if attempts < len(done):
                metrics.SNOOZES.labels(label).inc(len(done) - attempts)
            self._count_deaths(partition, Counter(reply[4].decode() for _, reply in done if reply[1] == _DEAD))
        return replies

    async def _touch(self, partition: str, touches: Sequence[Args]) -> list[int | StoreUnavailable]:
        return await self._run("touch", (partition,), touches)

    async def _bury(self, partition: str, burials: Sequence[Args]) -> list[int | StoreUnavailable]:
        codes: list[int | StoreUnavailable] = await self._run("bury", (partition, self._dead_retention_ms), burials)
        self._count_deaths(partition, Counter(buried=codes.count(OK)))
        return codes

    async def _run(self, verb: str, first: tuple[str | int, ...], jobs: Sequence[Args]) -> list[Any]:
        """The results of a script for jobs, in as many calls as it takes (lua/lib/deliveries.lua).

        If one but the first call fails, the jobs that are left have its error as their result.
        """
        keys = self._keys.of_topic(str(first[0]))
        results: list[Any] = []
        while len(results) < len(jobs):
            left = jobs[len(results) :]
            try:
                results += await self._scripts.run(verb, keys, (*first, *chain.from_iterable(left)))
            except StoreUnavailable as exc:
                if not results:
                    raise
                return [*results, *repeat(exc, len(left))]
        return results

    def _count_deaths(self, partition: str, deaths: Counter[str]) -> None:
        """`deaths` by their reasons."""
        for reason, count in deaths.items():
            if count:
                metrics.DEATHS.labels(self._labels.label(partition), reason).inc(count)
                self._labels.counted.of(partition).dead += count


def released(reply: ReleaseReply, topic: str, job_id: str) -> Released:
    """What the result of a release says. Raises as `Deliveries.release`."""
    code, *of_job = reply
    raise_unless_ok(code, topic, job_id)
    state, due_ms, attempts, *_ = of_job
    return Released(STATES_BY_NAME[state], None if state == _DEAD else due_ms, attempts)


def lease_end_ms(result: int, topic: str, job_id: str) -> int:
    """What the result of a touch says. Raises as `Deliveries.touch`."""
    raise_unless_ok(result, topic, job_id)  # which knows no code that is an instant
    return result


def _id_of_release(release: EncodedRelease) -> str:
    return release.id


def _is_missing_release(reply: ReleaseReply | StoreUnavailable) -> bool:
    return isinstance(reply, list) and reply[0] == NOT_FOUND
