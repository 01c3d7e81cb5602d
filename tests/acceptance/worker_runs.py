"""Workers in tests: run in the test's own loop, and waiting for what they do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from deferd import AsyncClient, Job, JobNotFound, Worker

WITHIN_S = 20.0


@contextlib.asynccontextmanager
async def serving(worker: Worker) -> AsyncIterator[None]:
    """The worker works as long as the block runs, and has ended in order after it."""
    serve = asyncio.create_task(worker.serve())
    try:
        yield
    finally:
        worker.stop()
        async with asyncio.timeout(WITHIN_S):
            await serve


def sleeping_handler(worker: Worker, topic: str) -> tuple[asyncio.Event, asyncio.Event]:
    """A handler that sleeps until it is cancelled; the events tell that it has begun, and that it has ended."""
    began, ended = asyncio.Event(), asyncio.Event()

    @worker.handler(topic)
    async def sleep() -> None:
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    return began, ended


async def in_state(client: AsyncClient, topic: str, job_id: str, state: str) -> Job:
    """The job once it is in that state."""
    seen = None
    try:
        async with asyncio.timeout(WITHIN_S):
            while True:
                with contextlib.suppress(JobNotFound):
                    seen = await client.look(topic, job_id)
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
                await client.look(topic, job_id)
            except JobNotFound:
                return
            await asyncio.sleep(0.01)
