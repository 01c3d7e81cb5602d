"""A store that is a primary monitored by sentinels, which promote a replica when it fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf
from typing import Any, NamedTuple
from weakref import WeakSet

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.sentinel import (
    MasterNotFoundError,
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.exceptions import RedisError

from deferd.store.redis_client import POOL_SIZE, common_options, connection_options, subscriber_options
from deferd.store.task_cancellation import cancel_and_wait
from deferd.store.url import StoreUrl

_log = logging.getLogger("deferd.store")
_SENTINELS_SHARE = 0.75
"""The part of a call's time that the sentinels may take. The rest is for connecting to the primary."""
_GRACE_S = 0.1
"""How long a new connection waits for more sentinels once one has named a primary."""
_WATCH_INTERVAL_S = 1.0
_WATCH_GRACE_S = 0.5
"""The same for the check once a second, which holds nobody up, and so hears sentinels that are further away."""


class _View(NamedTuple):
    """What one sentinel says about the primary."""

    epoch: int
    is_settled: bool
    """False while the sentinel promotes a replica: it already has the new epoch, but names the old primary."""
    is_up: bool
    address: tuple[str, int]


class _PrimaryConnection(SentinelManagedConnection):
    """A connection to the primary that is known to the sentinels' client, which breaks it when another one is named."""

    async def connect_to(self, address: tuple[str, int]) -> None:
        """Connect to the primary at this address."""
        self.connection_pool.sentinel_manager.connections.add(self)
        await super().connect_to(address)  # type: ignore[no-untyped-call]  # redis-py gives it no types

    def break_off(self) -> None:
        """Close it at once. Calls in progress fail."""
        if self._writer is not None:
            self._writer.transport.abort()


class _PrimarySSLConnection(_PrimaryConnection, SentinelManagedSSLConnection):
    """The same over TLS."""


