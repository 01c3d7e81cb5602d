"""Puts jobs: single ones, which share store calls by group commit, and batches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import msgspec

from deferd.contract.errors import (
    BatchNotFound,
    BatchSealed,
    DeferdError,
    DifferentShard,
    DurabilityUnavailable,
    FieldError,
    InvalidInput,
    JobExists,
    JobReserved,
    PayloadTooLarge,
    StoreUnavailable,
    TopicFull,
)
from deferd.contract.model import JobState, PutJob
from deferd.contract.operations.jobs import PutResult
from deferd.contract.timestamps import instant
from deferd.engine import metrics
from deferd.engine.ends import check_end_topic, other_shard
from deferd.engine.group_commit import GroupCommit, OnResult
from deferd.engine.job_batches import MOST_JOBS, BulkThrottle
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import SEPARATOR, topic_of
from deferd.engine.placement import ANY_DEFAULT, DONE, OUTDATED, DueTimePlacer, Terms, read_terms, until_done
from deferd.engine.record import JobRecord, read_record, read_reply
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import NO_BOUNDS, EncodedPut, PutBounds, encode_put, size_of_put
from deferd.engine.scripts import DurableCalls, Scripts, Sending, Slot, lost_durability, stored_nothing
from deferd.engine.shelf import NO_SHELF, Asked
from deferd.engine.time_slice import TimeSlice
from deferd.store.durability_levels import FSYNC, MEMORY, is_replicated, level_named, name_of

_CREATED, _KEPT, _REPLACED, _EXISTS, _HELD, _FULL = 1, 2, 3, -1, -2, -3
_IN_PARTITIONS = -5
"""A job with a group or a priority is for a topic with several partitions: no such put is sent to the script."""
_NO_BATCH, _SEALED = -6, -7
_END_ELSEWHERE = -8
"""The topic of its `on_end` is in another shard than the partition that has its id: as with _IN_PARTITIONS."""
_APPENDED, _FOLLOWS, _FOLLOW_UP_KEPT, _FOLLOW_UP_REPLACED, _FOLLOW_UP_APPENDED, _TOO_LARGE = 4, 5, 6, 7, 8, -4
Outcome = Literal["created", "kept", "replaced", "appended", "follow_up"]
_OUTCOMES: dict[int, tuple[Outcome, int]] = {
    _CREATED: ("created", 201),
    _KEPT: ("kept", 200),
    _REPLACED: ("replaced", 200),
    _FOLLOWS: ("follow_up", 201),
    _FOLLOW_UP_KEPT: ("kept", 200),
    _FOLLOW_UP_REPLACED: ("replaced", 200),
    _APPENDED: ("appended", 200),
    _FOLLOW_UP_APPENDED: ("appended", 200),
}
"""By the code that lua/put.lua returns: the outcome, and the status in the response to a batch."""
_REFUSALS: dict[int, tuple[str, int]] = {
    _TOO_LARGE: (PayloadTooLarge.code, 413),
    _EXISTS: (JobExists.code, 409),
    _HELD: (JobReserved.code, 409),
    _FULL: (TopicFull.code, 429),
    _IN_PARTITIONS: (InvalidInput.code, 422),
    _NO_BATCH: (BatchNotFound.code, 404),
    _SEALED: (BatchSealed.code, 409),
    _END_ELSEWHERE: (DifferentShard.code, 422),
}
"""The same for a job that is not stored: the code of the error, and the status."""
_STATUS_OF_OTHER_SHARD = 422
_WITH_RECORD = 5
"""How many values the script returns for a job whose record is one of them."""
_BEGUN_AT_ONCE = 50
"""How many topics of a batch begin their puts in the same turn of the event loop, which takes a millisecond."""
_CODES_ONLY = 0
"""For the script: return no jobs."""
_ALL_JOBS = 1 << 50
"""For the script: return every job, however large those are together that existed already."""
KEPT_BYTES = 1024 * 1024
"""How large the jobs that existed already may be together in the response to a batch."""
StoredPut = tuple[int, Any, str]
"""What a store call returns for one of its jobs: see `Puts._send`."""
_PutCommit = GroupCommit[EncodedPut, StoredPut]


WhyNoBatch = Callable[[str, str], Awaitable[DeferdError]]
"""Returns why the shard of a job does not have its batch, from the names of the batch and the topic."""


class PutOutcome(msgspec.Struct, frozen=True, gc=False):
    """A stored job, what the put did for it, and the durability that it has reached."""

    record: JobRecord
    outcome: Outcome
    durability: str


def outcome_of(put: EncodedPut, stored: StoredPut, bounds: PutBounds = NO_BOUNDS) -> PutOutcome:
    """The outcome of a put. Raises the errors of `Puts.put` that concern its job alone."""
    max_jobs, result, durability = stored
    if isinstance(result, int) or result[0] == _EXISTS:
        raise refusal(put, result, max_jobs, bounds, durability)
    outcome, _ = _OUTCOMES[result[0]]
    if result[0] >= _FOLLOWS:
        return PutOutcome(_read_follow_up(put, result), outcome, durability)
    return PutOutcome(read_reply(put.topic, put.id, result[1:]), outcome, durability)


def refusal(
    put: EncodedPut, result: int | Sequence[Any], max_jobs: int, bounds: PutBounds, durability: str | None = None
) -> DeferdError:
    """The error for a put that lua/put.lua refuses. `max_jobs` is the limit of the topic, 0 for none."""
    if not isinstance(result, int):
        return JobExists(put.topic, put.id, durability, JobState(result[1].decode()), result[2] or None)
    if result == _TOO_LARGE:
        return PayloadTooLarge(bounds.body_bytes, of_items=True)
    if result in {_NO_BATCH, _SEALED}:
        return (BatchNotFound if result == _NO_BATCH else BatchSealed)(put.batch or "")
    if result == _IN_PARTITIONS:
        return flow_refusal_of(put, ("body",))
    if result == _END_ELSEWHERE and put.end_topic is not None:
        return other_shard(put.end_topic, f"job {put.id!r} of topic {put.topic!r}")
    if result == _FULL:
        if bounds.max_jobs is not None and not 0 < max_jobs <= bounds.max_jobs:
            return TopicFull(put.topic, bounds.max_jobs, of_caller=True)
        return TopicFull(put.topic, max_jobs)
    return (JobReserved if result == _HELD else JobExists)(put.topic, put.id, durability)


def flow_refusal_of(put: EncodedPut, path: tuple[str | int, ...]) -> InvalidInput:
    """As `flow_refusal`, for a put."""
    return flow_refusal(put.topic, path, put.extra.get("gr"), put.extra.get("pr"))


def flow_refusal(topic: str, path: tuple[str | int, ...], group: str | None, priority: int | None) -> InvalidInput:
    """The error for a job with a group or a priority in a topic with several partitions. `path` leads to the job."""
    name, value = ("priority", priority) if group is None else ("group", group)
    return InvalidInput([FieldError((*path, name), f"must be left out: topic {topic!r} has several partitions", value)])


def _read_follow_up(put: EncodedPut, result: Sequence[Any]) -> JobRecord:
    record = read_record(put.topic, put.id, JobState.DELAYED, result[2])
    record.is_follow_up = True
    return record


class Puts:
    """Single puts, which share store calls by group commit, and batches, which use `throttle`."""

    def __init__(
        self, sender: PutSender, labels: metrics.TopicLabels, throttle: BulkThrottle, *, why_no_batch: WhyNoBatch
    ) -> None:
        self._sender = sender
        self._why_no_batch = why_no_batch
        self._labels = labels
        self._throttle = throttle
        self._home = sender.partitions.known.home
        self._commits: dict[str | None, _PutCommit] = {}
        self._commits_to_place: dict[str | None, _PutCommit] = {}
        """For puts whose due times must be placed; other puts are not checked."""
        has_shelf = sender.partitions.shelf.calls is not None
        self._commits_of_new_ids: dict[str | None, _PutCommit] = {} if has_shelf else self._commits
        """For puts that need not ask the shelf, and do not wait for those that do. They are not to be placed either."""

    async def put(self, spec: PutJob | EncodedPut, bounds: PutBounds = NO_BOUNDS) -> PutOutcome:
        """Store a job, ready at once when it is already due; return when it has reached its durability.

        Raises:
            JobExists: the id is taken and `on_conflict` is `reject`.
            JobReserved: `on_conflict` is `replace` and a consumer holds the old job.
            TopicFull: the topic holds its `max_jobs`, or the caller's.
            PayloadTooLarge: `on_conflict` is `append`, and the job would have too many items, or too large ones.
            DurabilityUnavailable: the store does not support the durability. Nothing was stored.
            InvalidInput: a zone or calendar of its window is unknown, or that never opens; the job has a group or a
                priority, and its topic several partitions; or the topic of its `on_end` has.
            BatchNotFound, BatchSealed: its batch does not exist, or takes no more jobs.
            DifferentShard: the topic of its `on_end`, or its batch, is in another shard.
        """
        put = spec if isinstance(spec, EncodedPut) else encode_put(spec, bounds)
        if put.to_place is not None:
            await self._sender.placer.check(put.to_place)
        home = self._home(put.topic, put.id)
        self._check_end(put, home, ("body",))
        stored = await self._commit_of(put).submit(home, put)
        try:
            return outcome_of(put, stored, bounds)
        except BatchNotFound as exc:
            raise await self._why_no_batch(exc.batch, put.topic) from None

    def add(self, put: EncodedPut, on_result: OnResult[StoredPut]) -> None:
        """As `put` for callers without a task, for a put that `may_add` allows; `outcome_of` reads the result."""
        self._commit_of(put).add(self._home(put.topic, put.id), put, on_result)

    def may_add(self, put: EncodedPut) -> bool:
        """Whether `add` takes it: its window needs no check, or has had one, and its end puts and counts nothing."""
        if put.batch is not None:
            return False
        to_place = put.to_place
        if put.end_topic is not None:
            return False
        if to_place is None or not to_place.window or to_place.window[0] != '"':
            return True  # a window that is not the name of a calendar is checked when it is read
        return self._sender.placer.is_checked(to_place)

    def _check_end(self, put: EncodedPut, home: str, path: tuple[str | int, ...]) -> None:
        if put.end_topic is not None:
            check_end_topic(self._sender.keys, (home,), put.end_topic, path)

    def _commit_of(self, put: EncodedPut) -> _PutCommit:
        """The group commit of puts that name the same durability, or none."""
        to_place = put.to_place is not None
        commits = self._commits_of_new_ids if put.has_new_id else self._commits
        if to_place:
            commits = self._commits_to_place
        commit = commits.get(put.durability)
        if commit is None:
            send = partial(self._send, _level(put.durability), to_place)
            commit = commits[put.durability] = GroupCommit(send, size=size_of_put, most_items=MOST_JOBS)
        return commit

    async def _send(
        self, level: int | None, to_place: bool, topic: str, jobs: list[EncodedPut]
    ) -> list[StoredPut | StoreUnavailable]:
        """For each job the topic's `max_jobs`, its result, and the durability that it has reached; or its error.

        The result is a code below 0, or the code and the job as it is stored.
        """
        max_jobs, results, reached = await self._sender.put(
            topic, level, _ALL_JOBS, jobs, nullcontext, to_place=to_place
        )
        codes = [
            result if isinstance(result, int) else result[0]
            for result in results
            if not isinstance(result, StoreUnavailable)
        ]
        self.count(topic, codes)
        durability = name_of(reached)
        return [
            result if isinstance(result, StoreUnavailable) else (max_jobs, result, durability) for result in results
        ]

    async def put_many(self, specs: Sequence[PutJob | EncodedPut], bounds: PutBounds = NO_BOUNDS) -> list[PutResult]:
        """Store jobs; each has its own result, in order.

        When the store fails in the middle, the jobs it did not confirm have status 503 and may or may not be stored;
        repeating the call with the same ids is safe. Jobs of one topic and durability are stored in their order, and
        so are jobs with the same id.

        Raises:
            StoreUnavailable: the store confirmed none of them.
            DurabilityUnavailable: the store supports the durability of none of them. Nothing was stored.
        """
        return await (await self._batch(specs, bounds)).put()

    async def put_many_with_jobs(
        self, specs: Sequence[PutJob | EncodedPut], bounds: PutBounds = NO_BOUNDS
    ) -> list[tuple[PutResult, JobRecord | None]]:
        """As `put_many`, with the job of each result as it is stored.

        None for a result without one, and for jobs that existed already and do not fit into KEPT_BYTES.
        """
        batch = await self._batch(specs, bounds, with_jobs=True)
        return [(result, batch.records.get(index)) for index, result in enumerate(await batch.put())]

    async def _batch(
        self, specs: Sequence[PutJob | EncodedPut], bounds: PutBounds, *, with_jobs: bool = False
    ) -> _Batch:
        jobs = [spec if isinstance(spec, EncodedPut) else encode_put(spec, bounds) for spec in specs]
        known = self._sender.partitions.known
        for index, job in enumerate(jobs) if known.layouts else ():
            if job.has_flow and known.count(job.topic) > 1:
                raise flow_refusal_of(job, ("body", "jobs", index))
        to_place = await self._check(jobs)
        homes = [self._home(job.topic, job.id) for job in jobs]
        for index, (job, home) in enumerate(zip(jobs, homes, strict=True)):
            self._check_end(job, home, ("body", "jobs", index))
        return _Batch(self, self._sender, self._throttle, jobs, homes, to_place=to_place, with_jobs=with_jobs)

    async def _check(self, jobs: Sequence[EncodedPut]) -> bool:
        """Check all windows of a batch; returns whether the due time of any job is to be placed."""
        distinct = {job.to_place for job in jobs}
        if distinct == {None}:
            return False
        slice_ = TimeSlice()
        for index, job in enumerate(jobs):
            if job.to_place in distinct and job.to_place is not None:
                await self._sender.placer.check(job.to_place, ("body", "jobs", index))
                distinct.remove(job.to_place)
                await slice_.end_if_over()
        return True

    async def batches_elsewhere(self, jobs: Sequence[EncodedPut], replies: Sequence[Any]) -> set[str | None]:
        """Of the batches that the shard of some jobs does not have, those that are in another one."""
        missing = {job.batch: job for job, reply in zip(jobs, replies, strict=True) if reply == _NO_BATCH}
        errors = {name: await self._why_no_batch(name or "", job.topic) for name, job in missing.items()}
        return {name for name, error in errors.items() if isinstance(error, DifferentShard)}

    def count(self, topic: str, codes: Sequence[int]) -> None:
        """Count the outcomes of puts into a topic."""
        label = self._labels.label(topic)
        counts = self._labels.counted.of(topic)
        created = codes.count(_CREATED)
        if created:
            metrics.puts_of(label, "created").inc(created)
            counts.put += created
        if created < len(codes):
            counts.put += codes.count(_REPLACED) + codes.count(_FOLLOWS)
            for code, count in Counter(code for code in codes if code != _CREATED).items():
                outcome = _OUTCOMES[code][0] if code in _OUTCOMES else "full" if code == _FULL else "refused"
                metrics.puts_of(label, outcome).inc(count)


def result_of(put: EncodedPut, reply: int | Sequence[Any], level: str) -> tuple[int, PutResult]:
    """The code that lua/put.lua returned for a put, and the put's result in a response."""
    code, state, until_ms = _noted(reply)
    error_code, status = _REFUSALS[code] if code in _REFUSALS else (None, _OUTCOMES[code][1])
    return code, PutResult(
        topic=put.topic,
        id=put.id,
        status=status,
        code=error_code,
        durability=level if code > 0 or code in {_EXISTS, _HELD} else None,
        state=state,
        until=None if until_ms is None else instant(until_ms),
        is_follow_up=code >= _FOLLOWS,
    )


