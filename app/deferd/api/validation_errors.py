"""Errors of pydantic in plain words: one `FieldError` per value, with its path and the bound that it breaks."""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import takewhile
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from deferd.contract import backoff
from deferd.contract.errors import FieldError
from deferd.contract.fields import SECONDS_OF_PUTS
from deferd.contract.pattern_meanings import must_match
from deferd.contract.windows import FORM_TAGS

FIELD_ERRORS_MAX = 1000
_SECONDS = frozenset((*SECONDS_OF_PUTS, "base", "cap", "seconds", "wait", "advance", "by", "every", "per", "timeout"))
_BACKOFF_KINDS = tuple(
    get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(get_args(backoff.Backoff)[0])
)
_OF_KEY = "[key]"
_UNKNOWN_KIND = f"must have a `kind` that is one of {', '.join(_BACKOFF_KINDS)}"
_PLAIN = {
    "missing": "is required",
    "string_type": "must be a string",
    "list_type": "must be a list",
    "model_type": "must be a JSON object",
    "model_attributes_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a whole number of fewer digits",
    "finite_number": "must be a finite number",
    "union_tag_not_found": _UNKNOWN_KIND,
    "union_tag_invalid": _UNKNOWN_KIND,
}
# The words before the bound, where pydantic gives the bound, and the unit when it is always the same.
_WITH_BOUND = {
    "greater_than_equal": ("be at least", "ge", ""),
    "less_than_equal": ("be at most", "le", ""),
    "string_too_long": ("have at most", "max_length", " characters"),
    "too_long": ("have at most", "max_length", " items"),
    "too_short": ("have at least", "min_length", " items"),
}


def field_errors(
    error: ValidationError, root: str, value: Any, shown_fields: Container[str] | None = None
) -> list[FieldError]:
    """The errors in `value`; their paths start with `root`, which is "body", "query" or "path".

    `shown_fields` are the fields whose values the errors quote, where others may hold a secret; None for all.

    More than 1000 errors are reported as one: to list them takes so long that other requests would wait.
    """
    count = error.error_count()
    if count > FIELD_ERRORS_MAX:
        return [FieldError((root,), f"has {count} invalid values, too many to list")]
    return [
        FieldError(
            (root, *_path(detail["loc"] if shown_fields is None else _names(detail["loc"]), value)),
            _message(detail, root),
            _value(detail, shown_fields),
        )
        for detail in error.errors(include_url=False)
    ]


def _path(location: tuple[str | int, ...], value: Any) -> Iterable[str | int]:
    """The location without what pydantic adds and is no field: the tags of the kinds of backoffs and windows, and the
    mark of an error in a key of a dict.
    """
    within: Any = value
    before: str | int | None = None
    for step in location:
        if before == "backoff" and step in _BACKOFF_KINDS and isinstance(within, dict) and step == within.get("kind"):
            before = None
            continue
        if step in FORM_TAGS or step == _OF_KEY:
            continue
        yield step
        before = step
        within = _inside(within, step)


def _names(location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """The location to the first step that is no name: `authorization: Bearer ...` as the name of a header."""
    return tuple(takewhile(lambda step: " " not in str(step), location))


def _inside(value: Any, step: str | int) -> Any:
    if isinstance(value, dict):
        return value.get(step)
    if isinstance(value, list) and isinstance(step, int) and step < len(value):
        return value[step]
    return None


def _value(detail: ErrorDetails, shown_fields: Container[str] | None) -> Any:
    if detail["type"] in ("missing", "value_error") and isinstance(detail["input"], dict | BaseModel):
        return None  # the input is then the object around the field
    if shown_fields is not None and (not detail["loc"] or detail["loc"][0] not in shown_fields):
        return None
    return detail["input"]


def _message(detail: ErrorDetails, root: str) -> str:
    kind, facts = detail["type"], detail.get("ctx", {})
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in _WITH_BOUND:
        words, bound, unit = _WITH_BOUND[kind]
        return f"must {words} {facts[bound]:.15g}{unit or _unit(detail['loc'])}"
    match kind:
        case "float_type" | "float_parsing":
            unit = _unit(detail["loc"])
            return "is too large" if type(detail["input"]) is int else f"must be a number{unit and f' of{unit}'}"
        case "extra_forbidden":
            return "is not a known parameter" if root == "query" else "is not a known field"
        case "string_pattern_mismatch":
            return must_match(facts["pattern"])
        case "literal_error" | "enum":
            return f"must be {facts['expected']}"
        case "value_error":
            return str(facts["error"])
    return detail["msg"]


def _unit(location: tuple[str | int, ...]) -> str:
    named = [step for step in location if isinstance(step, str)]
    return " seconds" if named and named[-1] in _SECONDS else ""
