"""Pushes the jobs of one topic: takes as many as the limits allow, sends them, and handles the responses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from orjson import Fragment
from prometheus_client import Counter, Gauge

from deferd.contract.errors import DeferdError, JobCancelled, JobNotFound, ReceiptStale, StoreUnavailable
from deferd.engine.deliveries import Deliveries, HeldJobs
from deferd.engine.metrics import LATENESS_BUCKETS, FastHistogram
from deferd.engine.push_store import COUNTED_MS, PushDefinition, PushStore, Taken
from deferd.engine.queue import JobQueue
from deferd.engine.record import JobRecord, to_ms
from deferd.engine.script_arguments import encode_finish
from deferd.push.http_sender import HttpSender, PushFailed
from deferd.push.messages import MessageWriter, Outcome, SerializeJobs, failed, judge

_LOG = logging.getLogger(__name__)
_MOST_BYTES = 16 * 1024 * 1024
"""Bytes of bodies under way. Above this, no further jobs are taken."""
_REPORT_S = COUNTED_MS / 1000 / 3
"""How often the requests under way are reported while nothing else is."""
_OTHERS_FIRST_S, _OTHERS_MOST_S = 0.05, 1.0
"""Pauses while other processes have all requests under way."""
_STORE_FIRST_S, _STORE_MOST_S = 0.1, 2.0
_STOPPED = "the service stopped before the target responded"
_PROBE_MARGIN_S = 5.0
_SETTLING_S = 5.0
"""How long the end of the service waits for the calls that finish or release the jobs of ended requests."""
_LEASE_IS_ENOUGH = 0.8
"""A request that ends within this part of the lease needs no touch; the rest of the lease is for the finish."""
_TOUCHES_PER_LEASE = 3
_RETRY_FIRST_S, _RETRY_MOST_S = 0.25, 5.0

_REQUESTS = Counter(
    "deferd_push_requests",
    "Requests to the targets of pushed topics, by outcome: finished, accepted, snoozed, buried, released, withdrawn.",
    ["topic", "outcome"],
)
_REQUEST_SECONDS = FastHistogram(
    "deferd_push_request_seconds",
    "From the beginning of a request to a target to the end of its response, or to its failure.",
    ["topic"],
    buckets=LATENESS_BUCKETS,
)
_IN_FLIGHT = Gauge("deferd_push_in_flight", "Requests to targets that are under way.", multiprocess_mode="livesum")


@dataclass(frozen=True, slots=True)
class PushTools:
    """What all pushers of a process share."""

    store: PushStore
    queue: JobQueue
    deliveries: Deliveries
    held_jobs: HeldJobs
    sender: HttpSender
    user_agent: str
    serialize_jobs: SerializeJobs


class TopicPusher:
    """The pusher of one version of a topic's push. `on_gone` is called when the topic is not pushed any more.

    `under_way` are the requests of the topic in this process, also of earlier versions of its push.
    """

    def __init__(
        self, definition: PushDefinition, tools: PushTools, on_gone: Callable[[str], None], under_way: UnderWay
    ) -> None:
        self.definition = definition
        self.topic = definition.topic
        self._push = definition.push
        self._tools = tools
        self._on_gone = on_gone
        self._writer = MessageWriter(definition, tools.user_agent, tools.serialize_jobs)
        self._leases = Leases(tools.deliveries)
        self.under_way = under_way
        under_way.on_end = self._on_end
        self._tasks: set[asyncio.Task[None]] = set()
        self._report_at_s = 0.0
        self._waking = asyncio.Event()
        self._may_have_more = False
        self._is_suspect = False
        self._is_closing = False
        self._pauses = 0
        self._not_before_s = 0.0
        label = tools.store.label(self.topic)
        self._label = label
        self._observe_s = _REQUEST_SECONDS.labels(label).observe_s
        self._loop_task = asyncio.create_task(self._run(), name="deferd-push")

    # Called by the pushers of the process

    def wake(self) -> None:
        """The topic may have something ready."""
        self._may_have_more = True
        self._waking.set()

    def wake_now(self) -> None:
        """As `wake`; also, the circuit of the target may have been closed."""
        self._not_before_s = 0.0
        self.wake()

    def stop(self) -> None:
        """Take no further jobs; requests under way go on."""
        self._is_closing = True
        self._not_before_s = 0.0
        self._waking.set()

    async def close(self, wait_s: float) -> None:
        """Stop; wait for the requests under way, then close those that are left and release their jobs."""
        self.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=wait_s)
            for delivery in self.under_way.deliveries:
                if delivery.task in self._tasks:
                    delivery.task.cancel()
            if self._tasks:  # their jobs are finished or released
                await asyncio.wait(self._tasks, timeout=_SETTLING_S)
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(self._loop_task, *self._tasks, return_exceptions=True)

    def _on_end(self) -> None:
        if self._may_have_more:
            self._waking.set()

    # Taking jobs

    async def _run(self) -> None:
        failures = 0
        while not self._is_closing:
            self._waking.clear()
            try:
                pause_s = await self._take()
                failures = 0
            except StoreUnavailable:
                pause_s = min(_STORE_FIRST_S * 2**failures, _STORE_MOST_S)
                failures = min(failures + 1, 10)
            except Exception:  # noqa: BLE001 (no error may end the pushing of a topic)
                _LOG.exception("pushing the jobs of topic %s failed; trying again", self.topic)
                pause_s = _STORE_MOST_S
            if not self._is_closing:
                await self._wait(pause_s)

    async def _wait(self, pause_s: float | None) -> None:
        """Wait until something is to be taken: `pause_s` at most, and not before `_not_before_s`.

        Requests under way are still reported in this time: otherwise they would no longer count.
        """
        if self._not_before_s <= time.monotonic():
            await _wait(self._waking, pause_s)
            return
        while (closed_s := self._not_before_s - (now_s := time.monotonic())) > 0:
            if self.under_way.deliveries:
                closed_s = min(closed_s, self._report_at_s - now_s)
                if closed_s <= 0:
                    return
            self._waking.clear()
            await _wait(self._waking, closed_s)

    def _room(self) -> int:
        if self.under_way.bytes >= _MOST_BYTES:
            return 0
        return self._push.max_in_flight - len(self.under_way.deliveries)

    async def _take(self) -> float | None:
        """Take jobs and begin to send them; returns for how long there is nothing to do, None: until a signal."""
        under_way, room, now_s = len(self.under_way.deliveries), self._room(), time.monotonic()
        if room <= 0 and now_s < self._report_at_s:
            self._may_have_more = True
            return self._report_at_s - now_s
        self._report_at_s = now_s + _REPORT_S
        timeout_ms = to_ms(self._push.timeout + _PROBE_MARGIN_S)
        self._may_have_more = False
        taken = await self._tools.store.take(self.topic, under_way=under_way, most=room, timeout_ms=timeout_ms)
        if taken is None:
            self._on_gone(self.topic)
            return _STORE_MOST_S
        if self._is_closing:
            await self._tools.held_jobs.return_popped(taken.jobs)
            return None
        if taken.failures:
            self._is_suspect = True
        most = self._push.jobs_per_request
        for at in range(0, len(taken.jobs), most):
            self._begin(taken.jobs[at : at + most], taken)
        return self._pause_after(taken)

    def _pause_after(self, taken: Taken) -> float | None:
        if taken.more:
            self._may_have_more = True
        if not taken.jobs and taken.wait_ms:
            if self._room() <= 0:
                return _REPORT_S
            if taken.wait_ms > 0:
                self._not_before_s = time.monotonic() + taken.wait_ms / 1000
                return None
            self._pauses += 1
            pause_s: float = _OTHERS_FIRST_S * 2 ** min(self._pauses, 10)
            return min(pause_s, _OTHERS_MOST_S)
        self._pauses = 0
        if taken.more and self._room() > 0 and not taken.is_probe:
            self._waking.set()
        return _REPORT_S if self.under_way.deliveries else None

    def _begin(self, jobs: list[JobRecord], taken: Taken) -> None:
        lease_ends_ms = min(job.reserved_until_ms or 0 for job in jobs)
        lease_s = max(lease_ends_ms - taken.now_ms, 1) / 1000
        delivery = Delivery(jobs, lease_s, taken.now_ms, is_probe=taken.is_probe)
        self.under_way.add(delivery)
        _IN_FLIGHT.inc()
        delivery.task = asyncio.create_task(self._deliver(delivery))
        self._tasks.add(delivery.task)
        delivery.task.add_done_callback(self._tasks.discard)

    # Sending

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            try:
                outcome = await self._send(delivery)
            finally:
                delivery.is_sending = False
                _IN_FLIGHT.dec()
                self.under_way.remove(delivery)
            if outcome is None:
                _REQUESTS.labels(self._label, "withdrawn").inc()
                await self._give_up_probe(delivery)
                return
            _REQUESTS.labels(self._label, outcome.verdict).inc()
            await self._note(delivery, outcome)
            await self._apply(delivery, outcome)
        except DeferdError as error:
            _LOG.warning("a push of topic %s could not be settled: %s", self.topic, error)
        except Exception:  # noqa: BLE001 (the jobs come back when their leases end)
            _LOG.exception("a push of topic %s failed; its jobs come back when their leases end", self.topic)

    async def _send(self, delivery: Delivery) -> Outcome | None:
        """Send the request; None when it was closed because its jobs are not held any more."""
        writer = self._writer
        keeping = None
        if delivery.needs_touch(writer.timeout_s):
            keeping = asyncio.create_task(self._leases.keep(delivery))
        began_s = time.perf_counter()
        try:
            message = writer.of_jobs(delivery.jobs, delivery.now_s())
            response = await self._tools.sender.post(writer.url, message.headers, message.body, writer.timeout_s)
        except PushFailed as error:
            return failed(str(error))
        except asyncio.CancelledError:
            if delivery.is_withdrawn:
                return None
            if self._is_closing:
                return Outcome("released", _STOPPED)
            raise
        finally:
            self._observe_s(time.perf_counter() - began_s)
            if keeping is not None:
                keeping.cancel()
        return judge(response, delivery.now_s(), is_batch=self._push.mode == "batch")

    async def _note(self, delivery: Delivery, outcome: Outcome) -> None:
        """Tell the circuit of the target how the request ended."""
        store = self._tools.store
        if outcome.error == _STOPPED:
            await self._give_up_probe(delivery)
            return
        try:
            if not outcome.is_target_failure:
                if self._is_suspect or delivery.is_probe:
                    self._is_suspect = False
                    await store.note_success(self.topic)
                    self.wake_now()
                return
            self._is_suspect = True
            open_ms = await store.note_failure(
                self.topic, outcome.error or "", is_probe=delivery.is_probe, pause_ms=to_ms(outcome.wait_s)
            )
        except StoreUnavailable as error:
            _LOG.warning("the circuit of topic %s was not updated: %s", self.topic, error)
            return
        if open_ms:
            self._not_before_s = time.monotonic() + open_ms / 1000

    async def _give_up_probe(self, delivery: Delivery) -> None:
        """A request that tells nothing about the target has ended: another one may probe it."""
        if delivery.is_probe:
            with contextlib.suppress(StoreUnavailable):
                await self._tools.store.give_up_probe(self.topic)
            self.wake_now()

    async def _apply(self, delivery: Delivery, outcome: Outcome) -> None:
        """Apply the outcome to the jobs; jobs that are not held any more stay as they are."""
        failures = outcome.failures or {}
        finished: list[JobRecord] = []
        others: list[JobRecord] = []
        for job in delivery.held.values():
            is_finished = outcome.verdict == "finished" and job.id not in failures
            (finished if is_finished else others).append(job)
        if finished:
            await self._finish(finished, outcome.result, delivery.lease_ends_s)
        if others:
            ends_s = delivery.lease_ends_s
            await asyncio.gather(*(self._end(job, outcome, failures.get(job.id), ends_s) for job in others))

    async def _finish(self, jobs: list[JobRecord], result: bytes | None, until_s: float) -> None:
        queue, topic = self._tools.queue, self.topic
        if len(jobs) == 1:
            job, value = jobs[0], None if result is None else Fragment(result)
            await _settled(lambda: queue.finish(topic, job.id, job.receipt, value), until_s)
        else:
            items = [encode_finish(job.id, job.receipt, None) for job in jobs]
            await _settled(lambda: queue.finish_many(topic, items), until_s)

    async def _end(self, job: JobRecord, outcome: Outcome, failure: str | None, until_s: float) -> None:
        deliveries, topic = self._tools.deliveries, self.topic
        job_id, receipt = job.id, job.receipt
        error = failure or outcome.error
        match "released" if failure is not None else outcome.verdict:
            case "accepted":  # the receiver finishes it, within the whole of its ttr
                await _settled(lambda: deliveries.touch(topic, job_id, receipt), until_s)
            case "snoozed":
                delay_ms = to_ms(outcome.wait_s)
                await _settled(
                    lambda: deliveries.release(topic, job_id, receipt, delay_ms=delay_ms, error=error, counts=False),
                    until_s,
                )
            case "buried":
                await _settled(lambda: deliveries.bury(topic, job_id, receipt, error=error), until_s)
            case _:
                await _settled(lambda: deliveries.release(topic, job_id, receipt, error=error), until_s)


async def _wait(event: asyncio.Event, wait_s: float | None) -> None:
    """Wait for the event, at most `wait_s`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await event.wait()


