"""The form of a topic's settings: text of fields to and from the JSON of the API, which checks the values."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from deferd.contract.json_numbers import is_number


class Field(NamedTuple):
    """A setting: its name in the API, what people read, and an example; `kind` is how the text becomes JSON."""

    name: str
    label: str
    hint: str
    kind: str = "number"


class ShownField(NamedTuple):
    """A field with its text and error."""

    name: str
    label: str
    hint: str
    kind: str
    value: str
    error: str | None


FIELDS = (
    Field("ttr", "Time to run, seconds", "length of a lease; default 60"),
    Field("max_attempts", "Attempts at most", "then the job is dead; empty: no limit"),
    Field("backoff", "Backoff", 'JSON, such as {"kind": "fixed", "seconds": 10}', "json"),
    Field("ttl", "Time to live, seconds", "not delivered by then: dead"),
    Field("deadline", "Deadline, seconds", "not finished by then: dead"),
    Field("time_limit", "Time limit, seconds", "of one attempt, touches included"),
    Field("retain", "Keep finished jobs, seconds", "default 0: not kept"),
    Field("dead_retain", "Keep dead jobs, seconds", "empty: as the service does"),
    Field("window", "Window", 'a calendar such as "office", or JSON', "json"),
    Field("spread", "Spread, seconds", "due times are moved by up to this"),
    Field("max_jobs", "Live jobs at most", "further puts are refused; empty: no limit"),
    Field("events", "Events to keep", "0 to 10,000; default 0: none"),
    Field("partitions", "Partitions", "a whole number to 64; may grow, not shrink; empty: as it is"),
    Field("durability", "Durability", "memory, fsync or replicated:N; empty: the store's", "text"),
)


def field_values(settings: Mapping[str, Any]) -> dict[str, str]:
    """The text of each field for the settings that the API returned."""
    return {field.name: _text(settings.get(field.name)) for field in FIELDS}


def fields_of(values: Mapping[str, str], errors: Mapping[str, str]) -> list[ShownField]:
    """The fields as the page shows them."""
    return [ShownField(*field, values.get(field.name, ""), errors.get(field.name)) for field in FIELDS]


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
            errors[field.name] = "must be a number" if field.kind == "number" else "is not JSON"
    return settings, errors


def unknown_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the form has no field for: it leaves them as they are."""
    names = {field.name for field in FIELDS}
    return {name: value for name, value in settings.items() if name not in names}


def _value(field: Field, text: str) -> Any:
    match field.kind:
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
