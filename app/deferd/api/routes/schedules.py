"""Schedules: recurring jobs."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from starlette.responses import Response

from deferd.api import schedule_responses
from deferd.api.job_templates import written_put
from deferd.api.operation import EMPTY_BODY, EmptyBody
from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest
from deferd.api.response_models import model_of
from deferd.api.responses import JsonResponse
from deferd.api.routes.topics import Cursor
from deferd.contract import limits
from deferd.contract.model import Topic
from deferd.contract.operations import schedules as operations
from deferd.contract.responses import schedules as responses
from deferd.contract.schedules import PutSchedule, ScheduleName
from deferd.engine.schedules.schedules import ScheduleFilter

router = OperationRouter()

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


@router.serves(
    operations.PUT_SCHEDULE,
    topics=lambda arguments: (arguments["schedule"].topic,),
    audited=True,
    openapi_extra=_IF_NONE_MATCH,
    responses={
        201: {
            "model": model_of(responses.Schedule),
            "description": "The schedule was created.",
            "headers": {"Location": {"description": "The schedule's path.", "schema": {"type": "string"}}},
        }
    },
)
async def put_schedule(request: CurrentRequest, name: ScheduleName, schedule: PutSchedule) -> Response:
    only_new = any(header == b"if-none-match" and value.strip() == b"*" for header, value in request.incoming.headers)
    with request.room_for_schedule(schedule):
        stored, created = await request.engine.schedules.put(
            name, schedule, request.put_bounds(), request.admission.check_topic, only_new=only_new
        )
    shown = schedule_responses.schedule(stored)
    return JsonResponse(shown, 201, ((b"location", f"/schedules/{name}".encode()),)) if created else JsonResponse(shown)


@router.serves(operations.LIST_SCHEDULES)
async def list_schedules(request: CurrentRequest, query: Annotated[SchedulesQuery, Query()]) -> responses.SchedulePage:
    wanted = ScheduleFilter(query.topic, query.paused, query.prefix or "", request.admission.visible_topics)
    found, next_cursor = await request.engine.schedules.page(wanted, query.cursor, query.limit, with_jobs=query.jobs)
    shown = [schedule_responses.schedule(one, with_job=query.jobs) for one in found]
    return responses.SchedulePage(schedules=shown, next_cursor=next_cursor)


@router.serves(operations.GET_SCHEDULE)
async def get_schedule(request: CurrentRequest, name: ScheduleName) -> responses.Schedule:
    stored = await request.engine.schedules.get(name)
    request.admission.check_topic(stored.topic)
    return schedule_responses.schedule(await request.engine.schedules.with_next_run(stored))


@router.serves(operations.DELETE_SCHEDULE, audited=True)
async def delete_schedule(request: CurrentRequest, name: ScheduleName) -> responses.Schedule:
    stored = await request.engine.schedules.delete(name, request.admission.check_topic)
    request.changed_topic = stored.topic
    return schedule_responses.schedule(stored)


@router.serves(operations.PAUSE_SCHEDULE, audited=True)
async def pause_schedule(
    request: CurrentRequest, name: ScheduleName, _body: EmptyBody = EMPTY_BODY
) -> responses.Schedule:
    stored = await request.engine.schedules.pause(name, request.admission.check_topic)
    request.changed_topic = stored.topic
    return schedule_responses.schedule(stored)


@router.serves(operations.RESUME_SCHEDULE, audited=True)
async def resume_schedule(
    request: CurrentRequest, name: ScheduleName, _body: EmptyBody = EMPTY_BODY
) -> responses.Schedule:
    paused = await request.engine.schedules.get(name)
    request.admission.check_topic(paused.topic)
    request.changed_topic = paused.topic
    with request.room_for_run(paused):
        stored = await request.engine.schedules.resume(name, request.admission.check_topic)
    return schedule_responses.schedule(stored)


@router.serves(operations.RUN_SCHEDULE, audited=True)
async def run_schedule(request: CurrentRequest, name: ScheduleName, _body: EmptyBody = EMPTY_BODY) -> Response:
    stored = await request.engine.schedules.get(name)
    request.admission.check_topic(stored.topic)
    request.changed_topic = stored.topic
    with request.room_for_run(stored):
        put = await request.engine.schedules.run(stored, request.put_bounds())
    location = f"/jobs/{put.record.topic}/{put.record.id}".encode()
    return JsonResponse(written_put(put), 201, ((b"location", location),))


@router.serves(operations.PREVIEW_SCHEDULE)
async def preview_schedule(
    request: CurrentRequest, name: ScheduleName, query: Annotated[PreviewQuery, Query()]
) -> responses.Preview:
    schedules = request.engine.schedules
    preview = partial(schedules.preview, name, request.admission.check_topic, query.count)
    stored, runs = await request.compute(preview)
    return schedule_responses.preview(stored.definition, runs)


@router.serves(operations.PREVIEW_UNSAVED_SCHEDULE)
async def preview_unsaved_schedule(
    request: CurrentRequest, query: Annotated[PreviewQuery, Query()], schedule: PutSchedule
) -> responses.Preview:
    schedules = request.engine.schedules
    runs = await request.compute(partial(schedules.preview_of, _UNSAVED, schedule, query.count))
    return schedule_responses.preview(schedule, runs)
