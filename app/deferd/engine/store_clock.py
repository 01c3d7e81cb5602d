"""The store's clock, as it is read beside the host's: what is computed here counts from the store's time, as there."""

from __future__ import annotations

import time

from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts

_TRUSTED_FOR_S = 10.0
_NEVER_READ = (0.0, float("-inf"))


class StoreClock:
    """The time of each shard's clock. `is_movable`: tests may move it at any time, so it is always read."""

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
