"""For operators: why a job does not run, dead jobs by error, what comes due, and who consumes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from fastapi import APIRouter, Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from deferd.api import inspection_responses, why_reasons
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.openapi.document import error_responses
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest, RequestContext
from deferd.api.routes.paging import page_limit
from deferd.contract import limits
from deferd.contract.model import Instant, JobId, JobState, Topic
from deferd.contract.responses import inspection as responses
from deferd.engine.inspection.standing import Standing
from deferd.engine.record import instant_ms

router = APIRouter(route_class=Operation, tags=["inspection"])

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


@router.get(
    "/jobs/{topic}/{id}/why",
    operation_id="explain_job",
    summary="Explain why a job has not run",
    description="Returns the job's state and the reasons, what holds it back now first, each with a `code` and facts "
    "for programs and a `text` for people. This is one short read of the store, also for topics with millions of jobs. "
    "A job that does not exist is no error: its reason is `unknown_job`, with ids of the topic that are like its own.",
    response_model=responses.Explanation,
    response_description="The reasons.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ)
async def explain_job(request: CurrentRequest, topic: Topic, id: JobId) -> responses.Explanation:
    standing = await request.engine.topics.standing_of(topic, id)
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


@router.get(
    "/dead",
    operation_id="list_dead_errors",
    summary="List dead jobs by error",
    description="Groups the dead jobs by topic, reason and the first line of their last error, in which numbers, "
    "hexadecimal digits, instants and quoted texts are replaced by `*`; numbers such as HTTP and SMTP statuses stay. "
    "Of a topic with more dead jobs than its share of `look_at`, those kept longest are read: without a `dead_retain` "
    "of their own, those that died last. `complete` says whether all were read. A look is kept for 5 seconds.",
    response_model=responses.DeadErrors,
    response_description="The groups, the largest first.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ, topics=lambda arguments: arguments["query"].names)
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


@router.get(
    "/forecast",
    operation_id="get_forecast",
    summary="Forecast what comes due",
    description="Counts the delayed jobs by when they are due: for each bucket of time in all topics together, and in "
    "those topics that have the most. `before` are jobs due before the first bucket, such as overdue ones, `after` "
    "those due after the last: with the counts they sum up to `delayed`. `scheduled` are further runs of schedules, "
    "those after the next one, which is a delayed job already. The topics are counted one after the other, exactly, "
    "and a forecast is kept for 10 seconds. Beside the counts is what consumers `handled`: compare the two to "
    "see whether they will keep up. With `to` and without `from` the first bucket begins now.",
    response_model=responses.Forecast,
    response_description="The counts.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ, topics=lambda arguments: arguments["query"].names)
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


@router.get(
    "/consumers",
    operation_id="list_consumers",
    summary="List consumers",
    description="Lists who has popped, or waited in a pop, within a minute in any process of the service, and who "
    "holds jobs. Consumers that give a name are one entry for each name, others one for each address and client. "
    "Processes publish what they see every few seconds. A key for some topics sees only the consumers of those, "
    "without their other topics.",
    response_model=responses.Consumers,
    response_description="The consumers, those that hold most jobs first.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ)
async def list_consumers(request: CurrentRequest, query: Annotated[ConsumersQuery, Query()]) -> responses.Consumers:
    visible = request.admission.visible_topics

    def is_visible(topic: str) -> bool:
        return visible is None or bool(visible.overlapping(topic))

    return inspection_responses.consumers(await request.engine.consumers.all(is_visible), query.limit)
