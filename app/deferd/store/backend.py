"""What each kind of store hands to `deferd.store.connection`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from deferd.store.fsync_probe import GivenLevel
from deferd.store.redis_client import WatchedPubSub
from deferd.store.replication import ReplicatedCalls


class Link(NamedTuple):
    """A client, a way to make the calls that carry the load, a maker of subscriptions, and how to close it all.

    `given` says how durable such a call is by itself; `replicated` makes calls that replicas confirm, None where that
    cannot be had. `reached` gives a value that differs when calls may reach another server than before.
    """

    client: Redis | RedisCluster
    call: Callable[..., Awaitable[Any]]
    subscribe: Callable[[], WatchedPubSub]
    close: Callable[[], Awaitable[None]]
    given: GivenLevel
    replicated: ReplicatedCalls | None
    reached: Callable[[], object]