class UnderWay:
    """The requests of one topic in this process, over all versions of its push, so that they share one limit.

    `on_end` is called after each; the newest version sets it.
    """

    def __init__(self) -> None:
        self.deliveries: set[Delivery] = set()
        self.bytes = 0
        self.on_end: Callable[[], None] = lambda: None

    def add(self, delivery: Delivery) -> None:
        """A request begins."""
        self.deliveries.add(delivery)
        self.bytes += delivery.size

    def remove(self, delivery: Delivery) -> None:
        """It has ended."""
        self.deliveries.discard(delivery)
        self.bytes -= delivery.size
        self.on_end()


class Delivery:
    """Jobs that are sent in one request.

    `lease_s` is the shortest of their leases, at `now_ms` of the store. `lease_ends_s` is when it ends if no touch
    succeeds, by the clock of the event loop.
    """

    def __init__(self, jobs: list[JobRecord], lease_s: float, now_ms: int, *, is_probe: bool) -> None:
        self._ahead_ms = now_ms - time.monotonic() * 1000
        self.jobs = jobs
        self.held = {job.id: job for job in jobs}
        self.size = sum(len(job.body) for job in jobs)
        self.lease_s = lease_s
        self.lease_ends_s = time.monotonic() + lease_s
        self.is_probe = is_probe
        self.is_sending = True
        self.is_withdrawn = False
        self.task: asyncio.Task[None] | None = None

    def now_s(self) -> float:
        """The time of the store's clock, in seconds since the epoch."""
        return (time.monotonic() * 1000 + self._ahead_ms) / 1000

    def needs_touch(self, timeout_s: float) -> bool:
        """Whether the request may take longer than the lease."""
        return timeout_s > self.lease_s * _LEASE_IS_ENOUGH

    def lose(self, job: JobRecord) -> None:
        """A job is not held any more. When no held job is left, the request is closed."""
        self.held.pop(job.id, None)
        if not self.held and self.is_sending and self.task is not None:
            self.is_withdrawn = True
            self.task.cancel()


