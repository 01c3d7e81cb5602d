"""Hands ready jobs to consumers that wait.

Each topic that somebody waits for has a wait queue in the order of arrival. The store is polled only for a reason: a
new waiter has come, or the store published that the topic has something ready. One store call serves many waiters,
always the earliest, and at most one call is under way for a topic. A waiter uses no store connection.

A pop of several topics waits in the queue of each. On arrival its topics are polled in their order, so that a job of
the first topic wins; after that, whichever topic has a job first serves it. Topics that match its patterns come after
those that it names; see `pattern_waits`.

A topic with several partitions is several topics here. A pop that may wait does not poll those that are known to be
empty; see `EmptyPartitions`.

A shard that fails affects only its own topics. While it cannot be reached, one call at a time tests whether it is back,
however many consumers wait; pops that also name topics of other shards are served from those.

`Stage` in `wait_queue` tells how a pop goes on; only the dispatcher moves it. What a stage needs is kept by one owner:
WaitQueue has who waits for a topic, PatternWaits who waits for patterns, Outages what cannot be reached. PatternWaits
does not know the dispatcher: it has polls made, and tells what they found, by the functions that it is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from deferd.contract.errors import DeferdError, StoreUnavailable, TopicPushed
from deferd.engine.deliveries import HeldJobs
from deferd.engine.group_commit import settle
from deferd.engine.partitions import topic_of
from deferd.engine.pattern_waits import PatternWaits
from deferd.engine.queue import JobQueue, PopRequest
from deferd.engine.record import ENOUGH_BYTES, JobRecord, body_bytes
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import request_ending_at, request_ends_at_s
from deferd.engine.topic_search import TopicSearch, TopicSelection
from deferd.engine.wait_queue import FirstLooks, OnPopEnd, Outages, Waiter, WaitingPops, WaitQueue
from deferd.store.task_cancellation import forget_error

_LOG = logging.getLogger(__name__)
_RETRY_S = 0.5
"""How long after an error of a single topic it is polled again, for those who wait for other topics as well."""


class Dispatcher:
    """Hands ready jobs to waiting consumers of this process.

    `failure_domain` maps a topic to the part of the store that can fail on its own: a shard of a cluster, else all.
    """

    def __init__(
        self,
        queue: JobQueue,
        held_jobs: HeldJobs,
        failure_domain: Callable[[str], int],
        search: TopicSearch,
        keys: Keys,
    ) -> None:
        self._job_queue = queue
        self._held_jobs = held_jobs
        self._wait_queues: dict[str, WaitQueue] = {}
        self.empty_partitions = EmptyPartitions(
            queue, keys, is_waited_for=self._wait_queues.__contains__, on_ready=self.on_ready
        )
        self._partitions = keys.partitions
        self._outages = Outages(failure_domain, on_failure=self._on_outage_failure, on_end=self._on_outage_end)
        self._tasks: set[asyncio.Task[None]] = set()
        self._looks = FirstLooks(self._begin_polling)
        self._draining = False
        self._arrivals = 0
        self.waiting = WaitingPops()
        self._patterns = PatternWaits(
            search,
            self._outages,
            poll=self._poll_for_patterns,
            settle=self._settle_by_patterns,
            spawn=self._spawn,
        )

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
        waiter = self._join(topics, request, wait_ms, partial(settle, result), selection)
        with request_ending_at(inf):  # its calls serve other pops too, or return jobs that nobody waits for
            self._begin(waiter)
            try:
                return await result
            except asyncio.CancelledError:
                self.cancel(waiter)
                if result.done():
                    forget_error(result)
                raise

    def begin_pop(
        self,
        topics: Sequence[str],
        request: PopRequest,
        wait_ms: int,
        on_end: OnPopEnd,
        selection: TopicSelection | None,
    ) -> Waiter:
        """As `pop` for callers without a task: `on_end` is called after this call, unless the pop is cancelled."""
        waiter = self._join(self.empty_partitions.partitions_of(topics), request, wait_ms, on_end, selection)
        self._begin(waiter)
        return waiter

    def _begin(self, waiter: Waiter) -> None:
        if waiter.request.request_id is not None and not waiter.may_have_deliveries:
            waiter.in_call = True
            self._spawn(self._repeat_or_poll(waiter))
        else:
            self._poll_from(waiter, 0)

    def cancel(self, waiter: Waiter) -> None:
        """End the pop. The jobs that were popped for it return to the head of the queue."""
        self._end(waiter)
        waiter.stage = "cancelled"
        if not waiter.in_call:
            self._return_jobs(waiter)

    def _join(
        self,
        topics: Sequence[str],
        request: PopRequest,
        wait_ms: int,
        on_end: OnPopEnd,
        selection: TopicSelection | None = None,
    ) -> Waiter:
        self._arrivals += 1
        waits = wait_ms > 0 and not self._draining
        waits_until_s = min(time.monotonic() + wait_ms / 1000, request_ends_at_s()) if waits else None
        waiter = Waiter(self._arrivals, topics, request, on_end, waits_until_s, selection)
        for topic in topics:
            self._wait_queue_of(topic).join(waiter)
        if selection is not None:
            self._patterns.join(waiter)
        elif request.request_id is not None and len(topics) == 1:
            waiter.may_have_deliveries = True
        self.waiting.add(waiter)
        return waiter

    def _wait_queue_of(self, topic: str) -> WaitQueue:
        if topic not in self._wait_queues:
            self._wait_queues[topic] = WaitQueue(topic, self._outages.domain_of(topic))
        return self._wait_queues[topic]

    def on_other_partitions(self, topic: str) -> None:
        """The topic has more partitions now: pops that wait for it wait for all of them."""
        queue = self._wait_queues.get(topic)
        for waiter in [] if queue is None else [one for one in queue.waiters if one.waits_until_s is not None]:
            for partition in self._partitions.of(topic):
                if partition not in waiter.topics:
                    waiter.topics = (*waiter.topics, partition)
                    self._wait_queue_of(partition).join(waiter)
                    self._request_poll(partition)

    def on_ready(self, topic: str) -> None:
        """The store published that `topic` may have something ready."""
        self.empty_partitions.discard(topic)
        self._looks.note_ready(topic)
        if topic in self._wait_queues:
            self._request_poll(topic)
            self._outages.probe_topic_now(topic)
        self._patterns.on_ready(topic)

    def on_gap(self) -> None:
        """Messages may have been missed: poll every topic that somebody waits for."""
        self.empty_partitions.on_gap()
        for topic in list(self._wait_queues):
            if topic not in self.empty_partitions:
                self._request_poll(topic)
            self._outages.probe_topic_now(topic)
        self._patterns.search_again()

    def on_refusal(self, error: StoreUnavailable) -> None:
        """No call is sent to the store any more: waiting pops fail, so that their clients try another service."""
        for waiter in self.waiting.all():
            if not waiter.in_call:
                self._fail(waiter, error)
        for topic in list(self._wait_queues):  # of those in a call: the next one fails
            self._request_poll(topic)
        self._patterns.search_again()

    def drain(self) -> None:
        """End all waiting pops with the jobs they have; from now on no pop waits."""
        self._draining = True
        self._outages.drain()
        for waiter in self.waiting.all():
            self._time_out(waiter)

    async def close(self) -> None:
        """Drain, and wait until the calls under way have ended."""
        self.drain()
        await asyncio.sleep(0)  # polls by patterns begin in the next turn
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._outages.close()
        for waiter in self.waiting.all():  # those whose topics could not be polled
            self._fail(waiter, StoreUnavailable("the service is shutting down and the store cannot be reached"))

    async def return_undelivered(self, jobs: Sequence[JobRecord]) -> None:
        """Return jobs that no consumer received to the queue; if that fails, they are ready when their leases end."""
        try:
            await self._held_jobs.return_popped(jobs)
        except DeferdError as exc:
            _LOG.warning("%d undelivered jobs stay leased until their leases end: %s", len(jobs), exc)

    # Called by PatternWaits

    def _poll_for_patterns(self, topic: str, request: PopRequest, on_end: OnPopEnd) -> None:
        """Poll `topic`, in the order of arrival at this topic, and call `on_end`."""
        waiter = self._join((topic,), request, 0, on_end)
        waiter.may_have_deliveries = False
        self._poll_from(waiter, 0)

    def _settle_by_patterns(self, waiter: Waiter, error: Exception | None) -> None:
        """Topics that match were polled for the waiter, or all of them are empty: it ends, or waits from now on."""
        if waiter.stage == "cancelled":
            self._return_jobs(waiter)
        elif error is not None:
            self._fail(waiter, error)
        elif waiter.stage != "ended":
            waiter.was_polled = True
            waiter.stage = "waiting"
            self._resolve_or_wait(waiter)

    # Polling the store

    async def _repeat_or_poll(self, waiter: Waiter) -> None:
        """Serve a pop of several topics what its request id still holds from an earlier response; else poll for it."""
        request = replace(waiter.request, count=0)
        requests = dict.fromkeys(waiter.topics, request)
        try:
            if waiter.selection is not None:
                requests |= await self._patterns.earlier_requests(waiter.selection, request)
            deliveries = await self._job_queue.earlier_deliveries(
                requests, is_down=self._outages.is_topic_down, on_failure=self._note_failure
            )
        except Exception as exc:  # noqa: BLE001 (no error may leave anybody waiting)
            waiter.in_call = False
            self._fail(waiter, exc)
            return
        waiter.in_call = False
        if deliveries:
            if self._end(waiter):
                waiter.on_end(deliveries, None)
        elif waiter.stage == "topics":
            self._poll_from(waiter, 0)

    def _request_poll(self, topic: str) -> None:
        queue = self._wait_queues[topic]
        queue.dirty = True
        if not queue.polling and not self._outages.is_down(queue.failure_domain):
            self._looks.request(queue)

    def _begin_polling(self, queue: WaitQueue) -> None:
        queue.polling = True
        self._spawn(self._poll_while_dirty(queue))

    async def _poll_while_dirty(self, queue: WaitQueue) -> None:
        try:
            while queue.dirty and not self._outages.is_down(queue.failure_domain):
                queue.dirty = False
                requests = queue.choose()
                if requests:
                    await self._poll(queue, requests)
                self._looks.end(queue)
                if queue.dirty and any(one.stage == "waiting" and one.has_other_topics for one in requests):
                    await asyncio.sleep(0)  # what became ready in those comes first
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
                if waiter.stage == "cancelled":
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
            if request.count or jobs or waiter.stage == "cancelled":
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
        if waiter.stage == "cancelled":
            self._return_jobs(waiter)
        elif waiter.stage == "waiting":
            self._resolve_or_wait(waiter)
        elif more and not waiter.jobs:
            pass  # the call only skipped left-over ids: the queue is dirty, so that it is polled again
        elif waiter.jobs and (not waiter.missing or self._are_its_last(waiter, more=more)):
            self._resolve(waiter)
        else:
            self._poll_from(waiter, waiter.at + 1)

    def _are_its_last(self, waiter: Waiter, *, more: bool) -> bool:
        """Whether the waiter's wait ends here, without jobs of further topics."""
        has_next_topic = waiter.at < len(waiter.topics) - 1 or waiter.selection is not None
        # With `more` the topic has ready jobs that did not fit, and those go first.
        return not has_next_topic or more or body_bytes(waiter.jobs) >= ENOUGH_BYTES

    def _poll_from(self, waiter: Waiter, start: int) -> None:
        """Poll the waiter's first reachable topic from index `start` on; after the last one it waits for all."""
        for index in range(start, len(waiter.topics)):
            topic = waiter.topics[index]
            if waiter.waits_until_s is not None and topic in self.empty_partitions:
                waiter.was_polled = True
            elif not self._outages.is_topic_down(topic):
                waiter.at = index
                self._request_poll(topic)
                return
        if waiter.selection is not None:
            waiter.stage = "patterns"
            self._patterns.seek(waiter)
            return
        waiter.stage = "waiting"
        if waiter.was_polled:
            self._resolve_or_wait(waiter)
            return
        self._keep_waiting(waiter)
        for topic in waiter.topics:
            self._outages.probe_topic_now(topic)

    def _resolve_or_wait(self, waiter: Waiter) -> None:
        if waiter.jobs or waiter.waits_until_s is None:
            self._resolve(waiter)
        else:
            self._keep_waiting(waiter)

    def _keep_waiting(self, waiter: Waiter) -> None:
        if waiter.timer is None and waiter.waits_until_s is not None:
            wait_s = max(waiter.waits_until_s - time.monotonic(), 0)
            waiter.timer = asyncio.get_running_loop().call_later(wait_s, self._time_out, waiter)
        for topic in waiter.topics:
            if not self._outages.is_topic_down(topic):  # else it is polled for as a newcomer after the outage
                self._wait_queues[topic].note_polled(waiter)
        self._look_at_others(waiter)

    def _look_at_others(self, waiter: Waiter) -> None:
        """No call is under way for a waiter any more: what became ready meanwhile in its other topics may serve it."""
        skipped_topics, waiter.skipped_topics = waiter.skipped_topics, set()
        for topic in skipped_topics:
            self._request_poll(topic)
        if waiter.selection is not None:
            self._patterns.on_idle(waiter)

    # Topics that cannot be polled

    def _note_failure(self, topic: str, error: Exception) -> None:
        """A call for the topic failed: if the store is unavailable, so are all topics of the shard until it is back."""
        if not isinstance(error, DeferdError):
            _LOG.error("pop of topic %s failed", topic_of(topic), exc_info=error)
        probe = partial(self._job_queue.pop, topic, [PopRequest(0)])
        self._outages.note(self._outages.domain_of(topic), error, probe)

    def _on_error(self, queue: WaitQueue, error: Exception) -> None:
        if isinstance(error, TopicPushed):  # nobody may wait for it
            for waiter in list(queue.waiters):
                if waiter.in_call:
                    waiter.skipped_topics.add(queue.topic)  # polled once that call has ended, it fails this pop too
                else:
                    self._fail(waiter, error)
            return
        is_outage = isinstance(error, StoreUnavailable)
        if is_outage or not queue.failing:
            self._note_failure(queue.topic, error)
        queue.failing = queue.failing or not is_outage
        for waiter in list(queue.waiters):
            self._drop_topic(waiter, queue, error)
        if queue.failing and queue.waiters and queue.retry is None:
            queue.retry = asyncio.get_running_loop().call_later(_RETRY_S, self._on_retry, queue)

    def _on_retry(self, queue: WaitQueue) -> None:
        queue.retry = None
        self.on_ready(queue.topic)

    def _on_outage_failure(self, domain: int, error: Exception) -> None:
        for queue in list(self._wait_queues.values()):
            if queue.failure_domain == domain:
                for waiter in list(queue.waiters):
                    self._drop_topic(waiter, queue, error)
        self._patterns.on_outage_failure(error)

    def _on_outage_end(self, domain: int) -> None:
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
        if queue.topic not in waiter.failed_topics:  # else this was done before: it is called for each failed probe
            waiter.failed_topics.add(queue.topic)
            if isinstance(error, StoreUnavailable):
                domain = queue.failure_domain
                waiter.failed_topics.update(one for one in waiter.topics if self._outages.domain_of(one) == domain)
        if len(waiter.failed_topics) == len(waiter.topics) and not self._patterns.may_serve(waiter):
            self._fail(waiter, error)
        elif waiter.stage == "topics" and waiter.topics[waiter.at] == queue.topic:
            self._poll_from(waiter, waiter.at + 1)
        elif waiter.stage == "waiting" and waiter.waits_until_s is None and waiter.was_polled:
            self._resolve(waiter)  # its wait ended during the call
        elif waiter.stage == "waiting":
            self._look_at_others(waiter)

    def _fail(self, waiter: Waiter, error: Exception) -> None:
        """End the pop with this error, or with the jobs that it has."""
        if waiter.jobs:  # of a topic polled before
            self._resolve(waiter)
        elif self._end(waiter):
            waiter.on_end([], error)

    # The end of a wait

    def _time_out(self, waiter: Waiter) -> None:
        waiter.waits_until_s = None
        if not waiter.in_call and waiter.stage == "waiting" and waiter.was_polled:
            self._resolve(waiter)

    def _resolve(self, waiter: Waiter) -> None:
        if self._end(waiter):
            waiter.on_end(waiter.jobs, None)

    def _end(self, waiter: Waiter) -> bool:
        """Take a waiter out of the queues; False when it has left them before."""
        if waiter.stage in {"ended", "cancelled"}:
            return False
        waiter.stage = "ended"
        if waiter.timer is not None:
            waiter.timer.cancel()
        self.waiting.remove(waiter)
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
            if queue.retry is not None:
                queue.retry.cancel()

    def _return_jobs(self, waiter: Waiter) -> None:
        jobs, waiter.jobs = waiter.jobs, []
        if jobs:
            self._spawn(self.return_undelivered(jobs))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` in a task that `close` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_LOOK_AGAIN_S = 5.0
_PARTITIONS_PER_CALL = 500


class EmptyPartitions:
    """The empty partitions that this process knows, of topics with several: a waiting pop need not poll them.

    A partition counts as empty if its last poll found nothing and no message has come since. Because messages can be
    lost, it is checked again every few seconds, with one command for many partitions of a shard.

    `is_waited_for` says whether a pop waits for a partition; other partitions are soon forgotten. `on_ready` is called
    for a partition that may have something after all.
    """

    def __init__(
        self,
        queue: JobQueue,
        keys: Keys,
        *,
        is_waited_for: Callable[[str], bool],
        on_ready: Callable[[str], None],
    ) -> None:
        self._queue = queue
        self._keys = keys
        self._is_waited_for = is_waited_for
        self._on_ready = on_ready
        self._names: set[str] = set()
        self._looks: list[tuple[Sequence[str], Sequence[str]]] | None = None
        """The partitions and Ready lists in each command of the next check; None when the set of empty partitions has
        changed. Making these names for 10,000 partitions costs more than the rest of a check."""
        self._missed_messages = asyncio.Event()
        self._turn = 0

    def __contains__(self, partition: str) -> bool:
        return partition in self._names

    def partitions_of(self, topics: Sequence[str]) -> Sequence[str]:
        """The partitions of topics, in the order of the topics.

        The first partition of each topic rotates from call to call.
        """
        partitions = self._keys.partitions
        if not partitions.layouts:
            return topics
        self._turn += 1
        expanded: list[str] = []
        for topic in topics:
            names = partitions.of(topic)
            at = self._turn % len(names)
            expanded += (*names[at:], *names[:at])
        return expanded

    def add(self, topic: str) -> None:
        """A poll found nothing. This is remembered only for topics with several partitions."""
        partitions = self._keys.partitions
        if partitions.layouts and topic not in self._names and partitions.count(topic_of(topic)) > 1:
            self._names.add(topic)
            self._looks = None

    def discard(self, partition: str) -> None:
        """It may have something ready."""
        if partition in self._names:
            self._names.remove(partition)
            self._looks = None

    def on_gap(self) -> None:
        """Messages may have been missed: look again at once."""
        self._missed_messages.set()

    async def run(self) -> None:
        """Look again, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN_S):
                    await self._missed_messages.wait()
            self._missed_messages.clear()
            for partition in [one for one in self._names if not self._is_waited_for(one)]:
                self.discard(partition)
            if self._looks is None:
                self._looks = self._by_shard()
            for partitions, ready_lists in self._looks:
                await self._look_again(partitions, ready_lists)

    def _by_shard(self) -> list[tuple[Sequence[str], Sequence[str]]]:
        calls = [
            partitions[at : at + _PARTITIONS_PER_CALL]
            for partitions in self._keys.by_shard(self._names).values()
            for at in range(0, len(partitions), _PARTITIONS_PER_CALL)
        ]
        return [(partitions, [self._keys.named(one, "ready") for one in partitions]) for partitions in calls]

    async def _look_again(self, partitions: Sequence[str], ready_lists: Sequence[str]) -> None:
        try:
            if not await self._queue.have_ready(ready_lists):
                return
        except StoreUnavailable:
            return  # once the store is back, all are polled
        if len(partitions) == 1:
            self._on_ready(partitions[0])
            return
        half = len(partitions) // 2
        await self._look_again(partitions[:half], ready_lists[:half])
        await self._look_again(partitions[half:], ready_lists[half:])
