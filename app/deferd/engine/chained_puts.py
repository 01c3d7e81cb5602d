"""Finishes that put other jobs: all of it in one step of the store, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from deferd.contract.errors import BatchNotFound, DifferentShard, StoreUnavailable
from deferd.contract.model import PutJob
from deferd.contract.operations.jobs import PutResult
from deferd.engine.deliveries import CANCELLED, NOT_FOUND, OK
from deferd.engine.ends import check_end_topic
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import topic_of
from deferd.engine.placement import (
    ANY_DEFAULT,
    NO_DEFAULTS,
    OUTDATED,
    REFUSED,
    DueTimePlacer,
    Terms,
    read_terms,
    until_done,
)
from deferd.engine.puts import WhyNoBatch, flow_refusal_of, refusal, result_of
from deferd.engine.record import Receipt
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import NO_BOUNDS, EncodedFinish, EncodedPut, PutBounds, encode_finish, encode_put
from deferd.engine.scripts import DurableCalls, Scripts, Sending, lost_durability
from deferd.store.durability_levels import FSYNC, MEMORY, level_named, name_of


class Chained(NamedTuple):
    """The code of the finish, as in lua/finish.lua, and what became of the puts.

    `codes` are what lua/put.lua returned, by partition, and `run_times` what lua/finish.lua returned. All of these are
    empty if the job was not finished now.
    """

    code: int
    results: list[PutResult]
    codes: dict[str, list[int]]
    run_times: Sequence[int] = ()


class _Group(NamedTuple):
    """The puts into one of a number of partitions."""

    partition: str
    partitions: int
    puts: list[EncodedPut]

    @property
    def takes_default(self) -> bool:
        """Whether one of the puts names no durability, so that the default of the topic matters."""
        return any(put.durability is None for put in self.puts)


@dataclass(slots=True)
class _Call:
    """A call of `ChainedPuts.finish`.

    `level` is what its puts are to reach: the highest of theirs, or the default of a topic, of which `default_of` is a
    partition.
    """

    finish: EncodedFinish
    puts: list[EncodedPut]
    bounds: PutBounds
    level: int
    default_of: str | None = None


class ChainedPuts:
    """Runs finishes with puts. All jobs must belong into one shard."""

    def __init__(
        self,
        scripts: Scripts,
        keys: Keys,
        placer: DueTimePlacer,
        partitions: PartitionStore,
        durable_calls: DurableCalls,
        *,
        why_no_batch: WhyNoBatch,
    ) -> None:
        self._why_no_batch = why_no_batch
        self._scripts = scripts
        self._keys = keys
        self._placer = placer
        self._partitions = partitions
        self._shelf = partitions.shelf
        self._durable_calls = durable_calls

    async def finish(
        self,
        topic: str,
        job_id: str,
        receipt: Receipt,
        specs: Sequence[PutJob],
        *,
        result: Any = None,
        bounds: PutBounds = NO_BOUNDS,
    ) -> Chained:
        """Finish a job and put others, at most 10.

        Raises, when nothing was done:
            DifferentShard: a put belongs into another shard than the job.
            JobExists, JobReserved, TopicFull, PayloadTooLarge, DurabilityUnavailable: one of the puts would be refused.
            BatchNotFound, BatchSealed: so would one because of its batch.
            InvalidInput: a zone or calendar of a put's window is unknown, or that never opens; or a put has a group or
                a priority, and its topic several partitions.
        """
        puts = [encode_put(spec, bounds) for spec in specs]
        level = max(MEMORY if put.durability is None else level_named(put.durability) for put in puts)
        call = _Call(encode_finish(job_id, receipt, result), puts, bounds, level)

        different: list[DifferentShard] = []

        async def run(home: str) -> Chained | None:
            try:
                return await self._finish(home, call)
            except DifferentShard as exc:  # the job may be where it was put before the topic had more partitions
                different.append(exc)
                return Chained(NOT_FOUND, [], {})

        topics_of_puts = dict.fromkeys(put.topic for put in puts)
        layout_of = self._keys.partitions.layout_of

        async def attempt() -> Chained | None:
            different.clear()
            layouts = [layout_of(name) for name in (topic, *topics_of_puts)]
            chained = await self._partitions.find_one(topic, job_id, run, _is_not_here, is_cancelled=_is_cancelled)
            if _is_not_found(chained) and different:
                await self._partitions.refresh_all({topic, *topics_of_puts})
                if layouts != [layout_of(name) for name in (topic, *topics_of_puts)]:
                    return None  # they were in different shards by partitions that are not those of today
                raise different[0]
            return chained

        topics = " or ".join(map(repr, topics_of_puts))
        return await until_done(attempt, f"the settings of topic {topics} kept changing during the finish")

    async def _groups(self, home: str, job_id: str, puts: Sequence[EncodedPut]) -> list[_Group] | None:
        """The puts by partition; `home` is the partition of the job. None: the known number of partitions was wrong."""
        groups: dict[str, _Group] = {}
        known = self._keys.partitions
        for index, put in enumerate(puts):
            layout = known.layout_of(put.topic)
            if put.has_flow and layout.count > 1:
                raise flow_refusal_of(put, ("body", "put", index))
            place = layout.home(put.topic, put.id)
            if put.end_topic is not None:
                check_end_topic(self._keys, (place,), put.end_topic, ("body", "put", index))
            if self._keys.shard_of(place) != self._keys.shard_of(home):
                text = f"topic {put.topic!r} is in another shard of the store than topic {topic_of(home)!r}"
                if layout.count > 1 or known.count(topic_of(home)) > 1:
                    text = (
                        f"job {put.id!r} of topic {put.topic!r} belongs into another shard of the store than job "
                        f"{job_id!r} of topic {topic_of(home)!r}, by their partitions"
                    )
                raise DifferentShard(put.topic, f"{text}; nothing was done")
            held = await self._partitions.held_by_former(put.topic, layout, [put.id])
            if held is None:
                await self._partitions.spread(put.topic)
                return None
            former = held.get(put.id)
            if isinstance(former, StoreUnavailable):
                raise former
            if former is not None:
                text = (
                    f"job {put.id!r} of topic {put.topic!r} is still where it was put before the topic had more "
                    "partitions; nothing was done"
                )
                raise DifferentShard(put.topic, text)
            groups.setdefault(place, _Group(place, layout.count, [])).puts.append(put)
        return list(groups.values())

    async def _finish(self, topic: str, call: _Call) -> Chained | None:
        """As `finish`, for a job in the partition `topic`. None: the known terms of the topics were outdated."""
        groups = await self._groups(topic, call.finish.id, call.puts)
        if groups is None:
            return None
        for index, put in enumerate(call.puts):
            if put.to_place is not None:
                await self._placer.check(put.to_place, ("body", "put", index))
        partitions = (topic, *(group.partition for group in groups))
        keys = tuple(chain.from_iterable(self._keys.of_topic(partition) for partition in partitions))
        defaults_of_groups = [self._placer.defaults_of(group.partition) for group in groups]
        asked = [
            await self._shelf.ask(group.partition, [put.id for put in group.puts if not put.has_new_id])
            for group in groups
        ]
        placed = [
            await self._placed(group, defaults) for group, defaults in zip(groups, defaults_of_groups, strict=True)
        ]

        async def send(reached: int, sending: Sending) -> list[Any]:
            args: list[Any] = [topic, *call.finish.args]
            for group, defaults, generation, jobs in zip(groups, defaults_of_groups, asked, placed, strict=True):
                level = reached if group.takes_default else ANY_DEFAULT
                terms = Terms(level, group.partitions, defaults, generation)
                args += (group.partition, terms.argument(), len(group.puts), *jobs)
            reply: list[Any] = await self._scripts.run("finish_and_put", keys, args, sending=sending)
            return reply

        (outcome, *rest), reached = await self._durable_calls.run(topic, call.level, send, default_of=call.default_of)
        if outcome == OUTDATED:
            await self._correct(call, groups, rest)
            return None
        if outcome == REFUSED:
            number, index, why, max_jobs = rest
            put = groups[number - 1].puts[index - 1]
            error = refusal(put, why, max_jobs, call.bounds)
            raise await self._why_no_batch(error.batch, put.topic) if isinstance(error, BatchNotFound) else error
        code, results, run_times = rest
        return _read(code, results, groups, call, reached)._replace(run_times=run_times)

    async def _placed(self, group: _Group, defaults: str) -> list[Any]:
        """The id and argument of each put, with its due time placed."""
        if defaults == NO_DEFAULTS and all(put.to_place is None for put in group.puts):
            return list(chain.from_iterable((put.id, put.job) for put in group.puts))
        return await self._placer.place_puts(group.partition, group.puts, defaults)

    async def _correct(self, call: _Call, groups: list[_Group], outdated: list[Any]) -> None:
        """Remember the terms that the script returned."""
        for number, *reply in outdated:
            group, terms = groups[number - 1], read_terms(reply)
            if terms.asked:
                self._shelf.note_shelved(group.partition, terms.asked)
            self._placer.note_defaults(group.partition, terms.due_defaults)
            if group.takes_default and terms.durability > call.level:
                call.level, call.default_of = terms.durability, group.partition
            if terms.partitions != group.partitions:
                await self._partitions.spread(topic_of(group.partition))


def _is_cancelled(chained: Chained | None) -> bool:
    return chained is not None and chained.code == CANCELLED


def _is_not_here(chained: Chained | None) -> bool:
    return _is_not_found(chained) or _is_cancelled(chained)


def _is_not_found(chained: Chained | None) -> bool:
    return chained is not None and chained.code == NOT_FOUND


def _read(code: int, results: list[Any], groups: list[_Group], call: _Call, reached: int) -> Chained:
    if not results:
        return Chained(code, [], {})
    if reached < min(call.level, FSYNC):
        raise lost_durability()
    replies = iter(results)
    of_put: dict[int, PutResult] = {}
    codes: dict[str, list[int]] = {}
    for group in groups:
        for put in group.puts:
            code_of_put, of_put[id(put)] = result_of(put, next(replies), name_of(reached))
            codes.setdefault(group.partition, []).append(code_of_put)
    return Chained(OK, [of_put[id(put)] for put in call.puts], codes)
