"""The clock that tests move: these calls exist only in a service that was started with `--test-clock`.

They are no part of the contract and so not in the OpenAPI document.
"""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from deferd.api import serialization
from deferd.api.auth.api_keys import Scope
from deferd.api.auth.permissions import requires
from deferd.api.operation import Operation
from deferd.api.request_context import CurrentRequest, RequestContext
from deferd.api.responses import JsonResponse
from deferd.contract import limits
from deferd.engine.movable_clock import MovableClock, Reading
from deferd.engine.record import to_ms

router = APIRouter(route_class=Operation, include_in_schema=False)


class MoveClock(BaseModel):
    """How far to move the clock on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    advance: float = Field(strict=True, ge=0, le=limits.TEN_YEARS_S, allow_inf_nan=False)


@router.get("/testing/clock")
@requires(Scope.ADMIN, all_topics=True)
async def read_clock(request: CurrentRequest) -> Response:
    """What the clock shows, and by how many seconds it was moved so far."""
    return _answer(await _clock(request).read())


@router.post("/testing/clock")
@requires(Scope.ADMIN, all_topics=True)
async def move_clock(request: CurrentRequest, move: MoveClock) -> Response:
    """Move the clock on, and do what has come due by that; then the same answer."""
    return _answer(await _clock(request).advance(to_ms(move.advance)))


def _clock(request: RequestContext) -> MovableClock:
    if request.engine.clock is None:
        raise RuntimeError("a service without a movable clock has no route to move it")
    return request.engine.clock


def _answer(reading: Reading) -> Response:
    return JsonResponse(
        {"now": serialization.instant(reading.now_ms), "offset": serialization.seconds(reading.moved_ms)}
    )
