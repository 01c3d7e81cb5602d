"""The responses about pushed topics."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, get_args

from msgspec import Meta

from deferd.contract.push import CircuitState
from deferd.contract.responses.response import Response, one_of


class PushTarget(Response, frozen=True, kw_only=True):
    """What is known of the target of a pushed topic."""

    circuit: Annotated[
        str,
        one_of(
            *get_args(CircuitState),
            description="`closed`: jobs are pushed. `open`: the target failed, and nothing is sent until `open_until`. "
            "`half_open`: one request tests whether the target is back.",
        ),
    ]
    failures: Annotated[int, Meta(description="Failures in a row.")]
    in_flight: Annotated[int, Meta(description="Requests under way, as the processes last reported.")]
    open_until: Annotated[datetime | None, Meta(description="Until when the circuit is open; `null` unless it is.")]
    last_error: Annotated[str | None, Meta(description="The last failure; `null` after a success.")]
    last_error_at: Annotated[datetime | None, Meta(description="When that was.")]
