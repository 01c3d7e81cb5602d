"""Forms whose fields are those of a request of the API: their text becomes JSON, and errors come back to the fields."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import orjson
from pydantic import BaseModel, ValidationError

from deferd.api.validation_errors import field_errors
from deferd.console.api_calls import ApiRefused
from deferd.console.json_text import compact, parse
from deferd.contract.durations import parse_duration
from deferd.contract.fields import Field, Kind
from deferd.contract.json_values import is_number

_NOT_VALID = 422
_INDEX = re.compile(r"\[(\d+)\]")
_ROOTS = frozenset({"body", "path", "query"})
GROUP_HINT = "such as a customer; the groups of a topic take turns; empty: none"
PRIORITY_HINT = "0 to 9; a higher one is handed out first; empty: 0"
_NO_NUMBER = "must be a number"
_NO_JSON = "is not JSON"


def read_number(text: str) -> int | float:
    """A number of JSON. Raises ValueError."""
    if not is_number(text) or not math.isfinite(number := float(text)):
        raise ValueError(_NO_NUMBER)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def read_seconds(text: str) -> int | float:
    """A number of seconds, or a duration such as `1h30m`. Raises ValueError."""
    if is_number(text):
        return read_number(text)
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ValueError(str(error)) from None


def read_json(text: str) -> Any:
    """A value of JSON for a setting. Raises ValueError also for one that is too deep, or has longer integers."""
    try:
        value = json.loads(text)
        orjson.dumps(value)
    except (ValueError, RecursionError, TypeError):
        raise ValueError(_NO_JSON) from None
    return value


def read_exact_json(text: str) -> orjson.Fragment:
    """JSON that people put, with its numbers as they were typed. Raises ValueError."""
    try:
        return orjson.Fragment(compact(parse(text)).encode())
    except ValueError as error:
        raise ValueError(f"{_NO_JSON}: {error}") from None


def read_window(text: str) -> Any:
    """Opening hours as JSON, or the name of a calendar. Raises ValueError."""
    return read_json(text) if text.startswith(("{", "[", '"')) else text


def read_list(text: str) -> list[str]:
    """Texts with commas or line breaks between them."""
    return [one for one in (part.strip() for part in re.split(r"[,\n]", text)) if one]


def text_of(value: Any) -> str:
    """The text of a value; '' for none."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def comma_separated(values: Iterable[str]) -> str:
    """What `read_list` reads."""
    return ", ".join(values)


class FormField(NamedTuple):
    """A field of a form. `name` is its path in the body of the request, with dots.

    `read` makes the value of a text that is not empty, or raises ValueError with what is wrong; `write` is its inverse.
    `options` of a `select` are values and their texts.
    """

    name: str
    label: str
    hint: str = ""
    read: Callable[[str], Any] = str
    write: Callable[[Any], str] = text_of
    control: Literal["input", "number", "textarea", "select"] = "input"
    options: tuple[tuple[str, str], ...] = ()


_READERS: Mapping[Kind, Callable[[str], Any]] = {
    Kind.SECONDS: read_seconds,
    Kind.COUNT: read_number,
    Kind.BACKOFF: read_json,
    Kind.WINDOW: read_window,
    Kind.TEXT: str,
    Kind.DURABILITY: str,
    Kind.ON_END: read_json,
    Kind.LIMITS: read_json,
}


def setting(field: Field) -> FormField:
    """The field for a setting of a topic. Empty, it has the default of the service."""
    control: Literal["input", "number"] = "number" if field.kind is Kind.COUNT else "input"
    return FormField(field.name, field.label, field.hint, _READERS[field.kind], control=control)


def without_empty(field: FormField) -> FormField:
    """The field without what its hint says of an empty one, for a form in which that means something else."""
    return field._replace(hint=field.hint.partition("empty:")[0].rstrip(" ;"))


def option_of_job(field: Field, prefix: str = "") -> FormField:
    """The field for an option of a job. Empty, it is as the topic says; `none` is null, also if the topic has one."""
    shown = without_empty(setting(field))
    if not field.null_is_none:
        return shown._replace(name=prefix + field.name)
    return shown._replace(
        name=prefix + field.name,
        read=lambda text: None if text == _NONE else shown.read(text),
        write=lambda value: _NONE if value is None else text_of(value),
        control="input",
    )


_NONE = "none"


class ShownField(NamedTuple):
    """A field as a page shows it, with its text and its error."""

    name: str
    label: str
    hint: str
    control: str
    options: tuple[tuple[str, str], ...]
    value: str
    error: str | None


class Problem(NamedTuple):
    """An error for the list above the form: of the field `name`, None without one; `of` is what it is about."""

    name: str | None
    of: str
    text: str


