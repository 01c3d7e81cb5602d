"""Reads events from the store for all clients of a process that follow topics.

Each client has a position in each of its topics, or in each partition of them. Clients at the same position share a
read, so a hundred clients that keep up cost the store as much as one. The store's list of events is the buffer of a
client that is slow: nothing is read for it until it has taken what was read before, and it learns how many events the
topic has dropped by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from deferd.contract.errors import StoreUnavailable, TryLater
from deferd.contract.limits import EVENT_STREAMS_MAX, EVENT_STREAMS_PER_KEY, EVENT_TOPICS_MAX
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.engine.events import (
    FROM_NOW,
    FROM_OLDEST,
    Dropped,
    Event,
    EventReader,
    LastEventId,
    Page,
    Place,
    Position,
    last_events,
    write_event_id,
)
from deferd.engine.partitions import Partitions, topic_of, topics_of
from deferd.engine.redis_keys import Keys

_LOG = logging.getLogger("deferd.engine.events.event_hub")  # logs are filtered by the name
_TURN_S = 0.25
_LIST_EVERY_S = 1.0
_AFTER_ERROR_S = 1.0
_NAMES_MAX = 10_000
_PLACES_PER_TURN = 5000
"""Per shard. It bounds the cost of clients at many different positions."""


_Wanted = dict[int, dict[Place, list["EventStream"]]]
"""By shard and place: the streams that stand there."""
_QUEUED_MAX = 2000
"""Events that wait for the client; until it has read some, no more are read for it from the store."""
_TOPICS_WITH_EACH_ID = 4
"""With more topics, only the last event of a batch has an id: it is long."""


class TooManyStreams(TryLater):
    """The process serves its maximum of event streams, in all or for one key."""

    code = "too_many_streams"


class EventHub:
    """The streams of a process, and what reads for them. Without streams it does nothing."""

    def __init__(self, reader: EventReader, keys: Keys) -> None:
        self._reader = reader
        self._keys = keys
        self._streams: set[EventStream] = set()
        self._listed: list[str] = []
        self._layouts_version = keys.partitions.version
        self._names: dict[int, list[str]] = {}
        self._signature: list[tuple[int, int]] = []
        self._wanted: _Wanted = {}
        self._reading: dict[int, asyncio.Task[None]] = {}
        self._listing: asyncio.Task[None] | None = None
        self._unlisted: set[EventStream] = set()  # with patterns, which begin with what the next listing finds
        self._has_streams = asyncio.Event()
        self._is_draining = False

    @property
    def streams(self) -> int:
        """The number of open streams."""
        return len(self._streams)

    def check_room(self, owner: str | None = None) -> None:
        """Check that one more stream is allowed, for the key with this name if there are keys.

        Raises TooManyStreams.
        """
        if len(self._streams) >= EVENT_STREAMS_MAX:
            raise TooManyStreams(f"this process serves {EVENT_STREAMS_MAX} streams of events already", 5)
        if owner is not None and sum(stream.owner == owner for stream in self._streams) >= EVENT_STREAMS_PER_KEY:
            text = f"this process serves {EVENT_STREAMS_PER_KEY} streams of events to key {owner!r} already"
            raise TooManyStreams(text, 5)

    @contextlib.contextmanager
    def serving(self, stream: EventStream) -> Iterator[None]:
        """Read for the stream until the block ends. A stream that begins while the process drains ends at once."""
        if self._is_draining:
            stream.end()
        self._streams.add(stream)
        if stream.patterns.patterns:
            self._unlisted.add(stream)
        self._has_streams.set()
        try:
            yield
        finally:
            stream.end()
            self._streams.discard(stream)
            self._unlisted.discard(stream)
            if not self._streams:
                self._has_streams.clear()

    def end_all(self) -> None:
        """End all streams: their clients continue at another service."""
        for stream in self._streams:
            stream.end()

    def drain(self) -> None:
        """End all streams; from now on, those that begin end at once."""
        self._is_draining = True
        self.end_all()

    async def run(self) -> None:
        """Read until cancelled."""
        loop = asyncio.get_running_loop()
        listed_at_s = 0.0
        try:
            while True:
                await self._has_streams.wait()
                began_s = loop.time()
                if self._listing is None and (self._unlisted or began_s - listed_at_s >= _LIST_EVERY_S):
                    listed_at_s = began_s
                    self._listing = asyncio.create_task(self._list_topics())
                    if self._unlisted:
                        await asyncio.wait((self._listing,), timeout=_TURN_S)
                self._begin_reads()
                await asyncio.sleep(_TURN_S)
        finally:
            tasks = [*self._reading.values(), *([self._listing] if self._listing else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _list_topics(self) -> None:
        """Find out which topics have events, if somebody follows a pattern. A shard that fails keeps its topics."""
        begun = set(self._unlisted)
        try:
            if any(stream.patterns.patterns for stream in self._streams):
                await asyncio.gather(*(self._list_shard(shard) for shard in range(self._keys.shards)))
                listed = sorted(topics_of(name for names in self._names.values() for name in names))[:_NAMES_MAX]
                if listed != self._listed:
                    self._listed = listed
            self._unlisted -= begun
        except Exception:  # noqa: BLE001 (without the reader, streams would be silent for ever)
            _LOG.exception("listing the topics with events failed; trying again")
        finally:
            self._listing = None

    async def _list_shard(self, shard: int) -> None:
        with contextlib.suppress(StoreUnavailable):
            self._names[shard] = await self._reader.partitions_of(shard)

    def _begin_reads(self) -> None:
        """Start a read in each shard that has something to read and no read under way."""
        partitions = self._keys.partitions
        if partitions.version != self._layouts_version:
            self._layouts_version = partitions.version
            self._listed = list(self._listed)  # another one, so that streams follow all partitions of its topics
        for stream in self._streams - self._unlisted:
            stream.follow(self._listed, partitions)
            if stream.has_room() and not stream.positions:
                stream.add((), ())
        for shard, wanted in self._wanted_by_shard().items():
            if shard not in self._reading:
                self._reading[shard] = asyncio.create_task(self._read_shard(shard, wanted))

    def _wanted_by_shard(self) -> _Wanted:
        """The positions of all streams that have room. It is built again after a change."""
        reading = [stream for stream in self._streams if stream.has_room()]
        signature = [(id(stream), stream.version) for stream in reading]
        if signature != self._signature:
            self._signature, self._wanted = signature, {}
            for stream in reading:
                for partition, position in stream.positions.items():
                    of_shard = self._wanted.setdefault(self._keys.shard_of(partition), {})
                    of_shard.setdefault((partition, position), []).append(stream)
        return self._wanted

    async def _read_shard(self, shard: int, wanted: Mapping[Place, list[EventStream]]) -> None:
        try:
            places = list(wanted)
            # So that no topic is always behind those that fill a call.
            begin = random.randrange(len(places))  # noqa: S311 (as above)
            found = await self._reader.read((places[begin:] + places[:begin])[:_PLACES_PER_TURN])
            changed = {place: page for place, page in found.items() if page.items or page.end != place[1]}
            streams = {stream for place in changed for stream in wanted[place]}
            streams.update(stream for stream in self._streams if not stream.has_begun)
            for stream in streams:
                _hand_over(stream, found if not stream.has_begun else changed)
        except StoreUnavailable:
            await asyncio.sleep(_AFTER_ERROR_S)
        except Exception:  # noqa: BLE001 (as above)
            _LOG.exception("reading events failed; trying again")
            await asyncio.sleep(_AFTER_ERROR_S)
        finally:
            del self._reading[shard]


def _hand_over(stream: EventStream, found: Mapping[Place, Page]) -> None:
    """Give a stream what was read from the positions where it still stands, in the order in which it happened."""
    items: list[tuple[int, ReadItem]] = []
    reached: list[tuple[str, Position]] = []
    for (partition, position), page in found.items():
        if stream.positions.get(partition) != position:
            continue
        latest_ms = 0  # the order within a partition stays if the store's clock is set back
        for item, behind in page.items:
            latest_ms = max(latest_ms, item.at_ms if isinstance(item, Event) else 0)
            items.append((latest_ms, ReadItem(partition, item, behind)))
        reached.append((partition, page.end))
    if reached:
        items.sort(key=lambda item: item[0])
        stream.add([item for _, item in items], reached)


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
    """The events that one client follows, where it stands in each topic, and what it has not read yet.

    It follows the topics that match `wanted` and `visible` (None: all). An async iterator of batches. Each partition of
    a topic is read on its own, so that the events of different partitions may come out of order.

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
