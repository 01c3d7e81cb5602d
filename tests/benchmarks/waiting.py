"""What do many waiting consumers cost, and how soon does a job reach one of them?

    python -m tests.benchmarks.waiting [--consumers 10000] [--topics 1] [--idle 10] [--jobs 300]
    python -m tests.benchmarks.waiting --by-pattern --consumers 100 --topics 1000
    python -m tests.benchmarks.waiting --for-jobs [--consumers 10000] [--idle 30] [--jobs 300]

Each consumer long-polls over its own connection; they are spread evenly over the topics, or each waits for all topics
by a pattern that matches them. First nothing happens for a while. Then jobs are put one by one at random instants, and
the time from just before the put until a consumer has the job is measured; the consumer finishes it and waits again.
With `--for-jobs`, each caller waits for the end of a delayed job of its own instead, and jobs are cancelled one by one:
the time is from just before the cancel until the response. The service has one process on one core; its embedded store
(append-only file, fsync always) shares the other core with the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

from tests.benchmarks import raw_http
from tests.benchmarks.measuring import (
    CpuMeter,
    DiskMeter,
    MeasuredService,
    allow_connections,
    measured_service,
    options_of,
    percentile,
    record_figure,
    resident_bytes,
    run_here,
    show_target,
)

WAIT_S = 60
"""How long a pop waits: the maximum of the service."""
JOIN_S = 30.0
"""How long it may take until all consumers wait."""
PAUSE_S = 0.03
"""The mean time between two jobs."""
PATTERN = "bench.waiting.*"
DAY_S = 86_400
JOB_WAITS = "deferd_job_waits"


class WaitingConsumers:
    """Waiting consumers, and when each job arrived, by id."""

    def __init__(self, connections: list[raw_http.Connection], topics: int, *, by_pattern: bool) -> None:
        self.topics = [f"bench.waiting.{number}" for number in range(topics)]
        self._waited_for = [PATTERN] if by_pattern else self.topics
        self.came_s: dict[str, float] = {}
        self._connections = connections
        self._tasks: list[asyncio.Task[None]] = []

    def wait(self) -> None:
        """Start all consumers."""
        for number, connection in enumerate(self._connections):
            waited_for = self._waited_for[number % len(self._waited_for)]
            self._tasks.append(asyncio.create_task(self._consume(connection, waited_for)))

    async def _consume(self, connection: raw_http.Connection, waited_for: str) -> None:
        pop = raw_http.request_bytes("GET", f"/topics/{waited_for}/pop?wait={WAIT_S}")
        while True:
            response = await connection.send(pop)
            now_s = time.perf_counter()
            for job in response.json()["jobs"]:
                self.came_s[job["id"]] = now_s
                path = f"/jobs/{job['topic']}/{job['id']}/finish"
                await connection.call("POST", path, {"receipt": job["receipt"]})

    async def leave(self) -> None:
        """Close all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connection in self._connections:
            connection.close()


async def waiting(putter: raw_http.Connection, gauge: str = "deferd_waiting_pops") -> int:
    """Waiting consumers, or callers, according to the service."""
    text = (await putter.send(raw_http.request_bytes("GET", "/metrics"))).body.decode()
    values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(f"{gauge} ")]
    return int(float(values[0]))


async def all_waiting(putter: raw_http.Connection, consumers: int, gauge: str = "deferd_waiting_pops") -> None:
    """Wait until all consumers wait."""
    while await waiting(putter, gauge) < consumers:
        await asyncio.sleep(0.5)


async def measure_waits_for_jobs(service: MeasuredService, options: argparse.Namespace) -> None:
    """Have callers wait for a job each, measure the idle service, then cancel jobs."""
    putter = await raw_http.connect(service.port)
    callers: int = options.consumers
    await raw_http.put_in_batches(
        putter, callers, lambda number: {"topic": "bench.waits", "id": f"job-{number}", "delay": DAY_S}
    )
    connections = await raw_http.connect_many(service.port, callers)
    ended_s: dict[int, float] = {}

    async def wait(number: int) -> None:
        path = f"/jobs/bench.waits/job-{number}?wait={WAIT_S}"
        job = (await connections[number].send(raw_http.request_bytes("GET", path))).json()
        ended_s[number] = time.perf_counter()
        if job.get("outcome") != "cancelled":
            raise SystemExit(f"the wait for job-{number} ended with {job.get('outcome')}")

    bytes_before = resident_bytes(service.pid)
    calls = [asyncio.create_task(wait(number)) for number in range(callers)]
    with CpuMeter(service.pid, service.store_pid) as joining:
        await raw_http.bounded(all_waiting(putter, callers, JOB_WAITS), JOIN_S, f"{callers} calls wait")
    with CpuMeter(service.pid, service.store_pid) as idle:
        await asyncio.sleep(options.idle)
    bytes_waiting = resident_bytes(service.pid)
    if await waiting(putter, JOB_WAITS) < callers:
        raise SystemExit("callers stopped waiting")
    cancelled_s: dict[int, float] = {}
    for number in random.sample(range(callers), options.jobs):
        await asyncio.sleep(random.uniform(0, 2 * PAUSE_S))
        request = raw_http.request_bytes("DELETE", f"/jobs/bench.waits/job-{number}")
        cancelled_s[number] = time.perf_counter()
        (await putter.send(request)).json()
    await asyncio.gather(*(calls[number] for number in cancelled_s))
    took_ms = [(ended_s[number] - at_s) * 1000 for number, at_s in cancelled_s.items()]
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    print(f"{callers} callers wait for the end of a job each")
    print(f"  the service has {bytes_before / 1e6:.0f} MB without them, {bytes_waiting / 1e6:.0f} MB with them")
    cost = idle.share(service.pid) + idle.share(service.store_pid)
    show_target(f"service and store, % of a core in {options.idle:.0f} s idle", cost, at_most=1)
    print(f"  of this the store: {idle.share(service.store_pid):.2f} %")
    print(f"  a call took {joining.us_each(service.pid, callers):.0f} us of the service's CPU until it waited")
    print(f"  {options.jobs} jobs, from cancel to the response: p50 {percentile(took_ms, 0.5):.1f} ms")
    show_target("p99, ms", percentile(took_ms, 0.99), at_most=20)


