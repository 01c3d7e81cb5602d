"""Caches: one that is bounded by its memory, and reads of the store that callers share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from math import inf
from threading import Lock
from typing import Any, Generic, TypeVar

from deferd.engine.scripts import request_ending_at
from deferd.store.task_cancellation import forget_error

K = TypeVar("K")
V = TypeVar("V")

_ENTRY_BYTES = 200
"""What the cache itself needs for an entry."""
_LARGEST_PART = 4
"""A value of more than this part of the cache is not kept: it would take the place of most others."""


class BoundedCache(Generic[K, V]):
    """Keeps the values that were used last, in at most `max_bytes`. Threads may share it.

    It is bounded by the memory it uses, not by its entries: some of those may be a million times larger.
    """

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


Value = TypeVar("Value")
_TIMES_THE_READ = 200
"""A value is cached for this many times its reading time, so that reading takes half a percent of the time."""


class SharedReads(Generic[Value]):
    """One expensive read of the store serves everyone who asks within a short time.

    Keeps up to `most` values for `kept_s` seconds; with `least_s`, a value that was quick to read for less, but
    at least that long. With `size` no value is kept that is larger than `largest` by it.

    Callers that ask for one that is being read wait for it, and get its error if it fails: errors are not kept. A read
    goes on when its callers are cancelled.
    """

    def __init__(
        self,
        kept_s: float,
        most: int,
        *,
        least_s: float | None = None,
        size: Callable[[Value], int] | None = None,
        largest: int = 64 * 1024,
    ) -> None:
        self._kept_s = kept_s
        self._least_s = kept_s if least_s is None else least_s
        self._most = most
        self._size = size
        self._largest = largest
        self._values: dict[Hashable, tuple[float, Value]] = {}
        self._reading: dict[Hashable, asyncio.Task[Value]] = {}

    async def get(self, key: Hashable, read: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """The value of `key`; `read` reads it if it is not cached."""
        kept = self._values.get(key)
        if kept is not None and asyncio.get_running_loop().time() < kept[0]:
            return kept[1]
        task = self._reading.get(key)
        if task is None:
            with request_ending_at(inf):  # others share it
                task = self._reading[key] = asyncio.create_task(self._read(key, read))
            task.add_done_callback(forget_error)
        return await asyncio.shield(task)

    def forget(self, key: Hashable) -> None:
        """Read the value of `key` again at its next use. A read that is under way serves only its current callers."""
        self._values.pop(key, None)
        self._reading.pop(key, None)

    async def _read(self, key: Hashable, read: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            value = await read()
            if self._reading.get(key) is not asyncio.current_task():
                return value
            self._values.pop(key, None)
            now_s = clock()
            for old in [old for old, (ends_s, _) in self._values.items() if ends_s <= now_s]:
                del self._values[old]
            if self._size is not None and self._size(value) > self._largest:
                return value
            while len(self._values) >= self._most:
                del self._values[next(iter(self._values))]
            kept_s = min(max(_TIMES_THE_READ * (now_s - began_s), self._least_s), self._kept_s)
            self._values[key] = (now_s + kept_s, value)
            return value
        finally:
            if self._reading.get(key) is asyncio.current_task():
                del self._reading[key]
