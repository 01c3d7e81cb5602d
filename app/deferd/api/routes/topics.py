"""Topics: lists, settings, pause, dead jobs, and consistency checks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from fastapi import Query
from msgspec import Raw
from pydantic import Field, StringConstraints, model_validator
from starlette.responses import Response

from deferd.api.auth.api_keys import Recorded, end_topics
from deferd.api.context import CurrentRequest, RequestContext
from deferd.api.job_responses import job_without_bodies, written_job
from deferd.api.operation import EMPTY_BODY, EmptyBody
from deferd.api.operation_router import OperationRouter
from deferd.api.recorded_values import values_before
from deferd.api.responses import instant_or_none, seconds, whole
from deferd.api.routes.queries import Cursor, WithBodies, page_limit
from deferd.api.routes.tasks import ACCEPTED, begin_sweep
from deferd.contract import limits
from deferd.contract.errors import StoreUnavailable
from deferd.contract.flow import Group
from deferd.contract.model import (
    Cutoff,
    DeadReason,
    Instant,
    JobState,
    NormalizedError,
    PauseTopic,
    Redrive,
    Tag,
    Topic,
    TopicSettings,
)
from deferd.contract.operations import audits
from deferd.contract.operations import topics as contract
from deferd.contract.operations.bulk import Redriven, Removed, SampleJob
from deferd.contract.operations.jobs import JobPage
from deferd.contract.operations.push import PushTarget
from deferd.contract.strict_model import StrictModel
from deferd.contract.timestamps import instant
from deferd.contract.topic_patterns import TopicPatterns
from deferd.contract.windows import window_text
from deferd.engine.consistency import Findings, StoreReport, TopicReport
from deferd.engine.groups import TopicGroup
from deferd.engine.inspection.job_facts import Pause
from deferd.engine.push_store import TargetState
from deferd.engine.record import instant_ms
from deferd.engine.shelf import Shelf
from deferd.engine.topic_list import TopicList, TopicNames, TopicPage
from deferd.engine.topic_sweeps import Sweep
from deferd.engine.topics import JobFilter, TopicView

router = OperationRouter()

_ID = limits.ID_PATTERN.removeprefix("^").removesuffix("$")
Ids = Annotated[str, StringConstraints(pattern=f"^{_ID}(,{_ID}){{0,{limits.LISTED_IDS_MAX - 1}}}$")]
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
        "retention; with `tag` or `ids` by id. `desc`: the opposite.",
    )
    bodies: WithBodies = True
    ids: Ids | None = Field(
        None,
        description=f"Only the jobs with these ids, in whichever state: up to {limits.LISTED_IDS_MAX} with commas "
        "between them. Ids without a job are left out.",
    )
    tag: Tag | None = Field(None, description="Only jobs with this tag, which the tag index finds.")
    group: Group | None = Field(None, description="Only jobs of this group.")
    due_after: Instant | None = Field(None, description="Only jobs due at this instant or later.")
    due_before: Instant | None = Field(None, description="Only jobs due before this instant.")
    id_prefix: IdPrefix | None = Field(None, description="Only jobs whose id begins so.")
    error: ErrorPart | None = Field(None, description="Only jobs whose `last_error` contains this text.")
    reason: DeadReason | None = Field(None, description="Only jobs that are dead for this reason.")
    error_group: NormalizedError | None = Field(
        None, description="Only dead jobs with this `error` of `GET /dead`; empty for those without one."
    )
    retrying: bool = Field(
        False, description="`true`: only delayed jobs that had an attempt: they failed, and wait for another one."
    )

    @model_validator(mode="after")
    def _only_dead_or_delayed_ones(self) -> JobsQuery:
        for name in ("reason", "error_group"):
            if getattr(self, name) is not None and self.state not in {None, JobState.DEAD}:
                raise ValueError(f"`{name}` is for dead jobs: leave out `state`, or give `dead`")
        if self.retrying and (self.state not in {None, JobState.DELAYED} or self.wanted_of_dead):
            raise ValueError("`retrying` is for delayed jobs: leave out `state`, `reason` and `error_group`")
        if self.error is not None and self.error_group is not None:
            raise ValueError("`error` and `error_group` exclude each other")
        return self

    @property
    def wanted_of_dead(self) -> bool:
        """Whether a condition is of dead jobs."""
        return self.reason is not None or self.error_group is not None

    def wanted(self) -> JobFilter | None:
        """The conditions on the jobs; None without a filter."""
        due_after, due_before = (None if at is None else instant_ms(at) for at in (self.due_after, self.due_before))
        wanted = JobFilter(
            ids=None if self.ids is None else tuple(self.ids.split(",")),
            tag=self.tag,
            group=self.group,
            due_after_ms=due_after,
            due_before_ms=due_before,
            id_prefix=self.id_prefix,
            error=self.error,
            reason=self.reason,
            error_group=self.error_group,
            retrying=self.retrying,
        )
        return None if wanted.is_empty else wanted


class GroupsQuery(StrictModel):
    """The parameters of a list of groups."""

    order: contract.GroupOrder = Field(
        "ready",
        description="`ready`, `reserved`: those with the most such jobs first. `age`: those first whose first ready "
        "job has waited longest.",
    )
    cursor: Cursor = None
    limit: int = page_limit("groups")


class PurgeQuery(StrictModel):
    """The parameters of a purge."""

    state: JobState | None = Field(None, description="Only jobs in this state; all jobs by default.")
    tag: Tag | None = Field(None, description="Only jobs with this tag.")
    group: Group | None = Field(None, description="Only jobs of this group.")
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


@router.serves(contract.LIST_TOPICS)
async def list_topics(request: CurrentRequest, query: Annotated[TopicsQuery, Query()]) -> contract.TopicPage:
    topic_list = request.engine.topic_list
    visible = request.admission.visible_topics
    if visible is None:
        page = await topic_list.page(query.cursor, query.limit)
    else:
        page = await list_visible(topic_list, visible, query.cursor, query.limit)
    return contract.TopicPage(
        topics=[_shown(view, request.engine.shelf) for view in page.views],
        next_cursor=page.next_cursor,
        unavailable=page.unavailable,
        unreadable_shards=page.unreadable,
    )


@router.serves(contract.GET_TOPIC)
async def get_topic(request: CurrentRequest, topic: Topic) -> contract.TopicView:
    shown = _shown(await request.engine.topics.get(topic), request.engine.shelf)
    if not shown.counts[JobState.DELAYED.value]:
        return shown
    found = (await request.engine.failing.retrying([topic])).get(topic)
    if found is None or (found.is_exact and not found.jobs):
        return shown
    return msgspec.structs.replace(shown, retrying=contract.Retrying(jobs=found.jobs, complete=found.is_exact))


@router.serves(contract.SET_TOPIC, ends_into=lambda arguments: end_topics((arguments["settings"],)))
async def set_topic(request: CurrentRequest, topic: Topic, settings: TopicSettings) -> contract.TopicView:
    request.was = await values_before(_recorded_settings(request, topic))
    view = await request.engine.topics.set(topic, settings)
    request.now = _given(view.settings)
    return _shown(view, request.engine.shelf)


@router.serves(contract.PAUSE_TOPIC)
async def pause_topic(request: CurrentRequest, topic: Topic, pause: PauseTopic = _NO_REASON) -> contract.TopicView:
    request.was = await values_before(_recorded_pause(request, topic))
    view = await request.engine.topics.pause(topic, request.admission.key_name, pause.reason)
    request.now = _pause_of(view)
    return _shown(view, request.engine.shelf)


@router.serves(contract.RESUME_TOPIC)
async def resume_topic(request: CurrentRequest, topic: Topic, _body: EmptyBody = EMPTY_BODY) -> contract.TopicView:
    request.was = await values_before(_recorded_pause(request, topic))
    view = await request.engine.topics.resume(topic)
    request.now = _pause_of(view)
    return _shown(view, request.engine.shelf)


@router.serves(contract.LIST_GROUPS)
async def list_groups(
    request: CurrentRequest, topic: Topic, query: Annotated[GroupsQuery, Query()]
) -> contract.GroupPage:
    groups, next_cursor = await request.engine.groups.page(topic, query.order, query.cursor, query.limit)
    return contract.GroupPage(groups=[group_view(group) for group in groups], next_cursor=next_cursor)


@router.serves(contract.PAUSE_GROUP)
async def pause_group(
    request: CurrentRequest, topic: Topic, group: Group, _body: EmptyBody = EMPTY_BODY
) -> contract.GroupView:
    return _with_pause(request, await request.engine.groups.pause(topic, group))


@router.serves(contract.RESUME_GROUP)
async def resume_group(
    request: CurrentRequest, topic: Topic, group: Group, _body: EmptyBody = EMPTY_BODY
) -> contract.GroupView:
    return _with_pause(request, await request.engine.groups.resume(topic, group))


def _with_pause(request: RequestContext, found: tuple[TopicGroup, bool]) -> contract.GroupView:
    group, was_paused = found
    request.was, request.now = {"paused": was_paused}, {"paused": group.is_paused}
    return group_view(group)


def group_view(group: TopicGroup) -> contract.GroupView:
    """The group, as responses show it."""
    return contract.GroupView(
        group=group.name,
        ready=group.ready,
        reserved=group.reserved,
        delayed=group.delayed,
        oldest_ready_age=None if group.age_ms is None else seconds(group.age_ms),
        paused=group.is_paused,
    )


async def _recorded_settings(request: RequestContext, topic: str) -> dict[str, Any]:
    return _given((await request.engine.topics.get(topic)).settings)


def _given(settings: TopicSettings) -> dict[str, Any]:
    """The settings that have a value."""
    return settings.model_dump(mode="json", by_alias=True, exclude_defaults=True)


async def _recorded_pause(request: RequestContext, topic: str) -> dict[str, Any]:
    return _pause_of(await request.engine.topics.get(topic))


def _pause_of(view: TopicView) -> dict[str, Any]:
    if not view.paused or view.pause is None:
        return {"paused": view.paused}
    return {"paused": True, "paused_by": view.pause.by, "paused_reason": view.pause.reason or None}


@router.serves(contract.LIST_JOBS)
async def list_jobs(request: CurrentRequest, topic: Topic, query: Annotated[JobsQuery, Query()]) -> JobPage:
    topics, wanted, looked_at, reverse = request.engine.topics, query.wanted(), None, query.order == "desc"
    matching = None
    state = (wanted.only_state if wanted is not None else None) or query.state
    page = (state, query.cursor, query.limit)
    if wanted is None:
        records, next_cursor = await topics.jobs(topic, *page, reverse=reverse)
    else:
        records, next_cursor, looked_at = await topics.search(topic, wanted, *page, reverse=reverse)
        matching = await topics.matching(topic, wanted, state)
    shown = written_job if query.bodies else job_without_bodies
    return JobPage(
        jobs=[shown(record) for record in records], next_cursor=next_cursor, looked_at=looked_at, matching=matching
    )


@router.serves(contract.REDRIVE_JOBS, recorded=Recorded(filter="redrive"), responses=ACCEPTED)
async def redrive_jobs(request: CurrentRequest, topic: Topic, redrive: Redrive = _OLDEST) -> Redriven | Response:
    sweep = Sweep(
        verb="redrive",
        topic=topic,
        ids=None if redrive.ids is None else tuple(redrive.ids),
        limit=redrive.limit,
        tag=redrive.tag,
        group=redrive.group,
        reason=redrive.reason,
        error=redrive.error,
        cutoff_ms=None if redrive.cutoff is None else instant_ms(redrive.cutoff),
        rate=redrive.rate,
    )
    if redrive.dry_run:
        return Redriven(redriven=0, **await _preview(request, sweep))
    if redrive.as_task:
        limit = redrive.limit if "limit" in redrive.model_fields_set else None
        return await begin_sweep(request, sweep.with_limit(limit), redrive)
    redriven = await request.engine.sweeps.run(sweep)
    request.changed = redriven
    return Redriven(redriven=redriven)


@router.serves(audits.AUDIT_TOPIC)
async def audit_topic(request: CurrentRequest, topic: Topic) -> audits.TopicAudit:
    check = request.engine.consistency.audit_topic(topic)
    return _topic_audit(await request.incoming.cancel_on_disconnect(check))


@router.serves(audits.REPAIR_TOPIC)
async def repair_topic(request: CurrentRequest, topic: Topic, _body: EmptyBody = EMPTY_BODY) -> audits.TopicAudit:
    check = request.engine.consistency.audit_topic(topic, repair=True)
    return _topic_audit(await request.incoming.cancel_on_disconnect(check))


@router.serves(contract.PURGE_TOPIC, recorded=Recorded(filter="query"), responses=ACCEPTED)
async def purge_topic(
    request: CurrentRequest, topic: Topic, query: Annotated[PurgeQuery, Query()]
) -> Removed | Response:
    sweep = Sweep(
        verb="purge",
        topic=topic,
        state=query.state,
        tag=query.tag,
        group=query.group,
        reason=query.reason,
        error=query.error,
        cutoff_ms=None if query.cutoff is None else instant_ms(query.cutoff),
    )
    if query.dry_run:
        return Removed(removed=0, **await _preview(request, sweep))
    if query.as_task:
        return await begin_sweep(request, sweep, query)
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


def _shown(view: TopicView, shelf: Shelf) -> contract.TopicView:
    """The topic; for a setting that is `null` the default of the service applies."""
    age_ms = view.oldest_ready_age_ms
    return contract.TopicView(
        topic=view.topic,
        paused=view.paused,
        **paused(view.pause),
        counts={state.value: view.counts.get(state, 0) for state in JobState},
        follow_ups=view.follow_ups,
        collections=view.collections,
        shelved=None if shelf.calls is None and not view.shelved else view.shelved,
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
        "on_end": None if settings.on_end is None else settings.on_end.to_store(),
        "limits": None if settings.limits is None else whole(settings.limits.model_dump(exclude_none=True)),
    }


def _topic_audit(report: TopicReport) -> audits.TopicAudit:
    """The findings in a topic; what could not be read is omitted."""
    return audits.TopicAudit(
        topic=report.topic,
        clean=report.clean,
        repaired=report.repaired,
        checked=report.checked,
        timer_overdue=seconds(report.timer_overdue_ms),
        **_findings(report.findings),
        counts={state.value: report.counts[state] for state in JobState} if report.sums else None,
        sums=dict(report.sums) or None,
        unchecked=report.unchecked,
    )


def store_audit(report: StoreReport) -> audits.StoreAudit:
    """The findings in the store as a whole."""
    return audits.StoreAudit(
        clean=report.clean,
        repaired=report.repaired,
        unlisted=report.unlisted,
        **_findings(report.findings),
        stray_keys=report.stray_keys,
        stray_count=report.stray_count,
    )


def _findings(findings: Findings) -> dict[str, Any]:
    return {
        "summaries": [
            audits.FindingSummary(kind=kind, found=count, meaning=kind.meaning, repair=kind.repair)
            for kind, count in findings.counts.items()
        ],
        "examples": [
            audits.FindingExample(kind=example.kind, subject=example.subject, detail=example.detail)
            for example in findings.examples
        ],
    }


_TRIES = 5


async def list_visible(topics: TopicList, visible: TopicPatterns, cursor: str | None, limit: int) -> TopicPage:
    """Up to `limit` topics that match `visible`; see TopicList.page.

    The store is read in steps of 1000 names, which bounds each read. A cursor reveals the name of the topic before it,
    so that topic must be visible.

    Raises:
        InvalidInput: the cursor is invalid.
        StoreUnavailable: the list changes too fast, or no shard of the store can be reached.
    """
    return await topics.views(await _visible_names(topics, visible, cursor, limit))


async def _visible_names(topics: TopicList, visible: TopicPatterns, cursor: str | None, limit: int) -> TopicNames:
    page = TopicNames()
    while True:
        step = await topics.names(cursor, limits.PAGE_MAX, without=page.unreadable)
        positions = [at for at, name in enumerate(step.names, 1) if visible.match(name)][: limit - len(page.names)]
        page.names += [step.names[at - 1] for at in positions]
        unavailable = filter(visible.match, [*page.unavailable, *step.unavailable])
        page.unavailable = list(dict.fromkeys(unavailable))
        page.unreadable |= step.unreadable
        if len(page.names) == limit:
            page.next_cursor = await _cursor_after(topics, cursor, positions[-1], page.names[-1])
            return page
        if step.next_cursor is None:
            return page
        cursor = step.next_cursor


async def _cursor_after(topics: TopicList, cursor: str | None, position: int, name: str) -> str | None:
    """The cursor of a page that ends with `name`, which was at `position` after `cursor` just now."""
    for _ in range(_TRIES):
        page = await topics.names(cursor, position)
        if page.names[-1:] == [name]:
            return page.next_cursor
        # Topics before it were added or removed: find its new position, if it still exists.
        step = await topics.names(cursor, limits.PAGE_MAX)
        if name not in step.names:
            break
        position = step.names.index(name) + 1
    raise StoreUnavailable("the list of topics changes too fast to be read page by page")
