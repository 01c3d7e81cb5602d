"""The shard guard: a key that holds the number of shards, so that all services map topics to shards alike.

With another number a service would look for topics in the wrong shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import ResponseError

SHARDS_KEY = "deferd:shards"
"""The key. It holds a negative number while `deferd.engine.store_copy` fills the store."""
CHECK_INTERVAL_S = 1.0
"""How often a running service reads the guard."""
FIRST_WRITE_DELAY_S = 2 * CHECK_INTERVAL_S
"""How long a starting service waits before it writes a missing guard. If the store was emptied, the services that run
on it write their number first."""
_POLL_S = 0.05

Call = Callable[..., Awaitable[Any]]


async def read(call: Call) -> str | None:
    """The guard's value, or None when it is missing. Raises redis-py's errors."""
    try:
        stored = await call("GET", SHARDS_KEY)
    except ResponseError as exc:
        if "WRONGTYPE" not in str(exc):
            raise
        return "a value of another type"
    return None if stored is None else str(stored.decode(errors="replace"))


async def write(call: Call, shards: int) -> str | None:
    """Write the guard if it is missing, and return its value. Raises redis-py's errors."""
    # NX: another service may write it at the same time, and the first one wins. That makes it harmless when it comes
    # late, after it was given up: a service with another number is refused.
    await call("SET", SHARDS_KEY, shards, "NX")
    return await read(call)


async def read_or_initialize(call: Call, shards: int, *, wait_s: float) -> str | None:
    """Read the guard at a service's start, and write it if it is still missing after `wait_s`."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    while (stored := await read(call)) is None and loop.time() < end_s:  # noqa: ASYNC110 (another process writes it)
        await asyncio.sleep(_POLL_S)
    return await write(call, shards) if stored is None else stored


def mismatch_message(stored: str, shards: int) -> str:
    """Why a store whose guard is `stored` cannot be used with `shards` shards; follows the name of the store."""
    if stored.startswith("-"):
        return "is being filled by `deferd copy`, or that was interrupted: wait until it ends, or run it again"
    if not stored.isdecimal():
        return f"has {stored} in its key {SHARDS_KEY}: set it to the number of shards that the store was set up with"
    return (
        f"was set up with --shards {stored}, not {shards}: some topics would not be found; start all services with "
        f"--shards {stored} (DEFERD_SHARDS)"
    )
