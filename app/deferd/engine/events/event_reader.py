"""Reads events of topics from the store, and which topics have some.

Each partition of a topic keeps the events of its own jobs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from deferd.contract.errors import StoreUnavailable
from deferd.contract.limits import EVENT_TOPICS_MAX
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.engine.events.event import Event, read_event
from deferd.engine.events.positions import FROM_OLDEST, Position, is_before_last, last_events, write_event_id
from deferd.engine.partitions import topic_of, topics_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

_NAMES_AT_ONCE, _NAMES_MAX = 1000, 10_000
_TOPICS_PER_CALL, _EVENTS_PER_CALL = 250, 1000
_LOOKED_AT_MAX = 5000
"""Most events that a read of the latest events takes from all topics together; at least one per topic."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Events of a topic that the reader does not get.

    `count` is None when their number is unknown. With `topic` None, too many topics match, and `topics` of them are not
    followed.
    """

    topic: str | None
    count: int | None
    topics: int = 0


Read = tuple[Event | Dropped, Position]
"""What was read of a partition, and the position behind it."""
Place = tuple[str, Position]
"""A partition, and a position in it."""


class Page(NamedTuple):
    """What was read of a partition, and the position behind all of it."""

    items: list[Read]
    end: Position


class LatestEvents(NamedTuple):
    """Events of several topics, the latest first.

    `event_id` stands for the newest event of each topic. `is_complete` is false when there are more topics, or a shard
    of the store cannot be reached.
    """

    events: list[Event]
    event_id: str
    is_complete: bool


class EventReader:
    """Each method reads in bounded steps, and raises StoreUnavailable."""

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys

    async def partitions_of(self, shard: int) -> list[str]:
        """The partitions in a shard that have events, in order: at most 10,000."""
        keys = [self._keys.of_shard(shard, name) for name in ("events/topics", "settings")]
        names: list[str] = []
        last = ""
        while len(names) < _NAMES_MAX:
            page = await self._scripts.run("event_topics", keys, (last, _NAMES_AT_ONCE))
            names += [name.decode() for name in page]
            if len(page) < _NAMES_AT_ONCE:
                break
            last = names[-1]
        return names

    async def read(self, places: Sequence[Place]) -> dict[Place, Page]:
        """The events after these places, all in one shard: at most 1000 events for each 250 places.

        For a place before the last events, all of them are read if they are at most 1000.
        """
        found: dict[Place, Page] = {}
        for some in _calls(places):
            keys = [key for topic, _ in some for key in self._keys.of_events(topic)]
            args = (number for _, position in some for number in position)
            replies = await self._scripts.run("events", keys, (_EVENTS_PER_CALL, *args))
            found |= {place: _read_reply(*place, reply) for place, reply in zip(some, replies, strict=True)}
        return found

    async def latest(self, wanted: Sequence[str] | None, visible: TopicPatterns | None, limit: int) -> LatestEvents:
        """The last `limit` events of the topics that match `wanted` and `visible` (None: all).

        At most 300 partitions are read. With many, only a part of each is read: they share 5000 events. Raises
        StoreUnavailable when no shard can be reached.
        """
        names = [] if wanted is None else [name for name in wanted if not is_pattern(name)]
        patterns = TopicPatterns(["*"] if wanted is None else filter(is_pattern, wanted))
        errors: list[StoreUnavailable] = []

        async def of_shard(shard: int) -> list[str]:
            try:
                return await self.partitions_of(shard)
            except StoreUnavailable as exc:
                errors.append(exc)
                return []

        if patterns.patterns:
            listed = await asyncio.gather(*map(of_shard, range(self._keys.shards)))
            found = sorted(topics_of(name for some in listed for name in some))
            names += [name for name in found if patterns.match(name) and name not in names]
        names = [name for name in names if visible is None or visible.match(name)]
        names, left_out = self._keys.partitions.fitting(names, EVENT_TOPICS_MAX)
        position = last_events(min(limit, max(_LOOKED_AT_MAX // max(len(names), 1), 1)))
        places: dict[int, list[Place]] = {}
        for name in names:
            places.setdefault(self._keys.shard_of(name), []).append((name, position))
        pages: dict[str, Page] = {}  # by partition

        async def read(some: list[Place]) -> None:
            try:
                pages.update({name: page for (name, _), page in (await self.read(some)).items()})
            except StoreUnavailable as exc:
                errors.append(exc)

        await asyncio.gather(*map(read, places.values()))
        if errors and not pages and len(errors) >= self._keys.shards:
            raise errors[0]
        events = [item for page in pages.values() for item, _ in page.items if isinstance(item, Event)]
        events.sort(key=lambda event: event.at_ms, reverse=True)
        ends = ((name, page.end) for name, page in pages.items())
        return LatestEvents(events[:limit], write_event_id(ends), not left_out and not errors)


def _calls(places: Sequence[Place]) -> Iterator[list[Place]]:
    """The places of each call; first those before a number of last events, which fit into the call."""
    some: list[Place] = []
    asked = 0
    for place in sorted(places, key=lambda place: not is_before_last(place[1])):
        wanted = place[1].number if is_before_last(place[1]) else 0
        if some and (len(some) == _TOPICS_PER_CALL or asked + wanted > _EVENTS_PER_CALL):
            yield some
            some, asked = [], 0
        some.append(place)
        asked += wanted
    if some:
        yield some


def _read_reply(partition: str, position: Position, reply: list[Any]) -> Page:
    topic = topic_of(partition)
    if not reply:  # also when the topic keeps no events any more
        gap: list[Read] = [(Dropped(topic, None), FROM_OLDEST)] if position.since >= 0 else []
        return Page(gap, FROM_OLDEST)
    since, _, first, missing, *stored = reply
    items: list[Read] = []
    if missing:
        items.append((Dropped(topic, None if missing < 0 else missing), Position(since, first - 1)))
    for number, text in enumerate(stored, first):
        event = read_event(topic, number, text)
        items.append((event or Dropped(topic, 1), Position(since, number)))
    return Page(items, Position(since, first + len(stored) - 1))
