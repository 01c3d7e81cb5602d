"""A reader's position in each topic, and the event id that tells it to any process of the service.

Each partition of a topic has its own events, and so a position of its own.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from deferd.contract.errors import FieldError, InvalidInput
from deferd.contract.limits import EVENT_TOPICS_MAX

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


def is_before_last(position: Position) -> bool:
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