class Leases:
    """Extends the leases of requests under way, and notices jobs that were cancelled or lost."""

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    async def keep(self, delivery: Delivery) -> None:
        """Touch the jobs again and again, until cancelled.

        When the store is unavailable until their lease has ended, the request is closed: as soon as the store is back,
        another process may send the jobs.
        """
        while delivery.held:
            await asyncio.sleep(delivery.lease_s / _TOUCHES_PER_LEASE)
            began_s = time.monotonic()
            are_touched = [await self.touch(delivery, job) for job in list(delivery.held.values())]
            if all(are_touched):
                delivery.lease_ends_s = began_s + delivery.lease_s
            elif time.monotonic() > delivery.lease_ends_s:
                for job in list(delivery.held.values()):
                    delivery.lose(job)

    async def touch(self, delivery: Delivery, job: JobRecord) -> bool:
        """Touch one job; the delivery loses it if it was cancelled or has another holder. False: the store is away."""
        try:
            await self._deliveries.touch(job.topic, job.id, job.receipt)
        except (JobCancelled, JobNotFound, ReceiptStale):
            delivery.lose(job)
        except StoreUnavailable:
            return False  # the next touch may succeed, and so may the finish
        return True


async def _settled(call: Callable[[], Awaitable[object]], until_s: float) -> bool:
    """Make a call that ends a delivery, again and again while the store is unavailable, until the lease has ended.

    `until_s` is the end of the lease, by the clock of the event loop. False: the delivery is not live any more, or the
    store did not respond in time; then the job comes back when its lease ends.
    """
    pause_s = _RETRY_FIRST_S
    while True:
        try:
            await call()
        except (JobCancelled, JobNotFound, ReceiptStale):
            return False
        except StoreUnavailable:
            if time.monotonic() + pause_s > until_s:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_MOST_S)
        else:
            return True
