"""What do calls cost when millions of jobs are stored, compared with a few?

    python -m tests.benchmarks.growth [--few 10000] [--many 5000000] [--rounds 20] [--calls 500]

Two stores run side by side, one with few delayed jobs and one with many, all in one topic and due at random instants,
which is the worst case. Both get the same blocks of calls in turn, through the engine, 100 concurrently: put, cancel,
pop, finish, and a run of the timer that promotes as many jobs. The result is the time of a block, and the CPU time of
the store; each is the median over the rounds. Nothing is written to disk. Cancelled jobs are spread over all stored
ones.

The yardstick is how the bare commands grow that each step needs at least, on the same hash and sorted sets in the same
rounds: HSET and ZADD; ZREM and HDEL; ZRANGE, ZREMRANGEBYRANK and ZADD; HGET, ZADD, ZREM and HDEL.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from deferd.contract.model import PutJob
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import Receipt
from deferd.store.connection import connect
from tests.benchmarks.measuring import (
    OTHER_CORE,
    SERVICE_CORE,
    embedded_environment,
    end_in_order,
    new_event_loop,
    options_of,
    pin,
    show_target,
    store_cpu_us,
)
from tests.integration.store.store_servers import StoreServer

TOPIC = "bench.growth"
POOL, DELAY, READY, RESERVED = (f"deferd:{{0}}:{TOPIC}:{name}" for name in ("pool", "delay", "ready", "reserved"))
BODY = {"order": 1042, "customer": "c-17"}
RECORD_HEAD_BYTES = 26
"""The fixed fields of a record; see lua/lib/record.lua."""
STORED_BATCH = 1000
AT_ONCE = 100
STEPS = ("put", "cancel", "timer turn", "pop+finish")
FAR_S, SPREAD_S = 86_400.0, 30 * 86_400.0
"""Stored jobs are due after a day, at random instants of a month, or all with the same delay."""


class Side:
    """One of the two stores, its engine, and the cost of each step's blocks."""

    def __init__(self, server: StoreServer, stored: int, *, in_order: bool) -> None:
        self.server = server
        self.stored = stored
        self._in_order = in_order
        self.wall_us: dict[str, list[float]] = {}
        self.cpu_us: dict[str, list[float]] = {}
        self._next_number = stored
        self._soon_numbers = itertools.count()
        self._victims = self._stored_ids()

    async def open(self) -> None:
        """Connect."""
        self.store = await connect(self.server.url, timeout_s=30)
        self.engine = Engine(self.store)

    async def close(self) -> None:
        """Disconnect."""
        await self.engine.close()
        await self.store.close()

    async def fill(self) -> float:
        """Store the jobs; returns the rate per second."""
        began = time.perf_counter()
        starts = iter(range(0, self.stored, STORED_BATCH))

        async def fill_part() -> None:
            for start in starts:
                numbers = range(start, min(start + STORED_BATCH, self.stored))
                await self.engine.puts.put_many([self._far_job(number) for number in numbers])

        await asyncio.gather(fill_part(), fill_part())  # one is made while the store works on the other
        return self.stored / (time.perf_counter() - began)

    def _far_job(self, number: int) -> PutJob:
        delay_s = FAR_S if self._in_order else FAR_S + random.random() * SPREAD_S
        return PutJob(topic=TOPIC, id=f"order-{number}", body=BODY, delay=delay_s)

    def _new_numbers(self, count: int) -> range:
        """Numbers of jobs to put, which stay until they are cancelled."""
        first, self._next_number = self._next_number, self._next_number + count
        return range(first, self._next_number)

    def _soon_ids(self, count: int) -> list[str]:
        """Ids of jobs that are due at once."""
        return [f"soon-{number}" for number in itertools.islice(self._soon_numbers, count)]

    def _stored_ids(self) -> Iterator[str]:
        """Ids of stored jobs, each once, in random order."""
        chosen: set[int] = set()
        while True:
            number = random.randrange(self._next_number)
            if number not in chosen:
                chosen.add(number)
                yield f"order-{number}"

    async def measure(self, step: str, calls: int, work: Callable[[], Awaitable[None]]) -> None:
        """Record the cost of `work`, which makes `calls` calls of `step`."""
        cpu = store_cpu_us(self.server)
        began = time.perf_counter()
        await work()
        self.wall_us.setdefault(step, []).append((time.perf_counter() - began) * 1e6 / calls)
        self.cpu_us.setdefault(step, []).append((store_cpu_us(self.server) - cpu) / calls)

    async def round(self, calls: int) -> None:
        """Run a block of each step. There are as many puts as cancels, so the number of stored jobs stays the same."""
        queue = self.engine.queue
        victims = list(itertools.islice(self._victims, calls))
        jobs = [self._far_job(number) for number in self._new_numbers(calls)]
        soon = [PutJob(topic=TOPIC, id=job_id, body=BODY, delay=0.05) for job_id in self._soon_ids(calls)]

        async def put() -> None:
            await in_groups(jobs, self.engine.puts.put)

        async def cancel() -> None:
            await in_groups(victims, lambda job_id: self.engine.cancels.cancel(TOPIC, job_id))

        async def turn() -> None:
            await self.engine.timers[0].run_once()

        async def pop_and_finish() -> None:
            for _ in range(0, calls, AT_ONCE):
                reply = await queue.pop(TOPIC, [PopRequest(1)] * AT_ONCE)
                popped = [job for jobs in reply.jobs for job in jobs]
                assert len(popped) == AT_ONCE, "a due job was not promoted"
                await in_groups(popped, lambda job: queue.finish(TOPIC, job.id, Receipt.of(str(job.receipt))))

        await self.measure("put", calls, put)
        await self.measure("cancel", calls, cancel)
        await self.engine.puts.put_many(soon)
        await asyncio.sleep(0.1)
        await self.measure("timer turn", 1, turn)
        await self.measure("pop+finish", calls, pop_and_finish)
        await self._bare_round(calls)

    async def _bare_round(self, calls: int) -> None:
        """The same steps as bare commands, pipelined. They leave as many jobs as there were."""
        victims = list(itertools.islice(self._victims, calls))
        new = [f"order-{number}" for number in self._new_numbers(calls)]
        soon = self._soon_ids(calls)
        now_ms = time.time() * 1000
        record = bytes(RECORD_HEAD_BYTES) + orjson.dumps(BODY)

        async def run(ids: list[str], commands: Callable[[Any, str], None]) -> None:
            for start in range(0, len(ids), AT_ONCE):
                pipeline = self.store.client.pipeline(transaction=False)
                for job_id in ids[start : start + AT_ONCE]:
                    commands(pipeline, job_id)
                await pipeline.execute()

        def put(pipeline: Any, job_id: str) -> None:
            pipeline.hset(POOL, job_id, record)
            pipeline.zadd(DELAY, {job_id: now_ms + (FAR_S + random.random() * SPREAD_S) * 1000})

        def cancel(pipeline: Any, job_id: str) -> None:
            pipeline.zrem(DELAY, job_id)
            pipeline.hdel(POOL, job_id)

        def put_soon(pipeline: Any, job_id: str) -> None:
            pipeline.hset(POOL, job_id, record)
            pipeline.zadd(DELAY, {job_id: now_ms})

        async def turn() -> None:
            due: Any = await self.store.client.zrange(DELAY, "-inf", now_ms, byscore=True, offset=0, num=calls)
            pipeline = self.store.client.pipeline(transaction=False)
            pipeline.zremrangebyrank(DELAY, 0, len(due) - 1)
            pipeline.zadd(READY, dict.fromkeys(due, 1))
            await pipeline.execute()

        def pop_and_finish(pipeline: Any, job_id: str) -> None:
            pipeline.hget(POOL, job_id)
            pipeline.zadd(RESERVED, {job_id: now_ms})
            pipeline.zrem(RESERVED, job_id)
            pipeline.hdel(POOL, job_id)

        await self.measure("bare put", calls, lambda: run(new, put))
        await self.measure("bare cancel", calls, lambda: run(victims, cancel))
        await run(soon, put_soon)
        await self.measure("bare timer turn", 1, turn)
        await self.store.client.delete(READY)
        await self.measure("bare pop+finish", calls, lambda: run(soon, pop_and_finish))


