"""What the models check of a field: the bounds of `contract.fields`, as pydantic has them."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from deferd.contract.fields import POLICY, Kind

_BY_NAME = {field.name: field for field in POLICY}


def seconds_field(low: float, high: float, text: str, **options: Any) -> Any:
    """A field for a duration in seconds from `low` to `high`."""
    return Field(strict=True, ge=low, le=high, allow_inf_nan=False, description=text, **options)


def constraint(name: str) -> Any:
    """The bounds and the description of a field of the policy."""
    field = _BY_NAME[name]
    match field.kind:
        case Kind.SECONDS:
            return seconds_field(field.low, field.high, field.about)
        case Kind.COUNT:
            return Field(strict=True, ge=int(field.low), le=int(field.high), description=field.about)
        case Kind.TEXT:
            return Field(min_length=int(field.low), max_length=int(field.high), description=field.about)
    return Field(description=field.about)
