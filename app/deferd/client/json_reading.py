"""Reads the JSON of responses."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic_core import from_json

_TOO_DEEP = "recursion limit exceeded"


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
