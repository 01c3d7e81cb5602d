"""The responses about calendars."""

from __future__ import annotations

from typing import Annotated

from deferd.contract.responses.response import Response
from deferd.contract.windows import Window


class Calendar(Response, frozen=True, kw_only=True):
    """Opening hours under a name."""

    name: Annotated[str, "Name of the calendar."]
    windows: Annotated[list[Window], "It is open while at least one of these windows is."]


class CalendarList(Response, frozen=True, kw_only=True):
    """All calendars, by name."""

    calendars: list[Calendar]


class DeletedCalendar(Response, frozen=True, kw_only=True):
    """A calendar that was deleted."""

    name: Annotated[str, "Its name."]
    deleted: Annotated[bool, "`true`."]
