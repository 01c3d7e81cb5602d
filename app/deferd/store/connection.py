"""Connect to a store by URL. Calls have a deadline, are never sent twice, and recover after a restart or failover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from redis.exceptions import RedisError

from deferd.store.backend import Backend
from deferd.store.cluster import cluster_backend
from deferd.store.sentinel import sentinel_backend
from deferd.store.single import single_backend
from deferd.store.url import parse_store_url

CONFIRM_S = 5.0
_BACKENDS = {"server": single_backend, "unix": single_backend, "sentinel": sentinel_backend, "cluster": cluster_backend}


@dataclass(kw_only=True)
class Store(Backend):
    """A store and its clients.

    `fault` finds why a store of this machine is down, as a clause to follow "the store: "; None for any other store.
    `description` is for people and holds no secret. `server` is the server's name and version, known after
    `deferd.store.preflight.check`.
    """

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
    backend = _BACKENDS[parsed.kind](parsed, timeout_s=timeout_s, confirm_s=confirm_s)
    return Store(**vars(backend), cluster=parsed.kind == "cluster", timeout_s=timeout_s, description=str(parsed))
