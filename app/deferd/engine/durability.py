"""Sends puts, and cancels that ask for it, so that they reach the durability that they, or their topic, require.

`memory` needs nothing more, nor does `fsync` on a store that fsyncs before it responds; in a cluster that is the node
that has the topic. `replicated:N` is sent through `deferd.store.replication`. A level that the store does not support
is refused before anything is stored.

Only the put script knows a topic's default level. It receives the level that this put satisfies; if the default is
another, it stores nothing and returns the default, and the put is sent again for that level. Defaults that need
replicas are remembered, so that this happens once; an outdated one costs one more round trip.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from deferd.contract.errors import DurabilityUnavailable, StoreUnavailable
from deferd.engine.partition_store import PartitionStore
from deferd.engine.partitions import SEPARATOR, topic_of
from deferd.engine.placement import NO_DEFAULTS, Placer
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import EncodedPut
from deferd.engine.scripts import Scripts, Sending, observed
from deferd.store.connection import Store
from deferd.store.durability_levels import FSYNC, MEMORY, is_replicated, name_of, replicas_of
from deferd.store.replication import MissingPermission, TooFewReplicas, WaitUnsupported

ANY_DEFAULT = -1
"""For the script: the jobs name their own level, so the topic's default does not matter."""
_NOTHING_SENT = (TooFewReplicas, MissingPermission, DurabilityUnavailable)
_NOTHING_STORED = "nothing was stored"
_MOST_TRIES = 4
_REMEMBERED_MAX = 10_000
_REWRITES_FOR_S = 5
"""An estimate, for Retry-After."""

Send = Callable[[int, Sending], Awaitable[list[Any]]]
Slot = Callable[[], AbstractAsyncContextManager[None]]
"""Makes a context manager that is held around one store call; see BulkThrottle."""


class Stored(NamedTuple):
    """What the put script returned, and the durability level that its jobs reached."""

    max_jobs: int
    results: list[Any]
    level: int


class _Into(NamedTuple):
    """Where and how to put jobs: into a partition of so many, by a script, as the arguments of `PutSender.put` say."""

    topic: str
    partitions: int
    verb: str
    level: int | None
    with_records: int
    slot: Slot


class _OtherPlacementError(Exception):
    """Nothing was stored: the due times were not placed by the topic's defaults."""


class OtherPartitionsError(Exception):
    """Nothing was stored: the topic has another number of partitions."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        super().__init__(topic)


class _OtherDefaultError(Exception):
    """Nothing was stored: the topic's default is `level`, which this put did not satisfy."""

    def __init__(self, level: int) -> None:
        self.level = level
        super().__init__(level)


