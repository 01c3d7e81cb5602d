"""Connecting to a store by URL, so that a call fails soon rather than hangs, and is never sent twice.

After a restart of the store, or a failover of its sentinels or its cluster, calls work again by themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import RedisError

from deferd.store.cluster import link_cluster
from deferd.store.fsync_probe import GivenLevel
from deferd.store.redis_client import WatchedPubSub
from deferd.store.replication import ReplicatedCalls
from deferd.store.sentinel import link_sentinel
from deferd.store.single import link_server
from deferd.store.url import parse_address

CONFIRM_S = 5.0
_LINKS = {"server": link_server, "unix": link_server, "sentinel": link_sentinel, "cluster": link_cluster}


@dataclass
class Store:
    """A store and how to talk to it.

    `call` runs one command, and so does `client` with execute_command and all that is built on it (info, get ...): both
    answer or fail within the time-out given to `connect`. `call` is the one for load; to a single server (`cluster`
    is false) its calls are carried out in the order in which they were begun. redis-py's pipelines are outside of
    these promises. `given` is how durable a call is by itself, and `replicated` makes calls that replicas confirm, None
    where that cannot be had. `reached` gives a value that differs when calls may reach another server than before: a
    new connection, or another set of primaries. `description` is for people and holds no secret; `server` is the
    server's name and version once `check` has asked for it.
    """

    client: Redis | RedisCluster
    call: Callable[..., Awaitable[Any]]
    cluster: bool
    description: str
    given: GivenLevel
    replicated: ReplicatedCalls | None
    reached: Callable[[], object]
    server: str = ""
    _subscribe: Callable[[], WatchedPubSub] = field(kw_only=True, repr=False)
    _close: Callable[[], Awaitable[None]] = field(kw_only=True, repr=False)

    def pubsub(self) -> WatchedPubSub:
        """A new PubSub on a connection of its own, which is opened at its first subscribe and closed by its aclose.

        A read of it may wait for any time. Each get_message looks after the connection: after 5 s of silence it
        sends a PING, and if the answer stays away for the store's time-out it raises redis-py's ConnectionError; so
        call it with a timeout of a second or so. After an error make a new one: in a cluster the next one goes to
        another node.
        """
        return self._subscribe()

    async def close(self) -> None:
        """Close all connections; errors in doing so are of no interest, the sockets are gone in any case."""
        try:
            await self._close()
        except (RedisError, OSError):
            return


async def connect(url: str, *, timeout_s: float, confirm_s: float = CONFIRM_S) -> Store:
    """Make a Store for a URL (see `deferd.store.url`); connections are opened when they are first needed.

    So this succeeds while the store is down; `deferd.store.preflight.check` tells whether it can be used. Each command
    answers or fails within `timeout_s` seconds, the wait for a free connection and connecting included; one that
    replicas are to confirm, within `confirm_s`.

    Raises:
        AddressError: the URL is none.
    """
    address = parse_address(url)
    link = _LINKS[address.kind](address, timeout_s=timeout_s, confirm_s=confirm_s)
    return Store(
        client=link.client,
        call=link.call,
        cluster=address.kind == "cluster",
        description=str(address),
        given=link.given,
        replicated=link.replicated,
        reached=link.reached,
        _subscribe=link.subscribe,
        _close=link.close,
    )
