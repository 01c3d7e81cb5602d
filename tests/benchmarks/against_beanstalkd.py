"""Batches through HTTP compared with beanstalkd's pipelined protocol: full cycles of jobs per second.

    python -m tests.benchmarks.against_beanstalkd [--jobs 60000] [--batch 500] [--rounds 3] [--only memory|durable]

deferd: one service process, and one client process (this one, asyncio on uvloop) with the official client. Jobs are
put in batches with a delay, promoted by the timer, popped and finished in batches. beanstalkd: the same number of
jobs with the same bodies in batches of the same size over one raw socket, put (without a delay), reserved and
deleted, its replies only counted and checked. Both are measured in two ways:

  phases   all jobs are put; when the last is in, all are due at one instant, and are popped and finished. The cycle's
           time is that of the puts and that from the instant at which they are due to the last finish (promotion is
           in it). beanstalkd: all puts, then reserve and delete batch by batch.
  flow     producers and consumers run at the same time, each job has a delay of --delay seconds, and the time is the
           wall clock from the first put to the last finish: the delay is in it once. beanstalkd: each write puts and
           reserves a batch and deletes the one before.

Once with both in memory (deferd on a store without append-only file, beanstalkd without -b) and once with both
durable (deferd's embedded store, fsync always; `beanstalkd -b DIR -f 0`). A round measures deferd and then
beanstalkd; the figures are medians over the rounds. beanstalkd syncs for every job, so its durable runs are of
fewer jobs (--durable-yardstick-jobs) and it is their rate that counts.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from deferd.client import AsyncClient
from tests.benchmarks.beanstalkd import Beanstalkd, Pipeline
from tests.benchmarks.measuring import CpuMeter, measured_service, record_figure, run_here, show_target

TOPIC = "bench.batches"
BODY = {"order": 1042, "customer": "c-17", "items": [1, 2, 3]}
RUN_S = 180.0
"""The most seconds that one measurement of one round may take."""
MEASURES = ("put", "pop+finish", "cycle", "flow")
TARGETS = {"memory": 0.65, "durable": 5}
"""The cycle, relative to beanstalkd."""


@dataclass
class Figures:
    """Jobs per second by measure, one value for each round."""

    rounds: dict[str, list[float]] = field(default_factory=lambda: {measure: [] for measure in MEASURES})

    def add(self, jobs: int, put_s: float, drain_s: float, flow_s: float) -> None:
        """Add a round."""
        seconds = {"put": put_s, "pop+finish": drain_s, "cycle": put_s + drain_s, "flow": flow_s}
        for measure, taken_s in seconds.items():
            self.rounds[measure].append(jobs / taken_s)

    def median(self, measure: str) -> float:
        """The median over the rounds."""
        return statistics.median(self.rounds[measure])


@dataclass(frozen=True)
class Load:
    """The size of the load, and the number of the client process's tasks."""

    jobs: int
    batch: int
    delay_s: float
    producers: int
    consumers: int


class Deferd:
    """The measured side: one service, and the tasks that load it."""

    def __init__(self, client: AsyncClient, load: Load) -> None:
        self._client = client
        self._load = load
        self._unput = 0
        self._unfinished = 0

    async def _produce(self, due: dict[str, Any]) -> None:
        batch = [{"topic": TOPIC, "body": BODY, **due} for _ in range(self._load.batch)]
        while self._unput > 0:
            self._unput -= self._load.batch
            results = await self._client.put_batch(batch)
            assert all(result.status == 201 for result in results), "a put was refused"

    async def _consume(self) -> None:
        while self._unfinished > 0:
            jobs = await self._client.pop(TOPIC, count=self._load.batch, wait=0.2)
            results = await self._client.finish_many(TOPIC, jobs)
            assert all(result.status == 200 for result in results), "a finish was refused"
            self._unfinished -= len(jobs)

    async def _produce_all(self, jobs: int, due: dict[str, Any]) -> float:
        began = time.perf_counter()
        self._unput = jobs
        await asyncio.gather(*(self._produce(due) for _ in range(self._load.producers)))
        return time.perf_counter() - began

    async def _consume_all(self, jobs: int) -> None:
        self._unfinished = jobs
        await asyncio.gather(*(self._consume() for _ in range(self._load.consumers)))

    async def warm_up(self) -> float:
        """Run some batches as a warm-up; returns how many seconds a put of all jobs would take."""
        jobs = 8 * self._load.batch
        put_s = await self._produce_all(jobs, {})
        await self._consume_all(jobs)
        return put_s / jobs * self._load.jobs

    async def phases(self, expected_put_s: float) -> tuple[float, float]:
        """Seconds for the puts, and from the common due instant to the last finish."""
        due = time.time() + 1.5 * expected_put_s + 1
        put_s = await self._produce_all(self._load.jobs, {"run_at": datetime.fromtimestamp(due, UTC).isoformat()})
        if time.time() > due:
            return await self.phases(2 * put_s)
        await asyncio.sleep(due - time.time() - 0.1)
        await self._consume_all(self._load.jobs)
        return put_s, time.time() - due

    async def flow(self) -> float:
        """Seconds from the first put to the last finish, with all tasks running concurrently."""
        began = time.perf_counter()
        await asyncio.gather(
            self._produce_all(self._load.jobs, {"delay": self._load.delay_s}), self._consume_all(self._load.jobs)
        )
        return time.perf_counter() - began


