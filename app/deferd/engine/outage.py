"""The outage of a shard: one call at a time tests whether the shard is back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from deferd.contract.errors import StoreUnavailable
from deferd.store.task_cancellation import cancel_and_wait

RETRY_S = 0.5
"""The pause after a failed probe, unless `probe_now` cuts it short."""


class Outage:
    """Calls `probe` until it no longer raises StoreUnavailable; then `on_end`, once.

    `on_failure` is called with the error of each failed probe.
    """

    def __init__(
        self,
        probe: Callable[[], Awaitable[object]],
        *,
        on_failure: Callable[[StoreUnavailable], None],
        on_end: Callable[[], None],
    ) -> None:
        self._probe = probe
        self._on_failure = on_failure
        self._on_end = on_end
        self._probe_requested = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="deferd-outage")

    def probe_now(self) -> None:
        """Send the next probe without waiting any longer."""
        self._probe_requested.set()

    async def end(self) -> None:
        """Stop probing; `on_end` is not called."""
        await cancel_and_wait({self._task})

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._probe_requested.wait()
            self._probe_requested.clear()
            try:
                await self._probe()
            except StoreUnavailable as error:
                self._on_failure(error)
            except Exception:  # noqa: BLE001 (the shard can be reached; the next call raises what is wrong)
                break
            else:
                break
        self._on_end()
