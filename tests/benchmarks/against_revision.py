"""Do plain jobs cost what they did in another revision? CPU of service and store a job, and the store's memory.

    python -m tests.benchmarks.against_revision REVISION [--rounds 7] [--seconds 2] [--jobs 20000] [--at-least 0.98]

Needs `git` and `wrk`. Two services run, this one and that of the revision, each on a store without append-only file.
They get the same load in turn: single puts over 64 connections, the cycle of put, pop and finish as single calls, and
the cycle in batches of 500 by this revision's client. The share is the median over the rounds of the revision's CPU
time divided by this one's, of the service and the store together: above 1 this one is faster. Afterwards each stores
100,000 delayed jobs for the comparison of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from deferd.client import AsyncClient
from tests.acceptance.service_process import ServiceProcess
from tests.benchmarks.measuring import (
    OTHER_CORE,
    SERVICE_CORE,
    CpuMeter,
    embedded_environment,
    end_in_order,
    pin,
    run_here,
    show_target,
)
from tests.benchmarks.single_calls import SCRIPT, TOPIC
from tests.integration.store.store_servers import StoreServer
from tests.previous_release import unpack

BODY = {"order": 1042, "customer": "c-17"}
BATCH = 500
STORED = 100_000


@dataclass
class Side:
    """One of the two services, and what it took: microseconds a job of the service and of the store, by load."""

    url: str
    pid: int
    server: StoreServer
    cpu_us: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def measure(self, load: str, run: Callable[[], int]) -> None:
        """Add what `run` costs; it returns the number of jobs."""
        with CpuMeter(self.pid, self.server.pid) as cpu:
            count = run()
        self.cpu_us[load].append((cpu.us_each(self.pid, count), cpu.us_each(self.server.pid, count)))
        httpx.delete(f"{self.url}/topics/{TOPIC}", timeout=30).raise_for_status()

    def used_memory(self) -> int:
        """Bytes in the store."""
        return int(self.server.command("INFO", "memory")["used_memory"])


@contextlib.contextmanager
def running_side(folder: Path, source: Path) -> Iterator[Side]:
    """A service of the package below `source`, and its store."""
    with StoreServer(folder / "store", environment=embedded_environment()) as server:
        service = ServiceProcess(
            folder / "service", "--redis-url", server.url, environment={"PYTHONPATH": str(source / "app")}
        )
        with service:
            service.wait_ready()
            pin(service.process.pid, SERVICE_CORE)
            pin(server.pid, OTHER_CORE)
            yield Side(service.url, service.process.pid, server)


def run_wrk(url: str, mode: str, seconds: int) -> int:
    """Load `url` with single calls; the number of calls."""
    command = ["wrk", "-t1", "-c64", f"-d{seconds}", "--timeout", "10", "-s", str(SCRIPT), f"{url}/jobs", "--", mode]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=seconds + 60).stdout
    line = next(line for line in output.splitlines() if line.startswith("RESULT "))
    requests, _, failed, empty, *_ = map(int, line.split()[1:])
    if failed or empty:
        raise SystemExit(f"{mode}: {failed} calls failed and {empty} pops were empty")
    return requests


async def run_batches(url: str, jobs: int) -> int:
    """Put, pop and finish jobs in batches; the number of jobs."""
    async with AsyncClient(url, timeout=30) as client:
        for _ in range(0, jobs, BATCH):
            await client.put_batch([{"topic": TOPIC, "body": BODY} for _ in range(BATCH)])
            held = await client.pop(TOPIC, count=BATCH, wait=5)
            assert len(held) == BATCH, "a job was not handed out"
            await client.finish_many(TOPIC, held)
    return jobs


async def store_jobs(url: str) -> int:
    """Store the delayed jobs for the comparison of memory, with the same ids on each side; their number."""
    async with AsyncClient(url, timeout=30) as client:
        for start in range(0, STORED, BATCH):
            numbers = range(start, start + BATCH)
            await client.put_batch(
                [{"topic": TOPIC, "id": f"order-{number}", "body": BODY, "delay": 3600} for number in numbers]
            )
    return STORED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="a commit, branch or tag with which this checkout is compared")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each load; the medians count")
    parser.add_argument("--seconds", type=int, default=2, help="length of a run of single calls")
    parser.add_argument("--jobs", type=int, default=20_000, help="jobs of a run of batches")
    parser.add_argument("--at-least", type=float, default=0.98, help="the target for each share")
    options = parser.parse_args()
    end_in_order()
    loads: dict[str, Callable[[Side], int]] = {
        "put": lambda side: run_wrk(side.url, "put", options.seconds),
        "cycle": lambda side: run_wrk(side.url, "cycle", options.seconds),
        "batches": lambda side: run_here(run_batches(side.url, options.jobs)),
    }
    with tempfile.TemporaryDirectory(prefix="deferd-bench-") as name:
        folder = Path(name)
        other = unpack(folder / "revision", options.revision)
        with running_side(folder / "1", Path.cwd()) as this, running_side(folder / "2", other) as that:
            pin(os.getpid(), OTHER_CORE)
            for load, run in loads.items():
                for number in range(options.rounds + 1):
                    for side in (this, that) if number % 2 else (that, this):
                        side.measure(load, lambda: run(side))  # noqa: B023 (it is called at once)
                for side in (this, that):
                    del side.cpu_us[load][0]  # the first run warms up
                show(load, this, that, options.at_least)
            memory = []
            for side in (this, that):
                before = side.used_memory()
                stored = run_here(store_jobs(side.url))
                memory.append((side.used_memory() - before) / stored)
            print(f"memory of a delayed job: {memory[0]:.1f} bytes, in {options.revision} {memory[1]:.1f}")


def show(load: str, this: Side, that: Side, at_least: float) -> None:
    """Print the costs of one load and their share."""
    for name, side in (("this", this), ("that", that)):
        service, store = (statistics.median(values) for values in zip(*side.cpu_us[load], strict=True))
        print(f" {load:8} {name}   service {service:5.1f} us   store {store:5.1f} us   sum {service + store:5.1f} us")
    pairs = list(zip(this.cpu_us[load], that.cpu_us[load], strict=True))
    service, store = (statistics.median(other[at] / own[at] for own, other in pairs) for at in (0, 1))
    shares = [sum(other) / sum(own) for own, other in pairs]
    print(f"  shares: service {service:.3f}, store {store:.3f}; runs {' '.join(f'{share:.3f}' for share in shares)}")
    show_target(load, statistics.median(shares), at_least=at_least)


if __name__ == "__main__":
    main()
