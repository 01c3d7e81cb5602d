"""JSON responses, made in few steps since this runs for every request, and the values in them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
import orjson
from starlette.responses import Response

from deferd.contract.timestamps import instant, instant_text

Header = tuple[bytes, bytes]
_JSON = b"application/json"


class JsonResponse(Response):
    """A JSON response. `content` is a response of the contract, what orjson can write, or JSON as bytes."""

    media_type = "application/json"

    def __init__(
        self,
        content: Any,
        status_code: int = 200,
        headers: Iterable[Header] = (),
        content_type: bytes = _JSON,
    ) -> None:
        # Response.__init__ is not called: it takes longer than everything else here together.
        self.status_code = status_code
        self.background = None
        if isinstance(content, msgspec.Struct):
            content = encode(content)
        self.body = content if isinstance(content, bytes) else orjson.dumps(content)
        self.raw_headers = [
            (b"content-type", content_type),
            (b"content-length", b"%d" % len(self.body)),
            *headers,
        ]


encode = msgspec.json.Encoder().encode
"""A response of the contract as JSON."""


__all__ = ["instant", "instant_or_none", "instant_text", "seconds", "whole"]


def instant_or_none(at_ms: int | None) -> datetime | None:
    """`instant`; None if there is none."""
    return None if at_ms is None else instant(at_ms)


def seconds(duration_ms: int) -> int | float:
    """Milliseconds as seconds; a whole number of seconds has no decimals."""
    return duration_ms / 1000 if duration_ms % 1000 else duration_ms // 1000


def whole(value: Any) -> Any:
    """60 for 60.0, as people write it, also in lists and objects."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list() | tuple():
            return [whole(inner) for inner in value]
        case dict():
            return {name: whole(inner) for name, inner in value.items()}
        case _:
            return value
