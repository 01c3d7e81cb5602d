"""Changes the OpenAPI document of FastAPI and pydantic so that people and client generators can use it better.

Each step says which generator needs it, of those that `tests/acceptance/api` runs: oapi-codegen for Go,
openapi-typescript and openapi-python-client.
"""

from __future__ import annotations

import math
from typing import Any

_NULL = {"type": "null"}
_DATA = frozenset({"example", "examples", "default", "enum", "const"})
_NAMES_BELOW = frozenset({"properties", "schemas"})
_BOUNDS = frozenset({"minimum", "maximum"})
_INT32_MAX = 2**31 - 1
NAME = "x-name"
"""A schema with this key becomes a component of that name: oapi-codegen makes a type for each use of another one."""


def postprocess(document: dict[str, Any]) -> None:
    """Change the document in place."""
    schemas: dict[str, Any] = document["components"]["schemas"]
    _simplify_schemas(schemas, names_below=True)
    schemas |= _replace_named_schemas(schemas)
    for schema in schemas.values():
        _widen_integers(schema)
        if schema.get("additionalProperties") is False:
            _describe_defaults(schema)
        else:
            _leave_out_rather_than_null(schema)
    _simplify_schemas(document["paths"], names_below=True)
    for operations in document["paths"].values():
        for operation in operations.values():
            if "requestBody" in operation:
                _describe_optional_body(operation["requestBody"])
            for parameter in operation.get("parameters", ()):
                _simplify_parameter(parameter)


def _simplify_schemas(node: Any, *, names_below: bool = False) -> None:
    """Simplify all schemas below `node`; with `names_below` its keys are names, not keywords."""
    if isinstance(node, list):
        for inner in node:
            _simplify_schemas(inner)
    elif isinstance(node, dict):
        if not names_below:
            _simplify_schema(node)
        for key, inner in node.items():
            if names_below or key not in _DATA:
                _simplify_schemas(inner, names_below=not names_below and key in _NAMES_BELOW)


def _simplify_schema(schema: dict[str, Any]) -> None:
    if isinstance(schema.get("title"), str):
        del schema["title"]  # the field's name again, by which openapi-python-client would name types
    if "default" in schema and schema["default"] is None:
        del schema["default"]  # openapi-typescript requires a field that has one
    for bound in _BOUNDS & schema.keys():
        if isinstance(schema[bound], float) and schema[bound].is_integer():
            schema[bound] = int(schema[bound])  # for people: no generator reads it
    if schema.get("type") == "number":
        schema["format"] = "double"  # oapi-codegen assumes 32 bits otherwise
    kind = _other_than_null(schema)
    if kind is not None:
        # Move the texts of the only type to the field: oapi-codegen and openapi-typescript show them only there.
        for key in ("description", "examples"):
            if key in kind:
                schema.setdefault(key, kind[key] if NAME in kind else kind.pop(key))


def _widen_integers(schema: dict[str, Any]) -> None:
    """Give integer fields that can exceed 32 bits the format int64: an `int` of oapi-codegen may have 32."""
    for field in schema.get("properties", {}).values():
        kind = _other_than_null(field) or field
        if kind.get("type") == "integer" and "enum" not in kind and kind.get("maximum", math.inf) > _INT32_MAX:
            kind["format"] = "int64"


def _describe_defaults(schema: dict[str, Any]) -> None:
    """Move the defaults of a request's fields into their descriptions.

    openapi-typescript requires a field with a `default` in requests, since it is always present.
    """
    for field in schema["properties"].values():
        if "default" in field:
            default = field.pop("default")
            shown = f"`{default}`" if isinstance(default, str) else str(default)
            field["description"] = f"{field['description']} Default: {shown}."


def _leave_out_rather_than_null(schema: dict[str, Any]) -> None:
    """Remove null from the optional fields of responses: the service omits such a field.

    With null, openapi-typescript gives it a value that never comes, and oapi-codegen no type for an enum.
    """
    properties: dict[str, Any] = schema.get("properties", {})
    for name in properties.keys() - set(schema.get("required", ())):
        properties[name] = _without_null(properties[name])


def _describe_optional_body(body: dict[str, Any]) -> None:
    """Describe an optional body in words, in place of a default.

    From a schema that allows null, openapi-python-client generates a function that fails without a body.
    """
    if not body.get("required", False):
        body["description"] = "Optional; `null` means the same as no body."
    for content in body["content"].values():
        content["schema"].pop("default", None)


def _simplify_parameter(parameter: dict[str, Any]) -> None:
    """Remove null from the types of an optional parameter: a URL cannot contain it, and oapi-codegen finds no type."""
    parameter["schema"] = _without_null(parameter["schema"])
    if "description" in parameter:
        parameter["schema"].pop("description", None)  # a duplicate


def _replace_named_schemas(node: Any) -> dict[str, Any]:
    """Replace all schemas below `node` that have a NAME by references; return them by name."""
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
    """The type in a schema that allows one type or null; None for other schemas."""
    kinds = schema.get("anyOf")
    if not isinstance(kinds, list) or len(kinds) != 2 or _NULL not in kinds:
        return None
    other: dict[str, Any] = kinds[0] if kinds[1] == _NULL else kinds[1]
    return other
