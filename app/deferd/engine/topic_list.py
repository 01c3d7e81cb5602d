"""All topics: their names page by page, how each stands, and how many jobs they hold together.

A shard of the store that cannot be reached takes only its own topics with it: what can be read is read, all shards at
the same time, and the rest is named as far as this process knows it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import ValidationError

from deferd.contract.errors import StoreUnavailable, TopicNotFound
from deferd.contract.model import JobState, TopicSettings
from deferd.engine.cursors import bad_cursor, read_cursor, write_cursor
from deferd.engine.known_topics import KnownTopics
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

UNREADABLE = (ValueError, TypeError, AttributeError, ValidationError)
"""What reading settings raises when a broken store made them something else."""
VIEWED_STATES = (JobState.DELAYED, JobState.READY, JobState.RESERVED, JobState.DEAD, JobState.FINISHED)
_log = logging.getLogger(__name__)
_TOTALLED_TOPICS = 500
_Items = TypeVar("_Items")


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic: how many jobs in each state, ages in ms, settings."""

    topic: str
    counts: dict[JobState, int]
    oldest_ready_age_ms: int | None
    next_due_at_ms: int | None
    paused: bool
    settings: TopicSettings


@dataclass(slots=True)
class TopicNames:
    """Names in alphabetic order within each shard, and where the next page begins (None: this was the last).

    Of the shards in `unreadable` nothing can be read now; `unavailable` are those of their topics that this process
    knows. `error` is what came of asking one.
    """

    names: list[str] = field(default_factory=list)
    next_cursor: str | None = None
    unavailable: list[str] = field(default_factory=list)
    unreadable: set[int] = field(default_factory=set)
    error: StoreUnavailable | None = None


@dataclass(frozen=True, slots=True)
class TopicPage:
    """Topics as they stand; the rest as in TopicNames."""

    views: list[TopicView]
    next_cursor: str | None
    unavailable: list[str]
    unreadable: list[int]


