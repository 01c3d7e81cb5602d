"""For operators: what happened in a topic, and in all topics together, over the last two days."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from deferd.api.context import CurrentRequest
from deferd.api.operation_router import OperationRouter
from deferd.api.responses import seconds
from deferd.contract.model import Topic
from deferd.contract.operations import history as contract
from deferd.contract.strict_model import StrictModel
from deferd.contract.timestamps import instant
from deferd.engine.history import COUNTS, FINE_MINUTES, MOST_MINUTES, Bucket, History, quantiles_s, whole_of
from deferd.engine.metrics import LATENESS_BUCKETS, RUN_TIME_BUCKETS

router = OperationRouter()

_GAUGES = ("delayed", "ready", "reserved", "dead_jobs")
_SHARES = (0.5, 0.99)
_QUANTILES = ("lateness_p50", "lateness_p99", "run_time_p50", "run_time_p99")


class HistoryQuery(StrictModel):
    """The parameters of a history."""

    minutes: int = Field(
        FINE_MINUTES,
        strict=True,
        ge=1,
        le=MOST_MINUTES,
        description=f"How far back, 1 to {MOST_MINUTES} minutes (two days): up to {FINE_MINUTES} minutes in buckets of "
        "10 seconds, beyond that in buckets of 5 minutes.",
    )


@router.serves(contract.GET_HISTORY)
async def get_history(
    request: CurrentRequest, topic: Topic, query: Annotated[HistoryQuery, Query()]
) -> contract.TopicHistory:
    return topic_history(topic, await request.engine.histories.of_topic(topic, query.minutes))


@router.serves(contract.GET_HISTORY_OF_ALL)
async def get_history_of_all(request: CurrentRequest, query: Annotated[HistoryQuery, Query()]) -> contract.HistoryOfAll:
    return history_of_all(await request.engine.histories.of_all(request.admission.visible_topics, query.minutes))


def topic_history(topic: str, found: History) -> contract.TopicHistory:
    """The history of a topic."""
    return contract.TopicHistory(topic=topic, **_history(found))


def history_of_all(found: History) -> contract.HistoryOfAll:
    """The history of many topics together."""
    return contract.HistoryOfAll(
        **_history(found), complete=found.is_complete, unreadable_shards=sorted(found.unreadable)
    )


def _history(found: History) -> dict[str, Any]:
    period = found.period
    columns: dict[str, list[Any]] = {
        name: [bucket.counts[at] for bucket in found.buckets] for at, name in enumerate(COUNTS)
    }
    for at, name in enumerate(_GAUGES):
        columns[name] = [None if bucket.gauges is None else bucket.gauges[at] for bucket in found.buckets]
    of_buckets = [_quantiles(bucket) for bucket in found.buckets]
    for name in _QUANTILES:
        columns[name] = [quantiles[name] for quantiles in of_buckets]
    return {
        "bucket": seconds(period.bucket_ms),
        "begins_at": instant(period.from_ms),
        "ends_at": instant(period.to_ms),
        "whole": contract.HistoryQuantiles(**_quantiles(whole_of(found))),
        "buckets": contract.HistoryBuckets(
            at=[(period.from_ms + at * period.bucket_ms) // 1000 for at in range(period.buckets)],
            **columns,
        ),
    }


def _quantiles(bucket: Bucket) -> dict[str, float | None]:
    quantiles = (
        *quantiles_s(bucket.lateness, LATENESS_BUCKETS, _SHARES),
        *quantiles_s(bucket.run_times, RUN_TIME_BUCKETS, _SHARES),
    )
    return dict(zip(_QUANTILES, [value and round(value, 4) for value in quantiles], strict=True))