async def measure_deferd(url: str, load: Load, pids: dict[str, int], figures: Figures) -> dict[str, float]:
    """Run one round; returns the CPU microseconds per job in the flow, by process."""
    async with AsyncClient(url, timeout=30) as client, asyncio.timeout(2 * RUN_S):
        deferd = Deferd(client, load)
        put_s, drain_s = await deferd.phases(await deferd.warm_up())
        with CpuMeter(*pids.values()) as cpu:
            flow_s = await deferd.flow()
        figures.add(load.jobs, put_s, drain_s, flow_s)
        return {name: cpu.us_each(pid, load.jobs) for name, pid in pids.items()}


def measure_beanstalkd(log_folder: Path | None, jobs: int, batch: int, figures: Figures) -> None:
    """Run one round on a fresh server."""
    batches = jobs // batch
    with Beanstalkd(log_folder) as server, Pipeline(server.port, orjson.dumps(BODY)) as pipeline:
        instants = [time.perf_counter()]
        for _ in range(batches):
            pipeline.put(batch)
        instants.append(time.perf_counter())
        for _ in range(batches):
            pipeline.reserve_and_delete(batch)
        instants.append(time.perf_counter())
        pipeline.flow(batches, batch)
        instants.append(time.perf_counter())
    put_s, drain_s, flow_s = (after - before for before, after in itertools.pairwise(instants))
    figures.add(batches * batch, put_s, drain_s, flow_s)


def compare(kind: str, load: Load, yardstick_jobs: int, rounds: int) -> None:
    """Measure both in turn and print the comparison."""
    deferd, beanstalkd = Figures(), Figures()
    cpu: list[dict[str, float]] = []
    for _ in range(rounds):
        with measured_service(pinned=False, in_memory=kind == "memory") as service:
            pids = {"service": service.pid, "store": service.store_pid, "client": os.getpid()}
            cpu.append(run_here(measure_deferd(service.url, load, pids, deferd)))
        with tempfile.TemporaryDirectory() as log_folder:
            measure_beanstalkd(Path(log_folder) if kind == "durable" else None, yardstick_jobs, load.batch, beanstalkd)
    print(f"\n{kind}: {load.jobs} jobs in batches of {load.batch}, median of {rounds} rounds, jobs/s")
    print(f"  {'':12}{'deferd':>10}{'beanstalkd':>12}{'ratio':>8}")
    for measure in MEASURES:
        ours, theirs = deferd.median(measure), beanstalkd.median(measure)
        print(f"  {measure:12}{ours:10.0f}{theirs:12.0f}{ours / theirs:8.2f}")
    ratio = deferd.median("cycle") / beanstalkd.median("cycle")
    show_target("cycle, of beanstalkd", ratio, at_least=TARGETS[kind])
    record_figure(f"beanstalkd-{kind}", ratio, "")
    if kind == "durable":
        record_figure("batch-rate", deferd.median("cycle"), "jobs/s", digits=3)
    used = ", ".join(f"{name} {statistics.median(one[name] for one in cpu):.1f}" for name in cpu[0])
    print(f"  deferd's CPU in the flow, microseconds per job: {used}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=60_000)
    parser.add_argument("--batch", type=int, default=500, help="jobs per request or write, 1 to 1000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=1.0, help="delay in seconds of the jobs in the flow")
    parser.add_argument("--producers", type=int, default=2, help="tasks that put")
    parser.add_argument("--consumers", type=int, default=2, help="tasks that pop and finish")
    parser.add_argument("--only", choices=("memory", "durable"))
    parser.add_argument("--durable-yardstick-jobs", type=int, default=5000)
    options = parser.parse_args()
    jobs = -(-options.jobs // options.batch) * options.batch
    load = Load(jobs, options.batch, options.delay, options.producers, options.consumers)
    yardstick_jobs = {"memory": jobs, "durable": max(options.durable_yardstick_jobs, options.batch)}
    for kind in ("memory", "durable"):
        if options.only in {None, kind}:
            compare(kind, load, yardstick_jobs[kind], options.rounds)


if __name__ == "__main__":
    main()
