"""The verbs of producers and consumers on jobs: each is one call of one atomic script.

Every method raises StoreUnavailable when the store does not respond; the call may have been carried out or not. Times
are milliseconds on the store's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from deferd.contract.errors import JobNotFound, JobReserved, StoreUnavailable, TopicPushed
from deferd.contract.limits import POP_COUNT_MAX
from deferd.contract.model import ChangeJob, FinishItem, JobState, PutJob
from deferd.contract.operations.jobs import FinishResult, PutResult
from deferd.engine import metrics
from deferd.engine.chained_puts import ChainedPuts
from deferd.engine.deliveries import (
    CANCELLED,
    NOT_FOUND,
    OK,
    finish_results,
    is_missing,
    raise_unless_ok,
)
from deferd.engine.ends import check_end_topic
from deferd.engine.group_commit import GroupCommit, OnResult
from deferd.engine.job_batches import FROM_JOBS, MOST_JOBS, BulkThrottle, SlotAt, send_batch
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import Partitions, topic_of
from deferd.engine.placement import DueTimePlacer, until_placed
from deferd.engine.puts import Puts, flow_refusal
from deferd.engine.record import (
    ENOUGH_BYTES,
    JobRecord,
    Receipt,
    body_bytes,
    json_bytes,
    read_deliveries,
    read_record,
    read_reply,
)
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import (
    NO_BOUNDS,
    Args,
    EncodedFinish,
    PutBounds,
    change_extra,
    encode_finish,
    flow_code,
    size,
    when_args,
)
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import OTHERS_WAIT_S

_RESEND = -1
"""What pop.lua returns for a repeated request whose jobs do not fit into the reply."""
_IS_PUSHED = -1
"""What pop.lua returns for a topic whose jobs are pushed."""
_NOT_HERE = frozenset({NOT_FOUND, CANCELLED})
"""The codes of a finish of a job that may be in another partition."""


@dataclass(frozen=True, slots=True)
class PopRequest:
    """One consumer's pop of one topic. `ttr_ms` None: the job's own."""

    count: int
    ttr_ms: int | None = None
    consumer: str | None = None
    request_id: str | None = None


class PopReply(NamedTuple):
    """The jobs for each request, in order; `more` when the topic may have further ready jobs.

    `resend` are the indexes of repeated requests whose jobs did not fit into this reply; never all.
    """

    jobs: list[list[JobRecord]]
    more: bool
    resend: Collection[int] = ()


class PopCounts:
    """Counts deliveries, and jobs that pops found dead, for the metrics and for operators."""

    def __init__(self, labels: metrics.TopicLabels) -> None:
        self._labels = labels
        self._popped: dict[str, int] = {}

    def count(self, topic: str, jobs: list[JobRecord], now_ms: int, expired: int, overdue: int) -> None:
        """Count the jobs that one call handed out of a partition, and those whose ttl or deadline had passed."""
        label = self._labels.label(topic)
        counts = self._labels.counted.of(topic)
        if expired:
            metrics.DEATHS.labels(label, "expired").inc(expired)
        if overdue:
            metrics.DEATHS.labels(label, "deadline").inc(overdue)
        if expired or overdue:
            counts.dead += expired + overdue
        if jobs:
            of_topic = topic_of(topic)
            self._popped[of_topic] = self._popped.get(of_topic, 0) + len(jobs)
            counts.popped += len(jobs)
            metrics.pops_of(label).inc(len(jobs))
            counts.add_lateness(
                metrics.ready_wait_of(label).observe_all_ms(
                    now_ms - job.due_at_ms for job in jobs if job.attempts == 1 and not job.endings.snoozes
                )
            )

    def take_popped(self) -> dict[str, int]:
        """How many jobs of each topic this process has handed out since the last call."""
        popped, self._popped = self._popped, {}
        return popped


class JobQueue:
    """The verbs on jobs. `dead_retention_ms` is how long a dead job is kept."""

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        labels: metrics.TopicLabels,
        *,
        puts: Puts,
        chained: ChainedPuts,
        placer: DueTimePlacer,
        partitions: PartitionStore,
        bulk_throttle: BulkThrottle,
        dead_retention_ms: int,
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._labels = labels
        self.dead_retention_ms = dead_retention_ms
        self._bulk_throttle = bulk_throttle
        self._pacing = ReplyPacing()
        self._placer = placer
        self.pop_counts = PopCounts(labels)
        self._partitions = partitions
        self._home = partitions.known.home
        self._puts = puts
        self._chained = chained
        self._finishes: GroupCommit[Args, int] = partitions.commit(
            self._send_finishes, self._send_finishes_to, _NOT_HERE.__contains__, size=size, most_items=MOST_JOBS
        )
        self.pops_and_finishes = PopsAndFinishes(self._pop_and_finish, self._partitions.known)

    async def _send_finishes(self, topic: str, jobs: list[Args]) -> list[int | StoreUnavailable]:
        return await self._partitions.find(
            topic,
            jobs,
            itemgetter(0),
            self._send_finishes_to,
            _NOT_HERE.__contains__,
            is_cancelled=CANCELLED.__eq__,
            shelf_s=OTHERS_WAIT_S,
        )

    async def _send_batch_of_finishes(self, topic: str, jobs: list[Args], slot: SlotAt) -> list[int | StoreUnavailable]:
        async def send(partition: str, some: Sequence[Args]) -> list[int]:
            async with slot(partition):
                return await self._send_finishes_to(partition, some)

        return await self._partitions.find(
            topic, jobs, itemgetter(0), send, _NOT_HERE.__contains__, is_cancelled=CANCELLED.__eq__
        )

    async def _send_finishes_to(self, topic: str, jobs: Sequence[Args]) -> list[int]:
        """`topic`: a partition."""
        codes: list[int] = await self._run("finish", topic, *chain.from_iterable(jobs))
        run_times = codes[len(jobs) :]
        del codes[len(jobs) :]
        self._count_finished(topic, codes.count(OK), run_times)
        return codes

    def _count_finished(self, topic: str, jobs: int, run_times: Sequence[int] = ()) -> None:
        """`run_times`: as lua/finish.lua returns them, in ms, each before its number of jobs."""
        label, counts = self._labels.label(topic), self._labels.counted.of(topic)
        metrics.finishes_of(label).inc(jobs)
        counts.finished += jobs
        if run_times:
            counts.add_run_times(metrics.run_time_of(label).observe_counts_ms(run_times))

    async def _run(self, verb: str, topic: str, *args: str | bytes | float) -> Any:
        return await self._scripts.run(verb, self._keys.of_topic(topic), (topic, *args))

    async def _run_on_job(self, verb: str, topic: str, job_id: str, *args: str | bytes | float) -> Any:
        """The reply of a script on one job, from the partition that has it."""

        async def run(partition: str) -> Any:
            return await self._run(verb, partition, job_id, *args)

        return await self._partitions.find_one(topic, job_id, run, is_missing)

    # Producers

    async def get(self, topic: str, job_id: str) -> JobRecord:
        """Return the job as it is now. Raises JobNotFound."""
        return await self._read("get", topic, job_id)

    async def watch(self, topic: str, job_id: str) -> JobRecord:
        """As `get`; from then on the store publishes the job's end and its progress. See JobWaits."""
        return await self._read("watch", topic, job_id)

    async def _read(self, verb: str, topic: str, job_id: str) -> JobRecord:
        reply = await self._run_on_job(verb, topic, job_id)
        if reply is None:
            raise JobNotFound(topic, job_id)
        *of_job, follow_up = reply
        job = read_reply(topic, job_id, of_job)
        if follow_up:
            job.followed_by = read_record(topic, job_id, JobState.DELAYED, follow_up)
        return job

    async def change(self, topic: str, job_id: str, change: ChangeJob) -> JobRecord:
        """Reschedule or change a delayed or ready job; fields that `change` leaves out stay as they are.

        Raises:
            JobNotFound: there is no such job, or it is dead or finished.
            JobReserved: a consumer holds it.
            InvalidInput: a zone or calendar of its window is unknown, or that never opens; or it is to have a group or
                a priority, and its topic has several partitions.
        """
        if change.window is not None:
            await self._placer.calendars.check(change.window)
        if flow_code(change):
            await self._partitions.refresh(topic)
            if self._partitions.known.count(topic) > 1:
                raise flow_refusal(topic, ("body",), change.group, change.priority)
        if change.on_end is not None:
            await self._partitions.refresh_all({topic, change.on_end.topic})
            homes = self._partitions.known.layout_of(topic).homes(topic, job_id)
            check_end_topic(self._keys, homes, change.on_end.topic)
        extra = change_extra(change)
        has_body = "body" in change.model_fields_set
        args = (
            topic,
            job_id,
            *when_args(change),
            json_bytes(extra) if extra else "",
            1 if has_body else 0,
            json_bytes(change.body) if has_body else "",
        )
        run = partial(self._run_on_job, "change", *args)
        reply = await until_placed(await run("", 0, 0), run, partial(self._placer.place, job_id))
        code, state = reply[0], reply[1].decode()
        if code == 2:
            raise JobReserved(topic, job_id)
        if code == 3:
            hint = "redrive it to run it again" if state == JobState.DEAD else "it is done"
            raise JobNotFound(topic, job_id, f"job {job_id!r} of topic {topic!r} is {state} and cannot change: {hint}")
        if code == 1:
            raise JobNotFound(topic, job_id)
        self._labels.counted.of(topic)
        return read_record(topic, job_id, JobState(state), reply[2])

    # Consumers

    async def pop(self, topic: str, requests: Sequence[PopRequest]) -> PopReply:
        """Hand out ready jobs of one partition without waiting, in the order of `requests`; at most 1000 in all.

        Consumers that wait use the Dispatcher. Raises TopicPushed.
        """
        args: list[Any] = []
        for request in requests:
            args += (request.count, request.ttr_ms or 0, request.consumer or "", request.request_id or "")
        return await self._hand_out("pop", topic, requests, args)

    async def _pop_and_finish(self, topic: str, counts: Sequence[int]) -> tuple[list[list[JobRecord]], bool]:
        jobs, more, _ = await self._hand_out("pop_and_finish", topic, list(map(PopRequest, counts)), counts)
        if finished := sum(map(len, jobs)):
            self._count_finished(topic, finished)
        return jobs, more

    async def _hand_out(self, verb: str, topic: str, requests: Sequence[PopRequest], args: Sequence[Any]) -> PopReply:
        """One call of lua/pop.lua, or of one that returns what that does."""
        await self.wait_turn(topic)
        is_bulk = sum(request.count for request in requests) > FROM_JOBS
        slot: AbstractAsyncContextManager[None] = self._bulk_throttle.slot(topic) if is_bulk else nullcontext()
        async with slot:
            reply = await self._run(verb, topic, self.dead_retention_ms, *args)
        if reply == _IS_PUSHED:
            raise TopicPushed(topic_of(topic))
        return self.read_pop(topic, requests, reply)

    async def earlier_deliveries(
        self,
        requests: Mapping[str, PopRequest],
        *,
        is_down: Callable[[str], bool],
        on_failure: Callable[[str, Exception], None],
    ) -> list[JobRecord]:
        """The jobs that these requests still hold from an earlier response, over all topics that can be reached.

        `requests` are by topic, and ask for no new jobs. The jobs are bounded as one response: separate pops of single
        topics may have returned more together. `on_failure` is called for each topic that fails. Raises the error of
        one topic when none can be reached.
        """
        up = [topic for topic in requests if not is_down(topic)] or list(requests)
        replies = await asyncio.gather(*(self.pop(topic, [requests[topic]]) for topic in up), return_exceptions=True)
        deliveries: list[JobRecord] = []
        errors = []
        for topic, reply in zip(up, replies, strict=True):
            if not isinstance(reply, BaseException):
                if body_bytes(deliveries) < ENOUGH_BYTES:
                    deliveries += reply.jobs[0]
            elif isinstance(reply, Exception):
                on_failure(topic, reply)
                errors.append(reply)
            else:
                raise reply
        if errors and len(errors) == len(requests):
            raise errors[-1]
        return deliveries

    async def have_ready(self, ready_lists: Sequence[str]) -> bool:
        """Whether any of these Ready lists of one shard has jobs."""
        ready: int = await self._scripts.command("EXISTS", *ready_lists)
        return ready > 0

    async def wait_turn(self, topic: str) -> None:
        """Wait until the topic may be popped, if its replies are large; see ReplyPacing."""
        if self._pacing.expects_large(topic):
            await self._pacing.turn(topic)

    def read_pop(self, topic: str, requests: Sequence[PopRequest], reply: Sequence[Any]) -> PopReply:
        """Read and count what `lua/pop.lua` returned for these requests."""
        now_ms, more, expired, replies, overdue = reply
        self._pacing.note(topic, sum(len(raw) for reply in replies for raw in reply[2::3]))
        if not (expired or overdue or any(len(reply) > 1 for reply in replies)):  # an empty topic uses no metric label
            return PopReply([[] for _ in requests], bool(more))
        jobs = [
            read_deliveries(topic, reply[1:], request.consumer, request.request_id)
            for request, reply in zip(requests, replies, strict=True)
        ]
        first_time = [job for reply, some in zip(replies, jobs, strict=True) if not reply[0] for job in some]
        self.pop_counts.count(topic, first_time, now_ms, expired, overdue)
        return PopReply(jobs, bool(more), [at for at, reply in enumerate(replies) if reply[0] == _RESEND])

    async def finish(self, topic: str, job_id: str, receipt: Receipt, result: Any = None) -> None:
        """Finish the delivery of `receipt` (ANY_RECEIPT: whichever is live).

        Finishing again with the same receipt succeeds while the finished record is retained.

        Raises:
            JobNotFound, ReceiptStale, JobCancelled.
        """
        finish = encode_finish(job_id, receipt, result)
        code = await self._finishes.submit(self._home(topic, job_id), finish.args)
        raise_unless_ok(code, topic, job_id)

    def add_finish(self, topic: str, finish: EncodedFinish, on_result: OnResult[int]) -> None:
        """As `finish` for callers without a task; `raise_unless_ok` reads the result."""
        self._finishes.add(self._home(topic, finish.id), finish.args, on_result)

    async def finish_and_put(
        self,
        topic: str,
        job_id: str,
        receipt: Receipt,
        puts: Sequence[PutJob],
        *,
        result: Any = None,
        bounds: PutBounds = NO_BOUNDS,
    ) -> list[PutResult]:
        """As `finish`, and put 1 to 10 jobs in the same step: all of it is done, or nothing.

        Returns the results of the puts; none if this delivery had finished the job before, and nothing is put again.

        Raises:
            JobNotFound, ReceiptStale, JobCancelled, and the errors of `ChainedPuts.finish`.
        """
        chained = await self._chained.finish(topic, job_id, receipt, puts, result=result, bounds=bounds)
        raise_unless_ok(chained.code, topic, job_id)
        if chained.codes:
            self._count_finished(topic, 1, chained.run_times)
        for of_topic, codes in chained.codes.items():
            self._puts.count(of_topic, codes)
        return chained.results

    async def finish_many(self, topic: str, items: Sequence[FinishItem | EncodedFinish]) -> list[FinishResult]:
        """Finish jobs of one topic; each has its own result, in order.

        When the store fails in the middle, the jobs it did not confirm have status 503.

        Raises:
            StoreUnavailable: the store confirmed none of them.
        """
        codes = await send_batch(
            topic,
            items,
            _args_of_finish,
            self._send_batch_of_finishes,
            most=MOST_JOBS,
            partitions=self._partitions,
            throttle=self._bulk_throttle,
        )
        return finish_results(items, codes)


