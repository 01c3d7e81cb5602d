"""Topics: lists, settings, pause, dead jobs, and consistency checks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from starlette.responses import Response

from deferd.api import audit_responses, task_requests, topic_responses
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import Recorded, requires
from deferd.api.auth.visible_topics import list_visible
from deferd.api.job_responses import job_without_bodies
from deferd.api.job_templates import written_job
from deferd.api.openapi.document import error_responses
from deferd.api.openapi.task_schemas import ACCEPTED
from deferd.api.operation import EMPTY_BODY, EmptyBody, Operation
from deferd.api.request_context import CurrentRequest, RequestContext
from deferd.api.response_values import instant
from deferd.api.routes.paging import page_limit
from deferd.contract import limits
from deferd.contract.labels import Tag
from deferd.contract.model import (
    Cutoff,
    DeadReason,
    Instant,
    JobState,
    NormalizedError,
    PauseTopic,
    Redrive,
    Topic,
    TopicSettings,
)
from deferd.contract.responses import audits, topics
from deferd.contract.responses.bulk import Redriven, Removed, SampleJob
from deferd.contract.responses.jobs import JobPage
from deferd.engine.record import instant_ms
from deferd.engine.topic_sweeps import Sweep
from deferd.engine.topics import JobFilter

router = APIRouter(route_class=Operation, tags=["topics"])

Cursor = Annotated[
    str | None,
    Field(max_length=limits.CURSOR_MAX, description="`next_cursor` of the previous page; omitted for the first."),
]


IdPrefix = Annotated[str, StringConstraints(pattern=limits.ID_PATTERN)]
ErrorPart = Annotated[str, StringConstraints(min_length=1, max_length=limits.ERROR_PART_MAX)]
_OLDEST = Redrive()
_NO_REASON = PauseTopic()


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TopicsQuery(_Strict):
    """The parameters of a list of topics."""

    cursor: Cursor = None
    limit: int = page_limit("topics", default=limits.PAGE_MAX)


class JobsQuery(_Strict):
    """The parameters of a list of jobs."""

    state: JobState | None = Field(None, description="Only jobs in this state; all jobs by default.")
    cursor: Cursor = None
    limit: int = page_limit("jobs")

    order: Literal["asc", "desc"] = Field(
        "asc",
        description="`asc`: what happens first comes first, that is by due time, turn, end of the lease or end of the "
        "retention; with `tag` by id. `desc`: the opposite.",
    )
    bodies: bool = Field(
        True,
        description="`false`: leave out `body` and `result`, and say how long they are: `body_bytes`, `result_bytes`.",
    )
    tag: Tag | None = Field(None, description="Only jobs with this tag, which the tag index finds.")
    due_after: Instant | None = Field(None, description="Only jobs due at this instant or later.")
    due_before: Instant | None = Field(None, description="Only jobs due before this instant.")
    id_prefix: IdPrefix | None = Field(None, description="Only jobs whose id begins so.")
    error: ErrorPart | None = Field(None, description="Only jobs whose `last_error` contains this text.")

    def wanted(self) -> JobFilter | None:
        """What must hold of the jobs; None without a filter."""
        due_after, due_before = (None if at is None else instant_ms(at) for at in (self.due_after, self.due_before))
        wanted = JobFilter(self.tag, due_after, due_before, self.id_prefix, self.error)
        return wanted if wanted.options() else None


class PurgeQuery(_Strict):
    """The parameters of a purge."""

    state: JobState | None = Field(None, description="Only jobs in this state; all jobs by default.")
    tag: Tag | None = Field(None, description="Only jobs with this tag.")
    reason: DeadReason | None = Field(None, description="Only jobs that are dead for this reason.")

    error: NormalizedError | None = Field(
        None, description="Only dead jobs with this `error` of `GET /dead`; empty for those without one."
    )
    cutoff: Cutoff | None = Field(
        None,
        description="Only jobs that were put until this instant, and dead ones only if they died until then, as far as "
        "that is known.",
    )
    dry_run: bool = Field(False, description="`true`: remove nothing: count the jobs, and name ten of them.")
    as_task: bool = Field(
        False,
        description="`true`: do it in the background: the response is 202 with a task, whose progress "
        "`GET /tasks/{id}` shows.",
    )

    @model_validator(mode="after")
    def _only_dead_ones(self) -> PurgeQuery:
        if self.reason is not None and self.state not in (None, JobState.DEAD):
            raise ValueError("`reason` is for dead jobs: leave out `state`, or give `dead`")
        if self.error is not None and self.state not in (None, JobState.DEAD):
            raise ValueError("`error` is for dead jobs: leave out `state`, or give `dead`")
        if self.as_task and self.dry_run:
            raise ValueError("`as_task` and `dry_run` exclude each other")
        return self


@router.get(
    "/topics",
    operation_id="list_topics",
    summary="List topics",
    description="Lists the topics, each in its current state. A topic without jobs and settings is forgotten an hour "
    "after its last use. A key for some topics sees only those. If a shard of the store cannot be reached, its topics "
    "are omitted and listed in `unavailable`; if no shard can be reached, the response is 503.",
    response_model=topics.TopicPage,
    response_description="One page of topics.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ)
async def list_topics(request: CurrentRequest, query: Annotated[TopicsQuery, Query()]) -> topics.TopicPage:
    topic_list = request.engine.topic_list
    visible = request.admission.visible_topics
    if visible is None:
        page = await topic_list.page(query.cursor, query.limit)
    else:
        page = await list_visible(topic_list, visible, query.cursor, query.limit)
    return topic_responses.topic_page(page)


@router.get(
    "/topics/{topic}",
    operation_id="get_topic",
    summary="Get a topic",
    description="Returns the number of jobs in each state, how long the oldest ready job has waited, when the next "
    "delayed job is due, and the settings.",
    response_model=topics.TopicView,
    response_description="The topic.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable"),
)
@requires(Scope.READ)
async def get_topic(request: CurrentRequest, topic: Topic) -> topics.TopicView:
    return topic_responses.topic(await request.engine.topics.show(topic))


@router.put(
    "/topics/{topic}",
    operation_id="set_topic",
    summary="Set the settings of a topic",
    description="Replaces all settings of the topic; an omitted one falls back to the default of the service. They "
    "apply to jobs put from now on. A topic needs no settings: its first job creates it.",
    response_model=topics.TopicView,
    response_description="The topic in its new state.",
    responses=error_responses("validation", "store_unavailable", body=True),
)
@requires(Scope.ADMIN)
async def set_topic(request: CurrentRequest, topic: Topic, settings: TopicSettings) -> topics.TopicView:
    return topic_responses.topic(await request.engine.topics.configure(topic, settings))


@router.post(
    "/topics/{topic}/pause",
    operation_id="pause_topic",
    summary="Pause a topic",
    description="The topic hands out no jobs until it is resumed; everything else, such as put and finish, works as "
    "before. `reason` is shown to people until it is resumed; a pause of a paused topic does not change it. A topic "
    "that does not exist yet is created.",
    response_model=topics.TopicView,
    response_description="The topic in its new state.",
    responses=error_responses("validation", "store_unavailable", body=True),
)
@requires(Scope.ADMIN)
async def pause_topic(request: CurrentRequest, topic: Topic, pause: PauseTopic = _NO_REASON) -> topics.TopicView:
    by = request.admission.key_name
    return topic_responses.topic(await request.engine.topics.pause(topic, by, pause.reason))


@router.post(
    "/topics/{topic}/resume",
    operation_id="resume_topic",
    summary="Resume a topic",
    description="Ends a pause. Waiting consumers get the ready jobs at once.",
    response_model=topics.TopicView,
    response_description="The topic in its new state.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable", body=True),
)
@requires(Scope.ADMIN)
async def resume_topic(request: CurrentRequest, topic: Topic, _body: EmptyBody = EMPTY_BODY) -> topics.TopicView:
    return topic_responses.topic(await request.engine.topics.resume(topic))


@router.get(
    "/topics/{topic}/jobs",
    operation_id="list_jobs",
    summary="List a topic's jobs",
    description="Returns the jobs page by page. A job that changes state meanwhile may be missing or appear twice. The "
    "filters `due_after`, `due_before`, `id_prefix` and `error` search the jobs in their order, about 10000 a page at "
    "most, so a page may be short or empty and yet have a `next_cursor`; `looked_at` says how many were searched. In a "
    "topic with several `partitions` the jobs of one state come partition by partition: the order holds within each.",
    response_model=JobPage,
    response_description="One page of jobs.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable"),
)
@requires(Scope.READ)
async def list_jobs(request: CurrentRequest, topic: Topic, query: Annotated[JobsQuery, Query()]) -> JobPage:
    topics, wanted, looked_at, reverse = request.engine.topics, query.wanted(), None, query.order == "desc"
    page = (query.state, query.cursor, query.limit)
    if wanted is None:
        records, next_cursor = await topics.jobs(topic, *page, reverse=reverse)
    else:
        records, next_cursor, looked_at = await topics.search(topic, wanted, *page, reverse=reverse)
    shown = written_job if query.bodies else job_without_bodies
    return JobPage(jobs=[shown(record) for record in records], next_cursor=next_cursor, looked_at=looked_at)


@router.post(
    "/topics/{topic}/redrive",
    operation_id="redrive_jobs",
    summary="Redrive dead jobs",
    description="Makes dead jobs ready again, due now and with no attempts counted: those of `ids`, or up to `limit` "
    "of those that have been dead longest; in a topic with several `partitions` one partition after the other. With "
    "`tag` or `reason` only jobs with this tag, or dead for this reason; "
    "with `reason` and `error` those of one group of `GET /dead`. A dry run returns a `cutoff`: with it, a redrive "
    "acts on nothing that was not counted.",
    response_model=Redriven,
    response_description="The number of jobs that are ready again.",
    responses=ACCEPTED | error_responses("topic_not_found", "validation", "store_unavailable", body=True),
)
@requires(Scope.ADMIN, recorded=Recorded(filter="redrive"))
async def redrive_jobs(request: CurrentRequest, topic: Topic, redrive: Redrive = _OLDEST) -> Redriven | Response:
    sweep = Sweep(
        verb="redrive",
        topic=topic,
        ids=None if redrive.ids is None else tuple(redrive.ids),
        limit=redrive.limit,
        tag=redrive.tag,
        reason=redrive.reason,
        error=redrive.error,
        cutoff_ms=None if redrive.cutoff is None else instant_ms(redrive.cutoff),
    )
    if redrive.dry_run:
        return Redriven(redriven=0, **await _preview(request, sweep))
    if redrive.as_task:
        limit = redrive.limit if "limit" in redrive.model_fields_set else None
        return await task_requests.begin_sweep(request, sweep.with_limit(limit), redrive)
    redriven = await request.engine.sweeps.run(sweep)
    request.changed = redriven
    return Redriven(redriven=redriven)


@router.get(
    "/topics/{topic}/audit",
    operation_id="audit_topic",
    summary="Audit a topic",
    description="Checks that the data of the topic is consistent: each job is in exactly one state, nothing is left "
    "over from removed jobs, the timer is not late, and every job that was ever put is accounted for. It changes "
    "nothing and runs in small steps beside the load: about 25 s for a million jobs.",
    response_model=audits.TopicAudit,
    response_description="The findings.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable"),
)
@requires(Scope.ADMIN)
async def audit_topic(request: CurrentRequest, topic: Topic) -> audits.TopicAudit:
    check = request.engine.consistency.check_topic(topic)
    return audit_responses.audit(await request.incoming.cancel_on_disconnect(check))


@router.post(
    "/topics/{topic}/repair",
    operation_id="repair_topic",
    summary="Audit and repair a topic",
    description="Like the audit, but repairs each finding atomically when it is found. No readable job is lost, and no "
    "finished or dead job is handed out because of it.",
    response_model=audits.TopicAudit,
    response_description="The repaired findings.",
    responses=error_responses("topic_not_found", "validation", "store_unavailable", body=True),
)
@requires(Scope.ADMIN)
async def repair_topic(request: CurrentRequest, topic: Topic, _body: EmptyBody = EMPTY_BODY) -> audits.TopicAudit:
    check = request.engine.consistency.check_topic(topic, repair=True)
    return audit_responses.audit(await request.incoming.cancel_on_disconnect(check))


@router.delete(
    "/topics/{topic}",
    operation_id="purge_topic",
    summary="Purge a topic",
    description="Removes all jobs, or all jobs in one `state`, with one `tag`, or dead for one `reason`; with `reason` "
    "and `error` those of one group of `GET /dead`. Consumers that hold one get 410 `job_cancelled`. The topic's "
    "settings stay. A dry run returns a `cutoff`: with it, a purge removes nothing that was not counted.",
    response_model=Removed,
    response_description="The number of removed jobs.",
    responses=ACCEPTED | error_responses("topic_not_found", "validation", "store_unavailable"),
)
@requires(Scope.ADMIN, recorded=Recorded(filter="query"))
async def purge_topic(
    request: CurrentRequest, topic: Topic, query: Annotated[PurgeQuery, Query()]
) -> Removed | Response:
    sweep = Sweep(
        verb="purge",
        topic=topic,
        state=query.state,
        tag=query.tag,
        reason=query.reason,
        error=query.error,
        cutoff_ms=None if query.cutoff is None else instant_ms(query.cutoff),
    )
    if query.dry_run:
        return Removed(removed=0, **await _preview(request, sweep))
    if query.as_task:
        return await task_requests.begin_sweep(request, sweep, query)
    removed = await request.engine.sweeps.run(sweep)
    request.changed = removed
    return Removed(removed=removed)


async def _preview(request: RequestContext, sweep: Sweep) -> dict[str, Any]:
    found = await request.engine.sweeps.preview(sweep, limits.SAMPLES_DEFAULT)
    return {
        "matched": found.matched,
        "complete": found.is_complete,
        "cutoff": instant(found.cutoff_ms),
        "samples": [SampleJob(topic=sweep.topic, id=job_id, state=state) for job_id, state in found.samples],
    }
