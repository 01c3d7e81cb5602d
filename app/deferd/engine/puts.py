"""Puts jobs: single ones, which share store calls by group commit, and batches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

import msgspec

from deferd.contract.errors import (
    DurabilityUnavailable,
    JobExists,
    JobReserved,
    PayloadTooLarge,
    StoreUnavailable,
    TopicFull,
)
from deferd.contract.model import JobState, PutJob
from deferd.contract.responses.job_calls import PutResult
from deferd.contract.timestamps import instant
from deferd.engine import metrics
from deferd.engine.bulk_throttle import MOST_JOBS, BulkThrottle
from deferd.engine.durability import stored_nothing
from deferd.engine.group_commit import GroupCommit, OnResult
from deferd.engine.partitions import topic_of
from deferd.engine.put_sender import PutSender
from deferd.engine.record import JobRecord, read_record, read_reply
from deferd.engine.script_arguments import NO_BOUNDS, EncodedPut, PutBounds, encode_put, size_of_put
from deferd.engine.time_slice import TimeSlice
from deferd.store.durability_levels import level_named, name_of

_CREATED, _KEPT, _REPLACED, _EXISTS, _HELD, _FULL = 1, 2, 3, -1, -2, -3
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
}
"""The same for a job that is not stored: the code of the error, and the status."""
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
) -> TopicFull | JobReserved | JobExists | PayloadTooLarge:
    """The error for a put that lua/put.lua refuses. `max_jobs` is the limit of the topic, 0 for none."""
    if not isinstance(result, int):
        return JobExists(put.topic, put.id, durability, JobState(result[1].decode()), result[2] or None)
    if result == _TOO_LARGE:
        return PayloadTooLarge(bounds.body_bytes, of_items=True)
    if result == _FULL:
        if bounds.max_jobs is not None and not 0 < max_jobs <= bounds.max_jobs:
            return TopicFull(put.topic, bounds.max_jobs, of_caller=True)
        return TopicFull(put.topic, max_jobs)
    return (JobReserved if result == _HELD else JobExists)(put.topic, put.id, durability)


def _read_follow_up(put: EncodedPut, result: Sequence[Any]) -> JobRecord:
    record = read_record(put.topic, put.id, JobState.DELAYED, result[2])
    record.is_follow_up = True
    return record


class Puts:
    """Single puts, which share store calls by group commit, and batches, which use `throttle`."""

    def __init__(self, sender: PutSender, labels: metrics.TopicLabels, throttle: BulkThrottle) -> None:
        self._sender = sender
        self._labels = labels
        self._throttle = throttle
        self._home = sender.partitions.known.home
        self._commits: dict[str | None, _PutCommit] = {}
        self._commits_to_place: dict[str | None, _PutCommit] = {}
        """For puts whose due times must be placed; other puts are not checked."""

    async def put(self, spec: PutJob | EncodedPut, bounds: PutBounds = NO_BOUNDS) -> PutOutcome:
        """Store a job, ready at once when it is already due; return when it has reached its durability.

        Raises:
            JobExists: the id is taken and `on_conflict` is `reject`.
            JobReserved: `on_conflict` is `replace` and a consumer holds the old job.
            TopicFull: the topic holds its `max_jobs`, or the caller's.
            PayloadTooLarge: `on_conflict` is `append`, and the job would have too many items, or too large ones.
            DurabilityUnavailable: the store does not support the durability. Nothing was stored.
            InvalidInput: a zone or calendar of its window is unknown, or that never opens.
        """
        put = spec if isinstance(spec, EncodedPut) else encode_put(spec, bounds)
        if put.placing is not None:
            await self._sender.placer.check(put.placing)
        return outcome_of(put, await self._commit_of(put).submit(self._home(put.topic, put.id), put), bounds)

    def add(self, put: EncodedPut, on_result: OnResult[StoredPut]) -> None:
        """As `put` for callers without a task, for a put that `may_add` allows; `outcome_of` reads the result."""
        self._commit_of(put).add(self._home(put.topic, put.id), put, on_result)

    def may_add(self, put: EncodedPut) -> bool:
        """Whether `add` takes the put: its window needs no check, or has had one."""
        placing = put.placing
        if placing is None or not placing.window or placing.window[0] != '"':  # windows are checked when they are read
            return True
        return self._sender.placer.is_checked(placing)

    def _commit_of(self, put: EncodedPut) -> _PutCommit:
        """The group commit of puts that name the same durability, or none."""
        to_place = put.placing is not None
        commits = self._commits_to_place if to_place else self._commits
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
        to_place = await self._check(jobs)
        homes = [self._home(job.topic, job.id) for job in jobs]
        return _Batch(self, self._sender, self._throttle, jobs, homes, to_place=to_place, with_jobs=with_jobs)

    async def _check(self, jobs: Sequence[EncodedPut]) -> bool:
        """Check all windows of a batch; returns whether the due time of any job is to be placed."""
        distinct = {job.placing for job in jobs}
        if distinct == {None}:
            return False
        slice_ = TimeSlice()
        for index, job in enumerate(jobs):
            if job.placing in distinct and job.placing is not None:
                await self._sender.placer.check(job.placing, ("body", "jobs", index))
                distinct.remove(job.placing)
                await slice_.end_if_over()
        return True

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
                outcome = _OUTCOMES[code][0] if code in _OUTCOMES else "refused"
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
        durability=None if code in {_FULL, _TOO_LARGE} else level,
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
        for index, job, reply in zip(indexes, jobs, replies, strict=True):
            if isinstance(reply, StoreUnavailable):
                self._results[index] = PutResult(topic=job.topic, id=job.id, status=503, code=reply.code)
                continue
            self._note_record(index, reply)
            code, self._results[index] = result_of(job, reply, level)
            codes.append(code)
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
