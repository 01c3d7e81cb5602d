"""Tidies the OpenAPI document that FastAPI and pydantic draw, so that people and generated clients read it well."""

from __future__ import annotations

from typing import Any

_NULL = {"type": "null"}
_DATA = frozenset({"example", "examples", "default", "enum", "const"})
_NAMES_BELOW = frozenset({"properties", "schemas"})
_BOUNDS = frozenset({"minimum", "maximum"})


def tidy(document: dict[str, Any]) -> None:
    """Tidy the whole document in place."""
    _tidy_schemas(document["components"]["schemas"], names_below=True)
    for schema in document["components"]["schemas"].values():
        if schema.get("additionalProperties") is not False:
            _leave_out_rather_than_null(schema)
    _tidy_schemas(document["paths"], names_below=True)
    for operations in document["paths"].values():
        for operation in operations.values():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                # A default body is drawn as its fields' nulls; what it means is that the body may be left out.
                content["schema"].pop("default", None)
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
    kind = _other_than_null(schema)
    if kind is not None:  # what is said of the one kind is said of the field
        for key in ("description", "examples"):
            if key in kind:
                schema.setdefault(key, kind.pop(key))


def _leave_out_rather_than_null(schema: dict[str, Any]) -> None:
    """An answer has no nulls where a field may be missing: the service leaves the field out."""
    properties: dict[str, Any] = schema.get("properties", {})
    for name in properties.keys() - set(schema.get("required", ())):
        properties[name] = _without_null(properties[name])


def _tidy_parameter(parameter: dict[str, Any]) -> None:
    """A parameter that may be left out is drawn as one that may be null, which no URL can say."""
    parameter["schema"] = _without_null(parameter["schema"])
    if "description" in parameter:
        parameter["schema"].pop("description", None)  # it stands twice


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
