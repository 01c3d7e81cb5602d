"""Thundering herd: many jobs of one topic are due in the same millisecond. How long do they take, and do others wait?

    python -m tests.benchmarks.herd [--jobs 100000] [--consumers 4] [--count 200] [--other-rate 100]

Consumers pop up to `count` jobs and finish them in one call. The baseline is the same number of ready jobs with the
same consumers: the batch rate without promotion. During the herd, jobs of another topic become due at random instants,
and other consumers wait for them. The service has one process on one core; its embedded store (append-only file, fsync
always) shares the other core with the consumers.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from tests.benchmarks import raw_http
from tests.benchmarks.lateness import Schedule, consume
from tests.benchmarks.measuring import DiskMeter, measured_service, options_of, percentile, run_here, show_target

HERD, READY, OTHER = "bench.herd", "bench.ready", "bench.other"
SLOWEST_RATE = 2_000
"""Jobs per second below which the benchmark fails."""
BEFORE_S, AFTER_S = 1.0, 1.0
"""Jobs of the other topic are due from before the herd until after the time that the ready jobs took."""
OTHER_CONSUMERS = 2


async def drain(consumers: Sequence[raw_http.Connection], schedule: Schedule, count: int) -> float:
    """Let the consumers take all jobs; returns the instant at which the last one arrived."""
    work = asyncio.gather(*(consume(connection, schedule, count) for connection in consumers))
    seconds = max(schedule.due_s[0] - time.time(), 0) + len(schedule.due_s) / SLOWEST_RATE + 10
    await raw_http.bounded(work, seconds, f"all jobs of {schedule.topic} arrived")
    return schedule.due_s[0] + max(schedule.late_ms.values()) / 1000


async def measure(port: int, options: argparse.Namespace) -> tuple[float, float, Schedule, Schedule]:
    """Returns seconds for the ready jobs, seconds for the herd, the herd's jobs and those of the other topic."""
    jobs: int = options.jobs
    connections = await raw_http.connect_many(port, 1 + options.consumers + OTHER_CONSUMERS)
    putter, others, consumers = connections[0], connections[1 : 1 + OTHER_CONSUMERS], connections[1 + OTHER_CONSUMERS :]

    ready = Schedule(READY, [time.time() - 1] * jobs)
    began_s = time.time()
    await raw_http.put_in_batches(putter, jobs, ready.job)
    put_s = time.time() - began_s
    began_s = time.time()
    ready_s = await drain(consumers, ready, options.count) - began_s

    due_s = time.time() + BEFORE_S + 1 + 2 * put_s
    herd = Schedule(HERD, [due_s] * jobs)
    other = Schedule.at_random(OTHER, options.other_rate, due_s - BEFORE_S, BEFORE_S + ready_s + AFTER_S)
    await raw_http.put_in_batches(putter, len(other.due_s), other.job)
    await raw_http.put_in_batches(putter, jobs, herd.job)
    if time.time() > due_s - BEFORE_S:
        raise SystemExit("the machine is too slow or too busy to put the herd before it is due")
    until_s, _ = await asyncio.gather(drain(consumers, herd, options.count), drain(others, other, 10))
    return ready_s, until_s - due_s, herd, other


def main() -> None:
    options = options_of(
        __doc__,
        jobs=100_000,
        consumers=4,
        count=(200, "most jobs per pop"),
        other_rate=(100, "jobs per second of the other topic"),
    )
    with measured_service() as service, DiskMeter() as disk:
        ready_s, herd_s, herd, other = run_here(measure(service.port, options))
    due_s = herd.due_s[0]
    meanwhile_ms = [
        late_ms for number, late_ms in other.late_ms.items() if due_s <= other.due_s[int(number)] <= due_s + herd_s
    ]
    quiet_ms = [late_ms for number, late_ms in other.late_ms.items() if other.due_s[int(number)] < due_s - 0.1]
    first_ms = min(herd.late_ms.values())
    print(f"{options.jobs} jobs due in one millisecond; {disk}")
    print(f"  the herd: {herd_s:.2f} s, {options.jobs / herd_s:.0f} jobs/s; its first job after {first_ms:.0f} ms")
    print(f"  as many ready jobs: {ready_s:.2f} s, {options.jobs / ready_s:.0f} jobs/s")
    print(f"  rate of the herd / rate of the ready jobs: {ready_s / herd_s:.2f}")
    for when, late_ms in (("meanwhile", meanwhile_ms), ("before it", quiet_ms)):
        p50_ms, p99_ms = percentile(late_ms, 0.5), percentile(late_ms, 0.99)
        print(
            f"  another topic {when}: {len(late_ms)} jobs, p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms, "
            f"max {max(late_ms):.1f} ms"
        )
    show_target("another topic's p99 meanwhile, ms", percentile(meanwhile_ms, 0.99), at_most=50)


if __name__ == "__main__":
    main()
