"""Finishes that put other jobs: all of it in one step of the store, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from deferd.contract.errors import DifferentShard, StoreUnavailable
from deferd.contract.model import PutJob
from deferd.engine.durability import PutSender, lost_durability
from deferd.engine.placement import NO_DEFAULTS
from deferd.engine.puts import PutResult, refusal, result_of
from deferd.engine.record import Receipt
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import NO_BOUNDS, EncodedPut, PutBounds, encode_finish, encode_put
from deferd.engine.scripts import Scripts, Sending
from deferd.store.durability_levels import FSYNC, MEMORY, level_named, name_of

_DONE, _REFUSED = 0, -1
_OTHER_DEFAULT = -1
_OTHER_PLACEMENT = -2
_ANY_DEFAULT = -1
_MOST_TRIES = 4


class Chained(NamedTuple):
    """The code of the finish, as in lua/finish.lua, and what became of the puts.

    `codes` are those of lua/put.lua, by topic. Both are empty if the job was not finished now.
    """

    code: int
    results: list[PutResult]
    codes: dict[str, list[int]]


class ChainedPuts:
    """Runs finishes with puts. The topics must be in one shard."""

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
            DifferentShard: a topic of the puts is in another shard.
            JobExists, JobReserved, TopicFull, PayloadTooLarge, DurabilityUnavailable: one of the puts would be refused.
            InvalidInput: a zone or calendar of a put's window is unknown, or that never opens.
        """
        puts = [encode_put(spec, bounds) for spec in specs]
        groups: dict[str, list[EncodedPut]] = {}
        for put in puts:
            if self._keys.shard_of(put.topic) != self._keys.shard_of(topic):
                text = f"topic {put.topic!r} is in another shard of the store than topic {topic!r}; nothing was done"
                raise DifferentShard(put.topic, text)
            groups.setdefault(put.topic, []).append(put)
        placer = self._sender.placer
        for index, put in enumerate(puts):
            if put.placing is not None:
                await placer.check(put.placing, ("body", "put", index))
        keys = (*self._keys.of_topic(topic), *chain.from_iterable(map(self._keys.of_topic, groups)))
        finish = (topic, *encode_finish(job_id, receipt, result).args)
        level = max(MEMORY if put.durability is None else level_named(put.durability) for put in puts)
        refusing = puts  # those that decide the level
        for _ in range(_MOST_TRIES + len(groups)):
            placed = {of_topic: await self._placed(of_topic, some) for of_topic, some in groups.items()}

            async def send(
                reached: int, sending: Sending, placed: dict[str, tuple[list[Any], str]] = placed
            ) -> list[Any]:
                of_groups = (
                    _arguments(of_topic, some, *placed[of_topic], reached) for of_topic, some in groups.items()
                )
                reply: list[Any] = await self._scripts.run(
                    "finish_and_put", keys, (*finish, *chain.from_iterable(of_groups)), sending=sending
                )
                return reply

            reply, reached = await self._sender.run(refusing[0].topic, level, send, named=refusing is puts)
            if reply[0] != _REFUSED:
                return _read(reply, groups, puts, reached, level)
            number, refused = reply[1:]
            of_topic = list(groups.values())[number - 1]
            if refused[0] == _OTHER_PLACEMENT:
                placer.note_defaults(of_topic[0].topic, refused[1].decode())
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
        defaults = placer.defaults.get(topic, NO_DEFAULTS)
        if defaults == NO_DEFAULTS and all(put.placing is None for put in puts):
            return list(chain.from_iterable((put.id, put.job) for put in puts)), defaults
        return await placer.place_puts(topic, puts, defaults), defaults


def _arguments(topic: str, puts: list[EncodedPut], placed: list[Any], defaults: str, reached: int) -> list[Any]:
    """The arguments of the script for one topic."""
    satisfied: int | str = reached if any(put.durability is None for put in puts) else _ANY_DEFAULT
    return [topic, f"{satisfied} {defaults}" if defaults else satisfied, len(puts), *placed]


def _read(
    reply: list[Any], groups: dict[str, list[EncodedPut]], puts: list[EncodedPut], reached: int, level: int
) -> Chained:
    if len(reply) == 1:
        return Chained(reply[0], [], {})
    if reached < min(level, FSYNC):
        raise lost_durability()
    replies = iter(reply[1])
    durability = name_of(reached)
    of_groups = {topic: [result_of(put, next(replies), durability) for put in some] for topic, some in groups.items()}
    left = {topic: iter(some) for topic, some in of_groups.items()}
    results = [next(left[put.topic])[1] for put in puts]
    return Chained(_DONE, results, {topic: [code for code, _ in some] for topic, some in of_groups.items()})
