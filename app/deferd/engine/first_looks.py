"""Which topics that pops wait for are polled now, when very many are to be polled at once.

A topic that had something ready lately is polled at once. Of others, of which nothing is known, some are looked at, at
a time, in the order in which they came: calls for the former would wait behind thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable

from deferd.engine.wait_queue import WaitQueue

_LOOKS_AT_ONCE = 32
_LATELY_READY_MAX = 1000


class FirstLooks:
    """`begin` is called with a queue whose turn has come."""

    def __init__(self, begin: Callable[[WaitQueue], None]) -> None:
        self._begin = begin
        self._under_way = 0
        self._waiting: dict[WaitQueue, None] = {}
        self.lately_ready: dict[str, None] = {}

    def note_ready(self, topic: str) -> None:
        """The topic has something ready."""
        self.lately_ready.pop(topic, None)
        self.lately_ready[topic] = None
        if len(self.lately_ready) > _LATELY_READY_MAX:
            del self.lately_ready[next(iter(self.lately_ready))]

    def request(self, queue: WaitQueue) -> None:
        """Begin to poll for the queue now, or when its turn comes."""
        queue.is_look = queue.topic not in self.lately_ready
        if queue.is_look and self._under_way >= _LOOKS_AT_ONCE:
            self._waiting[queue] = None
            return
        self.forget(queue)
        self._under_way += queue.is_look
        self._begin(queue)

    def end(self, queue: WaitQueue) -> None:
        """The queue was polled once, or is not polled any more; if that was a look, the next ones begin."""
        if not queue.is_look:
            return
        queue.is_look = False
        self._under_way -= 1
        while self._waiting and self._under_way < _LOOKS_AT_ONCE:
            following = next(iter(self._waiting))
            del self._waiting[following]
            self._under_way += 1
            following.is_look = True
            self._begin(following)

    def forget(self, queue: WaitQueue) -> None:
        """Nobody waits for the queue any more."""
        self._waiting.pop(queue, None)
