"""How a worker ends deliveries: snoozes, exceptions that are no failures, time limits of
jobs, and jobs that follow."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from deferd import AsyncClient, Context, FixedBackoff, Then, Worker
from tests.acceptance.client.lossy_proxy import LossyProxy
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.worker_runs import in_state, serving
from tests.waiting import until


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


class Mute(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise SystemExit


RAISED = [
    GeneratorExit(),
    SystemExit(3),
    KeyboardInterrupt(),
    asyncio.CancelledError(),
    StopIteration(),
    StopAsyncIteration(),
    BaseExceptionGroup("two", [KeyboardInterrupt(), ValueError()]),
    Mute(),
]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_whatever_a_handler_raises_ends_its_attempt_and_frees_its_slot(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, kind: str
) -> None:
    worker = Worker(shared_service.url, concurrency=1)

    def fail_in_thread(number: int) -> None:
        raise RAISED[number]

    async def fail(number: int) -> None:
        raise RAISED[number]

    worker.handler(topic)(fail if kind == "async" else fail_in_thread)
    backoff = FixedBackoff(seconds=600)
    await client.put_batch(
        [{"topic": topic, "id": f"j{at}", "body": at, "backoff": backoff} for at in range(len(RAISED))]
    )
    async with serving(worker):
        for at, error in enumerate(RAISED):
            released = await in_state(client, topic, f"j{at}", "delayed")
            assert released.attempts == 1
            assert type(error).__name__ in (released.last_error or "")


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


async def test_a_handler_puts_the_jobs_that_follow(client: AsyncClient, worker: Worker, topic: str) -> None:
    seen = []

    @worker.handler(topic)
    async def first(context: Context) -> Then:
        context.put(topic + ".next", 1, id="one", delay=timedelta(0))
        return Then({"topic": topic + ".next", "body": 2}, result="done")

    @worker.handler(topic + ".next")
    def then(number: int, context: Context) -> None:
        seen.append((number, context.job.traceparent))

    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    await client.put(topic, id="a", retain=60, traceparent=trace)
    async with serving(worker):
        done = await in_state(client, topic, "a", "finished")
        await until(lambda: len(seen) == 2, "both ran")
    assert done.result == "done"
    assert sorted(seen) == [(1, trace), (2, trace)]


async def test_nothing_is_put_when_the_handler_fails(client: AsyncClient, worker: Worker, topic: str) -> None:
    @worker.handler(topic)
    async def fail(context: Context) -> None:
        context.put(topic, id="next")
        raise ValueError("no")

    await client.put(topic, id="a", max_attempts=1)
    async with serving(worker):
        await in_state(client, topic, "a", "dead")
    assert [job.id async for job in client.jobs(topic)] == ["a"]


async def test_a_job_whose_puts_are_refused_is_released_with_the_reason(
    client: AsyncClient, worker: Worker, topic: str
) -> None:
    @worker.handler(topic)
    async def handle() -> Then:
        return Then({"topic": topic, "id": "new", "delay": 60}, {"topic": topic, "id": "taken"})

    await client.put(topic, id="taken", delay=60)
    await client.put(topic, id="a", max_attempts=1)
    async with serving(worker):
        dead = await in_state(client, topic, "a", "dead")
    assert dead.last_error is not None
    assert dead.last_error.startswith("the service refused the jobs that the handler put, or its result: topic ")
    assert dead.last_error.endswith(" already has a job 'taken'")
    assert sorted([job.id async for job in client.jobs(topic)]) == ["a", "taken"]


@pytest.mark.parametrize("retain", [0, 60])
async def test_a_finish_whose_response_is_lost_puts_once(
    client: AsyncClient, proxy: LossyProxy, topic: str, retain: int
) -> None:
    worker = Worker(proxy.url, concurrency=1, prefetch=0)
    runs = []

    @worker.handler(topic)
    async def handle(context: Context) -> Then:
        runs.append(context.job.id)
        proxy.lose_responses()
        return Then({"topic": topic + ".next"})  # without an id: a second put would store a second job

    await client.put(topic, id="a", retain=retain)
    async with serving(worker):
        await until(lambda: sum("/finish " in head for head in proxy.heads) >= 2, "the finish is repeated")
    assert runs == ["a"]
    assert len([job async for job in client.jobs(topic + ".next")]) == 1
