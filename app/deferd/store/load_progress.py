"""How far a store has loaded its data after its start.

Until it has loaded all of it, it runs only a few commands, such as INFO.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from redis.exceptions import BusyLoadingError, RedisError

_log = logging.getLogger("deferd.store")

REPORT_INTERVAL_S = 5.0
"""How often the progress of a load is logged."""
_POLL_S = 0.25
_KEPT_S = 0.5
_LONGEST_RETRY_S = 10
_MIB = 1024 * 1024


class LoadProgress(NamedTuple):
    """Bytes loaded, bytes in all, and the seconds left at this rate, None while that is not known."""

    loaded: int
    total: int
    left_s: int | None

    @property
    def retry_after_s(self) -> int:
        """When to try again: before the estimated end, as the rate may change, but not every second of a long load."""
        return 1 if self.left_s is None else min(max(self.left_s // 2, 1), _LONGEST_RETRY_S)

    def __str__(self) -> str:
        """To follow `the store`."""
        percent = 100 * self.loaded / self.total if self.total else 0
        text = f"is loading its data: {percent:.0f} % of {self.total / _MIB:,.0f} MiB"
        return text if self.left_s is None else f"{text}, about {self.left_s} s left"


def progress_of(info: Mapping[str, Any]) -> LoadProgress | None:
    """The progress in the section Persistence of INFO; None when the store is not loading."""
    if not int(info.get("loading", 0)):
        return None
    loaded, total = int(info.get("loading_loaded_bytes", 0)), int(info.get("loading_total_bytes", 0))
    left_s = info.get("loading_eta_seconds") if loaded else None
    return LoadProgress(loaded, total, None if left_s is None else max(int(left_s), 0))


class LoadWatch:
    """Reads the progress of a load with `info`, which sends INFO; reads within half a second share one value."""

    def __init__(self, info: Callable[[str], Awaitable[Mapping[str, Any]]]) -> None:
        self._info = info
        self._progress: LoadProgress | None = None
        self._fresh_until_s = 0.0

    async def progress(self) -> LoadProgress | None:
        """The progress; None when the store is not loading, or does not tell."""
        clock = asyncio.get_running_loop().time
        if clock() >= self._fresh_until_s:
            self._fresh_until_s = clock() + _KEPT_S
            try:
                self._progress = progress_of(await self._info("persistence"))
            except (RedisError, OSError, ValueError):
                self._progress = None
        return self._progress


async def wait_until_loaded(ping: Callable[[], Awaitable[object]], watch: LoadWatch, place: str) -> None:
    """Wait, without a time limit, as long as a store that can be reached is loading its data; progress is logged.

    Other errors are for the caller's next call to find.
    """
    clock = asyncio.get_running_loop().time
    report_at_s = clock()
    while True:
        try:
            await ping()
        except BusyLoadingError:
            pass
        except (RedisError, OSError):
            return
        else:
            return
        if clock() >= report_at_s:
            report_at_s = clock() + REPORT_INTERVAL_S
            _log.info("%s %s", place, await watch.progress() or "is loading its data")
        await asyncio.sleep(_POLL_S)
