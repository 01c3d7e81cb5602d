"""The calls to one server, and its durability. A cluster has one of these for each node."""

from __future__ import annotations

from typing import Any

from redis.asyncio import ConnectionPool

from deferd.store.fsync_probe import StoreDurability
from deferd.store.pipeline import Pipeline
from deferd.store.replication import ReplicatedCalls
from deferd.store.server_clock import NotAfter


class ServerCalls:
    """Calls to the server that new connections of `pool` lead to. `place` is its name in errors.

    In place of a `NotAfter` as last argument, each sends the instant at which the caller gives up. `call` runs one
    command and returns the reply, and raises redis-py's error for an error reply. `call_replicated` does the same, and
    returns when so many replicas have the effect; see `ReplicatedCalls.call`.

    `durability` is how durable calls are by default at the server that ran the last one, or else would run the next.
    `probe` reads that now and returns the level; it raises redis-py's errors when the server does not respond.
    """

    def __init__(self, pool: ConnectionPool, *, timeout_s: float, confirm_s: float, place: str = "the store") -> None:
        self.pipeline = Pipeline(pool, deadline_s=timeout_s)
        self.durability = StoreDurability(self.pipeline, place)
        self.probe = self.durability.probe
        self.call = self.pipeline.call
        self._pool = pool
        self._replicated = ReplicatedCalls(pool, deadline_s=timeout_s, within_s=confirm_s)
        self.call_replicated = self._replicated.call

    @property
    def server(self) -> ServerCalls:
        """The calls to the server that ran the last call, or else would run the next: here always these."""
        return self

    async def call_probed(self, *args: str | bytes | float | NotAfter) -> Any:
        """As `call`. Right after the reply, `durability.level` holds for this call."""
        self.durability.refresh()
        return await self.pipeline.send(*args)

    async def close(self) -> None:
        """Close all connections, for good. Calls in progress fail."""
        await self._replicated.close()
        await self.pipeline.close()
        await self._pool.aclose()
