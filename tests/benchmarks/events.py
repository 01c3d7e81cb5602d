"""What do events cost the store: CPU of each call without them, with them, and the memory of those that are kept.

    python -m tests.benchmarks.events [--jobs 20000] [--rounds 3] [--kept 1000]

Each step runs on a topic without settings, and on one that keeps events; single calls, and batches of 500. What a step
costs is the CPU time of the store's process, by its own count, without the append-only file. Compare a revision with
another by running both in turn: this file runs on revisions without events too, and leaves them out.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path

from deferd.contract.model import CancelItem, FinishItem, JobState, PutJob, TopicSettings
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.store.connection import connect
from tests.benchmarks.measuring import embedded_environment
from tests.integration.engine.sweeping import purge_jobs
from tests.integration.store.store_servers import StoreServer

BODY = {"order": 1042, "customer": "c-17", "items": [1, 2, 3]}
BATCH = 500


class Cycle:
    """A whole life of jobs in one topic, step by step."""

    def __init__(self, server: StoreServer, engine: Engine, topic: str, jobs: int, size: int) -> None:
        self._server, self._engine, self._topic = server, engine, topic
        self._jobs, self._size = jobs, size
        self.us: dict[str, float] = {}
        self._held: list[FinishItem] = []

    def _used_us(self) -> float:
        cpu = self._server.command("INFO", "cpu")
        return float(cpu["used_cpu_user"] + cpu["used_cpu_sys"]) * 1e6

    async def _measure(self, step: str, call: Callable[[int], Awaitable[object]]) -> None:
        """Call it for each batch, one after the other."""
        before = self._used_us()
        for start in range(0, self._jobs, self._size):
            await call(start)
        self.us[step] = (self._used_us() - before) / self._jobs

    def _jobs_of(self, start: int, prefix: str = "order", delay: float = 0) -> list[PutJob]:
        return [
            PutJob(topic=self._topic, id=f"{prefix}-{number}", body=BODY, delay=delay)
            for number in range(start, start + self._size)
        ]

    async def run(self) -> None:
        scripts, keys = self._engine._scripts, self._engine.queue._keys.of_topic(self._topic)
        queue = self._engine.queue

        async def put(start: int) -> None:
            await self._engine.puts.put_many(self._jobs_of(start))

        async def put_delayed(start: int) -> None:
            await self._engine.puts.put_many(self._jobs_of(start, "delayed", 3600))

        async def cancel(start: int) -> None:
            ids = [f"delayed-{number}" for number in range(start, start + self._size)]
            await self._engine.cancels.cancel_many(self._topic, [CancelItem(id=job_id) for job_id in ids])

        async def pop(_start: int) -> None:
            reply = await queue.pop(self._topic, [PopRequest(self._size)])
            self._held.extend(FinishItem(id=job.id, receipt=str(job.receipt)) for job in reply.jobs[0])

        async def finish(start: int) -> None:
            await queue.finish_many(self._topic, self._held[start : start + self._size])

        async def promote(_start: int) -> None:
            lock = keys[11].replace("due", "lock")
            await scripts.run("promote", (*keys, lock), (self._topic, self._size, 1000, "", 10, "bench", 1000))

        await self._measure("put", put)
        await self._measure("pop", pop)
        await self._measure("finish", finish)
        await self._measure("put delayed", put_delayed)
        for start in range(0, self._jobs, 1000):
            ids = [f"delayed-{number}" for number in range(start, min(start + 1000, self._jobs))]
            self._server.command("ZADD", keys[1], *(part for job_id in ids for part in (1, job_id)))
        await self._measure("promote", promote)
        while (await self._engine.topics.get(self._topic)).counts[JobState.DELAYED]:
            await promote(0)
        await purge_jobs(self._engine, self._topic)
        await self._measure("put delayed", put_delayed)
        await self._measure("cancel", cancel)


async def measure(server: StoreServer, jobs: int, rounds: int, kept: int) -> None:
    has_events = "events" in TopicSettings.model_fields
    variants = {"off": None} | ({"on": kept} if has_events else {})
    found: defaultdict[tuple[int, str, str], list[float]] = defaultdict(list)
    store = await connect(server.url, timeout_s=30)
    engine = Engine(store, movable_clock=False)
    for round_ in range(rounds):
        for size in (1, BATCH):
            for variant, events in variants.items():
                topic = f"bench.{variant}.{size}.{round_}"
                if events is not None:
                    await engine.topics.set(topic, TopicSettings.model_validate({"events": events}))
                cycle = Cycle(server, engine, topic, jobs, size)
                await cycle.run()
                for step, us in cycle.us.items():
                    found[size, step, variant].append(us)
    if has_events:
        prefix = "deferd:{0}:bench.on.1.0:events/log"
        used, length = server.command("MEMORY", "USAGE", prefix, "SAMPLES", 0), server.command("LLEN", prefix)
        print(f"memory of {length} events: {used:,} bytes, {used / length:.0f} each")
    await engine.close()
    await store.close()
    print(f"CPU of the store, us a job, median of {rounds}; lowest in parentheses")
    for size in (1, BATCH):
        print(f"{'single calls' if size == 1 else f'batches of {size}'}")
        for step in ("put", "pop", "finish", "put delayed", "promote", "cancel"):
            costs = {variant: found[size, step, variant] for variant in variants}
            shown = [f"{variant} {statistics.median(us):7.2f} ({min(us):.2f})" for variant, us in costs.items()]
            print(f"  {step:12}", "  ".join(shown))
        for variant in variants:
            cycle_us = sum(min(found[size, step, variant]) for step in ("put", "pop", "finish"))
            print(f"  put+pop+finish {variant}: {cycle_us:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kept", type=int, default=1000)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        StoreServer(Path(folder), environment=embedded_environment()) as server,
    ):
        asyncio.run(measure(server, arguments.jobs, arguments.rounds, arguments.kept))


if __name__ == "__main__":
    main()
