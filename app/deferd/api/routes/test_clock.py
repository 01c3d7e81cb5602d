"""The movable clock for tests: these operations exist only in a service started with `--test-clock`.

They are not part of the contract, so the OpenAPI document omits them.
"""

from __future__ import annotations

from pydantic import Field

from deferd.api.operation_router import OperationRouter
from deferd.api.request_context import CurrentRequest, RequestContext
from deferd.api.response_values import instant, seconds
from deferd.contract import limits
from deferd.contract.operations import test_clock as operations
from deferd.contract.responses.health import Clock
from deferd.contract.strict_model import StrictModel
from deferd.engine.movable_clock import MovableClock, Reading
from deferd.engine.stored_fields import to_ms

router = OperationRouter()


class MoveClock(StrictModel):
    """How far to advance the clock, in seconds."""

    advance: float = Field(strict=True, ge=0, le=limits.TEN_YEARS_S, allow_inf_nan=False)


@router.serves(operations.READ_CLOCK, all_topics=True, include_in_schema=False)
async def read_clock(request: CurrentRequest) -> Clock:
    return _response(await _clock(request).read())


@router.serves(operations.MOVE_CLOCK, all_topics=True, include_in_schema=False)
async def move_clock(request: CurrentRequest, move: MoveClock) -> Clock:
    return _response(await _clock(request).advance(to_ms(move.advance)))


def _clock(request: RequestContext) -> MovableClock:
    if request.engine.clock is None:
        raise RuntimeError("a service without a movable clock has no route for it")
    return request.engine.clock


def _response(reading: Reading) -> Clock:
    return Clock(now=instant(reading.now_ms), offset=seconds(reading.moved_ms))
