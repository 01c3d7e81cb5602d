"""The store's clock as this process knows it: for due times, and for requests that name an instant."""

from __future__ import annotations

import asyncio
import time
from math import inf

from deferd.contract.clocks import RemoteClock
from deferd.contract.errors import StoreUnavailable, TooLate
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.store.task_cancellation import forget_error

_TRUSTED_FOR_S = 10.0
_NEVER_READ = (0.0, float("-inf"))


class StoreClock:
    """The time of each shard's clock, by which due times are computed here as scripts do it there.

    `is_movable`: tests may move it at any time, so it is always read.
    """

    def __init__(self, scripts: Scripts, keys: Keys, *, is_movable: bool = False) -> None:
        self._scripts = scripts
        self._keys = keys
        self._trusted_for_s = 0.0 if is_movable else _TRUSTED_FOR_S
        self._offsets_ms: dict[int, tuple[float, float]] = {}
        """By shard: how far it is ahead of the host's monotonic clock, and until when that is trusted."""

    async def now_ms(self, shard: int) -> int:
        """The time in ms since the epoch, exact to half a round trip.

        Raises:
            StoreUnavailable: it has not been read for 10 s, and the store cannot be reached.
        """
        if (trusted_ms := self.trusted_ms(shard)) is not None:
            return trusted_ms
        before_s = time.monotonic()
        now_ms: int = await self._scripts.run("now", (self._keys.of_shard(shard, "due"),), ())
        after_s = time.monotonic()
        self._offsets_ms[shard] = now_ms - (before_s + after_s) * 500, after_s + self._trusted_for_s
        return now_ms

    def trusted_ms(self, shard: int) -> int | None:
        """As `now_ms`; None if it must be read."""
        offset_ms, until_s = self._offsets_ms.get(shard, _NEVER_READ)
        now_s = time.monotonic()
        return int(now_s * 1000 + offset_ms) if now_s < until_s else None


_SLOW_S = 0.25
_TRUSTED_IF_SLOW_FOR_S = 1.0
"""A reading that took longer than _SLOW_S is inexact by as much: it is used for so long."""
_MS_PER_S = 1001
"""The most by which the store's clock advances in a second of the host's: see RemoteClock."""


class RequestClock:
    """The clock by which requests say until when they may have an effect: the store's, so that all replicas share it.

    A client learns it from responses, which never say more than it shows, and the service takes it to show the most
    that it may: so the instant passes here before the client gives the request up.

    It is the clock of the first shard; while that is away, of another one. It is read when a request with an instant
    comes and it has not been read for 10 s. Tests that move the clock of jobs do not move this one.
    """

    def __init__(self, scripts: Scripts, keys: Keys) -> None:
        self._scripts = scripts
        self._keys = keys
        self._shards = list(range(keys.shards))
        self._least = RemoteClock()
        self._read_ms = 0
        self._asked_at_s = 0.0
        self._trusted_until_s = -inf
        self._reading: asyncio.Task[None] | None = None

    @property
    def is_trusted(self) -> bool:
        """Whether it need not be read."""
        return time.monotonic() < self._trusted_until_s

    def least_ms(self) -> int:
        """What it shows, or a little less; 0 if it has never been read."""
        return self._least.at(time.monotonic()) if self._read_ms else 0

    def left_s(self, not_after_ms: int) -> float:
        """The time until an instant, or a little less; for a clock that was read."""
        return (not_after_ms - self._read_ms - (time.monotonic() - self._asked_at_s) * _MS_PER_S) / 1000

    async def end_s(self, not_after_ms: int) -> float:
        """When, on the event loop's clock, a request ends that may have no effect from `not_after_ms` on.

        Raises:
            TooLate: that is over.
            StoreUnavailable: the clock cannot be read.
        """
        if not self.is_trusted:
            await self._read()
        left_s = self.left_s(not_after_ms)
        if left_s <= 0:
            raise TooLate
        return asyncio.get_running_loop().time() + left_s

    async def _read(self) -> None:
        """Read it, once for all who wait."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read_any_shard())
            self._reading.add_done_callback(self._on_read)
        await asyncio.shield(self._reading)

    def _on_read(self, reading: asyncio.Task[None]) -> None:
        self._reading = None
        forget_error(reading)  # those who wait raise it

    async def _read_any_shard(self) -> None:
        for at, shard in enumerate(self._shards):
            try:
                await self._read_shard(shard)
            except StoreUnavailable:
                if at == len(self._shards) - 1:
                    raise
            else:
                if at:  # the ones before it are away: do not wait for them each time
                    self._shards = self._shards[at:] + self._shards[:at]
                return

    async def _read_shard(self, shard: int) -> None:
        asked_at_s = time.monotonic()
        now_ms: int = await self._scripts.run("clock", (self._keys.of_shard(shard, "due"),), ())
        self._least.note_ms(now_ms)
        self._read_ms, self._asked_at_s = now_ms, asked_at_s
        read_at_s = time.monotonic()
        is_slow = read_at_s - asked_at_s > _SLOW_S
        self._trusted_until_s = read_at_s + (_TRUSTED_IF_SLOW_FOR_S if is_slow else _TRUSTED_FOR_S)
