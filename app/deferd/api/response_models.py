"""The responses of the contract as pydantic models, from which FastAPI makes the schemas of the OpenAPI document."""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.fields import FieldInfo

from deferd.api.problem_details import BY_CODE
from deferd.contract.responses.response import PROBLEM_CODE, UNLISTED, Response


@cache
def model_of(struct: type[Response]) -> type[BaseModel]:
    """The model with the fields of a response, for its schema."""
    hints = get_type_hints(struct, include_extras=True)
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(struct):
        hint = hints[field.name]
        if UNLISTED not in get_args(hint):
            fields[field.encode_name] = (_modelled(hint), ... if field.required else None)
    config = ConfigDict(extra="allow") if struct.grows else None
    model: type[BaseModel] = create_model(
        struct.schema_name or struct.__name__,
        __doc__=struct.__doc__,
        __module__=__name__,
        __config__=config,
        **fields,
    )
    return model


def _modelled(hint: Any) -> Any:
    """A type with models in place of the responses in it."""
    if isinstance(hint, type) and issubclass(hint, Response):
        return model_of(hint)
    origin = get_origin(hint)
    if origin is None or origin is Literal:
        return hint
    if origin is Annotated:
        bare, *notes = get_args(hint)
        shown = [note.extra["shown_as"] for note in notes if isinstance(note, msgspec.Meta) and note.extra]
        return Annotated[_modelled(shown[0] if shown else bare), *map(_described, notes)]
    inner = tuple(map(_modelled, get_args(hint)))
    return reduce(or_, inner) if origin in {UnionType, Union} else origin[inner]


def _described(note: Any) -> Any:
    if isinstance(note, str):
        return Field(description=note)
    if not isinstance(note, msgspec.Meta):
        return note
    extra = note.extra_json_schema
    if note is PROBLEM_CODE:
        extra = {"enum": sorted(BY_CODE), "x-name": "ProblemCode"}
    given: dict[str, Any] = {"description": note.description, "examples": note.examples, "json_schema_extra": extra}
    field: FieldInfo = Field(**{name: value for name, value in given.items() if value is not None})
    return field
