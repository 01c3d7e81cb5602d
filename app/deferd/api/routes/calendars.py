"""Calendars: opening hours under a name."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import Path
from msgspec import Raw
from starlette.responses import Response

from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest
from deferd.api.response_models import model_of
from deferd.api.responses import JsonResponse
from deferd.contract.operations import calendars as operations
from deferd.contract.responses import calendars as responses
from deferd.contract.windows import CalendarName, PutCalendar, Window, window_text
from deferd.engine.calendars import Calendar

router = OperationRouter()
Name = Annotated[CalendarName, Path(description="Name of the calendar.", examples=["office"])]


def _shown(calendar: Calendar) -> responses.Calendar:
    windows = Raw(window_text(list(calendar.windows)))
    return responses.Calendar(name=calendar.name, windows=cast("list[Window]", windows))


@router.serves(
    operations.PUT_CALENDAR,
    all_topics=True,
    responses={200: {"model": model_of(responses.Calendar), "description": "The calendar was replaced."}},
)
async def put_calendar(request: CurrentRequest, name: Name, calendar: PutCalendar) -> Response:
    stored, is_new = await request.engine.calendars.put(name, calendar)
    return JsonResponse(_shown(stored), 201 if is_new else 200)


@router.serves(operations.LIST_CALENDARS)
async def list_calendars(request: CurrentRequest) -> responses.CalendarList:
    return responses.CalendarList(calendars=[_shown(one) for one in await request.engine.calendars.all()])


@router.serves(operations.GET_CALENDAR)
async def get_calendar(request: CurrentRequest, name: Name) -> responses.Calendar:
    return _shown(await request.engine.calendars.get(name))


@router.serves(operations.DELETE_CALENDAR, all_topics=True)
async def delete_calendar(request: CurrentRequest, name: Name) -> responses.DeletedCalendar:
    await request.engine.calendars.delete(name)
    return responses.DeletedCalendar(name=name, deleted=True)
