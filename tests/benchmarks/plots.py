"""Draws the plots of docs/benchmarks.md from new measurements: lateness, throughput as jobs pile up, the client's CPU.

    python -m tests.benchmarks.plots [--rate 2000] [--seconds 15] [--steps 10000,100000,500000,2000000]

Writes SVG files to `docs/images/`.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from tests.benchmarks import charts, client_put, lateness, stored
from tests.benchmarks.measuring import measured_service, new_event_loop, percentile

FOLDER = Path(__file__).parents[2] / "docs/images"
CONSUMERS, COUNT = 8, 100
_SHOWN_MS = 15


def draw_lateness(rate: int, seconds: float) -> None:
    """Measure and draw the histogram."""
    options = argparse.Namespace(rate=rate, seconds=seconds, consumers=CONSUMERS, count=COUNT)
    with measured_service() as service, asyncio.Runner(loop_factory=new_event_loop) as runner:
        late_ms = list(runner.run(lateness.measure(service.port, options)).late_ms.values())
    p50_ms, p99_ms = percentile(late_ms, 0.5), percentile(late_ms, 0.99)
    title = f"Lateness of delivery at {rate:,} jobs/s: p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms"
    print(title)
    chart = charts.histogram(title, "milliseconds late", "jobs", late_ms, width=0.5, most=_SHOWN_MS)
    (FOLDER / "lateness.svg").write_text(chart, encoding="utf-8")


def draw_stored(steps: list[int], seconds: float) -> None:
    """Measure and draw the lines."""
    measured = stored.run(steps, seconds)
    series = {
        "put (jobs/s)": [(step.stored, step.put) for step in measured],
        "full cycle (jobs/s)": [(step.stored, step.cycle) for step in measured],
        "cancel (calls/s)": [(step.stored, step.cancel) for step in measured],
    }
    chart = charts.lines("Throughput while delayed jobs are stored, every write fsynced", "stored", "a second", series)
    (FOLDER / "stored.svg").write_text(chart, encoding="utf-8")


def draw_client() -> None:
    """Measure and draw the bars."""
    groups: dict[str, dict[str, float]] = {}
    for (name, loop, tasks), cpu_us in client_put.median_cpu_us(client_put.measure(rounds=3, jobs=6000)).items():
        how = "blocking" if loop == "blocking" else f"{tasks} at a time, {loop}"
        groups.setdefault(how, {})["bare protocol" if name == "bare" else name] = cpu_us
    chart = charts.bars("CPU time of a client for a put", "microseconds", groups)
    (FOLDER / "client.svg").write_text(chart, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=2000, help="jobs due per second")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds in which they become due")
    parser.add_argument("--steps", default=stored.STEPS, help="numbers of stored jobs, with commas")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    draw_lateness(options.rate, options.seconds)
    draw_stored(stored.steps_of(options.steps), seconds=3.0)
    draw_client()


if __name__ == "__main__":
    main()