async def in_groups(items: list[Any], call: Callable[[Any], Awaitable[Any]]) -> None:
    """Call for each item, `AT_ONCE` concurrently."""
    for start in range(0, len(items), AT_ONCE):
        await asyncio.gather(*map(call, items[start : start + AT_ONCE]))


async def measure(few: Side, many: Side, rounds: int, calls: int) -> None:
    """Fill both and run the rounds; the sides alternate in going first."""
    for side in (few, many):
        await side.open()
        rate = await side.fill()
        info = side.server.command("INFO", "memory")
        print(
            f"{side.stored} jobs stored at {rate:.0f}/s; the store uses {info['used_memory'] / 1e6:.0f} MB", flush=True
        )
    for number in range(rounds):
        for side in (few, many) if number % 2 else (many, few):
            await side.round(calls)
    for side in (few, many):
        await side.close()


def show(few: Side, many: Side) -> None:
    """Print each step and, as its yardstick, the growth of its bare commands."""
    for step in few.wall_us:
        times = statistics.median(few.wall_us[step]), statistics.median(many.wall_us[step])
        cpu = statistics.median(few.cpu_us[step]), statistics.median(many.cpu_us[step])
        print(
            f" {step:15} with {few.stored} and {many.stored} jobs: {times[0]:.1f} and {times[1]:.1f} us, "
            f"of which the store's CPU {cpu[0]:.1f} and {cpu[1]:.1f} us (x {cpu[1] / cpu[0]:.2f})"
        )
    for step in STEPS:
        floor = growth(few.cpu_us, many.cpu_us, f"bare {step}")
        print(f"  {step}, growth of the store's CPU: {growth(few.cpu_us, many.cpu_us, step):.2f}, bare {floor:.2f}")
        show_target(f"{step}, growth of the time", growth(few.wall_us, many.wall_us, step), at_most=1.3)


def growth(few_us: dict[str, list[float]], many_us: dict[str, list[float]], step: str) -> float:
    """How many times as much a step costs on the larger store."""
    return statistics.median(many_us[step]) / statistics.median(few_us[step])


def main() -> None:
    options = options_of(
        __doc__,
        few=10_000,
        many=5_000_000,
        rounds=20,
        calls=(500, "calls of each step in a round: 100 to 500"),
        in_order=(False, "put all jobs with the same delay, so due in order"),
    )
    end_in_order()
    environment = embedded_environment()
    with (
        tempfile.TemporaryDirectory(prefix="deferd-bench-") as folder,
        StoreServer(Path(folder) / "few", unix=True, environment=environment) as few_server,
        StoreServer(Path(folder) / "many", unix=True, environment=environment) as many_server,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        pin(os.getpid(), SERVICE_CORE)
        for server in (few_server, many_server):
            pin(server.pid, OTHER_CORE)
        few, many = (
            Side(server, stored, in_order=options.in_order)
            for server, stored in ((few_server, options.few), (many_server, options.many))
        )
        runner.run(measure(few, many, options.rounds, options.calls))
    show(few, many)


if __name__ == "__main__":
    main()