class Form:
    """The fields with their texts, and with what is wrong with them."""

    def __init__(self, fields: Iterable[FormField], texts: Mapping[str, str]) -> None:
        self._fields = {field.name: field for field in fields}
        self.texts = texts
        self.errors: dict[str, str] = {}
        """By the name of a field, or by the path of a value that has none; '' for the whole form."""

    @classmethod
    def of_stored(cls, fields: Iterable[FormField], stored: Mapping[str, Any]) -> Form:
        """A form with the values that the API returned."""
        fields = tuple(fields)
        found = ((field, _at_path(stored, field.name)) for field in fields)
        return cls(fields, {field.name: field.write(values[0]) for field, values in found if values})

    def empty(self) -> Form:
        """The same fields without texts and errors."""
        return Form(self._fields.values(), {})

    def body(self) -> dict[str, Any]:
        """The JSON of the fields that have a text. Notes an error for each that can't be read."""
        body: dict[str, Any] = {}
        for field in self._fields.values():
            text = self.texts.get(field.name, "").strip()
            if not text:
                continue
            try:
                value = field.read(text)
            except ValueError as error:
                self.add_error(field.name, str(error))
                continue
            *above, last = field.name.split(".")
            inside = body
            for step in above:
                inside = inside.setdefault(step, {})
            inside[last] = value
        return body

    def unshown(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """The members of what is stored that have no field, which the form leaves as they are."""
        shown = {name.partition(".")[0] for name in self._fields}
        return {name: value for name, value in stored.items() if name not in shown}

    def check(self, model: type[BaseModel], body: Mapping[str, Any]) -> None:
        """Note what the API would refuse, so that people see it beside the text that can't be read."""
        values = _without_fragments(body)
        is_whole = not self.errors
        try:
            model.model_validate(values)
        except ValidationError as error:
            for found in field_errors(error, "body", values):
                if is_whole or len(found.path) > 1:  # what is said of the whole may be due to what could not be read
                    self.add_error(".".join(map(str, found.path[1:])), found.message)

    def add_refusal(self, refused: ApiRefused) -> None:
        """Note what the API refused. Raises the refusal if it is not about values."""
        if refused.status != _NOT_VALID:
            raise refused
        for error in refused.problem.get("errors", []):
            root, _, path = _INDEX.sub(r".\1", error["field"]).partition(".")
            self.add_error(path if root in _ROOTS else f"{root}.{path}", error["message"])
        if not self.errors:
            self.add_error("", str(refused.problem.get("detail", "The values were refused.")))

    def add_error(self, path: str, text: str) -> None:
        """Note an error of the value at a path: at its field, at the one around it, or at the first within it."""
        name, inner = path, ""
        while name not in self._fields and name:
            name, _, step = name.rpartition(".")
            inner = f"{step}.{inner}" if inner else step
        if name:
            text = f"{_place(inner)} {text}".strip()
        else:  # of several fields of one value the first, or none at all
            name = next((one for one in self._fields if path and one.startswith(f"{path}.")), path)
        self.errors[name] = f"{self.errors[name]}; {text}" if name in self.errors else text

    def shown(self, *names: str) -> list[ShownField]:
        """These fields as the page shows them; all without names."""
        return [
            ShownField(
                *(field.name, field.label, field.hint, field.control, field.options),
                self.texts.get(field.name, ""),
                self.errors.get(field.name),
            )
            for field in (map(self._fields.__getitem__, names) if names else self._fields.values())
        ]

    @property
    def problems(self) -> Iterator[Problem]:
        """All errors, in the order of the fields, then those without one."""
        for field in self._fields.values():
            if field.name in self.errors:
                yield Problem(field.name, field.label, self.errors[field.name])
        for path, text in self.errors.items():
            if path not in self._fields:
                yield Problem(None, path, text)

    @property
    def first_error(self) -> str | None:
        """The name of the first field with an error."""
        return next((name for name in self._fields if name in self.errors), None)


def _at_path(stored: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """The value in a tuple; an empty one if there is none."""
    value: Any = stored
    for step in name.split("."):
        if not isinstance(value, Mapping) or step not in value:
            return ()
        value = value[step]
    return (value,)


def _without_fragments(value: Any) -> Any:
    """The values, with null for JSON that was only checked to be JSON."""
    if isinstance(value, dict):
        return {name: _without_fragments(inner) for name, inner in value.items()}
    return None if isinstance(value, orjson.Fragment) else value


def _place(inner: str) -> str:
    """Where in a field: `0` is the first of several."""
    first, _, rest = inner.partition(".")
    return f"number {int(first) + 1} {rest}".strip() if first.isdecimal() else inner
