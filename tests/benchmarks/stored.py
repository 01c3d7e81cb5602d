"""Throughput while more and more delayed jobs are stored.

    python -m tests.benchmarks.stored [--steps 10000,100000,500000,2000000] [--seconds 3]

At each number of stored jobs, which are due at random instants of a month: puts of more of them and full cycles of due
jobs (put, promote, pop, finish), in batches of 500 through HTTP, and cancels of single jobs over 64 connections. The
service has one process on one core; its embedded store (append-only file, fsync always) shares the other core with the
clients.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, NamedTuple

from tests.benchmarks import raw_http
from tests.benchmarks.measuring import MeasuredService, measured_service, options_of, run_here

TOPIC, DUE_TOPIC = "bench.stored", "bench.due"
BATCH = 500
FILLERS, CANCELLERS = 2, 64
FAR_S, SPREAD_S = 86_400.0, 30 * 86_400.0
STEPS = "10000,100000,500000,2000000"


class Step(NamedTuple):
    """Jobs or calls per second while `stored` jobs are stored."""

    stored: int
    put: float
    cycle: float
    cancel: float


class Filler:
    """Puts delayed jobs with consecutive numbers."""

    def __init__(self, connections: list[raw_http.Connection]) -> None:
        self.connections = connections
        self.put = 0
        self._cancelled = 0

    def _batch(self) -> dict[str, Any]:
        first, self.put = self.put, self.put + BATCH
        return {
            "jobs": [
                {"topic": TOPIC, "id": f"order-{n}", "delay": FAR_S + random.random() * SPREAD_S, "body": {"order": n}}
                for n in range(first, first + BATCH)
            ]
        }

    async def fill(self, until: int) -> None:
        """Put until so many jobs were put in total."""

        async def fill_over(connection: raw_http.Connection) -> None:
            while self.put < until:
                await connection.call("POST", "/jobs/batch", self._batch())

        await asyncio.gather(*map(fill_over, self.connections[:FILLERS]))

    async def puts(self, seconds: float) -> float:
        """Put for a while; returns jobs per second."""
        first, began = self.put, time.perf_counter()

        async def put_over(connection: raw_http.Connection) -> None:
            while time.perf_counter() - began < seconds:
                await connection.call("POST", "/jobs/batch", self._batch())

        await asyncio.gather(*map(put_over, self.connections[:2]))
        return (self.put - first) / (time.perf_counter() - began)

    async def cancels(self, seconds: float) -> float:
        """Cancel random stored jobs for a while; returns calls per second."""
        began, cancelled = time.perf_counter(), 0
        victims = iter(random.sample(range(self._cancelled, self.put), min(self.put - self._cancelled, 100_000)))

        async def cancel_over(connection: raw_http.Connection) -> None:
            nonlocal cancelled
            for number in victims:
                response = await connection.send(raw_http.request_bytes("DELETE", f"/jobs/{TOPIC}/order-{number}"))
                if response.status == 200:  # 404: it was cancelled in an earlier step
                    cancelled += 1
                if time.perf_counter() - began >= seconds:
                    return

        await asyncio.gather(*map(cancel_over, self.connections))
        return cancelled / (time.perf_counter() - began)

    async def cycles(self, seconds: float) -> float:
        """Run full cycles of due jobs for a while; returns jobs per second."""
        began, done = time.perf_counter(), 0

        async def cycle_over(connection: raw_http.Connection) -> None:
            nonlocal done
            while time.perf_counter() - began < seconds:
                jobs = [{"topic": DUE_TOPIC, "delay": 0.001, "body": {"order": n}} for n in range(BATCH)]
                await connection.call("POST", "/jobs/batch", {"jobs": jobs})
                left = BATCH
                while left > 0:
                    popped = await connection.call("GET", f"/topics/{DUE_TOPIC}/pop?wait=5&count={left}")
                    items = [{"id": job["id"], "receipt": job["receipt"]} for job in popped["jobs"]]
                    if not items:
                        raise SystemExit("a due job did not come")
                    await connection.call("POST", f"/topics/{DUE_TOPIC}/finish", {"jobs": items})
                    left -= len(items)
                done += BATCH

        await asyncio.gather(*map(cycle_over, self.connections[:4]))
        return done / (time.perf_counter() - began)


async def measure(service: MeasuredService, steps: list[int], seconds: float) -> list[Step]:
    """Fill and measure, step by step."""
    filler = Filler(await raw_http.connect_many(service.port, FILLERS))
    measured = []
    for stored in steps:
        await filler.fill(stored)
        # New connections: the service closes idle ones while it is being filled.
        filler.connections = await raw_http.connect_many(service.port, CANCELLERS)
        step = Step(stored, await filler.puts(seconds), await filler.cycles(seconds), await filler.cancels(seconds))
        print(
            f"  {step.stored:>9} stored: put {step.put:7.0f} jobs/s   full cycle {step.cycle:7.0f} jobs/s   "
            f"cancel {step.cancel:7.0f} calls/s",
            flush=True,
        )
        measured.append(step)
    return measured


def steps_of(text: str) -> list[int]:
    """Parse numbers such as `10000,100000`."""
    return sorted(int(number) for number in text.split(","))


def run(steps: list[int], seconds: float) -> list[Step]:
    """Start a service and measure."""
    print("throughput while more and more delayed jobs are stored", flush=True)
    with measured_service() as service:
        return run_here(measure(service, steps, seconds))


def main() -> None:
    options = options_of(
        __doc__, steps=(STEPS, "numbers of stored jobs, with commas"), seconds=(3.0, "length of each measurement")
    )
    run(steps_of(options.steps), options.seconds)


if __name__ == "__main__":
    main()
