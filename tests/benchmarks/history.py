"""What does the history of topics cost, and how large is it?

    python -m tests.benchmarks.history [--topics 1000] [--rounds 3]

publishing: each of the topics changes in every bucket of 10 s, with new jobs, deliveries and lateness; the store's time
and the CPU time of the service for each publication of all of them. The clock moves, so that the histories are full at
the end: then their size in the store is measured, over a topic's keys, and over all memory of the store.
reading: the history of one topic over an hour and over two days, of all topics, and of all that a key for a pattern of
topics sees, and the rates beside a forecast.

counting: the CPU time of counting a job that is put, popped and finished by three calls of its own, as a share of what
64 such jobs at the same time take of the engine each. They share calls of the store, and there is no HTTP: both make
the share larger than it is in a service.

The store writes no file, and nothing else runs on it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import redis

from deferd.api.routes.history import history_of_all, topic_history
from deferd.contract.model import PutJob
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.engine import Engine
from deferd.engine.history import BUCKET_MS, COARSE_MS, MOST_COARSE, MOST_FINE
from deferd.engine.metrics import LATENESS_BUCKETS, RUN_TIME_BUCKETS, CountedTopics
from deferd.store.connection import connect
from tests.benchmarks.inspection import empty_store
from tests.benchmarks.measuring import end_in_order, options_of, run_here, show_target
from tests.benchmarks.script_calls import forget_calls, script_calls

_LONGEST_MS = 5
_COUNTING_PERCENT = 1
_TOGETHER, _JOBS_EACH, _COUNTED = 64, 200, 200_000


def count(engine: Engine, topics: list[str], step: int) -> None:
    """What a busy topic has in 10 s."""
    counted = engine.history_publisher._counted
    for topic in topics:
        counts = counted.of(topic)
        counts.put += random.randint(1, 500)
        counts.popped += random.randint(1, 500)
        counts.finished += random.randint(1, 500)
        counts.released += random.randint(0, 20)
        counts.dead += step % 7 == 0
        counts.cancelled += random.randint(0, 50)
        middle = random.randint(2, 8)
        counts.add_lateness({middle + at: random.randint(1, 100) for at in range(-2, 4)})
        counts.add_run_times({middle + at: random.randint(1, 100) for at in range(4, 10)})


def largest(engine: Engine, topics: list[str]) -> None:
    """The largest numbers that the bytes are sized for, in all buckets of lateness and run times."""
    for topic in topics:
        counts = engine.history_publisher._counted.of(topic)
        counts.put = counts.popped = counts.finished = counts.released = counts.dead = counts.cancelled = 2**31
        counts.add_lateness(dict.fromkeys(range(len(LATENESS_BUCKETS) + 1), 2**31))
        counts.add_run_times(dict.fromkeys(range(len(RUN_TIME_BUCKETS) + 1), 2**31))


class Meter:
    """The store's time of script calls, in all and of the longest, and the CPU time of this process."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def start(self) -> None:
        """Begin."""
        forget_calls(self._client)
        self._cpu_s = time.process_time()

    def stop(self) -> tuple[int, float, float, float]:
        """Calls, ms of the store in all and in the longest call, and ms of CPU of this process."""
        cpu_ms = (time.process_time() - self._cpu_s) * 1000
        return *script_calls(self._client), cpu_ms


def show(what: str, measured: list[tuple[int, float, float, float]]) -> None:
    """Print the medians."""
    calls, all_ms, longest_ms, cpu_ms = (statistics.median(values) for values in zip(*measured, strict=True))
    print(f"{what}: {calls:g} calls, {all_ms:.2f} ms of the store, {cpu_ms:.2f} ms of the service's CPU")
    show_target("ms of the store in its longest call", longest_ms, at_most=_LONGEST_MS)


