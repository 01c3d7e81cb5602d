"""What each kind of store provides to `deferd.store.connection`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.cluster import RedisCluster

from deferd.store.redis_client import RedisClient, WatchedPubSub
from deferd.store.server_calls import KeyCalls, ServerCalls


class Backend(NamedTuple):
    """The clients of one kind of store; `deferd.store.connection.Store` describes each member."""

    client: Redis | RedisCluster
    call: Callable[..., Awaitable[Any]]
    subscribe: Callable[[], WatchedPubSub]
    close: Callable[[], Awaitable[None]]
    calls_of: Callable[[str], KeyCalls]
    servers: Callable[[], Awaitable[Sequence[KeyCalls]]]
    topology: Callable[[], object]


def pipelined_backend(
    pool: ConnectionPool, subscriber_pool: Callable[[], ConnectionPool], *, timeout_s: float, confirm_s: float
) -> Backend:
    """A backend that sends all its calls to one server: the one that new connections of `pool` lead to.

    Each subscription gets a pool of its own from `subscriber_pool`.
    """
    server = ServerCalls(pool, timeout_s=timeout_s, confirm_s=confirm_s)

    def subscribe() -> WatchedPubSub:
        return WatchedPubSub(subscriber_pool(), deadline_s=timeout_s, publish=partial(server.call, "PUBLISH"))

    async def servers() -> Sequence[KeyCalls]:
        return (server,)

    return Backend(
        client=RedisClient(pool, deadline_s=timeout_s),
        call=server.call,
        subscribe=subscribe,
        close=server.close,
        calls_of=lambda _key: server,
        servers=servers,
        topology=lambda: server.pipeline.connections_opened,
    )
