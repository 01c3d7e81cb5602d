"""The stream of events from the API as the Events page reads it."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from deferd.console.masks import Masks

_STREAM_S = 60.0
"""The browser connects again then, and goes on where it was: so a stream ends soon after its session."""


class LiveEvents(Response):
    """A stream of Server-Sent Events that ends after a minute, as if the browser had disconnected.

    It has no values that `masks` hide. Each piece of the stream has whole messages.
    """

    def __init__(self, stream: Response, masks: Masks) -> None:
        super().__init__()
        self.raw_headers = stream.raw_headers
        self._stream = stream
        self._masks = masks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream until there is an end."""
        ends_s = asyncio.get_running_loop().time() + _STREAM_S

        async def receive_until_end() -> Message:
            try:
                async with asyncio.timeout_at(ends_s):
                    return await receive()
            except TimeoutError:
                return {"type": "http.disconnect"}

        async def send_masked(message: Message) -> None:
            piece = message.get("body", b"")
            if piece:
                message = {**message, "body": b"\n".join(map(self._masked, piece.split(b"\n")))}
            await send(message)

        await self._stream(scope, receive_until_end, send_masked if self._masks else send)

    def _masked(self, line: bytes) -> bytes:
        data = line.removeprefix(b"data: ")
        return line if data == line else b"data: " + self._masks.response(data)
