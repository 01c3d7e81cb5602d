"""Finishes that put other jobs: all of it in one step of the store, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from deferd.contract.errors import DifferentShard, StoreUnavailable
from deferd.contract.model import PutJob
from deferd.contract.responses.job_calls import PutResult
from deferd.engine.call_results import NOT_FOUND, OK
from deferd.engine.durability import ANY_DEFAULT, OtherPartitionsError, PutSender, lost_durability, put_terms
from deferd.engine.partitions import topic_of
from deferd.engine.placement import NO_DEFAULTS
from deferd.engine.puts import refusal, result_of
from deferd.engine.record import Receipt
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import NO_BOUNDS, Args, EncodedPut, PutBounds, encode_finish, encode_put
from deferd.engine.scripts import Scripts, Sending
from deferd.store.durability_levels import FSYNC, MEMORY, level_named, name_of

_REFUSED = -1
_OTHER_DEFAULT = -1
_OTHER_PLACEMENT = -2
_OTHER_PARTITIONS = -5
_MOST_TRIES = 4


class Chained(NamedTuple):
    """The code of the finish, as in lua/finish.lua, and what became of the puts.

    `codes` are those of lua/put.lua, by partition. Both are empty if the job was not finished now.
    """

    code: int
    results: list[PutResult]
    codes: dict[str, list[int]]


class _Place(NamedTuple):
    """A partition, and how many the topic has."""

    name: str
    partitions: int


class ChainedPuts:
    """Runs finishes with puts. All jobs must belong into one shard."""

    def __init__(self, scripts: Scripts, keys: Keys, sender: PutSender) -> None:
        self._scripts = scripts
        self._keys = keys
        self._sender = sender

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
            InvalidInput: a zone or calendar of a put's window is unknown, or that never opens.
        """
        puts = [encode_put(spec, bounds) for spec in specs]
        finish = encode_finish(job_id, receipt, result).args
        partitions = self._sender.partitions

        different: list[DifferentShard] = []

        async def run(home: str) -> Chained:
            try:
                return await self._finish(home, finish, puts, bounds)
            except DifferentShard as exc:  # the job may be where it was put before the topic had more partitions
                different.append(exc)
                return Chained(NOT_FOUND, [], {})

        for _ in range(_MOST_TRIES):
            different.clear()
            try:
                chained = await partitions.find_one(topic, job_id, run, lambda chained: chained.code == NOT_FOUND)
            except OtherPartitionsError as other:
                await partitions.spread(other.topic)
                continue
            if chained.code == NOT_FOUND and different:
                raise different[0]
            return chained
        raise StoreUnavailable("the number of partitions of a topic kept changing during the finish")

    async def _groups(self, home: str, job_id: str, puts: Sequence[EncodedPut]) -> dict[_Place, list[EncodedPut]]:
        """The puts by partition; `home` is that of the job."""
        groups: dict[_Place, list[EncodedPut]] = {}
        known = self._keys.partitions
        for put in puts:
            layout = known.layout_of(put.topic)
            place = layout.home(put.topic, put.id)
            if self._keys.shard_of(place) != self._keys.shard_of(home):
                text = f"topic {put.topic!r} is in another shard of the store than topic {topic_of(home)!r}"
                if layout.count > 1 or known.count(topic_of(home)) > 1:
                    text = (
                        f"job {put.id!r} of topic {put.topic!r} belongs into another shard of the store than job "
                        f"{job_id!r} of topic {topic_of(home)!r}, by their partitions"
                    )
                raise DifferentShard(put.topic, f"{text}; nothing was done")
            held = await self._sender.partitions.held_by_former(put.topic, layout, [put.id])
            if held is None:
                raise OtherPartitionsError(put.topic)
            former = held.get(put.id)
            if isinstance(former, StoreUnavailable):
                raise former
            if former is not None:
                text = (
                    f"job {put.id!r} of topic {put.topic!r} is still where it was put before the topic had more "
                    "partitions; nothing was done"
                )
                raise DifferentShard(put.topic, text)
            groups.setdefault(_Place(place, layout.count), []).append(put)
        return groups

    async def _finish(self, topic: str, finish_args: Args, puts: list[EncodedPut], bounds: PutBounds) -> Chained:
        """As `finish`, of a job in the partition `topic`."""
        groups = await self._groups(topic, finish_args[0], puts)
        placer = self._sender.placer
        for index, put in enumerate(puts):
            if put.placing is not None:
                await placer.check(put.placing, ("body", "put", index))
        keys = (*self._keys.of_topic(topic), *chain.from_iterable(self._keys.of_topic(place.name) for place in groups))
        finish = (topic, *finish_args)
        level = max(MEMORY if put.durability is None else level_named(put.durability) for put in puts)
        refusing = puts  # those that decide the level
        for _ in range(_MOST_TRIES + len(groups)):
            placed = {place: await self._placed(place.name, some) for place, some in groups.items()}

            async def send(
                reached: int, sending: Sending, placed: dict[_Place, tuple[list[Any], str]] = placed
            ) -> list[Any]:
                of_groups = (_arguments(place, some, *placed[place], reached) for place, some in groups.items())
                reply: list[Any] = await self._scripts.run(
                    "finish_and_put", keys, (*finish, *chain.from_iterable(of_groups)), sending=sending
                )
                return reply

            reply, reached = await self._sender.run(topic, level, send, named=refusing is puts)
            if reply[0] != _REFUSED:
                return _read(reply, groups, puts, reached, level)
            number, refused = reply[1:]
            of_topic = list(groups.values())[number - 1]
            if refused[0] == _OTHER_PARTITIONS:
                raise OtherPartitionsError(of_topic[0].topic)
            if refused[0] == _OTHER_PLACEMENT:
                placer.note_defaults(list(groups)[number - 1].name, refused[1].decode())
                continue
            refusing = of_topic
            if refused[0] != _OTHER_DEFAULT:
                index, why, max_jobs = refused
                raise refusal(refusing[index - 1], why, max_jobs, bounds)
            level = max(level, refused[1])
        raise StoreUnavailable(f"the settings of topic {refusing[0].topic!r} kept changing during the finish")

    async def _placed(self, topic: str, puts: list[EncodedPut]) -> tuple[list[Any], str]:
        """The id and argument of each put, with its due time placed, and the defaults of the topic that placed it."""
        placer = self._sender.placer
        defaults = placer.defaults_of(topic)
        if defaults == NO_DEFAULTS and all(put.placing is None for put in puts):
            return list(chain.from_iterable((put.id, put.job) for put in puts)), defaults
        return await placer.place_puts(topic, puts, defaults), defaults


def _arguments(place: _Place, puts: list[EncodedPut], placed: list[Any], defaults: str, reached: int) -> list[Any]:
    """The arguments of the script for one partition."""
    satisfied = reached if any(put.durability is None for put in puts) else ANY_DEFAULT
    return [place.name, put_terms(satisfied, place.partitions, defaults), len(puts), *placed]


def _read(
    reply: list[Any], groups: dict[_Place, list[EncodedPut]], puts: list[EncodedPut], reached: int, level: int
) -> Chained:
    if len(reply) == 1:
        return Chained(reply[0], [], {})
    if reached < min(level, FSYNC):
        raise lost_durability()
    replies = iter(reply[1])
    durability = name_of(reached)
    of_groups = {place: [result_of(put, next(replies), durability) for put in some] for place, some in groups.items()}
    of_put = {
        id(put): result
        for place, some in groups.items()
        for put, (_, result) in zip(some, of_groups[place], strict=True)
    }
    codes = {place.name: [code for code, _ in some] for place, some in of_groups.items()}
    return Chained(OK, [of_put[id(put)] for put in puts], codes)
