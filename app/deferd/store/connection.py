"""Connect to a store by URL. Calls have a deadline, are never sent twice, and recover after a restart or failover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import RedisError

from deferd.store.cluster import ClusterCalls, SlotCalls
from deferd.store.redis_client import POOL_SIZE, RedisClient, WatchedPubSub, connection_options, subscriber_options
from deferd.store.sentinel import sentinel_pools
from deferd.store.server_calls import ServerCalls
from deferd.store.url import StoreUrl, parse_store_url

CONFIRM_S = 5.0
KeyCalls = ServerCalls | SlotCalls
"""What makes calls to the server that has a key."""


@dataclass(kw_only=True)
class Store:
    """A store and its clients: a server, the primary that sentinels name, or a cluster.

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

    `fault` finds why a store of this machine is down, as a clause to follow "the store: "; None for any other store.
    `description` is for people and holds no secret. `server` is the server's name and version, known after
    `deferd.store.preflight.check`.
    """

    client: Redis | RedisCluster
    call: Callable[..., Awaitable[Any]]
    calls_of: Callable[[str], KeyCalls]
    servers: Callable[[], Awaitable[Sequence[ServerCalls]]]
    topology: Callable[[], object]
    pubsub: Callable[[], WatchedPubSub]
    close_all: Callable[[], Awaitable[None]]
    cluster: bool
    timeout_s: float
    description: str
    server: str = ""
    fault: Callable[[], Awaitable[str | None]] | None = field(default=None, repr=False)

    async def close(self) -> None:
        """Close all connections. Errors are ignored: the sockets are closed in any case."""
        try:
            await self.close_all()
        except (RedisError, OSError):
            return


async def connect(url: str, *, timeout_s: float, confirm_s: float = CONFIRM_S) -> Store:
    """Make a Store for a URL (see `deferd.store.url`). Connections are opened when they are first needed.

    So this succeeds while the store is down; `deferd.store.preflight.check` tells whether it can be used. Each command
    returns or fails within `timeout_s` seconds, the wait for a free connection and connecting included. One that
    replicas confirm does within `confirm_s`.

    Raises:
        StoreUrlError: `url` is not a store URL.
    """
    parsed = parse_store_url(url)
    if parsed.kind == "cluster":
        return _cluster(parsed, timeout_s=timeout_s, confirm_s=confirm_s)
    pools = sentinel_pools if parsed.kind == "sentinel" else _server_pools
    return _one_server(parsed, *pools(parsed, timeout_s=timeout_s), timeout_s=timeout_s, confirm_s=confirm_s)


def _cluster(url: StoreUrl, *, timeout_s: float, confirm_s: float) -> Store:
    calls = ClusterCalls(url, timeout_s=timeout_s, confirm_s=confirm_s)
    return Store(
        client=calls.client,
        call=calls.call,
        calls_of=calls.calls_of,
        servers=calls.servers,
        topology=calls.primaries,
        pubsub=calls.pubsub,
        close_all=calls.close,
        cluster=True,
        timeout_s=timeout_s,
        description=str(url),
    )


def _one_server(
    url: StoreUrl,
    pool: ConnectionPool,
    subscriber_pool: Callable[[], ConnectionPool],
    *,
    timeout_s: float,
    confirm_s: float,
) -> Store:
    """A store that sends all its calls to one server: the one that new connections of `pool` lead to.

    Each subscription gets a pool of its own from `subscriber_pool`.
    """
    server = ServerCalls(pool, timeout_s=timeout_s, confirm_s=confirm_s)

    def pubsub() -> WatchedPubSub:
        return WatchedPubSub(subscriber_pool(), deadline_s=timeout_s, publish=partial(server.call, "PUBLISH"))

    async def servers() -> Sequence[ServerCalls]:
        return (server,)

    return Store(
        client=RedisClient(pool, deadline_s=timeout_s),
        call=server.call,
        calls_of=lambda _key: server,
        servers=servers,
        topology=lambda: server.pipeline.connections_opened,
        pubsub=pubsub,
        close_all=server.close,
        cluster=False,
        timeout_s=timeout_s,
        description=str(url),
    )


def _server_pools(url: StoreUrl, *, timeout_s: float) -> tuple[ConnectionPool, Callable[[], ConnectionPool]]:
    """Connections to the server of `url`, by TCP, TLS or a Unix socket, and pools for its subscriptions."""
    options = connection_options(url, timeout_s=timeout_s)
    if url.hosts:
        options["host"], options["port"] = url.hosts[0]
    pool = BlockingConnectionPool(max_connections=POOL_SIZE, timeout=timeout_s, **options)
    return pool, lambda: ConnectionPool(**subscriber_options(options, timeout_s=timeout_s))
