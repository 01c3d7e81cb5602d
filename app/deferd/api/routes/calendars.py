"""Calendars: opening hours under a name."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Path
from msgspec import Raw
from starlette.responses import Response

from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.openapi.document import error_responses
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest
from deferd.api.response_models import model_of
from deferd.api.responses import JsonResponse
from deferd.contract import limits
from deferd.contract.responses import calendars as responses
from deferd.contract.windows import CalendarName, PutCalendar, Window, window_text
from deferd.engine.calendars import Calendar

router = APIRouter(route_class=Operation, tags=["calendars"])
Name = Annotated[CalendarName, Path(description="Name of the calendar.", examples=["office"])]


def _shown(calendar: Calendar) -> responses.Calendar:
    windows = Raw(window_text(list(calendar.windows)))
    return responses.Calendar(name=calendar.name, windows=cast("list[Window]", windows))


@router.put(
    "/calendars/{name}",
    operation_id="put_calendar",
    summary="Create or replace a calendar",
    description="Stores opening hours under a name, which the `window` of jobs, topics and schedules may have. A "
    "change counts within a second, for due times that are placed from then on: jobs that wait stay where they are. "
    f"There are at most {limits.CALENDARS_MAX} calendars.",
    status_code=201,
    response_model=responses.Calendar,
    response_description="The calendar was created.",
    responses={
        200: {"model": model_of(responses.Calendar), "description": "The calendar was replaced."},
        **error_responses("validation", "store_unavailable", body=True),
    },
)
@requires(Scope.ADMIN, all_topics=True)
async def put_calendar(request: CurrentRequest, name: Name, calendar: PutCalendar) -> Response:
    stored, is_new = await request.engine.calendars.put(name, calendar)
    return JsonResponse(_shown(stored), 201 if is_new else 200)


@router.get(
    "/calendars",
    operation_id="list_calendars",
    summary="List calendars",
    description="Lists all calendars by name.",
    response_model=responses.CalendarList,
    response_description="The calendars.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ)
async def list_calendars(request: CurrentRequest) -> responses.CalendarList:
    return responses.CalendarList(calendars=[_shown(one) for one in await request.engine.calendars.all()])


@router.get(
    "/calendars/{name}",
    operation_id="get_calendar",
    summary="Get a calendar",
    description="Returns the windows of a calendar.",
    response_model=responses.Calendar,
    response_description="The calendar.",
    responses=error_responses("calendar_not_found", "validation", "store_unavailable"),
)
@requires(Scope.READ)
async def get_calendar(request: CurrentRequest, name: Name) -> responses.Calendar:
    return _shown(await request.engine.calendars.get(name))


@router.delete(
    "/calendars/{name}",
    operation_id="delete_calendar",
    summary="Delete a calendar",
    description="Jobs, topics and schedules that still name it are always open from then on; new ones that name it are "
    "refused.",
    response_model=responses.DeletedCalendar,
    response_description="The calendar was deleted.",
    responses=error_responses("calendar_not_found", "validation", "store_unavailable"),
)
@requires(Scope.ADMIN, all_topics=True)
async def delete_calendar(request: CurrentRequest, name: Name) -> responses.DeletedCalendar:
    await request.engine.calendars.delete(name)
    return responses.DeletedCalendar(name=name, deleted=True)
