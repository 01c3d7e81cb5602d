"""What do groups, priorities and limits cost, and how exact are they?

    python -m tests.benchmarks.flow_control [--only groups,fairness,rate,in-flight,memory] [--seconds 60]
        [--flood 1000000]

groups: a pop and finish of one job after the other, in turns from a topic of plain jobs and from one whose ready jobs
are of 100,000 groups.
fairness: one tenant has a flood of ready jobs and 99 others 10 each. In which part of the deliveries are all of these;
then, while the flood is worked on, how long a new job of a quiet tenant waits.
rate: 1,000 a second, 20 consumers over 3 processes of the service: deliveries in any second, by the store's clock.
in-flight: at most 50 at a time, while consumers and processes of the service are killed: the most that the store ever
holds, and whether all 50 places are used again.
memory: bytes of a delayed job with a group beyond those of one without, and beyond the name of its group.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

from deferd import AsyncClient, Client, DeferdError, Delivery
from tests.benchmarks.measuring import (
    MeasuredService,
    cpu_seconds,
    measured_service,
    options_of,
    percentile,
    record_figure,
    run_here,
    show_target,
)

PARTS = ("groups", "fairness", "rate", "in-flight", "memory")
GROUPS = 100_000
CYCLES = 1500
QUIET_TENANTS, OF_EACH = 99, 10
RATE, PROCESSES, CONSUMERS = 1000, 3, 20
MOST_IN_FLIGHT = 50
LEASE_S = 2
STORED = 200_000


def put(client: Client, topic: str, numbers: Iterable[int], **fields: Callable[[int], Any]) -> None:
    """Put a job for each number, with these fields of it."""
    jobs = ({"topic": topic, **{name: value(number) for name, value in fields.items()}} for number in numbers)
    for result in client.put_many(jobs):
        assert result.code is None, result


def tenant(number: int) -> str:
    """The name of a group."""
    return f"tenant-{number:06d}"


def handed_out_ms(job: Delivery) -> int:
    """When the job was handed out, by the clock of the store."""
    return round(1000 * (job.reserved_until.timestamp() - job.ttr))


@contextmanager
def store_of(service: MeasuredService) -> Iterator[redis.Redis]:
    """A connection to the store of a service."""
    with redis.Redis(unix_socket_path=str(service.store_socket), socket_timeout=30) as client:
        yield client


def measure_groups() -> None:
    """Print what a pop and finish costs with many groups, as a ratio to that of plain jobs."""
    with measured_service() as service, Client(service.url) as client:
        put(client, "plain", range(GROUPS))
        put(client, "grouped", range(GROUPS), group=tenant)
        took_s: dict[str, list[float]] = {"plain": [], "grouped": []}
        store_s = {"plain": 0.0, "grouped": 0.0}
        for _ in range(2 * CYCLES // 100):
            for topic, times_s in took_s.items():
                before_s = cpu_seconds(service.store_pid)
                for _ in range(100):
                    began = time.perf_counter()
                    (job,) = client.pop(topic)
                    client.finish(job)
                    times_s.append(time.perf_counter() - began)
                store_s[topic] += cpu_seconds(service.store_pid) - before_s
        plain, grouped = (percentile(times_s, 0.5) for times_s in took_s.values())
        print(f"pop and finish, median: {1e6 * plain:.0f} us plain, {1e6 * grouped:.0f} us with {GROUPS:,} groups")
        show_target("time with groups / plain", grouped / plain, at_most=1.5)
        record_figure("group-time", grouped / plain, "", digits=3)
        print(f"  CPU of the store, with groups / plain: {store_s['grouped'] / store_s['plain']:.2f}")


def measure_fairness(flood: int) -> None:
    """Print where in the deliveries quiet tenants are, and how long their new jobs wait, beside a flood of another."""
    with measured_service() as service, Client(service.url) as client:
        put(client, "shared", range(flood), group=lambda _: "flood")
        put(client, "shared", range(QUIET_TENANTS * OF_EACH), group=lambda number: tenant(number % QUIET_TENANTS))
        last, count = 0, 0
        while count < 2000:
            job, *_ = jobs = client.pop("shared", count=10)
            for job in jobs:
                count += 1
                if job.group != "flood":
                    last = count
            client.finish_many("shared", jobs)
        show_target("deliveries until the last job of a quiet tenant", last, at_most=1100)
        waited_ms = run_here(beside_flood(service.url))
        show_target("wait of a new job of a quiet tenant, p99, ms", percentile(waited_ms, 0.99), at_most=20)
        record_figure("tenant-wait", percentile(waited_ms, 0.99), "ms", digits=1)
        print(f"  median {percentile(waited_ms, 0.5):.1f} ms of {len(waited_ms)} jobs")


async def beside_flood(url: str) -> list[float]:
    """For how long each new job of a quiet tenant waits to be handed out, while consumers work on a flood."""
    waited_ms: list[float] = []
    ended = asyncio.Event()
    async with AsyncClient(url) as client:

        async def consume() -> None:
            while not ended.is_set():
                for job in await client.pop("shared", count=1):
                    if job.group != "flood":
                        waited_ms.append(handed_out_ms(job) - 1000 * job.created_at.timestamp())
                    await client.finish(job)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(4):
                tasks.create_task(consume())
            for number in range(500):
                await asyncio.sleep(0.02)
                await client.put("shared", group=tenant(number % QUIET_TENANTS))
            await asyncio.sleep(0.2)
            ended.set()
    return waited_ms


def measure_rate(seconds: float) -> None:
    """Print how many jobs a rate hands out, and the most in any second."""
    with measured_service("--workers", str(PROCESSES), pinned=False) as service, Client(service.url) as client:
        client.set_topic("limited", {"limits": {"rate": {"count": RATE, "per": 1}}})
        put(client, "limited", range(round(RATE * (seconds + 5))))
        times_ms = sorted(run_here(drain(service.url, "limited", seconds + 1)))
    most, start = 0, 0
    for at, time_ms in enumerate(times_ms):
        while times_ms[start] <= time_ms - 1000:
            start += 1
        most = max(most, at - start + 1)
    handed_out = sum(time_ms < times_ms[0] + 1000 * seconds for time_ms in times_ms)
    apart_ms = [later - earlier for earlier, later in zip(times_ms, times_ms[RATE:], strict=False)]
    show_target("most deliveries in any second", most, at_most=RATE)
    show_target(f"deliveries in {seconds:.0f} s / limit", handed_out / (RATE * seconds), at_least=0.99)
    record_figure("rate-reached", handed_out / (RATE * seconds), "", digits=3)
    show_target("a second / mean time of as many deliveries", 1000 * len(apart_ms) / sum(apart_ms), at_least=0.99)


async def drain(url: str, topic: str, seconds: float) -> list[int]:
    """When each job was handed out to one of the consumers."""
    times_ms: list[int] = []
    until_s = time.monotonic() + seconds

    async def consume() -> None:
        async with AsyncClient(url) as client:
            while time.monotonic() < until_s:
                jobs = await client.pop(topic, count=20, wait=1)
                times_ms.extend(map(handed_out_ms, jobs))
                if jobs:
                    await client.finish_many(topic, jobs)

    await asyncio.gather(*(consume() for _ in range(CONSUMERS)))
    return times_ms


def measure_in_flight(seconds: float) -> None:
    """Print the most jobs in flight while consumers and processes of the service are killed."""
    with (
        measured_service("--workers", str(PROCESSES), pinned=False) as service,
        Client(service.url) as client,
        store_of(service) as store,
    ):
        limits = {"max_in_flight": MOST_IN_FLIGHT, "per_group": {"max_in_flight": MOST_IN_FLIGHT // 2}}
        client.set_topic("limited", {"ttr": LEASE_S, "limits": limits})
        put(client, "limited", range(round(5000 * seconds)), group=lambda number: tenant(number % 7))
        held: list[int] = []
        ended = threading.Event()

        def watch() -> None:
            while not ended.is_set():
                held.append(int(store.zcard("deferd:{0}:limited:reserved")))

        watcher = threading.Thread(target=watch)
        watcher.start()
        until_s, random_number = time.monotonic() + seconds, random.Random(34)
        kills = 0
        while time.monotonic() < until_s:
            consumers = multiprocessing.get_context("spawn").Process(target=work, args=(service.url,))
            consumers.start()
            time.sleep(random_number.uniform(1.5, 3))
            os.kill(consumers.pid or 0, signal.SIGKILL)
            consumers.join()
            if random_number.random() < 0.3:
                service.process.kill_server_processes()
            kills += 1
        seen = len(held)
        consumers = multiprocessing.get_context("spawn").Process(target=work, args=(service.url,))
        consumers.start()
        time.sleep(2 * LEASE_S + 3)
        ended.set()
        watcher.join()
        consumers.kill()
        consumers.join()
        print(f"{kills} kills, {len(held):,} looks at the store")
        show_target("most jobs in flight", max(held), at_most=MOST_IN_FLIGHT)
        show_target("in flight again after the last kill", max(held[seen:]), at_least=MOST_IN_FLIGHT)


def work(url: str) -> None:
    """Consume until killed: each job takes some milliseconds."""

    async def consume(client: AsyncClient) -> None:
        while True:
            try:
                for job in await client.pop("limited", wait=1):
                    await asyncio.sleep(0.02)
                    await client.finish(job)
            except DeferdError:
                await asyncio.sleep(0.05)

    async def all_of_them() -> None:
        async with AsyncClient(url) as client:
            await asyncio.gather(*(consume(client) for _ in range(2 * MOST_IN_FLIGHT)))

    run_here(all_of_them())


def measure_memory() -> None:
    """Print the bytes that a group adds to a job."""
    with measured_service(in_memory=False) as service, Client(service.url) as client, store_of(service) as store:

        def stored(topic: str, **fields: Callable[[int], Any]) -> float:
            before = int(store.info("memory")["used_memory"])
            numbers = range(STORED)
            ids = {"id": lambda number: f"order-{number:08d}", "delay": lambda _: 86_400}
            put(client, topic, numbers, **ids, body=lambda number: {"order": number}, **fields)
            return (int(store.info("memory")["used_memory"]) - before) / STORED

        stored("warm")
        plain, grouped = stored("plain"), stored("grouped", group=lambda number: tenant(number % 1000))
        print(f"a job takes {plain:.0f} bytes, with a group {grouped:.0f}")
        show_target("bytes of a group beyond its name", grouped - plain - len(tenant(0)), at_most=40)
        record_figure("group-bytes", grouped - plain - len(tenant(0)), "bytes")


def main() -> None:
    """Run the parts."""
    options = options_of(__doc__, only=(",".join(PARTS), "some of them"), seconds=60.0, flood=1_000_000)
    measures = {
        "groups": measure_groups,
        "fairness": lambda: measure_fairness(options.flood),
        "rate": lambda: measure_rate(options.seconds),
        "in-flight": lambda: measure_in_flight(options.seconds),
        "memory": measure_memory,
    }
    for part in options.only.split(","):
        print(f"{part}:", flush=True)
        measures[part]()


if __name__ == "__main__":
    main()
