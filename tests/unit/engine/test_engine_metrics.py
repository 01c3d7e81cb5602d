"""The engine's histogram of lateness."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram

from deferd.engine.metrics import LatenessHistogram

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
    at_once = LatenessHistogram("late", "x", buckets=_BUCKETS, registry=CollectorRegistry())
    for late_ms in lateness_ms:
        one_by_one.observe(late_ms / 1000)
    at_once.observe_all_ms(lateness_ms)
    assert samples_of(one_by_one) == samples_of(at_once)


def test_negative_lateness_counts_as_zero() -> None:
    histogram = LatenessHistogram("late", "x", ["topic"], buckets=_BUCKETS, registry=CollectorRegistry())
    child = histogram.labels("t")
    child.observe_all_ms([-5, 0])
    child.observe_all_ms([])
    samples = samples_of(histogram)
    assert samples["late_sum", None] == 0
    assert samples["late_bucket", "0.001"] == samples["late_count", None] == 2
