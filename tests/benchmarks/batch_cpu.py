"""CPU time of batches in memory, microseconds a job by process: put, promote and pop, finish.

    python -m tests.benchmarks.batch_cpu [--jobs 50000] [--batch 500] [--rounds 3]

One service on a store without append-only file, and this process as the official client. Each step is measured alone:
all jobs are put with a common due instant; when it has come, they are promoted by the timer and popped; then they are
finished. The yardstick, in the same run: beanstalkd, pipelined in batches of the same size, and the process that drives
it. The figures are medians over the rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any

import orjson

from deferd.client import AsyncClient
from deferd.contract.operations.jobs import Delivery
from tests.benchmarks.against_beanstalkd import BODY, TOPIC
from tests.benchmarks.beanstalkd import Beanstalkd, Pipeline
from tests.benchmarks.measuring import CpuMeter, measured_service, options_of, run_here, show_target

STEPS = ("put", "pop", "finish")
TARGET_US = 36
Costs = dict[str, dict[str, list[float]]]
"""Microseconds a job by step and process, one value for each round."""


class Meter:
    """Adds the CPU time of the processes in each step to `costs`."""

    def __init__(self, pids: dict[str, int], jobs: int, costs: Costs) -> None:
        self._pids = pids
        self._jobs = jobs
        self._costs = costs

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Around one step."""
        with CpuMeter(*self._pids.values()) as cpu:
            yield
        for process, pid in self._pids.items():
            self._costs[name][process].append(cpu.us_each(pid, self._jobs))


async def measure_deferd(url: str, jobs: int, batch: int, step: Callable[[str], AbstractContextManager[None]]) -> None:
    async with AsyncClient(url, timeout=30) as client:

        async def put(count: int, due: dict[str, Any]) -> None:
            for _ in range(0, count, batch):
                results = await client.put_batch([{"topic": TOPIC, "body": BODY, **due} for _ in range(batch)])
                assert all(result.status == 201 for result in results)

        async def pop(count: int) -> list[list[Delivery]]:
            held: list[list[Delivery]] = []
            while count > 0:
                held.append(await client.pop(TOPIC, count=batch, wait=5))
                count -= len(held[-1])
            return held

        async def finish(held: list[list[Delivery]]) -> None:
            for some in held:
                results = await client.finish_many(TOPIC, some)
                assert all(result.status == 200 for result in results)

        began = time.time()
        await put(8 * batch, {})
        await finish(await pop(8 * batch))
        due = time.time() + 2 + (time.time() - began) / 8 / batch * jobs
        with step("put"):
            await put(jobs, {"run_at": datetime.fromtimestamp(due, UTC).isoformat()})
        assert time.time() < due, "the jobs were due before all were put"
        await asyncio.sleep(due - time.time() - 0.05)
        with step("pop"):
            held = await pop(jobs)
        with step("finish"):
            await finish(held)


def measure_beanstalkd(jobs: int, batch: int, costs: Costs) -> None:
    with Beanstalkd() as server, Pipeline(server.port, orjson.dumps(BODY)) as pipeline:
        meter = Meter({"beanstalkd": server.pid, "its client": os.getpid()}, jobs, costs)
        with meter.step("put"):
            for _ in range(jobs // batch):
                pipeline.put(batch)
        with meter.step("pop"):  # and finish
            for _ in range(jobs // batch):
                pipeline.reserve_and_delete(batch)


def main() -> None:
    options = options_of(__doc__, jobs=50_000, batch=(500, "jobs per request or write, 1 to 1000"), rounds=3)
    jobs = -(-options.jobs // options.batch) * options.batch
    costs: Costs = {step: defaultdict(list) for step in STEPS}
    for _ in range(options.rounds):
        with measured_service(pinned=False, in_memory=True) as service:
            pids = {"service": service.pid, "store": service.store_pid, "client": os.getpid()}
            meter = Meter(pids, jobs, costs)
            run_here(measure_deferd(service.url, jobs, options.batch, meter.step))
        measure_beanstalkd(jobs, options.batch, costs)
    print(f"CPU microseconds a job, {jobs} jobs in batches of {options.batch}, median of {options.rounds} rounds")
    print(f"  {'':12}{'put':>8}{'pop':>8}{'finish':>8}{'sum':>8}")
    total = 0.0
    for process in ("service", "store", "client", "beanstalkd", "its client"):
        by_step = [statistics.median(costs[step][process] or [0.0]) for step in STEPS]
        if process in {"service", "store", "client"}:
            total += sum(by_step)
        print(f"  {process:12}{''.join(f'{one:8.1f}' for one in (*by_step, sum(by_step)))}")
    show_target("deferd's sum", total, at_most=TARGET_US)


if __name__ == "__main__":
    main()
