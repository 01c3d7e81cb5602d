"""How long do hostile requests of at most 1 MB hold the event loop of a service?

    python -m tests.benchmarks.loop_holds [--only PART]

Each group of `tests.acceptance.hostile_requests` is sent at once. Shown are the longest hold in CPU time, the same
in units of a yardstick (`count_ms`), how long `/healthz` took meanwhile, and what the group left in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.acceptance.held_loop import HeldLoop
from tests.acceptance.hostile_requests import GROUPS, MOST_COUNTS, READS, Sent, call, count_ms
from tests.acceptance.service_process import ServiceProcess
from tests.benchmarks.measuring import new_event_loop, resident_bytes


async def slowest_health_check(port: int, work: asyncio.Future[list[int]]) -> float:
    """Milliseconds of the slowest `/healthz` until the work is done."""
    slowest_s = 0.0
    while not work.done():
        began_s = time.perf_counter()
        await call(port, Sent("GET", "/healthz"))
        slowest_s = max(slowest_s, time.perf_counter() - began_s)
        await asyncio.sleep(0.005)
    return slowest_s * 1000


async def measure(service: ServiceProcess, held: HeldLoop, only: str) -> float:
    worst = 0.0
    for name, group in {**GROUPS, **READS}.items():
        if only not in name:
            continue
        for sent in group:
            assert len(sent.content()) <= 1024 * 1024, name
        before = resident_bytes(service.process.pid)
        yardstick_ms = count_ms()
        held.longest_ms()
        began_s = time.perf_counter()
        work = asyncio.gather(*(call(service.port, sent) for sent in group))
        slowest_ms = await slowest_health_check(service.port, work)
        took_s = time.perf_counter() - began_s
        await asyncio.sleep(0.05)
        longest_ms = held.longest_ms()
        counts = longest_ms / yardstick_ms
        worst = max(worst, counts)
        grown = (resident_bytes(service.process.pid) - before) / 2**20
        statuses = ",".join(f"{count}x{status}" for status, count in Counter(work.result()).items())
        print(
            f"{name:<46}{longest_ms:>9.1f}{counts:>8.2f}{slowest_ms:>10.1f}{took_s:>8.2f}{grown:>+8.1f}  {statuses}",
            flush=True,
        )
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="groups whose name contains this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "held"
        held = HeldLoop(file)
        service = ServiceProcess(Path(name), module=("tests.acceptance.held_loop", str(file)))
        with service, asyncio.Runner(loop_factory=new_event_loop) as runner:
            service.wait_ready()
            print(f"{'':<46}{'hold, ms':>9}{'counts':>8}{'healthz':>10}{'s':>8}{'MiB':>8}")
            worst = runner.run(measure(service, held, options.only))
    print(f"  longest hold: {worst:.2f} times the yardstick (at most {MOST_COUNTS})")


if __name__ == "__main__":
    main()
