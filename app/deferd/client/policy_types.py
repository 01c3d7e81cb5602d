"""The types of the policy's values that are not numbers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Literal, Required, TypedDict

from deferd.contract.backoff import ExponentialBackoff, FixedBackoff, ScheduleBackoff
from deferd.contract.windows import Day, Window


class ExponentialBackoffDict(TypedDict, total=False):
    """ExponentialBackoff as a JSON object."""

    kind: Required[Literal["exponential"]]
    base: float
    cap: float
    jitter: float


class FixedBackoffDict(TypedDict, total=False):
    """FixedBackoff as a JSON object."""

    kind: Required[Literal["fixed"]]
    seconds: float
    jitter: float


class ScheduleBackoffDict(TypedDict, total=False):
    """ScheduleBackoff as a JSON object."""

    kind: Required[Literal["schedule"]]
    seconds: Required[Sequence[float]]
    then: Literal["dead", "repeat_last"]
    jitter: float


Backoff = (
    ExponentialBackoff
    | FixedBackoff
    | ScheduleBackoff
    | ExponentialBackoffDict
    | FixedBackoffDict
    | ScheduleBackoffDict
)


WindowDict = TypedDict(
    "WindowDict",
    {"zone": str, "days": Sequence[Day] | None, "from": str, "to": str, "except": Sequence[str | date]},
    total=False,
)
"""Window as a JSON object."""
OpeningHours = Window | WindowDict | Sequence[Window | WindowDict] | str
"""One window, several, or the name of a calendar."""
