"""What the service runs on: the store's server, its durability, the timers of the shards, and the shelf."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import NamedTuple

from deferd.contract.errors import StoreUnavailable
from deferd.engine.caches import SharedReads
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import Shelf, Status
from deferd.engine.topic_list import raise_if_none_is_readable
from deferd.store.connection import Store
from deferd.store.durability_levels import name_of
from deferd.store.server_info import fields_of_info, server_name
from deferd.store.store_facts import read_given_by_all

_KEPT_S = 2.0


class ShardTimer(NamedTuple):
    """The timer of a shard: whether one runs, and when it has work next (None: no work).

    `topics` is the number of topics whose first partition is in the shard.
    """

    shard: int
    is_running: bool
    work_due_ms: int | None
    topics: int


@dataclass(slots=True)
class System:
    """`info` is the server's INFO; it is empty for a cluster, or when the server refuses it.

    `durability` is the level that the store gives by default; `why_not` says why that is not `fsync`. `replicas` are
    online; in a cluster, at the primary that has the fewest. `shelf` is None without a shelf.
    """

    now_ms: int = 0
    info: dict[str, str] = field(default_factory=dict)
    durability: str = "memory"
    why_not: str | None = None
    replicas: int | None = None
    timers: list[ShardTimer] = field(default_factory=list)
    unreadable: set[int] = field(default_factory=set)
    shelf: Status | None = None

    @property
    def server(self) -> str | None:
        """Name and version of the store's server."""
        return server_name(self.info) if self.info else None

    def number(self, name: str) -> int | None:
        """A field of INFO."""
        text = self.info.get(name, "")
        return int(text) if text.isdecimal() else None


class SystemReader:
    """Reads it; kept for 2 s."""

    def __init__(self, store: Store, scripts: Scripts, keys: Keys, shelf: Shelf) -> None:
        self._store = store
        self._scripts = scripts
        self._keys = keys
        self._shelf = shelf
        self._reads: SharedReads[System] = SharedReads(_KEPT_S, 1)

    async def read(self) -> System:
        """Raises StoreUnavailable when no shard of the store can be reached."""
        return await self._reads.get(None, self._read)

    async def _read(self) -> System:
        found = System()
        _, *errors = await asyncio.gather(
            self._read_shelf(found), *(self._read_shard(shard, found) for shard in range(self._keys.shards))
        )
        raise_if_none_is_readable(self._keys, found.unreadable, errors[0])
        found.timers.sort()
        if not self._store.cluster:
            found.info = await self._info()
        try:
            given = await read_given_by_all(self._store)
        except Exception:  # noqa: BLE001 (any error of the store: then only `memory` is certain)
            return found
        found.replicas = given.replicas
        found.durability = name_of(given.level)
        found.why_not = None if found.durability != "memory" else given.why_not
        return found

    async def _read_shelf(self, found: System) -> None:
        found.shelf = await self._shelf.status()

    async def _read_shard(self, shard: int, found: System) -> StoreUnavailable | None:
        keys = [self._keys.of_shard(shard, name) for name in ("due", "lock", "schedules/missed")]
        try:
            now_ms, work_due_ms, has_timer, *_ = await self._scripts.run("attention_shard", keys, (0, 0))
            topics = await self._scripts.command("ZCARD", self._keys.of_shard(shard, "topics"))
        except StoreUnavailable as exc:
            found.unreadable.add(shard)
            return exc
        found.now_ms = max(found.now_ms, now_ms)
        work_due = None if work_due_ms < 0 else work_due_ms
        topics -= sum(self._keys.shard_of(partition) == shard for partition in self._keys.partitions.further())
        found.timers.append(ShardTimer(shard, has_timer == 1, work_due, max(topics, 0)))
        return None

    async def _info(self) -> dict[str, str]:
        try:
            text = await self._scripts.command("INFO")
        except Exception:  # noqa: BLE001 (the user may lack the permission)
            return {}
        return fields_of_info(text)
