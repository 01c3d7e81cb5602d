"""Reads responses into the structs of `contract.responses`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel
from pydantic_core import from_json

from deferd.contract.open_enum import later_members
from deferd.contract.responses.response import Response

Read = TypeVar("Read", bound=Response)

_TOO_DEEP = "recursion limit exceeded"


def reader_of(struct: type[Read]) -> Callable[[bytes], Read]:
    """What reads a response of this type. It raises ValueError for anything else."""
    reader: Callable[[bytes], Read] = _reader_of(struct)
    return reader


def read_nothing(content: bytes) -> None:
    """Any JSON."""
    parsed(content)


@cache
def _reader_of(struct: type[Response]) -> Callable[[bytes], Any]:
    decode = msgspec.json.Decoder(struct, dec_hook=_model).decode

    def read(content: bytes) -> Any:
        try:
            return decode(content)
        except (msgspec.MsgspecError, RecursionError):
            return _read_generally(content, struct)

    return read


def _model(model: type[BaseModel], fields: object) -> BaseModel:
    return model.model_validate(fields)


def _read_generally(content: bytes, struct: type[Read]) -> Read:
    """Read also what is unusual: values of later services, and what msgspec refuses in the body of a job.

    Those are numbers too large for it, and nesting deep in the stack.
    """
    try:
        with later_members():
            return msgspec.convert(parsed(content), struct, dec_hook=_model)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def parsed(content: bytes) -> Any:
    """The JSON value of a body, or of a part of one, at any depth.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return from_json(content, cache_strings="keys")
    except ValueError as error:
        if not str(error).startswith(_TOO_DEEP):
            raise
    # A body that was put before there was `limits.VALUE_DEPTH_MAX`: it must not take the jobs beside it along.
    try:
        return msgspec.json.decode(content)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
