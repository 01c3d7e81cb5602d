"""Wait for a condition, instead of sleeping for as long as it should take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BUSY_S = 5.0
"""What a bound on a duration allows for a busy machine; a wait that the bound excludes must take longer than that."""
IDLE_S = 500.0
"""The same for work of threads that run only when no other does, as those that compact the shelf's files."""


async def until(holds: Callable[[], bool], what: str, *, within_s: float = 20.0) -> None:
    """Return as soon as `holds()` is true, checked every 2 ms, while tasks of this loop continue.

    Raises AssertionError with `what` when it is still false after `within_s` seconds.
    """
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"not so after {within_s:g} s: {what}"
        await asyncio.sleep(0.002)


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """The same for blocking code, checked every 10 ms; a TimeoutError names `what`."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"not so after {timeout_s} s: {what}")
        time.sleep(0.01)