def _args_of_finish(item: FinishItem | EncodedFinish) -> Args:
    finish = item if isinstance(item, EncodedFinish) else encode_finish(item.id, Receipt.of(item.receipt), item.result)
    return finish.args


Send = Callable[[str, Sequence[int]], Awaitable[tuple[list[list[JobRecord]], bool]]]
"""One call of lua/pop_and_finish.lua: the jobs for each count, and whether the topic may have further ready ones."""


class PopsAndFinishes:
    """Pops that finish their jobs in the same step, at most once: pops of one topic that arrive together share a call.

    `send` makes the calls, each of one partition and for at most 1000 jobs.
    """

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


LARGE_BYTES = 256 * 1024
BYTES_PER_S = 32 * 1024 * 1024
"""The rate of large replies in one process: at most 128 a second."""
_TOPICS_MAX = 10_000
_sleep = asyncio.sleep


class _Topic:
    """A topic whose last reply was large, of `size` bytes. Its callers queue for `lock`."""

    __slots__ = ("lock", "size")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.size = 0


class ReplyPacing:
    """Spaces out large replies of the store, so that the callers of a process never wait behind many of them.

    A reply of a megabyte takes some 3 ms of the event loop until it is a response, 5 ms over TLS. One caller can
    request such replies without pause, on many connections at once. So a pop of a topic whose last reply was large
    waits until the event loop has had six to ten times as long for everybody else.

    Topics take turns, however many callers one of them has. Time is reserved only when a turn comes, so that callers
    that give up earlier cost the others nothing.
    """

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._lock = asyncio.Lock()
        self._next_turn_at_s = 0.0

    def expects_large(self, topic: str) -> bool:
        """Whether the next pop of the topic must wait for its turn."""
        return topic in self._topics

    async def turn(self, topic: str) -> None:
        """Wait for the turn of the topic's next pop, or until its replies are no longer expected to be large.

        Callers for one topic have their turns in the order in which they came.
        """
        expected = self._topics.get(topic)
        if expected is None:
            return
        async with expected.lock:
            if topic not in self._topics:
                return
            async with self._lock:
                wait_s = self._next_turn_at_s - _now_s()
                if wait_s > 0:
                    await _sleep(wait_s)
                self._reserve(expected.size)

    def note(self, topic: str, size: int) -> None:
        """Record that the last pop of the topic returned `size` bytes."""
        if size < LARGE_BYTES:
            self._topics.pop(topic, None)
            return
        noted = self._topics.get(topic)
        if noted is None:
            if len(self._topics) >= _TOPICS_MAX:
                self._topics.clear()
            noted = self._topics[topic] = _Topic()
            self._reserve(size)
        noted.size = size

    def _reserve(self, size: int) -> None:
        """Reserve the time for a reply of `size` bytes from now on. Replies without a turn do not add up."""
        self._next_turn_at_s = max(self._next_turn_at_s, _now_s() + size / BYTES_PER_S)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
