"""The consumers that this process has seen: who pops, from where, and with which client.

A pop on its direct path leaves only a note, in a fifth of a microsecond. The notes are read when the consumers are
published or asked for, every few seconds; a pop that waits is read once.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from typing import Protocol

from deferd.api.incoming_request import IncomingRequest
from deferd.api.responses import Header
from deferd.engine.inspection.consumers import SEEN_MS, Sample, SeenConsumer

MOST_NOTES = 20_000
_MOST_CONSUMERS = 2000
_CLIENT_CHARACTERS = 100

_Identity = tuple[str | None, str | None, str, str | None]


class _Named(Protocol):
    @property
    def consumer(self) -> str | None: ...


class _HasHeaders(Protocol):
    @property
    def headers(self) -> Iterable[Header]: ...


class Call(Protocol):
    """A pop; it waits until its response is complete."""

    @property
    def response_complete(self) -> bool:
        """Whether it has ended."""


Note = tuple[_HasHeaders, str, _Named, Call]
"""A pop as its note has it: the object with its headers, its topic, the object with its consumer's name, and the
pop."""


class GeneralPops:
    """Pops through the general way with the same address, topics and name; `waiting` of them are under way."""

    __slots__ = ("headers", "waiting")

    def __init__(self, headers: Iterable[Header]) -> None:
        self.headers = headers
        self.waiting = 0


class _Consumer:
    __slots__ = ("last_seen_s", "waiting")

    def __init__(self) -> None:
        self.last_seen_s = 0.0
        self.waiting = 0


class ConsumerTracker:
    """Remembers consumers for a minute after their last pop.

    `notes` has the last pop of each connection on the direct path, by the address of its other end. Callers must not
    add notes beyond `MOST_NOTES`.
    """

    def __init__(self) -> None:
        self.notes: dict[Hashable, Note] = {}
        self._general: dict[tuple[str | None, str, str | None], GeneralPops] = {}
        self._waiting: list[tuple[Call, _Consumer]] = []
        self._consumers: dict[_Identity, _Consumer] = {}
        self._left_out = 0

    def note(self, connection: Hashable, note: Note) -> None:
        """Note the last pop of a connection, unless there are too many notes."""
        if len(self.notes) < MOST_NOTES:
            self.notes[connection] = note

    def general_pops(self, request: IncomingRequest, topics: str, consumer: str | None) -> GeneralPops:
        """The entry in which the caller counts a pop through the general way while it is under way."""
        key = (request.client_address(), topics, consumer)
        pops = self._general.get(key)
        if pops is None:
            pops = GeneralPops(request.headers)
            if len(self._general) < MOST_NOTES:
                self._general[key] = pops
        return pops

    def sample(self) -> Sample:
        """The consumers of the last minute, at most 2000."""
        now_s = time.monotonic()
        self._left_out = 0
        self._forget(now_s - SEEN_MS / 1000)
        self._see_waiting(now_s)
        self._see_notes(now_s)
        self._see_general(now_s)
        return Sample(
            [
                SeenConsumer(*identity, consumer.waiting, round(1000 * (now_s - consumer.last_seen_s)))
                for identity, consumer in self._consumers.items()
            ],
            self._left_out,
        )

    def _forget(self, before_s: float) -> None:
        for identity, consumer in list(self._consumers.items()):
            if consumer.last_seen_s <= before_s and not consumer.waiting:
                del self._consumers[identity]
            consumer.waiting = 0

    def _see_waiting(self, now_s: float) -> None:
        """Pops that waited at the last sample."""
        waiting = []
        for pop in self._waiting:
            call, consumer = pop
            consumer.last_seen_s = now_s
            if not call.response_complete:
                consumer.waiting += 1
                waiting.append(pop)
        self._waiting = waiting

    def _see_notes(self, now_s: float) -> None:
        clients: dict[int, str | None] = {}
        for address, (head, topics, named, call) in self.notes.items():
            headers = head.headers
            if id(headers) not in clients:
                clients[id(headers)] = _client_of(headers)
            host = address[0] if isinstance(address, tuple) else None
            consumer = self._seen((named.consumer, host, topics, clients[id(headers)]), now_s)
            if not call.response_complete:
                consumer.waiting += 1
                self._waiting.append((call, consumer))
        self.notes.clear()

    def _see_general(self, now_s: float) -> None:
        for key, pops in list(self._general.items()):
            host, topics, name = key
            self._seen((name, host, topics, _client_of(pops.headers)), now_s).waiting += pops.waiting
            if not pops.waiting:
                del self._general[key]

    def _seen(self, identity: _Identity, now_s: float) -> _Consumer:
        consumer = self._consumers.get(identity)
        if consumer is None:
            consumer = _Consumer()
            if len(self._consumers) < _MOST_CONSUMERS:
                self._consumers[identity] = consumer
            else:
                self._left_out += 1
        consumer.last_seen_s = now_s
        return consumer


def _client_of(headers: Iterable[Header]) -> str | None:
    """The User-Agent."""
    for name, value in headers:
        if name.lower() == b"user-agent":
            text = value.decode("latin-1").strip()[:_CLIENT_CHARACTERS]
            return "".join(character if character.isprintable() else "?" for character in text) or None
    return None
