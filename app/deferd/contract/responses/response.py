"""What all responses have in common: how a struct is written as JSON, read and shown.

A field without a default is in every response, as `null` if need be. One with the default None is left out when it has
no value, and one with the default {} when it is empty. The order of the fields is that of the JSON.
`Meta(description=...)` is the sentence for OpenAPI and for editors; values of a closed list are `one_of(...)`, which a
client does not check: it must read the responses of later versions too, as it ignores fields that it does not know.
"""

from __future__ import annotations

from datetime import datetime
from enum import Enum
from typing import Any, ClassVar, cast

import msgspec
from pydantic import BaseModel


class Response(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """A JSON object of a response. `schema_name`: that in OpenAPI, unless it is the name of the type."""

    schema_name: ClassVar[str] = ""

    @property
    def fields(self) -> dict[str, Any]:
        """The object as JSON has it: instants as text, without the fields that are left out."""
        return cast("dict[str, Any]", as_json(self))


def one_of(*values: str | int, description: str) -> msgspec.Meta:
    """Describes a field whose value is one of these."""
    return msgspec.Meta(description=description or None, extra_json_schema={"enum": list(values)})


def shown_as(kind: Any, description: str = "") -> msgspec.Meta:
    """Describes a field that OpenAPI shows as another type, because the client does not check what is in it."""
    return msgspec.Meta(description=description or None, extra={"shown_as": kind})


def as_json(value: Any) -> Any:
    """A field's value in the types of JSON; numbers as people write them, 60 for 60.0.

    The values in a dictionary are JSON already.
    """
    match value:
        case Response():
            found = ((field, getattr(value, field.name)) for field in msgspec.structs.fields(value))
            return {
                field.encode_name: as_json(inner)
                for field, inner in found
                if inner is not field.default and (inner or field.default_factory is msgspec.NODEFAULT)
            }
        case BaseModel():
            return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
        case datetime():
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case Enum():
            return value.value
        case float() if value.is_integer():
            return int(value)
        case list() | tuple():
            return [as_json(inner) for inner in value]
        case dict():
            return {as_json(name): inner for name, inner in value.items()}
        case _:
            return value
