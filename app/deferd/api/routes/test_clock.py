"""The movable clock for tests: these operations exist only in a service started with `--test-clock`.

They are not part of the contract, so the OpenAPI document omits them.
"""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest, RequestContext
from deferd.api.response_values import instant, seconds
from deferd.contract import limits
from deferd.contract.responses.health import Clock
from deferd.engine.movable_clock import MovableClock, Reading
from deferd.engine.stored_fields import to_ms

router = APIRouter(route_class=Operation, include_in_schema=False)


class MoveClock(BaseModel):
    """How far to advance the clock, in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    advance: float = Field(strict=True, ge=0, le=limits.TEN_YEARS_S, allow_inf_nan=False)


@router.get("/testing/clock", response_model=Clock)
@requires(Scope.ADMIN, all_topics=True)
async def read_clock(request: CurrentRequest) -> Clock:
    """Return the time of the clock and the seconds by which it was advanced so far."""
    return _response(await _clock(request).read())


@router.post("/testing/clock", response_model=Clock)
@requires(Scope.ADMIN, all_topics=True)
async def move_clock(request: CurrentRequest, move: MoveClock) -> Clock:
    """Advance the clock and promote what becomes due; return the same as `read_clock`."""
    return _response(await _clock(request).advance(to_ms(move.advance)))


def _clock(request: RequestContext) -> MovableClock:
    if request.engine.clock is None:
        raise RuntimeError("a service without a movable clock has no route for it")
    return request.engine.clock


def _response(reading: Reading) -> Clock:
    return Clock(now=instant(reading.now_ms), offset=seconds(reading.moved_ms))
