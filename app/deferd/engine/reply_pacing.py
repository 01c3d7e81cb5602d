"""Spaces out large replies of the store, so that the callers of a process never wait behind many of them.

A reply of a megabyte takes some 3 ms of the event loop until it is a response, 5 ms over TLS. One caller can ask for
such replies without pause, on many connections at once. So a pop whose topic brought a large reply before waits until
the event loop has had about four times as long for everybody else.
"""

from __future__ import annotations

import asyncio

LARGE_BYTES = 256 * 1024
BYTES_PER_S = 64 * 1024 * 1024
"""The rate of large replies in one process: at most 250 a second."""
_TOPICS_MAX = 10_000


class ReplyPacing:
    """The turns of large replies in one process."""

    def __init__(self) -> None:
        self._size_of: dict[str, int] = {}
        """How large the last reply of a topic was, if that was large."""
        self._next_turn_at_s = 0.0

    def expects_large(self, topic: str) -> bool:
        """Whether the next pop of the topic must wait for its turn."""
        return topic in self._size_of

    async def turn(self, topic: str) -> None:
        """Wait for the turn of the topic's next pop. Callers have their turns in the order in which they came."""
        wait_s = self._reserve(self._size_of[topic])
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def note(self, topic: str, size: int) -> None:
        """The topic's last pop brought `size` bytes."""
        if size < LARGE_BYTES:
            self._size_of.pop(topic, None)
            return
        if topic not in self._size_of:
            self._reserve(size)
            if len(self._size_of) >= _TOPICS_MAX:
                self._size_of.clear()
        self._size_of[topic] = size

    def _reserve(self, size: int) -> float:
        """The time of the event loop for a reply of `size` bytes; returns in how many seconds it begins."""
        now_s = asyncio.get_running_loop().time()
        begins_s = max(self._next_turn_at_s, now_s)
        self._next_turn_at_s = begins_s + size / BYTES_PER_S
        return begins_s - now_s
