"""For operators: why a job does not run, dead jobs by error, what comes due, and who consumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from deferd.api import inspection_responses, why_reasons
from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest, RequestContext
from deferd.api.routes.paging import page_limit
from deferd.contract import limits
from deferd.contract.model import Instant, JobId, JobState, Topic
from deferd.contract.operations import inspection as operations
from deferd.contract.responses import inspection as responses
from deferd.engine.inspection.standing import Standing
from deferd.engine.record import instant_ms

router = OperationRouter()

_ONE = limits.TOPIC_OR_PATTERN.removeprefix("^").removesuffix("$")
_LOOK_AT_DEFAULT, _LOOK_AT_MAX = 5000, 100_000
_BUCKETS_DEFAULT, _BUCKETS_MAX = 60, 240
_TOPICS_SHOWN_DEFAULT = 20


def _distinct(topics: str) -> str:
    names = topics.split(",")
    if len(set(names)) < len(names):
        raise ValueError("must name each topic once")
    return topics


TopicsFilter = Annotated[
    str,
    StringConstraints(pattern=f"^{_ONE}(,{_ONE}){{0,{limits.POP_TOPICS_MAX - 1}}}$"),
    AfterValidator(_distinct),
]


class TopicsQuery(BaseModel):
    """The topics of a look at several."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topics: TopicsFilter | None = Field(
        None,
        description=f"Only these topics: up to {limits.POP_TOPICS_MAX} names or patterns, such as `orders.*`, with "
        "commas between them; by default all that the key sees.",
    )

    @property
    def names(self) -> list[str]:
        """The names and patterns; none for all topics."""
        return [] if self.topics is None else self.topics.split(",")


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

    group_by: Literal["error"] = Field("error", description="What the jobs of a group have in common: the error.")
    since: Instant | None = Field(
        None, description="Only jobs that died at this instant or later, or of which this is not known."
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
    return inspection_responses.dead_errors(found, query.limit)


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
    return inspection_responses.forecast(forecast, shown, rates)


class ConsumersQuery(BaseModel):
    """The parameters of a list of consumers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = page_limit("consumers")


@router.serves(operations.LIST_CONSUMERS)
async def list_consumers(request: CurrentRequest, query: Annotated[ConsumersQuery, Query()]) -> responses.Consumers:
    visible = request.admission.visible_topics

    def is_visible(topic: str) -> bool:
        return visible is None or bool(visible.overlapping(topic))

    return inspection_responses.consumers(await request.engine.consumers.all(is_visible), query.limit)
