"""The interface of each kind of store for `deferd.store.connection`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.cluster import RedisCluster

from deferd.store.cluster_calls import SlotCalls
from deferd.store.redis_client import RedisClient, WatchedPubSub
from deferd.store.server_calls import ServerCalls

KeyCalls = ServerCalls | SlotCalls
"""What makes calls to the server that has a key."""


@dataclass(kw_only=True)
class Backend:
    """The clients of one kind of store.

    `call` runs one command, and so does `client` by `execute_command` and what is built on it (info, get ...). Both
    return or fail within the store's time-out, but redis-py's pipelines may not. Use `call` for load: a single server
    runs such calls in the order in which they were made. What writes is called by `deferd.engine.scripts`, so that it
    does nothing once it has been given up.

    `calls_of` returns what makes calls to the server that has a key, for those whose durability matters; ask for it
    before each call. `servers` returns the same for all primaries. `topology` returns a value that changes when
    calls may reach another server than before: the number of connections opened, or the set of primaries.

    `pubsub` returns a new PubSub. Its first subscribe opens a connection of its own, and its aclose closes that. A read
    may wait for any time. Call get_message with a timeout of about a second: it sends a PING after 5 s without a
    message, and raises redis-py's ConnectionError when no reply comes within the store's time-out. After an error make
    a new one: in a cluster it connects to another node. `close_all` closes all connections, for good.
    """

    client: Redis | RedisCluster
    call: Callable[..., Awaitable[Any]]
    calls_of: Callable[[str], KeyCalls]
    servers: Callable[[], Awaitable[Sequence[ServerCalls]]]
    topology: Callable[[], object]
    pubsub: Callable[[], WatchedPubSub]
    close_all: Callable[[], Awaitable[None]]


def pipelined_backend(
    pool: ConnectionPool, subscriber_pool: Callable[[], ConnectionPool], *, timeout_s: float, confirm_s: float
) -> Backend:
    """A backend that sends all its calls to one server: the one that new connections of `pool` lead to.

    Each subscription gets a pool of its own from `subscriber_pool`.
    """
    server = ServerCalls(pool, timeout_s=timeout_s, confirm_s=confirm_s)

    def pubsub() -> WatchedPubSub:
        return WatchedPubSub(subscriber_pool(), deadline_s=timeout_s, publish=partial(server.call, "PUBLISH"))

    async def servers() -> Sequence[ServerCalls]:
        return (server,)

    return Backend(
        client=RedisClient(pool, deadline_s=timeout_s),
        call=server.call,
        pubsub=pubsub,
        close_all=server.close,
        calls_of=lambda _key: server,
        servers=servers,
        topology=lambda: server.pipeline.connections_opened,
    )
