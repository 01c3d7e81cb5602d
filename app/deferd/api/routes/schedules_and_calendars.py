"""Schedules, which are recurring jobs, and calendars, which are opening hours under a name."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Annotated, Any, cast

import orjson
from fastapi import Path, Query
from msgspec import Raw
from pydantic import Field, StringConstraints
from starlette.responses import Response

from deferd.api.auth.api_keys import end_topics
from deferd.api.context import CurrentRequest, RequestContext
from deferd.api.job_responses import written_put
from deferd.api.operation import EMPTY_BODY, EmptyBody
from deferd.api.operation_router import OperationRouter
from deferd.api.recorded_values import names_of, size_of, values_before
from deferd.api.responses import JsonResponse, instant_or_none, whole
from deferd.api.routes.queries import Cursor
from deferd.contract import limits
from deferd.contract.model import Topic
from deferd.contract.operations import schedules_and_calendars as contract
from deferd.contract.operations.schedules_and_calendars import PutCalendar, PutSchedule, ScheduleName
from deferd.contract.strict_model import StrictModel
from deferd.contract.timestamps import instant, instant_text
from deferd.contract.windows import CalendarName, Window, window_text
from deferd.engine.calendars import Calendar
from deferd.engine.schedule_planning import Run
from deferd.engine.schedule_store import StoredSchedule, job_fields
from deferd.engine.scheduler import ScheduleFilter, datetime_of
from deferd.engine.zones import TZDATA_VERSION

router = OperationRouter()

_OPTIONAL = {"cron", "every", "at", "days", "start_at", "end_at", "spread", "window", "max_runs"}

_UNSAVED = "schedule"
"""In place of a name, on which a `spread` depends."""
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


class SchedulesQuery(StrictModel):
    """The parameters of a list of schedules."""

    cursor: Cursor = None
    limit: int = Field(
        limits.PAGE_DEFAULT, strict=True, ge=1, le=limits.PAGE_MAX, description="Maximum number, 1 to 1000."
    )
    topic: Topic | None = Field(None, description="Only schedules of this topic.")
    paused: bool | None = Field(None, description="Only paused schedules, or only those that are not.")
    prefix: NamePrefix | None = Field(None, description="Only schedules whose name begins so.")
    jobs: bool = Field(True, description="`false`: leave out `job`, which may be large.")


class PreviewQuery(StrictModel):
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
    contract.PUT_SCHEDULE,
    topics=lambda arguments: (arguments["schedule"].topic,),
    ends_into=lambda arguments: end_topics((arguments["schedule"].job,)),
    audited=True,
    openapi_extra=_IF_NONE_MATCH,
    responses={
        201: {
            "model": contract.Schedule,
            "description": "The schedule was created.",
            "headers": {"Location": {"description": "The schedule's path.", "schema": {"type": "string"}}},
        }
    },
)
async def put_schedule(request: CurrentRequest, name: ScheduleName, schedule: PutSchedule) -> Response:
    only_new = any(header == b"if-none-match" and value.strip() == b"*" for header, value in request.incoming.headers)
    request.was = await values_before(_recorded_before(request, name))
    with request.room_for_schedule(schedule):
        stored, created = await request.engine.schedules.put(
            name, schedule, request.put_bounds(), request.admission.check_topic, only_new=only_new
        )
    request.now = _recorded(stored)
    shown = _shown(stored)
    return JsonResponse(shown, 201, ((b"location", f"/schedules/{name}".encode()),)) if created else JsonResponse(shown)


@router.serves(contract.LIST_SCHEDULES)
async def list_schedules(request: CurrentRequest, query: Annotated[SchedulesQuery, Query()]) -> contract.SchedulePage:
    wanted = ScheduleFilter(query.topic, query.paused, query.prefix or "", request.admission.visible_topics)
    found, next_cursor = await request.engine.schedules.page(wanted, query.cursor, query.limit, with_jobs=query.jobs)
    shown = [_shown(one, with_job=query.jobs) for one in found]
    return contract.SchedulePage(schedules=shown, next_cursor=next_cursor)


@router.serves(contract.GET_SCHEDULE)
async def get_schedule(request: CurrentRequest, name: ScheduleName) -> contract.Schedule:
    stored = await request.engine.schedules.get(name)
    request.admission.check_topic(stored.topic)
    return _shown(await request.engine.schedules.with_next_run(stored))


@router.serves(contract.DELETE_SCHEDULE, audited=True)
async def delete_schedule(request: CurrentRequest, name: ScheduleName) -> contract.Schedule:
    stored = await request.engine.schedules.delete(name, request.admission.check_topic)
    request.changed_topic = stored.topic
    request.was = _recorded(stored)
    return _shown(stored)


@router.serves(contract.PAUSE_SCHEDULE, audited=True)
async def pause_schedule(
    request: CurrentRequest, name: ScheduleName, _body: EmptyBody = EMPTY_BODY
) -> contract.Schedule:
    request.was = await values_before(_pause_before(request, name))
    stored = await request.engine.schedules.pause(name, request.admission.check_topic)
    request.changed_topic = stored.topic
    request.now = _pause_of(stored)
    return _shown(stored)


@router.serves(contract.RESUME_SCHEDULE, audited=True)
async def resume_schedule(
    request: CurrentRequest, name: ScheduleName, _body: EmptyBody = EMPTY_BODY
) -> contract.Schedule:
    paused = await request.engine.schedules.get(name)
    request.admission.check_topic(paused.topic)
    request.changed_topic = paused.topic
    with request.room_for_run(paused):
        stored = await request.engine.schedules.resume(name, request.admission.check_topic)
    request.was, request.now = _pause_of(paused), _pause_of(stored)
    return _shown(stored)


@router.serves(contract.RUN_SCHEDULE, audited=True)
async def run_schedule(request: CurrentRequest, name: ScheduleName, _body: EmptyBody = EMPTY_BODY) -> Response:
    stored = await request.engine.schedules.get(name)
    request.admission.check_topic(stored.topic)
    request.changed_topic = stored.topic
    with request.room_for_run(stored):
        put = await request.engine.schedules.run(stored, request.put_bounds())
    location = f"/jobs/{put.record.topic}/{put.record.id}".encode()
    return JsonResponse(written_put(put), 201, ((b"location", location),))


@router.serves(contract.PREVIEW_SCHEDULE)
async def preview_schedule(
    request: CurrentRequest, name: ScheduleName, query: Annotated[PreviewQuery, Query()]
) -> contract.SchedulePreview:
    schedules = request.engine.schedules
    preview = partial(schedules.preview, name, request.admission.check_topic, query.count)
    stored, runs = await request.compute(preview)
    return _preview(stored.definition, runs)


@router.serves(contract.PREVIEW_UNSAVED_SCHEDULE)
async def preview_unsaved_schedule(
    request: CurrentRequest, query: Annotated[PreviewQuery, Query()], schedule: PutSchedule
) -> contract.SchedulePreview:
    schedules = request.engine.schedules
    runs = await request.compute(partial(schedules.preview_of, _UNSAVED, schedule, query.count))
    return _preview(schedule, runs)


async def _recorded_before(request: RequestContext, name: str) -> dict[str, Any]:
    return _recorded(await request.engine.schedules.get(name))


async def _pause_before(request: RequestContext, name: str) -> dict[str, Any]:
    return _pause_of(await request.engine.schedules.get(name))


def _recorded(stored: StoredSchedule) -> dict[str, Any]:
    """What the list of changes says of a schedule."""
    fields = stored.definition.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"job"})
    job = job_fields(stored.definition.job)
    job |= {
        "headers": names_of(job.get("headers") or {}),
        "body": None if stored.body is None else size_of(stored.body),
    }
    return {**fields, **{f"job.{name}": value for name, value in job.items()}}


def _pause_of(stored: StoredSchedule) -> dict[str, Any]:
    return {"paused": stored.state.is_paused}


def _shown(stored: StoredSchedule, *, with_job: bool = True) -> contract.Schedule:
    """The schedule, without the optional fields that it does not have."""
    definition, state = stored.definition, stored.state
    given = definition.model_dump(mode="json", by_alias=True, exclude_none=True, include=_OPTIONAL)
    job: dict[str, Any] = {}
    if with_job and stored.body is not None:
        job = {**whole(job_fields(definition.job)), "body": Raw(stored.body)}
    return contract.Schedule(
        name=stored.name,
        topic=definition.topic,
        job=job,
        zone=definition.zone,
        overlap=definition.overlap,
        catch_up=definition.catch_up,
        paused=state.is_paused,
        ended=state.is_ended,
        next_run_at=instant_or_none(stored.next_due_ms),
        next_job=stored.next_id or None,
        last_run_at=instant_or_none(stored.last_due_ms),
        last_job=stored.last_id or None,
        runs=stored.runs,
        skips=stored.skips,
        missed=stored.missed,
        created_at=instant(state.created_ms),
        updated_at=instant(state.updated_ms),
        **whole(given),
    )


def _preview(definition: PutSchedule, runs: Iterable[Run]) -> contract.SchedulePreview:
    """Runs to come: each in the zone of the schedule, and in UTC."""
    return contract.SchedulePreview(
        runs=[
            contract.PreviewedRun(at=_local(run.due_ms, definition.zone), utc=_to_the_second(run.due_ms))
            for run in runs
        ],
        tzdata=TZDATA_VERSION,
    )


def _local(at_ms: int, zone: str) -> datetime:
    text = datetime_of(at_ms, zone).isoformat(timespec="milliseconds" if at_ms % 1000 else "seconds")
    return cast("datetime", text)  # as `instant`


def _to_the_second(at_ms: int) -> datetime:
    return cast("datetime", instant_text(at_ms).replace(".000Z", "Z"))


NameOfCalendar = Annotated[CalendarName, Path(description="Name of the calendar.", examples=["office"])]


def _shown_calendar(calendar: Calendar) -> contract.Calendar:
    windows = Raw(window_text(list(calendar.windows)))
    return contract.Calendar(name=calendar.name, windows=cast("list[Window]", windows))


@router.serves(
    contract.PUT_CALENDAR,
    all_topics=True,
    responses={200: {"model": contract.Calendar, "description": "The calendar was replaced."}},
)
async def put_calendar(request: CurrentRequest, name: NameOfCalendar, calendar: PutCalendar) -> Response:
    request.was = await values_before(_windows_before(request, name))
    stored, is_new = await request.engine.calendars.put(name, calendar)
    request.now = _windows_of(stored)
    return JsonResponse(_shown_calendar(stored), 201 if is_new else 200)


@router.serves(contract.LIST_CALENDARS)
async def list_calendars(request: CurrentRequest) -> contract.CalendarList:
    return contract.CalendarList(calendars=[_shown_calendar(one) for one in await request.engine.calendars.all()])


@router.serves(contract.GET_CALENDAR)
async def get_calendar(request: CurrentRequest, name: NameOfCalendar) -> contract.Calendar:
    return _shown_calendar(await request.engine.calendars.get(name))


@router.serves(contract.DELETE_CALENDAR, all_topics=True)
async def delete_calendar(request: CurrentRequest, name: NameOfCalendar) -> contract.DeletedCalendar:
    request.was = await values_before(_windows_before(request, name))
    await request.engine.calendars.delete(name)
    return contract.DeletedCalendar(name=name, deleted=True)


async def _windows_before(request: RequestContext, name: str) -> dict[str, Any]:
    return _windows_of(await request.engine.calendars.get(name))


def _windows_of(calendar: Calendar) -> dict[str, Any]:
    return {"windows": orjson.loads(window_text(list(calendar.windows)))}