class PutSender:
    """Runs the put script for jobs of one partition at their durability level.

    `embedded`: the store is the service's own, which never has replicas.
    """

    def __init__(
        self,
        store: Store,
        scripts: Scripts,
        keys: Keys,
        placer: Placer,
        *,
        partitions: PartitionStore,
        embedded: bool,
    ) -> None:
        self.placer = placer
        self.partitions = partitions
        self._scripts = scripts
        self._keys = keys
        self._calls_of = store.calls_of
        self._embedded = embedded
        if embedded:
            store.calls_of("").durability.trust_rewrites()
        self._defaults: dict[str, int] = {}

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
        layout = self._keys.partitions.layouts.get(topic_of(topic))
        if layout is None:
            belong = SEPARATOR not in topic
        else:
            belong = len(layout.counts) == 1 and all(layout.home(job.topic, job.id) == topic for job in jobs)
        into = _Into(topic, 1 if layout is None else layout.count, "put", level, with_records, slot)
        if belong:
            try:
                return await self._put_in_partition(into, jobs, to_place=to_place)
            except OtherPartitionsError:
                await self.partitions.refresh(topic_of(topic))
        return await self._put_where_they_belong(into, jobs, to_place=to_place)

    async def _put_where_they_belong(self, into: _Into, jobs: Sequence[EncodedPut], *, to_place: bool) -> Stored:
        """Put jobs of a topic whose number of partitions has changed: where their ids are held, or belong now."""
        topic = topic_of(into.topic)
        results: list[Any] = [None] * len(jobs)
        stored: list[Stored] = []
        left = list(range(len(jobs)))
        for _ in range(_MOST_TRIES):
            layout = self._keys.partitions.layout_of(topic)  # the same one throughout: the script compares its number
            held = await self.partitions.held_by_former(topic, layout, [jobs[at].id for at in left])
            if held is None:
                await self.partitions.spread(topic)
                continue
            places: dict[tuple[str, str | None], list[int]] = {}  # an id that a former partition holds is put alone
            for at in left:
                job_id = jobs[at].id
                former = held.get(job_id)
                if isinstance(former, StoreUnavailable):
                    results[at] = former
                    continue
                place = (layout.home(topic, job_id), None) if former is None else (former, job_id)
                places.setdefault(place, []).append(at)
            calls = (
                self._put_in_partition(
                    into._replace(topic=home, partitions=layout.count, verb="put_where_held" if held_id else "put"),
                    [jobs[at] for at in indexes],
                    to_place=to_place,
                )
                for (home, held_id), indexes in places.items()
            )
            for indexes, outcome in zip(
                places.values(), await asyncio.gather(*calls, return_exceptions=True), strict=True
            ):
                if isinstance(outcome, StoreUnavailable):
                    for at in indexes:
                        results[at] = outcome
                    continue
                if isinstance(outcome, BaseException):
                    if not isinstance(outcome, OtherPartitionsError):
                        raise outcome
                    continue
                stored.append(outcome)
                for at, result in zip(indexes, outcome.results, strict=True):
                    results[at] = result
            left = [at for at in left if results[at] is None]
            if not left:
                if not stored:
                    raise results[0]
                return Stored(stored[0].max_jobs, results, min(one.level for one in stored))
            await self.partitions.spread(topic)
        raise StoreUnavailable(f"the number of partitions of topic {topic!r} kept changing during the put")

    async def _put_in_partition(self, into: _Into, jobs: Sequence[EncodedPut], *, to_place: bool) -> Stored:
        """As `put`. By the script put_where_held, only if the partition has the id, which all jobs have."""
        topic = into.topic
        try:
            if not (to_place or self.placer.defaults_of(topic)):
                return await self._put(into, list(chain.from_iterable([(job.id, job.job) for job in jobs])))
        except _OtherPlacementError:
            pass
        for _ in range(_MOST_TRIES):
            placed_by = self.placer.defaults_of(topic)
            placed = await self.placer.place_puts(topic, jobs, placed_by)
            try:
                return await self._put(into, placed, placed_by)
            except _OtherPlacementError:
                continue
        raise StoreUnavailable(f"the settings of topic {topic_of(topic)!r} kept changing during the put")

    async def _put(self, into: _Into, jobs: Sequence[Any], placed_by: str = NO_DEFAULTS) -> Stored:
        """Put jobs whose due times are placed by these defaults of the topic."""
        if into.level is not None:
            return await self._send(into, into.level, jobs, placed_by)
        level = self._defaults.get(into.topic, MEMORY)
        is_remembered = level > MEMORY
        for _ in range(_MOST_TRIES):
            try:
                return await self._send(into, level, jobs, placed_by)
            except _OtherDefaultError as other:
                level, is_remembered = other.level, False
            except (DurabilityUnavailable, StoreUnavailable) as error:
                if not is_remembered or not stored_nothing(error):
                    raise
                level, is_remembered = MEMORY, False  # an outdated default: the script returns the new one
        raise StoreUnavailable(f"the durability of topic {topic_of(into.topic)!r} kept changing during the put")

    async def _send(self, into: _Into, level: int, jobs: Sequence[Any], placed_by: str) -> Stored:
        """Try once. If the jobs name the level, the topic's default does not matter."""
        topic, is_named = into.topic, into.level is not None

        async def put(reached: int, sending: Sending) -> list[Any]:
            terms = put_terms(ANY_DEFAULT if is_named else reached, into.partitions, placed_by)
            args = (topic, into.with_records, terms, *jobs)
            reply: list[Any] = await self._scripts.run(into.verb, self._keys.of_topic(topic), args, sending=sending)
            return reply

        reply, reached = await self.run(topic, level, put, into.slot, named=is_named)
        if not reply:
            raise OtherPartitionsError(topic_of(topic))
        stored = self._read(topic, reply, reached)
        if reached < (level if is_named else min(reply[3], FSYNC)):
            raise lost_durability()
        return stored

    async def run(
        self,
        topic: str,
        level: int,
        send: Send,
        slot: Slot = nullcontext,
        *,
        named: bool = True,
        nothing: str = _NOTHING_STORED,
    ) -> tuple[list[Any], int]:
        """Run a script so that it reaches `level`. Returns its reply and the level that it has reached.

        `send` runs the script; it gets the level that will be reached, and what sends it. A level that is lower than
        `level` was lost meanwhile: `lost_durability` is the error. `topic` is one of those that the script is for. For
        error texts are that, whether the jobs named the level, and `nothing`, which says that nothing was done.

        Raises as `put`.
        """
        calls = self._calls_of(self._keys.of_topic(topic)[0])
        if is_replicated(level):
            unavailable = partial(self._unavailable, topic, level, named=named, nothing=nothing)
            if self._embedded:
                raise unavailable("the embedded store has no replicas", calls.durability.level)
            try:
                return await send(
                    level, Sending(calls, partial(calls.call_replicated, replicas_of(level)), True)
                ), level
            except StoreUnavailable as error:
                if isinstance(error.__cause__, MissingPermission):
                    raise self._not_now(level, error.__cause__, error.retry_after_s, nothing) from error.__cause__
                raise
            except WaitUnsupported as error:
                raise unavailable(str(error), calls.durability.level) from error
        if level == FSYNC and calls.durability.level < FSYNC:
            with observed("CONFIG"):
                current = await calls.probe()
            if current < FSYNC:
                why = calls.durability.why_not
                replicas = not self._embedded
                refused = self._unavailable(topic, level, why, current, named=named, nothing=nothing, replicas=replicas)
                if calls.durability.waits_for_rewrite:
                    raise self._not_now(level, why, _REWRITES_FOR_S, nothing) from refused
                raise refused
        async with slot():
            reply = await send(calls.durability.level, Sending(calls, calls.call_probed, False))
            return reply, calls.durability.level

    def _read(self, topic: str, reply: list[Any], level: int) -> Stored:
        _, max_jobs, results, default, *placed_by = reply
        if len(placed_by) > 1:
            raise OtherPartitionsError(topic_of(topic))
        if placed_by:
            self.placer.note_defaults(topic, placed_by[0].decode())
            raise _OtherPlacementError
        if is_replicated(default):
            if len(self._defaults) == _REMEMBERED_MAX:
                self._defaults.clear()
            self._defaults[topic] = default
        elif self._defaults:
            self._defaults.pop(topic, None)
        if not results:
            raise _OtherDefaultError(default)
        return Stored(max_jobs, results, level)

    @staticmethod
    def _not_now(level: int, why: object, retry_after_s: int, nothing: str) -> StoreUnavailable:
        detail = f"durability {name_of(level)!r} is not available now: {why}; {nothing}"
        return StoreUnavailable(detail, retry_after_s)

    @staticmethod
    def _unavailable(
        topic: str, level: int, why: str, given: int, *, named: bool, nothing: str, replicas: bool = False
    ) -> DurabilityUnavailable:
        """`given` is the level that the store gives by default; whether levels with `replicas` are available."""
        available = [name_of(MEMORY)]
        if given >= FSYNC:
            available.append(name_of(FSYNC))
        if replicas:
            available.append("replicated:N")
        origin = "" if named else f", the default of topic {topic_of(topic)!r},"
        detail = (
            f"durability {name_of(level)!r}{origin} is not available: {why}; this store supports "
            f"{', '.join(available)}; {nothing}"
        )
        return DurabilityUnavailable(name_of(level), available, detail)


def put_terms(satisfied: int, partitions: int, placed_by: str) -> int | str:
    """What a put is sent for, as lua/put.lua reads it: a level, the number of partitions, and defaults."""
    if partitions == 1 and not placed_by:
        return satisfied
    return f"{satisfied}{'' if partitions == 1 else f'/{partitions}'} {placed_by}"


def lost_durability() -> StoreUnavailable:
    """The error of a put that was stored while the store's configuration changed to a lower level."""
    return StoreUnavailable(
        "the job may exist; it is not confirmed at durability fsync, because the store's configuration, or the node "
        "that has the topic, changed meanwhile; repeating the put with the same id is safe"
    )


def stored_nothing(error: Exception) -> bool:
    """Whether a put that failed with `error` certainly stored nothing."""
    return any(isinstance(cause, _NOTHING_SENT) for cause in (error, error.__cause__))
