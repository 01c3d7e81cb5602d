"""A shard of the store that cannot be reached: one call at a time asks whether it is back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from deferd.contract.errors import StoreUnavailable
from deferd.engine.task_cancellation import cancel_and_wait

RETRY_S = 0.5
"""How long after a failed call the next one is sent, unless somebody asks for it sooner."""


class Outage:
    """Calls `probe` again and again until it does not raise StoreUnavailable; then `on_end`, once.

    `on_failure` is called with the error of each that does.
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
        self._asked_for = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="deferd-outage")

    def ask_now(self) -> None:
        """Do not wait any longer before the next call."""
        self._asked_for.set()

    async def end(self) -> None:
        """Stop asking; `on_end` is not called."""
        await cancel_and_wait({self._task})

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._asked_for.wait()
            self._asked_for.clear()
            try:
                await self._probe()
            except StoreUnavailable as error:
                self._on_failure(error)
            except Exception:  # noqa: BLE001 (the shard can be reached; whoever asks next learns what is wrong)
                break
            else:
                break
        self._on_end()
