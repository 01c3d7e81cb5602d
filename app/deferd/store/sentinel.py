"""A store that is a master under the watch of sentinels, which name another master when it fails."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.exceptions import RedisError

from deferd.store.backend import Link
from deferd.store.fsync_probe import GivenLevel
from deferd.store.pipeline import Pipeline
from deferd.store.redis_client import (
    POOL_SIZE,
    BoundedRedis,
    WatchedPubSub,
    no_retry,
    server_options,
    subscriber_options,
)
from deferd.store.replication import ReplicatedCalls
from deferd.store.url import StoreAddress


class _Sentinels(Sentinel):
    """The sentinels of a set, asked one after the other until one names a master that is up.

    redis-py's own way exchanges two places of its list after an await, which loses sentinels when several calls
    ask at once. It also lets each of them ask for itself, so that a burst keeps a sentinel from responding in time.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]  # redis-py gives it no types
        self._turn = asyncio.Lock()
        self._times_asked = 0
        self._told: tuple[str, int] | MasterNotFoundError | None = None

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Host and port of the primary. Calls that wait while another one asks share its result."""
        times_asked = self._times_asked
        async with self._turn:
            if self._told is None or self._times_asked == times_asked:
                try:
                    self._told = await self._ask(service_name)
                except MasterNotFoundError as exc:
                    self._told = exc
                self._times_asked += 1
            if isinstance(self._told, MasterNotFoundError):
                raise MasterNotFoundError(*self._told.args)
            return self._told

    async def _ask(self, service_name: str) -> tuple[str, int]:
        """Ask one sentinel after the other. The one that knew the primary is asked first from now on."""
        for sentinel in tuple(self.sentinels):
            try:
                masters: Any = await sentinel.sentinel_masters()
            except (RedisError, OSError):
                continue
            state = masters.get(service_name)
            if state and self.check_master_state(state, service_name):
                self.sentinels = [sentinel, *(one for one in self.sentinels if one is not sentinel)]
                return state["ip"], state["port"]
        raise MasterNotFoundError(f"none of the sentinels names a master {service_name!r} that is up")


class _MasterPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to whichever server is the master; a caller waits for a free one."""


def link_sentinel(address: StoreAddress, *, timeout_s: float, confirm_s: float) -> Link:
    """Reach the master that the sentinels of `address` name.

    They are asked for each new connection. When a master fails, its connections fail, each at its next use; the
    first new one that leads to another master drops the idle ones to the old. A master that was made a replica
    answers READONLY, and that connection is dropped as well.
    """
    sentinels = _Sentinels(list(address.hosts), sentinel_kwargs=_sentinel_options(address, timeout_s=timeout_s))
    options = server_options(address, timeout_s=timeout_s)
    if options.pop("connection_class", None):
        options["ssl"] = True
    pool = _MasterPool(address.master_name, sentinels, max_connections=POOL_SIZE, timeout=timeout_s, **options)

    def subscribe() -> WatchedPubSub:
        own_pool = SentinelConnectionPool(
            address.master_name, sentinels, **subscriber_options(options, timeout_s=timeout_s)
        )
        return WatchedPubSub(own_pool, deadline_s=timeout_s, publish=partial(pipeline.call, "PUBLISH"))

    pipeline = Pipeline(pool, deadline_s=timeout_s)
    replicated = ReplicatedCalls(pool, deadline_s=timeout_s, within_s=confirm_s)

    async def close() -> None:
        await replicated.close()
        await pipeline.close()
        await pool.aclose()
        await sentinels.aclose()

    client = BoundedRedis(pool, deadline_s=timeout_s)
    return Link(client, pipeline.call, subscribe, close, GivenLevel(pipeline), replicated, lambda: pipeline.opened)


def _sentinel_options(address: StoreAddress, *, timeout_s: float) -> dict[str, Any]:
    # Sentinels are asked one after the other: each gets so little time that one that hangs leaves enough to ask
    # the next ones and the master within a call's deadline.
    share_s = timeout_s / (len(address.hosts) + 1)
    options: dict[str, Any] = {
        "username": address.sentinel_username,
        "password": address.sentinel_password,
        "socket_connect_timeout": share_s,
        "socket_timeout": share_s,
        "retry": no_retry(),
        "protocol": 2,
        "driver_info": None,
    }
    if address.tls:
        options |= {"ssl": True, **dict(address.tls_options)}
    return options
