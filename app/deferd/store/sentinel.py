"""A store that is a primary monitored by sentinels, which promote a replica when it fails."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import BlockingConnectionPool
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.exceptions import RedisError

from deferd.store.backend import Backend, pipelined_backend
from deferd.store.redis_client import POOL_SIZE, connection_options, no_retry, subscriber_options
from deferd.store.url import StoreUrl


class _SentinelClient(Sentinel):
    """Finds the primary: asks one sentinel after the other until one knows a primary that is up.

    redis-py's `discover_master` reorders its list of sentinels after an await, which loses sentinels when several
    calls run at once. It also sends a query for each of those calls, and such a burst delays the sentinel's response
    beyond its time-out.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]  # redis-py gives it no types
        self._lock = asyncio.Lock()
        self._queries = 0
        self._result: tuple[str, int] | MasterNotFoundError | None = None

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Host and port of the primary. Calls that wait while another one queries share its result."""
        queries_before = self._queries
        async with self._lock:
            if self._result is None or self._queries == queries_before:
                try:
                    self._result = await self._query(service_name)
                except MasterNotFoundError as exc:
                    self._result = exc
                self._queries += 1
            if isinstance(self._result, MasterNotFoundError):
                raise MasterNotFoundError(*self._result.args)
            return self._result

    async def _query(self, service_name: str) -> tuple[str, int]:
        """Query one sentinel after the other. The one that knew the primary comes first from now on."""
        for sentinel in tuple(self.sentinels):
            try:
                primaries: Any = await sentinel.sentinel_masters()
            except (RedisError, OSError):
                continue
            state = primaries.get(service_name)
            if state and self.check_master_state(state, service_name):
                self.sentinels = [sentinel, *(other for other in self.sentinels if other is not sentinel)]
                return state["ip"], state["port"]
        raise MasterNotFoundError(f"no sentinel knows a primary {service_name!r} that is up")


class _PrimaryPool(SentinelConnectionPool, BlockingConnectionPool):
    """Connections to the current primary. A caller waits for a free one."""

    async def aclose(self) -> None:
        """Close the connections, those to the sentinels too."""
        await super().aclose()
        await self.sentinel_manager.aclose()


def sentinel_backend(url: StoreUrl, *, timeout_s: float, confirm_s: float) -> Backend:
    """Connect to the primary that the sentinels of `url` name.

    They are queried for each new connection. When a primary fails, each of its connections fails at its next use. The
    first new connection to another primary drops the idle ones to the old. A primary that was made a replica responds
    with READONLY, and that connection is dropped too.
    """
    sentinels = _SentinelClient(list(url.hosts), sentinel_kwargs=_sentinel_options(url, timeout_s=timeout_s))
    options = connection_options(url, timeout_s=timeout_s)
    if options.pop("connection_class", None):
        options["ssl"] = True
    pool = _PrimaryPool(url.master_name, sentinels, max_connections=POOL_SIZE, timeout=timeout_s, **options)

    def subscriber_pool() -> SentinelConnectionPool:
        return SentinelConnectionPool(url.master_name, sentinels, **subscriber_options(options, timeout_s=timeout_s))

    return pipelined_backend(pool, subscriber_pool, timeout_s=timeout_s, confirm_s=confirm_s)


def _sentinel_options(url: StoreUrl, *, timeout_s: float) -> dict[str, Any]:
    # Sentinels are queried one after the other. Each gets a share of the time, so that one that hangs leaves enough
    # for the others and for the primary within a call's deadline.
    share_s = timeout_s / (len(url.hosts) + 1)
    options: dict[str, Any] = {
        "username": url.sentinel_username,
        "password": url.sentinel_password,
        "socket_connect_timeout": share_s,
        "socket_timeout": share_s,
        "retry": no_retry(),
        "protocol": 2,
        "driver_info": None,
    }
    if url.tls:
        options |= {"ssl": True, **dict(url.tls_options)}
    return options