def _noted(reply: int | Sequence[Any]) -> tuple[int, JobState | None, int | None]:
    """The code in what the script returned for a job; of a job that was there its state, and when it is gone."""
    if isinstance(reply, int):
        return reply, JobState.RESERVED if reply == _HELD else None, None
    code: int = reply[0]
    if code not in {_KEPT, _EXISTS}:
        return code, None, None
    return code, JobState(reply[1].decode()), reply[2] or None if code == _EXISTS else None


class _Batch:
    """The jobs of one `put_many`: partitions at the same time, each in bounded steps."""

    def __init__(
        self,
        puts: Puts,
        sender: PutSender,
        throttle: BulkThrottle,
        jobs: Sequence[EncodedPut],
        homes: Sequence[str],
        *,
        to_place: bool,
        with_jobs: bool = False,
    ) -> None:
        self._to_place = to_place
        self._homes = homes
        self._puts = puts
        self._sender = sender
        self._throttle = throttle
        self._jobs = jobs
        self._results: dict[int, PutResult] = {}
        self._kept_bytes_each = max(KEPT_BYTES // len(jobs), 1) if with_jobs else _CODES_ONLY
        self.records: dict[int, JobRecord] = {}
        """The stored jobs by the index of their put."""
        self._errors: dict[int, StoreUnavailable | DurabilityUnavailable] = {}
        """By status, 503 or 422: what to raise if every job failed."""
        self._domain_errors: dict[int, StoreUnavailable] = {}
        self._level_errors: dict[str | tuple[str], StoreUnavailable] = {}
        """By durability, or by topic for its default."""

    async def put(self) -> list[PutResult]:
        homes = set(self._homes)
        if len(homes) == 1:
            await self._put_topic(homes.pop(), range(len(self._jobs)))
        else:
            of_home: dict[str, list[int]] = {}
            for index, home in enumerate(self._homes):
                of_home.setdefault(home, []).append(index)
            async with asyncio.TaskGroup() as group:
                for begun, (home, indexes) in enumerate(of_home.items(), 1):
                    group.create_task(self._put_topic(home, indexes))
                    if begun % _BEGUN_AT_ONCE == 0:
                        await asyncio.sleep(0)
        results = [self._results[index] for index in range(len(self._jobs))]
        if self._errors and all(result.status in self._errors for result in results):
            raise self._errors[max(self._errors)]
        return results

    async def _put_topic(self, topic: str, indexes: Sequence[int]) -> None:
        for durability, some in self._by_durability(indexes):
            for start in range(0, len(some), MOST_JOBS):  # one after the other: an id may occur twice
                await self._put_step(topic, durability, some[start : start + MOST_JOBS])

    async def _put_step(self, topic: str, durability: str | None, indexes: Sequence[int]) -> None:
        jobs = [self._jobs[index] for index in indexes]
        level_key = durability or (topic,)
        try:
            if level_key in self._level_errors:  # wait only once for replicas that are away
                raise self._level_errors[level_key]
            kept_bytes = self._kept_bytes_each * len(indexes)
            slot = partial(self._slot, topic)
            _, replies, reached = await self._sender.put(
                topic, _level(durability), kept_bytes, jobs, slot, to_place=self._to_place
            )
        except (StoreUnavailable, DurabilityUnavailable) as exc:
            status = 422
            if isinstance(exc, StoreUnavailable):
                status = 503
                self._level_errors[level_key] = exc
            if status not in self._errors or stored_nothing(self._errors[status]):  # prefer one that may have stored
                self._errors[status] = exc
            for index, job in zip(indexes, jobs, strict=True):
                self._results[index] = PutResult(topic=job.topic, id=job.id, status=status, code=exc.code)
            return
        level = name_of(reached)
        if replies.count(_CREATED) == len(jobs):
            self._puts.count(topic, replies)
            name = topic_of(topic)
            created = [PutResult(topic=name, id=job.id, status=201, durability=level) for job in jobs]
            self._results.update(zip(indexes, created, strict=True))
            return
        codes = []
        other_shards = await self._puts.batches_elsewhere(jobs, replies)
        for index, job, reply in zip(indexes, jobs, replies, strict=True):
            if isinstance(reply, StoreUnavailable):
                self._results[index] = PutResult(topic=job.topic, id=job.id, status=503, code=reply.code)
                continue
            self._note_record(index, reply)
            code, self._results[index] = result_of(job, reply, level)
            codes.append(code)
            if code == _NO_BATCH and job.batch in other_shards:
                self._results[index] = PutResult(
                    topic=job.topic, id=job.id, status=_STATUS_OF_OTHER_SHARD, code=DifferentShard.code
                )
        self._puts.count(topic, codes)

    def _by_durability(self, indexes: Sequence[int]) -> Iterable[tuple[str | None, Sequence[int]]]:
        durabilities = {self._jobs[index].durability for index in indexes}
        if len(durabilities) == 1:
            return [(durabilities.pop(), indexes)]
        return _by_durability([(self._jobs[index].durability, self._jobs[index].id, index) for index in indexes])

    def _note_record(self, index: int, reply: int | Sequence[Any]) -> None:
        """Keep the stored job if the script returned it."""
        if isinstance(reply, int):
            return
        if reply[0] >= _FOLLOWS and reply[2]:
            self.records[index] = _read_follow_up(self._jobs[index], reply)
        if len(reply) == _WITH_RECORD:
            self.records[index] = read_reply(self._jobs[index].topic, self._jobs[index].id, reply[1:])

    @asynccontextmanager
    async def _slot(self, topic: str) -> AsyncIterator[None]:
        """A slot of the throttle; raises at once when this batch has already failed in the same failure domain."""
        domain = self._throttle.failure_domain(topic)
        async with self._throttle.slot(topic, len(self._jobs)):
            if domain in self._domain_errors:  # wait only once for a shard that is away
                raise self._domain_errors[domain]
            try:
                yield
            except StoreUnavailable as exc:
                self._domain_errors[domain] = exc
                raise


def _by_durability(jobs: Sequence[tuple[str | None, str, int]]) -> Iterable[tuple[str | None, list[int]]]:
    """Group the indexes of jobs (durability, id, index) of one topic by durability.

    If an id occurs with two durabilities, only neighbours are grouped, which keeps the order of the jobs.
    """
    together: dict[str | None, list[int]] = {}
    durabilities: dict[str, str | None] = {}
    for durability, job_id, index in jobs:
        together.setdefault(durability, []).append(index)
        if durabilities.setdefault(job_id, durability) != durability:
            break
    else:
        return together.items()
    return [(durability, [job[2] for job in run]) for durability, run in groupby(jobs, key=itemgetter(0))]


def _level(durability: str | None) -> int | None:
    return None if durability is None else level_named(durability)


_REMEMBERED_MAX = 10_000


class Stored(NamedTuple):
    """What the put script returned, and the durability level that its jobs reached."""

    max_jobs: int
    results: list[Any]
    level: int


class _Place(NamedTuple):
    """A partition, and the number of partitions by which it was chosen.

    With `held_id` it belongs to a former number, and gets only jobs with this id, which it already has.
    """

    partition: str
    partitions: int
    held_id: str | None = None


class _Call(msgspec.Struct):
    """A call of `PutSender.put`: its arguments and its progress."""

    jobs: Sequence[EncodedPut]
    level: int | None
    with_records: int
    slot: Slot
    to_place: bool
    corrected: Terms | None = None
    """The terms to try next, which the script returned because the earlier ones were outdated."""
    results: dict[int, Any] = {}
    """By the index of the job."""
    stored: list[Stored] = []


class PutSender:
    """Sends puts to the partitions that their ids belong to, by the terms that are known of their topic.

    Only the put script knows the settings of a topic; `Terms` says what happens when those that were known are
    outdated. Default durabilities that need replicas are remembered, as defaults for due times are (by the placer), so
    that this happens once; an outdated one costs one more round trip.
    """

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        placer: DueTimePlacer,
        partitions: PartitionStore,
        durable_calls: DurableCalls,
    ) -> None:
        self.placer = placer
        self.partitions = partitions
        self._shelf = partitions.shelf
        self._scripts = scripts
        self.keys = keys
        self._durable_calls = durable_calls
        self._defaults: dict[str, int] = {}
        """By partition: the default durability of its topic as last seen; only defaults that need replicas."""

    async def put(
        self,
        topic: str,
        level: int | None,
        with_records: int,
        jobs: Sequence[EncodedPut],
        slot: Slot,
        *,
        to_place: bool = False,
    ) -> Stored:
        """Run the put script on `jobs`, which reach `level`; None: the topic's default.

        `topic` is the partition that the jobs belong to, as far as the caller knows; if its topic has got more of them,
        each job is put where it belongs. `with_records` is passed to the script. `slot` is held around each call,
        except those that wait for replicas. `to_place`: some of the jobs have a window or spread, and due times that
        are not placed yet.

        While jobs may be in partitions of a former number, the jobs of one call may go to several partitions. A job
        whose partition cannot be reached then has that error as its result, if the others were stored.

        Raises:
            DurabilityUnavailable: the store does not support the level. Nothing was stored.
            StoreUnavailable: also when the level was not reached in time; then the jobs may be stored.
        """
        call = _Call(jobs, level, with_records, slot, to_place)
        layout = self.keys.partitions.layouts.get(topic_of(topic))
        if layout is None:
            belong, partitions = SEPARATOR not in topic, 1
        else:
            belong = len(layout.counts) == 1 and all(layout.home(job.topic, job.id) == topic for job in jobs)
            belong = belong and (layout.count == 1 or not any(job.has_flow for job in jobs))
            partitions = layout.count
        if belong:
            outcome = await self._put_into(_Place(topic, partitions), jobs, call)
            if isinstance(outcome, Stored):
                return outcome
            if _has_other_partitions(outcome, partitions):
                await self.partitions.refresh(topic_of(topic))
        gave_up = f"the settings of topic {topic_of(topic)!r} kept changing during the put"
        return await until_done(partial(self._put_where_they_belong, topic_of(topic), call), gave_up)

    async def _put_where_they_belong(self, topic: str, call: _Call) -> Stored | None:
        """Put the remaining jobs where their ids are held or belong now. None: some still remain."""
        layout = self.keys.partitions.layout_of(topic)  # the same one throughout: the script compares its number
        if layout.count > 1:
            call.results.update((at, _IN_PARTITIONS) for at, job in enumerate(call.jobs) if job.has_flow)
        left = [at for at in range(len(call.jobs)) if at not in call.results]
        held = await self.partitions.held_by_former(topic, layout, [call.jobs[at].id for at in left])
        if held is None:
            await self.partitions.spread(topic)
            return None
        places: dict[_Place, list[int]] = {}
        for at in left:
            job_id = call.jobs[at].id
            former = held.get(job_id)
            if isinstance(former, StoreUnavailable):
                call.results[at] = former
                continue
            home = layout.home(topic, job_id)
            place = _Place(home, layout.count) if former is None else _Place(former, layout.count, job_id)
            end_topic = call.jobs[at].end_topic
            if end_topic is not None and self.keys.shard_of(end_topic) != self.keys.shard_of(place.partition):
                call.results[at] = _END_ELSEWHERE
                continue
            places.setdefault(place, []).append(at)
        # Those that are held first: what is held no more goes home with the others, in the order of the jobs.
        of_former = {place: indexes for place, indexes in places.items() if place.held_id is not None}
        at_home = {place: indexes for place, indexes in places.items() if place.held_id is None}
        outcomes = await self._put_into_all(of_former, call)
        if all(at in call.results for indexes in of_former.values() for at in indexes):
            outcomes += await self._put_into_all(at_home, call)
        if len(call.results) == len(call.jobs):
            results = [call.results[at] for at in range(len(call.jobs))]
            if not call.stored:
                for result in results:
                    if isinstance(result, StoreUnavailable):
                        raise result
                return Stored(0, results, MEMORY)
            return Stored(call.stored[0].max_jobs, results, min(one.level for one in call.stored))
        if any(_has_other_partitions(outcome, layout.count) for outcome in outcomes):
            await self.partitions.spread(topic)
        return None

    async def _put_into_all(self, places: dict[_Place, list[int]], call: _Call) -> list[Any]:
        """Put jobs into partitions, by the indexes of the jobs of each; what `_put_into` returned, or the errors."""
        outcomes = await asyncio.gather(
            *(self._put_into(place, [call.jobs[at] for at in indexes], call) for place, indexes in places.items()),
            return_exceptions=True,
        )
        for (place, indexes), outcome in zip(places.items(), outcomes, strict=True):
            if isinstance(outcome, StoreUnavailable):
                call.results.update(dict.fromkeys(indexes, outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
            elif isinstance(outcome, Stored):
                call.stored.append(outcome)
                call.results.update(zip(indexes, outcome.results, strict=place.held_id is None))
        return outcomes

    async def _put_into(self, place: _Place, jobs: Sequence[EncodedPut], call: _Call) -> Stored | Terms | None:
        """Put jobs into a partition.

        If nothing was stored because the terms were outdated, returns the terms to try next, which are also in `call`.
        None: the partition does not hold the id any more. Of a held id only the first jobs may be stored.
        """
        partition, is_named = place.partition, call.level is not None
        is_remembered = call.corrected is None
        if call.corrected is None:
            default, due_defaults = self._defaults.get(partition, MEMORY), self.placer.defaults_of(partition)
        else:
            default, _, due_defaults, _ = call.corrected
        level = default if call.level is None else call.level
        if call.to_place or due_defaults:
            placed = await self.placer.place_puts(partition, jobs, due_defaults)
        else:
            placed = list(chain.from_iterable([(job.id, job.job) for job in jobs]))
        asked = Asked(NO_SHELF, ())
        if self._shelf.calls is not None:
            ids = [job.id for job in jobs if not job.has_new_id]
            asked = Asked(await self._shelf.ask(partition, ids), ids)

        async def send(reached: int, sending: Sending) -> list[Any]:
            terms = Terms(ANY_DEFAULT if is_named else reached, place.partitions, due_defaults, asked.generation)
            verb = "put" if place.held_id is None else "put_where_held"
            args = (partition, call.with_records, terms.argument(), *placed)
            reply: list[Any] = await self._scripts.run(verb, self.keys.of_topic(partition), args, sending=sending)
            return reply

        try:
            reply, reached = await self._durable_calls.run(
                partition, level, send, call.slot, default_of=None if is_named else partition
            )
        except (DurabilityUnavailable, StoreUnavailable) as error:
            if is_named or level == MEMORY or not (is_remembered and stored_nothing(error)):
                raise
            # The default may be outdated: the script returns the new one.
            terms = call.corrected = Terms(MEMORY, place.partitions, due_defaults)
            return terms
        self._shelf.note_done(partition, asked)
        return self._read(partition, reply, reached, call)

    def _read(self, partition: str, reply: list[Any], reached: int, call: _Call) -> Stored | Terms | None:
        """Turn a reply into what `_put_into` returns."""
        outcome, *rest = reply
        if outcome == OUTDATED:
            terms = call.corrected = read_terms(rest)
            if terms.asked:
                self._shelf.note_shelved(partition, terms.asked)
            self._note_default(partition, terms.durability)
            self.placer.note_defaults(partition, terms.due_defaults)
            return terms
        if outcome != DONE:
            return None
        max_jobs, results, default = rest
        self._note_default(partition, default)
        if reached < (min(default, FSYNC) if call.level is None else call.level):
            raise lost_durability()
        return Stored(max_jobs, results, reached)

    def _note_default(self, partition: str, level: int) -> None:
        """Remember the default durability of a partition's topic."""
        if is_replicated(level):
            if len(self._defaults) == _REMEMBERED_MAX:
                self._defaults.clear()
            self._defaults[partition] = level
        elif self._defaults:
            self._defaults.pop(partition, None)


def _has_other_partitions(outcome: Stored | Terms | BaseException | None, partitions: int) -> bool:
    """Whether the result of `_put_into` shows that the topic has, or had, another number of partitions."""
    return outcome is None or (isinstance(outcome, Terms) and outcome.partitions != partitions)
