"""deferd: puts in batches over HTTP with the official client; a worker loop that pops, runs and finishes batches."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import uvloop

from deferd.client import AsyncClient
from tests.benchmarks.peers.turn import done, say, shares, take

TOPIC = "bench.peers"
BATCH = 500
PRODUCERS = 2
CONSUMERS = 2


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
    async def job() -> None:
        """Do nothing, as the peers' jobs do."""

    async def run() -> None:
        async with AsyncClient(url, timeout=30) as client:

            async def consume() -> None:
                while True:
                    deliveries = await client.pop(TOPIC, count=BATCH)
                    for _ in deliveries:
                        await job()
                    results = await client.finish_many(TOPIC, deliveries)
                    done(sum(result.status == 200 for result in results))

            say(ready=True)
            await asyncio.gather(*(consume() for _ in range(CONSUMERS)))

    uvloop.run(run())


if __name__ == "__main__":
    take(enqueue, work)
