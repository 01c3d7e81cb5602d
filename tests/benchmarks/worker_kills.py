"""How late are jobs while the server process that holds the timer lock is killed again and again?

    python -m tests.benchmarks.worker_kills [--kills 12] [--every 3] [--workers 2] [--rate 50]

Jobs are put in advance, due at random instants from before the first kill until after the last. Each consumer
long-polls, and polls again at once when its connection breaks. Lateness is the time from a job's due time until a
consumer has it. One service with its embedded store; all processes share the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import redis

from deferd import AsyncClient
from deferd.contract.errors import DeferdError
from deferd.contract.model import PutJob
from tests.acceptance.service_process import ServiceProcess
from tests.benchmarks.measuring import end_in_order, options_of, percentile, show_target

TOPIC = "bench.kills"
CONSUMERS = 4
BEFORE_S, AFTER_S = 2.0, 3.0
GRACE_S = 10.0


def timer_holder(service: ServiceProcess) -> int | None:
    """The process whose timer holds the lock; the timer's name begins with its id."""
    with redis.Redis(unix_socket_path=str(service.data_dir / "valkey.sock")) as store:
        name = store.get("deferd:{0}:lock")
    return None if name is None else int(bytes(name).partition(b"-")[0])


async def kill_holders(service: ServiceProcess, kills: int, every_s: float) -> int:
    """Kill the holder again and again; returns how many were killed."""
    killed = 0
    for _ in range(kills):
        holder = await asyncio.to_thread(timer_holder, service)
        if holder in service.server_process_pids():
            os.kill(holder, signal.SIGKILL)
            killed += 1
        await asyncio.sleep(every_s)
    return killed


async def consume(client: AsyncClient, due_s: dict[str, float], late_ms: dict[str, float]) -> None:
    """Take jobs until all have arrived."""
    while len(late_ms) < len(due_s):
        try:
            jobs = await client.pop(TOPIC, count=20, wait=2)
        except DeferdError:
            await asyncio.sleep(0.02)
            continue
        now_s = time.time()
        for job in jobs:  # a redelivery after a lost response also counts from the due time
            late_ms.setdefault(job.id, (now_s - due_s[job.id]) * 1000)


async def measure(service: ServiceProcess, options: argparse.Namespace) -> tuple[list[float], int]:
    """Lateness of each job in ms, and how many processes were killed."""
    seconds = BEFORE_S + options.kills * options.every + AFTER_S
    start_s = time.time() + 2
    count = int(options.rate * seconds)
    due_s = {str(number): start_s + number / options.rate for number in range(count)}
    late_ms: dict[str, float] = {}
    async with AsyncClient(service.url) as producer, AsyncClient(service.url, retry_for=0) as client:
        jobs = [
            PutJob(topic=TOPIC, id=job_id, run_at=datetime.fromtimestamp(at_s, UTC), ttr=1)
            for job_id, at_s in due_s.items()
        ]
        for at in range(0, count, 500):
            await producer.put_batch(jobs[at : at + 500])
        if time.time() > start_s:
            raise SystemExit("the machine is too slow or too busy to put the jobs before they are due")
        consumers = asyncio.gather(*(consume(client, due_s, late_ms) for _ in range(CONSUMERS)))
        await asyncio.sleep(start_s + BEFORE_S - time.time())
        killed = await kill_holders(service, options.kills, options.every)
        async with asyncio.timeout(AFTER_S + GRACE_S):
            await consumers
    return list(late_ms.values()), killed


def main() -> None:
    options = options_of(
        __doc__,
        kills=12,
        every=(3.0, "seconds from one kill to the next"),
        workers=(2, "server processes"),
        rate=(50, "jobs due per second"),
    )
    end_in_order()
    with (
        tempfile.TemporaryDirectory(prefix="deferd-kills-") as folder,
        ServiceProcess(Path(folder), "--workers", str(options.workers)) as service,
    ):
        late_ms, killed = asyncio.run(measure(service, options))
    p50_ms, p99_ms = percentile(late_ms, 0.5), percentile(late_ms, 0.99)
    print(f"{len(late_ms)} jobs, {killed} of {options.kills} kills hit the process that held the timer lock")
    print(f"  p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms, max {max(late_ms):.1f} ms")
    show_target("p99, ms", p99_ms, at_most=1500)


if __name__ == "__main__":
    main()
