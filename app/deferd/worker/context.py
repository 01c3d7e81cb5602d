"""What a handler sees of the job in hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from deferd.client.jobs import Delivery


class Context:
    """The job in hand, for handlers with a parameter annotated so, and for middleware.

    `job` is the delivery: its topic, id, body, attempt and the rest of its fields.
    """

    __slots__ = ("_loop", "_stopped", "_touch", "job")

    def __init__(self, job: Delivery, touch: Callable[[Any], Awaitable[None]], loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self._touch = touch
        self._loop = loop
        self._stopped: object = None

    @property
    def cancelled(self) -> bool:
        """Whether the handler should end, since what it does is in vain.

        The job was cancelled, its lease was lost, its time limit has passed, or the worker stops. An async handler gets
        CancelledError besides; a plain one should look here now and then.
        """
        return self._stopped is not None

    async def touch(self) -> bool:
        """Extend the lease now, for async handlers; False when there is no point in going on.

        The worker extends leases by itself: this is for hearing of a cancel at once, not within half a ttr. When the
        service does not answer nothing is learned, and that is no error.
        """
        await self._touch(self)
        return not self.cancelled

    def touch_from_thread(self) -> bool:
        """As `touch`, for plain handlers: blocks until the service has answered, some seconds at most."""
        return asyncio.run_coroutine_threadsafe(self.touch(), self._loop).result()
