"""What each kind of store hands to `deferd.store.connection`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.cluster import RedisCluster


class Link(NamedTuple):
    """A client for commands, a maker of subscriptions, and how to close the client's connections."""

    client: Redis | RedisCluster
    subscribe: Callable[[], PubSub]
    close: Callable[[], Awaitable[None]]
