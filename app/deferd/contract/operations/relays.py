"""Relays: the processes that send the outboxes of databases to the service, as they report."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, get_args

from pydantic import Field, StringConstraints

from deferd.contract import limits
from deferd.contract.operations.operation import Operation
from deferd.contract.operations.response import Response, one_of
from deferd.contract.scopes import Scope
from deferd.contract.strict_model import StrictModel, seconds_field

RelayName = Annotated[
    str,
    StringConstraints(pattern=limits.ID_PATTERN),
    Field(description="Name of the relay, such as that of its machine with its process id.", examples=["shop-1:4711"]),
]
RelayDatabase = Annotated[
    str,
    StringConstraints(min_length=1, max_length=limits.RELAY_DATABASE_MAX, pattern=limits.HEADER_TEXT_PATTERN),
    Field(description="The database of the outbox as `host:port/name`, without user and password."),
]


class ReportRelay(StrictModel):
    """How a relay and its outbox are doing."""

    database: RelayDatabase
    working: bool = Field(
        strict=True, description="Whether this relay sends the outbox; `false`: it waits to take over from another."
    )
    rows: int = Field(
        strict=True,
        ge=0,
        le=limits.RELAY_ROWS_MAX,
        description=f"Rows in the outbox; above {limits.OUTBOX_COUNTED} an estimate will do.",
    )
    refused: int = Field(
        strict=True, ge=0, le=limits.RELAY_ROWS_MAX, description="Rows that the service refused, and nobody handled."
    )
    lag: Annotated[
        float, seconds_field(0, limits.TEN_YEARS_S, "Age of the oldest row in the outbox in seconds; 0 without rows.")
    ]

    schema_examples = ({"database": "db.internal:5432/shop", "working": True, "rows": 12, "refused": 0, "lag": 0.02},)


RelayState = Literal["works", "waits", "silent"]


_EXAMPLE = {
    "name": "shop-1:4711",
    "database": "db.internal:5432/shop",
    "state": "works",
    "rows": 12,
    "refused": 0,
    "lag": 0.02,
    "seen_at": "2026-11-21T03:11:58.000Z",
}


class Relay(Response, frozen=True, kw_only=True):
    """A relay, as it last reported."""

    name: str
    database: Annotated[str, "The database of its outbox."]
    state: Annotated[
        str,
        one_of(*get_args(RelayState)),
        "`works`: it sends the outbox. `waits`: it takes over if the one that works ends. `silent`: it has not "
        "reported for half a minute, or another one works in its place.",
    ]
    rows: Annotated[int, f"Rows in the outbox; an estimate above {limits.OUTBOX_COUNTED}."]
    refused: Annotated[int, "Rows that the service refused, and nobody handled."]
    lag: Annotated[float, "Age of the oldest row in the outbox in seconds; 0 without rows."]
    seen_at: Annotated[datetime, "When it reported."]

    schema_examples = (_EXAMPLE,)


class Relays(Response, frozen=True, kw_only=True):
    """The relays that have reported lately."""

    relays: list[Relay]

    schema_examples = ({"relays": [_EXAMPLE]},)


LIST_RELAYS = Operation(
    "list_relays",
    "GET",
    "/relays",
    tag="inspection",
    scope=Scope.READ,
    summary="List relays",
    description=(
        "Lists the relays that send outboxes of databases to the service, by database, those that work first. A relay "
        "that does not report for 5 minutes is left out once another one of its database does, and after a day in any "
        "case. The key must match all topics."
    ),
    response=Relays,
    response_description="The relays.",
)
REPORT_RELAY = Operation(
    "report_relay",
    "PUT",
    "/relays/{name}",
    tag="inspection",
    scope=Scope.PUT,
    summary="Report how a relay is doing",
    description=(
        "Relays call this every 5 seconds, and when they begin or end to work. It is what `GET /relays`, the metrics "
        f"and the alerts of outboxes know. Of more than {limits.RELAYS_MAX} relays those that reported last are kept."
    ),
    response=Relay,
    response_description="The relay, as it is listed from now on.",
)
