"""How long a released job waits until it is ready again."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from deferd.contract import limits
from deferd.contract.strict_model import constraint, seconds_field

Jitter = Annotated[
    float,
    Field(
        strict=True,
        ge=0,
        le=1,
        allow_inf_nan=False,
        description="Random spread of the wait as a fraction, to a millionth: 0.1 is +-10 %.",
    ),
]


def _require_kind(schema: dict[str, Any]) -> None:
    """In JSON `kind` is required; in Python the class implies it. In Rust only an enum tells the kinds apart."""
    kind = schema["properties"]["kind"]
    kind.pop("default", None)
    kind["enum"] = [kind["const"]]
    schema["required"] = ["kind", *(name for name in schema.get("required", []) if name != "kind")]


class _BackoffKind(BaseModel):
    """Numbers are rounded here, so that they have at most the 14 digits that the scripts' JSON keeps.

    What is stored, what responses show and what a client compares with its put are then the same numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra=_require_kind)

    @field_validator("base", "cap", "seconds", check_fields=False)
    @classmethod
    def _to_the_millisecond(cls, value: float | list[float]) -> float | list[float]:
        return [round(one, 3) for one in value] if isinstance(value, list) else round(value, 3)

    @field_validator("jitter", check_fields=False)
    @classmethod
    def _to_a_millionth(cls, value: float) -> float:
        return round(value, 6)


class ExponentialBackoff(_BackoffKind):
    """Wait `min(cap, base^attempts)` seconds, +-jitter. The default waits 2, 4, 8 ... 128, 212, 212 ... seconds."""

    kind: Literal["exponential"] = "exponential"
    base: float = seconds_field(1, 1000, "Seconds to wait after the first attempt.", default=2)
    cap: float = seconds_field(0, limits.BACKOFF_WAIT_MAX_S, "Longest wait in seconds.", default=212)
    jitter: Jitter = 0


class FixedBackoff(_BackoffKind):
    """Wait the same number of seconds after every attempt, +-jitter."""

    kind: Literal["fixed"] = "fixed"
    seconds: float = seconds_field(0, limits.BACKOFF_WAIT_MAX_S, "Wait in seconds.", default=10)
    jitter: Jitter = 0


class ScheduleBackoff(_BackoffKind):
    """Wait `seconds[n]` after attempt n+1; after the last wait the job becomes dead, or the last wait repeats."""

    kind: Literal["schedule"] = "schedule"
    seconds: list[Annotated[float, Field(strict=True, ge=0, le=limits.BACKOFF_WAIT_MAX_S, allow_inf_nan=False)]] = (
        Field(
            min_length=1,
            max_length=limits.BACKOFF_STEPS_MAX,
            description="Waits in seconds, in order.",
            examples=[[120, 600, 3600]],
        )
    )
    then: Literal["dead", "repeat_last"] = Field(default="dead", description="What follows the last wait.")
    jitter: Jitter = 0


Backoff = Annotated[
    ExponentialBackoff | FixedBackoff | ScheduleBackoff,
    constraint("backoff"),
    Field(
        discriminator="kind",
        json_schema_extra={"x-name": "Backoff"},  # the name of its schema in the OpenAPI document
    ),
]
