"""Keeps long work in the event loop from delaying all others.

Such work ends its slice every 2 ms. Of all work in the process that waits for its next slice, one gets it in each turn
of the event loop, in order: so however much of it there is, a turn of the loop has one slice.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Generator
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

SLICE_S = 0.002
Result = TypeVar("Result")


class WorkTooLongError(Exception):
    """The work has taken as much CPU time as it may."""


class TimeSlice:
    """The time since the event loop last had a turn, as far as this work has given it one.

    `most_s` is how much CPU time the work may take in all.
    """

    __slots__ = ("_began_s", "_cpu_began_s", "_most_s", "used_s")

    def __init__(self, most_s: float = math.inf) -> None:
        self._most_s = most_s
        self.used_s = 0.0
        """CPU time of the slices that have ended."""
        self._begin()

    def _begin(self) -> None:
        self._began_s, self._cpu_began_s = time.perf_counter(), time.thread_time()

    async def start(self) -> None:
        """Wait for the first slice; for work that is long as a rule."""
        await _Turns.of_loop().wait()
        self._begin()

    def is_over(self) -> bool:
        """Whether 2 ms have passed."""
        return time.perf_counter() - self._began_s >= SLICE_S

    async def end_if_over(self) -> None:
        """Let others run after 2 ms.

        Raises:
            WorkTooLongError.
        """
        if self.is_over():
            await self._end()

    async def end(self) -> None:
        """Let others run. Raises as `end_if_over`."""
        if self.is_over():
            await self._end()
        else:
            await asyncio.sleep(0)
            self._begin()

    async def _end(self) -> None:
        self.used_s += time.thread_time() - self._cpu_began_s
        if self.used_s > self._most_s:
            raise WorkTooLongError
        await self.start()

    async def run(self, steps: Generator[Any, None, Result]) -> Result:
        """Do work that yields after each short step; returns what it returns. Raises as `end_if_over`."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: Result = done.value
                return result
            await self.end_if_over()


class _Turns:
    """Gives out the turns of one event loop."""

    _of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns]] = WeakKeyDictionary()

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    @classmethod
    def of_loop(cls) -> _Turns:
        loop = asyncio.get_running_loop()
        turns = cls._of_loops.get(loop)
        if turns is None:
            turns = cls._of_loops[loop] = cls()
        return turns

    async def wait(self) -> None:
        """Wait for the next turn that no other work has taken."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._give)
        await turn

    def _give(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else its work was cancelled
                turn.set_result(None)
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._give)
