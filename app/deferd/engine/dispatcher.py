"""Consumers that wait: who gets the next ready job of a topic.

Each topic that somebody waits for has a line, in the order of arrival. A line asks the store only when there is a
reason to: somebody new has come, or the store said that the topic has something ready. One store call then asks for
many waiters at once, and at most one call is under way for a line. A waiter costs no store connection.

A pop of several topics stands in the line of each. On its arrival they are asked in its order, so that a job of the
first topic wins; after that, whichever topic has something first serves it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deferd.engine import metrics
from deferd.engine.queue import JobQueue, PopRequest
from deferd.engine.record import JobRecord
from deferd.errors import DeferdError, StoreUnavailable

_LOG = logging.getLogger(__name__)
_JOBS_PER_CALL = 500
"""A single waiter may ask for more."""
_NEWCOMERS_PER_CALL = 128
_PARKED_PER_CALL = 16
"""How many waiters that already found the topic empty are asked for at once when it has something again."""


@dataclass(eq=False, slots=True)
class _Waiter:
    topics: Sequence[str]
    request: PopRequest
    answer: asyncio.Future[list[JobRecord]]
    turn: int | None = 0
    """Which of its topics alone may serve it, until all have been asked once; then None."""
    in_call: bool = False
    time_is_up: bool = False
    hung_up: bool = False
    passed_over: set[str] = field(default_factory=set)
    """Topics that had something while it could not be served from there."""
    jobs: list[JobRecord] = field(default_factory=list)

    def may_be_served_by(self, topic: str) -> bool:
        return not self.in_call and (self.turn is None or self.topics[self.turn] == topic)

    @property
    def missing(self) -> int:
        return self.request.count - len(self.jobs)

    def wanted(self) -> PopRequest:
        return replace(self.request, count=self.missing) if self.jobs else self.request


class _Line:
    """Who waits for a topic: first those who found it empty, then newcomers, each in the order they came."""

    __slots__ = ("dirty", "newcomers", "parked", "serving", "topic")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.parked: dict[_Waiter, None] = {}
        self.newcomers: dict[_Waiter, None] = {}
        self.dirty = False
        self.serving = False

    @property
    def waiters(self) -> list[_Waiter]:
        return [*self.parked, *self.newcomers]

    @property
    def empty(self) -> bool:
        return not self.parked and not self.newcomers

    def park(self, waiter: _Waiter) -> None:
        self.newcomers.pop(waiter, None)
        self.parked[waiter] = None

    def leave(self, waiter: _Waiter) -> None:
        self.newcomers.pop(waiter, None)
        self.parked.pop(waiter, None)


class Dispatcher:
    """Hands ready jobs to waiting consumers of this process."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._lines: dict[str, _Line] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False
        self._parked = 0

    @property
    def parked(self) -> int:
        """How many pops are waiting now."""
        return self._parked

    async def pop(
        self,
        topics: Sequence[str],
        *,
        count: int = 1,
        wait_ms: int = 0,
        ttr_ms: int | None = None,
        consumer: str | None = None,
        request_id: str | None = None,
    ) -> list[JobRecord]:
        """Up to `count` jobs as soon as there is one, or none after `wait_ms`.

        `topics` are distinct, the first has priority. With a `request_id` that was answered before, the jobs of that
        answer whose leases still live come again. When the awaiting task is cancelled, what was popped for it goes
        back to the head of the line.

        Raises:
            StoreUnavailable: also to those who were waiting when the store went away.
        """
        if request_id is not None and len(topics) > 1:
            again = await self._given_before(topics, PopRequest(0, ttr_ms, consumer, request_id))
            if again:
                return again
        loop = asyncio.get_running_loop()
        waiter = _Waiter(topics, PopRequest(count, ttr_ms, consumer, request_id), loop.create_future())
        if wait_ms <= 0 or self._draining:
            waiter.time_is_up = True
        time_out = loop.call_later(wait_ms / 1000, self._end_wait, waiter)
        for topic in topics:
            line = self._lines.get(topic)
            if line is None:
                line = self._lines[topic] = _Line(topic)
            line.newcomers[waiter] = None
        self._set_parked(self._parked + 1)
        self._look(topics[0])
        try:
            return await waiter.answer
        except asyncio.CancelledError:
            waiter.hung_up = True
            if not waiter.in_call:
                self._return_jobs(waiter)
            raise
        finally:
            time_out.cancel()
            self._set_parked(self._parked - 1)
            self._leave(waiter)

    def on_ready(self, topic: str) -> None:
        """The store said that `topic` may have something ready."""
        if topic in self._lines:
            self._look(topic)

    def on_gap(self) -> None:
        """Messages may have been missed: look at every topic that somebody waits for."""
        for topic in list(self._lines):
            self._look(topic)

    def drain(self) -> None:
        """Answer all who wait with what they have; from now on nobody is kept waiting."""
        self._draining = True
        for waiter in {waiter for line in self._lines.values() for waiter in line.waiters}:
            self._end_wait(waiter)

    async def close(self) -> None:
        """Drain, and wait until what was under way has ended."""
        self.drain()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _given_before(self, topics: Sequence[str], request: PopRequest) -> list[JobRecord]:
        given: list[JobRecord] = []
        for topic in topics:
            given += (await self._queue.pop(topic, [request])).jobs[0]
        return given

    def _look(self, topic: str) -> None:
        line = self._lines[topic]
        line.dirty = True
        if not line.serving:
            line.serving = True
            self._spawn(self._serve(line))

    async def _serve(self, line: _Line) -> None:
        unasked_newcomers = False
        try:
            while line.dirty or unasked_newcomers:
                ask_parked, line.dirty = line.dirty, False
                waiters, unasked_newcomers = self._choose(line, ask_parked)
                if waiters:
                    await self._ask(line, waiters)
        finally:
            line.serving = False
            if line.empty:
                self._lines.pop(line.topic, None)

    def _choose(self, line: _Line, ask_parked: bool) -> tuple[list[_Waiter], bool]:
        """Whom to ask for in one call, and whether newcomers are left for the next."""
        chosen: list[_Waiter] = []
        jobs = 0
        for waiter in line.parked if ask_parked else ():
            if not waiter.may_be_served_by(line.topic):
                waiter.passed_over.add(line.topic)
            elif len(chosen) == _PARKED_PER_CALL or (chosen and jobs + waiter.missing > _JOBS_PER_CALL):
                break
            else:
                jobs += waiter.missing
                chosen.append(waiter)
        most = len(chosen) + _NEWCOMERS_PER_CALL
        for waiter in line.newcomers:
            if not waiter.may_be_served_by(line.topic):
                waiter.passed_over.add(line.topic)
            elif len(chosen) == most or (chosen and jobs + waiter.missing > _JOBS_PER_CALL):
                return chosen, True
            else:
                jobs += waiter.missing
                chosen.append(waiter)
        return chosen, False

    async def _ask(self, line: _Line, waiters: list[_Waiter]) -> None:
        for waiter in waiters:
            waiter.in_call = True
        try:
            reply = await self._queue.pop(line.topic, [waiter.wanted() for waiter in waiters])
        except Exception as exc:  # noqa: BLE001 (whatever it is, nobody may be left waiting)
            if not isinstance(exc, DeferdError):
                _LOG.exception("pop of topic %s failed", line.topic)
            for waiter in waiters:
                waiter.in_call = False
            self._fail(line, exc)
            return
        if reply.more:
            line.dirty = True
        for place, (waiter, jobs) in enumerate(zip(waiters, reply.jobs, strict=True)):
            waiter.in_call = False
            if place in reply.ask_again:
                line.dirty = True
                continue
            waiter.jobs += jobs
            self._settle(waiter, more=reply.more)

    def _settle(self, waiter: _Waiter, *, more: bool) -> None:
        """After a store call: answer the waiter, send it on to its next topic, or let it wait."""
        if waiter.hung_up:
            self._return_jobs(waiter)
            return
        if more and not waiter.jobs and waiter.turn is not None:
            return  # the call did not get past left-over ids: its line, which is looked at again, asks once more
        last_turn = waiter.turn is None or waiter.turn == len(waiter.topics) - 1
        if len(waiter.jobs) == waiter.request.count or (last_turn and (waiter.jobs or waiter.time_is_up)):
            self._answer(waiter)
            return
        if not last_turn and waiter.turn is not None:
            waiter.turn += 1
            self._look(waiter.topics[waiter.turn])
            return
        waiter.turn = None
        for topic in waiter.topics:
            self._lines[topic].park(waiter)
        passed_over, waiter.passed_over = waiter.passed_over, set()
        for topic in passed_over:
            self._look(topic)

    def _end_wait(self, waiter: _Waiter) -> None:
        waiter.time_is_up = True
        if not waiter.in_call and waiter.turn is None:
            self._answer(waiter)

    def _answer(self, waiter: _Waiter) -> None:
        self._leave(waiter)
        if not waiter.answer.done():
            waiter.answer.set_result(waiter.jobs)

    def _fail(self, line: _Line, error: Exception) -> None:
        """The store is away: nobody in the line is kept waiting for it."""
        for waiter in line.waiters:
            if waiter.in_call:
                continue
            self._leave(waiter)
            if waiter.jobs:  # of a topic that was asked before
                self._answer(waiter)
            elif not waiter.answer.done():
                waiter.answer.set_exception(error)

    def _leave(self, waiter: _Waiter) -> None:
        for topic in waiter.topics:
            line = self._lines.get(topic)
            if line is not None:
                line.leave(waiter)
                if line.empty and not line.serving:
                    del self._lines[topic]

    def _return_jobs(self, waiter: _Waiter) -> None:
        jobs, waiter.jobs = waiter.jobs, []
        if jobs:
            self._spawn(self._give_back(jobs))

    async def _give_back(self, jobs: list[JobRecord]) -> None:
        try:
            await self._queue.give_back(jobs)
        except StoreUnavailable as exc:
            _LOG.warning("%d jobs of consumers that hung up come back when their leases end: %s", len(jobs), exc)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set_parked(self, parked: int) -> None:
        self._parked = parked
        metrics.PARKED.set(parked)
