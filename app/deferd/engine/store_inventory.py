"""Counts deferd's data in a store in two ways: jobs by topic and state, and elements of keys."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import JobState
from deferd.engine.partition_store import PartitionStore
from deferd.engine.redis_keys import ITEMS_PREFIX, SCHEDULE_PREFIX, TAG_PREFIX, Keys
from deferd.engine.scripts import Scripts
from deferd.engine.topic_list import TopicList, Totals
from deferd.store.connection import Store

_PAGE = 500
_TOPICS_AT_ONCE = 32


class KeyFound(NamedTuple):
    """A key of a shard. `topic` is empty for a key of the whole shard; `part` is the last word of the key's name.

    `kind` is the type, empty when the name is not text. `size` is the number of fields, members or elements. `kept_ms`
    is the time to live, negative without one.
    """

    key: str
    shard: int
    topic: str
    part: str
    kind: str
    size: int
    kept_ms: int


@dataclass(frozen=True)
class Inventory:
    """Jobs by topic and state, and the sum of elements of all keys with one name (`pool`, `delay` ...)."""

    jobs: Mapping[str, Mapping[JobState, int]]
    elements: Mapping[str, int]

    def totals(self) -> dict[JobState, int]:
        """Jobs by state."""
        return {state: sum(counts.get(state, 0) for counts in self.jobs.values()) for state in JobState}


async def take_inventory(store: Store, shards: int) -> Inventory:
    """Count everything, in bounded steps.

    The tag index counts as one key, `tag`, and so do the schedules, `schedule`. Leaves out remembered requests, what a
    repair moved out of the way, the tallies of forgotten topics (which shards may share after a copy), and keys whose
    names are not text.

    Raises:
        StoreUnavailable.
    """
    elements: Counter[str] = Counter()
    async for found in keys_of(store, shards):
        is_shard_tally = not found.topic and found.part == "tally"
        part = _counted_as(found)
        if found.kind and found.size and ("/" not in part or part == ITEMS_PREFIX) and not is_shard_tally:
            elements[part] += found.size
    return Inventory(await count_jobs(store, shards), dict(elements))


def _counted_as(found: KeyFound) -> str:
    if found.topic:
        return ITEMS_PREFIX if found.part.startswith(ITEMS_PREFIX) else found.part
    prefixes = (TAG_PREFIX, SCHEDULE_PREFIX)
    return next((prefix.rstrip("/") for prefix in prefixes if found.part.startswith(prefix)), found.part)


async def count_jobs(store: Store, shards: int) -> dict[str, dict[JobState, int]]:
    """How many jobs each topic that the store knows has in each state. Raises StoreUnavailable."""
    keys, scripts = Keys(shards), Scripts(store)
    await PartitionStore(scripts, keys).load()
    topics = TopicList(scripts, keys)
    counts: dict[str, dict[JobState, int]] = {}
    cursor: str | None = None
    while True:
        page = await topics.names(cursor, _PAGE)
        for at in range(0, len(page.names), _TOPICS_AT_ONCE):
            some = page.names[at : at + _TOPICS_AT_ONCE]
            for name, totals in zip(some, await asyncio.gather(*(topics.totals([name]) for name in some)), strict=True):
                whole = Totals()
                for of_shard in totals.values():
                    if of_shard is None or page.unreadable:
                        raise StoreUnavailable("a shard of the store cannot be reached")
                    whole.add(of_shard)
                counts[name] = whole.jobs
        if page.unreadable:
            raise StoreUnavailable("a shard of the store cannot be reached")
        cursor = page.next_cursor
        if cursor is None:
            return counts


async def keys_of(store: Store, shards: int) -> AsyncIterator[KeyFound]:
    """All keys of all shards, each once. Keys that are created or deleted meanwhile may be missed.

    Raises:
        StoreUnavailable.
    """
    scripts, keys = Scripts(store), Keys(shards)
    seen: set[bytes] = set()
    for shard in range(shards):
        cursor: bytes | int = 0
        while cursor != b"0":
            reply = await scripts.run("shard_keys", [keys.of_shard(shard, "due")], (cursor, _PAGE))
            cursor, *rows = reply
            for key, kind, size, kept_ms in zip(rows[::4], rows[1::4], rows[2::4], rows[3::4], strict=True):
                if key not in seen:
                    seen.add(key)
                    name = key.decode(errors="backslashreplace")
                    is_ours = name.encode() == key
                    topic, part = split_key(name)
                    yield KeyFound(name, shard, topic, part, kind.decode() if is_ours else "", size, kept_ms)
        seen.clear()


def split_key(key: str) -> tuple[str, str]:
    """The topic and the last word of a key's name, with what follows a `/`."""
    before, slash, after = key.partition("}:")[2].partition("/")
    topic, _, part = before.rpartition(":")
    return topic, f"{part}{slash}{after}"
