"""redis-py without retries and with a deadline for every command.

redis-py retries commands by default. A put that is sent again after it may have been carried out would be a second
put, so all retries are off. A pool detects stale connections (the store was restarted) when they are taken out, and
reconnects before anything is sent.
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

from deferd.store.url import StoreUrl

POOL_SIZE = 16
"""Most connections to one server: enough to keep it busy, few enough that a server that hangs does not exhaust them."""
QUIET_S = 5.0
"""After this many seconds without a message, a subscription sends a PING."""


def common_options() -> dict[str, Any]:
    """redis-py's options for all connections."""
    return {
        # A policy that never sends a command again.
        "retry": Retry(NoBackoff(), 0),
        # RESP2, so that INFO works on a server that is too old, and the error can say so.
        "protocol": 2,
        # No CLIENT SETINFO: it costs a round trip, and a restricted user would need permission for it.
        "driver_info": None,
    }


def connection_options(url: StoreUrl, *, timeout_s: float) -> dict[str, Any]:
    """redis-py's options for connections of a store URL, without host and port."""
    options = common_options() | {
        "db": url.db,
        "username": url.username,
        "password": url.password,
        "socket_connect_timeout": timeout_s,
        # Each call has one deadline instead: one timer a call, and none for each of its steps.
        "socket_timeout": None,
    }
    if url.tls:
        options |= {"connection_class": SSLConnection, **dict(url.tls_options)}
    if url.kind == "unix":
        options |= {"connection_class": UnixDomainSocketConnection, "path": url.path}
    return options


class RedisClient(Redis):
    """A client whose commands return or fail within `deadline_s`, the wait for a connection and connecting included."""

    def __init__(self, pool: ConnectionPool, *, deadline_s: float) -> None:
        super().__init__(connection_pool=pool)
        self._deadline_s = deadline_s

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Run one command, once. What it did is not known after redis-py's TimeoutError or ConnectionError."""
        try:
            # redis-py closes a connection when the wait for its reply is cancelled, and does not use it again.
            async with asyncio.timeout(self._deadline_s):
                return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]  # redis-py gives it no types
        except TimeoutError as exc:
            raise RedisTimeoutError(f"no response within {self._deadline_s} s") from exc


class WatchedPubSub(PubSub):
    """A PubSub that detects a server that does not respond, if `get_message` is called every second or so.

    redis-py sends a PING on a quiet connection but ignores a missing reply. `publish(channel, message)` sends a message
    the way most messages come: from another connection, and in a cluster from another node.
    """

    def __init__(
        self, pool: ConnectionPool, *, deadline_s: float, publish: Callable[[str | bytes, str], Awaitable[object]]
    ) -> None:
        super().__init__(pool)
        self.publish = publish
        self._deadline_s = deadline_s
        self._pinged_at: float | None = None

    async def check_health(self) -> None:
        """Send a PING on a quiet connection. Raise redis-py's ConnectionError when an earlier one got no reply."""
        connection: Any = self.connection  # redis-py declares None only
        now = asyncio.get_running_loop().time()
        if connection is None or now <= connection.next_health_check or not connection.is_connected:
            self._pinged_at = None
        elif self._pinged_at is None:
            self._pinged_at = now
            await connection.send_command("PING", self.HEALTH_CHECK_MESSAGE, check_health=False)
        elif now - self._pinged_at > self._deadline_s:
            self._pinged_at = None
            await connection.disconnect(nowait=True)
            raise RedisConnectionError(f"no message or PONG from the store for {QUIET_S + self._deadline_s} s")


def subscriber_options(options: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Connection options for a subscription: reads may wait for any time, all else at most `timeout_s`."""
    return {**options, "socket_timeout": timeout_s, "health_check_interval": QUIET_S, "max_connections": 1}
