"""The calls to one server, and what its durability is: of a cluster, one of these for each node."""

from __future__ import annotations

from typing import Any, Protocol

from redis.asyncio import ConnectionPool

from deferd.store.fsync_probe import StoreDurability
from deferd.store.pipeline import Pipeline
from deferd.store.replication import ReplicatedCalls
from deferd.store.server_clock import NotAfter


class KeyCalls(Protocol):
    """Calls to the server that has a key; see `deferd.store.connection.Store.calls_of`.

    In place of a `NotAfter` as last argument, each sends the instant at which the caller gives up.
    """

    @property
    def durability(self) -> StoreDurability:
        """How durable calls are by default at the server that ran the last one, or else would run the next."""

    async def probe(self) -> int:
        """Read that now, and return the level. Raises redis-py's errors when the server does not respond."""

    async def call(self, *args: str | bytes | float | NotAfter) -> Any:
        """Run one command and return the reply. Raises redis-py's error for an error reply."""

    async def call_probed(self, *args: str | bytes | float | NotAfter) -> Any:
        """As `call`. Right after the reply, `durability.level` holds for this call."""

    async def call_replicated(self, replicas: int, *args: str | bytes | float | NotAfter) -> Any:
        """As `call`; returns when so many replicas have the effect. Raises as `ReplicatedCalls.call`."""


class ServerCalls:
    """Calls to the server that new connections of `pool` lead to. `place` is its name in errors."""

    def __init__(self, pool: ConnectionPool, *, timeout_s: float, confirm_s: float, place: str = "the store") -> None:
        self.pipeline = Pipeline(pool, deadline_s=timeout_s)
        self.durability = StoreDurability(self.pipeline, place)
        self.probe = self.durability.probe
        self.call = self.pipeline.call
        self._pool = pool
        self._replicated = ReplicatedCalls(pool, deadline_s=timeout_s, within_s=confirm_s)
        self.call_replicated = self._replicated.call

    async def call_probed(self, *args: str | bytes | float | NotAfter) -> Any:
        """As `KeyCalls.call_probed`."""
        self.durability.refresh()
        return await self.pipeline.send(*args)

    async def close(self) -> None:
        """Close all connections, for good. Calls in progress fail."""
        await self._replicated.close()
        await self.pipeline.close()
        await self._pool.aclose()
