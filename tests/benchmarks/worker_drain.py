"""How many jobs per second does one worker process?

    python -m tests.benchmarks.worker_drain [--jobs 50000] [--concurrency 100]

The jobs are put in advance. The service has one process on one core; its embedded store (append-only file, fsync
always) shares the other core with the worker, whose handler does nothing: first an async one, then a plain one. For
comparison, a bare loop pops and finishes 1000 jobs at a time without a worker.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import subprocess
import sys
import time

from deferd import AsyncClient, Client, Worker
from deferd.contract.limits import BATCH_MAX
from tests.benchmarks.measuring import DiskMeter, measured_service

LOADS = ("bare loop", "async handler", "plain handler")


def main() -> None:
    """Measure and print jobs per second."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--only", choices=LOADS)
    parser.add_argument("--drain", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drain is not None:
        drain(options.drain, options.only, options.jobs, options.concurrency)
        return
    with measured_service() as service, DiskMeter() as disk:
        for load in LOADS if options.only is None else (options.only,):
            put(service.url, options.jobs)
            counts = ("--jobs", str(options.jobs), "--concurrency", str(options.concurrency))
            command = [sys.executable, "-m", "tests.benchmarks.worker_drain", *counts, "--only", load]
            subprocess.run([*command, "--drain", service.url], check=True)
        print(disk)


def put(url: str, jobs: int) -> None:
    """Put so many jobs."""
    with Client(url) as client:
        for result in client.put_many({"topic": "drain", "body": {"n": number}} for number in range(jobs)):
            assert result.code is None


def drain(url: str, load: str, jobs: int, concurrency: int) -> None:
    """Process all jobs and print the rate. Runs in a separate process."""
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    if load == "bare loop":
        asyncio.run(drain_bare(url, jobs))
    else:
        drain_by_worker(url, load, jobs, concurrency)
    took_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    print(f"{load:>14}: {jobs / took_s:8,.0f} jobs/s, {1e6 * cpu_s / jobs:.1f} us of CPU per job")


async def drain_bare(url: str, jobs: int) -> None:
    """Pop and finish, one call after the other."""
    async with AsyncClient(url) as client:
        while jobs > 0:
            taken = await client.pop("drain", count=BATCH_MAX)
            await client.finish_many("drain", taken)
            jobs -= len(taken)


def drain_by_worker(url: str, load: str, jobs: int, concurrency: int) -> None:
    """Run a worker that stops after the last job."""
    worker = Worker(url, concurrency=concurrency)
    done = itertools.count(1)

    def count() -> None:
        if next(done) == jobs:
            worker.stop()

    if load == "async handler":

        @worker.handler("drain")
        async def nothing(_body: object) -> None:
            count()
    else:

        @worker.handler("drain")
        def nothing_in_a_thread(_body: object) -> None:
            count()

    assert worker.run() == 0


if __name__ == "__main__":
    main()
