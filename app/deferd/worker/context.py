"""What a handler knows about its job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from deferd.client.jobs import Delivery


class Context:
    """The job that a handler works on, for handlers with a parameter of this type, and for middleware.

    `job` is the delivery: its topic, id, body, attempt and its other fields.
    """

    __slots__ = ("_loop", "_stopped", "_touch", "job")

    def __init__(self, job: Delivery, touch: Callable[[Any], Awaitable[None]], loop: asyncio.AbstractEventLoop) -> None:
        self.job = job
        self._touch = touch
        self._loop = loop
        self._stopped: object = None

    @property
    def topic(self) -> str:
        """The topic of the job: it tells the topics that match a pattern apart."""
        return self.job.topic

    @property
    def tags(self) -> Sequence[str]:
        """The tags of the job; empty for a job without any."""
        return self.job.tags

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the job; empty for a job without any."""
        return self.job.headers

    @property
    def cancelled(self) -> bool:
        """Whether the handler should end.

        True when the job was cancelled, its lease was lost, its time limit has passed, or the worker stops. An async
        handler also gets CancelledError; a plain one should check this now and then.
        """
        return self._stopped is not None

    async def touch(self) -> bool:
        """Extend the lease now, from an async handler. Returns False if the handler should end.

        The worker extends leases by itself. Call this to learn of a cancel at once instead of within half a ttr. No
        error is raised when the service does not respond.
        """
        await self._touch(self)
        return not self.cancelled

    def touch_from_thread(self) -> bool:
        """Like `touch`, from a plain handler: blocks until the service has responded, some seconds at most."""
        return asyncio.run_coroutine_threadsafe(self.touch(), self._loop).result()
