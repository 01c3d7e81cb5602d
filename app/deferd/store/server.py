"""A store that is one server, reached over TCP, TLS or a unix socket."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool, Connection, ConnectionPool

from deferd.store.address import StoreAddress
from deferd.store.bounded import POOL_SIZE, BoundedRedis, WatchedPubSub, server_options, subscriber_options
from deferd.store.link import Link
from deferd.store.packing import PACKING


def link_server(address: StoreAddress, *, timeout_s: float) -> Link:
    """Reach the one server of `address`."""
    options = server_options(address, timeout_s=timeout_s)
    if address.hosts:
        options["host"], options["port"] = address.hosts[0]
    options["connection_class"] = PACKING[options.get("connection_class", Connection)]
    pool = BlockingConnectionPool(max_connections=POOL_SIZE, timeout=timeout_s, **options)

    def subscribe() -> WatchedPubSub:
        own_pool = ConnectionPool(**subscriber_options(options, timeout_s=timeout_s))
        return WatchedPubSub(own_pool, deadline_s=timeout_s)

    return Link(BoundedRedis(pool, deadline_s=timeout_s), subscribe, pool.aclose)
