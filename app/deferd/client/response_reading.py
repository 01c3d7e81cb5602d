"""Reads responses into the structs of `contract.responses`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from pydantic import BaseModel

from deferd.client.json_reading import parsed
from deferd.contract.responses.response import Response

Read = TypeVar("Read", bound=Response)
Value = TypeVar("Value")


def reader_of(struct: type[Read]) -> Callable[[bytes], Read]:
    """What reads a response of this type. It raises ValueError for anything else."""
    decode = msgspec.json.Decoder(struct, dec_hook=_model).decode

    def read(content: bytes) -> Read:
        try:
            return decode(content)
        except (msgspec.MsgspecError, RecursionError):
            return _read_generally(content, struct)

    return read


def _model(model: type[BaseModel], fields: object) -> BaseModel:
    return model.model_validate(fields)


def reader_of_value(struct: type[Read], value_of: Callable[[Read], Value]) -> Callable[[bytes], Value]:
    """What reads a response of this type and returns a part of it."""
    read = reader_of(struct)
    return lambda content: value_of(read(content))


def _read_generally(content: bytes, struct: type[Read]) -> Read:
    """Read also what msgspec refuses in the body of a job: numbers too large for it, and nesting deep in the stack."""
    try:
        return msgspec.convert(parsed(content), struct, dec_hook=_model)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
