"""Draws the plots of docs/benchmarks.md from new measurements: lateness, throughput as jobs pile up, the client's CPU.

    python -m tests.benchmarks.plots [--rate 2000] [--seconds 15] [--steps 10000,100000,500000,2000000]

Writes SVG files to `docs/images/`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullLocator

from tests.benchmarks import client_put, lateness, stored
from tests.benchmarks.measuring import measured_service, options_of, percentile, run_here

FOLDER = Path(__file__).parents[2] / "docs/images"
CONSUMERS, COUNT = 8, 100
_BIN_MS, _SHOWN_MS = 0.5, 15


def draw_lateness(rate: int, seconds: float) -> None:
    """Measure and draw the histogram."""
    options = argparse.Namespace(rate=rate, seconds=seconds, consumers=CONSUMERS, count=COUNT)
    with measured_service() as service:
        late_ms = list(run_here(lateness.measure(service.port, options)).late_ms.values())
    p50_ms, p99_ms = percentile(late_ms, 0.5), percentile(late_ms, 0.99)
    title = f"Lateness of delivery at {rate:,} jobs/s: p50 {p50_ms:.1f} ms, p99 {p99_ms:.1f} ms"
    print(title)
    draw_histogram(title, late_ms)


def draw_histogram(title: str, late_ms: Sequence[float]) -> None:
    """Draw percent of the jobs by lateness; the last bar holds all that is above what is shown."""
    figure, axes = _chart(title, "percent of the jobs")
    bins = [_BIN_MS * number for number in range(round(_SHOWN_MS / _BIN_MS) + 2)]
    shown = [min(max(late, 0), _SHOWN_MS + _BIN_MS / 2) for late in late_ms]
    axes.hist(shown, bins, weights=[100 / len(shown)] * len(shown), rwidth=0.9)
    axes.set_xlabel(f"milliseconds late; the last bar is {_SHOWN_MS} and more")
    _save(figure, "lateness.svg")


def draw_stored(steps: list[int], seconds: float) -> None:
    """Measure and draw the lines."""
    measured = stored.run(steps, seconds)
    series = {
        "put (jobs/s)": [step.put for step in measured],
        "full cycle (jobs/s)": [step.cycle for step in measured],
        "cancel (calls/s)": [step.cancel for step in measured],
    }
    draw_lines([step.stored for step in measured], series)


def draw_lines(counts: Sequence[int], series: Mapping[str, Sequence[float]]) -> None:
    """Draw rates by the number of stored jobs."""
    figure, axes = _chart("Throughput while delayed jobs are stored, every write fsynced", "a second")
    for name, rates in series.items():
        axes.plot(counts, rates, marker="o", label=name)
    axes.set_xscale("log")
    axes.set_xticks(counts, [EngFormatter()(count) for count in counts])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("stored")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend()
    _save(figure, "stored.svg")


def draw_client() -> None:
    """Measure and draw the bars."""
    clients: dict[str, dict[str, float]] = {}
    for (name, loop, tasks), cpu_us in client_put.median_cpu_us(client_put.measure(rounds=3, jobs=6000)).items():
        how = "blocking" if loop == "blocking" else f"{tasks} at a time,\n{loop}"
        clients.setdefault("bare protocol" if name == "bare" else name, {})[how] = cpu_us
    draw_bars(clients)


def draw_bars(clients: Mapping[str, Mapping[str, float]]) -> None:
    """Draw the CPU time of each client for each way of calling."""
    figure, axes = _chart("CPU time of a client for a put", "microseconds")
    ways = list(dict.fromkeys(how for measured in clients.values() for how in measured))
    width = 1 / (len(clients) + 1)
    for number, (name, measured) in enumerate(clients.items()):
        places = [ways.index(how) + (number - (len(clients) - 1) / 2) * width for how in measured]
        axes.bar_label(axes.bar(places, list(measured.values()), width * 0.9, label=name), fmt="{:,.0f}")
    axes.set_xticks(range(len(ways)), ways)
    axes.legend()
    _save(figure, "client.svg")


def _chart(title: str, y_label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(7.6, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left")
    axes.set_ylabel(y_label)
    axes.grid(axis="y", color="#d0d7de")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Figure, name: str) -> None:
    # Text stays text, and the same values make the same file.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "deferd"}):
        figure.savefig(FOLDER / name, metadata={"Date": None})


def main() -> None:
    options = options_of(
        __doc__,
        rate=(2000, "jobs due per second"),
        seconds=(15.0, "seconds in which they become due"),
        steps=(stored.STEPS, "numbers of stored jobs, with commas"),
    )
    FOLDER.mkdir(exist_ok=True)
    draw_lateness(options.rate, options.seconds)
    draw_stored(stored.steps_of(options.steps), seconds=3.0)
    draw_client()


if __name__ == "__main__":
    main()
