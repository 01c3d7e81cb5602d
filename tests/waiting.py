"""Tests wait for what they expect to come about, and not for a time in which it should have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

BUSY_S = 5.0
"""What a bound on a duration allows for a busy machine; a wait that the bound excludes must take longer than that."""


async def until(holds: Callable[[], bool], what: str, *, within_s: float = 20.0) -> None:
    """Return as soon as `holds()` is true, asking every 2 ms, while tasks of this loop go on.

    Raises AssertionError with `what` when it is still false after `within_s` seconds.
    """
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"waited {within_s:g} s in vain until {what}"
        await asyncio.sleep(0.002)


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """The same where nothing else has to go on, asking every 10 ms; it blocks, and TimeoutError names `what`."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout_s} s in vain until {what}")
        time.sleep(0.01)
