"""Spaces out large replies of the store, so that the callers of a process never wait behind many of them.

A reply of a megabyte takes some 3 ms of the event loop until it is a response, 5 ms over TLS. One caller can request
such replies without pause, on many connections at once. So a pop of a topic whose last reply was large waits until the
event loop has had six to ten times as long for everybody else.
"""

from __future__ import annotations

import asyncio

LARGE_BYTES = 256 * 1024
BYTES_PER_S = 32 * 1024 * 1024
"""The rate of large replies in one process: at most 128 a second."""
_TOPICS_MAX = 10_000
_sleep = asyncio.sleep


class _Topic:
    """A topic whose last reply was large, of `size` bytes. Its callers queue for `lock`."""

    __slots__ = ("lock", "size")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.size = 0


class ReplyPacing:
    """The turns of large replies in one process.

    Topics take turns, however many callers one of them has. Time is reserved only when a turn comes, so that callers
    that give up earlier cost the others nothing.
    """

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self._lock = asyncio.Lock()
        self._next_turn_at_s = 0.0

    def expects_large(self, topic: str) -> bool:
        """Whether the next pop of the topic must wait for its turn."""
        return topic in self._topics

    async def turn(self, topic: str) -> None:
        """Wait for the turn of the topic's next pop, or until its replies are no longer expected to be large.

        Callers for one topic have their turns in the order in which they came.
        """
        expected = self._topics.get(topic)
        if expected is None:
            return
        async with expected.lock:
            if topic not in self._topics:
                return
            async with self._lock:
                wait_s = self._next_turn_at_s - _now_s()
                if wait_s > 0:
                    await _sleep(wait_s)
                self._reserve(expected.size)

    def note(self, topic: str, size: int) -> None:
        """Record that the last pop of the topic returned `size` bytes."""
        if size < LARGE_BYTES:
            self._topics.pop(topic, None)
            return
        noted = self._topics.get(topic)
        if noted is None:
            if len(self._topics) >= _TOPICS_MAX:
                self._topics.clear()
            noted = self._topics[topic] = _Topic()
            self._reserve(size)
        noted.size = size

    def _reserve(self, size: int) -> None:
        """Reserve the time for a reply of `size` bytes from now on. Replies without a turn do not add up."""
        self._next_turn_at_s = max(self._next_turn_at_s, _now_s() + size / BYTES_PER_S)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
