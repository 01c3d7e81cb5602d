"""One client's stream of events: which topics it follows, where it stands in each, and what it has not read yet.

Each partition of a topic is read on its own, so that the events of different partitions may come out of order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from deferd.contract.limits import EVENT_TOPICS_MAX
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.engine.events.event import Event
from deferd.engine.events.event_reader import Dropped
from deferd.engine.events.positions import FROM_NOW, FROM_OLDEST, LastEventId, Position, last_events, write_event_id
from deferd.engine.partitions import Partitions, topic_of, topics_of

_QUEUED_MAX = 2000
"""Events that wait for the client; until it has read some, no more are read for it from the store."""
_TOPICS_WITH_EACH_ID = 4
"""With more topics, only the last event of a batch has an id: it is long."""


class Sent(NamedTuple):
    """What a client gets: an event, a notice, or only an id from which it can continue."""

    item: Event | Dropped | None
    id: str | None


class ReadItem(NamedTuple):
    """What was read of a partition, and the position behind it."""

    partition: str
    item: Event | Dropped
    position: Position


class _Beginning:
    """What was read of a topic with several partitions, until all of them have been read for the first time.

    `first` were read from the positions before the last events of each partition: more than the last of the topic.
    """

    def __init__(self, partitions: Iterable[str]) -> None:
        self.unread = set(partitions)
        self.first: list[ReadItem] = []
        self.later: list[ReadItem] = []

    def in_order(self, last: int) -> list[ReadItem]:
        """The last events of the topic, then what has happened since."""
        self.first.sort(key=lambda read: read.item.at_ms if isinstance(read.item, Event) else 0)
        return [*self.first[-last:], *self.later]


class EventStream:
    """Follows the topics that match `wanted` and `visible` (None: all). An async iterator of batches.

    It begins after `last_event_id`, or else with the last `last` events of each topic. Topics that get their first
    event later are followed from that event on. `owner` is the name of the key it was asked for with, if any.
    """

    def __init__(
        self,
        wanted: Sequence[str] | None,
        visible: TopicPatterns | None,
        *,
        last_event_id: LastEventId | None = None,
        last: int = 0,
        owner: str | None = None,
    ) -> None:
        self.owner = owner
        self.names = [] if wanted is None else [name for name in wanted if not is_pattern(name)]
        self.patterns = TopicPatterns(["*"] if wanted is None else filter(is_pattern, wanted))
        self.positions: dict[str, Position] = {}  # by partition
        self._visible = visible
        self._last_event_id = last_event_id
        self._last = last
        self._first = last_events(last) if last else FROM_NOW
        self._beginning: dict[str, _Beginning] = {}  # by topic
        self._listed: Sequence[str] | None = None
        self._partitions = Partitions()
        self._queue: deque[Sent] = deque()
        self._news = asyncio.Event()
        self.has_begun = False
        self.version = 0  # of the positions
        self._left_out = 0
        self.is_ended = False
        self.ended = asyncio.Event()

    # For the hub

    def follow(self, listed: Sequence[str], partitions: Partitions) -> None:
        """Follow the topics that match, of these that have events, in order: as many as their partitions allow."""
        if listed is self._listed:
            return
        is_first, self._listed, self._partitions = self._listed is None, listed, partitions
        found = [name for name in self.names if self._visible is None or self._visible.match(name)]
        if self.patterns.patterns:
            matching = (name for name in listed if self.patterns.match(name) and name not in self.names)
            found += [name for name in matching if self._visible is None or self._visible.match(name)]
        left_out = self._left_out
        names, self._left_out = partitions.fitting(found, EVENT_TOPICS_MAX)
        if is_first and self._last and self._last_event_id is None and partitions.layouts:
            several = [topic for topic in topics_of(names) if partitions.count(topic) > 1]
            self._beginning = {topic: _Beginning(partitions.of(topic)) for topic in several}
        if self._left_out and not left_out:
            self._queue.append(Sent(Dropped(None, None, self._left_out), None))
            self._news.set()
        self.version += 1
        otherwise = self._first if is_first else FROM_OLDEST
        self.positions = {name: self.positions.get(name) or self._begin(name, otherwise) for name in names}

    def _begin(self, partition: str, otherwise: Position) -> Position:
        """Where to begin in a partition: behind the last event id, without one at `otherwise`."""
        if self._last_event_id is None:
            return otherwise
        of_topic = self._partitions.of(topic_of(partition))
        return self._last_event_id.position_in(partition, of_topic if len(of_topic) > 1 else ())

    def has_room(self) -> bool:
        """Whether more may be read for it."""
        return not self.is_ended and len(self._queue) < _QUEUED_MAX

    def add(self, items: Iterable[ReadItem], reached: Iterable[tuple[str, Position]]) -> None:
        """Queue the events that were read, in order; `reached` are the new positions in all partitions read."""
        added = False
        self.version += 1
        has_ids = len(self.positions) <= _TOPICS_WITH_EACH_ID
        for read in items:
            if read.partition not in self.positions or self._is_held(read):
                continue
            added = True
            self.positions[read.partition] = read.position
            self._queue.append(Sent(read.item, self._id() if has_ids else None))
        for partition, position in reached:
            if partition in self.positions:
                self.positions[partition] = position
                added |= self._has_begun(partition)
        if not self.has_begun and all(position is not self._first for position in self.positions.values()):
            self.has_begun = True
            self._queue.append(Sent(None, self._id()))
        elif added and self._queue[-1].id is None:
            self._queue[-1] = Sent(self._queue[-1].item, self._id())
        if self._queue:
            self._news.set()

    def _is_held(self, read: ReadItem) -> bool:
        """Hold back what was read of a topic that has partitions which have not been read yet."""
        beginning = self._beginning.get(topic_of(read.partition))
        if beginning is not None:
            (beginning.first if read.partition in beginning.unread else beginning.later).append(read)
        return beginning is not None

    def _has_begun(self, partition: str) -> bool:
        """A partition was read; returns whether events were queued because it was the last one of its topic."""
        beginning = self._beginning.get(topic_of(partition))
        if beginning is None:
            return False
        beginning.unread.discard(partition)
        if beginning.unread:
            return False
        del self._beginning[topic_of(partition)]
        held = beginning.in_order(self._last)
        self._queue += (Sent(read.item, None) for read in held)
        return bool(held)

    def _id(self) -> str:
        """The positions after the queued events; events that are held back do not count as read."""
        positions = self.positions.items()
        if self._beginning:
            return write_event_id(item for item in positions if topic_of(item[0]) not in self._beginning)
        return write_event_id(positions)

    # For the client

    def restrict(self, visible: TopicPatterns | None) -> None:
        """From now on, follow only topics that match `visible`: the key has changed."""
        if visible is not self._visible:
            self._visible = visible
            hidden = [name for name in self.positions if visible is not None and not visible.match(topic_of(name))]
            self.version += 1
            for name in hidden:
                del self.positions[name]
            for topic in set(map(topic_of, hidden)):
                self._beginning.pop(topic, None)
            if self._listed is not None:
                self.follow(list(self._listed), self._partitions)

    async def read(self, timeout_s: float) -> list[Sent]:
        """The events since the last call; empty after `timeout_s` without one, or when the stream has ended."""
        if not self._queue and not self.is_ended:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                return []
        self._news.clear()
        sent = list(self._queue)
        self._queue.clear()
        return sent

    def end(self) -> None:
        """Nothing more will come. What is queued can still be read."""
        self.is_ended = True
        self.ended.set()
        self._news.set()
