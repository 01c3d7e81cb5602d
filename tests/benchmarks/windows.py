"""What does a put cost more with opening hours and a spread? CPU of service and store, microseconds a put.

    python -m tests.benchmarks.windows [--rounds 5] [--jobs 20000]

One service on a store without append-only file. The same jobs are put without and with a window and spread, in turn:
as single calls over 32 connections, and in batches of 500. Shown are medians of the rounds, and of the differences to
the plain jobs of the same round.
"""

from __future__ import annotations

import asyncio
import statistics
from collections import defaultdict
from typing import Any

import httpx

from tests.benchmarks import raw_http
from tests.benchmarks.measuring import (
    CpuMeter,
    MeasuredService,
    measured_service,
    options_of,
    run_here,
    show_target,
)

TOPIC = "bench.windows"
CONNECTIONS = 32
BATCH = 500
TARGET_US = 20
PLAIN: dict[str, Any] = {"topic": TOPIC, "delay": 3600, "body": {"order": 1042, "customer": "c-17"}}
OFFICE = {"zone": "Europe/Berlin", "days": ["mon", "tue", "wed", "thu", "fri"], "from": "09:00", "to": "18:00"}
JOBS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "spread": {**PLAIN, "spread": 600},
    "window": {**PLAIN, "window": OFFICE},
    "window and spread": {**PLAIN, "window": OFFICE, "spread": 600},
    "calendar and spread": {**PLAIN, "window": "bench", "spread": 600},
}


async def send(port: int, content: bytes, status: int, count: int, connections: int) -> None:
    """Send the request so many times."""

    async def send_over(connection: raw_http.Connection) -> None:
        for _ in range(count // connections):
            response = await connection.send(content)
            assert response.status == status, response.body
        connection.close()

    await asyncio.gather(*map(send_over, await raw_http.connect_many(port, connections)))


def measure(service: MeasuredService, way: str, job: dict[str, Any], jobs: int) -> tuple[float, float]:
    """Microseconds a put of the service and of the store."""
    if way == "single":
        content, status, calls, connections = raw_http.request_bytes("POST", "/jobs", job), 201, jobs, CONNECTIONS
    else:
        batch = {"jobs": [job] * BATCH}
        content, status, calls, connections = (
            raw_http.request_bytes("POST", "/jobs/batch", batch),
            200,
            jobs // BATCH,
            1,
        )
    calls -= calls % connections
    with CpuMeter(service.pid, service.store_pid) as cpu:
        run_here(send(service.port, content, status, calls, connections))
    httpx.delete(f"{service.url}/topics/{TOPIC}", timeout=60).raise_for_status()
    return cpu.us_each(service.pid, jobs), cpu.us_each(service.store_pid, jobs)


def main() -> None:
    options = options_of(__doc__, rounds=5, jobs=20_000)
    costs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    with measured_service(in_memory=True) as service:
        httpx.put(f"{service.url}/calendars/bench", json={"windows": [OFFICE]}).raise_for_status()
        for _ in range(options.rounds):
            for way in ("single", "batch"):
                for name, job in JOBS.items():
                    costs[way, name].append(measure(service, way, job, options.jobs))
    for way in ("single", "batch"):
        plain = [sum(round_) for round_ in costs[way, "plain"]]
        for name in JOBS:
            of_service, of_store = (statistics.median(values) for values in zip(*costs[way, name], strict=True))
            print(f"{way:7} {name:20} service {of_service:6.1f} us   store {of_store:6.1f} us")
            if name != "plain":
                more = statistics.median(sum(own) - base for own, base in zip(costs[way, name], plain, strict=True))
                show_target(f"{way}, {name}: more us a put", more, at_most=TARGET_US)


if __name__ == "__main__":
    main()
