"""A store that is a primary monitored by sentinels, which promote a replica when it fails."""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool
from redis.exceptions import RedisError

from deferd.store.backend import Backend, pipelined_backend
from deferd.store.redis_client import POOL_SIZE, connection_options, no_retry, subscriber_options
from deferd.store.task_cancellation import cancel_and_wait
from deferd.store.url import StoreUrl


class _SentinelClient(Sentinel):
    """Finds the primary: queries the sentinels until one of them knows a primary that is up.

    redis-py's `discover_master` reorders its list of sentinels after an await, which loses sentinels when several
    calls run at once. It also sends a query for each of those calls, and such a burst delays the sentinel's response
    beyond its time-out.

    When a sentinel has not responded after `_patience_s`, the next one is queried as well. A late response still counts
    until `_deadline_s`: on a busy machine the only sentinel that is up may be slow.
    """

    def __init__(self, url: StoreUrl, *, timeout_s: float) -> None:
        self._patience_s = timeout_s / (len(url.hosts) + 1)
        self._deadline_s = timeout_s - self._patience_s  # the rest is for connecting to the primary
        options = _sentinel_options(url, timeout_s=self._deadline_s)
        super().__init__(list(url.hosts), sentinel_kwargs=options)  # type: ignore[no-untyped-call]  # redis-py gives it no types
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
        """Host and port of the primary that the first sentinel with a primary names."""
        remaining = list(self.sentinels)
        queries: set[asyncio.Task[tuple[str, int] | None]] = set()
        try:
            async with asyncio.timeout(self._deadline_s):
                while remaining or queries:
                    if remaining:
                        queries.add(asyncio.create_task(self._primary_of(remaining.pop(0), service_name)))
                    patience_s = self._patience_s if remaining else None
                    done, queries = await asyncio.wait(queries, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        if (primary := task.result()) is not None:
                            return primary
        except TimeoutError:
            pass
        finally:
            await cancel_and_wait(queries)
        raise MasterNotFoundError(f"no sentinel knows a primary {service_name!r} that is up")

    async def _primary_of(self, sentinel: Redis, service_name: str) -> tuple[str, int] | None:
        """The primary that a sentinel names, or None. A sentinel that names one is queried first from now on."""
        try:
            primaries: Any = await sentinel.sentinel_masters()
        except (RedisError, OSError):
            return None
        state = primaries.get(service_name)
        if not state or not self.check_master_state(state, service_name):
            return None
        self.sentinels = [sentinel, *(other for other in self.sentinels if other is not sentinel)]
        return state["ip"], state["port"]


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
    sentinels = _SentinelClient(url, timeout_s=timeout_s)
    options = connection_options(url, timeout_s=timeout_s)
    if options.pop("connection_class", None):
        options["ssl"] = True
    pool = _PrimaryPool(url.master_name, sentinels, max_connections=POOL_SIZE, timeout=timeout_s, **options)

    def subscriber_pool() -> SentinelConnectionPool:
        return SentinelConnectionPool(url.master_name, sentinels, **subscriber_options(options, timeout_s=timeout_s))

    return pipelined_backend(pool, subscriber_pool, timeout_s=timeout_s, confirm_s=confirm_s)


def _sentinel_options(url: StoreUrl, *, timeout_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {
        "username": url.sentinel_username,
        "password": url.sentinel_password,
        "socket_connect_timeout": timeout_s,
        "socket_timeout": timeout_s,
        "retry": no_retry(),
        "protocol": 2,
        "driver_info": None,
    }
    if url.tls:
        options |= {"ssl": True, **dict(url.tls_options)}
    return options
