"""How the store holds the values of the policy's fields, in jobs and in the settings of topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

from deferd.contract.fields import POLICY, Field, Kind
from deferd.contract.model import JobPolicy
from deferd.contract.windows import read_window, window_text
from deferd.store.durability_levels import level_named, name_of


def to_ms(seconds: float) -> int:
    """Convert seconds to the nearest whole millisecond."""
    return round(seconds * 1000)


_TO_STORE: dict[Kind, Callable[[Any], Any]] = {
    Kind.SECONDS: to_ms,
    Kind.COUNT: int,
    Kind.BACKOFF: BaseModel.model_dump,
    Kind.WINDOW: window_text,
    Kind.TEXT: str,
    Kind.DURABILITY: level_named,
}
_NONE = {Kind.SECONDS: 0, Kind.COUNT: 0, Kind.WINDOW: "", Kind.TEXT: ""}
"""What stands for null."""
_FROM_STORE: dict[Kind, Callable[[Any], Any]] = {
    Kind.SECONDS: lambda ms: ms / 1000,
    Kind.WINDOW: read_window,
    Kind.DURABILITY: name_of,
}


def to_store(field: Field, value: Any) -> Any:
    """A value of a model; None is null."""
    return _NONE[field.kind] if value is None else _TO_STORE[field.kind](value)


def from_store(field: Field, stored: Any) -> Any:
    """The value for the field of a model. None: null."""
    if field.null_is_none and field.kind in _NONE and stored == _NONE[field.kind]:
        return None
    read = _FROM_STORE.get(field.kind)
    return stored if read is None else read(stored)


def policy_extra(policy: JobPolicy) -> dict[str, Any]:
    """The fields that are set in `policy`, by their keys. Null counts only where it is a value."""
    extra: dict[str, Any] = {}
    for field in POLICY:
        value = getattr(policy, field.name)
        if value is not None or (field.null_is_none and field.name in policy.model_fields_set):
            extra[field.key] = to_store(field, value)
    return extra
