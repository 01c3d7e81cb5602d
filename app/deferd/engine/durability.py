"""Runs scripts so that what they do reaches a durability level, or refuses before anything is done.

`memory` needs nothing more. Neither does `fsync` on a store that fsyncs before it responds; in a cluster, the node of
the topic decides. `replicated:N` is sent through `deferd.store.replication`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Any

from deferd.contract.errors import DurabilityUnavailable, StoreUnavailable
from deferd.engine.partitions import topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Sending, observed
from deferd.store.connection import Store
from deferd.store.durability_levels import FSYNC, MEMORY, is_replicated, name_of, replicas_of
from deferd.store.replication import MissingPermission, TooFewReplicas, WaitUnsupported

_NOTHING_SENT = (TooFewReplicas, MissingPermission, DurabilityUnavailable)
_NOTHING_STORED = "nothing was stored"
_REWRITES_FOR_S = 5
"""An estimate, for Retry-After."""

Send = Callable[[int, Sending], Awaitable[list[Any]]]
Slot = Callable[[], AbstractAsyncContextManager[None]]
"""Makes a context manager that is held around one store call; see BulkThrottle."""


class DurableCalls:
    """Calls of scripts at a durability level.

    `embedded`: the store is the service's own, which never has replicas.
    """

    def __init__(self, store: Store, keys: Keys, *, embedded: bool) -> None:
        self._keys = keys
        self._calls_of = store.calls_of
        self._embedded = embedded
        if embedded:
            store.calls_of("").durability.trust_rewrites()

    async def run(
        self,
        topic: str,
        level: int,
        send: Send,
        slot: Slot = nullcontext,
        *,
        default_of: str | None = None,
        nothing: str = _NOTHING_STORED,
    ) -> tuple[list[Any], int]:
        """Run a script so that it reaches `level`. Returns its reply and the level that it has reached.

        `send` runs the script; it gets the level that will be reached, and what sends it. If the level is lower than
        `level`, the store's configuration has changed during the call: `lost_durability` is the error. `topic` is one
        of those that the script is for, or a partition. `slot` is held around the call, unless it waits for replicas.
        Two arguments are for error texts: `default_of`, a partition of the topic whose default the level is, and
        `nothing`, which says that nothing was done.

        Raises:
            DurabilityUnavailable: the store does not support the level. Nothing was done.
            StoreUnavailable: also when the level was not reached in time; then the script may have done its work.
        """
        calls = self._calls_of(self._keys.of_topic(topic)[0])
        if is_replicated(level):
            unavailable = partial(_unavailable, level, default_of=default_of, nothing=nothing)
            if self._embedded:
                raise unavailable("the embedded store has no replicas", calls.durability.level)
            try:
                return await send(
                    level, Sending(calls, partial(calls.call_replicated, replicas_of(level)), True)
                ), level
            except StoreUnavailable as error:
                if isinstance(error.__cause__, MissingPermission):
                    raise _not_now(level, error.__cause__, error.retry_after_s, nothing) from error.__cause__
                raise
            except WaitUnsupported as error:
                raise unavailable(str(error), calls.durability.level) from error
        if level == FSYNC and calls.durability.level < FSYNC:
            with observed("CONFIG"):
                current = await calls.probe()
            if current < FSYNC:
                why = calls.durability.why_not
                replicas = not self._embedded
                refused = _unavailable(level, why, current, default_of=default_of, nothing=nothing, replicas=replicas)
                if calls.durability.waits_for_rewrite:
                    raise _not_now(level, why, _REWRITES_FOR_S, nothing) from refused
                raise refused
        async with slot():
            reply = await send(calls.durability.level, Sending(calls, calls.call_probed, False))
            return reply, calls.durability.level


def _not_now(level: int, why: object, retry_after_s: int, nothing: str) -> StoreUnavailable:
    detail = f"durability {name_of(level)!r} is not available now: {why}; {nothing}"
    return StoreUnavailable(detail, retry_after_s)


def _unavailable(
    level: int, why: str, given: int, *, default_of: str | None, nothing: str, replicas: bool = False
) -> DurabilityUnavailable:
    """`given` is the level that the store gives by default; whether levels with `replicas` are available."""
    available = [name_of(MEMORY)]
    if given >= FSYNC:
        available.append(name_of(FSYNC))
    if replicas:
        available.append("replicated:N")
    origin = "" if default_of is None else f", the default of topic {topic_of(default_of)!r},"
    detail = (
        f"durability {name_of(level)!r}{origin} is not available: {why}; this store supports "
        f"{', '.join(available)}; {nothing}"
    )
    return DurabilityUnavailable(name_of(level), available, detail)


def lost_durability() -> StoreUnavailable:
    """The error of a put that was stored while the store's configuration changed to a lower level."""
    return StoreUnavailable(
        "the job may exist; it is not confirmed at durability fsync, because the store's configuration, or the node "
        "that has the topic, changed meanwhile; repeating the put with the same id is safe"
    )


def stored_nothing(error: Exception) -> bool:
    """Whether a put that failed with `error` certainly stored nothing."""
    return any(isinstance(cause, _NOTHING_SENT) for cause in (error, error.__cause__))
