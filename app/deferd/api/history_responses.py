"""Histories as the API shows them."""

from __future__ import annotations

from typing import Any

from deferd.api.response_values import instant, seconds
from deferd.contract.responses import history as responses
from deferd.engine.history.histories import History
from deferd.engine.history.records import COUNTS, Bucket

_GAUGES = ("delayed", "ready", "reserved", "dead_jobs")


def topic_history(topic: str, found: History) -> responses.TopicHistory:
    """The history of a topic."""
    return responses.TopicHistory(topic=topic, **_history(found))


def history_of_all(found: History) -> responses.HistoryOfAll:
    """The history of many topics together."""
    return responses.HistoryOfAll(
        **_history(found), complete=found.is_complete, unreadable_shards=sorted(found.unreadable)
    )


def _history(found: History) -> dict[str, Any]:
    period = found.period
    columns: dict[str, list[Any]] = {
        name: [bucket.counts[at] for bucket in found.buckets] for at, name in enumerate(COUNTS)
    }
    for at, name in enumerate(_GAUGES):
        columns[name] = [None if bucket.gauges is None else bucket.gauges[at] for bucket in found.buckets]
    return {
        "bucket": seconds(period.bucket_ms),
        "begins_at": instant(period.from_ms),
        "ends_at": instant(period.to_ms),
        "buckets": responses.HistoryBuckets(
            at=[(period.from_ms + at * period.bucket_ms) // 1000 for at in range(period.buckets)],
            lateness_p50=[_lateness(bucket, 0.5) for bucket in found.buckets],
            lateness_p99=[_lateness(bucket, 0.99) for bucket in found.buckets],
            **columns,
        ),
    }


def _lateness(bucket: Bucket, share: float) -> float | None:
    late_s = bucket.lateness_s(share)
    return None if late_s is None else round(late_s, 4)
