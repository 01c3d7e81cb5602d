"""The movable clock for tests: only in a service started with `--test-clock`, and not in the OpenAPI document."""

from __future__ import annotations

from deferd.contract.operations.operation import Operation
from deferd.contract.responses.health import Clock
from deferd.contract.scopes import Scope

READ_CLOCK = Operation(
    "read_clock",
    "GET",
    "/testing/clock",
    tag="operations",
    scope=Scope.ADMIN,
    summary="Read the clock",
    description="The time of the clock, and the seconds by which it was advanced so far.",
    response=Clock,
)
MOVE_CLOCK = Operation(
    "move_clock",
    "POST",
    "/testing/clock",
    tag="operations",
    scope=Scope.ADMIN,
    summary="Advance the clock, and promote what becomes due",
    description="The time of the clock, and the seconds by which it was advanced so far.",
    response=Clock,
    repeatable=False,
    done="moved the clock",
)
