"""How puts reach the durability that they, or their topic, ask for: each level has its way to the store.

`memory`, and `fsync` on a store that fsyncs before it answers, go the common way and cost nothing more.
`replicated:N` goes by `deferd.store.replication`. A level that the store cannot give is refused before anything is
stored.

Only the put script knows a topic's default. It is told which one the way satisfies; of a topic with another default
it stores nothing and names that, and the put is sent again the right way. A default that needs replicas is remembered,
so that this happens once; what is remembered wrongly by now costs one more turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, NamedTuple

from deferd.contract.errors import DurabilityUnavailable, StoreUnavailable
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts, observed
from deferd.store.connection import Store
from deferd.store.durability_levels import FSYNC, MEMORY, is_replicated, name_of, replicas_of
from deferd.store.replication import MissingPermission, TooFewReplicas, WaitUnsupported

_ANY_DEFAULT = -1
"""For the script: the jobs name their own level, so the topic's does not matter."""
_NOTHING_SENT = (TooFewReplicas, MissingPermission, DurabilityUnavailable)
_TURNS = 4
_REMEMBERED_MAX = 10_000
_REWRITES_FOR_S = 5
"""A guess, for Retry-After."""

Turn = Callable[[], AbstractAsyncContextManager[None]]


class Stored(NamedTuple):
    """What the put script answered, and the level at which that stands."""

    max_jobs: int
    answers: list[Any]
    level: int


class _OtherDefaultError(Exception):
    """Nothing was stored: the topic's default is `level`, which the way did not satisfy."""

    def __init__(self, level: int) -> None:
        self.level = level
        super().__init__(level)


class PutWays:
    """Sends the puts of one topic the way that their level asks for.

    `embedded`: the store is the service's own, which never has replicas.
    """

    def __init__(self, store: Store, scripts: Scripts, keys: Keys, *, embedded: bool) -> None:
        self._scripts = scripts
        self._keys = keys
        self._given = store.durability
        if embedded:
            self._given.trust_rewrites()
        self._replicated = None if embedded else store.replicated
        self._why_no_replicas = (
            "the embedded store has no replicas" if embedded else "deferd does not confirm puts on a cluster"
        )
        self._defaults: dict[str, int] = {}

    async def put(self, topic: str, level: int | None, with_records: int, jobs: Iterable[Any], turn: Turn) -> Stored:
        """Run the put script on `jobs`, so that its answers stand at `level`; None: at the topic's default.

        `turn` is taken for each call that goes the common way.

        Raises:
            DurabilityUnavailable: the store cannot give that. Nothing was stored.
            StoreUnavailable: also when the level was not reached in time; then the jobs may be stored.
        """
        if level is not None:
            return await self._send(topic, level, with_records, jobs, turn, named=True)
        jobs = tuple(jobs)
        level = self._defaults.get(topic, MEMORY)
        is_remembered = level > MEMORY
        for _ in range(_TURNS):
            try:
                return await self._send(topic, level, with_records, jobs, turn, named=False)
            except _OtherDefaultError as other:
                level, is_remembered = other.level, False
            except (DurabilityUnavailable, StoreUnavailable) as error:
                if not is_remembered or not stored_nothing(error):
                    raise
                level, is_remembered = MEMORY, False  # it may no longer be the default, which the script will tell
        raise StoreUnavailable(f"the durability of topic {topic!r} was changed again and again meanwhile")

    async def _send(
        self, topic: str, level: int, with_records: int, jobs: Iterable[Any], turn: Turn, *, named: bool
    ) -> Stored:
        """One try. `named`: by the jobs, so that the topic's default does not matter."""
        if is_replicated(level):
            if self._replicated is None:
                raise self._unavailable(topic, level, self._why_no_replicas, named=named)
            call = partial(self._replicated.call, replicas_of(level))
            args = (topic, with_records, _ANY_DEFAULT if named else level, *jobs)
            try:
                reply = await self._scripts.run("put", self._keys.of_topic(topic), args, call=call)
            except StoreUnavailable as error:
                if isinstance(error.__cause__, MissingPermission):
                    raise self._not_now(level, error.__cause__, error.retry_after_s) from error.__cause__
                raise
            except WaitUnsupported as error:
                raise self._unavailable(topic, level, str(error), named=named, has_wait=False) from error
            return self._read(topic, reply, level)
        if level == FSYNC and self._given.level < FSYNC:
            with observed("config"):
                given = await self._given.probe()
            if given < FSYNC:
                unavailable = self._unavailable(topic, level, self._given.why_not, named=named)
                if self._given.waits_for_rewrite:
                    raise self._not_now(level, self._given.why_not, _REWRITES_FOR_S) from unavailable
                raise unavailable
        async with turn():
            self._given.refresh()
            args = (topic, with_records, _ANY_DEFAULT if named else self._given.level, *jobs)
            reply = await self._scripts.run("put", self._keys.of_topic(topic), args)
            stored = self._read(topic, reply, self._given.level)
        if stored.level < (level if named else min(reply[3], FSYNC)):
            raise StoreUnavailable(
                "the job may exist; it is not confirmed at durability fsync, for the store's configuration changed "
                "meanwhile; asking again with the same id is safe"
            )
        return stored

    def _read(self, topic: str, reply: list[Any], level: int) -> Stored:
        _, max_jobs, answers, default = reply
        if is_replicated(default):
            if len(self._defaults) == _REMEMBERED_MAX:
                self._defaults.clear()
            self._defaults[topic] = default
        elif self._defaults:
            self._defaults.pop(topic, None)
        if not answers:
            raise _OtherDefaultError(default)
        return Stored(max_jobs, answers, level)

    @staticmethod
    def _not_now(level: int, why: object, retry_after_s: int) -> StoreUnavailable:
        detail = f"durability {name_of(level)!r} is not to be had just now: {why}; nothing was stored"
        return StoreUnavailable(detail, retry_after_s)

    def _unavailable(
        self, topic: str, level: int, why: str, *, named: bool, has_wait: bool = True
    ) -> DurabilityUnavailable:
        available = [name_of(MEMORY)]
        if self._given.level >= FSYNC:
            available.append(name_of(FSYNC))
        if self._replicated is not None and has_wait:
            available.append("replicated:N")
        whose = "" if named else f", the default of topic {topic!r},"
        detail = (
            f"durability {name_of(level)!r}{whose} is not to be had: {why}; this store gives {', '.join(available)}; "
            "nothing was stored"
        )
        return DurabilityUnavailable(name_of(level), available, detail)


def stored_nothing(error: Exception) -> bool:
    """Whether it is certain that a put that failed so stored nothing."""
    return any(isinstance(one, _NOTHING_SENT) for one in (error, error.__cause__))
