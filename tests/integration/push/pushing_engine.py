"""An engine with pushers, as a process of the service has it, and what tests ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from deferd.api.job_responses import written_deliveries
from deferd.contract.errors import JobNotFound
from deferd.contract.model import JobState, PutJob
from deferd.contract.operations.push import SetPush
from deferd.contract.push_targets import AllowedTargets
from deferd.engine.engine import Engine
from deferd.engine.push_store import TargetState
from deferd.engine.record import JobRecord
from deferd.push.http_sender import HttpSender, Resolve
from deferd.push.pushers import Pushers
from tests.integration.engine.engine_driver import TOPIC
from tests.push_receiver import Receiver
from tests.waiting import until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_" + "c2l4dHktZm91ciBieXRlcyBhcmUgZW5vdWdoIGZvciBhbGwh"
LOCAL = ("127.0.0.1:*",)


class PushingEngine:
    """An engine that pushes, and the target that its topics are pushed to."""

    def __init__(self, engine: Engine, target: Receiver, pushers: Pushers) -> None:
        self.engine = engine
        self.target = target
        self.pushers = pushers

    async def push(self, topic: str = TOPIC, **fields: Any) -> None:
        """Push the topic to the target."""
        wanted = {"url": self.target.url, "secrets": [SECRET], "timeout": 5, **fields}
        await self.engine.push.set(topic, SetPush.model_validate(wanted))

    async def set_again(self, topic: str = TOPIC, **fields: Any) -> None:
        """Replace the push of the topic, but keep its secrets."""
        await self.engine.push.set(topic, SetPush.model_validate({"url": self.target.url, **fields}))

    async def put(self, job_id: str = "a", topic: str = TOPIC, **fields: Any) -> None:
        await self.engine.puts.put(PutJob.model_validate({"topic": topic, "id": job_id, **fields}))

    async def job(self, job_id: str = "a", topic: str = TOPIC) -> JobRecord | None:
        try:
            return await self.engine.queue.get(topic, job_id)
        except JobNotFound:
            return None

    async def until_job(
        self, holds: Callable[[JobRecord | None], bool], what: str, job_id: str = "a", topic: str = TOPIC
    ) -> JobRecord | None:
        """Wait until this is true of the job, which is None when there is none."""
        job: list[JobRecord | None] = [None]
        await until_async(lambda: self._read(job, job_id, topic, holds), what)
        return job[0]

    async def _read(
        self, found: list[JobRecord | None], job_id: str, topic: str, holds: Callable[[JobRecord | None], bool]
    ) -> bool:
        found[0] = await self.job(job_id, topic)
        return holds(found[0])

    async def until_state(self, state: JobState, job_id: str = "a", topic: str = TOPIC) -> JobRecord:
        """Wait until the job is in a state."""
        job = await self.until_job(lambda one: one is not None and one.state is state, f"{job_id} is {state}", job_id)
        assert job is not None
        return job

    async def until_gone(self, job_id: str = "a", topic: str = TOPIC) -> None:
        """Wait until the job was finished, and is not kept."""
        await self.until_job(lambda one: one is None, f"{job_id} is finished", job_id, topic)

    async def until_received(self, number: int) -> None:
        await until(lambda: len(self.target.requests) >= number, f"{number} requests have arrived")

    async def state(self, topic: str = TOPIC) -> TargetState:
        """What the topic's view says of its target."""
        state = (await self.engine.topics.get(topic)).target
        assert state is not None
        return state

    async def until_circuit(self, *circuits: str) -> TargetState:
        """Wait until the circuit is in one of these states."""
        found: list[TargetState] = []

        async def holds() -> bool:
            found[:] = [await self.state()]
            return found[0].circuit in circuits

        await until_async(holds, f"the circuit is {' or '.join(circuits)}")
        return found[0]


async def until_async(holds: Callable[[], Awaitable[bool]], what: str, within_s: float = 20.0) -> None:
    """As `tests.waiting.until`, for a condition that must be awaited."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + within_s
    while not await holds():
        assert loop.time() < end_s, f"not so after {within_s:g} s: {what}"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def pushing_engine(
    engine: Engine,
    target: Receiver,
    *,
    allow: tuple[str, ...] = LOCAL,
    networks: tuple[str, ...] = (),
    resolve: Resolve | None = None,
    drain_s: float = 0.5,
) -> AsyncIterator[PushingEngine]:
    """Pushers on an engine, as `deferd.api.app` makes them."""
    allowed = AllowedTargets(allow, networks)
    pushers = Pushers(
        engine,
        allowed,
        HttpSender(allowed, resolve=resolve),
        user_agent="deferd/test",
        serialize_jobs=written_deliveries,
        drain_s=drain_s,
    )
    pushers.start()
    try:
        yield PushingEngine(engine, target, pushers)
    finally:
        await pushers.close()
