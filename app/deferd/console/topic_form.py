"""The form of a topic's settings: text of fields to and from the JSON of the API, which checks the values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from deferd.contract.fields import POLICY, TOPIC, Field, Kind
from deferd.contract.json_numbers import is_number


class ShownField(NamedTuple):
    """A setting as the form shows it: its name in the API, what people read, an example, its text and its error."""

    name: str
    label: str
    hint: str
    kind: str
    value: str
    error: str | None


FIELDS = (*POLICY, *TOPIC)
_FORM_KINDS = {Kind.BACKOFF: "json", Kind.WINDOW: "json", Kind.TEXT: "text", Kind.DURABILITY: "text"}
"""How the text becomes JSON, if not as a number."""


def field_values(settings: Mapping[str, Any]) -> dict[str, str]:
    """The text of each field for the settings that the API returned."""
    return {field.name: _text(settings.get(field.name)) for field in FIELDS}


def fields_of(values: Mapping[str, str], errors: Mapping[str, str]) -> list[ShownField]:
    """The fields as the page shows them."""
    return [
        ShownField(
            *(field.name, field.label, field.hint, _kind(field)), values.get(field.name, ""), errors.get(field.name)
        )
        for field in FIELDS
    ]


def _kind(field: Field) -> str:
    return _FORM_KINDS.get(field.kind, "number")


def settings_of(form: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings for the API from the text of the fields, and by field the errors of text that cannot be read."""
    settings: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for field in FIELDS:
        text = form.get(field.name, "").strip()
        if not text:
            continue
        try:
            settings[field.name] = _value(field, text)
        except ValueError:
            errors[field.name] = "must be a number" if _kind(field) == "number" else "is not JSON"
    return settings, errors


def unknown_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without a field in the form, which it leaves as they are."""
    names = {field.name for field in FIELDS}
    return {name: value for name, value in settings.items() if name not in names}


def _value(field: Field, text: str) -> Any:
    match _kind(field):
        case "text":
            return text
        case "json" if not text.startswith(("{", "[", '"')):
            return text  # the name of a calendar
        case "json":
            return _sendable(text)
    if not is_number(text) or not math.isfinite(number := float(text)):
        raise ValueError(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _sendable(text: str) -> Any:
    """The value. Raises ValueError also for what can't be sent: too deep, or integers of more than 64 bits."""
    try:
        value = json.loads(text)
        orjson.dumps(value)
    except (RecursionError, TypeError) as error:
        raise ValueError(str(error)) from None
    return value


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
