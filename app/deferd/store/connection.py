"""Connect to a store by URL. Calls have a deadline, are never sent twice, and recover after a restart or failover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import RedisError

from deferd.store.cluster import cluster_backend
from deferd.store.redis_client import WatchedPubSub
from deferd.store.sentinel import sentinel_backend
from deferd.store.server_calls import KeyCalls
from deferd.store.single import single_backend
from deferd.store.url import parse_store_url

CONFIRM_S = 5.0
_BACKENDS = {"server": single_backend, "unix": single_backend, "sentinel": sentinel_backend, "cluster": cluster_backend}


@dataclass
class Store:
    """A store and its clients.

    `call` runs one command, and so does `client` by `execute_command` and what is built on it (info, get ...). Both
    return or fail within `timeout_s`, but redis-py's pipelines may not. Use `call` for load: a single
    server (`cluster` is false) runs such calls in the order in which they were made. What writes is called by
    `deferd.engine.scripts`, so that it does nothing once it has been given up.

    `calls_of` returns what makes calls to the server that has a key, for those whose durability matters; ask for it
    before each call. `servers` returns the same for all primaries. `topology` returns a value that changes when
    calls may reach another server than before: the number of connections opened, or the set of primaries.
    `fault` finds why a store of this machine is down, as a clause to follow "the store: "; None for any other store.
    `description` is for people and holds no secret. `server` is the server's name and version, known after
    `deferd.store.preflight.check`.
    """

    client: Redis | RedisCluster
    call: Callable[..., Awaitable[Any]]
    cluster: bool
    timeout_s: float
    description: str
    calls_of: Callable[[str], KeyCalls]
    servers: Callable[[], Awaitable[Sequence[KeyCalls]]]
    topology: Callable[[], object]
    server: str = ""
    fault: Callable[[], Awaitable[str | None]] | None = field(default=None, repr=False)
    _subscribe: Callable[[], WatchedPubSub] = field(kw_only=True, repr=False)
    _close: Callable[[], Awaitable[None]] = field(kw_only=True, repr=False)

    def pubsub(self) -> WatchedPubSub:
        """A new PubSub. Its first subscribe opens a connection of its own, and its aclose closes that.

        A read may wait for any time. Call get_message with a timeout of about a second: it sends a PING after 5 s
        without a message, and raises redis-py's ConnectionError when no reply comes within the store's time-out. After
        an error make a new one: in a cluster it connects to another node.
        """
        return self._subscribe()

    async def close(self) -> None:
        """Close all connections. Errors are ignored: the sockets are closed in any case."""
        try:
            await self._close()
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
    backend = _BACKENDS[parsed.kind](parsed, timeout_s=timeout_s, confirm_s=confirm_s)
    return Store(
        client=backend.client,
        call=backend.call,
        cluster=parsed.kind == "cluster",
        timeout_s=timeout_s,
        description=str(parsed),
        calls_of=backend.calls_of,
        servers=backend.servers,
        topology=backend.topology,
        _subscribe=backend.subscribe,
        _close=backend.close,
    )
