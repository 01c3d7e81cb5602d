"""Hands ready jobs to consumers that wait.

Each topic that somebody waits for has a wait queue in the order of arrival. The store is polled only for a reason: a
new waiter has come, or the store published that the topic has something ready. One store call serves many waiters,
always the earliest, and at most one call is under way for a topic. A waiter uses no store connection.

A pop of several topics waits in the queue of each. On arrival its topics are polled in their order, so that a job of
the first topic wins; after that, whichever topic has a job first serves it. Topics that match its patterns come after
those that it names; see `pattern_waits`.

A topic with several partitions is several topics here. A pop that may wait does not poll those that are known to be
empty; see `empty_partitions`.

A shard that fails affects only its own topics. While it cannot be reached, one call at a time tests whether it is back,
however many consumers wait; pops that also name topics of other shards are served from those.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from deferd.contract.errors import DeferdError, StoreUnavailable, TopicPushed
from deferd.engine.empty_partitions import EmptyPartitions
from deferd.engine.group_commit import settle
from deferd.engine.outage import Outage
from deferd.engine.partitions import topic_of
from deferd.engine.pattern_waits import PatternWaits, of_patterns
from deferd.engine.queue import JobQueue, PopRequest
from deferd.engine.record import ENOUGH_BYTES, JobRecord, body_bytes
from deferd.engine.redis_keys import Keys
from deferd.engine.request_end import request_ending_at, request_ends_at_s
from deferd.engine.topic_search import TopicSearch, TopicSelection
from deferd.engine.wait_queue import FirstLooks, OnPopEnd, Waiter, WaitingPops, WaitQueue
from deferd.store.task_cancellation import forget_error

_LOG = logging.getLogger(__name__)
_RETRY_S = 0.5
"""How long after an error of a single topic it is polled again, for those who wait for other topics as well."""


class Dispatcher:
    """Hands ready jobs to waiting consumers of this process.

    `failure_domain` maps a topic to the part of the store that can fail on its own: a shard of a cluster, else all.
    """

    def __init__(self, queue: JobQueue, failure_domain: Callable[[str], int], search: TopicSearch, keys: Keys) -> None:
        self._job_queue = queue
        self._failure_domain = failure_domain
        self._wait_queues: dict[str, WaitQueue] = {}
        self.empty_partitions = EmptyPartitions(
            queue, keys, is_waited_for=self._wait_queues.__contains__, on_ready=self.on_ready
        )
        self._partitions = keys.partitions
        self._partitions.on_change = self.on_other_partitions
        self._outages: dict[int, Outage] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._looks = FirstLooks(self._begin_polling)
        self._draining = False
        self._arrivals = 0
        self.waiting = WaitingPops()
        self._patterns = PatternWaits(self, search)

    async def pop(
        self,
        topics: Sequence[str],
        *,
        selection: TopicSelection | None = None,
        count: int = 1,
        wait_ms: int = 0,
        ttr_ms: int | None = None,
        consumer: str | None = None,
        request_id: str | None = None,
    ) -> list[JobRecord]:
        """Up to `count` jobs as soon as there is one, or none after `wait_ms`, or when the request ends.

        `topics` are distinct, in order of priority; one that cannot be reached is left out until it can be. Those of
        `selection` come after them and take turns. When a `request_id` is repeated, the jobs of its earlier response
        whose leases still live are returned again. When the awaiting task is cancelled, the jobs popped for it return
        to the head of the queue, unless the request was repeated: another service may have returned the same ones.

        Raises:
            InvalidInput: more topics match than a pop may have.
            TopicPushed: one of `topics` is pushed.
            StoreUnavailable: none of the topics can be reached; waiting pops fail as soon as this is known.
        """
        result: asyncio.Future[list[JobRecord]] = asyncio.get_running_loop().create_future()
        request = PopRequest(count, ttr_ms, consumer, request_id)
        topics = self.empty_partitions.partitions_of(topics)
        waiter = self._join(topics, request, wait_ms, partial(settle, result))
        if selection is not None:
            waiter.selection = selection
            waiter.may_have_deliveries = False
            self._patterns.join(waiter)
        with request_ending_at(inf):  # its calls serve other pops too, or return jobs that nobody waits for
            try:
                if request_id is not None and (len(topics) > 1 or selection is not None):
                    waiter.in_call = True
                    deliveries = await self._earlier_deliveries(topics, selection, replace(request, count=0))
                    waiter.in_call = False
                    if deliveries:
                        return deliveries
                if not result.done():
                    self._poll_from(waiter, 0)
                return await result
            except asyncio.CancelledError:
                self.cancel(waiter)
                raise
            finally:
                if result.done():
                    forget_error(result)
                self._end(waiter)

    def begin_pop(self, topic: str, request: PopRequest, wait_ms: int, on_end: OnPopEnd) -> Waiter:
        """As `pop` for callers without a task: `on_end` is called, never from within this call, unless it is cancelled.

        It gets the jobs, or no jobs and the error. Not for a repeated `request_id` of a topic with several partitions.
        """
        waiter = self._join(self.empty_partitions.partitions_of((topic,)), request, wait_ms, on_end)
        self._poll_from(waiter, 0)
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        """End the pop. The jobs that were popped for it return to the head of the queue."""
        waiter.cancelled = True
        if not waiter.in_call:
            self._return_jobs(waiter)
        self._end(waiter)

    def _join(self, topics: Sequence[str], request: PopRequest, wait_ms: int, on_end: OnPopEnd) -> Waiter:
        self._arrivals += 1
        ends_at_s = min(time.monotonic() + wait_ms / 1000, request_ends_at_s())
        waiter = Waiter(self._arrivals, topics, request, on_end, ends_at_s)
        waiter.may_have_deliveries = request.request_id is not None and len(topics) == 1
        waiter.timed_out = wait_ms <= 0 or self._draining
        for topic in topics:
            self._wait_queue_of(topic).join(waiter)
        self.waiting.change(1)
        return waiter

    def _wait_queue_of(self, topic: str) -> WaitQueue:
        if topic not in self._wait_queues:
            self._wait_queues[topic] = WaitQueue(topic, self._failure_domain(topic))
        return self._wait_queues[topic]

    def on_other_partitions(self, topic: str) -> None:
        """The topic has more partitions: who waits for it waits for all of them."""
        queue = self._wait_queues.get(topic)
        for waiter in [] if queue is None else [one for one in queue.waiters if not one.timed_out]:
            for partition in self._partitions.of(topic):
                if partition not in waiter.topics:
                    waiter.add_topic(partition)
                    self._wait_queue_of(partition).join(waiter)
                    self._request_poll(partition)

    def on_ready(self, topic: str) -> None:
        """The store published that `topic` may have something ready."""
        self.empty_partitions.discard(topic)
        self._looks.note_ready(topic)
        if topic in self._wait_queues:
            self._request_poll(topic)
            self._probe_outage_now(topic)
        if self._patterns.groups:
            self._patterns.on_ready(topic)

    def on_gap(self) -> None:
        """Messages may have been missed: poll every topic that somebody waits for."""
        self.empty_partitions.on_gap()
        for topic in list(self._wait_queues):
            if topic not in self.empty_partitions:
                self._request_poll(topic)
            self._probe_outage_now(topic)
        self._patterns.search_again()

    def drain(self) -> None:
        """End all waiting pops with the jobs they have; from now on no pop waits."""
        self._draining = True
        for waiter in self._waiters():
            self._time_out(waiter)

    async def close(self) -> None:
        """Drain, and wait until the calls under way have ended."""
        self.drain()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        outages = list(self._outages.values())
        self._outages.clear()
        for outage in outages:
            await outage.end()
        for waiter in self._waiters():  # those whose topics could not be polled
            self.fail(waiter, StoreUnavailable("the service is shutting down and the store cannot be reached"))

    async def return_undelivered(self, jobs: Sequence[JobRecord]) -> None:
        """Return jobs that no consumer received to the queue; if that fails, they are ready when their leases end."""
        try:
            await self._job_queue.return_popped(jobs)
        except DeferdError as exc:
            _LOG.warning("%d undelivered jobs stay leased until their leases end: %s", len(jobs), exc)

    # Polls for PatternWaits

    def begin_poll(self, topic: str, request: PopRequest, on_end: OnPopEnd) -> None:
        """Poll `topic` for a pop by patterns, in the order of arrival at this topic, and call `on_end`."""
        waiter = self._join((topic,), request, 0, on_end)
        waiter.may_have_deliveries = False
        self._poll_from(waiter, 0)

    def end_round(self, waiter: Waiter) -> None:
        """Some topics that match were polled for the waiter."""
        waiter.was_polled = True
        if waiter.cancelled:
            self._return_jobs(waiter)
        elif waiter.jobs or (waiter.timed_out and waiter.first_pass_index is None):
            self._resolve(waiter)
        elif waiter.first_pass_index is None:
            self._keep_waiting(waiter)

    def end_first_pass(self, waiter: Waiter) -> None:
        """All topics that match were searched, and polled if they had something ready: the waiter has it, or waits."""
        waiter.first_pass_index = None
        self.end_round(waiter)

    # Polling the store

    async def _earlier_deliveries(
        self, topics: Sequence[str], selection: TopicSelection | None, request: PopRequest
    ) -> list[JobRecord]:
        """The jobs that the request id still holds from an earlier response; see `JobQueue.earlier_deliveries`."""
        requests = dict.fromkeys(topics, request)
        if selection is not None:
            requests |= dict.fromkeys(await self._patterns.served(selection, request), of_patterns(request))
        return await self._job_queue.earlier_deliveries(requests, is_down=self.is_down, on_failure=self._note_failure)

    def _request_poll(self, topic: str) -> None:
        queue = self._wait_queues[topic]
        queue.dirty = True
        if not queue.polling and queue.failure_domain not in self._outages:
            self._looks.request(queue)

    def _begin_polling(self, queue: WaitQueue) -> None:
        queue.polling = True
        self.spawn(self._poll_while_dirty(queue))

    async def _poll_while_dirty(self, queue: WaitQueue) -> None:
        try:
            while queue.dirty and queue.failure_domain not in self._outages:
                queue.dirty = False
                requests = queue.choose()
                if requests:
                    await self._poll(queue, requests)
                self._looks.end(queue)
        finally:
            self._looks.end(queue)
            queue.polling = False
            self._forget_if_unused(queue)

    async def _poll(self, queue: WaitQueue, requests: dict[Waiter, PopRequest]) -> None:
        last_arrival = self._arrivals
        for waiter in requests:
            waiter.in_call = True
        try:
            reply = await self._job_queue.pop(queue.topic, list(requests.values()))
        except Exception as exc:  # noqa: BLE001 (no error may leave anybody waiting)
            for waiter in requests:
                waiter.in_call = False
                if waiter.cancelled:
                    self._return_jobs(waiter)
            self._on_error(queue, exc)
            return
        if queue.failing:
            queue.failing = False
            for waiter in queue.waiters:
                waiter.failed_topics.discard(queue.topic)
        if reply.more:
            queue.dirty = True
        elif not queue.dirty:  # no message since the poll was sent
            self.empty_partitions.add(queue.topic)
        for index, ((waiter, request), jobs) in enumerate(zip(requests.items(), reply.jobs, strict=True)):
            waiter.in_call = False
            if index in reply.resend:
                queue.dirty = True
                continue
            waiter.may_have_deliveries = False
            waiter.jobs += jobs
            if request.count or jobs or waiter.cancelled:
                self._settle(waiter, more=reply.more)
        if not reply.more:
            self._settle_newcomers(queue, last_arrival)

    def _settle_newcomers(self, queue: WaitQueue, last_arrival: int) -> None:
        """The topic is empty: that also settles the newcomers up to `last_arrival`, who came before it was polled."""
        for waiter in list(queue.newcomers):
            if waiter.number > last_arrival:
                break
            if not waiter.may_be_served_by(queue.topic):
                continue
            if waiter.may_have_deliveries:
                queue.dirty = True
            else:
                self._settle(waiter, more=False)

    def _settle(self, waiter: Waiter, *, more: bool) -> None:
        """A topic of the waiter was polled: end its wait, go on to its next topic, or keep it waiting."""
        waiter.was_polled = True
        if waiter.cancelled:
            self._return_jobs(waiter)
            return
        if more and not waiter.jobs and waiter.first_pass_index is not None:
            return  # the call only skipped left-over ids: the queue is dirty, so that it is polled again
        has_next_topic = waiter.first_pass_index is not None and (
            waiter.first_pass_index < len(waiter.topics) - 1 or waiter.selection is not None
        )
        if has_next_topic and waiter.jobs and (more or body_bytes(waiter.jobs) >= ENOUGH_BYTES):
            has_next_topic = False  # with `more` the topic has ready jobs that did not fit, and those go first
        if len(waiter.jobs) == waiter.request.count or (not has_next_topic and (waiter.jobs or waiter.timed_out)):
            self._resolve(waiter)
        elif waiter.first_pass_index is not None:
            self._poll_from(waiter, waiter.first_pass_index + 1)
        else:
            self._keep_waiting(waiter)

    def _poll_from(self, waiter: Waiter, start: int) -> None:
        """Poll the waiter's first reachable topic from index `start` on; after the last one it waits for all."""
        for index in range(start, len(waiter.topics)):
            if not waiter.timed_out and waiter.topics[index] in self.empty_partitions:
                waiter.was_polled = True
                continue
            if not self.is_down(waiter.topics[index]):
                waiter.first_pass_index = index
                self._request_poll(waiter.topics[index])
                return
        if waiter.selection is not None:
            waiter.first_pass_index = len(waiter.topics)
            self._patterns.seek(waiter)
            return
        waiter.first_pass_index = None
        if waiter.was_polled and (waiter.jobs or waiter.timed_out):
            self._resolve(waiter)
            return
        self._keep_waiting(waiter)
        if not waiter.was_polled:
            for topic in waiter.topics:
                self._probe_outage_now(topic)

    def _keep_waiting(self, waiter: Waiter) -> None:
        if waiter.timer is None and not waiter.timed_out:
            wait_s = max(waiter.ends_at_s - time.monotonic(), 0)
            waiter.timer = asyncio.get_running_loop().call_later(wait_s, self._time_out, waiter)
        for topic in waiter.topics:
            if not self.is_down(topic):  # else it is polled for as a newcomer after the outage
                self._wait_queues[topic].note_polled(waiter)
        skipped_topics, waiter.skipped_topics = waiter.skipped_topics, set()
        for topic in skipped_topics:
            self._request_poll(topic)

    # Topics that cannot be polled

    def is_down(self, topic: str) -> bool:
        """Whether the topic's shard cannot be reached."""
        return self._failure_domain(topic) in self._outages

    def is_domain_down(self, domain: int) -> bool:
        """Whether a part of the store cannot be reached."""
        return domain in self._outages

    def _probe_outage_now(self, topic: str) -> None:
        self.probe_now(self._failure_domain(topic))

    def probe_now(self, domain: int) -> None:
        """If a part of the store is down, test now whether it is back."""
        outage = self._outages.get(domain)
        if outage is not None:
            outage.probe_now()

    def _note_failure(self, topic: str, error: Exception) -> None:
        """A call for the topic failed: if the store is unavailable, so are all topics of the shard until it is back."""
        if not isinstance(error, DeferdError):
            _LOG.error("pop of topic %s failed", topic_of(topic), exc_info=error)
        probe = partial(self._job_queue.pop, topic, [PopRequest(0)])
        self.note_outage(self._failure_domain(topic), error, probe)

    def note_outage(self, domain: int, error: Exception, probe: Callable[[], Awaitable[object]]) -> None:
        """If the store is unavailable, so is this part of it until a `probe` succeeds."""
        if isinstance(error, StoreUnavailable) and domain not in self._outages and not self._draining:
            self._outages[domain] = Outage(
                probe,
                on_failure=lambda exc: self._on_outage_failure(domain, exc),
                on_end=lambda: self._on_outage_end(domain),
            )

    def _on_error(self, queue: WaitQueue, error: Exception) -> None:
        if isinstance(error, TopicPushed):  # nobody may wait for it
            for waiter in [one for one in queue.waiters if not one.in_call]:
                self.fail(waiter, error)
            return
        is_outage = isinstance(error, StoreUnavailable)
        if is_outage or not queue.failing:
            self._note_failure(queue.topic, error)
        queue.failing = queue.failing or not is_outage
        for waiter in list(queue.waiters):
            self._drop_topic(waiter, queue, error)
        if queue.failing and queue.waiters:
            asyncio.get_running_loop().call_later(_RETRY_S, self.on_ready, queue.topic)

    def _on_outage_failure(self, domain: int, error: Exception) -> None:
        for queue in list(self._wait_queues.values()):
            if queue.failure_domain == domain:
                for waiter in list(queue.waiters):
                    self._drop_topic(waiter, queue, error)
        self._patterns.on_outage_failure(error)

    def _on_outage_end(self, domain: int) -> None:
        self._outages.pop(domain, None)
        for queue in list(self._wait_queues.values()):
            if queue.failure_domain == domain:
                for waiter in queue.waiters:
                    waiter.failed_topics.discard(queue.topic)
                self._request_poll(queue.topic)
        self._patterns.search_again()

    def _drop_topic(self, waiter: Waiter, queue: WaitQueue, error: Exception) -> None:
        """The topic of `queue` cannot be polled: the waiter goes on with its others; it fails when none is left."""
        if waiter.in_call:
            return
        waiter.failed_topics.add(queue.topic)
        if isinstance(error, StoreUnavailable):
            domain = queue.failure_domain
            waiter.failed_topics.update(topic for topic in waiter.topics if self._failure_domain(topic) == domain)
        at = waiter.first_pass_index
        if len(waiter.failed_topics) == len(waiter.topics) and not self._patterns.may_serve(waiter):
            self.fail(waiter, error)
        elif at is not None and at < len(waiter.topics) and waiter.topics[at] == queue.topic:
            self._poll_from(waiter, at + 1)

    def fail(self, waiter: Waiter, error: Exception) -> None:
        """End the pop with this error, or with the jobs that it has."""
        if waiter.jobs:  # of a topic polled before
            self._resolve(waiter)
        elif self._end(waiter):
            waiter.on_end([], error)

    # The end of a wait

    def _time_out(self, waiter: Waiter) -> None:
        waiter.timed_out = True
        if not waiter.in_call and waiter.first_pass_index is None and waiter.was_polled:
            self._resolve(waiter)

    def _resolve(self, waiter: Waiter) -> None:
        if self._end(waiter):
            waiter.on_end(waiter.jobs, None)

    def _end(self, waiter: Waiter) -> bool:
        """Take a waiter out of the queues; False when it has left them before."""
        if waiter.ended:
            return False
        waiter.ended = True
        if waiter.timer is not None:
            waiter.timer.cancel()
        self.waiting.change(-1)
        if waiter.selection is not None:
            self._patterns.leave(waiter)
        for topic in waiter.topics:
            queue = self._wait_queues.get(topic)
            if queue is not None:
                queue.leave(waiter)
                self._forget_if_unused(queue)
        return True

    def _forget_if_unused(self, queue: WaitQueue) -> None:
        if not queue.waiters and not queue.polling and self._wait_queues.get(queue.topic) is queue:
            del self._wait_queues[queue.topic]
            self._looks.forget(queue)

    def _waiters(self) -> set[Waiter]:
        named = {waiter for queue in self._wait_queues.values() for waiter in queue.waiters}
        return named.union(*(group.waiters for group in self._patterns.groups.values()))

    def _return_jobs(self, waiter: Waiter) -> None:
        jobs, waiter.jobs = waiter.jobs, []
        if jobs:
            self.spawn(self.return_undelivered(jobs))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task that `close` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
