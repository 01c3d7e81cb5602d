"""JSON responses, made in few steps since this runs for every request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import orjson
from starlette.responses import Response

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
