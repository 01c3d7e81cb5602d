"""What all responses have in common: how a struct is written as JSON, read and shown.

A field without a default is in every response, as `null` if need be. One with the default None is left out when it has
no value, and one with the default {} when it is empty. The order of the fields is that of the JSON.
A text in `Annotated` is the sentence for OpenAPI and for editors. Values of a closed list are `one_of(...)`, which a
client does not check: it must read the responses of later versions too, as it ignores fields that it does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, cast, get_args

import msgspec
from pydantic import BaseModel

UNLISTED = object()
"""A note to a field that the OpenAPI document does not have in this struct."""
PROBLEM_CODE = msgspec.Meta(description="The kind of error, for programs to decide by. Codes never change.")
ProblemCode = Annotated[str, PROBLEM_CODE]
"""One of the codes of `api.problem_details`."""


class Response(msgspec.Struct, frozen=True, omit_defaults=True, repr_omit_defaults=True):
    """A JSON object of a response.

    `schema_name`: that in OpenAPI, unless it is the name of the type. `schema_examples`: its examples there, as JSON.
    `grows`: the OpenAPI document tells generators to expect more fields.
    """

    schema_name: ClassVar[str] = ""
    schema_examples: ClassVar[Sequence[dict[str, Any]]] = ()
    grows: ClassVar[bool] = False

    @property
    def fields(self) -> dict[str, Any]:
        """The object as JSON has it: instants as text, without the fields that are left out."""
        return cast("dict[str, Any]", as_json(self))


def one_of(*values: str | int) -> msgspec.Meta:
    """Describes a field whose value is one of these."""
    return msgspec.Meta(extra_json_schema={"enum": list(values)})


def shown_as(kind: Any) -> msgspec.Meta:
    """Describes a field that OpenAPI shows as another type, because the client does not check its content."""
    return msgspec.Meta(extra={"shown_as": kind})


def as_json(value: Any) -> Any:
    """A field's value in the types of JSON; numbers as people write them, 60 for 60.0.

    The values in a dictionary are JSON already.
    """
    match value:
        case Response():
            return _members(value)
        case BaseModel():
            return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
        case datetime():
            timespec = "microseconds" if value.microsecond % 1000 else "milliseconds"
            return value.isoformat(timespec=timespec).replace("+00:00", "Z")
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


def _members(response: Response) -> dict[str, Any]:
    members = {}
    for name, shown_name, default, is_json in _fields_of(type(response)):
        value = getattr(response, name)
        if value is not default and value != default:
            members[shown_name] = value if is_json else as_json(value)
    return members


@cache
def _fields_of(struct: type[Response]) -> list[tuple[str, str, Any, bool]]:
    """For each field its name, its name in JSON, its default, and whether it can hold any value of a client's JSON."""
    return [
        (
            field.name,
            field.encode_name,
            field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory(),
            Any in {field.type, *get_args(field.type)[:1]},
        )
        for field in msgspec.structs.fields(struct)
    ]
