"""What does one append cost the store, with few and with many items collected before it?

    python -m tests.benchmarks.appends [--jobs 40] [--appends 5] [--rounds 5]

Each job first collects so many items; then as many appends are measured, one call each: the CPU time of the store, and
the bytes by which its append-only file grows. Shown are medians of the rounds, and their ratios to those of few items.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path

from deferd.contract.model import PutJob
from deferd.engine.engine import Engine
from deferd.store.connection import connect
from tests.benchmarks.measuring import embedded_environment, options_of, show_target, store_cpu_us
from tests.integration.store.store_servers import StoreServer

TOPIC = "bench.appends"
ITEM = {"order": 1042, "customer": "c-17"}
SIZES = (10, 100, 1000, 9900)
BATCH = 1000
TARGET = 1.3


async def measure(server: StoreServer, size: int, jobs: int, appends: int, rounds: int) -> tuple[float, float]:
    """The store's CPU microseconds, and the bytes of its append-only file, for one append to jobs of this size."""
    store = await connect(server.url, timeout_s=30)
    engine = Engine(store, movable_clock=False)
    ids = [f"{size}-{number}" for number in range(jobs)]

    def put(job_id: str) -> PutJob:
        return PutJob(topic=TOPIC, id=job_id, body=ITEM, delay=3600, on_conflict="append")

    for job_id in ids:
        for left in range(size, 0, -BATCH):
            await engine.puts.put_many([put(job_id)] * min(left, BATCH))
    cpu_us, bytes_written = [], []
    for _ in range(rounds):
        before_us, before_bytes = store_cpu_us(server), file_bytes(server)
        for _ in range(appends):
            for job_id in ids:
                await engine.puts.put(put(job_id))
        calls = appends * jobs
        cpu_us.append((store_cpu_us(server) - before_us) / calls)
        bytes_written.append((file_bytes(server) - before_bytes) / calls)
    await engine.close()
    await store.close()
    return statistics.median(cpu_us), statistics.median(bytes_written)


def file_bytes(server: StoreServer) -> int:
    return int(server.command("INFO", "persistence")["aof_current_size"])


def main() -> None:
    options = options_of(__doc__, jobs=40, appends=(5, "to each job in a round; at most 20 with 5 rounds"), rounds=5)
    with (
        tempfile.TemporaryDirectory() as folder,
        StoreServer(Path(folder), environment=embedded_environment()) as server,
    ):
        server.command("CONFIG", "SET", "appendonly", "yes")
        server.command("CONFIG", "SET", "auto-aof-rewrite-percentage", "0")
        found = {
            size: asyncio.run(measure(server, size, options.jobs, options.appends, options.rounds)) for size in SIZES
        }
    few_us, few_bytes = found[SIZES[0]]
    for size, (cpu_us, bytes_written) in found.items():
        print(
            f"  {size:6} items: {cpu_us:6.1f} us of the store's CPU ({cpu_us / few_us:.2f}), "
            f"{bytes_written:6.1f} bytes ({bytes_written / few_bytes:.2f})"
        )
    show_target("growth of the CPU time", found[SIZES[-1]][0] / few_us, at_most=TARGET)
    show_target("growth of the bytes", found[SIZES[-1]][1] / few_bytes, at_most=TARGET)


if __name__ == "__main__":
    main()
