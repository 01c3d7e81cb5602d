"""The schemas of responses about calendars, for the OpenAPI document only."""

from __future__ import annotations

from pydantic import BaseModel, Field

from deferd.contract.windows import Window


class Calendar(BaseModel):
    """Opening hours under a name."""

    name: str = Field(description="Name of the calendar.")
    windows: list[Window] = Field(description="It is open while at least one of these windows is.")


class CalendarList(BaseModel):
    """All calendars, by name."""

    calendars: list[Calendar]


class DeletedCalendar(BaseModel):
    """A calendar that was deleted."""

    name: str = Field(description="Its name.")
    deleted: bool = Field(description="`true`.")
