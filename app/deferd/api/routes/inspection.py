"""For operators: why a job does not run, dead jobs by error, what comes due, and who consumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Query
from pydantic import Field

from deferd.api import why_reasons
from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest, RequestContext
from deferd.api.response_values import instant, instant_or_none, seconds
from deferd.api.routes.queries import TopicsQuery, page_limit
from deferd.contract import limits
from deferd.contract.model import Instant, JobId, JobState, Topic
from deferd.contract.operations import inspection as operations
from deferd.contract.responses import inspection as responses
from deferd.contract.strict_model import StrictModel
from deferd.engine.inspection.forecast import TopicForecast
from deferd.engine.inspection.standing import Standing
from deferd.engine.record import instant_ms

router = OperationRouter()

_LOOK_AT_DEFAULT, _LOOK_AT_MAX = 5000, 100_000
_BUCKETS_DEFAULT, _BUCKETS_MAX = 60, 240
_TOPICS_SHOWN_DEFAULT = 20


def is_visible(request: RequestContext) -> Callable[[str], bool]:
    """Whether the caller may see a topic."""
    visible = request.admission.visible_topics
    return (lambda _topic: True) if visible is None else visible.match


@router.serves(operations.EXPLAIN_JOB)
async def explain_job(request: CurrentRequest, topic: Topic, id: JobId) -> responses.Explanation:
    standing = await request.engine.topics.why(topic, id)
    is_ready = isinstance(standing, Standing) and standing.record.state is JobState.READY
    activity = await request.engine.consumer_registry.activity_of(topic) if is_ready else None
    return why_reasons.explanation(topic, id, standing, activity)


class DeadQuery(TopicsQuery):
    """The parameters of dead jobs by error."""

    since: Instant | None = Field(
        None, description="Only jobs that died at this instant or later, or whose time of death is not known."
    )
    limit: int = page_limit("groups", which="the largest ones")
    look_at: int = Field(
        _LOOK_AT_DEFAULT,
        strict=True,
        ge=1,
        le=_LOOK_AT_MAX,
        description="About how many dead jobs to read at most, 1 to 100000; each topic gets an equal share.",
    )


@router.serves(operations.LIST_DEAD_ERRORS, topics=lambda arguments: arguments["query"].names)
async def list_dead_errors(request: CurrentRequest, query: Annotated[DeadQuery, Query()]) -> responses.DeadErrors:
    found = await request.engine.dead_jobs.by_error(
        query.names or None,
        is_visible(request),
        since_ms=None if query.since is None else instant_ms(query.since),
        look_at=query.look_at,
    )
    return responses.DeadErrors(
        groups=[
            responses.DeadGroup(
                topic=group.topic,
                reason=group.reason,
                error=group.error,
                count=group.count,
                first_at=instant_or_none(group.first_ms),
                last_at=instant_or_none(group.last_ms),
                samples=group.samples,
            )
            for group in found.groups[: query.limit]
        ],
        left_out=max(len(found.groups) - query.limit, 0),
        dead=found.dead,
        looked_at=found.looked_at,
        complete=found.is_complete,
        unreadable_shards=found.unreadable,
    )


class ForecastQuery(TopicsQuery):
    """The parameters of a forecast."""

    from_: Instant | None = Field(None, alias="from", description="When the first bucket begins; by default now.")
    to: Instant | None = Field(
        None, description="When the last bucket ends; by default 6 hours after the beginning, or after now."
    )
    buckets: int = Field(
        _BUCKETS_DEFAULT,
        strict=True,
        ge=1,
        le=_BUCKETS_MAX,
        description=f"How many buckets of equal length, 1 to {_BUCKETS_MAX}.",
    )
    limit: int = Field(
        _TOPICS_SHOWN_DEFAULT,
        strict=True,
        ge=0,
        le=limits.PAGE_MAX,
        description="Maximum number of topics to show, 0 to 1000: those with the most jobs due in the period. The sums "
        "include all.",
    )


@router.serves(operations.GET_FORECAST, topics=lambda arguments: arguments["query"].names)
async def get_forecast(request: CurrentRequest, query: Annotated[ForecastQuery, Query()]) -> responses.Forecast:
    forecast = await request.engine.forecasts.forecast(
        query.names or None,
        is_visible(request),
        from_ms=None if query.from_ is None else instant_ms(query.from_),
        to_ms=None if query.to is None else instant_ms(query.to),
        buckets=query.buckets,
    )
    shown = forecast.with_most(query.limit)
    is_everything = not query.names and request.admission.visible_topics is None
    wanted = None if is_everything else query.names or ["*"]
    rates = await request.engine.finish_rates.read(list(shown), wanted, is_visible(request))
    period = forecast.period
    bucket_s = (period.to_ms - period.from_ms) / period.buckets / 1000
    return responses.Forecast(
        now=instant(forecast.now_ms),
        begins_at=instant(period.from_ms),
        ends_at=instant(period.to_ms),
        bucket=seconds(round((period.to_ms - period.from_ms) / period.buckets)),
        **_due(forecast.total()),
        handled=_handled(rates.in_all, bucket_s),
        topics=[
            responses.TopicForecast(topic=name, **_due(counts), handled=_handled(rates.of_topic.get(name), bucket_s))
            for name, counts in shown.items()
        ],
        left_out=len(forecast.topics) - len(shown),
        complete=forecast.is_complete,
        unreadable_shards=sorted(forecast.unreadable),
    )


class ConsumersQuery(StrictModel):
    """The parameters of a list of consumers."""

    limit: int = page_limit("consumers")


@router.serves(operations.LIST_CONSUMERS)
async def list_consumers(request: CurrentRequest, query: Annotated[ConsumersQuery, Query()]) -> responses.Consumers:
    visible = request.admission.visible_topics

    def is_visible(topic: str) -> bool:
        return visible is None or bool(visible.overlapping(topic))

    found = await request.engine.consumers.all(is_visible)
    return responses.Consumers(
        consumers=[
            responses.Consumer(
                name=one.name,
                addresses=sorted(one.addresses),
                clients=sorted(one.clients),
                topics=sorted(one.topics),
                waiting=one.waiting,
                last_seen_at=instant_or_none(None if one.seen_ms is None else found.now_ms - one.seen_ms),
                held=one.held,
                lease_ends_at=instant_or_none(one.lease_end_ms),
            )
            for one in found.consumers[: query.limit]
        ],
        left_out=max(len(found.consumers) - query.limit, 0),
        nameless_held=found.nameless,
        complete=found.is_complete,
    )


def _due(counts: TopicForecast) -> dict[str, Any]:
    due = {"delayed": counts.delayed, "before": counts.before, "after": counts.after, "counts": [*counts.counts]}
    return {**due, "scheduled": [*counts.scheduled] or [0] * len(counts.counts)}


def _handled(rate: float | None, bucket_s: float) -> float | None:
    return None if rate is None else round(rate * bucket_s, 2)
