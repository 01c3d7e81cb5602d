"""Putting jobs: one at a time, joined with those that come at the same time, or many in one call."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from deferd.contract.errors import (
    DeferdError,
    DurabilityUnavailable,
    JobExists,
    JobReserved,
    StoreUnavailable,
    TopicFull,
)
from deferd.contract.model import PutJob
from deferd.engine import bulk_throttle, metrics
from deferd.engine.bulk_throttle import BulkThrottle
from deferd.engine.durability import PutSender, stored_nothing
from deferd.engine.group_commit import GroupCommit
from deferd.engine.known_topics import KnownTopics
from deferd.engine.record import JobRecord, read_reply
from deferd.engine.script_arguments import NO_BOUNDS, Args, PutBounds, new_id, put_args, size
from deferd.store.durability_levels import level_named, name_of

_CREATED, _KEPT, _REPLACED, _EXISTS, _HELD, _FULL = 1, 2, 3, -1, -2, -3
_OUTCOMES: dict[int, Literal["created", "kept", "replaced"]] = {
    _CREATED: "created",
    _KEPT: "kept",
    _REPLACED: "replaced",
}
_STATUS: dict[int, tuple[int, str | None]] = {
    _CREATED: (201, None),
    _KEPT: (200, None),
    _REPLACED: (200, None),
    _EXISTS: (409, JobExists.code),
    _HELD: (409, JobReserved.code),
    _FULL: (429, TopicFull.code),
}
_Joined = GroupCommit[Args, tuple[int, Any, str]]


@dataclass(frozen=True, slots=True)
class PutOutcome:
    """A job that is in the store, what the put had to do for it, and the durability that it has reached."""

    record: JobRecord
    outcome: Literal["created", "kept", "replaced"]
    durability: str


class PutResult(NamedTuple):
    """One line of a batch put's answer; `status` as the HTTP contract numbers it, `code` None when it is well.

    `durability` is the level at which a job stands that is there; None when none is, or nobody knows.
    """

    topic: str
    id: str
    status: int
    code: str | None
    durability: str | None = None


class Puts:
    """Puts by the ways of `ways`; calls for many jobs take turns in `turns`."""

    def __init__(self, ways: PutSender, labels: metrics.TopicLabels, turns: BulkThrottle, known: KnownTopics) -> None:
        self._ways = ways
        self._label = labels.label
        self._bulk = turns
        self._known = known
        self._joiners: dict[str | None, _Joined] = {}

    async def put(self, spec: PutJob, bounds: PutBounds = NO_BOUNDS) -> PutOutcome:
        """Store a job, ready at once when it is due already; returns when it is as durable as it asks to be.

        Raises:
            JobExists: the id is taken and `on_conflict` is `reject`.
            JobReserved: `on_conflict` is `replace` and a consumer holds the old job.
            TopicFull: the topic holds its `max_jobs`, or the caller's.
            DurabilityUnavailable: the store cannot make it that durable. Nothing was stored.
        """
        job_id = spec.id or new_id()
        joiner = self._joiners.get(spec.durability) or self._new_joiner(spec.durability)
        of_topic, answer, durability = await joiner.ask(spec.topic, put_args(spec, job_id, bounds))
        if isinstance(answer, int):
            if answer == _FULL:
                if bounds.max_jobs is not None and not 0 < of_topic <= bounds.max_jobs:
                    raise TopicFull(spec.topic, bounds.max_jobs, of_caller=True)
                raise TopicFull(spec.topic, of_topic)
            raise (JobReserved if answer == _HELD else JobExists)(spec.topic, job_id, durability)
        return PutOutcome(read_reply(spec.topic, job_id, answer[1:]), _OUTCOMES[answer[0]], durability)

    def _new_joiner(self, durability: str | None) -> _Joined:
        """For the puts that name this durability; None, the usual, for those that name none."""
        joiner = GroupCommit(partial(self._send, _level(durability)), size=size, most_items=bulk_throttle.MOST_JOBS)
        self._joiners[durability] = joiner
        return joiner

    async def _send(self, level: int | None, topic: str, jobs: list[Args]) -> list[tuple[int, Any, str]]:
        """For each job the topic's `max_jobs`; the code (below 0), or the code and the job as it is stored; and the
        durability at which that stands.
        """
        max_jobs, answers, reached = await self._ways.put(topic, level, 1, chain.from_iterable(jobs), nullcontext)
        self._count(topic, [answer if isinstance(answer, int) else answer[0] for answer in answers])
        durability = name_of(reached)
        return [(max_jobs, answer, durability) for answer in answers]

    async def put_many(self, specs: Sequence[PutJob], bounds: PutBounds = NO_BOUNDS) -> list[PutResult]:
        """Store jobs, each answered on its own and in order.

        When the store fails in the middle, the jobs it did not confirm have status 503 and may or may not be
        stored; asking again with the same ids is safe. Jobs of one topic and durability are stored in their order, and
        so are those that have one id.

        Raises:
            StoreUnavailable: the store confirmed none of them.
            DurabilityUnavailable: the store cannot make any of them as durable as it asks to be. Nothing was stored.
        """
        of_topic: dict[str, list[int]] = {}
        ids = [spec.id or new_id() for spec in specs]
        for index, spec in enumerate(specs):
            of_topic.setdefault(spec.topic, []).append(index)
        results: list[PutResult | None] = [None] * len(specs)
        refusals: dict[int, DeferdError] = {}
        failures: dict[int, StoreUnavailable] = {}
        out_of_reach: dict[str | tuple[str], StoreUnavailable] = {}

        @asynccontextmanager
        async def turn(topic: str) -> AsyncIterator[None]:
            part = self._bulk.part_of(topic)
            async with self._bulk.turn(topic):
                if part in failures:  # one wait for a part of the store that is away is enough
                    raise failures[part]
                try:
                    yield
                except StoreUnavailable as exc:
                    failures[part] = exc
                    raise

        async def put_some(topic: str, durability: str | None, indexes: list[int]) -> None:
            args = chain.from_iterable(put_args(specs[index], ids[index], bounds) for index in indexes)
            way = durability or (topic,)  # the topic's own
            try:
                if way in out_of_reach:  # one wait for replicas that are away is enough, too
                    raise out_of_reach[way]
                _, codes, reached = await self._ways.put(topic, _level(durability), 0, args, partial(turn, topic))
            except (StoreUnavailable, DurabilityUnavailable) as exc:
                status = 422
                if isinstance(exc, StoreUnavailable):
                    status = 503
                    out_of_reach[way] = exc
                if status not in refusals or stored_nothing(refusals[status]):  # else they leave a doubt, which counts
                    refusals[status] = exc
                for index in indexes:
                    results[index] = PutResult(topic, ids[index], status, exc.code)
                return
            self._count(topic, codes)
            level = name_of(reached)
            for index, code in zip(indexes, codes, strict=True):
                status, problem = _STATUS[code]
                results[index] = PutResult(topic, ids[index], status, problem, None if code == _FULL else level)

        async def put_topic(topic: str, indexes: list[int]) -> None:
            for durability, some in _by_durability([(specs[index].durability, ids[index], index) for index in indexes]):
                for start in range(0, len(some), bulk_throttle.MOST_JOBS):  # in order: an id may come twice
                    await put_some(topic, durability, some[start : start + bulk_throttle.MOST_JOBS])

        async with asyncio.TaskGroup() as group:
            for topic, indexes in of_topic.items():
                group.create_task(put_topic(topic, indexes))
        lines = [result for result in results if result is not None]
        if refusals and all(line.status in refusals for line in lines):
            raise refusals[max(refusals)]
        return lines

    def _count(self, topic: str, codes: Sequence[int]) -> None:
        self._known.met(topic)
        label = self._label(topic)
        for outcome, count in Counter(_OUTCOMES.get(code, "refused") for code in codes).items():
            metrics.PUTS.labels(label, outcome).inc(count)


def _by_durability(jobs: Sequence[tuple[str | None, str, int]]) -> Iterable[tuple[str | None, list[int]]]:
    """The indexes of jobs (durability, id, index) of one topic that can go together, in the order to put them in.

    That of the jobs is kept where one id is there with two durabilities.
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
