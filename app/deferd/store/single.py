"""A store that is one server, reached over TCP, TLS or a unix socket."""

from __future__ import annotations

from functools import partial

from redis.asyncio import BlockingConnectionPool, ConnectionPool

from deferd.store.backend import Link
from deferd.store.fsync_probe import GivenLevel
from deferd.store.pipeline import Pipeline
from deferd.store.redis_client import POOL_SIZE, BoundedRedis, WatchedPubSub, server_options, subscriber_options
from deferd.store.replication import ReplicatedCalls
from deferd.store.url import StoreAddress


def link_server(address: StoreAddress, *, timeout_s: float, confirm_s: float) -> Link:
    """Reach the one server of `address`."""
    options = server_options(address, timeout_s=timeout_s)
    if address.hosts:
        options["host"], options["port"] = address.hosts[0]
    pool = BlockingConnectionPool(max_connections=POOL_SIZE, timeout=timeout_s, **options)

    def subscribe() -> WatchedPubSub:
        own_pool = ConnectionPool(**subscriber_options(options, timeout_s=timeout_s))
        return WatchedPubSub(own_pool, deadline_s=timeout_s, publish=partial(pipeline.call, "PUBLISH"))

    pipeline = Pipeline(pool, deadline_s=timeout_s)
    replicated = ReplicatedCalls(pool, deadline_s=timeout_s, within_s=confirm_s)

    async def close() -> None:
        await replicated.close()
        await pipeline.close()
        await pool.aclose()

    client = BoundedRedis(pool, deadline_s=timeout_s)
    return Link(client, pipeline.call, subscribe, close, GivenLevel(pipeline), replicated, lambda: pipeline.opened)
