"""Reads responses into the structs of `contract.responses`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec
from pydantic import BaseModel

from deferd.contract.responses.response import Response

Read = TypeVar("Read", bound=Response)


def reader_of(struct: type[Read]) -> Callable[[bytes], Read]:
    """What reads a response of this type. It raises ValueError for anything else."""
    decode = msgspec.json.Decoder(struct, dec_hook=_model).decode

    def read(content: bytes) -> Read:
        try:
            return decode(content)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(str(error)) from None

    return read


def _model(model: type[BaseModel], fields: object) -> BaseModel:
    return model.model_validate(fields)
