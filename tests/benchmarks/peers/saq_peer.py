"""saq: puts of many tasks at the same time (it has no call for many jobs); orjson, uvloop, no results kept.

Its schedule is kept in whole seconds and checked once a second, which is the shortest interval that it allows.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import Any

from tests.benchmarks.peers.turn import noop, report, shares, take

saq: Any = import_module("saq")
orjson: Any = import_module("orjson")
uvloop: Any = import_module("uvloop")

PRODUCERS = 32
CONCURRENCY = 100


def _queue(url: str) -> Any:
    return saq.Queue.from_url(url, max_concurrent_ops=PRODUCERS, dump=orjson.dumps, load=orjson.loads)


def enqueue(url: str, jobs: int, due: float) -> None:
    async def run() -> None:
        queue = _queue(url)

        async def produce(count: int) -> None:
            for _ in range(count):
                await queue.enqueue("noop", scheduled=int(due), ttl=-1, timeout=0)

        await asyncio.gather(*map(produce, shares(jobs, PRODUCERS)))
        await queue.disconnect()

    uvloop.run(run())


def work(url: str, jobs: int, due: float) -> None:
    async def job(context: object) -> None:
        noop()

    async def started(context: object) -> None:
        report(ready=True)

    async def run() -> None:
        await saq.Worker(_queue(url), [("noop", job)], concurrency=CONCURRENCY, startup=started).start()

    uvloop.run(run())


if __name__ == "__main__":
    take(enqueue, work)
