"""A share of the process for each key: one long computation at a time. Further ones of the key wait, up to a bound.

What computes ends its slices (`deferd.engine.time_slice`), so other requests are served meanwhile; the share keeps one
key from making the computations of all others wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from deferd.contract import limits
from deferd.contract.errors import RateLimited


@dataclass(slots=True)
class _Share:
    """The share of one key. `requests` are its requests that compute or wait."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    requests: int = 0


class Computations:
    """The long computations of a process, by the name of the key, or None without keys."""

    def __init__(self) -> None:
        self._of_key: dict[str | None, _Share] = {}
        """Only keys with computations."""

    @asynccontextmanager
    async def share_of(self, key_name: str | None) -> AsyncIterator[None]:
        """Around a long computation.

        Raises:
            RateLimited: as many others of the key wait already as may.
        """
        share = self._of_key.setdefault(key_name, _Share())
        if share.requests > limits.WAITING_COMPUTATIONS_MAX:
            text = f"{limits.WAITING_COMPUTATIONS_MAX} requests wait already for the long computation of another one"
            raise RateLimited(text if key_name is None else f"{text} with key {key_name!r}")
        share.requests += 1
        try:
            async with share.lock:
                yield
        finally:
            share.requests -= 1
            if not share.requests:
                del self._of_key[key_name]