async def fill(engine: Engine, client: redis.Redis, topics: list[str], meter: Meter) -> None:
    """Publish until the histories are full, and print the cost of publications."""
    measured = []
    for step in range(MOST_COARSE + MOST_FINE):
        is_long = step < MOST_COARSE
        for _ in range(3 if is_long else 1):
            count(engine, topics, step)
        meter.start()
        await engine.history_publisher.publish()
        measured.append(meter.stop())
        client.incrby("deferd:{0}:clock", COARSE_MS if is_long else BUCKET_MS)
    show(f"publishing {len(topics):,} topics, each with a new bucket", measured[len(measured) // 2 :])
    again = []
    for step in range(20):
        count(engine, topics, step)
        meter.start()
        await engine.history_publisher.publish()
        again.append(meter.stop())
    show(f"publishing {len(topics):,} topics, added to a bucket, as by a second process", again)


async def read(
    what: str, meter: Meter, rounds: int, look: Callable[[], Awaitable[Any]], forget: Callable[[], None]
) -> None:
    """Read several times without what is kept, and print the cost."""
    measured = []
    for _ in range(rounds + 1):
        forget()
        meter.start()
        await look()
        measured.append(meter.stop())
    show(what, measured[1:])


async def run(url: str, client: redis.Redis, topic_count: int, rounds: int) -> None:
    """Measure and print."""
    topics = [f"mail.t{number}" for number in range(topic_count)]
    store = await connect(url, timeout_s=30)
    engine = Engine(store, movable_clock=True)
    meter = Meter(client)
    before = client.info("memory")["used_memory"]
    await fill(engine, client, topics, meter)
    used = client.info("memory")["used_memory"] - before
    keys = engine._keys.of_history(0, topics[0])
    sizes = [(client.llen(key), client.memory_usage(key, samples=0)) for key in keys]
    of_keys = ", ".join(f"{length} records in {size:,} bytes" for length, size in sizes)
    print(f"a topic: {of_keys}; {used / topic_count:,.0f} bytes a topic of all memory")

    def forget() -> None:
        for reads in (engine.histories._reads, engine.histories._reads_of_many, engine.finish_rates._reads):
            reads._values.clear()

    histories = engine.histories

    async def one(minutes: int) -> None:
        topic_history(topics[0], await histories.of_topic(topics[0], minutes))

    async def of_all(visible: TopicPatterns | None) -> None:
        history_of_all(await histories.of_all(visible, 360))

    await read("one topic, 60 minutes", meter, rounds, lambda: one(60), forget)
    await read("one topic, 2 days", meter, rounds, lambda: one(2880), forget)
    await read("all topics, 6 hours", meter, rounds, lambda: of_all(None), forget)
    await read("100 topics of a key, 6 hours", meter, rounds, lambda: of_all(TopicPatterns(["mail.*"])), forget)

    async def rates(wanted: list[str] | None) -> None:
        await engine.finish_rates.read(topics[:20], wanted, lambda _: True)

    await read("rates of 20 topics and of all, for a forecast", meter, rounds, lambda: rates(None), forget)
    some = topics[20:220]
    await read("rates of 20 topics and of 200 together", meter, rounds, lambda: rates(some), forget)
    largest_topic = topics[0]
    for step in range(MOST_COARSE + MOST_FINE):
        largest(engine, [largest_topic])
        await engine.history_publisher.publish()
        client.incrby("deferd:{0}:clock", COARSE_MS if step < MOST_COARSE else BUCKET_MS)
    largest_sizes = [client.memory_usage(key, samples=0) or 0 for key in keys]
    print(f"the largest history that there can be: {sum(largest_sizes):,} bytes")
    await engine.close()
    await store.close()


async def measure_counting(url: str) -> None:
    """Measure and print what counting takes."""
    store = await connect(url, timeout_s=30)
    engine = Engine(store)
    await engine.start()

    async def cycle(number: int) -> None:
        for at in range(_JOBS_EACH):
            await engine.puts.put(PutJob(topic="counted", id=f"{number}-{at}"))
            [job] = await engine.dispatcher.pop(["counted"])
            await engine.queue.finish("counted", job.id, job.receipt)

    began_s = time.process_time()
    await asyncio.gather(*map(cycle, range(_TOGETHER)))
    job_us = (time.process_time() - began_s) * 1e6 / (_TOGETHER * _JOBS_EACH)
    await engine.close()
    await store.close()
    counted = CountedTopics()
    began_s = time.process_time()
    for _ in range(_COUNTED):
        counted.of("counted").put += 1
        counts = counted.of("counted")
        counts.popped += 1
        counts.add_lateness({1: 1})
        counts.add_run_times({1: 1})
        counted.of("counted").finished += 1
    count_us = (time.process_time() - began_s) * 1e6 / _COUNTED
    print(f"counting: {count_us:.2f} us of the {job_us:.1f} us of CPU that a job takes of the engine")
    show_target("% of the CPU of the engine", 100 * count_us / job_us, at_most=_COUNTING_PERCENT)


def main() -> None:
    """Run the benchmark."""
    options = options_of(__doc__, topics=1000, rounds=3)
    end_in_order()
    with empty_store() as (server, client):
        run_here(run(server.url, client, options.topics, options.rounds))
        run_here(measure_counting(server.url))


if __name__ == "__main__":
    main()
