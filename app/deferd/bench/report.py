"""The figures for people: tables, a histogram and notes."""

from __future__ import annotations

from urllib.parse import urlsplit

from rich import box
from rich.console import Console
from rich.table import Table

from deferd.bench.figures import BatchFigures, Figures, LatenessFigures, Percentiles, SingleFigures

_BUSY = 0.85
"""Share of a core from which on a load-generating process may have been the limit."""
_BAR_WIDTH = 50
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_SPREAD_TITLES = ("p50 ms", "p90 ms", "p99 ms", "max ms")
_CHECKED = "Every put got 201, each job was delivered exactly once and not early, and the counts add up."
_BUSY_MEANS = "busy: the share of a core that the busiest load-generating process used."


def show(figures: Figures, *, histogram: bool) -> None:
    """Print the figures on standard output, as wide as its terminal."""
    console = Console(highlight=False)
    if figures.single is not None:
        console.print(_single_table(figures.single), "")
    if figures.batch is not None:
        console.print(_batch_table(figures.batch), "")
    if figures.lateness is not None:
        console.print(_lateness_table(figures.lateness), "")
        if histogram:
            _show_histogram(console, figures.lateness)
    if figures.error is None:
        for note in notes(figures):
            console.print(note)


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _single_table(single: SingleFigures) -> Table:
    table = _table(f"Single calls, {single.connections} connections", "jobs/s", "calls/s", *_SPREAD_TITLES, "busy")
    for name, one in (("put", single.put), ("put, pop, finish", single.cycle)):
        table.add_row(
            name,
            f"{one.pace.jobs_per_second:,.0f}",
            f"{one.calls_per_second:,.0f}",
            *_spread(one.call),
            _share(one.pace.generator_busy),
        )
    return table


def _batch_table(batch: BatchFigures) -> Table:
    table = _table(f"Batches of {batch.batch}, {batch.put.jobs:,} jobs", "jobs/s", "seconds", "busy")
    for name, pace in (
        ("put", batch.put),
        ("promoted, popped, finished", batch.take),
        ("full cycle", batch.cycle),
    ):
        table.add_row(name, f"{pace.jobs_per_second:,.0f}", f"{pace.seconds:.2f}", _share(pace.generator_busy))
    return table


def _lateness_table(lateness: LatenessFigures) -> Table:
    table = _table(
        f"Lateness, {lateness.rate:,} jobs/s due at random instants, {lateness.consumers} waiting consumers",
        *("jobs", *_SPREAD_TITLES, "jobs/pop", "busy"),
    )
    table.add_row(
        "due to delivered",
        f"{lateness.jobs:,}",
        *_spread(lateness.late),
        f"{lateness.jobs_per_pop:.1f}",
        _share(lateness.generator_busy),
    )
    return table


def _spread(spread: Percentiles) -> tuple[str, str, str, str]:
    return f"{spread.p50_ms:.1f}", f"{spread.p90_ms:.1f}", f"{spread.p99_ms:.1f}", f"{spread.max_ms:.1f}"


def _share(busy: float) -> str:
    text = f"{100 * busy:.0f} %"
    return f"[yellow]{text}[/yellow]" if busy >= _BUSY else text


def _show_histogram(console: Console, lateness: LatenessFigures) -> None:
    full = "█" if console.encoding.lower().startswith("utf") else "#"
    most = max(bucket.jobs for bucket in lateness.histogram)
    edges = [
        f"{bucket.from_ms:g} and more" if bucket.to_ms is None else f"{bucket.from_ms:g} to {bucket.to_ms:g}"
        for bucket in lateness.histogram
    ]
    width = max(map(len, edges))
    console.print(f"{'ms late':>{width}}      jobs", style="bold")
    for edge, bucket in zip(edges, lateness.histogram, strict=True):
        bar = full * -(-bucket.jobs * _BAR_WIDTH // most)
        console.print(f"{edge:>{width}}  {bucket.jobs:>8,}  {bar}", no_wrap=True, overflow="crop", crop=True)
    console.print()


def notes(figures: Figures) -> list[str]:
    """Notes on these figures, a sentence or two each."""
    busy = [name for name, share in _busy_shares(figures).items() if share >= _BUSY]
    found = [_CHECKED, _BUSY_MEANS]
    if busy:
        found.append(
            f"In {', '.join(busy)} it was so high that the load generator may have been the limit, not the service. "
            f"Try --processes {figures.processes * 2} if there are cores for them, or another machine."
        )
    if urlsplit(figures.url).hostname in _LOOPBACK:
        found.append("Service and load generator ran on this machine and competed for its cores.")
    if figures.clock_offset_ms:
        found.append(
            f"The clock of the service's store is {abs(figures.clock_offset_ms):,.1f} ms "
            f"{'ahead of' if figures.clock_offset_ms > 0 else 'behind'} this machine's "
            f"(give or take {figures.clock_error_ms:.1f} ms); lateness is corrected for it."
        )
    return found


def _busy_shares(figures: Figures) -> dict[str, float]:
    shares: dict[str, float] = {}
    if figures.single is not None:
        shares["single puts"] = figures.single.put.pace.generator_busy
        shares["single cycles"] = figures.single.cycle.pace.generator_busy
    if figures.batch is not None:
        shares["batches put"] = figures.batch.put.generator_busy
        shares["batches popped and finished"] = figures.batch.take.generator_busy
    if figures.lateness is not None:
        shares["lateness"] = figures.lateness.generator_busy
    return shares
