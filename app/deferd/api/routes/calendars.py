"""Calendars: opening hours under a name."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from orjson import Fragment
from starlette.responses import Response

from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.openapi import calendar_schemas as schemas
from deferd.api.openapi.document import error_responses
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest
from deferd.api.responses import JsonResponse
from deferd.contract import limits
from deferd.contract.windows import CalendarName, PutCalendar, window_text
from deferd.engine.calendars import Calendar

router = APIRouter(route_class=Operation, tags=["calendars"])
Name = Annotated[CalendarName, Path(description="Name of the calendar.", examples=["office"])]


def _shown(calendar: Calendar) -> dict[str, Any]:
    return {"name": calendar.name, "windows": Fragment(window_text(list(calendar.windows)))}


@router.put(
    "/calendars/{name}",
    operation_id="put_calendar",
    summary="Create or replace a calendar",
    description="Stores opening hours under a name, which the `window` of jobs, topics and schedules may have. A "
    "change counts within a second, for due times that are placed from then on: jobs that wait stay where they are. "
    f"There are at most {limits.CALENDARS_MAX} calendars.",
    status_code=201,
    response_model=schemas.Calendar,
    response_description="The calendar was created.",
    responses={
        200: {"model": schemas.Calendar, "description": "The calendar was replaced."},
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
    response_model=schemas.CalendarList,
    response_description="The calendars.",
    responses=error_responses("validation", "store_unavailable"),
)
@requires(Scope.READ)
async def list_calendars(request: CurrentRequest) -> Response:
    return JsonResponse({"calendars": [_shown(one) for one in await request.engine.calendars.all()]})


@router.get(
    "/calendars/{name}",
    operation_id="get_calendar",
    summary="Get a calendar",
    description="Returns the windows of a calendar.",
    response_model=schemas.Calendar,
    response_description="The calendar.",
    responses=error_responses("calendar_not_found", "validation", "store_unavailable"),
)
@requires(Scope.READ)
async def get_calendar(request: CurrentRequest, name: Name) -> Response:
    return JsonResponse(_shown(await request.engine.calendars.get(name)))


@router.delete(
    "/calendars/{name}",
    operation_id="delete_calendar",
    summary="Delete a calendar",
    description="Jobs, topics and schedules that still name it are always open from then on; new ones that name it are "
    "refused.",
    response_model=schemas.DeletedCalendar,
    response_description="The calendar was deleted.",
    responses=error_responses("calendar_not_found", "validation", "store_unavailable"),
)
@requires(Scope.ADMIN, all_topics=True)
async def delete_calendar(request: CurrentRequest, name: Name) -> Response:
    await request.engine.calendars.delete(name)
    return JsonResponse({"name": name, "deleted": True})
