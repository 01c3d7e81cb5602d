"""The figures of a benchmark, as its JSON shows them. Durations are seconds, or milliseconds where the name says so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from deferd.bench.steps import Outcome

_BUCKETS = 20
"""About as many lines of a histogram as a terminal shows well."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How durations are spread, in milliseconds."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, ordered_ms: Sequence[float]) -> Spread:
        """The spread of values that are in order; at least one."""
        shares = (percentile(ordered_ms, share) for share in (0.5, 0.9, 0.99, 1))
        return cls(*(round(value_ms, 3) for value_ms in shares))


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast jobs went.

    `generator_busy` is the share of a core that the busiest load-generating process used: near 1 it was that process
    that set the pace, and not the service.
    """

    jobs: int
    seconds: float
    jobs_per_second: float
    generator_busy: float

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], seconds: float) -> Pace:
        """The pace of what all processes did at the same time, in so many seconds."""
        jobs, busy = sum(one.jobs for one in outcomes), max(one.cpu_s for one in outcomes) / seconds
        return cls(jobs, round(seconds, 3), round(jobs / seconds, 1), round(busy, 2))


@dataclass(frozen=True, slots=True)
class CallFigures:
    """Single calls: their number, and how long each took."""

    pace: Pace
    calls: int
    calls_per_second: float
    call: Spread

    @classmethod
    def of(cls, outcomes: Sequence[Outcome]) -> CallFigures:
        """What all processes did at the same time."""
        seconds, calls = span_s(outcomes), sum(one.calls for one in outcomes)
        return cls(Pace.of(outcomes, seconds), calls, round(calls / seconds, 1), Spread.of(_ordered(outcomes)))


@dataclass(frozen=True, slots=True)
class SingleFigures:
    """Load `single`: `put` alone, and the `cycle` put, pop, finish, each a call of its own."""

    connections: int
    put: CallFigures
    cycle: CallFigures


@dataclass(frozen=True, slots=True)
class BatchFigures:
    """Load `batch`: from the first put to the last answer, and from the common due instant to the last finish.

    The `cycle` is both, one after the other.
    """

    batch: int
    put: Pace
    take: Pace
    cycle: Pace

    @classmethod
    def of(cls, batch: int, put: Pace, take: Pace) -> BatchFigures:
        """The figures from its two halves."""
        seconds = put.seconds + take.seconds
        busy = (put.generator_busy * put.seconds + take.generator_busy * take.seconds) / seconds
        cycle = Pace(put.jobs, round(seconds, 3), round(put.jobs / seconds, 1), round(busy, 2))
        return cls(batch, put, take, cycle)


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many jobs were late by so much: from `from_ms` on, but less than `to_ms` (None: any more)."""

    from_ms: float
    to_ms: float | None
    jobs: int


@dataclass(frozen=True, slots=True)
class LatenessFigures:
    """Load `lateness`: from the instant a job was due until it was in the hands of a waiting consumer."""

    rate: int
    seconds: float
    jobs: int
    consumers: int
    late: Spread
    jobs_per_pop: float
    generator_busy: float
    histogram: list[Bucket]

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], rate: int, seconds: float, consumers: int) -> LatenessFigures:
        """What all processes saw; the jobs were due within so many seconds."""
        late_ms = _ordered(outcomes)
        pops = sum(one.calls for one in outcomes)
        busy = round(max(one.cpu_s for one in outcomes) / seconds, 2)
        per_pop = round(len(late_ms) / pops, 2)
        return cls(rate, seconds, len(late_ms), consumers, Spread.of(late_ms), per_pop, busy, histogram_of(late_ms))


@dataclass(slots=True)
class Figures:
    """All that a run has found so far; None for a load that was left out, or that failed."""

    url: str
    processes: int
    clock_offset_ms: float | None = None
    clock_error_ms: float | None = None
    single: SingleFigures | None = None
    batch: BatchFigures | None = None
    lateness: LatenessFigures | None = None
    error: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The object that programs get: paces and spreads lie flat among the fields around them."""
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


def span_s(outcomes: Sequence[Outcome]) -> float:
    """Seconds from when the first process began to when the last one ended."""
    return max(one.ended_s for one in outcomes) - min(one.began_s for one in outcomes)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the values, which are in order, that `share` (above 0, to 1) of them do not exceed."""
    return ordered[max(math.ceil(len(ordered) * share) - 1, 0)]


def histogram_of(ordered_ms: Sequence[float]) -> list[Bucket]:
    """Buckets of one round width (1, 2 or 5 times a power of ten) up to the p99 at least, and one for all beyond."""
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


def _ordered(outcomes: Sequence[Outcome]) -> list[float]:
    return sorted(value for one in outcomes for value in one.values_ms)
