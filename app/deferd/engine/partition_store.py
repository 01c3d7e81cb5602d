"""Reads and writes in the store how topics are partitioned, and finds jobs that are not where they would be put now.

The first partition has the settings of the topic; the others have copies, which only a later revision replaces. The
shard of the topic names its partitioned topics, with their layouts, in one HASH.

A process learns of another layout by a message, or when the store says that it has a wrong one: a put of an unknown
number of partitions stores nothing, and a job that is not found is looked for once more by the layout that is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from time import monotonic
from typing import Any, TypeVar

from deferd.contract.errors import StoreUnavailable
from deferd.engine.group_commit import GroupCommit, SearchingCommit
from deferd.engine.partitions import Layout, topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts, WrongType
from deferd.engine.shelf import Shelf, Wanted, is_still_missing

_LOG = logging.getLogger(__name__)
_LOOK_EVERY_S = 60.0
_LOOK_AT_LEAST_EVERY_S = 3600.0
_AFTER_FAILURE_S = 1.0
_MOST_CALLS = 4
_IDS_PER_PAGE = 500
_PAUSE_S = 0.005
"""Between two pages of a look through a Job Pool."""
Item = TypeVar("Item")
Result = TypeVar("Result")
Send = Callable[[str, list[Item]], Awaitable[Sequence[Result]]]
"""Sends items to a partition; returns their results in order."""


class PartitionStore:
    """The layouts of a store. `keys.partitions` is what this process knows of them."""

    def __init__(self, scripts: Scripts, keys: Keys, shelf: Shelf) -> None:
        self._scripts = scripts
        self._keys = keys
        self.shelf = shelf
        self.known = keys.partitions
        self._reads: GroupCommit[None, bytes | None] = GroupCommit(self._read, size=lambda _: 0)
        self._changed = asyncio.Event()
        self._to_read: set[str] = set()
        self._unread_shards: set[int] = set(range(keys.shards))
        self._next_looks: dict[str, tuple[float, float]] = {}
        """By topic: when to check next whether a former number can be forgotten, and how long to wait after that."""

    # Known layouts

    async def load(self) -> None:
        """Read the layouts of all shards that can be reached; `run` reads the others once they can be."""
        for shard in sorted(self._unread_shards):
            try:
                stored = await self._scripts.command("HGETALL", self._keys.of_shard(shard, "partitioned"))
            except StoreUnavailable:
                continue
            except WrongType:
                _LOG.error("the partitions of topics of shard %d cannot be read (run `deferd audit`)", shard)
                self._unread_shards.discard(shard)
                continue
            self._unread_shards.discard(shard)
            names = [name.decode() for name in stored[::2]]
            found = {name: self._readable(name, layout) for name, layout in zip(names, stored[1::2], strict=True)}
            for topic in [topic for topic in self.known.layouts if self._keys.shard_of(topic) == shard]:
                if topic not in found:
                    self.known.note(topic, None)
            for topic, layout in found.items():
                self.known.note(topic, layout)

    async def refresh(self, topic: str) -> bool:
        """Read the layout of a topic; returns whether jobs may be elsewhere than known. Raises StoreUnavailable.

        A known layout stays if the layouts of the shard cannot be read, which `load` logs.
        """
        try:
            stored = await self._reads.submit(topic, None)
        except WrongType:
            return False
        return self.known.note(topic, None if stored is None else self._readable(topic, stored))

    def _readable(self, topic: str, stored: bytes) -> Layout | None:
        """The stored layout; if it is damaged, the known one."""
        try:
            return Layout.read(stored)
        except ValueError:
            _LOG.error("the partitions of topic %s cannot be read (run `deferd audit`)", topic)
            return self.known.layouts.get(topic)

    async def refresh_all(self, topics: Iterable[str]) -> None:
        """Read the layouts of topics, in one call for each of their shards; of those that fail what is known stays."""

        async def read(shard: int, some: list[str]) -> None:
            key = self._keys.of_shard(shard, "partitioned")
            try:
                layouts = await self._scripts.command("HMGET", key, *some)
            except (StoreUnavailable, WrongType):
                return
            for topic, stored in zip(some, layouts, strict=True):
                self.known.note(topic, None if stored is None else self._readable(topic, stored))

        await asyncio.gather(*(read(shard, some) for shard, some in self._keys.by_shard(topics).items()))

    async def _read(self, topic: str, calls: list[None]) -> list[bytes | None]:
        key = self._keys.of_shard(self._keys.shard_of(topic), "partitioned")
        stored: bytes | None = await self._scripts.command("HGET", key, topic)
        return [stored for _ in calls]

    def on_message(self, topic: str) -> None:
        """A topic has another number of partitions."""
        self._to_read.add(topic)
        self._changed.set()

    def on_gap(self) -> None:
        """Messages may have been missed."""
        self._unread_shards.update(range(self._keys.shards))
        self._changed.set()

    async def run(self) -> None:
        """Follow changes until cancelled; complete what a process that ended has left, and forget former numbers."""
        wait_s = _LOOK_EVERY_S
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                self._unread_shards.update(range(self._keys.shards))
            self._changed.clear()
            wait_s = _LOOK_EVERY_S
            try:
                await self._follow()
            except StoreUnavailable:
                wait_s = _AFTER_FAILURE_S
            except Exception:  # noqa: BLE001 (a damaged layout must not end the task)
                _LOG.exception("the partitions of topics cannot be read; trying again")
            if self._unread_shards:
                wait_s = _AFTER_FAILURE_S

    async def _follow(self) -> None:
        while self._to_read:
            topic = self._to_read.pop()
            try:
                await self.refresh(topic)
            except StoreUnavailable:
                self._to_read.add(topic)
                raise
        is_look = bool(self._unread_shards)
        await self.load()
        if not is_look:
            return
        error: Exception | None = None
        for topic, layout in list(self.known.layouts.items()):
            try:
                if not layout.is_spread:
                    await self.spread(topic)
                if len(layout.counts) > 1:
                    await self._forget_former_in_time(topic, layout)
            except Exception as exc:  # noqa: BLE001 (topics of other shards, or that are not damaged, go on)
                error = exc
        if error is not None:
            raise error

    # Settings of partitions

    async def spread(self, topic: str) -> None:
        """Give all partitions of a topic its settings. Raises StoreUnavailable: some may still have other settings.

        After a failover that has taken back a change of the topic, its partitions have later settings than it has, and
        refuse puts by the number before. Then the topic gets as many partitions again; its other settings stay.
        """
        await self.refresh(topic)
        settings_key = self._keys.of_shard(self._keys.shard_of(topic), "settings")
        for _ in range(_MOST_CALLS):
            partitions = self.known.of(topic)[1:]
            if not partitions:
                return
            settings = await self._scripts.command("HGET", settings_key, topic)
            if settings is None:  # another program has removed them
                return
            copies = (
                self._scripts.run("copy_settings", self._keys.of_topic(partition), (partition, settings or b"{}"))
                for partition in partitions
            )
            later: list[list[int]] = [reply for reply in await asyncio.gather(*copies) if reply]
            if not later:
                await self._note(topic, "spread", settings)
            else:
                revision, count = max(one[0] for one in later), max(one[1] for one in later)
                of_topic = self._keys.of_topic(topic)
                await self._scripts.run("topic_set", of_topic, (topic, "outdo", revision, count))
            await self.refresh(topic)
            if not later:
                return

    async def _note(self, topic: str, what: str, seen: str | bytes) -> None:
        key = self._keys.of_shard(self._keys.shard_of(topic), "partitioned")
        await self._scripts.run("note_partitions", (*self._keys.of_topic(topic), key), (topic, what, seen))

    # Jobs of former numbers of partitions

    async def find(
        self,
        partition: str,
        items: Sequence[Item],
        id_of: Callable[[Item], str],
        send: Send[Item, Result],
        is_missing: Callable[[Result], bool],
        *,
        is_cancelled: Callable[[Result], bool] = lambda _: False,
        shelf_s: float | None = None,
    ) -> list[Result | StoreUnavailable]:
        """The results of `send(partition, items)`; items that are missing there are sent to the other partitions where
        they may be. `is_cancelled`: whether the result of a missing item is the one that counts if none of them has the
        item. `shelf_s`: how long to wait for the shelf.

        Exact: an id moves from one partition to another only by ending there and being put again, so between two calls
        that miss it there was an instant without it. An item that may be where the store cannot be reached has that
        error as its result.

        Raises:
            StoreUnavailable: `partition` cannot be reached.
        """

        async def look(place: str, some: list[Item]) -> list[Result | StoreUnavailable]:
            return await self.shelf.find(place, some, id_of, send, is_missing, within_s=shelf_s)

        results: list[Any] = await look(partition, list(items))
        missing = [at for at, result in enumerate(results) if is_still_missing(result, is_missing)]
        if not missing:
            return results
        cancelled = {at: results[at] for at in missing if is_cancelled(results[at])}
        topic = topic_of(partition)
        try:
            await self.refresh(topic)
        except StoreUnavailable as exc:
            for at in missing:
                results[at] = cancelled.get(at, exc)
            return results
        if partition == topic and topic not in self.known.layouts:
            return results
        places = {at: [one for one in self.known.homes(topic, id_of(items[at])) if one != partition] for at in missing}
        while missing := [at for at in missing if places[at] and is_still_missing(results[at], is_missing)]:
            together: dict[str, list[int]] = {}
            for at in missing:
                together.setdefault(places[at].pop(0), []).append(at)
            results = await _send_together(together, items, look, dict(enumerate(results)))
            cancelled.update((at, results[at]) for at in missing if is_cancelled(results[at]))
        for at, result in cancelled.items():
            if is_still_missing(results[at], is_missing):
                results[at] = result
        return results

    def commit(
        self,
        find: Send[Item, Result | StoreUnavailable],
        send: Send[Item, Result | StoreUnavailable],
        is_missing: Callable[[Result], bool],
        *,
        size: Callable[[Item], int],
        most_items: int,
    ) -> GroupCommit[Item, Result]:
        """A group commit of `find(partition, items)`, which calls the method above with the other two arguments.

        With a shelf, others of the partition do not wait for those who must ask it: it may take long.
        """
        if self.shelf.calls is None:
            return GroupCommit(find, size=size, most_items=most_items)
        return SearchingCommit(send, find, is_missing, size=size, most_items=most_items)

    async def find_one(
        self,
        topic: str,
        job_id: str,
        call: Callable[[str], Awaitable[Result]],
        is_missing: Callable[[Result], bool],
        *,
        is_cancelled: Callable[[Result], bool] = lambda _: False,
    ) -> Result:
        """As `find`, for one job of a topic: the result of `call(partition)`.

        Raises:
            StoreUnavailable: a partition that may have the job cannot be reached.
        """

        async def send(partition: str, _: list[str]) -> list[Result]:
            return [await call(partition)]

        home = self.known.home(topic, job_id)
        (result,) = await self.find(home, [job_id], str, send, is_missing, is_cancelled=is_cancelled)
        if isinstance(result, StoreUnavailable):
            raise result
        return result

    async def send_by_home(
        self, topic: str, items: Sequence[Item], id_of: Callable[[Item], str], send: Send[Item, Result]
    ) -> list[Result | StoreUnavailable]:
        """The results of `send(partition, items)` for items of one topic, each sent to its partition.

        An item whose partition cannot be reached has that error as its result.

        Raises:
            StoreUnavailable: none of the partitions can be reached.
        """
        if topic not in self.known.layouts:
            return list(await send(topic, list(items)))
        by_home: dict[str, list[int]] = {}
        for at, item in enumerate(items):
            by_home.setdefault(self.known.home(topic, id_of(item)), []).append(at)
        results: list[Result | StoreUnavailable] = await _send_together(by_home, items, send, {})
        errors = [result for result in results if isinstance(result, StoreUnavailable)]
        if len(errors) == len(results):
            raise errors[0]
        return results

    async def held_by_former(
        self, topic: str, layout: Layout, job_ids: Sequence[str]
    ) -> dict[str, str | StoreUnavailable] | None:
        """Which of the ids are taken in a partition of a former number, by which one; an error where that is not known.

        An id that is not, never will be: these partitions refuse puts by any other layout. None: one has the settings
        of another layout, so nothing is known.
        """
        to_ask: dict[str, list[str]] = {}
        for job_id in job_ids:
            for home in layout.homes(topic, job_id)[1:]:
                to_ask.setdefault(home, []).append(job_id)
        replies = await asyncio.gather(
            *(self._held_ids(partition, layout, ids) for partition, ids in to_ask.items()), return_exceptions=True
        )
        held: dict[str, str | StoreUnavailable] = {}
        for (partition, ids), reply in zip(to_ask.items(), replies, strict=True):
            if isinstance(reply, StoreUnavailable):
                for job_id in ids:
                    held.setdefault(job_id, reply)  # if another one has it, that is enough
                continue
            if isinstance(reply, BaseException):
                raise reply
            is_current, *flags = reply
            if not is_current:
                return None
            held.update((job_id, partition) for job_id, flag in zip(ids, flags, strict=True) if flag)
        return held

    async def _held_ids(self, partition: str, layout: Layout, ids: Sequence[str]) -> list[int]:
        async with self.shelf.loaded(partition, ids):
            keys = self._keys.of_topic(partition)
            reply: list[int] = await self._scripts.run("held_ids", keys, (partition, layout.count, *ids))
        return reply

    async def _forget_former_in_time(self, topic: str, layout: Layout) -> None:
        """Doubled after each check: a check may read all jobs in vain because of one that is due next year."""
        look_at_s, pause_s = self._next_looks.get(topic, (0.0, _LOOK_EVERY_S))
        now_s = monotonic()
        if now_s < look_at_s:
            return
        await self._forget_former(topic, layout)
        if len(self.known.layout_of(topic).counts) == 1:
            self._next_looks.pop(topic, None)
        else:
            self._next_looks[topic] = now_s + pause_s, min(2 * pause_s, _LOOK_AT_LEAST_EVERY_S)

    async def _forget_former(self, topic: str, layout: Layout) -> None:
        """Forget the former numbers of partitions if all jobs are where they would be put now."""
        for partition in self.known.of(topic)[: max(layout.counts[1:])]:
            is_current, *_ = await self._held_ids(partition, layout, ())
            if not is_current:
                await self.spread(topic)
                return
            async for ids in self._ids_of(partition):
                if any(layout.home(topic, job_id) != partition for job_id in ids):
                    return
        await self._note(topic, "forget_former", layout.stored())
        await self.refresh(topic)

    async def _ids_of(self, partition: str) -> AsyncIterator[set[str]]:
        """The ids that a partition knows, in pages with pauses: ids of jobs, of tombstones, and ids that stay taken.

        Between pages an id may move from the jobs on the shelf to those in the store, and to the ids that stay taken,
        but not back: see ShelfCalls.keep and put_where_held.lua.
        """
        calls, after, has_more = self.shelf.calls, None, True
        while calls is not None and has_more:
            await calls.keep(partition)
            page = await calls.page(partition, Wanted(), _IDS_PER_PAGE, after)
            yield {*(job.id for job in page.jobs), *page.unreadable}
            after, has_more = page.end, page.has_more
            await asyncio.sleep(_PAUSE_S)
        pool, cancelled, taken = self._keys.of_ids(partition)
        cursor: bytes | int = 0
        while cursor != b"0":
            if calls is not None:
                await calls.keep(partition)
            cursor, *found = await self._scripts.run("pool_ids", (pool,), (cursor, _IDS_PER_PAGE))
            yield {job_id.decode() for job_id in found}
            await asyncio.sleep(_PAUSE_S)
        for key in (cancelled, taken):
            async for ids in self._ids_in(key):
                yield ids

    async def _ids_in(self, key: str) -> AsyncIterator[set[str]]:
        """The ids that the members of a sorted set begin with."""
        cursor: bytes | int = 0
        while cursor != b"0":
            cursor, found = await self._scripts.run("key_elements", (key,), ("zset", cursor, _IDS_PER_PAGE))
            yield {member.decode().partition(" ")[0] for member in found[::2]}
            await asyncio.sleep(_PAUSE_S)


async def _send_together(
    together: dict[str, list[int]],
    items: Sequence[Item],
    send: Send[Item, Any],
    results: dict[int, Result | StoreUnavailable],
) -> list[Result | StoreUnavailable]:
    """Send items to partitions, each by the indexes of its items.

    Returns `results`, by index, with the outcomes filled in.
    """
    found = await asyncio.gather(
        *(send(partition, [items[at] for at in indexes]) for partition, indexes in together.items()),
        return_exceptions=True,
    )
    for indexes, some in zip(together.values(), found, strict=True):
        if isinstance(some, StoreUnavailable):
            results.update(dict.fromkeys(indexes, some))
        elif isinstance(some, BaseException):
            raise some
        else:
            results.update(zip(indexes, some, strict=True))
    return [results[at] for at in range(len(items))]
