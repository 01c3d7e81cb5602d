"""The pushers of this process, one for each pushed topic whose target it may push to.

Each process pushes each pushed topic; the leases keep a job from being pushed by two. A change is learned from a
message at once; because messages may be lost, all pushes are read again after a gap, and twice a minute.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from dataclasses import dataclass

from deferd.contract import limits
from deferd.contract.errors import DeferdError, PushNotFound, excerpt
from deferd.contract.push_targets import AllowedTargets, TargetRefused
from deferd.engine.engine import Engine
from deferd.engine.push_store import PushDefinition
from deferd.engine.record import json_bytes
from deferd.push.http_sender import HttpSender, PushFailed
from deferd.push.messages import MessageWriter, SerializeJobs
from deferd.push.topic_pusher import Leases, PushTools, TopicPusher, UnderWay
from deferd.store.task_cancellation import cancel_and_wait

_LOG = logging.getLogger(__name__)
_LOOK_S = 30.0
_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class TestResult:
    """How a target responded to a test: `status` and the beginning of the body, or the error."""

    message_id: str
    took_s: float
    status: int | None = None
    excerpt: str = ""
    error: str | None = None


class Pushers:
    """Pushes the jobs of all pushed topics. `serialize_jobs` writes the jobs of batches."""

    def __init__(
        self,
        engine: Engine,
        allowed: AllowedTargets,
        sender: HttpSender,
        *,
        user_agent: str,
        serialize_jobs: SerializeJobs,
        drain_s: float,
    ) -> None:
        self._engine = engine
        self._allowed = allowed
        self._sender = sender
        self._drain_s = drain_s
        self._drain_until_s: float | None = None
        self._tools = PushTools(
            engine.push, engine.queue, engine.deliveries, engine.held_jobs, sender, user_agent, serialize_jobs
        )
        self._pushers: dict[str, TopicPusher] = {}
        self._retired: dict[asyncio.Task[None], TopicPusher] = {}
        self._under_way: dict[str, UnderWay] = {}
        self._checks: set[asyncio.Task[bool]] = set()
        self._leases = Leases(engine.deliveries)
        self._refused: dict[str, bytes] = {}
        self._changed: set[str] = set()
        self._read_all = True
        self._reading = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to push."""
        self._engine.tell_pushers(self)
        self._task = asyncio.create_task(self._run(), name="deferd-pushers")

    def drain(self) -> None:
        """Take no further jobs; requests under way go on."""
        self._drain_until_s = time.monotonic() + self._drain_s
        for pusher in self._pushers.values():
            pusher.stop()

    async def close(self) -> None:
        """Drain; requests that are still under way after the drain timeout are closed, and their jobs released."""
        if self._drain_until_s is None:
            self.drain()
        if self._task is not None:
            await cancel_and_wait({self._task})
        left_s = max((self._drain_until_s or 0) - time.monotonic(), 0)
        pushers = [*self._pushers.values(), *self._retired.values()]
        await asyncio.gather(*(pusher.close(left_s) for pusher in pushers))
        await cancel_and_wait({*self._retired, *self._checks})
        await self._sender.close()

    async def test(self, definition: PushDefinition) -> TestResult:
        """Send a signed request without a job. Raises TargetRefused, StoreUnavailable."""
        self._allowed.check_url(definition.push.url)
        writer = MessageWriter(definition, self._tools.user_agent, self._tools.serialize_jobs)
        message_id = f"msg_test_{os.urandom(8).hex()}"
        now_s = await self._engine.store_clock.now_ms(0) / 1000
        message = writer.of_test(message_id, json_bytes({"test": True, "topic": definition.topic}), now_s)
        began_s = time.perf_counter()
        try:
            response = await self._sender.post(writer.url, message.headers, message.body, writer.timeout_s)
        except PushFailed as error:
            return TestResult(message_id, time.perf_counter() - began_s, error=str(error))
        took_s = time.perf_counter() - began_s
        return TestResult(message_id, took_s, response.status, excerpt(response.body, limits.PUSH_ERROR_BYTES))

    # See PushListener

    def on_ready(self, topic: str) -> None:
        """Let the topic's pusher take the jobs."""
        pusher = self._pushers.get(topic)
        if pusher is not None:
            pusher.wake()

    def on_change(self, topic: str) -> None:
        """Read the topic's push again."""
        self._changed.add(topic)
        self._reading.set()

    def on_removed(self, topic: str, job_id: str) -> None:
        """Close the job's request, if it is one of these."""
        under_way = self._under_way.get(topic)
        for delivery in () if under_way is None else under_way.deliveries:
            job = delivery.held.get(job_id)
            if job is not None and delivery.is_sending:
                check = asyncio.create_task(self._leases.touch(delivery, job))
                self._checks.add(check)
                check.add_done_callback(self._checks.discard)

    def on_gap(self) -> None:
        """Read all pushes again, and look for jobs."""
        self._read_all = True
        self._reading.set()
        for pusher in self._pushers.values():
            pusher.wake_now()

    # Which topics are pushed

    async def _run(self) -> None:
        while True:
            has_failed = True
            try:
                await self._read()
                has_failed = False
            except DeferdError as error:
                _LOG.warning("the pushed topics could not be read; trying again: %s", error)
            except Exception:  # noqa: BLE001 (no error may end all pushing)
                _LOG.exception("the pushed topics could not be read; trying again")
            self._read_all |= has_failed
            try:
                async with asyncio.timeout(_RETRY_S if has_failed else _LOOK_S):
                    await self._reading.wait()
            except TimeoutError:
                self._read_all = True
            if has_failed:
                await asyncio.sleep(_RETRY_S)
            self._reading.clear()

    async def _read(self) -> None:
        if self._read_all:
            self._read_all = False
            self._changed.clear()
            stored = await self._engine.push.all()
            for topic in [one for one in self._pushers if one not in stored]:
                self._retire(topic)
            for topic, text in stored.items():
                self._apply(topic, text)
        while self._changed:
            topic = self._changed.pop()
            try:
                definition = await self._engine.push.get(topic)
            except PushNotFound:
                self._retire(topic)
            else:
                self._apply(topic, definition.stored)

    def _apply(self, topic: str, stored: bytes) -> None:
        pusher = self._pushers.get(topic)
        if pusher is not None and pusher.definition.stored == stored:
            pusher.wake_now()
            return
        self._retire(topic)
        if self._drain_until_s is not None:
            return
        try:
            definition = PushDefinition.read(topic, stored)
            self._allowed.check_url(definition.push.url)
        except (TargetRefused, ValueError) as error:
            if self._refused.get(topic) != stored:
                self._refused[topic] = stored
                reason = error if isinstance(error, TargetRefused) else "its push cannot be read"
                _LOG.warning("this process does not push the jobs of topic %s: its URL %s", topic, reason)
            return
        self._refused.pop(topic, None)
        under_way = self._under_way.setdefault(topic, UnderWay())
        self._pushers[topic] = TopicPusher(definition, self._tools, self.on_change, under_way)

    def _retire(self, topic: str) -> None:
        """Stop a pusher; its requests under way end normally."""
        pusher = self._pushers.pop(topic, None)
        if pusher is not None:
            pusher.stop()
            task = asyncio.create_task(pusher.close(pusher.definition.push.timeout + self._drain_s))
            self._retired[task] = pusher
            task.add_done_callback(self._on_retired)

    def _on_retired(self, task: asyncio.Task[None]) -> None:
        topic = self._retired.pop(task).topic
        left = self._under_way.get(topic)
        if left is not None and topic not in self._pushers and not left.deliveries:
            del self._under_way[topic]
