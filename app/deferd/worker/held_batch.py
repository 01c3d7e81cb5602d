"""Batches of jobs that this worker holds, for handlers that take several jobs in a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from deferd.contract.operations.jobs import Delivery
from deferd.worker.handlers import BatchContext, BatchHandler
from deferd.worker.held_job import HeldJob

_SHARE_OF_TIME_LIMIT = 0.5
"""A batch begins when this share of the time limit of one of its jobs has passed: the limit counts from the pop."""


class BatchedJob(HeldJob):
    """A job that is handled in a batch. A stop does not end the handler before all jobs of the batch are stopped."""

    __slots__ = ("batch",)
    handler: BatchHandler

    def __init__(
        self,
        job: Delivery,
        handler: BatchHandler,
        touch: Callable[[HeldJob], Awaitable[object]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(job, handler, touch, loop)
        self.batch: HeldBatch | None = None

    def cancel_task(self) -> None:
        """See HeldJob."""
        if self.batch is not None:
            self.batch.cancel_if_all_are_stopped()


class HeldBatch:
    """The jobs for one call of a handler. It waits for a slot, and occupies it, as a single HeldJob does.

    `received_s`: since when it waits. `context`: that of the call, with the jobs in `begun`.
    """

    def __init__(self, handler: BatchHandler, jobs: Sequence[BatchedJob], received_s: float) -> None:
        self.handler = handler
        self.jobs = jobs
        self.received_s = received_s
        self.context = BatchContext()
        self.begun: Sequence[BatchedJob] = ()
        self._task: asyncio.Task[None] | None = None
        for job in jobs:
            job.batch = self

    @property
    def settled(self) -> bool:
        """Whether no job needs a handler any more."""
        return all(job.settled for job in self.jobs)

    def start(self) -> None:
        """Occupy a slot."""
        for job in self.jobs:
            job.start()

    def runs_in(self, task: asyncio.Task[None]) -> None:
        """Keep the task of the handler."""
        self._task = task

    def begin(self, jobs: Sequence[BatchedJob]) -> None:
        """The handler begins, with these jobs."""
        self.begun = jobs
        self.context = self.handler.context_of(jobs)

    def ended(self) -> None:
        """The handler has ended and the slot is free."""
        self.begun = ()
        for job in self.jobs:
            job.ended()
            job.batch = None  # breaks the reference cycle

    def cancel_if_all_are_stopped(self) -> None:
        """Cancel the handler if no job needs it any more."""
        if self._task is not None and self.begun and all(job.stopped is not None for job in self.begun):
            self._task.cancel()


class _Open:
    """A batch that is not full."""

    def __init__(self) -> None:
        self.jobs: list[BatchedJob] = []
        self.timer: asyncio.TimerHandle | None = None


class OpenBatches:
    """Collects jobs, for each handler in one batch, and calls `on_closed` with each batch that is full or late."""

    def __init__(self, on_closed: Callable[[HeldBatch], None]) -> None:
        self._on_closed = on_closed
        self._open: dict[BatchHandler, _Open] = {}
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        """The number of jobs."""
        return sum(len(batch.jobs) for batch in self._open.values())

    def add(self, job: BatchedJob) -> None:
        """Add a job to the batch of its handler."""
        handler = job.handler
        batch = self._open.setdefault(handler, _Open())
        batch.jobs.append(job)
        if len(batch.jobs) >= handler.batch:
            self._close(handler)
            return
        wait_s = handler.within_s
        if (limit_s := job.job.time_limit) is not None:
            wait_s = min(wait_s, limit_s * _SHARE_OF_TIME_LIMIT)
        close_at_s = job.received_s + wait_s
        if batch.timer is None or close_at_s < batch.timer.when():
            if batch.timer is not None:
                batch.timer.cancel()
            batch.timer = self._loop.call_at(close_at_s, self._close, handler)

    def close(self) -> None:
        """Close all batches."""
        for handler in [*self._open]:
            self._close(handler)

    def _close(self, handler: BatchHandler) -> None:
        batch = self._open.pop(handler)
        if batch.timer is not None:
            batch.timer.cancel()
        if jobs := [job for job in batch.jobs if not job.settled]:
            self._on_closed(HeldBatch(handler, jobs, self._loop.time()))