async def measure_handover(putter: raw_http.Connection, consumers: WaitingConsumers, jobs: int) -> list[float]:
    """Put jobs one by one; returns how long each took to its consumer, in ms."""
    put_s: dict[str, float] = {}
    for number in range(jobs):
        await asyncio.sleep(random.uniform(0, 2 * PAUSE_S))
        job_id = f"order-{number}"
        put = {"topic": random.choice(consumers.topics), "id": job_id, "body": {"order": number}}
        request = raw_http.request_bytes("POST", "/jobs", put)
        put_s[job_id] = time.perf_counter()
        (await putter.send(request)).json()
    await asyncio.sleep(1)
    missing = put_s.keys() - consumers.came_s.keys()
    if missing:
        raise SystemExit(f"{len(missing)} jobs reached no consumer within a second")
    return [(consumers.came_s[job_id] - at_s) * 1000 for job_id, at_s in put_s.items()]


async def measure(service: MeasuredService, options: argparse.Namespace) -> None:
    """Have the consumers wait, measure the idle service, then hand out jobs."""
    putter = await raw_http.connect(service.port)
    await waiting(putter)
    bytes_before = resident_bytes(service.pid)
    connections = await raw_http.connect_many(service.port, options.consumers)
    consumers = WaitingConsumers(connections, options.topics, by_pattern=options.by_pattern)
    if options.by_pattern:  # a pattern matches topics that exist
        topics = consumers.topics
        await raw_http.put_in_batches(putter, len(topics), lambda number: {"topic": topics[number], "delay": DAY_S})
    with CpuMeter(service.pid, service.store_pid) as joining:
        consumers.wait()
        await raw_http.bounded(all_waiting(putter, options.consumers), JOIN_S, f"{options.consumers} pops wait")
    await asyncio.sleep(1)
    with CpuMeter(service.pid, service.store_pid) as idle:
        await asyncio.sleep(options.idle)
    bytes_waiting = resident_bytes(service.pid)
    if await waiting(putter) < options.consumers:
        raise SystemExit("consumers stopped waiting")
    with DiskMeter() as disk:
        took_ms = await measure_handover(putter, consumers, options.jobs)
    await consumers.leave()
    print(f"{options.consumers} consumers wait on {options.topics} topics{' by a pattern' * options.by_pattern}")
    print(f"  the service has {bytes_before / 1e6:.0f} MB without them, {bytes_waiting / 1e6:.0f} MB with them")
    show_target("memory of the service, MB", bytes_waiting / 1e6, at_most=500)
    record_figure("waiting-memory", bytes_waiting / 1e6, "MB", digits=3)
    show_target(f"service, % of a core in {options.idle:.0f} s idle", idle.share(service.pid), at_most=3)
    print(f"  the store meanwhile: {idle.share(service.store_pid):.2f} %")
    renewals_s = options.consumers / WAIT_S
    pop_us = joining.us_each(service.pid, options.consumers)
    print(
        f"  a pop took {pop_us:.0f} us of the service's CPU; polling again every {WAIT_S} s would be {renewals_s:.0f} "
        f"pops/s, {pop_us * renewals_s / 1e4:.1f} % of a core"
    )
    print(f"  {options.jobs} jobs, from put to a consumer: p50 {percentile(took_ms, 0.5):.1f} ms; {disk}")
    show_target("p99, ms", percentile(took_ms, 0.99), at_most=10)


def main() -> None:
    options = options_of(
        __doc__,
        consumers=10_000,
        topics=(1, "how many topics they are spread over"),
        by_pattern=(False, "each waits for all topics, at most 1000"),
        for_jobs=(False, "each waits for the end of a job of its own"),
        idle=(10.0, "seconds without load, at most 30"),
        jobs=300,
    )
    allow_connections(options.consumers)
    with measured_service() as service:
        run_here((measure_waits_for_jobs if options.for_jobs else measure)(service, options))


if __name__ == "__main__":
    main()
