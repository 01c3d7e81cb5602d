"""Histories as the JSON of the API."""

from __future__ import annotations

from typing import Any

from deferd.api.response_values import instant, seconds
from deferd.engine.history.histories import History
from deferd.engine.history.records import COUNTS, Bucket

_GAUGES = ("delayed", "ready", "reserved", "dead_jobs")


def topic_history(topic: str, found: History) -> dict[str, Any]:
    """The history of a topic."""
    return {"topic": topic, **_history(found)}


def history_of_all(found: History) -> dict[str, Any]:
    """The history of many topics together."""
    return {**_history(found), "complete": found.is_complete, "unreadable_shards": sorted(found.unreadable)}


def _history(found: History) -> dict[str, Any]:
    period = found.period
    return {
        "bucket": seconds(period.bucket_ms),
        "from": instant(period.from_ms),
        "to": instant(period.to_ms),
        "buckets": {
            "at": [seconds(period.from_ms + at * period.bucket_ms) for at in range(period.buckets)],
            **{name: [bucket.counts[at] for bucket in found.buckets] for at, name in enumerate(COUNTS)},
            "lateness_p50": [_lateness(bucket, 0.5) for bucket in found.buckets],
            "lateness_p99": [_lateness(bucket, 0.99) for bucket in found.buckets],
            **{
                name: [None if bucket.gauges is None else bucket.gauges[at] for bucket in found.buckets]
                for at, name in enumerate(_GAUGES)
            },
        },
    }


def _lateness(bucket: Bucket, share: float) -> float | None:
    late_s = bucket.lateness_s(share)
    return None if late_s is None else round(late_s, 4)
