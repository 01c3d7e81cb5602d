"""deferd: puts in batches over HTTP with its client, and its worker."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import uvloop

from deferd import AsyncClient, Worker
from tests.benchmarks.peers.turn import noop, report, shares, take

TOPIC = "bench.peers"
BATCH = 500
PRODUCERS = 2
CONCURRENCY = 100


def enqueue(url: str, jobs: int, due: float) -> None:
    due_at = datetime.fromtimestamp(due, UTC).isoformat()

    async def run() -> None:
        async with AsyncClient(url, timeout=30) as client:

            async def produce(count: int) -> None:
                for start in range(0, count, BATCH):
                    batch = [{"topic": TOPIC, "run_at": due_at}] * min(BATCH, count - start)
                    assert all(result.status == 201 for result in await client.put_batch(batch)), "a put was refused"

            await asyncio.gather(*map(produce, shares(jobs, PRODUCERS)))

    uvloop.run(run())


def work(url: str, jobs: int, due: float) -> None:
    worker = Worker(url, concurrency=CONCURRENCY)

    @worker.handler(TOPIC)
    async def job() -> None:
        noop()

    async def run() -> None:
        report(ready=True)
        await worker.serve()

    uvloop.run(run())


if __name__ == "__main__":
    take(enqueue, work)
