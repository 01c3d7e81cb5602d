"""The figures of a benchmark, as in its JSON, and as tables, a histogram and notes for people.

Durations are in seconds, or in milliseconds with the suffix `_ms`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from rich import box
from rich.console import Console
from rich.table import Table

from deferd.bench.steps import StepResult

_BUCKETS = 20
"""Lines of a histogram that fit on a terminal, roughly."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of durations, in milliseconds."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, ordered_ms: Sequence[float]) -> Percentiles:
        """The percentiles of sorted values, at least one."""
        shares = (percentile(ordered_ms, share) for share in (0.5, 0.9, 0.99, 1))
        return cls(*(round(value_ms, 3) for value_ms in shares))


@dataclass(frozen=True, slots=True)
class Throughput:
    """Jobs per second.

    `generator_busy` is the share of a core that the busiest load-generating process used: near 1 that process, not the
    service, was the limit.
    """

    jobs: int
    seconds: float
    jobs_per_second: float
    generator_busy: float

    @classmethod
    def of(cls, results: Sequence[StepResult], seconds: float) -> Throughput:
        """From what all processes did concurrently in these seconds."""
        jobs, busy = sum(one.jobs for one in results), max(one.cpu_s for one in results) / seconds
        return cls(jobs, round(seconds, 3), round(jobs / seconds, 1), round(busy, 2))


@dataclass(frozen=True, slots=True)
class CallFigures:
    """Single calls: their number and durations."""

    pace: Throughput
    calls: int
    calls_per_second: float
    call: Percentiles

    @classmethod
    def of(cls, results: Sequence[StepResult]) -> CallFigures:
        """From what all processes did concurrently."""
        seconds, calls = span_s(results), sum(one.calls for one in results)
        return cls(Throughput.of(results, seconds), calls, round(calls / seconds, 1), Percentiles.of(_ordered(results)))


@dataclass(frozen=True, slots=True)
class SingleFigures:
    """Load `single`: `put` alone, and the `cycle` put, pop, finish, which is three calls."""

    connections: int
    put: CallFigures
    cycle: CallFigures


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """Load `batch`: `put` until the last response; `take` from the common due instant to the last finish.

    The `cycle` is both in sequence.
    """

    batch: int
    put: Throughput
    take: Throughput
    cycle: Throughput

    @classmethod
    def of(cls, batch: int, put: Throughput, take: Throughput) -> BatchFigures:
        """From the figures of both halves."""
        seconds = put.seconds + take.seconds
        busy = (put.generator_busy * put.seconds + take.generator_busy * take.seconds) / seconds
        cycle = Throughput(put.jobs, round(seconds, 3), round(put.jobs / seconds, 1), round(busy, 2))
        return cls(batch, put, take, cycle)


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many jobs were late by at least `from_ms` and less than `to_ms` (None: no upper bound)."""

    from_ms: float
    to_ms: float | None
    jobs: int


@dataclass(frozen=True, slots=True)
class LatenessFigures:
    """Load `lateness`: from when a job was due until a waiting consumer had it."""

    rate: int
    seconds: float
    jobs: int
    consumers: int
    late: Percentiles
    jobs_per_pop: float
    generator_busy: float
    histogram: list[Bucket]

    @classmethod
    def of(cls, results: Sequence[StepResult], rate: int, seconds: float, consumers: int) -> LatenessFigures:
        """From what all processes measured; the jobs were due within these seconds."""
        late_ms = _ordered(results)
        pops = sum(one.calls for one in results)
        busy = round(max(one.cpu_s for one in results) / seconds, 2)
        per_pop = round(len(late_ms) / pops, 2)
        return cls(
            rate, seconds, len(late_ms), consumers, Percentiles.of(late_ms), per_pop, busy, histogram_of(late_ms)
        )


@dataclass(slots=True)
class Figures:
    """The figures of a run so far; None for a load that was not run or failed."""

    url: str
    processes: int
    clock_offset_ms: float | None = None
    clock_error_ms: float | None = None
    single: SingleFigures | None = None
    batch: BatchFigures | None = None
    lateness: LatenessFigures | None = None
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON object; throughputs and percentiles are merged into the objects around them."""
        return {name: _flat(value) for name, value in asdict(self).items()}


def _flat(value: Any) -> Any:
    if isinstance(value, list):
        return [_flat(one) for one in value]
    if not isinstance(value, dict):
        return value
    flat: dict[str, Any] = {}
    for name, member in value.items():
        if name in {"pace", "call", "late"}:
            flat |= _flat(member)
        else:
            flat[name] = _flat(member)
    return flat


def span_s(results: Sequence[StepResult]) -> float:
    """Seconds from the start of the first process to the end of the last one."""
    return max(one.ended_s for one in results) - min(one.began_s for one in results)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the sorted values that at least `share` of them (above 0, up to 1) do not exceed."""
    return ordered[max(math.ceil(len(ordered) * share) - 1, 0)]


def histogram_of(ordered_ms: Sequence[float]) -> list[Bucket]:
    """Buckets of one width (1, 2 or 5 times a power of ten) at least up to the p99, and one for all above."""
    width_ms = _round_up(max(percentile(ordered_ms, 0.99), 0.001) / _BUCKETS)
    limit = math.ceil(max(percentile(ordered_ms, 0.99), 0.001) / width_ms)
    counts = [0] * (limit + 1)
    for value_ms in ordered_ms:
        counts[min(max(int(value_ms / width_ms), 0), limit)] += 1
    edges = [round(number * width_ms, 6) for number in range(limit + 1)]
    closed = [Bucket(edges[at], edges[at + 1], counts[at]) for at in range(limit)]
    return [*closed, Bucket(edges[limit], None, counts[limit])] if counts[limit] else closed


def _round_up(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)


def _ordered(results: Sequence[StepResult]) -> list[float]:
    return sorted(value for one in results for value in one.values_ms)


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
            f"(within {figures.clock_error_ms:.1f} ms). Lateness is corrected by this difference."
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
