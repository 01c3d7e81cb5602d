"""A store that is one server, connected by TCP, TLS or a Unix socket."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool, ConnectionPool

from deferd.store.backend import Backend, pipelined_backend
from deferd.store.redis_client import POOL_SIZE, connection_options, subscriber_options
from deferd.store.url import StoreUrl


def single_backend(url: StoreUrl, *, timeout_s: float, confirm_s: float) -> Backend:
    """Connect to the server of `url`."""
    options = connection_options(url, timeout_s=timeout_s)
    if url.hosts:
        options["host"], options["port"] = url.hosts[0]
    pool = BlockingConnectionPool(max_connections=POOL_SIZE, timeout=timeout_s, **options)

    def subscriber_pool() -> ConnectionPool:
        return ConnectionPool(**subscriber_options(options, timeout_s=timeout_s))

    return pipelined_backend(pool, subscriber_pool, timeout_s=timeout_s, confirm_s=confirm_s)
