"""Are jobs cancelled at the rate at which they were put?

    python -m tests.benchmarks.cancel_storm [--jobs 100000] [--connections 64] [--parts 10]

Delayed jobs are put one by one through HTTP and cancelled one by one in another order. Parts of the puts and parts of
the cancels alternate, so that both run under the same conditions. The service has one process on one core; its embedded
store (append-only file, fsync always) shares the other core with the clients.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import time
from collections.abc import Sequence

from tests.benchmarks import raw_http
from tests.benchmarks.measuring import (
    CpuMeter,
    DiskMeter,
    MeasuredService,
    measured_service,
    options_of,
    percentile,
    run_here,
    show_target,
)

TOPIC = "bench.cancel"
SLOWEST_RATE = 500
"""Calls per second below which the benchmark fails."""


class Storm:
    """Calls of one kind, one by one over many connections, and their cost."""

    def __init__(self, name: str, status: int, service: MeasuredService) -> None:
        self.name = name
        self._status = status
        self._service = service
        self.calls = 0
        self.seconds = 0.0
        self.took_ms: list[float] = []
        self._service_s = self._store_s = self._clients_s = 0.0

    async def run(self, connections: Sequence[raw_http.Connection], requests: Sequence[bytes]) -> None:
        """Send the requests, one at a time per connection."""
        left = iter(requests)

        async def send(connection: raw_http.Connection) -> None:
            for request in left:
                began = time.perf_counter()
                response = await connection.send(request)
                self.took_ms.append((time.perf_counter() - began) * 1000)
                if response.status != self._status:
                    raise SystemExit(f"a {self.name} got status {response.status}: {response.body!r}")

        pids = self._service.pid, self._service.store_pid, os.getpid()
        with CpuMeter(*pids) as cpu:
            work = asyncio.gather(*map(send, connections))
            await raw_http.bounded(work, 10 + len(requests) / SLOWEST_RATE, f"all of {len(requests)} {self.name}s")
        self.calls += len(requests)
        self.seconds += cpu.seconds
        self._service_s, self._store_s, self._clients_s = (
            before + cpu.used[pid]
            for before, pid in zip((self._service_s, self._store_s, self._clients_s), pids, strict=True)
        )

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds

    def show(self) -> None:
        """Print the result."""
        service_us, store_us, clients_us = (
            seconds / self.calls * 1e6 for seconds in (self._service_s, self._store_s, self._clients_s)
        )
        print(
            f"  {self.name:7} {self.rate:7.0f}/s   p50 {percentile(self.took_ms, 0.5):5.1f} ms   "
            f"p99 {percentile(self.took_ms, 0.99):6.1f} ms   "
            f"CPU per call: service {service_us:.0f} us, store {store_us:.0f} us, clients {clients_us:.0f} us"
        )


async def measure(service: MeasuredService, options: argparse.Namespace) -> tuple[Storm, Storm]:
    """Put and cancel in turn; all jobs but those of one part are stored before the first cancel."""
    connections = await raw_http.connect_many(service.port, options.connections)
    part = options.jobs // options.parts
    [loader] = await raw_http.connect_many(service.port, 1)
    stored = [f"stored-{number}" for number in range(options.jobs - part)]
    await raw_http.put_in_batches(
        loader, len(stored), lambda number: {"topic": TOPIC, "id": stored[number], "delay": 3600, "body": {"order": 1}}
    )
    puts, cancels = Storm("put", 201, service), Storm("cancel", 200, service)
    for iteration in range(options.parts):
        new = [f"order-{iteration}-{number}" for number in range(part)]
        await puts.run(
            connections,
            [
                raw_http.request_bytes(
                    "POST", "/jobs", {"topic": TOPIC, "id": job_id, "delay": 3600, "body": {"order": 1042}}
                )
                for job_id in new
            ],
        )
        stored += new
        random.shuffle(stored)
        victims, stored = stored[:part], stored[part:]
        await cancels.run(
            connections, [raw_http.request_bytes("DELETE", f"/jobs/{TOPIC}/{job_id}") for job_id in victims]
        )
    return puts, cancels


def main() -> None:
    options = options_of(__doc__, jobs=100_000, connections=64, parts=10)
    with (
        measured_service() as service,
        DiskMeter() as disk,
    ):
        puts, cancels = run_here(measure(service, options))
    print(f"{cancels.calls} of {options.jobs} delayed jobs cancelled over {options.connections} connections; {disk}")
    for storm in (puts, cancels):
        storm.show()
    show_target("cancels, of the put rate", cancels.rate / puts.rate, at_least=1)


if __name__ == "__main__":
    main()
