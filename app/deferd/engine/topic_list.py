"""Lists all topics: their names page by page, a view of each, and the sums of their jobs.

When a shard of the store cannot be reached, only its own topics are missing: all shards are read at the same time, and
the missing topics are named as far as this process has seen them.

The names of partitions are left out: a topic is listed once, with the sums over its partitions.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left, bisect_right, insort
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from deferd.contract.errors import StoreUnavailable, TopicNotFound
from deferd.contract.limits import PAGE_MAX
from deferd.contract.model import JobState
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.engine.caches import SharedReads
from deferd.engine.cursors import bad_cursor, read_cursor, write_cursor
from deferd.engine.partitions import is_first, topic_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import Shelf
from deferd.engine.topics import STATES, UNREADABLE_SETTINGS, TopicView, get_topic

_LOG = logging.getLogger(__name__)
_TOPICS_PER_CALL = 500
_SUMMED_PER_CALL = 250
_READ_TOGETHER = 20
"""Topics of a shard. One after the other, each would wait for a turn of a busy event loop: 1.5 s for 300 topics."""
_OTHERS_KEPT_S = 60.0
_NAMES_AFTER_PARTITIONS = 500
"""The least number of names to read after a page with names of partitions, which do not count."""
_NAMES_KNOWN = 10_000
_Items = TypeVar("_Items")


@dataclass(slots=True)
class TopicNames:
    """Names in alphabetical order within each shard, and the cursor of the next page (None: this is the last).

    `unreadable` are the shards that cannot be read now, `unavailable` their topics, as far as this process knows them,
    `error` the error of one of them.
    """

    names: list[str] = field(default_factory=list)
    next_cursor: str | None = None
    unavailable: list[str] = field(default_factory=list)
    unreadable: set[int] = field(default_factory=set)
    error: StoreUnavailable | None = None


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Views of topics; the rest as in TopicNames."""

    views: list[TopicView]
    next_cursor: str | None
    unavailable: list[str]
    unreadable: list[int]


@dataclass(slots=True)
class Totals:
    """Sums over topics: jobs by state, and the others as in TopicView."""

    jobs: dict[JobState, int] = field(default_factory=lambda: dict.fromkeys(STATES, 0))
    follow_ups: int = 0
    collections: int = 0

    def add(self, other: Totals) -> None:
        """Add the sums over other topics."""
        for state, count in other.jobs.items():
            self.jobs[state] += count
        self.follow_ups += other.follow_ups
        self.collections += other.collections


class OtherTopics(NamedTuple):
    """The sums over all topics but some, without the topics of the `unreadable` shards."""

    totals: Totals
    unreadable: frozenset[int]


