"""The consistency check finds nothing under load; test_state_machine.py checks after calls in any order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from deferd.contract.errors import DeferdError
from deferd.contract.model import ChangeJob, TopicSettings
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from tests.integration.engine.engine_driver import TOPIC, job
from tests.integration.engine.sweeping import redrive_jobs
from tests.integration.engine.test_consistency_check import kinds


class Load:
    """Random calls of producers and consumers on a topic, until the test stops them."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.ids = [f"j{number}" for number in range(400)]
        self.calls = 0
        self.ended = False

    async def run(self) -> None:
        acts: list[Callable[[], object]] = [self.put, self.put, self.pop, self.pop, self.cancel, self.change]
        while not self.ended:
            try:
                await self.random.choice(acts)()  # type: ignore[misc]
            except DeferdError:
                continue  # any state is possible: taken, held, gone
            finally:
                self.calls += 1

    async def put(self) -> None:
        await self.engine.puts.put_many(
            [
                job(
                    job_id,
                    delay=self.random.choice((0, 0, 0.01, 0.2)),
                    ttl=self.random.choice((None, 0.05, 5)),
                    retain=self.random.choice((0, 0.1)),
                    max_attempts=self.random.choice((None, 1)),
                    on_conflict=self.random.choice(("keep", "replace", "reject")),
                )
                for job_id in self.random.sample(self.ids, 40)
            ]
        )

    async def pop(self) -> None:
        request = PopRequest(30, ttr_ms=self.random.choice((None, 20, 100)), consumer=self.random.choice((None, "c")))
        popped = (await self.engine.queue.pop(TOPIC, [request])).jobs[0]
        for one in popped:
            end = self.random.randrange(6)
            if end == 0:
                await self.engine.deliveries.release(TOPIC, one.id, one.receipt, delay_ms=self.random.choice((0, 50)))
            elif end == 1:
                await self.engine.deliveries.bury(TOPIC, one.id, one.receipt)
            elif end == 2:
                await self.engine.held_jobs.return_popped([one])
            elif end > 3:
                await self.engine.queue.finish(TOPIC, one.id, one.receipt)

    async def cancel(self) -> None:
        for job_id in self.random.sample(self.ids, 10):
            await self.engine.cancels.cancel(TOPIC, job_id)

    async def change(self) -> None:
        await redrive_jobs(self.engine, TOPIC, limit=5)
        change = ChangeJob(delay=self.random.choice((0, 0.05)))
        await self.engine.queue.change(TOPIC, self.random.choice(self.ids), change)


@pytest.mark.parametrize("waiting", [0, pytest.param(3000, marks=pytest.mark.slow)], ids=["short list", "long list"])
async def test_a_busy_topic_raises_no_false_alarm(engine: Engine, waiting: int) -> None:
    """A repair looks as a check does; what it repaired without a need would show, too."""
    await engine.topics.set(TOPIC, TopicSettings())
    await engine.puts.put_many([job(f"waiting{number}") for number in range(waiting)])
    loads = [Load(engine, seed) for seed in range(4)]
    async with asyncio.TaskGroup() as group:
        for load in loads:
            group.create_task(load.run())
        checked = 0
        for _ in range(5 if waiting else 8):
            found = await engine.consistency.audit_topic(TOPIC, repair=True)
            assert (kinds(found), found.unchecked) == ({}, None), found.findings.examples
            checked += found.checked
        for load in loads:
            load.ended = True
    assert checked > waiting
    assert all(load.calls > 5 for load in loads)
