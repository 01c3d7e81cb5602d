"""Sends puts to the partitions that their ids belong to, by the terms that are known of their topic.

Only the put script knows the settings of a topic; terms.py says what happens when those that were known are outdated.
Default durabilities that need replicas are remembered, as defaults for due times are (by `Placer`), so that this
happens once; an outdated one costs one more round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from deferd.contract.errors import DurabilityUnavailable, StoreUnavailable
from deferd.engine.durability import DurableCalls, Slot, lost_durability, stored_nothing
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import SEPARATOR, topic_of
from deferd.engine.placement import Placer
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import EncodedPut
from deferd.engine.scripts import Scripts, Sending
from deferd.engine.terms import ANY_DEFAULT, DONE, OUTDATED, Terms, read_terms, until_done
from deferd.store.durability_levels import FSYNC, MEMORY, is_replicated

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
    """Runs the put script for jobs of one topic at their durability level."""

    def __init__(
        self, scripts: Scripts, keys: Keys, placer: Placer, partitions: PartitionStore, durable_calls: DurableCalls
    ) -> None:
        self.placer = placer
        self.partitions = partitions
        self._scripts = scripts
        self._keys = keys
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
        except those that wait for replicas.
        `to_place`: some of the jobs have a window or spread, and due times that are not placed yet.

        While jobs may be in partitions of a former number, those of one call may go to several partitions. A job whose
        partition cannot be reached then has that error as its result, if the others were stored.

        Raises:
            DurabilityUnavailable: the store does not support the level. Nothing was stored.
            StoreUnavailable: also when the level was not reached in time; then the jobs may be stored.
        """
        call = _Call(jobs, level, with_records, slot, to_place)
        layout = self._keys.partitions.layouts.get(topic_of(topic))
        if layout is None:
            belong, partitions = SEPARATOR not in topic, 1
        else:
            belong = len(layout.counts) == 1 and all(layout.home(job.topic, job.id) == topic for job in jobs)
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
        layout = self._keys.partitions.layout_of(topic)  # the same one throughout: the script compares its number
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
            places.setdefault(place, []).append(at)
        outcomes = await asyncio.gather(
            *(self._put_into(place, [call.jobs[at] for at in indexes], call) for place, indexes in places.items()),
            return_exceptions=True,
        )
        for indexes, outcome in zip(places.values(), outcomes, strict=True):
            if isinstance(outcome, StoreUnavailable):
                call.results.update(dict.fromkeys(indexes, outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
            elif isinstance(outcome, Stored):
                call.stored.append(outcome)
                call.results.update(zip(indexes, outcome.results, strict=True))
        if len(call.results) == len(call.jobs):
            if not call.stored:
                raise call.results[0]
            results = [call.results[at] for at in range(len(call.jobs))]
            return Stored(call.stored[0].max_jobs, results, min(one.level for one in call.stored))
        if any(_has_other_partitions(outcome, layout.count) for outcome in outcomes):
            await self.partitions.spread(topic)
        return None

    async def _put_into(self, place: _Place, jobs: Sequence[EncodedPut], call: _Call) -> Stored | Terms | None:
        """Put jobs into a partition.

        If nothing was stored because the terms were outdated, returns the terms to try next, which are also in `call`.
        None: the partition does not hold the id any more.
        """
        partition, is_named = place.partition, call.level is not None
        is_remembered = call.corrected is None
        if call.corrected is None:
            default, placing = self._defaults.get(partition, MEMORY), self.placer.defaults_of(partition)
        else:
            default, _, placing = call.corrected
        level = default if call.level is None else call.level
        if call.to_place or placing:
            placed = await self.placer.place_puts(partition, jobs, placing)
        else:
            placed = list(chain.from_iterable([(job.id, job.job) for job in jobs]))

        async def send(reached: int, sending: Sending) -> list[Any]:
            terms = Terms(ANY_DEFAULT if is_named else reached, place.partitions, placing)
            verb = "put" if place.held_id is None else "put_where_held"
            args = (partition, call.with_records, terms.argument(), *placed)
            reply: list[Any] = await self._scripts.run(verb, self._keys.of_topic(partition), args, sending=sending)
            return reply

        try:
            reply, reached = await self._durable_calls.run(
                partition, level, send, call.slot, default_of=None if is_named else partition
            )
        except (DurabilityUnavailable, StoreUnavailable) as error:
            if is_named or level == MEMORY or not (is_remembered and stored_nothing(error)):
                raise
            # The default may be outdated: the script returns the new one.
            terms = call.corrected = Terms(MEMORY, place.partitions, placing)
            return terms
        return self._read(partition, reply, reached, call)

    def _read(self, partition: str, reply: list[Any], reached: int, call: _Call) -> Stored | Terms | None:
        """Turn a reply into what `_put_into` returns."""
        outcome, *rest = reply
        if outcome == OUTDATED:
            terms = call.corrected = read_terms(rest)
            self._note_default(partition, terms.durability)
            self.placer.note_defaults(partition, terms.placing)
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
