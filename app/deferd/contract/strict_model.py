"""What the models of requests are built from: their base, and the bounds of their fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from deferd.contract.fields import POLICY, TOPIC, Kind


class StrictModel(BaseModel):
    """Refuses fields that it does not know, and does not change.

    `schema_examples`: its examples in OpenAPI, as JSON.
    """

    schema_examples: ClassVar[Sequence[dict[str, Any]]] = ()

    model_config = ConfigDict(extra="forbid", frozen=True)


_BY_NAME = {field.name: field for field in (*POLICY, *TOPIC)}


def seconds_field(low: float, high: float, text: str, **options: Any) -> Any:
    """A field for a duration in seconds from `low` to `high`."""
    return Field(strict=True, ge=low, le=high, allow_inf_nan=False, description=text, **options)


def constraint(name: str, **options: Any) -> Any:
    """The bounds and the description of a field. `options` are passed to pydantic."""
    field = _BY_NAME[name]
    match field.kind:
        case Kind.SECONDS:
            return seconds_field(field.low, field.high, field.about, **options)
        case Kind.COUNT:
            return Field(strict=True, ge=int(field.low), le=int(field.high), description=field.about, **options)
        case Kind.TEXT:
            return Field(min_length=int(field.low), max_length=int(field.high), description=field.about, **options)
    return Field(description=field.about, **options)
