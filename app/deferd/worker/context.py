"""What a handler knows about its job."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Unpack

from deferd.client.put_options import PutOptions, put_fields
from deferd.contract.responses.jobs import Delivery
from deferd.worker.outcomes import check_count, checked_job


class Context:
    """The job that a handler works on, for handlers with a parameter of this type, and for middleware.

    `job` is the delivery: its topic, id, body, attempt and its other fields.
    """

    __slots__ = ("_loop", "_pid", "_puts", "_stopped", "_touch", "job")

    def __init__(
        self, job: Delivery, touch: Callable[[Any], Awaitable[object]], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.job = job
        self._touch = touch
        self._loop = loop
        self._pid = os.getpid()
        self._stopped: object = None
        self._puts: list[dict[str, Any]] = []

    def put(self, topic: str, body: Any = None, **options: Unpack[PutOptions]) -> None:
        """Put a job when this one is finished, in the same step: neither is done without the other.

        Nothing is sent now, and nothing is put if the handler fails. The arguments are those of `AsyncClient.put`;
        with those of a `Then` there may be 10 jobs. Their topics must be in the same shard of the store as this job's.
        If the service refuses them, the job is released with the reason.

        Raises:
            ValueError: there are more than 10 jobs.
            TypeError: an option is unknown.
            InvalidInput: a value is out of its bounds.
        """
        check_count(len(self._puts) + 1)
        self._puts.append(checked_job(put_fields(topic, body, options)))

    @property
    def puts(self) -> Sequence[dict[str, Any]]:
        """The jobs of `put` so far, as JSON objects."""
        return tuple(self._puts)

    @property
    def topic(self) -> str:
        """The topic of the job: it tells the topics that match a pattern apart."""
        return self.job.topic

    @property
    def tags(self) -> Sequence[str]:
        """The tags of the job; empty for a job without tags."""
        return self.job.tags

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the job; empty for a job without headers."""
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

        The worker extends leases by itself. Call this to learn of a cancel at once instead of within a second. No error
        is raised when the service does not respond.
        """
        await self._touch(self)
        return not self.cancelled

    def touch_from_thread(self) -> bool:
        """Like `touch`, from a plain handler: blocks until the service has responded, some seconds at most.

        Raises:
            RuntimeError: this process was forked by the handler.
        """
        if os.getpid() != self._pid:  # the event loop runs in the other process only
            raise RuntimeError("a process that a handler has forked cannot touch the job: do so in the handler")
        return asyncio.run_coroutine_threadsafe(self.touch(), self._loop).result()
