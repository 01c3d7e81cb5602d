"""One run of a worker, from its first pop to its last report: the jobs that it holds and what happens to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from deferd.client import AsyncClient, Delivery, Undecryptable
from deferd.client.spans import NO_PROCESS
from deferd.contract.errors import DeferdError, JobCancelled
from deferd.worker.fetcher import Fetcher, TopicOrder
from deferd.worker.handler_threads import DaemonThreads, exit_in_child
from deferd.worker.handlers import BatchHandler, InvalidBody, JobEnd, Middleware, TopicHandlers
from deferd.worker.held_batch import BatchedJob, HeldBatch, OpenBatches
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
    Return,
    Snooze,
    of_failure,
    of_value,
)
from deferd.worker.reporter import Reporter

_CLEANUP_S = 2.0
"""How long a cancelled handler may clean up before its job is settled without it."""
_LAST_REPORTS_S = 5.0
_WAIT_S = 1.0
"""How long a prefetched job may wait for a slot. Then all waiting jobs are returned, because another worker may be
idle."""
_AHEAD_S = 0.25
"""How far ahead of their start jobs are fetched."""
_CONFIRMED_S = _AHEAD_S
"""If the lease of a job was confirmed longer ago, it is confirmed again before its handler begins."""
_MEAN_WEIGHT = 0.1
_RELEASED_ON_STOP = Release(0, "the worker stopped")


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
        self._is_encrypted = client.cipher is not None
        self._loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._waiting: deque[HeldJob | HeldBatch] = deque()
        self._open_batches = OpenBatches(self._on_batch_closed)
        self._jobs_per_call = settings.handlers.jobs_per_call
        self._take_batches = settings.handlers.take_batches
        self._wait_timer: asyncio.TimerHandle | None = None
        self._held: set[HeldJob] = set()
        self._busy = 0
        self._prefetch = _Prefetch(settings.concurrency, settings.prefetch // self._jobs_per_call)
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
        """How many jobs to fetch: none until half of the prefetch is used, to avoid small pops."""
        if self._stopping.is_set():
            return 0
        prefetch = self._prefetch.count(self._busy)
        slots = self._settings.concurrency + prefetch
        free = slots - len(self._waiting) - self._busy
        jobs = free
        if self._jobs_per_call > 1:  # those that wait for their batches to be full have a place
            jobs = max(free * self._jobs_per_call - len(self._open_batches), free)
        # The same number again may be waiting for their reports, so that reports and pops overlap.
        jobs -= max(self._unreported() - slots * self._jobs_per_call, 0)
        return jobs if jobs >= max(1, prefetch // 2) else 0

    def _unreported(self) -> int:
        """How many jobs wait for their reports; about, where no handler takes batches."""
        if self._take_batches:
            return sum(held.settled and not held.running for held in self._held)
        return len(self._held) - len(self._waiting) - self._busy

    def _take(self, deliveries: list[Delivery], old: bool) -> None:
        for delivery in deliveries:
            handler = self._settings.handlers[delivery.topic]
            held: HeldJob
            if isinstance(handler, BatchHandler):
                held = BatchedJob(delivery, handler, self._leases.touch, self._loop)
            else:
                held = HeldJob(delivery, handler, self._leases.touch, self._loop)
            self._held.add(held)
            self._leases.add(held, old=old)
            if isinstance(held, BatchedJob):
                self._open_batches.add(held)
            else:
                self._waiting.append(held)
        self._start_waiting()

    def _on_batch_closed(self, batch: HeldBatch) -> None:
        self._waiting.append(batch)
        self._start_waiting()
        self._fetcher.room_changed()

    def _start_waiting(self) -> None:
        self._return_late()
        while self._waiting and self._busy < self._settings.concurrency and not self._stopping.is_set():
            held = self._waiting.popleft()
            if not held.settled:
                self._busy += 1
                held.start()  # before create_task: an eager task may end inside it
                run = self._run_batch(held) if isinstance(held, HeldBatch) else self._run(held)
                held.runs_in(self._loop.create_task(run))
        if self._waiting and self._wait_timer is None:
            self._wait_timer = self._loop.call_at(self._waiting[0].received_s + _WAIT_S, self._on_wait_over)

    def _on_wait_over(self) -> None:
        self._wait_timer = None
        self._start_waiting()

    def _return_late(self) -> None:
        """Return the waiting jobs if the first of them has waited too long: the others are behind it."""
        if self._waiting and self._loop.time() - self._waiting[0].received_s >= _WAIT_S:
            self._return_waiting(Return("no slot was free"))

    def _return_waiting(self, outcome: Return) -> None:
        for waiting in self._waiting:
            for held in waiting.jobs if isinstance(waiting, HeldBatch) else (waiting,):
                if not held.settled:
                    self._settle(held, outcome)
        self._waiting.clear()

    # Handlers

    async def _run(self, held: HeldJob) -> None:
        """Run the handler of a job, and settle the job. A handler that must not begin any more does not."""
        if self._begins(held, is_live=not self._is_doubtful(held) or await self._leases.touch(held)):
            await self._work_on(held)
        held.ended()
        self._forget_if_done(held)
        self._on_slot_free()

    async def _run_batch(self, batch: HeldBatch) -> None:
        """As `_run`, for one call of a handler with those jobs of a batch that may begin."""
        doubtful = [held for held in batch.jobs if self._is_doubtful(held)]
        lost = set(doubtful) - await self._leases.confirm(doubtful) if doubtful else ()
        if jobs := [held for held in batch.jobs if self._begins(held, is_live=held not in lost)]:
            batch.begin(jobs)
            await self._work_on_batch(batch)
        batch.ended()
        for held in batch.jobs:
            self._forget_if_done(held)
        self._on_slot_free()

    def _on_slot_free(self) -> None:
        self._busy -= 1
        self._start_waiting()
        self._handler_ended.set()
        self._fetcher.room_changed()

    def _is_doubtful(self, held: HeldJob) -> bool:
        """Whether a job has waited for some time.

        It may have been cancelled, or its lease may have ended with its deadline. Only the service knows.
        """
        return self._loop.time() - held.confirmed_s > _CONFIRMED_S

    def _begins(self, held: HeldJob, *, is_live: bool) -> bool:
        """Whether the handler of a job that has a slot begins. A job that must not begin any more is returned."""
        left_s = held.time_left_s()
        if not is_live:
            why = "its lease could not be confirmed"
        elif held.stopped is not None or self._stopping.is_set():
            why = "the worker stops"
        elif left_s == 0:
            why = "its time limit has passed"
        else:
            held.begin(None if left_s is None else self._loop.call_later(left_s, self._on_time_limit, held))
            return True
        if not held.settled:
            self._settle(held, Return(why))
        return False

    async def _work_on(self, held: HeldJob) -> None:
        task = asyncio.current_task()
        error: BaseException | None = None
        outcome: Outcome
        process = held.process = self._spans.process(held.job, self._settings.name)
        try:
            outcome = of_value(await self._call(held), held.puts)
        except BaseException as exc:
            if asyncio.current_task(self._loop) is not task:  # the loop was closed, and this coroutine with it
                raise
            exit_in_child(self._pid, exc)
            error = self._shown(exc)
            outcome = of_failure(error, held.job, self._settings.is_failure)
        exit_in_child(self._pid, None)
        if process is not NO_PROCESS:  # before the next job starts: its task inherits the context of this one
            process.end(*_end_of_process(held, outcome, error))
        run_s = self._prefetch.handler_ended(held.began_s)
        if not held.settled:
            outcome = held.outcome(outcome, error)
            _log_outcome(held, outcome, error, run_s)
            self._settle(held, outcome)
        error = None  # breaks the reference cycle with this frame

    async def _work_on_batch(self, batch: HeldBatch) -> None:
        task = asyncio.current_task()
        error: BaseException | None = None
        # Each process is the current span in a context of its own, and the handler, which works on all jobs, has none.
        processes = [(held, copy_context()) for held in batch.begun]
        for held, context in processes:
            held.process = context.run(self._spans.process, held.job, self._settings.name)
        try:
            if len(batch.context):  # there is a valid body
                await batch.handler.call(batch.context, self._settings.middleware, self._threads.run)
        except BaseException as exc:
            if asyncio.current_task(self._loop) is not task:  # the loop was closed, and this coroutine with it
                raise
            exit_in_child(self._pid, exc)
            error = exc
        exit_in_child(self._pid, None)
        run_s = self._prefetch.handler_ended(batch.begun[0].began_s)
        logged: BaseException | None = None
        for held, context in processes:
            outcome, own_error = self._outcome_in(batch.context.end_of(held) or JobEnd(None, error), held)
            if held.process is not None and held.process is not NO_PROCESS:
                context.run(held.process.end, *_end_of_process(held, outcome, own_error))
            if not held.settled:
                outcome = held.outcome(outcome, own_error)
                _log_outcome(held, outcome, own_error, run_s, with_traceback=own_error is not logged)
                logged = own_error
                self._settle(held, outcome)
        error = logged = own_error = None  # breaks the reference cycles with this frame

    def _outcome_in(self, end: JobEnd, held: HeldJob) -> tuple[Outcome, BaseException | None]:
        if end.error is not None:
            error = self._shown(end.error)
            return of_failure(error, held.job, self._settings.is_failure), error
        return of_value(end.value, held.puts), None

    async def _call(self, held: HeldJob) -> Any:
        return await held.handler.call(held, self._settings.middleware, self._threads.run)

    def _shown(self, error: BaseException) -> BaseException:
        """An error of a handler for the service and the log, which must not have values of an encrypted body."""
        return error.without_values() if self._is_encrypted and isinstance(error, InvalidBody) else error

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
        if not held.running or held.settled:
            return
        if not held.began_s:
            self._settle(held, Return("the worker stops"))
        else:
            outcome: Outcome = _RELEASED_ON_STOP
            error: BaseException | None = asyncio.CancelledError()
            if isinstance(held, BatchedJob) and held.batch is not None and (end := held.batch.context.end_of(held)):
                outcome, error = self._outcome_in(end, held)
            outcome = held.outcome(outcome, error)
            _log_outcome(held, outcome, None, self._loop.time() - held.began_s)
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

    def _settle(self, held: HeldJob, outcome: Outcome | Return) -> None:
        held.settled = True
        if isinstance(outcome, Return):
            LOG.debug("%s is returned: %s", held, outcome.why)
            self._leases.drop(held)  # it comes back by itself when the service cannot be reached
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
            await self._fetcher.stop(grace_s)
            self._open_batches.close()
            self._return_waiting(Return("the worker stops"))
            await self._until(lambda: self._busy == 0, end_s)
            for held in self._still_running():
                self._stop(held, Stop.SHUTDOWN, _RELEASED_ON_STOP)
            await self._until(lambda: all(held.settled for held in self._still_running()), end_s + _CLEANUP_S)
            for held in self._still_running():
                self._settle_without_handler(held)
            await self._reporter.wait_until_done(max(end_s - self._loop.time(), 0) + _LAST_REPORTS_S)
            return sum(not held.reported for held in self._held)
        finally:
            if self._wait_timer is not None:
                self._wait_timer.cancel()
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


def _log_outcome(
    held: HeldJob, outcome: Outcome, error: BaseException | None, run_s: float, *, with_traceback: bool = True
) -> None:
    """Log the outcome of a handler."""
    if isinstance(outcome, Finish):
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("%s is finished after %.3f s", held, run_s, extra=held.facts(seconds=round(run_s, 3)))
        return
    verb = "is buried" if isinstance(outcome, Bury) else "is released" if outcome.counts else "is snoozed"
    facts = held.facts(seconds=round(run_s, 3), error=outcome.error)
    is_plain = isinstance(error, Reject | Retry | Snooze | Undecryptable | None)
    expected = held.stopped is not None or not with_traceback or is_plain
    level = logging.INFO if isinstance(error, Retry | Snooze) or held.stopped is Stop.SHUTDOWN else logging.WARNING
    reason = outcome.error or "requested by the handler"
    LOG.log(level, "%s %s: %s", held, verb, reason, extra=facts, exc_info=None if expected else error)


class _Prefetch:
    """Limits prefetched jobs to those that will start within 0.25 s: others could start earlier at another worker.

    Judges by a moving average of the run times of handlers.
    """

    def __init__(self, concurrency: int, limit: int) -> None:
        self._concurrency = concurrency
        self._limit = limit
        self._mean_run_s: float | None = None
        self._last_end_s = float("-inf")
        self._loop = asyncio.get_running_loop()

    def handler_ended(self, began_s: float) -> float:
        """Count a handler that began at this time of the loop and ends now; returns how long it ran."""
        self._last_end_s = self._loop.time()
        run_s = self._last_end_s - began_s
        if self._mean_run_s is None:
            self._mean_run_s = run_s
        else:
            self._mean_run_s += _MEAN_WEIGHT * (run_s - self._mean_run_s)
        return run_s

    def count(self, busy: int) -> int:
        """How many jobs may wait in the worker while `busy` handlers run."""
        stuck = busy >= self._concurrency and self._loop.time() - self._last_end_s > _AHEAD_S
        if self._mean_run_s is None or stuck:
            return 0
        return int(min(self._limit, self._concurrency * _AHEAD_S / max(self._mean_run_s, 1e-6)))
