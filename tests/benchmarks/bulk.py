"""How long do calls on many jobs take, and what do others notice?

    python -m tests.benchmarks.bulk [--stored 5000000] [--tagged 1000] [--topics 10] [--moved 100000] [--runs 3]

First `tagged` jobs with one tag, spread over topics, are cancelled while `stored` others are stored. Then `moved`
delayed jobs of one topic are rescheduled by their state, while consumers wait for the jobs of another topic, whose
lateness is measured. The service has one process on one core; its embedded store (append-only file, fsync always)
shares the other core with the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import time

from tests.benchmarks import raw_http
from tests.benchmarks.lateness import Schedule, consume
from tests.benchmarks.measuring import (
    CpuMeter,
    MeasuredService,
    measured_service,
    options_of,
    percentile,
    run_here,
    show_target,
)
from tests.benchmarks.stored import FILLERS, Filler

MOVED_TOPIC = "bench.moved"
RATE, CONSUMERS, COUNT = 500, 4, 100
"""Of the topic whose lateness is measured."""
SECONDS = 8.0


async def put_many(connection: raw_http.Connection, topic: str, count: int, **fields: object) -> None:
    """Put `count` delayed jobs."""
    await raw_http.put_in_batches(
        connection, count, lambda n: {"topic": topic, "id": f"j{n}", "delay": 86_400, "body": {"order": n}, **fields}
    )


async def cancel_tagged(
    service: MeasuredService, connection: raw_http.Connection, options: argparse.Namespace
) -> float:
    """The milliseconds for one cancel of all tagged jobs."""
    each = options.tagged // options.topics
    for number in range(options.topics):
        await put_many(connection, f"bench.tagged.{number}", each, tags=["order-1042", "customer:7"])
    pids = service.pid, service.store_pid
    with CpuMeter(*pids) as cpu:
        began = time.perf_counter()
        done = await connection.call("POST", "/jobs/cancel", {"select": {"tag": "order-1042"}})
        took_ms = (time.perf_counter() - began) * 1000
    assert done["done"] == each * options.topics, done
    used = [round(cpu.used[pid] * 1000) for pid in pids]
    print(f"  {done['done']} tagged jobs cancelled in {took_ms:.1f} ms; CPU: service {used[0]} ms, store {used[1]} ms")
    return took_ms


async def reschedule(service: MeasuredService, port: int, options: argparse.Namespace, run: int) -> tuple[float, float]:
    """The seconds of one reschedule by state, and the other topic's 99th percentile of lateness during it, in ms."""
    [putter, mover, *consumers] = await raw_http.connect_many(port, 2 + CONSUMERS)
    start_s = time.time() + 2
    schedule = Schedule.at_random(f"bench.late.{run}", RATE, start_s, SECONDS)
    await raw_http.put_in_batches(putter, len(schedule.due_s), schedule.job)
    work = asyncio.gather(*(consume(connection, schedule, COUNT) for connection in consumers))
    await asyncio.sleep(start_s + 1 - time.time())
    call = {
        "select": {"state": "delayed", "topics": [MOVED_TOPIC]},
        "by": 60,
        "limit": 100_000,
        "request_id": f"run-{run}",
    }
    pids = service.pid, service.store_pid
    with CpuMeter(*pids) as cpu:
        began_s = time.time()
        done = await mover.call("POST", "/jobs/reschedule", call)
        ended_s = time.time()
    assert done["done"] == options.moved, done
    await raw_http.bounded(work, SECONDS + 10, "all jobs arrived")
    during = [late for job_id, late in schedule.late_ms.items() if began_s <= schedule.due_s[int(job_id)] <= ended_s]
    used = [round(cpu.used[pid] * 1000) for pid in pids]
    p99_ms = percentile(during, 0.99)
    print(
        f"  {done['done']} jobs rescheduled in {ended_s - began_s:.2f} s; CPU: service {used[0]} ms, "
        f"store {used[1]} ms; lateness of {len(during)} others: p50 {percentile(during, 0.5):.1f} ms, "
        f"p99 {p99_ms:.1f} ms, most {max(during):.1f} ms"
    )
    return ended_s - began_s, p99_ms


async def measure(service: MeasuredService, options: argparse.Namespace) -> None:
    """Fill, cancel and reschedule."""
    connections = await raw_http.connect_many(service.port, FILLERS)
    began = time.perf_counter()
    await Filler(connections).fill(options.stored)
    print(f"{options.stored} jobs stored in {time.perf_counter() - began:.0f} s")
    cancels = [await cancel_tagged(service, connections[0], options) for _ in range(options.runs)]
    await put_many(connections[0], MOVED_TOPIC, options.moved)
    moves = [await reschedule(service, service.port, options, run) for run in range(options.runs)]
    show_target("cancel by tag, most ms", max(cancels), at_most=100)
    show_target("reschedule, most s", max(took for took, _ in moves), at_most=3)
    show_target("lateness of others, p99, most ms", max(late for _, late in moves), at_most=36)


def main() -> None:
    options = options_of(
        __doc__,
        stored=(5_000_000, "other jobs"),
        tagged=1000,
        topics=(10, "over which the tagged jobs are spread"),
        moved=100_000,
        runs=3,
    )
    with measured_service() as service:
        run_here(measure(service, options))


if __name__ == "__main__":
    main()
