"""Drives an engine step by step in tests: puts, pops, moves of the clock, runs of the timer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from deferd.contract.model import JobState, PutJob
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import JobRecord
from deferd.engine.redis_keys import Keys
from deferd.engine.timer import Timer
from deferd.store.connection import connect
from tests.integration.store.store_servers import StoreServer

TOPIC = "orders.close"
KEY = f"deferd:{{0}}:{TOPIC}"


@asynccontextmanager
async def started_engine(url: str, *, timeout_s: float = 5, **options: Any) -> AsyncIterator[Engine]:
    """A started engine with its own connection to the store, like that of another process."""
    store = await connect(url, timeout_s=timeout_s)
    engine = Engine(store, **options)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()
        await store.close()


def make_topics(server: StoreServer, topics: Sequence[str], shards: int = 1) -> None:
    """Let topics exist, without any jobs."""
    keys = Keys(shards)
    with server.client() as client, client.pipeline(transaction=False) as pipeline:
        for topic in topics:
            shard = keys.shard_of(topic)
            pipeline.zadd(keys.of_shard(shard, "topics"), {topic: 0})
            pipeline.hset(keys.of_shard(shard, "settings"), topic, "")
        pipeline.execute()


def job(job_id: str = "a", **fields: Any) -> PutJob:
    return PutJob.model_validate({"topic": TOPIC, "id": job_id, **fields})


class EngineDriver:
    """An engine whose timer and clock are driven by the test."""

    def __init__(self, engine: Engine, server: StoreServer) -> None:
        self.engine = engine
        self.server = server
        self.queue, self.puts, self.cancels = engine.queue, engine.puts, engine.cancels
        self.deliveries = engine.deliveries
        self.held_jobs = engine.held_jobs
        self.topics = engine.topics

    def move_clock(self, seconds: float) -> None:
        """Move the store's clock, as the scripts read it, forward."""
        for shard in range(len(self.engine.timers)):
            self.server.command("INCRBY", f"deferd:{{{shard}}}:clock", round(seconds * 1000))

    async def run_timer(self) -> float:
        """Run the timers until nothing is due; return the seconds for which the first to wake would sleep."""
        return min([await self._run(timer) for timer in self.engine.timers])

    @staticmethod
    async def _run(timer: Timer) -> float:
        for _ in range(1000):
            wait_s = await timer.run_once()
            if wait_s > 0:
                return wait_s
        raise AssertionError("the timer never finished its work")

    async def pass_time(self, seconds: float) -> None:
        """Move the clock and let the timer do the work that is due."""
        self.move_clock(seconds)
        await self.run_timer()

    async def put(self, job_id: str = "a", **fields: Any) -> JobRecord:
        return (await self.puts.put(job(job_id, **fields))).record

    async def pop(self, count: int = 1, **request: Any) -> list[JobRecord]:
        return (await self.queue.pop(TOPIC, [PopRequest(count, **request)])).jobs[0]

    async def pop_one(self, **request: Any) -> JobRecord:
        (popped,) = await self.pop(1, **request)
        return popped

    async def state(self, job_id: str = "a") -> JobState:
        return (await self.queue.get(TOPIC, job_id)).state

    async def counts(self) -> dict[str, int]:
        """How many jobs are in each state, without empty states."""
        view = await self.topics.get(TOPIC)
        return {state.value: count for state, count in view.counts.items() if count}

    def keys_left(self) -> set[str]:
        """The last words of the names of the topic's keys, except its tally, and touches, which expire."""
        found = self.server.command("KEYS", f"{KEY}:*")
        names = {key.decode().rpartition(":")[2] for key in found}
        return {name for name in names - {"tally"} if not name.startswith("touches/")}

    def ready_list(self) -> list[str]:
        """The ids in the Ready list, in the order in which they will be handed out."""
        return [entry.decode() for entry in self.server.command("ZRANGE", f"{KEY}:ready", 0, -1)]
