"""The memory budget for responses that clients have not read yet, for the process and for each key.

A response nearly always fits into the system's buffers. One that does not stays in this process, as a whole, until the
client has read the rest. A client that requests large responses on many connections and reads none of them would fill
the memory, so these bytes are counted. Over the budget

- clients that have read nothing for a while are cut off, those that have stalled longest first;
- if that frees too little, a large response is replaced by a 429 (the key is over its share) or a 503. Small responses
  are always sent.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from deferd.contract.errors import DeferdError, RateLimited, TryLater

LARGE_BYTES = 64 * 1024
"""Responses up to this size are never refused."""
KEY_SHARE = 0.5
"""The part of the budget that the clients of one key may use together."""
STALLED_S = 2.0
"""A client that has read nothing for this long may be cut off when there is no room."""
_REFUSED_MAX = 1000
_ALL = "*"  # no key can have this name
_log = logging.getLogger("deferd.connections")


class TooManyUnsentBytes(TryLater):
    """Clients have too many unread bytes, so a large response is refused. Nothing was changed."""

    code = "too_many_unsent_bytes"


class SlowClient(Protocol):
    """A connection whose client has not read all of its response."""

    def unsent_bytes(self) -> int:
        """The number of bytes still in this process."""

    def cut_off(self) -> None:
        """Close the connection at once and drop what is unsent."""


class _Entry:
    """A slow client: the bytes `kept` for it, of which `unsent` have been unsent since `changed_s`."""

    __slots__ = ("changed_s", "kept", "key_name", "unsent")

    def __init__(self, key_name: str | None, changed_s: float) -> None:
        self.kept = self.unsent = 0
        self.key_name = key_name
        self.changed_s = changed_s


class UnsentBytes:
    """The budget of a process, `most` bytes. `clock` is a monotonic clock in seconds."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._most_of_a_key = int(most * KEY_SHARE)
        self._clock = clock
        self._slow: dict[SlowClient, _Entry] = {}  # in the order in which they became slow
        self._held: Counter[str | None] = Counter()  # by key name; for all clients together by _ALL
        self._refused: dict[str, int] = {}

    @property
    def total(self) -> int:
        """The bytes kept for slow clients."""
        return self._held[_ALL]

    def note(self, client: SlowClient, key_name: str | None, size: int = 0) -> None:
        """Record that the client has not read its response of `size` bytes, 0 if only the unsent rest is known.

        Cut off other clients if the budget is exceeded now.
        """
        entry = self._slow.get(client)
        if entry is None or entry.key_name != key_name:
            self.forget(client)
            entry = self._slow[client] = _Entry(key_name, self._clock())
        entry.unsent = client.unsent_bytes()
        self._keep(entry, max(entry.kept, entry.unsent, size))
        if key_name is not None:
            self._make_room(0, self._most_of_a_key, key_name, spared=client)
        self._make_room(0, self._most, _ALL, spared=client)

    def forget(self, client: SlowClient) -> None:
        """Record that the client has read everything, or has disconnected."""
        entry = self._slow.pop(client, None)
        if entry is not None:
            self._keep(entry, 0)

    def _keep(self, entry: _Entry, kept: int) -> None:
        for owner in (entry.key_name, _ALL):
            self._held[owner] += kept - entry.kept
            if not self._held[owner]:
                del self._held[owner]
        entry.kept = kept

    @contextlib.contextmanager
    def waiting(self, size: int, key_name: str | None) -> Iterator[None]:
        """Around the sending of a response by a server that waits until the client reads it."""
        if size <= LARGE_BYTES:
            yield
            return
        held = _Held(size)
        entry = self._slow[held] = _Entry(key_name, self._clock())
        entry.unsent = size
        self._keep(entry, size)
        try:
            yield
        finally:
            self.forget(held)

    def check(self, source: str, key_name: str | None) -> None:
        """Before a request: refuse it if the last response from `source` was refused and there is still no room for it.

        Raises:
            RateLimited, TooManyUnsentBytes: see `claim`.
        """
        size = self._refused.get(source)
        if size is not None:
            self.claim(size, key_name)
            self._refused.pop(source, None)

    def claim(self, size: int, key_name: str | None, source: str | None = None) -> None:
        """Before a response of `size` bytes is sent: make room for it in case the client does not read it.

        A response larger than the budget is sent if nothing else is unsent.

        Raises:
            RateLimited: too much is unsent to the clients of this key.
            TooManyUnsentBytes: too much is unsent to all clients together.
        """
        if size <= LARGE_BYTES or not self._slow:
            return
        try:
            self._claim(size, key_name)
        except DeferdError:
            if source is not None:
                if len(self._refused) >= _REFUSED_MAX:
                    self._refused.clear()
                self._refused[source] = size
            raise

    def _claim(self, size: int, key_name: str | None) -> None:
        if key_name is not None and not self._make_room(size, self._most_of_a_key, key_name):
            raise RateLimited(
                f"the clients of key {key_name!r} have not read {self._held[key_name]} bytes of their responses, and a "
                f"key may have {self._most_of_a_key} unread in each server process: read them, or close the connection"
            )
        if not self._make_room(size, self._most, _ALL):
            raise TooManyUnsentBytes(
                f"clients have not read {self.total} bytes of their responses, and a response of {size} bytes would "
                f"exceed the {self._most} that this process may hold"
            )

    def _make_room(self, size: int, most: int, owner: str | None, spared: SlowClient | None = None) -> bool:
        """Whether `size` more bytes fit into the budget `most` of `owner`, a key or _ALL; cut off clients if needed.

        The bytes of `spared` are unsent already: any other client may be cut off for them, stalled or not.
        """
        if self._has_room(size, most, owner):
            return True
        self._measure()
        stalled_at_s = self._clock() - STALLED_S
        entries = [
            (client, entry)
            for client, entry in self._slow.items()
            if owner in (entry.key_name, _ALL) and client is not spared and not isinstance(client, _Held)
        ]
        cut_off = [client for client, entry in entries if entry.changed_s <= stalled_at_s]
        if spared is not None:
            cut_off += [client for client, entry in entries if entry.changed_s > stalled_at_s]
        for client in cut_off:
            if self._has_room(size, most, owner):
                break
            _log.info("a client that did not read the last %d bytes of its response was cut off", client.unsent_bytes())
            self.forget(client)
            client.cut_off()
        return self._has_room(size, most, owner)

    def _has_room(self, size: int, most: int, owner: str | None) -> bool:
        held = self._held[owner]
        return not held or held + size <= most

    def _measure(self) -> None:
        now_s = self._clock()
        for client, entry in list(self._slow.items()):
            unsent = client.unsent_bytes()
            if unsent != entry.unsent:
                entry.unsent, entry.changed_s = unsent, now_s
            if not unsent:
                self.forget(client)


class _Held:
    """A response that an ASGI server has not sent yet; it cannot be cut off from here."""

    def __init__(self, size: int) -> None:
        self._size = size

    def unsent_bytes(self) -> int:
        return self._size

    def cut_off(self) -> None:
        """Nothing."""
