"""Pydantic fields that are command-line flags: one declaration gives bounds, help and error text."""

from __future__ import annotations

from typing import Any

from pydantic import Field
from pydantic.fields import FieldInfo

_SHOWN_CHARACTERS = 100


def whole_number(default: int | None, low: int, high: int, text: str, more: str = "") -> Any:
    """A field for an integer from `low` to `high`, described by `text`, the range and the sentences `more`."""
    return Field(default, ge=low, le=high, description=_describe(text, low, high, more))


def number(default: float | None, low: float, high: float, text: str, more: str = "") -> Any:
    """As `whole_number`, for a finite number."""
    return Field(default, ge=low, le=high, allow_inf_nan=False, description=_describe(text, low, high, more))


def _describe(text: str, low: float, high: float, more: str) -> str:
    return f"{text}, {plain(low)} to {plain(high)}. {more}".strip()


def plain(number: float) -> str:
    """The number as people write it: 60, 0.1."""
    return str(int(number)) if float(number).is_integer() else str(number)


def flag(name: str) -> str:
    """The command-line flag of a field."""
    return "--" + name.replace("_", "-")


def accepted_numbers(field: FieldInfo) -> str | None:
    """``a whole number from 0 to 65535``; None for a field without bounds."""
    low = next((bound.ge for bound in field.metadata if hasattr(bound, "ge")), None)
    high = next((bound.le for bound in field.metadata if hasattr(bound, "le")), None)
    if low is None or high is None:
        return None
    is_whole = field.annotation in {int, int | None}
    return f"a {'whole number' if is_whole else 'number'} from {plain(low)} to {plain(high)}"


def quoted(value: object) -> str:
    """A refused value for an error text, cut to 100 characters."""
    return repr(str(value)[:_SHOWN_CHARACTERS])
