"""Runs workers in the test's event loop, and waits for the states of their jobs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from deferd import AsyncClient, Context, Job, JobNotFound, Worker

WITHIN_S = 20.0


@contextlib.asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[None]:
    """Run the worker during the block, and stop it gracefully after it."""
    serve = asyncio.create_task(worker.serve())
    try:
        yield
    finally:
        worker.stop()
        async with asyncio.timeout(WITHIN_S):
            await serve


def sleeping_handler(worker: Worker, topic: str) -> tuple[asyncio.Event, asyncio.Event]:
    """A handler that sleeps until it is cancelled; the events are set when it begins and when it ends."""
    began, ended = asyncio.Event(), asyncio.Event()

    @worker.handler(topic)
    async def sleep() -> None:
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    return began, ended


async def prefetching_worker(
    client: AsyncClient, url: str, topic: str, **options: Any
) -> tuple[Worker, list[str], asyncio.Event]:
    """A worker with one slot. When it serves, job "slow" runs until the event, and "next" and "last" are prefetched.

    The list gets the ids of the jobs that have started, and the number of the attempt if that is not the first.
    `options` are those of all puts. A worker prefetches only after a quick handler: the first job.
    """
    worker = Worker(url, concurrency=1, prefetch=10)
    began: list[str] = []
    may_end = asyncio.Event()

    @worker.handler(topic)
    async def handle(context: Context) -> None:
        attempt = context.job.attempt
        began.append(context.job.id if attempt == 1 else f"{context.job.id} {attempt}")
        if context.job.id == "slow":
            await may_end.wait()

    await client.put_batch([{"topic": topic, "id": name, **options} for name in ("quick", "slow", "next", "last")])
    return worker, began, may_end


async def in_state(client: AsyncClient, topic: str, job_id: str, state: str) -> Job:
    """Wait until the job is in this state, and return it."""
    seen = None
    try:
        async with asyncio.timeout(WITHIN_S):
            while True:
                with contextlib.suppress(JobNotFound):
                    seen = await client.get(topic, job_id)
                    if seen.state == state:
                        return seen
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"job {job_id!r} did not become {state}: {seen and seen.fields}") from None


async def gone(client: AsyncClient, topic: str, job_id: str) -> None:
    """Wait until there is no such job."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                await client.get(topic, job_id)
            except JobNotFound:
                return
            await asyncio.sleep(0.01)
