"""Opening hours and spread: the fields that move due times."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, StringConstraints, Tag, TypeAdapter

from deferd.contract import limits
from deferd.contract.strict_model import StrictModel, constraint

_ZONE, _FROM, _TO = "UTC", "00:00", "24:00"
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


def _iso_date(value: object) -> object:
    if isinstance(value, str) and value[4:8:3] == "--":  # there are other forms, such as 2026-W52-4
        try:
            return date.fromisoformat(value)
        except ValueError:
            pass
    if type(value) is not date:
        raise ValueError("must be a date, YYYY-MM-DD")
    return value


LocalDate = Annotated[date, BeforeValidator(_iso_date)]


class Window(StrictModel):
    """Opening hours: on these days from `from` until `to`, in the zone's local time."""

    zone: ZoneName = _ZONE
    days: Days | None = None
    from_: Annotated[str, StringConstraints(pattern=TIME_PATTERN)] = Field(
        default=_FROM, alias="from", description="Local time of the opening, HH:MM."
    )
    to: Annotated[str, StringConstraints(pattern=END_PATTERN)] = Field(
        default=_TO,
        description="Local time of the closing, HH:MM up to 24:00; not open any more at that minute. Earlier than "
        "`from`: on the next day, and the window belongs to the day of its opening.",
    )
    except_: list[LocalDate] = Field(
        default=[],
        alias="except",
        max_length=limits.WINDOW_EXCEPT_MAX,
        description="Local dates, YYYY-MM-DD, on which it does not open.",
        examples=[["2026-12-24"]],
    )

    schema_examples = (
        {"zone": "Europe/Berlin", "days": ["mon", "tue", "wed", "thu", "fri"], "from": "09:00", "to": "18:00"},
        {"from": "22:00", "to": "06:00"},
    )


Windows = Annotated[list[Window], Field(min_length=1, max_length=limits.WINDOWS_MAX)]
FORM_TAGS = ("(one window)", "(list of windows)", "(calendar)")
"""What pydantic adds to the paths of errors in a `WindowSpec`; no field has such a name."""


def _form(value: object) -> str:
    """Which kind of `WindowSpec` a value is meant to be, so that errors concern only that kind."""
    if isinstance(value, list | tuple):
        return FORM_TAGS[1]
    return FORM_TAGS[2] if isinstance(value, str) else FORM_TAGS[0]


WindowSpec = Annotated[
    Annotated[Window, Tag(FORM_TAGS[0])]
    | Annotated[Windows, Tag(FORM_TAGS[1]), Field(json_schema_extra={"x-name": "WindowList"})]  # as of the union
    | Annotated[CalendarName, Tag(FORM_TAGS[2])],
    Discriminator(_form),
    constraint("window"),
    Field(json_schema_extra={"x-name": "WindowSpec"}),  # the name of its schema in the OpenAPI document
]


_spec: TypeAdapter[Any] = TypeAdapter(WindowSpec)


def window_text(spec: Window | list[Window] | str) -> str:
    """The JSON of a `WindowSpec`, without default values."""
    return _spec.dump_json(spec, by_alias=True, exclude_defaults=True).decode()


def read_window(text: str | bytes) -> Window | list[Window] | str:
    """The `WindowSpec` of its JSON. Raises ValidationError."""
    spec: Window | list[Window] | str = _spec.validate_json(text)
    return spec


def _matching(pattern: str) -> msgspec.Meta:
    return msgspec.Meta(pattern=pattern.replace("$", r"\Z"))  # in Python, `$` matches also before a newline at the end


class WindowFields(
    msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, rename={"from_": "from", "except_": "except"}
):
    """The fields of a `Window`, which msgspec reads and writes in a tenth of the time."""

    zone: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.ZONE_LENGTH)] = _ZONE
    days: Annotated[list[Day], msgspec.Meta(min_length=1, max_length=7)] | None = None
    from_: Annotated[str, _matching(TIME_PATTERN)] = _FROM
    to: Annotated[str, _matching(END_PATTERN)] = _TO
    except_: Annotated[list[date], msgspec.Meta(max_length=limits.WINDOW_EXCEPT_MAX)] = []

    def __post_init__(self) -> None:
        if self.days is not None:
            _all_different(list(self.days))
        # msgspec omits a text that is the default, not one that is equal to it
        self.zone = _ZONE if self.zone == _ZONE else self.zone
        self.from_ = _FROM if self.from_ == _FROM else self.from_
        self.to = _TO if self.to == _TO else self.to


WindowsFields = Annotated[list[WindowFields], msgspec.Meta(min_length=1, max_length=limits.WINDOWS_MAX)]
_fields_decoder = msgspec.json.Decoder(WindowFields | WindowsFields)


def read_window_fields(text: str | bytes) -> WindowFields | list[WindowFields]:
    """The windows of a `WindowSpec` that is no calendar, from its JSON. Raises msgspec.ValidationError."""
    fields: WindowFields | list[WindowFields] = _fields_decoder.decode(text)
    return fields
