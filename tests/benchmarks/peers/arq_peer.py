"""arq: puts of many tasks at the same time (it has no call for many jobs); uvloop, no results kept, short polls."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from tests.benchmarks.peers.turn import noop, report, shares, take

connections: Any = import_module("arq.connections")
worker: Any = import_module("arq.worker")
uvloop: Any = import_module("uvloop")

PRODUCERS = 32
CONCURRENCY = 500
POLL_S = 0.01


def enqueue(url: str, jobs: int, due: float) -> None:
    async def run() -> None:
        pool = await connections.create_pool(connections.RedisSettings.from_dsn(url))
        due_at = datetime.fromtimestamp(due, UTC)

        async def produce(count: int) -> None:
            for _ in range(count):
                await pool.enqueue_job("noop", _defer_until=due_at)

        await asyncio.gather(*map(produce, shares(jobs, PRODUCERS)))
        await pool.aclose()

    uvloop.run(run())


def work(url: str, jobs: int, due: float) -> None:
    async def job(context: object) -> None:
        noop()

    async def started(context: object) -> None:
        report(ready=True)

    async def run() -> None:
        await worker.Worker(
            [worker.func(job, name="noop", keep_result=0)],
            redis_settings=connections.RedisSettings.from_dsn(url),
            max_jobs=CONCURRENCY,
            poll_delay=POLL_S,
            on_startup=started,
            handle_signals=False,
            log_results=False,
        ).async_run()

    uvloop.run(run())


if __name__ == "__main__":
    take(enqueue, work)