class KnownTopics:
    """The topic names that this process has seen, to list them while their shard of the store cannot be reached.

    Remembers up to 10,000 names, an equal share for each shard; names beyond a share are not remembered."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._most_of_shard = max(_NAMES_KNOWN // keys.shards, 1)
        self._names: dict[int, list[str]] = {}

    def add(self, topic: str) -> None:
        """Remember a topic that is in use, or the topic of that partition."""
        topic = topic_of(topic)
        names = self._names.setdefault(self._keys.shard_of(topic), [])
        at = bisect_left(names, topic)
        if names[at : at + 1] != [topic] and len(names) < self._most_of_shard:
            insort(names, topic)

    def update(self, shard: int, after: str, listed: Sequence[str], *, is_last: bool) -> None:
        """Replace what is remembered by a page of the shard's names from the store, in order.

        The page begins after the name `after`; `is_last`: it is the shard's last page, else it must not be empty.
        """
        names = self._names.setdefault(shard, [])
        begin = bisect_right(names, after)
        end = len(names) if is_last else bisect_right(names, listed[-1])
        names[begin:end] = listed
        del names[self._most_of_shard :]

    def after(self, shard: int, name: str) -> list[str]:
        """The remembered names of a shard after `name`, in order; '' for all."""
        names = self._names.get(shard, [])
        return names[bisect_right(names, name) :]


class TopicList:
    """Reads over all topics."""

    def __init__(self, scripts: Scripts, keys: Keys, shelf: Shelf) -> None:
        self._scripts = scripts
        self._keys = keys
        self._shelf = shelf
        self.known_topics = KnownTopics(keys)
        self._others: SharedReads[OtherTopics] = SharedReads(_OTHERS_KEPT_S, 1, least_s=0)

    async def page(self, cursor: str | None = None, limit: int = 1000) -> TopicPage:
        """Up to `limit` topics as they are now.

        Raises:
            InvalidInput: `names` did not return the cursor.
            StoreUnavailable: no shard of the store can be reached.
        """
        return await self.views(await self.names(cursor, limit))

    async def views(self, found: TopicNames) -> TopicPage:
        """The topics of a page of names, except those that have been forgotten since.

        A topic whose settings cannot be read is logged and left out, so that it does not hide all others.

        Raises:
            StoreUnavailable: no shard of the store can be reached.
        """
        views: dict[str, TopicView] = {}
        unavailable, unreadable, error = list(found.unavailable), set(found.unreadable), found.error

        async def view(shard: int, names: list[str]) -> None:
            nonlocal error
            for at in range(0, len(names), _READ_TOGETHER):
                together = names[at : at + _READ_TOGETHER]
                await asyncio.gather(*(view_one(shard, name) for name in together))

        async def view_one(shard: int, name: str) -> None:
            nonlocal error
            others = {self._keys.shard_of(one) for one in self._keys.partitions.of(name)} - {shard}
            if unreadable & {shard, *others}:
                unavailable.append(name)
                return
            try:
                views[name] = await get_topic(self._scripts, self._keys, name, self._shelf)
            except TopicNotFound:  # forgotten since its name was read
                pass
            except StoreUnavailable as exc:
                error = exc
                unavailable.append(name)
                if shard not in unreadable:
                    unreadable.update(await self._unreadable(shard, others))
            except UNREADABLE_SETTINGS:
                _LOG.error("topic %s is not listed: its settings cannot be read (run `deferd audit`)", name)

        await _for_each_shard(self._keys.by_shard(found.names), view)
        raise_if_none_is_readable(self._keys, unreadable, error)
        in_order = [views[name] for name in found.names if name in views]
        return TopicPage(in_order, found.next_cursor, unavailable, sorted(unreadable))

    async def names(
        self, cursor: str | None = None, limit: int = 1000, *, without: Collection[int] = frozenset()
    ) -> TopicNames:
        """Up to `limit` names. Shards in `without`, which could not be read just before, are not read.

        Raises:
            InvalidInput: this method did not return the cursor.
            StoreUnavailable: no shard of the store can be reached.
        """
        first, last_name = read_cursor(cursor, (0, ""), (int, str))
        if not 0 <= first < self._keys.shards:
            raise bad_cursor(cursor)
        page = TopicNames(unreadable={shard for shard in without if shard >= first})
        sizes = dict.fromkeys(set(range(first, self._keys.shards)) - page.unreadable, limit + 1)
        if len(sizes) > 1:  # all at once, so that all shards that hang cost one time-out
            await self._read_sizes(sizes, page)
        for shard in range(first, self._keys.shards):
            after = last_name if shard == first else ""
            if sizes.get(shard):
                await self._read_names(shard, after, limit + 1 - len(page.names), page)
            if shard in page.unreadable:
                page.unavailable += self.known_topics.after(shard, after)
            if len(page.names) > limit:
                page.names.pop()
                page.next_cursor = write_cursor(self._keys.shard_of(page.names[-1]), page.names[-1])
                page.unreadable = {
                    other for other in page.unreadable if other < shard
                }  # the next page reads the others
                break
        raise_if_none_is_readable(self._keys, page.unreadable, page.error)
        return page

    async def scan(self, cursor: int = 0, count: int = 1000) -> tuple[int, list[str]]:
        """About `count` names in no order, and the cursor of the next page; 0 begins, and comes with the last page.

        As SCAN of Redis: a topic that exists all the time is listed, perhaps twice, and a page may be empty. A page
        costs the same however many topics there are.

        Raises:
            StoreUnavailable: the shard of this page cannot be read.
        """
        position, shard = divmod(cursor, self._keys.shards)
        key = self._keys.of_shard(shard, "topics")
        next_position, found = await self._scripts.run("key_elements", [key], ("zset", position, count))
        names = [name for name in (member.decode() for member in found[::2]) if is_first(name)]
        if int(next_position):
            return int(next_position) * self._keys.shards + shard, names
        return (shard + 1) % self._keys.shards, names

    async def count(self) -> int:
        """How many topics there are. Raises StoreUnavailable if a shard cannot be read.

        While a topic gets more partitions, these may be counted as topics, or as many topics too few, for a moment.
        """
        keys = [self._keys.of_shard(shard, "topics") for shard in range(self._keys.shards)]
        names: int = sum(await asyncio.gather(*(self._scripts.command("ZCARD", key) for key in keys)))
        return max(names - sum(1 for _ in self._keys.partitions.further()), 0)

    async def _unreadable(self, shard: int, others: Collection[int]) -> set[int]:
        """Which shards cannot be read, after a read of a topic with partitions in these failed."""
        if not others:
            return {shard}
        failed = {shard, *others}
        unreadable: set[int] = set()

        async def read(one: int, _: None) -> None:
            try:
                await self._scripts.command("ZCARD", self._keys.of_shard(one, "topics"))
            except StoreUnavailable:
                unreadable.add(one)

        await _for_each_shard(dict.fromkeys(failed), read)
        return unreadable

    async def _read_sizes(self, sizes: dict[int, int], page: TopicNames) -> None:
        async def read(shard: int, _: int) -> None:
            try:
                sizes[shard] = await self._scripts.command("ZCARD", self._keys.of_shard(shard, "topics"))
            except StoreUnavailable as exc:
                sizes[shard] = 0
                page.unreadable.add(shard)
                page.error = exc

        await _for_each_shard(dict(sizes), read)

    async def _read_names(self, shard: int, after: str, most: int, page: TopicNames) -> None:
        """Add up to `most` topics of a shard after that name."""
        start, limit = f"({after}" if after else "-", most
        key = self._keys.of_shard(shard, "topics")
        names: list[str] = []
        while True:
            try:
                found = await self._scripts.command("ZRANGEBYLEX", key, start, "+", "LIMIT", 0, limit)
            except StoreUnavailable as exc:
                page.unreadable.add(shard)
                page.error = exc
                return
            names += filter(is_first, (name.decode() for name in found))
            if len(found) < limit or len(names) >= most:
                break
            start, limit = f"({found[-1].decode()}", max(most - len(names), _NAMES_AFTER_PARTITIONS)
        is_last = len(found) < limit and len(names) <= most
        names = names[:most]
        self.known_topics.update(shard, after, names, is_last=is_last)
        page.names += names

    async def totals(self, names: Iterable[str]) -> dict[int, Totals | None]:
        """The sums over these topics, for each shard of their partitions; None for one that cannot be reached."""
        totals: dict[int, Totals | None] = {}

        async def read(shard: int, in_shard: list[str]) -> None:
            of_shard = Totals()
            for at in range(0, len(in_shard), _TOPICS_PER_CALL):
                keys = [key for name in in_shard[at : at + _TOPICS_PER_CALL] for key in self._keys.of_totals(name)]
                try:
                    counts = await self._scripts.run("totals", keys, ())
                except StoreUnavailable:
                    totals[shard] = None
                    return
                of_shard.add(_totals(counts))
            totals[shard] = of_shard

        await _for_each_shard(self._keys.by_shard(self._keys.partitions.of_all(names)), read)
        return totals

    async def sum_of_others(self, topics: Iterable[str], unreadable: Collection[int]) -> OtherTopics:
        """The sums over all topics but these, without the shards in `unreadable`, which could not be read just before.

        With 100,000 topics this takes about half a second, in steps. All who ask while it is read share it, and it is
        kept for 200 times what it took, but at most a minute.

        Raises:
            StoreUnavailable: no shard of the store can be reached.
        """
        left_out = frozenset(self._keys.partitions.of_all(topics))
        key = (left_out, frozenset(unreadable))
        others = await self._others.get(key, lambda: self._sum_of_others(left_out, unreadable))
        if others.unreadable:  # perhaps only now
            self._others.forget(key)
        raise_if_none_is_readable(self._keys, others.unreadable)
        return others

    async def _sum_of_others(self, left_out: Collection[str], unreadable: Collection[int]) -> OtherTopics:
        totals, failed = Totals(), set(unreadable)

        async def read(shard: int, names: list[str]) -> None:
            try:
                totals.add(await self._sum_of_shard(shard, names))
            except StoreUnavailable:
                failed.add(shard)

        names = self._keys.by_shard(left_out)
        shards = set(range(self._keys.shards)) - failed
        await _for_each_shard({shard: names.get(shard, []) for shard in shards}, read)
        return OtherTopics(totals, frozenset(failed))

    async def _sum_of_shard(self, shard: int, left_out: list[str]) -> Totals:
        key, names = self._keys.of_shard(shard, "topics"), sorted(left_out)
        totals, start, last = Totals(), "-", ""
        while True:
            begin = bisect_right(names, last)
            args: tuple[str | int, ...] = (start, _SUMMED_PER_CALL, *names[begin : begin + _SUMMED_PER_CALL])
            found, *counts = await self._scripts.run("shard_totals", [key], args)
            totals.add(_totals(counts))
            if not found:
                return totals
            last = found.decode()
            start = f"({last}"


def raise_if_none_is_readable(keys: Keys, unreadable: Collection[int], error: StoreUnavailable | None = None) -> None:
    """Raise StoreUnavailable, or the error of one shard, if all shards are unreadable."""
    if len(unreadable) == keys.shards:
        raise error or StoreUnavailable("no shard of the store can be reached")


def _totals(counts: Sequence[int]) -> Totals:
    *states, follow_ups, collections = counts
    return Totals(dict(zip(STATES, states, strict=True)), follow_ups, collections)


async def _for_each_shard(of_shard: Mapping[int, _Items], read: Callable[[int, _Items], Awaitable[None]]) -> None:
    """Run `read` for all shards at the same time."""
    await asyncio.gather(*(read(shard, items) for shard, items in of_shard.items()))


_MOST = 10_000


@dataclass(slots=True)
class SelectedTopics:
    """The partitions of topics, by the shard of each.

    `unreadable` are the shards that cannot be read now; with `is_complete` false there are more topics.
    """

    partitions: dict[int, list[str]] = field(default_factory=dict)
    unreadable: set[int] = field(default_factory=set)
    is_complete: bool = True

    @property
    def readable(self) -> dict[int, list[str]]:
        """The partitions in shards that could be read just now."""
        return {shard: names for shard, names in self.partitions.items() if shard not in self.unreadable}


async def select_topics(topics: TopicList, keys: Keys, wanted: Iterable[str] | None) -> SelectedTopics:
    """The topics that match one of the names and patterns in `wanted`, or all with None: about 10,000 partitions at
    most.

    Names are included whether the topics exist or not.

    Raises:
        StoreUnavailable: no shard of the store can be reached.
    """
    selected = SelectedTopics()
    names = [] if wanted is None else [name for name in wanted if not is_pattern(name)]
    patterns = None if wanted is None else TopicPatterns(name for name in wanted if is_pattern(name))
    found = dict.fromkeys(names)
    cursor: str | None = None
    while patterns is None or patterns.patterns:
        page = await topics.names(cursor, PAGE_MAX, without=selected.unreadable)
        found |= dict.fromkeys(name for name in page.names if patterns is None or patterns.match(name))
        selected.unreadable |= page.unreadable
        cursor = page.next_cursor
        if cursor is None:
            break
        if sum(map(keys.partitions.count, found)) >= _MOST:
            selected.is_complete = False
            break
    selected.partitions = keys.by_shard(keys.partitions.of_all(found))
    return selected
