"""How late are jobs? From the instant a job is due until it is in the hands of a waiting consumer, over HTTP.

    python -m tests.benchmarks.lateness [--rate 200] [--seconds 20] [--consumers 8]

Starts a service of its own on an embedded store (append-only file, fsync always), puts jobs that are due at random
instants, and lets consumers of another process long-poll for them. Both clocks are this machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx

from tests.acceptance.service_process import running_service

TOPIC = "bench.lateness"
LEAD_S = 2.0
"""Jobs are put this long before the first of them is due, so that putting them does not disturb the measurement."""
BATCH = 200


def percentile(values: list[float], share: float) -> float:
    """The value that `share` (0 to 1) of the sorted `values` do not exceed."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


async def consume(client: httpx.AsyncClient, lateness_ms: list[float], wanted: int, until: float) -> None:
    while len(lateness_ms) < wanted and time.time() < until:
        response = await client.get(f"/topics/{TOPIC}/pop", params={"wait": 1, "count": 10})
        now = time.time()
        finished = []
        for job in response.raise_for_status().json()["jobs"]:
            lateness_ms.append((now - datetime.fromisoformat(job["due_at"]).timestamp()) * 1000)
            finished.append({"id": job["id"], "receipt": job["receipt"]})
        if finished:
            (await client.post(f"/topics/{TOPIC}/finish", json={"jobs": finished})).raise_for_status()


async def measure(base_url: str, rate: int, seconds: float, consumers: int) -> list[float]:
    lateness_ms: list[float] = []
    wanted = int(rate * seconds)
    limits = httpx.Limits(max_connections=consumers + 2)
    async with httpx.AsyncClient(base_url=base_url, timeout=30, limits=limits) as client:
        start = datetime.now(UTC) + timedelta(seconds=LEAD_S)
        due = [start + timedelta(seconds=random.uniform(0, seconds)) for _ in range(wanted)]
        for at in range(0, wanted, BATCH):
            jobs = [{"topic": TOPIC, "run_at": instant.isoformat()} for instant in due[at : at + BATCH]]
            (await client.post("/jobs/batch", json={"jobs": jobs})).raise_for_status()
        until = time.time() + LEAD_S + seconds + 10
        await asyncio.gather(*(consume(client, lateness_ms, wanted, until) for _ in range(consumers)))
    if len(lateness_ms) < wanted:
        raise SystemExit(f"only {len(lateness_ms)} of {wanted} jobs arrived")
    return lateness_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=200, help="jobs due per second")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--consumers", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_service(data_dir=Path(folder)) as service:
        before = os.times()
        lateness_ms = asyncio.run(measure(service.url, options.rate, options.seconds, options.consumers))
        after = os.times()
    print(
        f"{len(lateness_ms)} jobs at {options.rate}/s, due -> in a consumer's hands: "
        f"p50 {statistics.median(lateness_ms):.1f} ms, p90 {percentile(lateness_ms, 0.9):.1f} ms, "
        f"p99 {percentile(lateness_ms, 0.99):.1f} ms, max {max(lateness_ms):.1f} ms; "
        f"earliest {min(lateness_ms):.1f} ms (this client used {after.user - before.user:.1f} s of CPU)"
    )


if __name__ == "__main__":
    main()
