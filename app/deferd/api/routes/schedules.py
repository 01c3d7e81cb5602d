"""Schedules: recurring jobs."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.responses import Response

from deferd.api import schedule_json
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.job_templates import written_put
from deferd.api.openapi.document import error_responses
from deferd.api.operation import EMPTY_BODY, EmptyBody, Operation
from deferd.api.request_context import CurrentRequest
from deferd.api.response_models import model_of
from deferd.api.responses import JsonResponse
from deferd.api.routes.topics import Cursor
from deferd.contract import limits
from deferd.contract.model import Topic
from deferd.contract.responses import schedules as responses
from deferd.contract.responses.jobs import StoredJob
from deferd.contract.schedules import PutSchedule, ScheduleName
from deferd.engine.schedules.schedules import ScheduleFilter

router = APIRouter(route_class=Operation, tags=["schedules"])

_UNSAVED = "schedule"
"""In place of a name, on which `spread` and `jitter` depend."""
_IF_NONE_MATCH: dict[str, Any] = {
    "parameters": [
        {
            "name": "If-None-Match",
            "in": "header",
            "required": False,
            "description": "`*`: only create; 412 `schedule_exists` if there is one. Other values have no effect.",
            "schema": {"type": "string", "examples": ["*"]},
        }
    ]
}


NamePrefix = Annotated[str, StringConstraints(pattern=limits.TOPIC_PATTERN)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SchedulesQuery(_Strict):
    """The parameters of a list of schedules."""

    cursor: Cursor = None
    limit: int = Field(
        limits.PAGE_DEFAULT, strict=True, ge=1, le=limits.PAGE_MAX, description="Maximum number, 1 to 1000."
    )
    topic: Topic | None = Field(None, description="Only schedules of this topic.")
    paused: bool | None = Field(None, description="Only paused schedules, or only those that are not.")
    prefix: NamePrefix | None = Field(None, description="Only schedules whose name begins so.")
    jobs: bool = Field(True, description="`false`: leave out `job`, which may be large.")


class PreviewQuery(_Strict):
    """The parameters of a preview."""

    count: int = Field(
        limits.PREVIEW_DEFAULT,
        strict=True,
        ge=1,
        le=limits.PREVIEW_MAX,
        description=f"Maximum number of runs, 1 to {limits.PREVIEW_MAX}. If they take more than a second to compute, "
        "the response is 422: on rare dates, with opening hours that are rarely open.",
    )


@router.put(
    "/schedules/{name}",
    operation_id="put_schedule",
    summary="Create or replace a schedule",
    description="Each run of a schedule is a job with an id such as `NAME:20261122T030000Z`. The next one waits in the "
    "topic as a delayed job: to cancel it skips that run, to change it changes that run. Counters stay when a schedule "
    "is replaced; one that is put again unchanged is left alone. Without `paused` a paused schedule stays paused. An "
    "`every` counts from `start_at`, else from when the schedule was created.",
    response_model=responses.Schedule,
    response_description="The schedule was replaced, or is unchanged.",
    responses={
        201: {
            "model": model_of(responses.Schedule),
            "description": "The schedule was created.",
            "headers": {"Location": {"description": "The schedule's path.", "schema": {"type": "string"}}},
        },
        **error_responses("schedule_exists", "validation", "store_unavailable", body=True),
    },
    openapi_extra=_IF_NONE_MATCH,
)
@requires(Scope.PUT, topics=lambda arguments: (arguments["schedule"].topic,), audited=True)
async def put_schedule(request: CurrentRequest, name: ScheduleName, schedule: PutSchedule) -> Response:
    only_new = any(header == b"if-none-match" and value.strip() == b"*" for header, value in request.incoming.headers)
    with request.room_for_schedule(schedule):
        stored, created = await request.engine.schedules.put(
            name, schedule, request.put_bounds(), request.admission.check_topic, only_new=only_new
        )
    shown = schedule_json.schedule(stored)
    return JsonResponse(shown, 201, ((b"location", f"/schedules/{name}".encode()),)) if created else JsonResponse(shown)


@router.get(
    "/schedules",
    operation_id="list_schedules",
    summary="List schedules",
    description="Returns the schedules page by page, by name within each shard of the store. About 2000 are looked at "
    "for a page, and it ends after 1 MiB of jobs, so it may be short or empty and yet have a `next_cursor`. A key "
    "for some topics sees only the schedules of those.",
    response_model=responses.SchedulePage,
    response_description="One page of schedules.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ)
async def list_schedules(request: CurrentRequest, query: Annotated[SchedulesQuery, Query()]) -> responses.SchedulePage:
    wanted = ScheduleFilter(query.topic, query.paused, query.prefix or "", request.admission.visible_topics)
    found, next_cursor = await request.engine.schedules.page(wanted, query.cursor, query.limit, with_jobs=query.jobs)
    shown = [schedule_json.schedule(one, with_job=query.jobs) for one in found]
    return responses.SchedulePage(schedules=shown, next_cursor=next_cursor)


@router.get(
    "/schedules/{name}",
    operation_id="get_schedule",
    summary="Get a schedule",
    description="Returns the schedule, its next and its last run, and how many runs there were. The next run has no "
    "`next_job` if the one that waited was cancelled.",
    response_model=responses.Schedule,
    response_description="The schedule.",
    responses=error_responses("schedule_not_found", "validation", "store_unavailable"),
)
@requires(Scope.READ)
async def get_schedule(request: CurrentRequest, name: ScheduleName) -> responses.Schedule:
    stored = await request.engine.schedules.get(name)
    request.admission.check_topic(stored.topic)
    return schedule_json.schedule(await request.engine.schedules.with_next_run(stored))


@router.delete(
    "/schedules/{name}",
    operation_id="delete_schedule",
    summary="Delete a schedule",
    description="Deletes the schedule and cancels its next run, and those that were postponed. Runs that are due stay.",
    response_model=responses.Schedule,
    response_description="The schedule as it was.",
    responses=error_responses("schedule_not_found", "validation", "store_unavailable"),
)
@requires(Scope.PUT, audited=True)
async def delete_schedule(request: CurrentRequest, name: ScheduleName) -> responses.Schedule:
    stored = await request.engine.schedules.delete(name, request.admission.check_topic)
    request.changed_topic = stored.topic
    return schedule_json.schedule(stored)


@router.post(
    "/schedules/{name}/pause",
    operation_id="pause_schedule",
    summary="Pause a schedule",
    description="Cancels the next run and postponed ones; there are no others until the schedule is resumed.",
    response_model=responses.Schedule,
    response_description="The schedule in its new state.",
    responses=error_responses("schedule_not_found", "validation", "store_unavailable", body=True),
)
@requires(Scope.PUT, audited=True)
async def pause_schedule(
    request: CurrentRequest, name: ScheduleName, _body: EmptyBody = EMPTY_BODY
) -> responses.Schedule:
    stored = await request.engine.schedules.pause(name, request.admission.check_topic)
    request.changed_topic = stored.topic
    return schedule_json.schedule(stored)


@router.post(
    "/schedules/{name}/resume",
    operation_id="resume_schedule",
    summary="Resume a schedule",
    description="Ends a pause. The next run is the first one from now; none counts as missed.",
    response_model=responses.Schedule,
    response_description="The schedule in its new state.",
    responses=error_responses("schedule_not_found", "validation", "store_unavailable", body=True),
)
@requires(Scope.PUT, audited=True)
async def resume_schedule(
    request: CurrentRequest, name: ScheduleName, _body: EmptyBody = EMPTY_BODY
) -> responses.Schedule:
    paused = await request.engine.schedules.get(name)
    request.admission.check_topic(paused.topic)
    request.changed_topic = paused.topic
    with request.room_for_run(paused):
        stored = await request.engine.schedules.resume(name, request.admission.check_topic)
    return schedule_json.schedule(stored)


@router.post(
    "/schedules/{name}/run",
    operation_id="run_schedule",
    summary="Run a schedule now",
    description="Puts the schedule's job now, in addition to its runs: it does not count as one, and `overlap` and "
    "`max_runs` do not concern it. Each call puts another job, with an id such as `NAME:20261122T030012.345Z`.",
    status_code=201,
    response_model=StoredJob,
    response_description="The job was put.",
    responses=error_responses(
        *("schedule_not_found", "validation", "durability_unavailable", "topic_full", "store_unavailable"), body=True
    ),
)
@requires(Scope.PUT, audited=True)
async def run_schedule(request: CurrentRequest, name: ScheduleName, _body: EmptyBody = EMPTY_BODY) -> Response:
    stored = await request.engine.schedules.get(name)
    request.admission.check_topic(stored.topic)
    request.changed_topic = stored.topic
    with request.room_for_run(stored):
        put = await request.engine.schedules.run(stored, request.put_bounds())
    location = f"/jobs/{put.record.topic}/{put.record.id}".encode()
    return JsonResponse(written_put(put), 201, ((b"location", location),))


@router.get(
    "/schedules/{name}/preview",
    operation_id="preview_schedule",
    summary="Preview a schedule's runs",
    description="Returns when the next runs are due, as if the schedule was not paused; none when it has ended.",
    response_model=responses.Preview,
    response_description="The runs to come.",
    responses=error_responses("schedule_not_found", "validation", "rate_limited", "store_unavailable"),
)
@requires(Scope.READ)
async def preview_schedule(
    request: CurrentRequest, name: ScheduleName, query: Annotated[PreviewQuery, Query()]
) -> responses.Preview:
    schedules = request.engine.schedules
    preview = partial(schedules.preview, name, request.admission.check_topic, query.count)
    stored, runs = await request.compute(preview)
    return schedule_json.preview(stored.definition, runs)


@router.post(
    "/schedules/preview",
    operation_id="preview_unsaved_schedule",
    summary="Preview a schedule that is not stored",
    description="Returns when its first runs would be due if it was created now, and stores nothing. With `spread` or "
    "`jitter` the moments depend on the name that it will have.",
    response_model=responses.Preview,
    response_description="The runs to come.",
    responses=error_responses("validation", "rate_limited", "store_unavailable", body=True),
)
@requires(Scope.READ)
async def preview_unsaved_schedule(
    request: CurrentRequest, query: Annotated[PreviewQuery, Query()], schedule: PutSchedule
) -> responses.Preview:
    schedules = request.engine.schedules
    runs = await request.compute(partial(schedules.preview_of, _UNSAVED, schedule, query.count))
    return schedule_json.preview(schedule, runs)
