"""Work with large JSON values is slow in Python, and would hold up all other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")
_AT_ONCE_BYTES = 64 * 1024
_THREAD = ThreadPoolExecutor(1, thread_name_prefix="deferd-console-json")
"""One: several would share a processor, and take it from the event loop."""


async def off_loop(size: int, act: Callable[[], Result]) -> Result:
    """Returns or raises what `act` does: at once for input of up to 64 kB (`size`, in bytes), otherwise in a thread."""
    if size <= _AT_ONCE_BYTES:
        return act()
    return await asyncio.get_running_loop().run_in_executor(_THREAD, act)
