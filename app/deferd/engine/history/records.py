"""The records of a history as the store has them, and the buckets that operators see.

lua/publish_history.lua writes the records and describes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from deferd.engine.metrics import LATENESS_BUCKETS

BUCKET_MS = 10_000
COARSE_MS = 300_000
FINE_MINUTES = 60
"""For how long there are buckets of 10 s."""
MOST_MINUTES = 2880
"""For how long there are buckets of 5 min."""
TOPICS_OF_SHARD = 1000
"""How many topics of one shard have a history at most."""
KEPT_MS = MOST_MINUTES * 60_000
MOST_FINE = FINE_MINUTES * 60_000 // BUCKET_MS + 2
MOST_COARSE = KEPT_MS // COARSE_MS + 2
COUNTS = ("put", "popped", "finished", "released", "dead", "cancelled")
GAUGES = ("delayed", "ready", "reserved", "dead")
"""Numbers of jobs by state."""
_FIRST_GAUGE, _FIRST_LATENESS = 1 + len(COUNTS), 1 + len(COUNTS) + len(GAUGES)
_OF_5_MIN = COARSE_MS // BUCKET_MS

_DECODER = msgspec.msgpack.Decoder(list[int])
Gauges = tuple[int, ...]


@dataclass(slots=True)
class Bucket:
    """What happened in one bucket. `gauges` are the numbers of jobs at its end, None when these are not known.

    `lateness`: first deliveries by bucket of `LATENESS_BUCKETS`.
    """

    counts: list[int] = field(default_factory=lambda: [0] * len(COUNTS))
    gauges: Gauges | None = None
    lateness: Counter[int] = field(default_factory=Counter)

    def add(self, record: Sequence[int]) -> None:
        """Add a record that is later than those before, or of another shard or topic."""
        self.counts = [count + more for count, more in zip(self.counts, record[1:], strict=False)]
        gauges = tuple(record[_FIRST_GAUGE:_FIRST_LATENESS])
        if min(gauges) >= 0:
            self.gauges = gauges
        pairs = record[_FIRST_LATENESS:]
        self.lateness.update(dict(zip(pairs[::2], pairs[1::2], strict=True)))

    def add_counts(self, other: Bucket) -> None:
        """Add what happened in another partition at the same time, but not its numbers of jobs."""
        self.counts = [count + more for count, more in zip(self.counts, other.counts, strict=True)]
        self.lateness.update(other.lateness)

    def lateness_s(self, share: float) -> float | None:
        """The quantile `share` of the lateness of first deliveries; None if there were none."""
        return quantile_s(self.lateness, share)


def quantile_s(lateness: Mapping[int, int], share: float) -> float | None:
    """Values are taken as evenly spread within a bucket; values above an hour count as an hour."""
    rank = share * sum(lateness.values())
    if not rank:
        return None
    for bucket in sorted(lateness):
        jobs = lateness[bucket]
        if rank <= jobs:
            if bucket >= len(LATENESS_BUCKETS):
                break
            begin = LATENESS_BUCKETS[bucket - 1] if bucket else 0.0
            return begin + (LATENESS_BUCKETS[bucket] - begin) * rank / jobs
        rank -= jobs
    return float(LATENESS_BUCKETS[-1])


class Records:
    """The records of one history, each with its bucket first; the earliest first."""

    def __init__(self, fine: Iterable[bytes], coarse: Iterable[bytes]) -> None:
        self.fine = [_DECODER.decode(raw) for raw in fine]
        self.coarse = [_DECODER.decode(raw) for raw in coarse]

    @property
    def are_none(self) -> bool:
        """Whether there is no history."""
        return not self.fine

    def of_period(self, period: Period) -> Iterator[tuple[int, list[int]]]:
        """The records of a period, each with the index of its bucket.

        The last record before the period, if there is one, has index -1.
        """
        fine = [record for record in self.fine if record[0] * BUCKET_MS < period.to_ms]
        if period.bucket_ms == COARSE_MS:
            begin = period.from_ms // COARSE_MS
            found = [(record[0] - begin, record) for record in self.coarse]
            if fine[-1:] == self.fine[-1:]:  # else the last before the end is in those of 5 min
                found += [(record[0] // _OF_5_MIN - begin, record) for record in fine[-1:]]
        else:
            begin = period.from_ms // BUCKET_MS
            found = [(record[0] - begin, record) for record in fine]
            if not found or found[0][0] >= 0:
                coarse = [(-1, record) for record in self.coarse if (record[0] + 1) * COARSE_MS <= period.from_ms]
                found = [*coarse[-1:], *found]
        earlier = [record for at, record in found if at < 0]
        if earlier:
            yield -1, earlier[-1]
        yield from ((at, record) for at, record in found if 0 <= at < period.buckets)


@dataclass(frozen=True, slots=True)
class Period:
    """Buckets of equal length from `from_ms` on. The last one ends at `to_ms`, which may make it shorter."""

    from_ms: int
    to_ms: int
    bucket_ms: int

    @property
    def buckets(self) -> int:
        """How many."""
        return -((self.from_ms - self.to_ms) // self.bucket_ms)


def records_needed(minutes: int) -> tuple[int, int]:
    """How many of the latest records of 10 s and of 5 min cover the last `minutes` and the state before them."""
    is_fine = minutes <= FINE_MINUTES
    return MOST_FINE if is_fine else 1, (FINE_MINUTES if is_fine else minutes) * 60_000 // COARSE_MS + 3


def period_of(now_ms: int, minutes: int) -> Period:
    """The last `minutes` until the last bucket of 10 s that is over."""
    to_ms = now_ms // BUCKET_MS * BUCKET_MS
    bucket_ms = BUCKET_MS if minutes <= FINE_MINUTES else COARSE_MS
    from_ms = (to_ms - minutes * 60_000) // bucket_ms * bucket_ms
    return Period(from_ms, to_ms, bucket_ms)
