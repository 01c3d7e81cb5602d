"""The first requests of connections begin in slices, some in each turn of the event loop.

When thousands of clients connect at the same time, as after a restart, their first requests arrive in one turn. To
begin all of them at once would keep everybody else waiting for half a second and longer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

AT_ONCE = 16
"""First requests that begin in one turn: they take about two milliseconds."""


class FirstRequests:
    """Says which first requests may begin, and begins the others in the order in which they came."""

    def __init__(self) -> None:
        self._began = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def may_begin(self, begin: Callable[[], None]) -> bool:
        """Whether a request may begin now; else `begin` is called in a later turn."""
        if self._began == 0:
            asyncio.get_running_loop().call_soon(self._begin_turn)
        elif self._began >= AT_ONCE:
            self._waiting.append(begin)
            return False
        self._began += 1
        return True

    def _begin_turn(self) -> None:
        """Begin some of those that wait. As long as any does, those that come wait behind them."""
        self._began = 0
        if self._waiting:
            self._began = AT_ONCE
            asyncio.get_running_loop().call_soon(self._begin_turn)
        for _ in range(min(len(self._waiting), AT_ONCE)):
            self._waiting.popleft()()
