"""How fast are the single puts of 64 tasks, which the client joins into batches by itself?

    python -m tests.benchmarks.client_joined [--rounds 3] [--seconds 3] [--tasks 64]

The service has one process on one core; its embedded store (append-only file, fsync always) shares the other core with
the client. In turn, and the medians are compared: batches of as many jobs, one after the other (`put_batch`, the
yardstick), single puts of the tasks, and the same with a request for each.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from deferd import AsyncClient
from deferd.client.joined_calls import JoinedCalls
from tests.benchmarks.measuring import (
    CpuMeter,
    DiskMeter,
    MeasuredService,
    measured_service,
    options_of,
    run_here,
    show_target,
)

TOPIC = "bench.joined"
BODY = {"order": 1042, "customer": "c-17"}
TARGET_RATE = 15_000
TARGET_OF_BATCHES = 0.5


class Run(NamedTuple):
    """Puts a second, and the CPU time of each process for a put in microseconds."""

    rate: float
    client_us: float
    service_us: float
    store_us: float


async def put_batches(client: AsyncClient, tasks: int, end_s: float) -> int:
    """Put batches of `tasks` jobs, one after the other, until `end_s`."""
    done = 0
    while time.perf_counter() < end_s:
        results = await client.put_batch([{"topic": TOPIC, "body": BODY}] * tasks)
        assert all(result.status == 201 for result in results)
        done += tasks
    return done


async def put_singly(client: AsyncClient, tasks: int, end_s: float) -> int:
    """Put single jobs from each task until `end_s`."""

    async def run() -> int:
        done = 0
        while time.perf_counter() < end_s:
            job = await client.put(TOPIC, BODY)
            assert job.state == "ready"
            done += 1
        return done

    return sum(await asyncio.gather(*(run() for _ in range(tasks))))


async def put_separately(client: AsyncClient, tasks: int, end_s: float) -> int:
    """As `put_singly`, with a request for each put."""
    client._calls = JoinedCalls(client._sender, None)
    return await put_singly(client, tasks, end_s)


MODES: dict[str, Callable[[AsyncClient, int, float], Awaitable[int]]] = {
    "batches": put_batches,
    "joined": put_singly,
    "separate": put_separately,
}


async def measure(mode: str, service: MeasuredService, options: argparse.Namespace) -> Run:
    """One run of a mode."""
    async with AsyncClient(service.url) as client:
        await put_singly(client, 1, time.perf_counter() + 0.1)
        with CpuMeter(os.getpid(), service.pid, service.store_pid) as cpu:
            done = await MODES[mode](client, options.tasks, time.perf_counter() + options.seconds)
        await client.purge(TOPIC)
    each = [cpu.us_each(pid, done) for pid in (os.getpid(), service.pid, service.store_pid)]
    return Run(done / cpu.seconds, *each)


def show(mode: str, runs: list[Run]) -> Run:
    """Print the medians of the runs, and return them."""
    middle = Run(*(statistics.median(values) for values in zip(*runs, strict=True)))
    print(
        f"  {mode:8} {middle.rate:8.0f} puts/s   us of CPU a put: client {middle.client_us:6.1f}   "
        f"service {middle.service_us:5.1f}   store {middle.store_us:5.1f}   "
        f"runs {' '.join(f'{run.rate:.0f}' for run in runs)}",
        flush=True,
    )
    return middle


def main() -> None:
    options = options_of(
        __doc__, rounds=(3, "runs of each; the medians count"), seconds=(3.0, "length of a run"), tasks=64
    )
    runs: dict[str, list[Run]] = {mode: [] for mode in MODES}
    with measured_service() as service, DiskMeter() as disk:
        for _ in range(options.rounds):
            for mode, of_mode in runs.items():
                of_mode.append(run_here(measure(mode, service, options)))
    print(f"puts of {options.tasks} tasks; {disk}")
    medians = {mode: show(mode, of_mode) for mode, of_mode in runs.items()}
    joined, batches = medians["joined"], medians["batches"]
    show_target("joined puts, puts/s", joined.rate, at_least=TARGET_RATE)
    show_target("joined puts, of sequential batches", joined.rate / batches.rate, at_least=TARGET_OF_BATCHES)


if __name__ == "__main__":
    main()
