"""The shard guard: the number of shards, kept in the store itself, so that all services spread topics alike.

With another number a service would look for topics in other places than those where they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import ResponseError

SHARDS_KEY = "deferd:shards"
"""Holds the number of shards; a negative number while `deferd.engine.store_copy` fills the store."""
LOOK_EVERY_S = 1.0
"""How often a running service looks at the guard."""
WAIT_BEFORE_FIRST_S = 2 * LOOK_EVERY_S
"""How long a starting service waits before it writes the guard of a store that has none: if that is because somebody
emptied the store, the services that run on it write theirs first."""
_POLL_S = 0.05

Call = Callable[..., Awaitable[Any]]


async def read(call: Call) -> str | None:
    """What the store has as the number of shards; None when it has nothing. Raises redis-py's errors."""
    try:
        stored = await call("GET", SHARDS_KEY)
    except ResponseError as exc:
        if "WRONGTYPE" not in str(exc):
            raise
        return f"{SHARDS_KEY}, a key of another kind"
    return None if stored is None else str(stored.decode(errors="replace"))


async def write(call: Call, shards: int) -> str | None:
    """Write the guard where there is none, and return what the store has then. Raises redis-py's errors."""
    # NX, for another service may be doing the same: whoever comes first decides.
    await call("SET", SHARDS_KEY, shards, "NX")
    return await read(call)


async def settle(call: Call, shards: int, *, wait_s: float) -> str | None:
    """What the store has when a service starts: its own number if after `wait_s` nobody has written another."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    while (stored := await read(call)) is None and loop.time() < end_s:  # noqa: ASYNC110 (others write it, elsewhere)
        await asyncio.sleep(_POLL_S)
    return await write(call, shards) if stored is None else stored


def mismatch(stored: str, shards: int) -> str:
    """What is to be said of a store that has `stored`."""
    if stored.startswith("-"):
        return "is being filled by `deferd copy`, or that was cut short: wait until it ends, or run it again"
    return (
        f"was set up with --shards {stored}, not {shards}: topics would not be found again; start all services with "
        "the same number (DEFERD_SHARDS)"
    )