class TopicList:
    """Reads over all topics. `show` reads one; it raises TopicNotFound, StoreUnavailable, or one of UNREADABLE."""

    def __init__(
        self, scripts: Scripts, keys: Keys, known: KnownTopics, show: Callable[[str], Awaitable[TopicView]]
    ) -> None:
        self._scripts = scripts
        self._keys = keys
        self._known = known
        self._show = show

    async def page(self, cursor: str | None = None, limit: int = 1000) -> TopicPage:
        """Up to `limit` topics as they stand.

        Raises:
            InvalidInput: the cursor is not one that `names` gave.
            StoreUnavailable: no shard of the store can be reached.
        """
        return await self.views(await self.names(cursor, limit))

    async def views(self, found: TopicNames) -> TopicPage:
        """The topics of a page of names, without those that are gone since.

        A topic whose settings a broken store made unreadable is left out, and the log says so: one must not hide all.

        Raises:
            StoreUnavailable: no shard of the store can be reached.
        """
        views: dict[str, TopicView] = {}
        unavailable, unreadable, error = list(found.unavailable), set(found.unreadable), found.error

        async def view(shard: int, names: list[str]) -> None:
            nonlocal error
            for at, name in enumerate(names):
                try:
                    views[name] = await self._show(name)
                except TopicNotFound:  # forgotten since its name was read
                    continue
                except StoreUnavailable as exc:
                    unavailable.extend(names[at:])
                    unreadable.add(shard)
                    error = exc
                    return
                except UNREADABLE:
                    _log.error("topic %s is not listed: its settings cannot be read (see `deferd audit`)", name)

        await _at_once(self._by_shard(found.names), view)
        self._raise_if_all(unreadable, error)
        in_order = [views[name] for name in found.names if name in views]
        return TopicPage(in_order, found.next_cursor, unavailable, sorted(unreadable))

    async def names(
        self, cursor: str | None = None, limit: int = 1000, *, without: Collection[int] = frozenset()
    ) -> TopicNames:
        """Up to `limit` names. Shards in `without`, which could not be read just before, are not asked.

        Raises:
            InvalidInput: the cursor is not one that this method gave.
            StoreUnavailable: no shard of the store can be reached.
        """
        first, last_name = read_cursor(cursor, (0, ""), (int, str))
        if not 0 <= first < self._keys.shards:
            raise bad_cursor(cursor)
        page = TopicNames(unreadable={shard for shard in without if shard >= first})
        sizes = dict.fromkeys(set(range(first, self._keys.shards)) - page.unreadable, limit + 1)
        if len(sizes) > 1:  # all at once, so that those that hang cost one time-out together
            await self._read_sizes(sizes, page)
        for shard in range(first, self._keys.shards):
            behind = last_name if shard == first else ""
            if sizes.get(shard):
                await self._read_names(shard, behind, limit + 1 - len(page.names), page)
            if shard in page.unreadable:
                page.unavailable += self._known.behind(shard, behind)
            if len(page.names) > limit:
                page.names.pop()
                page.next_cursor = write_cursor(self._keys.shard_of(page.names[-1]), page.names[-1])
                page.unreadable = {other for other in page.unreadable if other < shard}  # the next page asks the others
                break
        self._raise_if_all(page.unreadable, page.error)
        return page

    async def _read_sizes(self, sizes: dict[int, int], page: TopicNames) -> None:
        async def read(shard: int, _: int) -> None:
            try:
                sizes[shard] = await self._scripts.command("ZCARD", self._keys.of_shard(shard, "topics"))
            except StoreUnavailable as exc:
                sizes[shard] = 0
                page.unreadable.add(shard)
                page.error = exc

        await _at_once(dict(sizes), read)

    async def _read_names(self, shard: int, behind: str, most: int, page: TopicNames) -> None:
        start = f"({behind}" if behind else "-"
        key = self._keys.of_shard(shard, "topics")
        try:
            found = await self._scripts.command("ZRANGEBYLEX", key, start, "+", "LIMIT", 0, most)
        except StoreUnavailable as exc:
            page.unreadable.add(shard)
            page.error = exc
            return
        names = [name.decode() for name in found]
        self._known.listed(shard, behind, names, is_end=len(names) < most)
        page.names += names

    async def totals(self, names: Iterable[str]) -> dict[int, dict[JobState, int] | None]:
        """How many jobs these topics have together in each state, for each of their shards; many go in one store call.

        None for a shard that cannot be reached.
        """
        totals: dict[int, dict[JobState, int] | None] = {}

        async def read(shard: int, in_shard: list[str]) -> None:
            of_shard = dict.fromkeys(VIEWED_STATES, 0)
            for at in range(0, len(in_shard), _TOTALLED_TOPICS):
                keys = [key for name in in_shard[at : at + _TOTALLED_TOPICS] for key in self._keys.of_places(name)]
                try:
                    counts = await self._scripts.run("totals", keys, ())
                except StoreUnavailable:
                    totals[shard] = None
                    return
                for state, count in zip(VIEWED_STATES, counts, strict=True):
                    of_shard[state] += count
            totals[shard] = of_shard

        await _at_once(self._by_shard(names), read)
        return totals

    def _by_shard(self, names: Iterable[str]) -> dict[int, list[str]]:
        of_shard: dict[int, list[str]] = {}
        for name in names:
            of_shard.setdefault(self._keys.shard_of(name), []).append(name)
        return of_shard

    def _raise_if_all(self, unreadable: Collection[int], error: StoreUnavailable | None) -> None:
        if len(unreadable) == self._keys.shards:
            raise error or StoreUnavailable("no part of the store can be reached")


async def _at_once(of_shard: Mapping[int, _Items], read: Callable[[int, _Items], Awaitable[None]]) -> None:
    await asyncio.gather(*(read(shard, items) for shard, items in of_shard.items()))
