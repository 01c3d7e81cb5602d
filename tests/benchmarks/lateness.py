"""How late are jobs? The time from a job's due time until a waiting consumer has it, over HTTP.

    python -m tests.benchmarks.lateness [--rate 2000] [--seconds 15] [--consumers 8] [--count 100] [--values FILE]

Jobs are put in advance, due at random instants. Each consumer long-polls for up to `count` jobs and finishes them in
one call before it polls again. The service has one process on one core; its embedded store (append-only file, fsync
always) shares the other core with the consumers. Both clocks are this machine's. FILE gets the lateness of each job in
milliseconds, one per line, for a histogram.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.benchmarks import raw_http
from tests.benchmarks.measuring import (
    CpuMeter,
    DiskMeter,
    measured_service,
    percentile,
    record_figure,
    run_here,
    show_target,
)

TOPIC = "bench.lateness"
PUT_RATE = 5_000
"""Assumed rate of puts, which must end before the first job is due."""
GRACE_S = 10.0
"""How long consumers wait for missing jobs after the last one was due."""


class Schedule:
    """When each job is due and how late it arrived, by id."""

    def __init__(self, topic: str, due_s: Sequence[float]) -> None:
        self.topic = topic
        self.due_s = [round(instant, 3) for instant in due_s]
        self.late_ms: dict[str, float] = {}
        self.pops = 0
        """Pops that returned jobs."""

    @classmethod
    def at_random(cls, topic: str, rate: float, start_s: float, seconds: float) -> Schedule:
        """`rate` jobs per second, due at random instants from `start_s` on."""
        return cls(topic, [start_s + random.uniform(0, seconds) for _ in range(int(rate * seconds))])

    def job(self, number: int) -> dict[str, Any]:
        """The job for a put."""
        run_at = datetime.fromtimestamp(self.due_s[number], UTC).isoformat()
        return {"topic": self.topic, "id": str(number), "run_at": run_at, "body": {"order": number}}

    @property
    def complete(self) -> bool:
        """Whether all have arrived."""
        return len(self.late_ms) == len(self.due_s)

    def arrived(self, job_id: str, at_s: float) -> None:
        """Note when a job arrived. One that arrives twice or early ends the benchmark."""
        late_ms = (at_s - self.due_s[int(job_id)]) * 1000
        if job_id in self.late_ms or late_ms < -1:
            raise SystemExit(f"job {job_id} of {self.topic} arrived twice, or {-late_ms:.1f} ms early")
        self.late_ms[job_id] = late_ms


async def consume(connection: raw_http.Connection, schedule: Schedule, count: int) -> None:
    """Pop up to `count` jobs, note their arrival and finish them, until all jobs have arrived."""
    pop = raw_http.request_bytes("GET", f"/topics/{schedule.topic}/pop?wait=1&count={count}")
    while not schedule.complete:
        response = await connection.send(pop)
        now_s = time.time()
        jobs = response.json()["jobs"]
        for job in jobs:
            schedule.arrived(job["id"], now_s)
        if jobs:
            schedule.pops += 1
            finished = [{"id": job["id"], "receipt": job["receipt"]} for job in jobs]
            await connection.call("POST", f"/topics/{schedule.topic}/finish", {"jobs": finished})


async def measure(port: int, options: argparse.Namespace) -> Schedule:
    """Put, wait and consume."""
    [putter, *consumers] = await raw_http.connect_many(port, 1 + options.consumers)
    start_s = time.time() + 1 + options.rate * options.seconds / PUT_RATE
    schedule = Schedule.at_random(TOPIC, options.rate, start_s, options.seconds)
    await raw_http.put_in_batches(putter, len(schedule.due_s), schedule.job)
    if time.time() > start_s:
        raise SystemExit("the machine is too slow or too busy to put the jobs before they are due")
    work = asyncio.gather(*(consume(connection, schedule, options.count) for connection in consumers))
    await raw_http.bounded(work, start_s - time.time() + options.seconds + GRACE_S, "all jobs arrived")
    return schedule


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=2000, help="jobs due per second")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--consumers", type=int, default=8)
    parser.add_argument("--count", type=int, default=100, help="most jobs per pop")
    parser.add_argument("--values", type=Path, help="write each job's lateness there")
    options = parser.parse_args()
    with measured_service() as service:
        pids = service.pid, service.store_pid, os.getpid()
        with CpuMeter(*pids) as cpu, DiskMeter() as disk:
            schedule = run_here(measure(service.port, options))
    late_ms = list(schedule.late_ms.values())
    p50_ms, p90_ms, p99_ms = (percentile(late_ms, share) for share in (0.5, 0.9, 0.99))
    print(f"{len(late_ms)} jobs at {options.rate}/s, {len(late_ms) / schedule.pops:.1f} a pop; {disk}")
    print(f"  p50 {p50_ms:.1f} ms, p90 {p90_ms:.1f} ms, p99 {p99_ms:.1f} ms, most {max(late_ms):.1f} ms")
    show_target("p50, ms", p50_ms, at_most=3)
    show_target("p99, ms", p99_ms, at_most=10)
    record_figure("late-p50", p50_ms, "ms")
    record_figure("late-p99", p99_ms, "ms")
    service_us, store_us, clients_us = (cpu.us_each(pid, len(late_ms)) for pid in pids)
    print(
        f"  CPU a job, put included: service {service_us:.0f} us, store {store_us:.0f} us, clients {clients_us:.0f} us"
    )
    if options.values is not None:
        options.values.write_text("".join(f"{value:.3f}\n" for value in late_ms))


if __name__ == "__main__":
    main()
