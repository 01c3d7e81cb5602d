"""One job that this worker has, from its pop to the service's word that the delivery is over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any

from deferd.client.jobs import Delivery
from deferd.worker.context import Context
from deferd.worker.handlers import Handler
from deferd.worker.outcomes import Outcome


class Stop(Enum):
    """Why a handler that runs should end."""

    OVER = "the delivery is over"
    TIME_LIMIT = "the time limit has passed"
    SHUTDOWN = "the worker stops"


class Held(Context):
    """A delivery and how far it is.

    `running`: its handler has its place, until it has ended. `settled`: what becomes of the job is decided, and
    nothing that the handler still does changes that. `reported`: the service has heard it, or has said that the
    delivery is over.
    """

    __slots__ = (
        "_outcome_if_stopped",
        "_task",
        "_timer",
        "began_s",
        "handler",
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
        touch: Callable[[Held], Awaitable[None]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(job, touch, loop)
        self.handler = handler
        self.ttr_s = job.ttr
        self.touch_at_s = 0.0
        self.touching = False
        self.began_s: float | None = None
        self.running = False
        self.settled = False
        self.reported = False
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._outcome_if_stopped: Outcome | None = None

    def take_place(self, timer: asyncio.TimerHandle | None) -> None:
        """It has its place; `timer` is that of its time limit."""
        self.running = True
        self._timer = timer

    def runs_in(self, task: asyncio.Task[None]) -> None:
        """The task that runs it, unless that has ended already."""
        if self.running:
            self._task = task

    def ended(self) -> None:
        """It has its place no more."""
        self.running = False
        self._task = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def stopped(self) -> Stop | None:
        """Why the handler was told to end, the first time, if it was."""
        return self._stopped if isinstance(self._stopped, Stop) else None

    def stop(self, why: Stop, outcome: Outcome | None) -> None:
        """Tell the handler to end, and what then counts in place of how it ends."""
        if self._stopped is None:
            self._stopped = why
            self._outcome_if_stopped = outcome
            if self.handler.is_async:
                self.cut_off()

    def cut_off(self) -> None:
        """Cancel the task, if it has begun: a task that has not would end without having run a line."""
        if self._task is not None and self.began_s is not None:
            self._task.cancel()

    def outcome(self, outcome: Outcome, error: BaseException | None) -> Outcome:
        """What counts, when the handler ended with this: a worker that stops is glad of one that is done yet."""
        if self._outcome_if_stopped is None or (self.stopped is Stop.SHUTDOWN and error is None):
            return outcome
        return self._outcome_if_stopped

    def facts(self, **more: Any) -> dict[str, Any]:
        """For the `extra` of a log record."""
        return {"topic": self.job.topic, "job_id": self.job.id, "attempt": self.job.attempt, **more}

    def __str__(self) -> str:
        return f"job {self.job.id!r} of topic {self.job.topic!r} (attempt {self.job.attempt})"
