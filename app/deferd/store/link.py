"""What each kind of store hands to `deferd.store.connection`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.cluster import RedisCluster


class Link(NamedTuple):
    """A client, a way to make the calls that carry the load, a maker of subscriptions, and how to close it all."""

    client: Redis | RedisCluster
    call: Callable[..., Awaitable[Any]]
    subscribe: Callable[[], PubSub]
    close: Callable[[], Awaitable[None]]
