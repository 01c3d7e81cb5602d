"""What consumers do with the jobs that they hold, but for the finish: see JobQueue."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from deferd.contract.errors import JobCancelled, JobNotFound, ReceiptStale, StoreUnavailable
from deferd.contract.model import FinishItem, HeldJob, JobState, JobToReturn
from deferd.contract.operations.jobs import FinishResult
from deferd.engine import metrics
from deferd.engine.group_commit import GroupCommit, OnResult
from deferd.engine.job_batches import MOST_JOBS, BulkThrottle
from deferd.engine.partition_store import PartitionStore
from deferd.engine.placement import DueTimePlacer, is_to_place, until_placed
from deferd.engine.record import STATES_BY_NAME, JobRecord, Receipt
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import (
    Args,
    EncodedFinish,
    EncodedRelease,
    encode_bury,
    encode_release,
    encode_touch,
    size,
    size_of_release,
)
from deferd.engine.scripts import Scripts, request_ending_at, request_ends_at_s
from deferd.engine.shelf import OTHERS_WAIT_S

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
        placer: DueTimePlacer,
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
        self._placing_tasks: set[asyncio.Task[None]] = set()
        self._releases: GroupCommit[EncodedRelease, ReleaseReply] = partitions.commit(
            self._send_releases, self._release, is_not_here, size=size_of_release, most_items=_MOST_JOBS
        )
        self._touches: GroupCommit[Args, int] = partitions.commit(
            self._send_touches, self._touch, is_not_here, size=size, most_items=_MOST_JOBS
        )
        self._burials: GroupCommit[Args, int] = partitions.commit(
            self._send_burials, self._bury, is_not_here, size=size, most_items=_MOST_JOBS
        )

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
            self._placing_tasks.add(task)
            task.add_done_callback(self._placing_tasks.discard)

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
        async def run(window_and_spread: bytes, due_ms: int, moved_ms: int) -> ReleaseReply:
            placed = release.with_retry_at(window_and_spread, due_ms, moved_ms)
            return await self._releases.submit(self._home(topic, release.id), placed)

        return await until_placed(reply, run, partial(self._placer.place_retry, release.id))

    async def touch(
        self, topic: str, job_id: str, receipt: Receipt, *, ttr_ms: int | None = None, progress: Any = None
    ) -> int:
        """Extend the lease to `ttr_ms` from now (None: the job's own ttr) and return its new end.

        A `progress`, any JSON value but null, is kept with the job.

        Raises:
            JobNotFound, ReceiptStale, JobCancelled.
        """
        touch = encode_touch(job_id, receipt, ttr_ms, progress)
        result = await self._touches.submit(self._home(topic, job_id), touch)
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
        return await self._partitions.find(
            topic,
            releases,
            _id_of_release,
            self._release,
            is_not_here,
            is_cancelled=is_cancelled,
            shelf_s=OTHERS_WAIT_S,
        )

    async def _send_touches(self, topic: str, touches: list[Args]) -> list[int | StoreUnavailable]:
        return await self._partitions.find(
            topic, touches, itemgetter(0), self._touch, is_not_here, is_cancelled=is_cancelled, shelf_s=OTHERS_WAIT_S
        )

    async def _send_burials(self, topic: str, burials: list[Args]) -> list[int | StoreUnavailable]:
        return await self._partitions.find(
            topic, burials, itemgetter(0), self._bury, is_not_here, is_cancelled=is_cancelled, shelf_s=OTHERS_WAIT_S
        )

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


_Delivery = tuple[str, int, int]
"""The id, the nonce and the attempt."""
_Send = Callable[[str, Sequence[_Delivery]], Awaitable[list[int]]]


class HeldJobs:
    """Calls on many deliveries at once: which of them have ended, and the return of jobs that nobody worked on."""

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        labels: metrics.TopicLabels,
        partitions: PartitionStore,
        throttle: BulkThrottle,
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._labels = labels
        self._partitions = partitions
        self._throttle = throttle

    async def check_many(self, topic: str, jobs: Sequence[HeldJob]) -> list[FinishResult]:
        """Which of 1 to 1000 deliveries of one topic have ended. Changes nothing, and costs the store little.

        A delivery counts as held even if its lease has ended and another consumer holds the job; only a touch tells.

        Raises:
            StoreUnavailable: the store confirmed none of them; else those that it did not confirm have status 503.
        """
        return await self._send(topic, jobs, self._check)

    async def return_many(
        self, topic: str, jobs: Sequence[JobToReturn], consumer: str | None = None
    ) -> list[FinishResult]:
        """Return 1 to 1000 deliveries of one topic to the head of the queue in their order; no attempt is counted.

        Without a receipt the delivery that is under way is meant; it counts as a snooze. With a `consumer` only jobs
        that this one holds are returned; for others the result is that of a stale receipt.

        Raises:
            StoreUnavailable: the store confirmed none of them; else those that it did not confirm have status 503.
        """
        return await self._send(topic, jobs, partial(self._return, consumer=consumer or ""))

    async def return_popped(self, deliveries: Iterable[JobRecord]) -> int:
        """As `return_many`, for deliveries of any topics that never reached their consumer.

        Returns how many were returned. Deliveries that are no longer live stay as they are, and those whose request was
        repeated: another consumer may hold them.
        """
        of_topic: dict[str, list[JobRecord]] = {}
        for job in deliveries:
            for home in self._partitions.known.homes(job.topic, job.id):  # one of which has the delivery
                of_topic.setdefault(home, []).append(job)
        returned, error = 0, None
        for topic, jobs in of_topic.items():
            try:
                codes = await self._prepend(
                    topic, [(job.id, job.nonce, job.attempts, job.request_id or "") for job in jobs]
                )
            except StoreUnavailable as exc:  # the deliveries of other shards are returned
                error = exc
                continue
            returned += codes.count(OK)
        if error is not None:
            raise error
        return returned

    async def _send(self, topic: str, jobs: Sequence[HeldJob | JobToReturn], send: _Send) -> list[FinishResult]:
        async def find(partition: str, items: Sequence[_Delivery]) -> list[int | StoreUnavailable]:
            return await self._partitions.find(
                partition, items, itemgetter(0), send, is_not_here, is_cancelled=is_cancelled, shelf_s=OTHERS_WAIT_S
            )

        items: list[_Delivery] = [(job.id, *Receipt.of(job.receipt)) for job in jobs]
        return finish_results(jobs, await self._partitions.send_by_home(topic, items, itemgetter(0), find))

    async def _check(self, partition: str, items: Sequence[_Delivery]) -> list[int]:
        args: tuple[Any, ...] = (partition, *chain.from_iterable(items))
        codes: list[int] = await self._scripts.run("check", self._keys.of_topic(partition), args)
        return codes

    async def _return(self, partition: str, items: Sequence[_Delivery], *, consumer: str) -> list[int]:
        codes: list[int] = []
        for end in range(len(items), 0, -MOST_JOBS):  # the last ones first: each call puts its jobs before all others
            some = items[max(end - MOST_JOBS, 0) : end]
            async with self._throttle.slot(partition, len(items)):
                codes = await self._prepend(partition, [(*item, "") for item in some], consumer) + codes
        return codes

    async def _prepend(self, partition: str, deliveries: Sequence[tuple[Any, ...]], consumer: str = "") -> list[int]:
        args: tuple[Any, ...] = (partition, consumer, *chain.from_iterable(deliveries))
        codes: list[int] = await self._scripts.run("return", self._keys.of_topic(partition), args)
        metrics.RETURNS.labels(self._labels.label(partition)).inc(codes.count(OK))
        self._labels.counted.of(partition)
        return codes


OK, NOT_FOUND, _STALE, CANCELLED = 0, 1, 2, 3
_NOT_HELD = {4: JobState.DELAYED, 5: JobState.READY, 6: JobState.DEAD, 7: JobState.FINISHED}
"""The codes of lib/delivery.lua for a job that no consumer holds."""
_FINISH_STATUS: dict[int, tuple[int, str | None]] = {
    OK: (200, None),
    NOT_FOUND: (404, JobNotFound.code),
    **dict.fromkeys((_STALE, *_NOT_HELD), (409, ReceiptStale.code)),
    CANCELLED: (410, JobCancelled.code),
}
"""The status and the error's name in the response to a batch finish, by code."""


class Released(NamedTuple):
    """The state of a job after its release: delayed until `due_at_ms`, or dead (`due_at_ms` None)."""

    state: JobState
    due_at_ms: int | None
    attempts: int


def finish_results(
    jobs: Sequence[HeldJob | JobToReturn | FinishItem | EncodedFinish], codes: Sequence[int | StoreUnavailable]
) -> list[FinishResult]:
    """The results of deliveries in the response to a batch."""
    if codes.count(OK) == len(codes):
        return [FinishResult(id=job.id, status=200) for job in jobs]
    results = []
    for job, code in zip(jobs, codes, strict=True):
        status, name = (503, code.code) if isinstance(code, StoreUnavailable) else _FINISH_STATUS[code]
        results.append(FinishResult(id=job.id, status=status, code=name))
    return results


def is_missing(reply: Any) -> bool:
    """Whether a script on one job did not find it."""
    return reply is None or reply == NOT_FOUND or (isinstance(reply, list) and reply[0] == NOT_FOUND)


def is_cancelled(reply: Any) -> bool:
    """Whether a script on a delivery found only that its job, or one with its id, was cancelled."""
    return reply == CANCELLED or (isinstance(reply, list) and reply[0] == CANCELLED)


def is_not_here(reply: Any) -> bool:
    """Whether a job may be in another partition than the one whose script replied this."""
    return is_missing(reply) or is_cancelled(reply)


def raise_unless_ok(code: int, topic: str, job_id: str) -> None:
    """Turn the code of a consumer's call into its result. Raises as `JobQueue.finish`."""
    if code == OK:
        return
    if code == NOT_FOUND:
        raise JobNotFound(topic, job_id)
    if code == _STALE:
        raise ReceiptStale(topic, job_id)
    if code == CANCELLED:
        raise JobCancelled(topic, job_id)
    if code in _NOT_HELD:
        raise ReceiptStale(topic, job_id, f"nobody holds job {job_id!r} of topic {topic!r}: it is {_NOT_HELD[code]}")
