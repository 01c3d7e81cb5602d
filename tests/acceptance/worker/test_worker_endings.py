"""How a worker ends deliveries: snoozes, exceptions that are no failures, and the time limits of jobs."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from deferd import AsyncClient, Context, FixedBackoff, Snooze, Worker
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.worker_runs import in_state, serving


@pytest.fixture
def worker(shared_service: ServiceProcess) -> Worker:
    return Worker(shared_service.url, grace=5)


async def test_a_snooze_counts_no_attempt(client: AsyncClient, worker: Worker, topic: str) -> None:
    @worker.handler(topic)
    async def close(context: Context) -> list[int]:
        if context.job.snoozes < 2:
            raise Snooze(0.1, "not yet")
        return [context.job.attempt, context.job.snoozes]

    await client.put(topic, id="a", max_attempts=1, retain=60)
    async with serving(worker):
        done = await in_state(client, topic, "a", "finished")
    assert (done.result, done.last_error) == ([1, 2], "not yet")


async def test_is_failure_decides_which_exceptions_count(
    client: AsyncClient, topic: str, shared_service: ServiceProcess
) -> None:
    worker = Worker(shared_service.url, grace=5, is_failure=lambda error: not isinstance(error, ConnectionError))

    @worker.handler(topic)
    def close(context: Context) -> None:
        raise ConnectionError("away") if context.job.snoozes < 1 else ValueError("wrong")

    await client.put(topic, id="a", max_attempts=1, backoff=FixedBackoff(seconds=0.1))
    async with serving(worker):
        dead = await in_state(client, topic, "a", "dead")
    assert (dead.attempts, dead.snoozes, dead.last_error) == (1, 1, "ValueError: wrong")


async def test_the_worker_ends_a_handler_before_the_time_limit_of_its_job(
    client: AsyncClient, worker: Worker, topic: str
) -> None:
    ran_s = []

    @worker.handler(topic, time_limit=60)
    async def close() -> None:
        began_s = time.monotonic()
        try:
            await asyncio.sleep(30)
        finally:
            ran_s.append(time.monotonic() - began_s)

    await client.put(topic, id="a", max_attempts=1, time_limit=timedelta(seconds=1), ttr=0.4)
    async with serving(worker):
        dead = await in_state(client, topic, "a", "dead")
    assert (dead.reason, dead.last_error) == ("attempts_exhausted", "the time limit of 1 s has passed")
    assert 0.5 < ran_s[0] < 1
