"""A job that this worker holds, from its pop until the service has its outcome or its delivery is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from deferd.client.spans import Process
from deferd.contract.operations.jobs import Delivery
from deferd.worker.handlers import Context, Handler
from deferd.worker.outcomes import Outcome

_REPORT_S = 1.0
_REPORT_SHARE = 0.1
"""How long before the end of a job's time limit its handler must end: this long, or this share of the limit."""


class Stop(Enum):
    """Why a running handler should end."""

    OVER = "the delivery is over"
    TIME_LIMIT = "the time limit has passed"
    SHUTDOWN = "the worker stops"


class HeldJob(Context):
    """A delivery and its progress.

    `running`: it occupies a slot, until its handler has ended. `began_s`: when its handler began, 0 before.
    `confirmed_s`: when the service last said that the lease is live. `settled`: the outcome is decided, and nothing
    that the handler still does changes it. `reported`: the service has the outcome, or the delivery is over.
    """

    __slots__ = (
        "_outcome_if_stopped",
        "_task",
        "_timer",
        "began_s",
        "confirmed_s",
        "handler",
        "process",
        "received_s",
        "reported",
        "running",
        "settled",
        "touch_at_s",
        "touching",
        "ttr_s",
    )

    def __init__(
        self,
        job: Delivery,
        handler: Handler,
        touch: Callable[..., Awaitable[object]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(job, touch, loop)
        self.handler = handler
        self.ttr_s = job.ttr
        self.received_s = self.confirmed_s = loop.time()
        self.touch_at_s = 0.0
        self.touching = False
        self.began_s = 0.0
        self.process: Process | None = None
        self.running = False
        self.settled = False
        self.reported = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._outcome_if_stopped: Outcome | None = None

    def start(self) -> None:
        """Occupy a slot."""
        self.running = True

    def begin(self, timer: asyncio.TimerHandle | None) -> None:
        """The handler begins; `timer` is that of its time limit."""
        self.began_s = self._loop.time()
        self._timer = timer

    @property
    def time_limit_s(self) -> float | None:
        """The shorter one of the time limits of the handler and the job."""
        limits = [limit for limit in (self.handler.time_limit_s, self.job.time_limit) if limit is not None]
        return min(limits, default=None)

    def time_left_s(self) -> float | None:
        """How long the handler, which begins now, may run; 0: it is too late to begin. None: any time.

        The service counts the job's time limit from the pop. The handler ends somewhat earlier, so that its release
        arrives before the lease ends.
        """
        left = [] if self.handler.time_limit_s is None else [self.handler.time_limit_s]
        if (limit_s := self.job.time_limit) is not None:
            report_s = min(limit_s * _REPORT_SHARE, _REPORT_S)
            left.append(max(self.received_s + limit_s - report_s - self._loop.time(), 0.0))
        return min(left, default=None)

    def runs_in(self, task: asyncio.Task[None]) -> None:
        """Keep the task of the handler, unless it has ended already."""
        if self.running:
            self._task = task

    def ended(self) -> None:
        """The handler has ended and its slot is free."""
        self.running = False
        self._task = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def stopped(self) -> Stop | None:
        """The first reason for which the handler was stopped, if it was."""
        return self._stopped if isinstance(self._stopped, Stop) else None

    def stop(self, why: Stop, outcome: Outcome | None) -> None:
        """Tell the handler to end; `outcome` then replaces its own."""
        if self._stopped is None:
            self._stopped = why
            self._outcome_if_stopped = outcome
            if self.handler.is_async:
                self.cancel_task()

    def cancel_task(self) -> None:
        """Cancel the task if it has begun: one that has not would end without running its first line."""
        if self._task is not None and self.began_s:
            self._task.cancel()

    def outcome(self, outcome: Outcome, error: BaseException | None) -> Outcome:
        """The outcome that counts after the handler has ended with this one.

        A handler that succeeds while the worker stops keeps its outcome.
        """
        if self._outcome_if_stopped is None or (self.stopped is Stop.SHUTDOWN and error is None):
            return outcome
        return self._outcome_if_stopped

    def facts(self, **more: Any) -> dict[str, Any]:
        """The `extra` of a log record."""
        return {"topic": self.job.topic, "job_id": self.job.id, "attempt": self.job.attempt, **more}

    def __str__(self) -> str:
        return f"job {self.job.id!r} of topic {self.job.topic!r} (attempt {self.job.attempt})"
