"""Calendars: opening hours under a name."""

from __future__ import annotations

from deferd.contract import limits
from deferd.contract.operations.operation import Operation
from deferd.contract.responses import calendars as responses
from deferd.contract.scopes import Scope

PUT_CALENDAR = Operation(
    "put_calendar",
    "PUT",
    "/calendars/{name}",
    tag="calendars",
    scope=Scope.ADMIN,
    summary="Create or replace a calendar",
    description=(
        "Stores opening hours under a name, which the `window` of jobs, topics and schedules may have. A change "
        "counts within a second, for due times that are placed from then on: jobs that wait stay where they are. "
        f"There are at most {limits.CALENDARS_MAX} calendars."
    ),
    response=responses.Calendar,
    response_description="The calendar was created.",
    status=201,
    done="put calendar",
)
LIST_CALENDARS = Operation(
    "list_calendars",
    "GET",
    "/calendars",
    tag="calendars",
    scope=Scope.READ,
    summary="List calendars",
    description="Lists all calendars by name.",
    response=responses.CalendarList,
    response_description="The calendars.",
)
GET_CALENDAR = Operation(
    "get_calendar",
    "GET",
    "/calendars/{name}",
    tag="calendars",
    scope=Scope.READ,
    summary="Get a calendar",
    description="Returns the windows of a calendar.",
    response=responses.Calendar,
    response_description="The calendar.",
    errors=("calendar_not_found",),
)
DELETE_CALENDAR = Operation(
    "delete_calendar",
    "DELETE",
    "/calendars/{name}",
    tag="calendars",
    scope=Scope.ADMIN,
    summary="Delete a calendar",
    description=(
        "Jobs, topics and schedules that still name it are always open from then on; new ones that name it are refused."
    ),
    response=responses.DeletedCalendar,
    response_description="The calendar was deleted.",
    errors=("calendar_not_found",),
    repeatable=False,
    done="deleted calendar",
)
