"""Consumers that wait: who gets the next ready job of a topic.

Each topic that somebody waits for has a queue of waiters, in the order of their arrival. The store is asked only for a
reason: somebody new has come, or the store said that the topic has something ready. One store call asks for many
waiters at once, always for those who came first, and at most one call is under way for a topic. A waiter costs no store
connection.

A pop of several topics waits in the queue of each. On its arrival they are asked in its order, so that a job of the
first topic wins; after that, whichever topic has something first serves it.

A part of the store that fails takes only its own topics with it. While a part cannot be reached, one call at a time
asks whether it is back, whoever waits for it, and its topics lose their turn in pops that name others as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from deferd.contract.errors import DeferdError, StoreUnavailable
from deferd.engine import metrics
from deferd.engine.outage import Outage
from deferd.engine.queue import JobQueue, PopRequest
from deferd.engine.record import JobRecord

_LOG = logging.getLogger(__name__)
_JOBS_PER_CALL = 500
"""A single waiter may ask for more."""
_NEWCOMERS_PER_CALL = 128
_PARKED_PER_CALL = 16
"""How many waiters that already found the topic empty are asked for at once when it has something again."""
_RETRY_S = 0.5
"""How long after an error that is the topic's own it is asked again for those who wait for others as well."""


@dataclass(eq=False, slots=True)
class _Waiter:
    number: int
    topics: Sequence[str]
    request: PopRequest
    answer: asyncio.Future[list[JobRecord]]
    turn: int | None = 0
    """Which of its topics alone may serve it, until all have been asked once; then None."""
    may_have_been_served: bool = False
    """It names a request whose jobs, from an earlier response, may still be there: not looked for yet."""
    was_asked_for: bool = False
    """At least one of its topics could be asked."""
    in_call: bool = False
    time_is_up: bool = False
    hung_up: bool = False
    failed: set[str] = field(default_factory=set)
    """Topics that could not be asked since it came."""
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
    """Who waits for a topic, in the order in which they came; among them the newcomers, who have not been asked for."""

    __slots__ = ("dirty", "failing", "newcomers", "part", "serving", "topic", "waiters")

    def __init__(self, topic: str, part: int) -> None:
        self.topic = topic
        self.part = part
        self.waiters: dict[_Waiter, None] = {}
        self.newcomers: dict[_Waiter, None] = {}
        self.dirty = False
        self.serving = False
        self.failing = False

    def join(self, waiter: _Waiter) -> None:
        self.waiters[waiter] = self.newcomers[waiter] = None

    def park(self, waiter: _Waiter) -> None:
        self.newcomers.pop(waiter, None)

    def leave(self, waiter: _Waiter) -> None:
        self.newcomers.pop(waiter, None)
        self.waiters.pop(waiter, None)


