"""Events in the store: what happened to jobs, kept by topics whose settings ask for it.

Each partition of a topic keeps the events of its own jobs, and so a reader has a position of its own in each.
`lua/lib/events.lua` describes the text of an event.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

from deferd.contract.errors import FieldError, InvalidInput, StoreUnavailable
from deferd.contract.limits import EVENT_TOPICS_MAX
from deferd.contract.model import JobState
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.engine.partitions import topic_of, topics_of
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts


class Event(NamedTuple):
    """Something that happened to the job `id` (to several jobs, for the kind `purged`: then `id` is None).

    `number` is its place among the events of its topic, from 1; of a topic with several partitions, among the events of
    its partition. `facts` has what `kind` is about: instants in ms are under names that end with `_ms`, and
    bytes are JSON.
    """

    topic: str
    number: int
    kind: str
    at_ms: int
    id: str | None
    facts: Mapping[str, Any]


def _put(rest: str) -> dict[str, Any]:
    due, _, replaced = rest.partition(" ")
    return {"due_at_ms": int(due), **({"replaced": True} if replaced == "r" else {})}


def _changed(rest: str) -> dict[str, Any]:
    due, state, *follow_up = rest.split(" ")
    if follow_up:
        return {"state": state, "follow_up": {"due_at_ms": int(due)}}
    return {"state": state, "due_at_ms": int(due)}


def _ready(rest: str) -> dict[str, Any]:
    return {"state": JobState.READY, "due_at_ms": int(rest)}


def _popped(rest: str) -> dict[str, Any]:
    attempt, lease_end, consumer = rest.split(" ", 2)
    facts = {"state": JobState.RESERVED, "attempt": int(attempt), "reserved_until_ms": int(lease_end)}
    return {**facts, "consumer": consumer} if consumer else facts


def _waits_again(rest: str) -> dict[str, Any]:
    attempt, due, *error = rest.split(" ", 2)
    facts = {"state": JobState.DELAYED, "attempt": int(attempt), "due_at_ms": int(due)}
    return {**facts, "error": error[0]} if any(error) else facts


def _snoozed(rest: str) -> dict[str, Any]:
    attempts, due = rest.split(" ")
    return {"state": JobState.DELAYED, "attempts": int(attempts), "due_at_ms": int(due)}


def _progress(rest: str) -> dict[str, Any]:
    attempt, _, progress = rest.partition(" ")
    facts: dict[str, Any] = {"state": JobState.RESERVED, "attempt": int(attempt)}
    if progress:
        json.loads(progress)  # another program may have written it
        facts["progress"] = progress.encode()
    return facts


def _lease_ended(rest: str) -> dict[str, Any]:
    attempt, why, consumer = rest.split(" ", 2)
    facts = {"state": JobState.READY, "attempt": int(attempt), "reason": why}
    return {**facts, "consumer": consumer} if consumer else facts


def _finished(rest: str) -> dict[str, Any]:
    attempt, _, kept = rest.partition(" ")
    return {**({"state": JobState.FINISHED} if kept else {}), "attempt": int(attempt)}


def _dead(rest: str) -> dict[str, Any]:
    attempts, reason, kept, error = rest.split(" ", 3)
    facts = {"attempts": int(attempts), "reason": reason, **({"error": error} if error else {})}
    return {"state": JobState.DEAD, **facts} if kept == "1" else facts


def _cancelled(rest: str) -> dict[str, Any]:
    was, _, why = rest.partition(" ")
    return {"was": was, **({"reason": why} if why else {})}


def _purged(rest: str) -> dict[str, Any]:
    count, was, why = rest.split(" ")
    return {"count": int(count), "reason": why, **({} if was == "any" else {"was": was})}


def _nothing(state: JobState) -> Callable[[str], dict[str, Any]]:
    return lambda _rest: {"state": state}


_KINDS: dict[str, tuple[str, Callable[[str], dict[str, Any]]]] = {
    "P": ("put", _put),
    "C": ("changed", _changed),
    "R": ("ready", _ready),
    "O": ("popped", _popped),
    "L": ("released", _waits_again),
    "S": ("snoozed", _snoozed),
    "G": ("progress", _progress),
    "B": ("returned", _nothing(JobState.READY)),
    "E": ("lease_ended", _lease_ended),
    "F": ("finished", _finished),
    "D": ("dead", _dead),
    "X": ("cancelled", _cancelled),
    "V": ("redriven", _nothing(JobState.READY)),
    "Z": ("purged", _purged),
}


def _read_event(topic: str, number: int, stored: bytes) -> Event | None:
    """Read an event; None for one that cannot be read: another program has written it."""
    text = stored.decode(errors="ignore")  # an error is cut at a number of bytes, perhaps within a character
    try:
        kind, read_facts = _KINDS[text[:1]]
        at, job_id, *rest = text[1:].split(" ", 2)
        at_ms = int(at)
        facts = read_facts(rest[0] if rest else "")
        if kind == "put":
            facts = {"state": JobState.DELAYED if facts["due_at_ms"] > at_ms else JobState.READY, **facts}
    except (KeyError, ValueError):
        return None
    return Event(topic, number, kind, at_ms, None if job_id == "-" else job_id, facts)


_VERSION = b"\x01"
_ENTRY = struct.Struct("<IHIB")
"""CRC-32 of the partition, `since`, and the number of the event in 40 bits."""
LAST_EVENT_ID_MAX = 4 * ((1 + EVENT_TOPICS_MAX * _ENTRY.size + 2) // 3)


class Position(NamedTuple):
    """The last event that was read of a partition; as `lua/events.lua` takes it."""

    since: int
    number: int


_BEFORE_LAST = -3
FROM_OLDEST, FROM_NOW = Position(-1, 0), Position(-2, 0)
FROM_FIRST = Position(-4, 0)
"""As FROM_OLDEST, but events that are no longer kept count as missing."""


def last_events(count: int) -> Position:
    """The position before the last `count` events."""
    return Position(_BEFORE_LAST, count)


def _is_before_last(position: Position) -> bool:
    """Whether it is the position before the last `count` events."""
    return position.since == _BEFORE_LAST


class LastEventId:
    """The positions in an event id."""

    def __init__(self, positions: Mapping[int, Position]) -> None:
        self._positions = positions

    def position_in(self, partition: str, of_topic: Sequence[str] = ()) -> Position:
        """Where to go on in a partition. One that had no event when the id was made begins with its oldest.

        `of_topic` are all partitions of its topic. If another one had events then, the topic was followed, and what
        this one has dropped since is missing.
        """
        position = self._positions.get(crc32(partition.encode()))
        if position is not None:
            return position
        was_followed = any(crc32(one.encode()) in self._positions for one in of_topic)
        return FROM_FIRST if was_followed else FROM_OLDEST


def write_event_id(positions: Iterable[tuple[str, Position]]) -> str:
    """The id for a reader that stands at these positions in partitions; those without an event yet are left out."""
    entries = (
        _ENTRY.pack(
            crc32(partition.encode()), position.since, position.number & 0xFFFFFFFF, position.number >> 32 & 0xFF
        )
        for partition, position in positions
        if position.since >= 0
    )
    return base64.urlsafe_b64encode(_VERSION + b"".join(entries)).decode().rstrip("=")


def read_event_id(text: str) -> LastEventId:
    """Read what `write_event_id` wrote. Raises InvalidInput."""
    raw = b""
    if len(text) <= LAST_EVENT_ID_MAX:
        with contextlib.suppress(binascii.Error, ValueError):
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if raw[:1] != _VERSION or len(raw[1:]) % _ENTRY.size:
        message = "must be the `id` of an event that an earlier response for the same topics has sent"
        raise InvalidInput([FieldError(("header", "Last-Event-ID"), message, text[:100])])
    entries = _ENTRY.iter_unpack(raw[1:])
    return LastEventId({topic: Position(since, low | high << 32) for topic, since, low, high in entries})


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
    for place in sorted(places, key=lambda place: not _is_before_last(place[1])):
        wanted = place[1].number if _is_before_last(place[1]) else 0
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
        event = _read_event(topic, number, text)
        items.append((event or Dropped(topic, 1), Position(since, number)))
    return Page(items, Position(since, first + len(stored) - 1))
