"""What does a full cycle cost the store, compared with the bare commands that any such design needs?

    python -m tests.benchmarks.store_cpu [--jobs 50000] [--batch 500]

Both run on the same store, one after the other, in batches of the same size and with the same bodies: deferd's scripts
(put, promote, pop with a request id, as the client sends it, finish), and the same changes of the same data as plain
commands, each with a whole batch in its arguments. The result is the sum over the steps; a step with a small
part of it varies.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from itertools import chain
from pathlib import Path
from typing import Any

from deferd.contract.model import FinishItem, JobState, PutJob
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import json_bytes
from deferd.store.connection import connect
from tests.benchmarks.measuring import embedded_environment, options_of, store_cpu_us
from tests.integration.store.store_servers import StoreServer

TOPIC = "bench.cpu"
BODY = {"order": 1042, "customer": "c-17", "items": [1, 2, 3]}
RECORD_HEAD_BYTES = 26
"""The fixed fields of a record; see lua/lib/record.lua."""


class Meter:
    """The store's CPU microseconds per job, by step."""

    def __init__(self, server: StoreServer, jobs: int) -> None:
        self._server = server
        self._jobs = jobs
        self.us: dict[str, float] = {}

    async def measure(self, step: str, work: Callable[[], Awaitable[None]]) -> None:
        before = store_cpu_us(self._server)
        await work()
        self.us[step] = (store_cpu_us(self._server) - before) / self._jobs


async def measure_deferd(server: StoreServer, jobs: int, batch: int) -> dict[str, float]:
    store = await connect(server.url, timeout_s=30)
    engine = Engine(store, movable_clock=False)
    meter = Meter(server, jobs)
    delay_s = 5.0
    held: list[FinishItem] = []

    async def put() -> None:
        for start in range(0, jobs, batch):
            await engine.puts.put_many(
                [
                    PutJob(topic=TOPIC, id=f"order-{number}", body=BODY, delay=delay_s)
                    for number in range(start, start + batch)
                ]
            )

    async def promote() -> None:
        while (await engine.topics.get(TOPIC)).counts[JobState.DELAYED]:
            await engine.timers[0].run_once()

    async def pop() -> None:
        while len(held) < jobs:
            reply = await engine.queue.pop(TOPIC, [PopRequest(batch, request_id=f"request-{len(held):024}")])
            held.extend(FinishItem(id=job.id, receipt=str(job.receipt)) for job in reply.jobs[0])

    async def finish() -> None:
        for start in range(0, jobs, batch):
            await engine.queue.finish_many(TOPIC, held[start : start + batch])

    await meter.measure("put", put)
    while (await engine.topics.get(TOPIC)).next_due_at_ms is not None and await engine.timers[0].run_once() > 0:
        await asyncio.sleep(0.2)
    await asyncio.sleep(delay_s)
    await meter.measure("promote", promote)
    await meter.measure("pop", pop)
    await meter.measure("finish", finish)
    await engine.close()
    await store.close()
    return meter.us


async def measure_bare(server: StoreServer, jobs: int, batch: int) -> dict[str, float]:
    store = await connect(server.url, timeout_s=30)
    meter = Meter(server, jobs)
    body = json_bytes(BODY)
    record = bytes(RECORD_HEAD_BYTES) + body

    now_ms = 1_800_000_000_000
    batches = [[f"order-{number}" for number in range(start, start + batch)] for start in range(0, jobs, batch)]

    def request(ids: list[str]) -> str:
        return f"bare:request/{ids[0]}"

    def set_fields(pipeline: Any, key: str, ids: list[str], value: str) -> None:
        pairs = chain.from_iterable((job_id, value) for job_id in ids)
        pipeline.execute_command("HSET", key, ids[0], "-" * 65, *pairs)  # a hash table: see lua/lib/topic.lua

    def put(pipeline: Any, ids: list[str]) -> None:
        pipeline.hset("bare:pool", mapping=dict.fromkeys(ids, record))
        pipeline.zadd("bare:delay", dict.fromkeys(ids, now_ms))

    def promote(pipeline: Any, ids: list[str]) -> None:
        pipeline.zrange("bare:delay", 0, now_ms, byscore=True, offset=0, num=batch)
        pipeline.zremrangebyrank("bare:delay", 0, batch - 1)
        pipeline.zadd("bare:ready", {job_id: position for position, job_id in enumerate(ids)})

    def pop(pipeline: Any, ids: list[str]) -> None:
        pipeline.zrange("bare:ready", 0, batch - 1)
        pipeline.hmget("bare:pool", ids)
        pipeline.zremrangebyrank("bare:ready", 0, batch - 1)
        pipeline.zadd("bare:reserved", dict.fromkeys(ids, now_ms))
        set_fields(pipeline, request(ids), ids, "1 12345678901234 1 0")
        set_fields(pipeline, "bare:requests", ids, "f" * 32)

    def finish(pipeline: Any, ids: list[str]) -> None:
        pipeline.hmget("bare:pool", ids)
        pipeline.zmscore("bare:reserved", ids)
        pipeline.zrem("bare:reserved", *ids)
        pipeline.hmget("bare:requests", ids)
        pipeline.hdel(request(ids), *ids)
        pipeline.hdel("bare:requests", *ids)
        pipeline.hdel("bare:pool", *ids)

    def in_batches(commands: Callable[[Any, list[str]], None]) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            for ids in batches:
                pipeline = store.client.pipeline(transaction=False)
                commands(pipeline, ids)
                await pipeline.execute()

        return run

    for step, commands in (("put", put), ("promote", promote), ("pop", pop), ("finish", finish)):
        await meter.measure(step, in_batches(commands))
    await store.close()
    return meter.us


def main() -> None:
    options = options_of(__doc__, jobs=50_000, batch=(500, "jobs in a call: 1 to 500"))
    with (
        tempfile.TemporaryDirectory() as folder,
        StoreServer(Path(folder), environment=embedded_environment()) as server,
    ):
        bare = asyncio.run(measure_bare(server, options.jobs, options.batch))
        server.command("FLUSHALL")
        deferd = asyncio.run(measure_deferd(server, options.jobs, options.batch))
    print(f"store CPU, microseconds per job, {options.jobs} jobs in batches of {options.batch}")
    for step, bare_us in bare.items():
        print(f"  {step:8} deferd {deferd[step]:6.2f}   bare {bare_us:6.2f}   ratio {deferd[step] / bare_us:.2f}")
    total, bare_total = sum(deferd.values()), sum(bare.values())
    print(f"  cycle    deferd {total:6.2f}   bare {bare_total:6.2f}   ratio {total / bare_total:.2f}  (target <= 1.5)")


if __name__ == "__main__":
    main()
