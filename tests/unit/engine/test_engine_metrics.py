"""The engine's histograms of durations, and their numbers in the history."""

from __future__ import annotations

from collections import Counter

from prometheus_client import CollectorRegistry, Histogram

from deferd.engine.history import Bucket, quantiles_s
from deferd.engine.metrics import LATENESS_BUCKETS, RUN_TIME_BUCKETS, JobsHistogram, TopicCounts

_BUCKETS = (0.001, 0.01, 1)


def samples_of(histogram: Histogram) -> dict[tuple[str, str | None], float]:
    [metric] = histogram.collect()
    return {
        (sample.name, sample.labels.get("le")): sample.value
        for sample in metric.samples
        if not sample.name.endswith("_created")
    }


def test_observing_many_values_at_once_equals_observing_each() -> None:
    lateness_ms = [0, 1, 1, 2, 10, 11, 999, 1000, 1001, 5_000_000]
    one_by_one = Histogram("late", "x", buckets=_BUCKETS, registry=CollectorRegistry())
    at_once = JobsHistogram("late", "x", buckets=_BUCKETS, registry=CollectorRegistry())
    for late_ms in lateness_ms:
        one_by_one.observe(late_ms / 1000)
    at_once.observe_all_ms(lateness_ms)
    assert samples_of(one_by_one) == samples_of(at_once)


def test_negative_lateness_counts_as_zero() -> None:
    histogram = JobsHistogram("late", "x", ["topic"], buckets=_BUCKETS, registry=CollectorRegistry())
    child = histogram.labels("t")
    child.observe_all_ms([-5, 0])
    child.observe_all_ms([])
    samples = samples_of(histogram)
    assert samples["late_sum", None] == 0
    assert samples["late_bucket", "0.001"] == samples["late_count", None] == 2


def record_of(counts: TopicCounts) -> list[int]:
    return [1, *counts.numbers()[:6], -1, -1, -1, -1, *counts.numbers()[6:]]


def test_run_times_are_beside_the_lateness_of_a_record() -> None:
    counts = TopicCounts()
    counts.add_lateness({0: 2, 18: 1})
    counts.add_run_times({0: 3, 10: 5})
    counts.add_run_times({10: 1, 24: 1})
    bucket = Bucket()
    for _ in range(2):
        bucket.add(record_of(counts))
    assert bucket.lateness == {0: 4, 18: 2}
    assert bucket.run_times == {0: 6, 10: 12, 24: 2}


def test_a_release_that_knows_no_run_times_ranks_lateness_as_before() -> None:
    """It takes all pairs of a record for buckets of lateness."""
    late = {0: 90, 4: 9, 7: 1}
    counts = TopicCounts()
    counts.add_lateness(late)
    counts.add_run_times({0: 1000, 15: 1000, 24: 1000})
    pairs = record_of(counts)[11:]
    all_for_lateness = Counter(dict(zip(pairs[::2], pairs[1::2], strict=True)))
    shares = (0.01, 0.5, 0.95, 0.99, 1)
    assert quantiles_s(all_for_lateness, LATENESS_BUCKETS, shares) == quantiles_s(late, LATENESS_BUCKETS, shares)


def test_buckets_that_a_later_release_has_are_left_out() -> None:
    counts = TopicCounts()
    counts.add_lateness({len(LATENESS_BUCKETS) + 1: 1})
    counts.add_run_times({len(RUN_TIME_BUCKETS): 1, len(RUN_TIME_BUCKETS) + 1: 1})
    bucket = Bucket()
    bucket.add(record_of(counts))
    assert (bucket.lateness, bucket.run_times) == ({}, {len(RUN_TIME_BUCKETS): 1})


def test_quantiles_are_spread_over_their_bucket_and_end_with_the_last() -> None:
    assert quantiles_s({}, (1, 2, 5), (0.5, 0.99)) == [None, None]
    assert quantiles_s({1: 4}, (1, 2, 5), (0.25, 0.5, 1)) == [1.25, 1.5, 2.0]
    assert quantiles_s({0: 1, 2: 1, 3: 2}, (1, 2, 5), (0.25, 0.5, 0.75, 1)) == [1.0, 5.0, 5.0, 5.0]
