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
from collections.abc import Iterator, Mapping

from deferd.contract.errors import StoreUnavailable, TryLater
from deferd.contract.limits import EVENT_STREAMS_MAX, EVENT_STREAMS_PER_KEY
from deferd.engine.events.event import Event
from deferd.engine.events.event_reader import EventReader, Page, Place
from deferd.engine.events.event_stream import EventStream, ReadItem
from deferd.engine.events.positions import Position
from deferd.engine.partitions import topics_of
from deferd.engine.redis_keys import Keys

_LOG = logging.getLogger(__name__)
_TURN_S = 0.25
_LIST_EVERY_S = 1.0
_AFTER_ERROR_S = 1.0
_NAMES_MAX = 10_000
_PLACES_PER_TURN = 5000
"""Per shard. It bounds the cost of clients at many different positions."""


_Wanted = dict[int, dict[Place, list[EventStream]]]
"""By shard and place: the streams that stand there."""


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

    def drain(self) -> None:
        """End all streams."""
        self._is_draining = True
        for stream in self._streams:
            stream.end()

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