class Dispatcher:
    """Hands ready jobs to waiting consumers of this process.

    `part_of` tells a topic's part of the store: one that can fail while the others work, as a shard of a cluster does.
    """

    def __init__(self, queue: JobQueue, part_of: Callable[[str], int]) -> None:
        self._queue = queue
        self._part_of = part_of
        self._lines: dict[str, _Line] = {}
        self._outages: dict[int, Outage] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False
        self._arrivals = 0
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

        `topics` are distinct, the first has priority; one that cannot be asked is left out until it can be. With a
        `request_id` that was answered before, the jobs of that answer whose leases still live come again. When the
        awaiting task is cancelled, what was popped for it goes back to the head of the line.

        Raises:
            StoreUnavailable: none of the topics can be asked; also to those who were waiting when that came about.
        """
        request = PopRequest(count, ttr_ms, consumer, request_id)
        loop = asyncio.get_running_loop()
        self._arrivals += 1
        waiter = _Waiter(self._arrivals, topics, request, loop.create_future())
        waiter.may_have_been_served = request_id is not None and len(topics) == 1
        if wait_ms <= 0 or self._draining:
            waiter.time_is_up = True
        time_out = loop.call_later(wait_ms / 1000, self._end_wait, waiter)
        for topic in topics:
            line = self._lines.get(topic)
            if line is None:
                line = self._lines[topic] = _Line(topic, self._part_of(topic))
            line.join(waiter)
        self._set_parked(self._parked + 1)
        try:
            if request_id is not None and len(topics) > 1:
                waiter.in_call = True
                given_before = await self._given_before(topics, replace(request, count=0))
                waiter.in_call = False
                if given_before:
                    return given_before
            if not waiter.answer.done():
                self._take_turn(waiter, 0)
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
            self._hurry(topic)

    def on_gap(self) -> None:
        """Messages may have been missed: look at every topic that somebody waits for."""
        for topic in list(self._lines):
            self._look(topic)
            self._hurry(topic)

    def drain(self) -> None:
        """Answer all who wait with what they have; from now on nobody is kept waiting."""
        self._draining = True
        for waiter in self._waiters():
            self._end_wait(waiter)

    async def close(self) -> None:
        """Drain, and wait until what was under way has ended."""
        self.drain()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        outages = list(self._outages.values())
        self._outages.clear()
        for outage in outages:
            await outage.end()
        for waiter in self._waiters():  # for a part that could not be asked
            self._fail(waiter, StoreUnavailable("the service is shutting down and the store cannot be reached"))

    # Asking the store

    async def _given_before(self, topics: Sequence[str], request: PopRequest) -> list[JobRecord]:
        """What the request was given before and still holds, of the topics that can be asked.

        Raises the error of one when none can be.
        """
        up = [topic for topic in topics if not self._is_down(topic)] or topics
        replies = await asyncio.gather(*(self._queue.pop(topic, [request]) for topic in up), return_exceptions=True)
        given: list[JobRecord] = []
        errors = []
        for topic, reply in zip(up, replies, strict=True):
            if not isinstance(reply, BaseException):
                given += reply.jobs[0]
            elif isinstance(reply, Exception):
                self._note(topic, reply)
                errors.append(reply)
            else:
                raise reply
        if len(errors) == len(topics):
            raise errors[-1]
        return given

    def _look(self, topic: str) -> None:
        line = self._lines[topic]
        line.dirty = True
        if not line.serving and line.part not in self._outages:
            line.serving = True
            self._spawn(self._serve(line))

    async def _serve(self, line: _Line) -> None:
        try:
            while line.dirty and line.part not in self._outages:
                line.dirty = False
                requests = self._choose(line)
                if requests:
                    await self._ask(line, requests)
        finally:
            line.serving = False
            self._forget_if_unused(line)

    def _choose(self, line: _Line) -> dict[_Waiter, PopRequest]:
        """Whom to ask for in one call, in the order in which they came, so that nobody overtakes.

        Of the newcomers that have to wait for the next call, only the jobs of earlier responses are asked for.
        """
        chosen: dict[_Waiter, PopRequest] = {}
        jobs = newcomers = parked = 0
        for waiter in line.waiters:
            if not waiter.may_be_served_by(line.topic):
                waiter.passed_over.add(line.topic)
                continue
            is_new = waiter in line.newcomers
            newcomers, parked = newcomers + is_new, parked + (not is_new)
            jobs += waiter.missing
            if newcomers > _NEWCOMERS_PER_CALL or parked > _PARKED_PER_CALL or (chosen and jobs > _JOBS_PER_CALL):
                break
            chosen[waiter] = waiter.wanted()
        most = len(chosen) + _NEWCOMERS_PER_CALL
        for waiter in line.newcomers:
            if len(chosen) == most:
                break
            if waiter.may_have_been_served and waiter not in chosen and waiter.may_be_served_by(line.topic):
                chosen[waiter] = replace(waiter.request, count=0)
        return chosen

    async def _ask(self, line: _Line, requests: dict[_Waiter, PopRequest]) -> None:
        came_before = self._arrivals
        for waiter in requests:
            waiter.in_call = True
        try:
            reply = await self._queue.pop(line.topic, list(requests.values()))
        except Exception as exc:  # noqa: BLE001 (whatever it is, nobody may be left waiting)
            for waiter in requests:
                waiter.in_call = False
                if waiter.hung_up:
                    self._return_jobs(waiter)
            self._on_error(line, exc)
            return
        if line.failing:
            line.failing = False
            for waiter in line.waiters:
                waiter.failed.discard(line.topic)
        if reply.more:
            line.dirty = True
        for place, ((waiter, request), jobs) in enumerate(zip(requests.items(), reply.jobs, strict=True)):
            waiter.in_call = False
            if place in reply.ask_again:
                line.dirty = True
                continue
            waiter.may_have_been_served = False
            waiter.jobs += jobs
            if request.count or jobs or waiter.hung_up:
                self._settle(waiter, more=reply.more)
        if not reply.more:
            self._park_unasked(line, came_before)

    def _park_unasked(self, line: _Line, came_before: int) -> None:
        """The topic is empty, which holds for newcomers too who came before it was asked."""
        for waiter in list(line.newcomers):
            if waiter.number > came_before:
                break
            if not waiter.may_be_served_by(line.topic):
                continue
            if waiter.may_have_been_served:
                line.dirty = True
            else:
                self._settle(waiter, more=False)

    def _settle(self, waiter: _Waiter, *, more: bool) -> None:
        """Its topic was asked: answer the waiter, send it on to its next topic, or let it wait."""
        waiter.was_asked_for = True
        if waiter.hung_up:
            self._return_jobs(waiter)
            return
        if more and not waiter.jobs and waiter.turn is not None:
            return  # the call did not get past left-over ids: its line, which is looked at again, asks once more
        is_first_round = waiter.turn is not None and waiter.turn < len(waiter.topics) - 1
        if len(waiter.jobs) == waiter.request.count or (not is_first_round and (waiter.jobs or waiter.time_is_up)):
            self._answer(waiter)
        elif waiter.turn is not None:
            self._take_turn(waiter, waiter.turn + 1)
        else:
            self._park(waiter)

    def _take_turn(self, waiter: _Waiter, turn: int) -> None:
        """Have the waiter's next topic asked that can be, from the `turn`th on; after the last one it waits for all."""
        for at in range(turn, len(waiter.topics)):
            if not self._is_down(waiter.topics[at]):
                waiter.turn = at
                self._look(waiter.topics[at])
                return
        waiter.turn = None
        if waiter.was_asked_for and (waiter.jobs or waiter.time_is_up):
            self._answer(waiter)
            return
        self._park(waiter)
        if not waiter.was_asked_for:
            for topic in waiter.topics:
                self._hurry(topic)

    def _park(self, waiter: _Waiter) -> None:
        waiter.turn = None
        for topic in waiter.topics:
            if not self._is_down(topic):  # else it is asked as a newcomer when that is over
                self._lines[topic].park(waiter)
        passed_over, waiter.passed_over = waiter.passed_over, set()
        for topic in passed_over:
            self._look(topic)

    # Topics that cannot be asked

    def _is_down(self, topic: str) -> bool:
        return self._part_of(topic) in self._outages

    def _hurry(self, topic: str) -> None:
        """If the topic's part of the store is down, ask now whether it is back."""
        outage = self._outages.get(self._part_of(topic))
        if outage is not None:
            outage.ask_now()

    def _note(self, topic: str, error: Exception) -> None:
        """A call for the topic failed: if it was for the store, all topics of its part are out until it is back."""
        if not isinstance(error, DeferdError):
            _LOG.error("pop of topic %s failed", topic, exc_info=error)
        part = self._part_of(topic)
        if isinstance(error, StoreUnavailable) and part not in self._outages and not self._draining:
            self._outages[part] = Outage(
                lambda: self._queue.pop(topic, [PopRequest(0)]),
                on_failure=lambda exc: self._on_part_down(part, exc),
                on_end=lambda: self._on_part_back(part),
            )

    def _on_error(self, line: _Line, error: Exception) -> None:
        if isinstance(error, StoreUnavailable):
            self._note(line.topic, error)
        else:
            if not line.failing:
                self._note(line.topic, error)
            line.failing = True
        for waiter in list(line.waiters):
            self._lose(waiter, line, error)
        if line.failing and line.waiters:
            asyncio.get_running_loop().call_later(_RETRY_S, self.on_ready, line.topic)

    def _on_part_down(self, part: int, error: Exception) -> None:
        for line in list(self._lines.values()):
            if line.part == part:
                for waiter in list(line.waiters):
                    self._lose(waiter, line, error)

    def _on_part_back(self, part: int) -> None:
        self._outages.pop(part, None)
        for line in list(self._lines.values()):
            if line.part == part:
                for waiter in line.waiters:
                    waiter.failed.discard(line.topic)
                self._look(line.topic)

    def _lose(self, waiter: _Waiter, line: _Line, error: Exception) -> None:
        """The topic of `line` cannot be asked: the waiter goes on with its others; it fails when none is left."""
        if waiter.in_call:
            return
        waiter.failed.add(line.topic)
        if isinstance(error, StoreUnavailable):
            waiter.failed.update(topic for topic in waiter.topics if self._part_of(topic) == line.part)
        if len(waiter.failed) == len(waiter.topics):
            self._fail(waiter, error)
        elif waiter.turn is not None and waiter.topics[waiter.turn] == line.topic:
            self._take_turn(waiter, waiter.turn + 1)

    def _fail(self, waiter: _Waiter, error: Exception) -> None:
        self._leave(waiter)
        if waiter.jobs:  # of a topic that was asked before
            self._answer(waiter)
        elif not waiter.answer.done():
            waiter.answer.set_exception(error)

    # The end of a wait

    def _end_wait(self, waiter: _Waiter) -> None:
        waiter.time_is_up = True
        if not waiter.in_call and waiter.turn is None and waiter.was_asked_for:
            self._answer(waiter)

    def _answer(self, waiter: _Waiter) -> None:
        self._leave(waiter)
        if not waiter.answer.done():
            waiter.answer.set_result(waiter.jobs)

    def _leave(self, waiter: _Waiter) -> None:
        for topic in waiter.topics:
            line = self._lines.get(topic)
            if line is not None:
                line.leave(waiter)
                self._forget_if_unused(line)

    def _forget_if_unused(self, line: _Line) -> None:
        if not line.waiters and not line.serving and self._lines.get(line.topic) is line:
            del self._lines[line.topic]

    def _waiters(self) -> set[_Waiter]:
        return {waiter for line in self._lines.values() for waiter in line.waiters}

    def _return_jobs(self, waiter: _Waiter) -> None:
        jobs, waiter.jobs = waiter.jobs, []
        if jobs:
            self._spawn(self._give_back(jobs))

    async def _give_back(self, jobs: list[JobRecord]) -> None:
        try:
            await self._queue.return_to_queue(jobs)
        except StoreUnavailable as exc:
            _LOG.warning("%d jobs of consumers that hung up come back when their leases end: %s", len(jobs), exc)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _set_parked(self, parked: int) -> None:
        self._parked = parked
        metrics.PARKED.set(parked)
