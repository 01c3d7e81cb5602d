"""The groups of a topic: which wait, how many jobs they have, and to pause and resume one."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from typing import Final, NamedTuple

from deferd.contract.errors import FieldError, InvalidInput, TopicNotFound
from deferd.contract.model import JobState
from deferd.contract.operations.topics import GroupOrder
from deferd.engine.caches import SharedReads
from deferd.engine.cursors import bad_cursor, read_cursor, write_cursor
from deferd.engine.redis_keys import RATE_PREFIX, Keys
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import Shelf
from deferd.engine.topics import get_topic

_FLOWS_PER_CALL = 250
_ENTRIES_PER_CALL = 1000
_SORTED_AT_ONCE = 5000
_KEPT_S = 10.0
_KEPT_MOST, _LARGEST = 2, 100_000
_NEVER: Final = 1 << 62
_SEVERAL_PARTITIONS = -2


class TopicGroup(NamedTuple):
    """The live jobs of a group; `name` None: of all jobs without one. `due_ms`: when the first ready one was due, which
    is None without any. `now_ms` is the store's clock.
    """

    name: str | None
    ready: int
    reserved: int
    delayed: int
    due_ms: int | None
    now_ms: int
    is_paused: bool

    @property
    def age_ms(self) -> int | None:
        """For how long the first ready job has been due; None without any."""
        return None if self.due_ms is None else max(self.now_ms - self.due_ms, 0)


_ORDERS: dict[GroupOrder, Callable[[TopicGroup], int]] = {
    "ready": lambda group: -group.ready,
    "reserved": lambda group: -group.reserved,
    "age": lambda group: _NEVER if group.due_ms is None else group.due_ms,
}


class Groups:
    """The groups of topics.

    All groups of a topic are read for a page, 100,000 in about a second, in steps of a few milliseconds of the store's
    time. Callers that ask meanwhile share that, and lists of up to 100,000 are kept for 200 times what the read took,
    at most 10 seconds.
    """

    def __init__(self, scripts: Scripts, keys: Keys, shelf: Shelf) -> None:
        self._scripts = scripts
        self._keys = keys
        self._shelf = shelf
        self._reads: SharedReads[list[TopicGroup]] = SharedReads(
            _KEPT_S, _KEPT_MOST, least_s=0, size=len, largest=_LARGEST
        )

    async def page(
        self, topic: str, order: GroupOrder, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[TopicGroup], str | None]:
        """Up to `limit` groups, those with the most jobs or the oldest one first, and the cursor of the next page.

        Raises:
            TopicNotFound.
            InvalidInput: this method did not return the cursor for this order.
        """
        of_order, value, name = read_cursor(cursor, (order, -_NEVER, ""), (str, int, str))
        if of_order != order:
            raise bad_cursor(cursor)
        place_of = _ORDERS[order]
        after = (value, name)
        groups = await self._reads.get(topic, lambda: self._read(topic))

        def places(begin: int) -> Iterator[tuple[int, str, TopicGroup]]:
            for group in groups[begin : begin + _SORTED_AT_ONCE]:
                place = (place_of(group), group.name or "")
                if place > after:
                    yield *place, group

        first: list[tuple[int, str, TopicGroup]] = []
        for begin in range(0, len(groups), _SORTED_AT_ONCE):
            first = heapq.nsmallest(limit + 1, chain(first, places(begin)))
            await asyncio.sleep(0)
        next_cursor = write_cursor(order, *first[limit - 1][:2]) if len(first) > limit else None
        return [group for *_, group in first[:limit]], next_cursor

    async def pause(self, topic: str, group: str) -> tuple[TopicGroup, bool]:
        """Hand out no jobs of a group, which need not exist yet. Returns it, and whether it was paused before.

        Raises InvalidInput if the topic has several partitions.
        """
        return await self._set_paused(topic, group, is_paused=True)

    async def resume(self, topic: str, group: str) -> tuple[TopicGroup, bool]:
        """Hand out jobs of a group again, to waiting consumers at once. Returns as `pause`.

        Raises:
            TopicNotFound.
            InvalidInput: as `pause`.
        """
        return await self._set_paused(topic, group, is_paused=False)

    async def forget_rates(self) -> None:
        """Delete what the rates of all topics have counted, for tests. Raises StoreUnavailable."""
        for shard in range(self._keys.shards):
            cursor: bytes | int = 0
            while cursor != b"0":
                of_shard = [self._keys.of_shard(shard, "due")]
                cursor, *rows = await self._scripts.run("shard_keys", of_shard, (cursor, _ENTRIES_PER_CALL))
                for key in rows[::4]:
                    if f":{RATE_PREFIX}".encode() in key:
                        await self._scripts.write("UNLINK", key.decode())

    async def _set_paused(self, topic: str, group: str, *, is_paused: bool) -> tuple[TopicGroup, bool]:
        reply = await self._scripts.run("group_pause", self._keys.of_topic(topic), (topic, group, int(is_paused)))
        if reply == _SEVERAL_PARTITIONS:
            message = f"must be a topic with one partition: {topic!r} has several, and so no groups"
            raise InvalidInput([FieldError(("path", "topic"), message, topic)])
        if isinstance(reply, int):
            raise TopicNotFound(topic)
        was_paused, ready, reserved, delayed, due_ms, now_ms = reply
        self._reads.forget(topic)
        return TopicGroup(group, ready, reserved, delayed, _known(due_ms), now_ms, is_paused), bool(was_paused)

    async def _read(self, topic: str) -> list[TopicGroup]:
        view = await get_topic(self._scripts, self._keys, topic, self._shelf)
        waiting, now_ms = await self._read_waiting(topic)
        groups: list[TopicGroup] = []
        reserved, delayed = view.counts[JobState.RESERVED], view.counts[JobState.DELAYED]
        ready_without, due_ms = waiting.pop("", (0, None))
        async for name, live, in_flight, is_paused in self._entries(topic):
            ready, of_group_ms = waiting.pop(name, (0, None))
            group = TopicGroup(name, ready, in_flight, max(live - in_flight - ready, 0), of_group_ms, now_ms, is_paused)
            groups.append(group)
            reserved, delayed = reserved - group.reserved, delayed - group.delayed
        without = TopicGroup(None, ready_without, max(reserved, 0), max(delayed, 0), due_ms, now_ms, is_paused=False)
        if without.ready or without.reserved or without.delayed:
            groups.append(without)
        return groups

    async def _read_waiting(self, topic: str) -> tuple[dict[str, tuple[int, int | None]], int]:
        """By group, '' for none, how many jobs are ready and when the first was due; and the store's clock."""
        found: dict[str, tuple[int, int | None]] = {}
        now_ms = 0
        for partition in self._keys.partitions.of(topic):
            slot = 0
            while slot >= 0:
                args = (partition, slot, _FLOWS_PER_CALL)
                slot, now_ms, *flows = await self._scripts.run("groups", self._keys.of_topic(partition), args)
                for at in range(0, len(flows), 3):
                    name = flows[at].decode()
                    ready, due_ms = found.get(name, (0, None))
                    dues = [one for one in (due_ms, _known(flows[at + 2])) if one is not None]
                    found[name] = ready + flows[at + 1], min(dues, default=None)
        return found, now_ms

    async def _entries(self, topic: str) -> AsyncIterator[tuple[str, int, int, bool]]:
        """The groups with a name: how many live and reserved jobs each has, and whether it is paused."""
        key, cursor, seen = self._keys.named(topic, "groups"), 0, {""}
        while True:
            reply = await self._scripts.run("key_elements", [key], ("hash", cursor, _ENTRIES_PER_CALL))
            cursor, found = int(reply[0]), reply[1]
            for at in range(0, len(found), 2):
                name, numbers = found[at].decode(errors="backslashreplace"), found[at + 1].split(b" ")[:3]
                if name not in seen:
                    seen.add(name)
                    # A damaged entry counts as empty, as for the scripts, until a repair.
                    is_read = len(numbers) == 3 and all(map(bytes.isdigit, numbers))
                    live, reserved, flags = map(int, numbers) if is_read else (0, 0, 0)
                    yield name, live, reserved, bool(flags & 1)
            if not cursor:
                return


def _known(at_ms: int) -> int | None:
    return None if at_ms < 0 else at_ms
