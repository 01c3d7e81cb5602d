"""How jobs and their attempts end: their limits of time, and what ended an attempt."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field

from deferd.contract import limits


def seconds_field(low: float, high: float, text: str, **options: Any) -> Any:
    """A field for a duration in seconds from `low` to `high`."""
    return Field(strict=True, ge=low, le=high, allow_inf_nan=False, description=text, **options)


DeadRetain = Annotated[
    float,
    seconds_field(
        0,
        limits.RETAIN_MAX_S,
        "Seconds for which the job is kept when it is dead; 0: it is removed at once. Default: that of the topic, else "
        "what the service is configured for. The limit of the API key that put the job applies to all of them.",
    ),
]
TimeLimit = Annotated[
    float,
    seconds_field(
        limits.TIME_LIMIT_MIN_S,
        limits.TIME_LIMIT_MAX_S,
        "Longest time in seconds that one attempt may run: no touch extends its lease beyond that. `null`: no limit.",
    ),
]
Deadline = Annotated[
    float,
    seconds_field(
        0.001,
        limits.DEADLINE_MAX_S,
        "Seconds after `due_at` within which the job must be finished, over all its attempts; then it is dead with "
        "reason `deadline`. `null`: none. A retry does not move the deadline; to reschedule or redrive the job does.",
    ),
]


class AttemptEnd(StrEnum):
    """How an attempt ended without a finish."""

    RELEASED = "released"
    """A consumer released the job."""
    BURIED = "buried"
    """A consumer buried it."""
    LEASE = "lease_ended"
    """Its lease ended."""
    TIME_LIMIT = "time_limit"
    """Its lease ended because the `time_limit` had passed."""
    DEADLINE = "deadline"
    """Its lease ended because the job's `deadline` had passed."""
