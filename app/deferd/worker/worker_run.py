"""One run of a worker, from its first pop to its last report: which jobs it holds and what happens to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from deferd.client import AsyncClient, Delivery
from deferd.client.spans import NO_PROCESS
from deferd.contract.errors import DeferdError, JobCancelled
from deferd.worker.fetcher import Fetcher
from deferd.worker.handler_threads import DaemonThreads
from deferd.worker.handlers import Middleware
from deferd.worker.held_job import HeldJob, Stop
from deferd.worker.lease_keeper import LeaseKeeper
from deferd.worker.log import LOG
from deferd.worker.outcomes import (
    Bury,
    Finish,
    IsFailure,
    Outcome,
    Reject,
    Release,
    Retry,
    Snooze,
    of_failure,
    of_value,
)
from deferd.worker.prefetch import Prefetch
from deferd.worker.reporter import Reporter
from deferd.worker.topic_handlers import TopicHandlers
from deferd.worker.topic_priority import TopicOrder

_CLEANUP_S = 2.0
"""How long a cancelled handler may clean up before its job is settled without it."""
_LAST_REPORTS_S = 5.0
_RETURNED_ON_STOP = Release(0, "the worker stopped")


@dataclass(frozen=True)
class WorkerSettings:
    """The checked arguments of a worker."""

    name: str
    handlers: TopicHandlers
    middleware: Sequence[Middleware]
    order: TopicOrder
    concurrency: int
    prefetch: int
    grace_s: float
    is_failure: IsFailure | None = None


class WorkerRun:
    """Runs handlers on the jobs that it fetches, until `stop` is set: from then on no handler starts."""

    def __init__(self, settings: WorkerSettings, client: AsyncClient, stop: asyncio.Event) -> None:
        self._settings = settings
        self._stopping = stop
        self._spans = client.spans
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[HeldJob] = deque()
        self._held: set[HeldJob] = set()
        self._busy = 0
        self._prefetch = Prefetch(settings.concurrency, settings.prefetch)
        self._handler_ended = asyncio.Event()
        self._threads = DaemonThreads(self._loop)
        self._leases = LeaseKeeper(client, self._on_delivery_over)
        self._reporter = Reporter(client, self._on_reported)
        self._fetcher = Fetcher(client, order=settings.order, consumer=settings.name, room=self._room, take=self._take)

    async def serve(self) -> int:
        """Work until the stop. Returns how many jobs could not be reported or released in time.

        When this is cancelled, handlers get no grace time.
        """
        fetching = self._fetcher.start()
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({fetching, stopped}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._shut_down(grace_s=0)
            raise
        finally:
            stopped.cancel()
        failed = fetching.done()
        left = await self._shut_down(self._settings.grace_s)
        if failed:
            await fetching
        return left

    # Fetched jobs

    def _room(self) -> int:
        """How many jobs to fetch: none until half of the prefetch is used, so that pops are not small."""
        if self._stopping.is_set():
            return 0
        prefetch = self._prefetch.count(self._busy)
        slots = self._settings.concurrency + prefetch
        unreported = len(self._held) - len(self._waiting) - self._busy
        # The same number again may be waiting for their reports, so that reports and pops overlap.
        free = slots - len(self._waiting) - self._busy - max(unreported - slots, 0)
        return free if free >= max(1, prefetch // 2) else 0

    def _take(self, deliveries: list[Delivery], old: bool) -> None:
        for delivery in deliveries:
            held = HeldJob(delivery, self._settings.handlers[delivery.topic], self._leases.touch, self._loop)
            self._held.add(held)
            self._leases.add(held, old=old)
            self._waiting.append(held)
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._waiting and self._busy < self._settings.concurrency and not self._stopping.is_set():
            held = self._waiting.popleft()
            if not held.settled:
                self._busy += 1
                left_s = held.time_left_s()
                timer = None if left_s is None else self._loop.call_later(left_s, self._on_time_limit, held)
                held.start(timer)  # before create_task: an eager task may end inside it
                held.runs_in(self._loop.create_task(self._run(held)))

    # Handlers

    async def _run(self, held: HeldJob) -> None:
        began_s = held.began_s = self._loop.time()
        error: BaseException | None = None
        outcome: Outcome
        process = held.process = self._spans.process(held.job, self._settings.name)
        try:
            outcome = of_value(await self._call(held), held.puts)
        except GeneratorExit:  # the loop was closed
            raise
        except BaseException as exc:  # noqa: BLE001 (no exception of a handler may lose its job or end the worker)
            outcome, error = of_failure(exc, held.job, self._settings.is_failure), exc
        if process is not NO_PROCESS:  # before the next job starts: its task inherits the context of this one
            process.end(*_end_of_process(held, outcome, error))
        run_s = self._prefetch.handler_ended(began_s)
        self._busy -= 1
        held.ended()
        if held.settled:
            self._forget_if_done(held)
        else:
            outcome = held.outcome(outcome, error)
            _log_outcome(held, outcome, error, run_s)
            self._settle(held, outcome)
        error = None  # breaks the reference cycle with this frame
        self._start_waiting()
        self._handler_ended.set()
        self._fetcher.room_changed()

    async def _call(self, held: HeldJob) -> Any:
        if held.stopped is not None:  # after its start, before this task ran
            raise asyncio.CancelledError
        return await held.handler.call(held, self._settings.middleware, self._threads.run)

    # Ends of handlers and deliveries

    def _on_time_limit(self, held: HeldJob) -> None:
        self._stop(held, Stop.TIME_LIMIT, Release(None, f"the time limit of {held.time_limit_s:g} s has passed"))

    def _stop(self, held: HeldJob, why: Stop, outcome: Outcome) -> None:
        """Stop a handler. An async one gets some time to clean up; the job of a plain one is settled at once."""
        held.stop(why, outcome)
        if held.handler.is_async:
            self._loop.call_later(_CLEANUP_S, self._settle_without_handler, held)
        else:
            self._settle_without_handler(held)

    def _settle_without_handler(self, held: HeldJob) -> None:
        """Settle the job of a stopped handler that still runs."""
        if held.running and not held.settled:
            outcome = held.outcome(_RETURNED_ON_STOP, asyncio.CancelledError())
            _log_outcome(held, outcome, None, self._loop.time() - (held.began_s or 0))
            self._settle(held, outcome)

    def _on_delivery_over(self, held: HeldJob, error: DeferdError) -> None:
        """The service says that a delivery is over. If its report is in flight, the response to that decides."""
        if held.settled:
            return
        if isinstance(error, JobCancelled):
            LOG.info("%s was cancelled", held, extra=held.facts(code=error.code))
        else:
            text = "%s is no longer held by this worker: %s"
            LOG.warning(text, held, error, extra=held.facts(code=error.code))
        held.stop(Stop.OVER, None)
        held.settled = True
        self._on_reported(held)

    def _settle(self, held: HeldJob, outcome: Outcome) -> None:
        held.settled = True
        self._reporter.report(held, outcome)

    def _on_reported(self, held: HeldJob) -> None:
        held.reported = True
        self._leases.drop(held)
        self._forget_if_done(held)

    def _forget_if_done(self, held: HeldJob) -> None:
        if held.reported and not held.running:
            self._held.discard(held)
            self._fetcher.room_changed()

    # Shutdown

    async def _shut_down(self, grace_s: float) -> int:
        """End within `grace_s`, plus some seconds for cancelled handlers and the last reports."""
        self._stopping.set()
        end_s = self._loop.time() + grace_s
        try:
            await self._fetcher.stop()
            for held in self._waiting:
                if not held.settled:
                    self._settle(held, _RETURNED_ON_STOP)
            self._waiting.clear()
            await self._until(lambda: self._busy == 0, end_s)
            for held in self._still_running():
                self._stop(held, Stop.SHUTDOWN, _RETURNED_ON_STOP)
            await self._until(lambda: all(held.settled for held in self._still_running()), end_s + _CLEANUP_S)
            for held in self._still_running():
                self._settle_without_handler(held)
            await self._reporter.wait_until_done(max(end_s - self._loop.time(), 0) + _LAST_REPORTS_S)
            return sum(not held.reported for held in self._held)
        finally:
            await self._leases.close()
            await self._reporter.close()
            self._threads.close()
            for held in self._still_running():
                held.cancel_task()

    def _still_running(self) -> list[HeldJob]:
        return [held for held in self._held if held.running]

    async def _until(self, holds: Callable[[], bool], end_s: float) -> None:
        while not holds() and (left_s := end_s - self._loop.time()) > 0:
            self._handler_ended.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._handler_ended.wait(), left_s)


def _end_of_process(held: HeldJob, outcome: Outcome, error: BaseException | None) -> tuple[str, BaseException | None]:
    """How a process ended, for its span: a word for the outcome, and the error if the attempt failed."""
    if held.stopped is Stop.OVER:
        return "lost", None
    outcome = held.outcome(outcome, error)
    if isinstance(outcome, Finish):
        return "finish", None
    if held.stopped is Stop.TIME_LIMIT:
        error = TimeoutError(outcome.error)
    failed = error or RuntimeError(outcome.error)
    if isinstance(outcome, Bury):
        return "bury", failed
    return ("release", failed) if outcome.counts else ("snooze", None)


def _log_outcome(held: HeldJob, outcome: Outcome, error: BaseException | None, run_s: float) -> None:
    """Log the outcome of a handler."""
    if isinstance(outcome, Finish):
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("%s is finished after %.3f s", held, run_s, extra=held.facts(seconds=round(run_s, 3)))
        return
    verb = "is buried" if isinstance(outcome, Bury) else "is released" if outcome.counts else "is snoozed"
    facts = held.facts(seconds=round(run_s, 3), error=outcome.error)
    expected = held.stopped is not None or error is None or isinstance(error, Reject | Retry | Snooze)
    level = logging.INFO if isinstance(error, Retry | Snooze) or held.stopped is Stop.SHUTDOWN else logging.WARNING
    reason = outcome.error or "requested by the handler"
    LOG.log(level, "%s %s: %s", held, verb, reason, extra=facts, exc_info=None if expected else error)
