"""The shard guard: a key that says how a store is laid out, as `4 format 1`, so that all services use it alike.

With another number of shards a service would look for topics in the wrong ones. With another format it would misread or
damage what is stored: jobs were lost when services of different revisions ran on one store.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import ResponseError

SHARDS_KEY = "deferd:shards"
"""The key. The number is negative while `deferd.engine.store_copy` fills the store."""
FORMAT = 1
"""The format of everything in the store. Raise it with each change that makes a service of an earlier revision misread
or damage what is stored, or the other way round."""
CHECK_INTERVAL_S = 1.0
"""How often a running service reads the guard."""
FIRST_WRITE_DELAY_S = 2 * CHECK_INTERVAL_S
"""How long a starting service waits before it writes a missing guard. If the store was emptied, the services that run
on it write their number first."""
_POLL_S = 0.05
_VALUE = re.compile(r"(-?\d+) format (\d+)", re.ASCII)

Call = Callable[..., Awaitable[Any]]


def value(shards: int) -> str:
    """The guard of a store with this number of shards."""
    return f"{shards} format {FORMAT}"


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
    await call("SET", SHARDS_KEY, value(shards), "NX")
    return await read(call)


async def read_or_initialize(call: Call, shards: int, *, wait_s: float) -> str | None:
    """Read the guard at a service's start, and write it if it is still missing after `wait_s`."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    while (stored := await read(call)) is None and loop.time() < end_s:  # noqa: ASYNC110 (another process writes it)
        await asyncio.sleep(_POLL_S)
    return await write(call, shards) if stored is None else stored


def shards_in(stored: str) -> int:
    """The number of shards in a guard's value, negative while `deferd.engine.store_copy` fills the store.

    Raises:
        ValueError: this revision cannot use the store; the message says why, as `mismatch`.
    """
    found = _VALUE.fullmatch(stored)
    if found is None:
        raise ValueError(
            f"has {stored} in its key {SHARDS_KEY}: set it to `N format {FORMAT}`, where N is the number of shards "
            "that the store was set up with"
        )
    if found[2] != str(FORMAT):
        raise ValueError(
            f"holds data of format {found[2]}, but this revision of deferd needs format {FORMAT}: run one revision of "
            "deferd on all services of a store, the one that the data are of"
        )
    return int(found[1])


def mismatch(stored: str, shards: int) -> str | None:
    """Why a store whose guard is `stored` cannot be used with `shards` shards, or None. It follows the store's name."""
    try:
        found = shards_in(stored)
    except ValueError as exc:
        return str(exc)
    if found < 0:
        return "is being filled by `deferd copy`, or that was interrupted: wait until it ends, or run it again"
    if found != shards:
        return (
            f"was set up with --shards {found}, not {shards}: some topics would not be found; start all services with "
            f"--shards {found} (DEFERD_SHARDS)"
        )
    return None
