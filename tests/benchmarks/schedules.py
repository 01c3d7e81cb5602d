"""What do schedules cost while nothing is due, and how late are many runs that are due in the same second?

    python -m tests.benchmarks.schedules [--schedules 100000] [--seconds 20] [--firing 1000] [--firings 5]
        [--topics 1]

First many schedules are put of which none runs for months: CPU of the service and its embedded store. Then others that
all run every five seconds: at first at the same instant, then at random instants of the same second. How late their
jobs became ready is read from the metrics of the service. At last a year of nights with two changes of the clock passes
in a service whose clock is moved.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
import urllib.request
from datetime import UTC, datetime

from tests.benchmarks import raw_http
from tests.benchmarks.measuring import (
    CpuMeter,
    MeasuredService,
    measured_service,
    new_event_loop,
    options_of,
    show_target,
)

SETTLE_S = 3.0
CONNECTIONS = 32
EVERY_S = 5
TOPICS = 20
_BUCKET = re.compile(
    r'^deferd_promotion_lateness_seconds_bucket\{le="([^"]+)",topic="bench\.runs\.[^"]*"\} (\S+)$', re.MULTILINE
)
_RUNS = re.compile(r'^deferd_schedule_runs_total\{outcome="([^"]+)",topic="[^"]*"\} (\S+)$', re.MULTILINE)


async def put_schedules(port: int, bodies: list[dict[str, object]], prefix: str) -> None:
    """Put a schedule of each body, over several connections."""
    numbers = iter(range(len(bodies)))

    async def put_some() -> None:
        connection = await raw_http.connect(port)
        for number in numbers:
            await connection.call("PUT", f"/schedules/{prefix}-{number}", bodies[number])
        connection.close()

    await asyncio.gather(*(put_some() for _ in range(CONNECTIONS)))


def show_idle(service: MeasuredService, schedules: int, seconds: float) -> None:
    """Do nothing for a while and print its cost."""
    time.sleep(SETTLE_S)
    with CpuMeter(service.pid, service.store_pid) as cpu:
        time.sleep(seconds)
    service_share, store_share = cpu.share(service.pid), cpu.share(service.store_pid)
    print(f"{schedules} schedules of which none is due, {seconds:.0f} s: service {service_share:.2f} %, store ", end="")
    print(f"{store_share:.2f} % of a core")
    show_target("both, % of a core", service_share + store_share, at_most=0.5)


def lateness(url: str) -> tuple[dict[float, float], dict[str, float]]:
    """Cumulative counts by upper bound in seconds, and runs by outcome."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:  # noqa: S310 (it is on loopback)
        text = response.read().decode()
    buckets: dict[float, float] = {}
    for bound, count in _BUCKET.findall(text):
        buckets[float(bound)] = buckets.get(float(bound), 0) + float(count)
    runs: dict[str, float] = {}
    for outcome, count in _RUNS.findall(text):
        runs[outcome] = runs.get(outcome, 0) + float(count)
    return buckets, runs


def show_firing(service: MeasuredService, what: str, spread_s: float, options: argparse.Namespace) -> None:
    """Put schedules that run together, and print how late their runs were."""
    firing, firings, topics = options.firing, options.firings, options.topics
    first = datetime.fromtimestamp(int(time.time()) + 15, UTC)
    fields = {"every": EVERY_S, "start_at": first.isoformat(), "catch_up": "all", "spread": spread_s}
    bodies = [{"topic": f"bench.runs.{what}.{number % topics}", **fields} for number in range(firing)]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(put_schedules(service.port, bodies, f"run-{what}"))
        before, _ = lateness(service.url)
        with CpuMeter(service.pid, service.store_pid) as cpu:
            end = first.timestamp() + (firings - 1) * EVERY_S + 3
            time.sleep(end - time.time())
        after, runs = lateness(service.url)
        for number in range(firing):
            runner.run(_delete(service.port, f"run-{what}-{number}"))
    counts = {bound: after[bound] - before.get(bound, 0) for bound in sorted(after)}
    total = counts[float("inf")]
    print(f"{firing} schedules, {what}, {firings} times: {total:.0f} jobs; runs so far {runs}")
    print(
        "  "
        + ", ".join(f"<= {bound * 1000:g} ms {count / total:.1%}" for bound, count in counts.items() if bound <= 0.1)
    )
    for pid, name in ((service.pid, "service"), (service.store_pid, "store")):
        print(f"  {name}: {cpu.used[pid] / total * 1e6:.0f} us of CPU a run")
    assert total == firing * firings, "each occurrence must have one run"
    within = next(bound for bound, count in counts.items() if count >= 0.99 * total)
    show_target("p99 lateness, ms, at most", within * 1000, at_most=20)


async def _delete(port: int, name: str) -> None:
    connection = await raw_http.connect(port)
    await connection.call("DELETE", f"/schedules/{name}")
    connection.close()


async def show_year(port: int) -> None:
    """Move the clock of a service by a year, and print how long that took with a schedule of every night."""
    connection = await raw_http.connect(port)
    await connection.call(
        "PUT", "/schedules/nightly", {"topic": "bench.nights", "cron": "0 2 * * *", "zone": "Europe/Berlin"}
    )
    began_s = time.monotonic()
    await connection.call("POST", "/testing/clock", {"advance": 365 * 86_400})
    took_s = time.monotonic() - began_s
    nightly = await connection.call("GET", "/schedules/nightly")
    connection.close()
    assert nightly["runs"] == 365, nightly
    print(f"a year of nights in Berlin: {nightly['runs']} runs in {took_s:.1f} s")


def main() -> None:
    options = options_of(
        __doc__,
        schedules=100_000,
        seconds=20.0,
        firing=1000,
        firings=5,
        topics=(1, "topics of those that run together"),
    )
    with measured_service() as service:
        show_idle(service, 0, options.seconds)
        month = time.gmtime(time.time() + 120 * 86_400).tm_mon
        bodies: list[dict[str, object]] = [
            {"topic": f"bench.idle.{number % TOPICS}", "cron": f"{number % 60} {number // 60 % 24} 1 {month} *"}
            for number in range(options.schedules)
        ]
        began_s = time.monotonic()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(put_schedules(service.port, bodies, "idle"))
        print(f"{options.schedules / (time.monotonic() - began_s):.0f} schedules put a second")
        show_idle(service, options.schedules, options.seconds)
        show_firing(service, "at-once", 0, options)
        show_firing(service, "spread", 1, options)
    with measured_service("--test-clock") as service, asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(show_year(service.port))


if __name__ == "__main__":
    main()
