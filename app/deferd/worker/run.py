"""One run of a worker, from its first pop to its last report: who holds what, and what happens to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deferd.client import AsyncClient, Delivery
from deferd.client.idempotency import TRACEPARENT
from deferd.contract.errors import DeferdError, JobCancelled
from deferd.worker.fetching import Fetcher
from deferd.worker.handler_threads import DaemonThreads
from deferd.worker.handlers import Handler, Middleware
from deferd.worker.held_job import Held, Stop
from deferd.worker.leases import LeaseKeeper
from deferd.worker.outcomes import Finish, Outcome, Reject, Release, Retry, of_error, of_value
from deferd.worker.reporting import Reporter
from deferd.worker.topic_priority import Order
from deferd.worker.transient_errors import LOG

_AHEAD_S = 0.25
_MEAN_WEIGHT = 0.1
_AFTER_CANCEL_S = 2.0
_LAST_REPORTS_S = 5.0
_GIVEN_BACK = Release(0, "the worker stopped")


@dataclass(frozen=True)
class Settings:
    """What a worker was made with."""

    name: str
    handlers: Mapping[str, Handler]
    middleware: Sequence[Middleware]
    order: Order
    concurrency: int
    prefetch: int
    grace_s: float


class Running:
    """Runs handlers on what the service hands out."""

    def __init__(self, settings: Settings, client: AsyncClient) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Held] = deque()
        self._in_hand: set[Held] = set()
        self._busy = 0
        self._mean_s: float | None = None
        self._last_end_s = float("-inf")
        self._stopping = False
        self._handler_ended = asyncio.Event()
        self._threads = DaemonThreads(self._loop)
        self._leases = LeaseKeeper(client, self._on_over)
        self._reporter = Reporter(client, self._on_reported)
        self._fetcher = Fetcher(client, order=settings.order, consumer=settings.name, room=self._room, take=self._take)

    async def serve(self, stop: asyncio.Event) -> int:
        """Work until `stop` is set; returns how many jobs could not be reported or given back in time.

        When it is cancelled, handlers get no grace.
        """
        fetching = self._fetcher.start()
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait({fetching, stopped}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self._wind_up(grace_s=0)
            raise
        finally:
            stopped.cancel()
        failed = fetching.done()
        left = await self._wind_up(self._settings.grace_s)
        if failed:
            await fetching
        return left

    # What comes in

    def _room(self) -> int:
        """How many jobs to ask for: none until a good part of the prefetch is used up, so that pops are not small."""
        if self._stopping:
            return 0
        prefetch = self._worth_fetching_ahead()
        places = self._settings.concurrency + prefetch
        unreported = len(self._in_hand) - len(self._waiting) - self._busy
        # As many again may be on their way to the service, so that reports and pops can overlap.
        free = places - len(self._waiting) - self._busy - max(unreported - places, 0)
        return free if free >= max(1, prefetch // 2) else 0

    def _worth_fetching_ahead(self) -> int:
        """As many as are going to begin within a moment: what waits longer, another worker could have begun before."""
        stuck = self._busy >= self._settings.concurrency and self._loop.time() - self._last_end_s > _AHEAD_S
        if self._mean_s is None or stuck:
            return 0
        soon = self._settings.concurrency * _AHEAD_S / max(self._mean_s, 1e-6)
        return int(min(self._settings.prefetch, soon))

    def _take(self, deliveries: list[Delivery], old: bool) -> None:
        for delivery in deliveries:
            held = Held(delivery, self._settings.handlers[delivery.topic], self._leases.touch, self._loop)
            self._in_hand.add(held)
            self._leases.add(held, old=old)
            self._waiting.append(held)
        self._begin_what_waits()

    def _begin_what_waits(self) -> None:
        while self._waiting and self._busy < self._settings.concurrency and not self._stopping:
            held = self._waiting.popleft()
            if not held.settled:
                self._busy += 1
                limit_s = held.handler.time_limit_s
                timer = None if limit_s is None else self._loop.call_later(limit_s, self._on_time_limit, held)
                held.take_place(timer)  # before the task: an eager one may have ended when create_task returns
                held.runs_in(self._loop.create_task(self._run(held)))

    # Running a handler

    async def _run(self, held: Held) -> None:
        began_s = held.began_s = self._loop.time()
        error: BaseException | None = None
        outcome: Outcome
        try:
            traceparent = held.job.traceparent
            if traceparent is not None:
                TRACEPARENT.set(traceparent)
            outcome = of_value(await self._call(held))
        except GeneratorExit:  # the loop has gone
            raise
        except BaseException as exc:  # noqa: BLE001 (whatever a handler raises, its job is not lost and the worker goes on)
            outcome, error = of_error(exc), exc
        now_s = self._last_end_s = self._loop.time()
        took_s = now_s - began_s
        self._mean_s = took_s if self._mean_s is None else self._mean_s + _MEAN_WEIGHT * (took_s - self._mean_s)
        self._busy -= 1
        held.ended()
        if held.settled:
            self._forget_if_done(held)
        else:
            outcome = held.outcome(outcome, error)
            _tell(held, outcome, error, took_s)
            self._settle(held, outcome)
        error = None  # it refers to this frame
        self._begin_what_waits()
        self._handler_ended.set()
        self._fetcher.look_again()

    async def _call(self, held: Held) -> Any:
        if held.stopped is not None:  # between its start and here
            raise asyncio.CancelledError
        return await held.handler.call(held, self._settings.middleware, self._threads.run)

    # What ends a handler, and a job

    def _on_time_limit(self, held: Held) -> None:
        self._stop(
            held, Stop.TIME_LIMIT, Release(None, f"the time limit of {held.handler.time_limit_s:g} s has passed")
        )

    def _stop(self, held: Held, why: Stop, outcome: Outcome) -> None:
        """Have a handler end: an async one gets a moment to clean up, the job of a plain one is given back at once."""
        held.stop(why, outcome)
        if held.handler.is_async:
            self._loop.call_later(_AFTER_CANCEL_S, self._go_on_without, held)
        else:
            self._go_on_without(held)

    def _go_on_without(self, held: Held) -> None:
        """A handler goes on after it was stopped: its job need not wait for that."""
        if held.running and not held.settled:
            outcome = held.outcome(_GIVEN_BACK, asyncio.CancelledError())
            _tell(held, outcome, None, self._loop.time() - (held.began_s or 0))
            self._settle(held, outcome)

    def _on_over(self, held: Held, error: DeferdError) -> None:
        """The service says that a delivery is over. When its report is on the way, that gets its own answer."""
        if held.settled:
            return
        if isinstance(error, JobCancelled):
            LOG.info("%s was cancelled", held, extra=held.facts(code=error.code))
        else:
            text = "%s is not this worker's any more: %s"
            LOG.warning(text, held, error, extra=held.facts(code=error.code))
        held.stop(Stop.OVER, None)
        held.settled = True
        self._on_reported(held)

    def _settle(self, held: Held, outcome: Outcome) -> None:
        held.settled = True
        self._reporter.report(held, outcome)

    def _on_reported(self, held: Held) -> None:
        held.reported = True
        self._leases.drop(held)
        self._forget_if_done(held)

    def _forget_if_done(self, held: Held) -> None:
        if held.reported and not held.running:
            self._in_hand.discard(held)
            self._fetcher.look_again()

    # The end

    async def _wind_up(self, grace_s: float) -> int:
        """End within `grace_s`, and some seconds for what was cancelled and for the last reports."""
        self._stopping = True
        end_s = self._loop.time() + grace_s
        try:
            await self._fetcher.stop()
            for held in self._waiting:
                if not held.settled:
                    self._settle(held, _GIVEN_BACK)
            self._waiting.clear()
            await self._until(lambda: self._busy == 0, end_s)
            for held in self._still_running():
                self._stop(held, Stop.SHUTDOWN, _GIVEN_BACK)
            await self._until(lambda: all(held.settled for held in self._still_running()), end_s + _AFTER_CANCEL_S)
            for held in self._still_running():
                self._go_on_without(held)
            await self._reporter.wait_until_done(max(end_s - self._loop.time(), 0) + _LAST_REPORTS_S)
            return sum(not held.reported for held in self._in_hand)
        finally:
            await self._leases.close()
            await self._reporter.close()
            self._threads.close()
            for held in self._still_running():
                held.cut_off()

    def _still_running(self) -> list[Held]:
        return [held for held in self._in_hand if held.running]

    async def _until(self, holds: Callable[[], bool], end_s: float) -> None:
        while not holds() and (left_s := end_s - self._loop.time()) > 0:
            self._handler_ended.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._handler_ended.wait(), left_s)


def _tell(held: Held, outcome: Outcome, error: BaseException | None, took_s: float) -> None:
    """Log how a handler ended."""
    if isinstance(outcome, Finish):
        if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug("%s is done after %.3f s", held, took_s, extra=held.facts(seconds=round(took_s, 3)))
        return
    what = "is released" if isinstance(outcome, Release) else "is buried"
    facts = held.facts(seconds=round(took_s, 3), error=outcome.error)
    by_intent = held.stopped is not None or error is None or isinstance(error, Reject | Retry)
    level = logging.INFO if isinstance(error, Retry) or held.stopped is Stop.SHUTDOWN else logging.WARNING
    reason = outcome.error or "as its handler asked"
    LOG.log(level, "%s %s: %s", held, what, reason, extra=facts, exc_info=None if by_intent else error)
