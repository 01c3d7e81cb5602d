"""One client's stream of events: which topics it follows, where it stands in each, and what it has not read yet."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from deferd.contract.limits import EVENT_TOPICS_MAX
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.engine.events.event import Event
from deferd.engine.events.event_reader import Dropped, Read
from deferd.engine.events.positions import FROM_NOW, FROM_OLDEST, LastEventId, Position, last_events, write_event_id

_QUEUED_MAX = 2000
"""Events that wait for the client; until it has read some, no more are read for it from the store."""
_TOPICS_WITH_EACH_ID = 4
"""With more topics, only the last event of a batch has an id: it is long."""


class Sent(NamedTuple):
    """What a client gets: an event, a notice, or neither; then an id alone, from which a client goes on."""

    item: Event | Dropped | None
    id: str | None


class EventStream:
    """Follows the topics that match `wanted` and `visible` (None: all). An async iterator of batches.

    It begins behind `last_event_id`, or else with the last `last` events of each topic. Topics that have their first
    event later are followed from that on. `owner` is the name of the key it was asked for with, if any.
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
        self.positions: dict[str, Position] = {}
        self._visible = visible
        self._last_event_id = last_event_id
        self._first = last_events(last) if last else FROM_NOW
        self._listed: Sequence[str] | None = None
        self._queue: deque[Sent] = deque()
        self._news = asyncio.Event()
        self.has_begun = False
        self.version = 0  # of the positions
        self._left_out = 0
        self.is_ended = False
        self.ended = asyncio.Event()

    # For the hub

    def follow(self, listed: Sequence[str]) -> None:
        """Follow the topics that match, of these that have events, in order."""
        if listed is self._listed:
            return
        is_first, self._listed = self._listed is None, listed
        found = [name for name in self.names if self._visible is None or self._visible.match(name)]
        if self.patterns.patterns:
            matching = (name for name in listed if self.patterns.match(name) and name not in self.names)
            found += [name for name in matching if self._visible is None or self._visible.match(name)]
        left_out, self._left_out = self._left_out, max(len(found) - EVENT_TOPICS_MAX, 0)
        if self._left_out and not left_out:
            self._queue.append(Sent(Dropped(None, None, self._left_out), None))
            self._news.set()
        self.version += 1
        begin = self._begin if is_first else self._begin_later
        self.positions = {name: self.positions.get(name) or begin(name) for name in found[:EVENT_TOPICS_MAX]}

    def _begin(self, topic: str) -> Position:
        return self._first if self._last_event_id is None else self._last_event_id.position_in(topic)

    def _begin_later(self, topic: str) -> Position:
        return FROM_OLDEST if self._last_event_id is None else self._last_event_id.position_in(topic)

    def has_room(self) -> bool:
        """Whether more may be read for it."""
        return not self.is_ended and len(self._queue) < _QUEUED_MAX

    def add(self, items: Iterable[Read], reached: Iterable[tuple[str, Position]]) -> None:
        """Queue what was read, in order, each with the position behind it; `reached` are those of all topics read."""
        added = False
        self.version += 1
        has_ids = len(self.positions) <= _TOPICS_WITH_EACH_ID
        for item, position in items:
            if item.topic in self.positions:
                added = True
                self.positions[item.topic] = position
                self._queue.append(Sent(item, self._id() if has_ids else None))
        for topic, position in reached:
            if topic in self.positions:
                self.positions[topic] = position
        if not self.has_begun and all(position is not self._first for position in self.positions.values()):
            self.has_begun = True
            self._queue.append(Sent(None, self._id()))
        elif added and not has_ids:
            self._queue[-1] = Sent(self._queue[-1].item, self._id())
        if self._queue:
            self._news.set()

    def _id(self) -> str:
        return write_event_id(self.positions.items())

    # For the client

    def restrict(self, visible: TopicPatterns | None) -> None:
        """From now on, follow only topics that match `visible`: the key has changed."""
        if visible is not self._visible:
            self._visible = visible
            hidden = [name for name in self.positions if visible is not None and not visible.match(name)]
            self.version += 1
            for name in hidden:
                del self.positions[name]
            if self._listed is not None:
                self.follow(list(self._listed))

    async def read(self, timeout_s: float) -> list[Sent]:
        """What has come since the last call; empty after `timeout_s` without any, or when the stream has ended."""
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
