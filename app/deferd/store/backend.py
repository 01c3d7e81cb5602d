"""What each kind of store provides to `deferd.store.connection`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.cluster import RedisCluster

from deferd.store.fsync_probe import StoreDurability
from deferd.store.pipeline import Pipeline
from deferd.store.redis_client import RedisClient, WatchedPubSub
from deferd.store.replication import ReplicatedCalls


class Backend(NamedTuple):
    """The clients of one kind of store; `deferd.store.connection.Store` describes each member."""

    client: Redis | RedisCluster
    call: Callable[..., Awaitable[Any]]
    subscribe: Callable[[], WatchedPubSub]
    close: Callable[[], Awaitable[None]]
    durability: StoreDurability
    replicated: ReplicatedCalls | None
    topology: Callable[[], object]


def pipelined_backend(
    pool: ConnectionPool, subscriber_pool: Callable[[], ConnectionPool], *, timeout_s: float, confirm_s: float
) -> Backend:
    """A backend that sends all its calls to one server: the one that new connections of `pool` lead to.

    Each subscription gets a pool of its own from `subscriber_pool`.
    """
    pipeline = Pipeline(pool, deadline_s=timeout_s)
    replicated = ReplicatedCalls(pool, deadline_s=timeout_s, within_s=confirm_s)

    def subscribe() -> WatchedPubSub:
        return WatchedPubSub(subscriber_pool(), deadline_s=timeout_s, publish=partial(pipeline.call, "PUBLISH"))

    async def close() -> None:
        await replicated.close()
        await pipeline.close()
        await pool.aclose()

    return Backend(
        client=RedisClient(pool, deadline_s=timeout_s),
        call=pipeline.call,
        subscribe=subscribe,
        close=close,
        durability=StoreDurability(pipeline),
        replicated=replicated,
        topology=lambda: pipeline.connections_opened,
    )
