"""Tests wait for what they expect to come about, and not for a time in which it should have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def until(holds: Callable[[], bool], what: str, *, within_s: float = 20.0) -> None:
    """Return as soon as `holds()` is true, asking every 2 ms, while tasks of this loop go on.

    Raises AssertionError with `what` when it is still false after `within_s` seconds.
    """
    end_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end_s, f"waited {within_s:g} s in vain until {what}"
        await asyncio.sleep(0.002)
