"""The shard guard: a key that says how a store is laid out, as `4 format 1`, so that all services use it alike.

With another number of shards a service would look for topics in the wrong ones. With a format that it does not know it
would misread or damage what is stored: jobs were lost when services of different revisions ran on one store. So the
format changes only when all processes know the new one, see `deferd.engine.store_processes`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

SHARDS_KEY = "deferd:shards"
"""The key. The number is negative while `deferd.engine.store_copy` fills the store."""
FORMAT = 1
"""The newest format that this release knows. Raise it with each change that makes a service of an earlier release
misread or damage what is stored, or the other way round. This release must go on with the format before it, and write
what is new only when the store has the new one (`StoreProcesses.require`)."""
OLDEST_FORMAT = 1
"""The oldest format that this release knows."""
PROCESSES_KEY = "deferd:processes:{deferd:shards}"
"""Who uses the store; its hash tag puts it beside the guard in a cluster. See `deferd.engine.store_processes`."""
CHECK_INTERVAL_S = 1.0
"""How often a running service reads the guard."""
FIRST_WRITE_DELAY_S = 2 * CHECK_INTERVAL_S
"""How long a starting service waits before it writes a missing guard. If the store was emptied, the services that run
on it write their number first."""
_POLL_S = 0.05
_VALUE = re.compile(r"(-?\d+) format (\d+)(?: of (\S+))?(?: .*)?", re.ASCII)
"""A later release may add words. One that does not know them must still say that it is too old, not how to replace
the guard."""

Call = Callable[..., Awaitable[Any]]


class Layout(NamedTuple):
    """What a guard says. `shards` is negative while `deferd.engine.store_copy` fills the store.

    `release` raised the format; None for the first format of a store, and before format 2.
    """

    shards: int
    format: int
    release: str | None = None

    def __str__(self) -> str:
        of_release = "" if self.release is None else f" of {self.release}"
        return f"{self.shards} format {self.format}{of_release}"


def value(shards: int) -> str:
    """The guard of a new store with this number of shards."""
    return str(Layout(shards, FORMAT))


async def read(call: Call) -> str | None:
    """The guard's value, or None when it is missing. Raises redis-py's errors."""
    try:
        stored = await call("GET", SHARDS_KEY)
    except ResponseError as exc:
        if "WRONGTYPE" not in str(exc):
            raise
        return "a value of another type"
    return None if stored is None else str(stored.decode(errors="replace"))


async def write(call: Call, guard: str) -> str | None:
    """Write the guard if it is missing, and return what it is then. Raises redis-py's errors."""
    # NX: another service may write it at the same time, and the first one wins. That makes it harmless when it comes
    # late, after it was given up: a service with another number is refused.
    await call("SET", SHARDS_KEY, guard, "NX")
    return await read(call)


async def overwrite(call: Call, guard: str) -> str | None:
    """Replace the guard, and return what it is then. Raises redis-py's errors."""
    await call("SET", SHARDS_KEY, guard)
    return await read(call)


async def read_or_initialize(call: Call, shards: int, *, wait_s: float) -> str | None:
    """Read the guard at a service's start, and write it if it is still missing after `wait_s`."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + wait_s
    while (stored := await read(call)) is None and loop.time() < end_s:  # noqa: ASYNC110 (another process writes it)
        await asyncio.sleep(_POLL_S)
    return await write(call, value(shards)) if stored is None else stored


def layout_in(stored: str) -> Layout:
    """What a guard's value says.

    Raises:
        ValueError: this release cannot use the store; the message says why, as `mismatch`.
    """
    found = _VALUE.fullmatch(stored)
    if found is None:
        raise ValueError(
            f"has {stored} in its key {SHARDS_KEY}: set it to `N format {FORMAT}`, where N is the number of shards "
            "that the store was set up with"
        )
    layout = Layout(int(found[1]), int(found[2]), found[3])
    if layout.format > FORMAT:
        needed = "a later one" if layout.release is None else f"deferd {layout.release} or a later one"
        raise ValueError(
            f"holds data of format {layout.format}, but this release of deferd knows none above {FORMAT}: run {needed}"
        )
    if layout.format < OLDEST_FORMAT:
        raise ValueError(
            f"holds data of format {layout.format}, but this release of deferd knows none below {OLDEST_FORMAT}: first "
            "run the releases between, one after the other"
        )
    return layout


def format_in(stored: str) -> int | None:
    """The format that a guard names, known or not; None if it names none."""
    found = _VALUE.fullmatch(stored)
    return None if found is None else int(found[2])


def mismatch(stored: str, shards: int) -> str | None:
    """Why a store whose guard is `stored` cannot be used with `shards` shards, or None. It follows the store's name."""
    try:
        found = layout_in(stored).shards
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
