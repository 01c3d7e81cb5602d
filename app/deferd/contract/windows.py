"""Opening hours and spread: the fields that move due times."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from deferd.contract import limits
from deferd.contract.endings import seconds_field

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
TIME_PATTERN = r"^([01][0-9]|2[0-3]):[0-5][0-9]$"
END_PATTERN = r"^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"


def _all_different(values: list[str]) -> list[str]:
    if len(set(values)) < len(values):
        raise ValueError("must not repeat a value")
    return values


ZoneName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=limits.ZONE_LENGTH),
    Field(description="Time zone, an IANA name.", examples=["Europe/Berlin"]),
]
Days = Annotated[
    list[Day],
    AfterValidator(_all_different),
    Field(min_length=1, max_length=7, description="Days of the week. Default: all."),
]
CalendarName = Annotated[
    str,
    StringConstraints(pattern=limits.TOPIC_PATTERN),
    Field(description="Name of a calendar.", examples=["office"]),
]


class Window(BaseModel):
    """Opening hours: on these days from `from` until `to`, in the zone's local time."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    zone: ZoneName = "UTC"
    days: Days | None = None
    from_: Annotated[str, StringConstraints(pattern=TIME_PATTERN)] = Field(
        default="00:00", alias="from", description="Local time of the opening, HH:MM."
    )
    to: Annotated[str, StringConstraints(pattern=END_PATTERN)] = Field(
        default="24:00",
        description="Local time of the closing, HH:MM up to 24:00; not open any more at that minute. Earlier than "
        "`from`: on the next day, and the window belongs to the day of its opening.",
    )
    except_: list[date] = Field(
        default=[],
        alias="except",
        max_length=limits.WINDOW_EXCEPT_MAX,
        description="Local dates, YYYY-MM-DD, on which it does not open.",
        examples=[["2026-12-24"]],
    )


WindowSpec = Annotated[
    Window | Annotated[list[Window], Field(min_length=1, max_length=limits.WINDOWS_MAX)] | CalendarName,
    Field(
        description="Opening hours: one window, a list of them, or the name of a calendar. A due time, and the end of "
        "every backoff, moves to the next opening."
    ),
]
Spread = Annotated[
    float,
    seconds_field(
        0,
        limits.SPREAD_MAX_S,
        "Seconds over which due times are spread: each moves later by a part of this that depends on the job's id, so "
        "a repeated put agrees with itself.",
    ),
]
