"""The query of a request, read into the model of its parameters."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError

from deferd.api.validation_errors import field_errors
from deferd.contract.errors import FieldError
from deferd.contract.json_values import is_number, is_whole_number

_Parameters = TypeVar("_Parameters", bound=BaseModel)
_PARAMETERS_MAX = 100
_FORMS = {
    "integer": (is_whole_number, "must be a whole number"),
    "number": (is_number, "must be a number"),
}


def read(query: bytes, model: type[_Parameters], errors: list[FieldError]) -> _Parameters | None:
    """The parameters; None when `errors` were found. Numbers must have the form of numbers in JSON."""
    errors_before = len(errors)
    values = _values(query, errors)
    parameters = None
    try:
        parameters = model.model_validate_strings(values)
    except ValidationError as error:
        errors.extend(field_errors(error, "query", values))
    refused = {error.path[-1] for error in errors}
    for name, (has_form, message) in _forms(model).items():
        if name in values and name not in refused and not has_form(values[name]):
            errors.append(FieldError(("query", name), message, values[name]))
    return parameters if len(errors) == errors_before else None


def refuse_parameters(query: bytes, errors: list[FieldError]) -> None:
    """Add an error for each parameter: the operation has none."""
    errors.extend(FieldError(("query", name), "is not a known parameter") for name in _values(query, errors))


@cache
def _forms(model: type[BaseModel]) -> dict[str, tuple[Any, str]]:
    """The form of each parameter that is a number, by its schema."""
    return {
        name: _FORMS[part["type"]]
        for name, schema in model.model_json_schema()["properties"].items()
        for part in (schema, *schema.get("anyOf", ()))
        if part.get("type") in _FORMS
    }


def _values(query: bytes, errors: list[FieldError]) -> dict[str, str]:
    """The parameters by name. A repeated one, or one that is not UTF-8, is an error."""
    values: dict[str, str] = {}
    if not query:
        return values
    try:
        pairs = parse_qsl(
            query.decode("latin-1"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_PARAMETERS_MAX,
        )
    except UnicodeDecodeError:
        errors.append(FieldError(("query",), "must be UTF-8"))
        return values
    except ValueError:
        errors.append(FieldError(("query",), f"must have at most {_PARAMETERS_MAX} parameters"))
        return values
    for name, value in pairs:
        if name in values:
            errors.append(FieldError(("query", name), "is given more than once", value))
        values[name] = value
    return values
