"""A cache that is bounded by the memory it uses, not by its entries: some of those may be a million times larger."""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_ENTRY_BYTES = 200
"""What the cache itself needs for an entry."""
_LARGEST_PART = 4
"""A value of more than this part of the cache is not kept: it would take the place of most others."""


class BoundedCache(Generic[K, V]):
    """Keeps the values that were used last, in at most `max_bytes`. Threads may share it."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._entries: dict[K, tuple[V, int]] = {}
        """Ordered by last use, the most recent last."""
        self._lock = Lock()

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """The value; None if it is not cached, or not any more."""
        with self._lock:
            entry = self._entries.pop(key, None)
            if entry is None:
                return None
            self._entries[key] = entry
            return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep a value that needs `size` bytes, with its key. Those that were not used for the longest time go."""
        size += _ENTRY_BYTES
        with self._lock:
            self._remove(key)
            if size > self.max_bytes // _LARGEST_PART:
                return
            self._entries[key] = value, size
            self.used_bytes += size
            while self.used_bytes > self.max_bytes:
                self._remove(next(iter(self._entries)))

    def remove(self, key: K) -> None:
        """Forget a value."""
        with self._lock:
            self._remove(key)

    def _remove(self, key: K) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.used_bytes -= entry[1]
