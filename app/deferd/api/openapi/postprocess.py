"""Tidies the OpenAPI document that FastAPI and pydantic draw, so that people and generated clients read it well."""

from __future__ import annotations

import math
from typing import Any

_NULL = {"type": "null"}
_DATA = frozenset({"example", "examples", "default", "enum", "const"})
_NAMES_BELOW = frozenset({"properties", "schemas"})
_BOUNDS = frozenset({"minimum", "maximum"})
_INT32_MAX = 2**31 - 1
NAME = "x-name"
"""A schema that has this becomes a component of that name: generators make a named type of a component only."""


def tidy(document: dict[str, Any]) -> None:
    """Tidy the whole document in place."""
    schemas: dict[str, Any] = document["components"]["schemas"]
    _tidy_schemas(schemas, names_below=True)
    schemas |= _replace_named_schemas(schemas)
    for schema in schemas.values():
        _widen_integers(schema)
        if schema.get("additionalProperties") is False:
            _describe_defaults(schema)
        else:
            _leave_out_rather_than_null(schema)
    _tidy_schemas(document["paths"], names_below=True)
    for operations in document["paths"].values():
        for operation in operations.values():
            if "requestBody" in operation:
                _tidy_body(operation["requestBody"])
            for parameter in operation.get("parameters", ()):
                _tidy_parameter(parameter)


def _tidy_schemas(node: Any, *, names_below: bool = False) -> None:
    """Go through all schemas below `node`; with `names_below` its keys are names and no keywords."""
    if isinstance(node, list):
        for inner in node:
            _tidy_schemas(inner)
    elif isinstance(node, dict):
        if not names_below:
            _tidy_schema(node)
        for key, inner in node.items():
            if names_below or key not in _DATA:
                _tidy_schemas(inner, names_below=not names_below and key in _NAMES_BELOW)


def _tidy_schema(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("title"), str):
        del schema["title"]  # pydantic makes it of the field's name: it says nothing new
    if "default" in schema and schema["default"] is None:
        del schema["default"]
    for bound in _BOUNDS & schema.keys():
        if isinstance(schema[bound], float) and schema[bound].is_integer():
            schema[bound] = int(schema[bound])
    if schema.get("type") == "number":
        schema["format"] = "double"  # else many generators choose 32 bits
    kind = _other_than_null(schema)
    if kind is not None:  # what is said of the one kind is said of the field
        for key in ("description", "examples"):
            if key in kind:
                schema.setdefault(key, kind[key] if NAME in kind else kind.pop(key))


def _widen_integers(schema: dict[str, Any]) -> None:
    """Give the fields that can be beyond 32 bits, such as counts, a format of 64: many generators choose 32 else."""
    for field in schema.get("properties", {}).values():
        kind = _other_than_null(field) or field
        if kind.get("type") == "integer" and "enum" not in kind and kind.get("maximum", math.inf) > _INT32_MAX:
            kind["format"] = "int64"


def _describe_defaults(schema: dict[str, Any]) -> None:
    """Move the defaults of a request's fields into their descriptions.

    To some generators a field with a `default` is one that is always there, so they require it of requests.
    """
    for field in schema["properties"].values():
        if "default" in field:
            default = field.pop("default")
            shown = f"`{default}`" if isinstance(default, str) else str(default)
            field["description"] = f"{field['description']} Default: {shown}."


def _leave_out_rather_than_null(schema: dict[str, Any]) -> None:
    """An answer has no nulls where a field may be missing: the service leaves the field out."""
    properties: dict[str, Any] = schema.get("properties", {})
    for name in properties.keys() - set(schema.get("required", ())):
        properties[name] = _without_null(properties[name])


def _tidy_body(body: dict[str, Any]) -> None:
    """A body that may be left out is drawn with its fields' nulls as default.

    That it may be `null` is told in words: of a schema that allows null, openapi-python-client makes a function that
    fails when it is called without a body.
    """
    if not body.get("required", False):
        body["description"] = "May be left out, or be `null`, which means the same."
    for content in body["content"].values():
        content["schema"].pop("default", None)


def _tidy_parameter(parameter: dict[str, Any]) -> None:
    """A parameter that may be left out is drawn as one that may be null, which no URL can say."""
    parameter["schema"] = _without_null(parameter["schema"])
    if "description" in parameter:
        parameter["schema"].pop("description", None)  # it stands twice


def _replace_named_schemas(node: Any) -> dict[str, Any]:
    """Put references in the place of all schemas below `node` that have a NAME; the schemas by their names."""
    found: dict[str, Any] = {}
    for key, inner in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        found |= _replace_named_schemas(inner)
        if isinstance(inner, dict) and NAME in inner:
            name = inner.pop(NAME)
            found[name] = inner
            node[key] = {"$ref": f"#/components/schemas/{name}"}
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    kind = _other_than_null(schema)
    if kind is None:
        return schema
    return kind | {key: value for key, value in schema.items() if key != "anyOf"}


def _other_than_null(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The one kind of value that a schema allows besides null; None when it is not of that form."""
    kinds = schema.get("anyOf")
    if not isinstance(kinds, list) or len(kinds) != 2 or _NULL not in kinds:
        return None
    other: dict[str, Any] = kinds[0] if kinds[1] == _NULL else kinds[1]
    return other