class _SentinelClient(Sentinel):
    """Knows the primary: the one that the sentinels with the highest config epoch name.

    Each failover raises the epoch. In a split some sentinels still name the primary that the majority has deposed, and
    that primary still responds. So every sentinel is asked, for each new connection and once a second. When another
    primary is named, all connections to the old one are broken off.

    An epoch lower than the highest one so far counts only if most of the sentinels say so (they were set up again), and
    were asked after that one was known. So neither a sentinel that missed the failover leads back to the old primary
    when the others are down, nor a check that began before the failover.

    redis-py's `discover_master` takes the first response, loses sentinels when several calls run at once, and sends a
    query for each of those calls; such a burst delays the sentinels' responses beyond the time-out.
    """

    def __init__(self, url: StoreUrl, *, timeout_s: float) -> None:
        self._deadline_s = timeout_s * _SENTINELS_SHARE
        options = _sentinel_options(url, timeout_s=self._deadline_s)
        super().__init__(list(url.hosts), sentinel_kwargs=options)  # type: ignore[no-untyped-call]  # redis-py gives it no types
        self._service_name = url.master_name
        self._lock = asyncio.Lock()
        self._queries = 0
        self._result: tuple[str, int] | MasterNotFoundError | None = None
        self._epoch = -1
        self._primary: tuple[str, int] | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self.connections: WeakSet[_PrimaryConnection] = WeakSet()
        """Those to the primary; some may be closed."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:  # noqa: ARG002 (redis-py's signature)
        """Host and port of the primary. Calls that wait while another one queries share its result."""
        if self._watch_task is None or self._watch_task.done():
            self._watch_task = asyncio.create_task(self._watch(), name="deferd-sentinels")
        queries_before = self._queries
        async with self._lock:
            if self._result is None or self._queries == queries_before:
                try:
                    self._result = await self._query(grace_s=_GRACE_S)
                except MasterNotFoundError as exc:
                    self._result = exc
                self._queries += 1
            if isinstance(self._result, MasterNotFoundError):
                raise MasterNotFoundError(*self._result.args)
            return self._result

    async def aclose(self) -> None:
        """Close the connections to the sentinels."""
        if self._watch_task is not None:
            await cancel_and_wait({self._watch_task})
        await super().aclose()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            with suppress(MasterNotFoundError):
                await self._query(grace_s=_WATCH_GRACE_S)

    async def _query(self, *, grace_s: float) -> tuple[str, int]:
        """Host and port of the primary. Waits for all sentinels, but only `grace_s` once one has named a primary.

        On a busy machine the only sentinel that is up may be slow, so until then it waits for longer.
        """
        views: list[_View] = []
        known_epoch = self._epoch
        queries = {asyncio.create_task(self._view_of(sentinel)) for sentinel in self.sentinels}
        try:
            async with asyncio.timeout(self._deadline_s) as deadline:
                while queries:
                    done, queries = await asyncio.wait(queries, return_when=asyncio.FIRST_COMPLETED)
                    was_found = self._choose(views, known_epoch) is not None
                    views += [view for task in done if (view := task.result()) is not None]
                    if not was_found and self._choose(views, known_epoch) is not None:
                        deadline.reschedule(min(deadline.when() or inf, asyncio.get_running_loop().time() + grace_s))
        except TimeoutError:
            pass
        finally:
            await cancel_and_wait(queries)
        chosen = self._choose(views, known_epoch)
        if chosen is None:
            if self._primary is not None and self._epoch > known_epoch:  # another check has seen a failover since
                return self._primary
            raise MasterNotFoundError(f"no sentinel knows a primary {self._service_name!r} that is up")
        self._follow(chosen)
        return chosen.address

    async def _view_of(self, sentinel: Redis) -> _View | None:
        try:
            primaries: Any = await sentinel.sentinel_masters()
        except (RedisError, OSError):
            return None
        state = primaries.get(self._service_name)
        if not state:
            return None
        is_up = self.check_master_state(state, self._service_name)
        is_settled = "failover_in_progress" not in state["flags"]
        return _View(state["config-epoch"], is_settled, is_up, (state["ip"], state["port"]))

    def _choose(self, views: Sequence[_View], known_epoch: int) -> _View | None:
        """The view to follow, or None. The primary that is in use stays, if one of the best views names it.

        `known_epoch` was the highest one when the sentinels were asked.
        """
        epoch = max((view.epoch for view in views), default=-1)
        if epoch < self._epoch and (known_epoch < self._epoch or len(views) * 2 <= len(self.sentinels)):
            return None
        candidates = [view for view in views if view.epoch == epoch and view.is_up]
        return max(candidates, key=lambda view: (view.is_settled, view.address == self._primary), default=None)

    def _follow(self, view: _View) -> None:
        self._epoch = view.epoch
        if self._primary is not None and self._primary != view.address:
            _log.warning(
                "the sentinels name %s:%s as the primary, no longer %s:%s: connections to that are broken off",
                *(*view.address, *self._primary),
            )
        self._primary = view.address
        # Each time: a connection that was being opened, to the primary of an earlier view, may be open now.
        for connection in list(self.connections):
            if (connection.host, connection.port) != view.address:
                connection.break_off()


class _PrimaryPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the current primary. A caller waits for a free one."""

    async def aclose(self) -> None:
        """Close the connections, those to the sentinels too."""
        await super().aclose()
        await self.sentinel_manager.aclose()


def sentinel_pools(
    url: StoreUrl, *, timeout_s: float
) -> tuple[SentinelConnectionPool, Callable[[], SentinelConnectionPool]]:
    """Connections to the primary that the sentinels of `url` name, and pools for subscriptions to it.

    A primary that was made a replica responds with READONLY, and that connection is dropped too.
    """
    sentinels = _SentinelClient(url, timeout_s=timeout_s)
    options = connection_options(url, timeout_s=timeout_s)
    options["connection_class"] = _PrimarySSLConnection if url.tls else _PrimaryConnection
    pool = _PrimaryPool(url.master_name, sentinels, max_connections=POOL_SIZE, timeout=timeout_s, **options)

    def subscriber_pool() -> SentinelConnectionPool:
        return SentinelConnectionPool(url.master_name, sentinels, **subscriber_options(options, timeout_s=timeout_s))

    return pool, subscriber_pool


def _sentinel_options(url: StoreUrl, *, timeout_s: float) -> dict[str, Any]:
    options = common_options() | {
        "username": url.sentinel_username,
        "password": url.sentinel_password,
        "socket_connect_timeout": timeout_s,
        "socket_timeout": timeout_s,
    }
    if url.tls:
        options |= {"ssl": True, **dict(url.tls_options)}
    return options
