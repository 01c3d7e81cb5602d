"""redis-py made safe for jobs: nothing is sent twice, and nothing is waited for without a bound.

redis-py repeats commands by default. A put that is repeated after it may have been carried out would be a second
put, so all its repeating is off here. Stale connections of a pool (the store was restarted) are found and remade
when they are taken out, before anything is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from redis.asyncio import ConnectionPool, Redis, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.store.url import StoreAddress

POOL_SIZE = 16
"""Most connections to one server: enough to keep it busy, few enough that one that hangs does not pile them up."""
QUIET_S = 5.0
"""A subscription on which nothing came for so long asks the server whether it is still there."""


def no_retry() -> Retry:
    """A policy of never sending a command again."""
    return Retry(NoBackoff(), 0)


def server_options(address: StoreAddress, *, timeout_s: float) -> dict[str, Any]:
    """How redis-py opens a connection of an address, but for where to."""
    options: dict[str, Any] = {
        "db": address.db,
        "username": address.username,
        "password": address.password,
        "socket_connect_timeout": timeout_s,
        # A deadline stands over each whole call instead: one timer a call, and none for each of its steps.
        "socket_timeout": None,
        "retry": no_retry(),
        # RESP2, so that an old server gets as far as being told that it is too old.
        "protocol": 2,
        # No CLIENT SETINFO: a round trip less, and users with few rights need not be allowed it.
        "driver_info": None,
    }
    if address.tls:
        options |= {"connection_class": SSLConnection, **dict(address.tls_options)}
    if address.kind == "unix":
        options |= {"connection_class": UnixDomainSocketConnection, "path": address.path}
    return options


class BoundedRedis(Redis):
    """A client of which each command answers or fails within `deadline_s`, waiting and connecting included."""

    def __init__(self, pool: ConnectionPool, *, deadline_s: float) -> None:
        super().__init__(connection_pool=pool)
        self._deadline_s = deadline_s

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command, once. What it did is not known after redis-py's TimeoutError or ConnectionError."""
        try:
            # A connection whose answer is not waited for any longer is closed by redis-py, never used again.
            async with asyncio.timeout(self._deadline_s):
                return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py gives it no types
        except TimeoutError as exc:
            raise RedisTimeoutError(f"no answer within {self._deadline_s} s") from exc


class WatchedPubSub(PubSub):
    """A PubSub that notices a server that has gone silent, if `get_message` is called every second or so.

    redis-py sends a PING on a quiet connection but does not mind when no answer comes. `publish(channel, message)`
    sends a message the way that most messages come: from another connection, and in a cluster from another node.
    """

    def __init__(
        self, pool: ConnectionPool, *, deadline_s: float, publish: Callable[[str | bytes, str], Awaitable[object]]
    ) -> None:
        super().__init__(pool)
        self.publish = publish
        self._deadline_s = deadline_s
        self._asked_at: float | None = None

    async def check_health(self) -> None:
        """Ask a quiet server for a sign of life; raise redis-py's ConnectionError when it was asked in vain."""
        connection: Any = self.connection  # redis-py declares None only
        now = asyncio.get_running_loop().time()
        if connection is None or now <= connection.next_health_check or not connection.is_connected:
            self._asked_at = None
        elif self._asked_at is None:
            self._asked_at = now
            await connection.send_command("PING", self.HEALTH_CHECK_MESSAGE, check_health=False)
        elif now - self._asked_at > self._deadline_s:
            self._asked_at = None
            await connection.disconnect(nowait=True)
            raise RedisConnectionError(f"the store has been silent for {QUIET_S + self._deadline_s} s")


def subscriber_options(options: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Connection options for a subscription: its reads may wait for ever, all else is bounded by `timeout_s`."""
    return {**options, "socket_timeout": timeout_s, "health_check_interval": QUIET_S, "max_connections": 1}
