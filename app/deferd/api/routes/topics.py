"""Topics: lists, settings, pause, dead jobs, and consistency checks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from msgspec import Raw
from pydantic import Field, StringConstraints, model_validator
from starlette.responses import Response

from deferd.api import audit_responses, task_requests
from deferd.api.auth.permissions import Recorded
from deferd.api.auth.visible_topics import list_visible
from deferd.api.job_responses import job_without_bodies
from deferd.api.job_templates import written_job
from deferd.api.openapi.task_schemas import ACCEPTED
from deferd.api.operation import EMPTY_BODY, EmptyBody
from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest, RequestContext
from deferd.api.response_values import instant, instant_or_none, seconds, whole
from deferd.api.routes.queries import Cursor, WithBodies, page_limit
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
from deferd.contract.operations import topics as operations
from deferd.contract.responses import audits, topics
from deferd.contract.responses.bulk import Redriven, Removed, SampleJob
from deferd.contract.responses.jobs import JobPage
from deferd.contract.responses.push import PushTarget
from deferd.contract.strict_model import StrictModel
from deferd.contract.windows import window_text
from deferd.engine.inspection.standing import Pause
from deferd.engine.push.push_definition import TargetState
from deferd.engine.record import instant_ms
from deferd.engine.topic_sweeps import Sweep
from deferd.engine.topic_view import TopicView
from deferd.engine.topics import JobFilter

router = OperationRouter()

IdPrefix = Annotated[str, StringConstraints(pattern=limits.ID_PATTERN)]
ErrorPart = Annotated[str, StringConstraints(min_length=1, max_length=limits.ERROR_PART_MAX)]
_OLDEST = Redrive()
_NO_REASON = PauseTopic()


class TopicsQuery(StrictModel):
    """The parameters of a list of topics."""

    cursor: Cursor = None
    limit: int = page_limit("topics", default=limits.PAGE_MAX)


class JobsQuery(StrictModel):
    """The parameters of a list of jobs."""

    state: JobState | None = Field(None, description="Only jobs in this state; all jobs by default.")
    cursor: Cursor = None
    limit: int = page_limit("jobs")

    order: Literal["asc", "desc"] = Field(
        "asc",
        description="`asc`: what happens first comes first, that is by due time, turn, end of the lease or end of the "
        "retention; with `tag` by id. `desc`: the opposite.",
    )
    bodies: WithBodies = True
    tag: Tag | None = Field(None, description="Only jobs with this tag, which the tag index finds.")
    due_after: Instant | None = Field(None, description="Only jobs due at this instant or later.")
    due_before: Instant | None = Field(None, description="Only jobs due before this instant.")
    id_prefix: IdPrefix | None = Field(None, description="Only jobs whose id begins so.")
    error: ErrorPart | None = Field(None, description="Only jobs whose `last_error` contains this text.")

    def wanted(self) -> JobFilter | None:
        """The conditions on the jobs; None without a filter."""
        due_after, due_before = (None if at is None else instant_ms(at) for at in (self.due_after, self.due_before))
        wanted = JobFilter(self.tag, due_after, due_before, self.id_prefix, self.error)
        return wanted if wanted.options() else None


class PurgeQuery(StrictModel):
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


@router.serves(operations.LIST_TOPICS)
async def list_topics(request: CurrentRequest, query: Annotated[TopicsQuery, Query()]) -> topics.TopicPage:
    topic_list = request.engine.topic_list
    visible = request.admission.visible_topics
    if visible is None:
        page = await topic_list.page(query.cursor, query.limit)
    else:
        page = await list_visible(topic_list, visible, query.cursor, query.limit)
    return topics.TopicPage(
        topics=[_shown(view) for view in page.views],
        next_cursor=page.next_cursor,
        unavailable=page.unavailable,
        unreadable_shards=page.unreadable,
    )


@router.serves(operations.GET_TOPIC)
async def get_topic(request: CurrentRequest, topic: Topic) -> topics.TopicView:
    return _shown(await request.engine.topics.get(topic))


@router.serves(operations.SET_TOPIC)
async def set_topic(request: CurrentRequest, topic: Topic, settings: TopicSettings) -> topics.TopicView:
    return _shown(await request.engine.topics.set(topic, settings))


@router.serves(operations.PAUSE_TOPIC)
async def pause_topic(request: CurrentRequest, topic: Topic, pause: PauseTopic = _NO_REASON) -> topics.TopicView:
    by = request.admission.key_name
    return _shown(await request.engine.topics.pause(topic, by, pause.reason))


@router.serves(operations.RESUME_TOPIC)
async def resume_topic(request: CurrentRequest, topic: Topic, _body: EmptyBody = EMPTY_BODY) -> topics.TopicView:
    return _shown(await request.engine.topics.resume(topic))


@router.serves(operations.LIST_JOBS)
async def list_jobs(request: CurrentRequest, topic: Topic, query: Annotated[JobsQuery, Query()]) -> JobPage:
    topics, wanted, looked_at, reverse = request.engine.topics, query.wanted(), None, query.order == "desc"
    page = (query.state, query.cursor, query.limit)
    if wanted is None:
        records, next_cursor = await topics.jobs(topic, *page, reverse=reverse)
    else:
        records, next_cursor, looked_at = await topics.search(topic, wanted, *page, reverse=reverse)
    shown = written_job if query.bodies else job_without_bodies
    return JobPage(jobs=[shown(record) for record in records], next_cursor=next_cursor, looked_at=looked_at)


@router.serves(operations.REDRIVE_JOBS, recorded=Recorded(filter="redrive"), responses=ACCEPTED)
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


@router.serves(operations.AUDIT_TOPIC)
async def audit_topic(request: CurrentRequest, topic: Topic) -> audits.TopicAudit:
    check = request.engine.consistency.audit_topic(topic)
    return audit_responses.audit(await request.incoming.cancel_on_disconnect(check))


@router.serves(operations.REPAIR_TOPIC)
async def repair_topic(request: CurrentRequest, topic: Topic, _body: EmptyBody = EMPTY_BODY) -> audits.TopicAudit:
    check = request.engine.consistency.audit_topic(topic, repair=True)
    return audit_responses.audit(await request.incoming.cancel_on_disconnect(check))


@router.serves(operations.PURGE_TOPIC, recorded=Recorded(filter="query"), responses=ACCEPTED)
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


def _shown(view: TopicView) -> topics.TopicView:
    """The topic; for a setting that is `null` the default of the service applies."""
    age_ms = view.oldest_ready_age_ms
    return topics.TopicView(
        topic=view.topic,
        paused=view.paused,
        **paused(view.pause),
        counts={state.value: view.counts.get(state, 0) for state in JobState},
        follow_ups=view.follow_ups,
        collections=view.collections,
        oldest_ready_age=None if age_ms is None else seconds(age_ms),
        oldest_ready_at=instant_or_none(view.oldest_ready_due_at_ms),
        next_due_at=instant_or_none(view.next_due_at_ms),
        settings_json=_settings(view.settings),
        push=None if view.target is None else _target(view.target),
    )


def paused(pause: Pause | None) -> dict[str, Any]:
    """Since when a topic is paused, by whom and why, where known."""
    if pause is None:
        return {}
    return {"paused_at": instant_or_none(pause.since_ms), "paused_by": pause.by, "paused_reason": pause.reason}


def _target(state: TargetState) -> PushTarget:
    return PushTarget(
        circuit=state.circuit,
        failures=state.failures,
        in_flight=state.in_flight,
        open_until=instant_or_none(state.open_until_ms),
        last_error=state.last_error,
        last_error_at=instant_or_none(state.last_error_at_ms),
    )


def _settings(settings: TopicSettings) -> dict[str, Any]:
    backoff, window = settings.backoff, settings.window
    return {
        **{name: whole(getattr(settings, name)) for name in TopicSettings.model_fields},
        "backoff": None if backoff is None else whole(backoff.model_dump()),
        "window": None if window is None else Raw(window_text(window)),
    }
