"""Pushes the jobs of one topic: takes as many as the limits allow, sends them, and handles the responses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from orjson import Fragment

from deferd.contract.errors import DeferdError, StoreUnavailable
from deferd.engine.deliveries import Deliveries
from deferd.engine.held_jobs import HeldJobs
from deferd.engine.push.push_definition import PushDefinition
from deferd.engine.push.push_store import COUNTED_MS, PushStore, Taken
from deferd.engine.queue import JobQueue
from deferd.engine.record import JobRecord
from deferd.engine.script_arguments import encode_finish
from deferd.engine.stored_fields import to_ms
from deferd.push import metrics
from deferd.push.delivery import Delivery, Leases, UnderWay, settled
from deferd.push.http_sender import HttpSender, PushFailed
from deferd.push.messages import MessageWriter, SerializeJobs
from deferd.push.outcomes import Outcome, failed, judge

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

    `under_way` are the requests of the topic in this process, also those of earlier versions.
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
        self._observe_s = metrics.SECONDS.labels(label).observe_s
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

        But requests under way are reported meanwhile: otherwise they would no longer count.
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
        metrics.IN_FLIGHT.inc()
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
                metrics.IN_FLIGHT.dec()
                self.under_way.remove(delivery)
            if outcome is None:
                metrics.REQUESTS.labels(self._label, "withdrawn").inc()
                await self._give_up_probe(delivery)
                return
            metrics.REQUESTS.labels(self._label, outcome.verdict).inc()
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
            await settled(lambda: queue.finish(topic, job.id, job.receipt, value), until_s)
        else:
            items = [encode_finish(job.id, job.receipt, None) for job in jobs]
            await settled(lambda: queue.finish_many(topic, items), until_s)

    async def _end(self, job: JobRecord, outcome: Outcome, failure: str | None, until_s: float) -> None:
        deliveries, topic = self._tools.deliveries, self.topic
        job_id, receipt = job.id, job.receipt
        error = failure or outcome.error
        match "released" if failure is not None else outcome.verdict:
            case "accepted":  # the receiver finishes it, within the whole of its ttr
                await settled(lambda: deliveries.touch(topic, job_id, receipt), until_s)
            case "snoozed":
                delay_ms = to_ms(outcome.wait_s)
                await settled(
                    lambda: deliveries.release(topic, job_id, receipt, delay_ms=delay_ms, error=error, counts=False),
                    until_s,
                )
            case "buried":
                await settled(lambda: deliveries.bury(topic, job_id, receipt, error=error), until_s)
            case _:
                await settled(lambda: deliveries.release(topic, job_id, receipt, error=error), until_s)


async def _wait(event: asyncio.Event, wait_s: float | None) -> None:
    """Wait for the event, at most `wait_s`."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await event.wait()
