"""What do partitions bring to a hot topic, and what do they cost?

    python -m tests.benchmarks.partitions [--jobs 20000] [--seconds 60]

First a cluster of four primaries with 16 shards and one hot topic, with one partition and with four. As a machine with
few cores cannot show the throughput of four store processes, CPU time is counted: the busiest store process bounds the
capacity of the topic. The engine runs in this process, whose CPU time shows what partitions cost a service.

The fuller a call is, the less each of its jobs costs, so that the load grows with the number of partitions. Four topics
without partitions, each on another node, under the same load together, show what the machine makes of four busy stores.

Then 1,000 topics without work on one store, with one partition each and with 16, each of them waited for by one pop of
60 s at a time: the CPU time of this process and of the store.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from deferd.contract.model import FinishItem, PutJob, TopicSettings
from deferd.engine.engine import Engine
from deferd.engine.redis_keys import Keys
from deferd.store.connection import connect
from tests.benchmarks.measuring import embedded_environment, end_in_order, new_event_loop, show_target, store_cpu_us
from tests.integration.store.store_servers import ClusterSet, StoreServer

SHARDS = 16
NODES = 4
BODY = {"order": 1042, "customer": "c-17", "items": [1, 2, 3]}
CLIENTS = 64
IDLE_TOPICS = 1000
IDLE_PARTITIONS = 16
WAIT_MS = 60_000
SETTLE_S = 2.0
"""The measurement begins once this process has used less than a tenth of a core for so long; all pops wait then."""


class Figures(NamedTuple):
    """CPU microseconds per job: of the busiest store process, and of the service."""

    store: float
    service: float


@asynccontextmanager
async def engine_on(url: str) -> AsyncIterator[Engine]:
    store = await connect(url, timeout_s=30)
    engine = Engine(store, shards=SHARDS)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()
        await store.close()


# A hot topic


async def cycle(engine: Engine, topic: str, jobs: int, batch: int, load: int) -> None:
    """Put, pop and finish so many jobs: in batches one after the other, or with `batch` 1 by many clients at once.

    `load`: so many times as large are the batches, or as many the clients.
    """
    if batch == 1:
        clients = CLIENTS * load
        await asyncio.gather(*(_one_by_one(engine, topic, one, jobs // clients) for one in range(clients)))
        return
    batch *= load
    for start in range(0, jobs, batch):
        puts = [PutJob(topic=topic, id=f"order-{number}", body=BODY) for number in range(start, start + batch)]
        results = await engine.puts.put_many(puts)
        assert all(result.status == 201 for result in results)
        left = batch
        while left:
            popped = await engine.dispatcher.pop([topic], count=batch, wait_ms=10_000)
            items = [FinishItem(id=job.id, receipt=str(job.receipt)) for job in popped]
            assert all(result.status == 200 for result in await engine.queue.finish_many(topic, items))
            left -= len(popped)


async def _one_by_one(engine: Engine, topic: str, client: int, jobs: int) -> None:
    for number in range(jobs):
        await engine.puts.put(PutJob(topic=topic, id=f"order-{client}-{number}", body=BODY))
        (job,) = await engine.dispatcher.pop([topic], wait_ms=10_000)
        await engine.queue.finish(topic, job.id, job.receipt)


async def measure_hot(cluster: ClusterSet, topics: list[str], partitions: int, jobs: int, batch: int) -> Figures:
    """Cycles of all topics at once, with so many partitions each. The load grows with the partitions of all."""
    for node in cluster.masters:
        node.command("FLUSHALL")
    async with engine_on(cluster.url) as engine:
        for topic in topics:
            await engine.topics.set(topic, TopicSettings(partitions=partitions))
            layout = engine.partitions.known.layouts.get(topic)
            if layout is not None:  # as a minute later: no put looks for ids in former partitions
                await engine.partitions._forget_former(topic, layout)

        async def cycles(number: int, size: int) -> None:
            await asyncio.gather(*(cycle(engine, topic, number // len(topics), size, partitions) for topic in topics))

        await cycles(40 * CLIENTS, 1 if batch == 1 else 64)
        before = [store_cpu_us(node) for node in cluster.masters]
        own, began = time.process_time(), time.perf_counter()
        await cycles(jobs, batch)
        own_us, seconds = (time.process_time() - own) * 1e6 / jobs, time.perf_counter() - began
        each = [(store_cpu_us(node) - start) / jobs for node, start in zip(cluster.masters, before, strict=True)]
        shown = "  ".join(f"{us:6.2f}" for us in each)
        what = f"{len(topics)} topic{'s' * (len(topics) > 1)} of {partitions} partition{'s' * (partitions > 1)}"
        print(
            f"  {what}: stores {shown}  busiest {max(each):6.2f}  all {sum(each):6.2f}  "
            f"service {own_us:7.2f}  ({seconds:.1f} s)"
        )
        return Figures(max(each), own_us)


def topics_on_all_nodes(cluster: ClusterSet, keys: Keys) -> tuple[list[str], int]:
    """Topics, each on another node, and of how many of the 16 shards four partitions are on four nodes.

    Those of the first topic are.
    """
    holders = [cluster.holder_of(keys.of_shard(shard, "due")) for shard in range(SHARDS)]
    good = [s for s in range(SHARDS) if len({id(holders[(s + k) % SHARDS]) for k in range(NODES)}) == NODES]
    names = [f"hot-{number}" for number in range(1000)]
    first = next(name for name in names if keys.shard_of(name) in good)
    by_node = {id(holders[keys.shard_of(name)]): name for name in (*names, first)}
    return [first, *(name for name in by_node.values() if name != first)], len(good)


async def hot_topic(jobs: int) -> None:
    with tempfile.TemporaryDirectory() as folder, ClusterSet(Path(folder), masters=NODES) as cluster:
        topics, good = topics_on_all_nodes(cluster, Keys(SHARDS))
        print(f"put, pop and finish of {jobs} jobs of one topic, CPU microseconds per job; {NODES} primaries")
        print(f"  4 partitions are on 4 nodes for {good} of {SHARDS} shards in which a topic may begin")
        for batch in (400, 1):
            print(f"  in batches of {batch} per partition" if batch > 1 else f"  by {CLIENTS} clients per partition")
            one = await measure_hot(cluster, topics[:1], 1, jobs, batch)
            several = await measure_hot(cluster, topics[:1], NODES, jobs, batch)
            apart = await measure_hot(cluster, topics, 1, jobs, batch)
            show_target("capacity with 4 partitions, times that with 1", one.store / several.store, at_least=3)
            print(f"  capacity of 4 topics on 4 nodes, times that of 1: {one.store / apart.store:.2f}")
            print(f"  service's CPU per job with 4 partitions, times that with 1: {several.service / one.service:.2f}")
            print(f"  service's CPU per job with 4 topics, times that with 1: {apart.service / one.service:.2f}")


# Topics without work


async def idle(url: str, server: StoreServer, partitions: int, seconds: float) -> tuple[float, float]:
    """Percent of a core that this process and the store use."""
    async with engine_on(url) as engine:
        topics = [f"idle-{number}" for number in range(IDLE_TOPICS)]
        for start in range(0, IDLE_TOPICS, 50):
            settings = TopicSettings(partitions=partitions)
            await asyncio.gather(*(engine.topics.set(topic, settings) for topic in topics[start : start + 50]))

        async def wait_for(topic: str) -> None:
            while not await engine.dispatcher.pop([topic], wait_ms=WAIT_MS):
                pass

        began, used = time.perf_counter(), time.process_time()
        waiting = [asyncio.create_task(wait_for(topic)) for topic in topics]
        while True:
            before = time.process_time()
            await asyncio.sleep(SETTLE_S)
            if time.process_time() - before < SETTLE_S / 10:
                break
        print(
            f"  {partitions} partitions: begun to wait with {time.process_time() - used:.1f} s of CPU "
            f"within {time.perf_counter() - began:.0f} s"
        )
        own, store, began = time.process_time(), store_cpu_us(server), time.perf_counter()
        await asyncio.sleep(seconds)
        took = time.perf_counter() - began
        shares = 100 * (time.process_time() - own) / took, (store_cpu_us(server) - store) / took / 1e4
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return shares


async def idle_topics(seconds: float, environment: dict[str, str]) -> None:
    print(f"{IDLE_TOPICS} topics without work, each waited for by one pop at a time, {seconds:.0f} s, % of a core")
    figures = []
    for partitions in (1, IDLE_PARTITIONS):
        with (
            tempfile.TemporaryDirectory() as folder,
            StoreServer(Path(folder), environment=environment) as server,
        ):
            own, store = await idle(server.url, server, partitions, seconds)
            figures.append(own + store)
            print(f"  {partitions} partitions: service {own:.2f}  store {store:.2f}  both {own + store:.2f}")
    show_target("more with 16 partitions, % of a core", figures[1] - figures[0], at_most=1)
    show_target("with 16 partitions, % of a core", figures[1], at_most=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000, help="a multiple of 100")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each idle measurement")
    parser.add_argument("--only", choices=["hot", "idle"])
    options = parser.parse_args()
    end_in_order()
    environment = embedded_environment()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        if options.only != "idle":
            runner.run(hot_topic(options.jobs))
        if options.only != "hot":
            runner.run(idle_topics(options.seconds, environment))


if __name__ == "__main__":
    main()
