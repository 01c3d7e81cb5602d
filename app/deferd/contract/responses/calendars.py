"""The responses about calendars."""

from __future__ import annotations

from typing import Annotated

from deferd.contract.responses.response import Response
from deferd.contract.windows import Window


class Calendar(Response, frozen=True, kw_only=True):
    """Opening hours under a name."""

    name: Annotated[str, "Name of the calendar."]
    windows: Annotated[list[Window], "It is open while at least one of these windows is."]

    schema_examples = ({"name": "office", "windows": [{**Window.schema_examples[0], "except": ["2026-12-24"]}]},)


class CalendarList(Response, frozen=True, kw_only=True):
    """All calendars, by name."""

    calendars: list[Calendar]

    schema_examples = ({"calendars": [*Calendar.schema_examples]},)


class DeletedCalendar(Response, frozen=True, kw_only=True):
    """A calendar that was deleted."""

    name: Annotated[str, "Its name."]
    deleted: Annotated[bool, "`true`."]

    schema_examples = ({"name": "office", "deleted": True},)
