"""A ResponseStream on an event loop."""

from __future__ import annotations

import asyncio
import ssl

from deferd.client.addresses import Endpoint
from deferd.client.async_connection import connected_socket, encryption
from deferd.client.http1 import HttpResponse
from deferd.client.response_stream import ServerSentEvent, StreamParser

_READ_BYTES = 65_536


class AsyncStream:
    """A connection of its own for one response."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._parser = StreamParser()

    @classmethod
    async def open(cls, endpoint: Endpoint, tls: ssl.SSLContext | None) -> AsyncStream:
        """Connect. Raises OSError, MalformedResponse."""
        connected = await connected_socket(endpoint)
        try:
            return cls(*await asyncio.open_connection(sock=connected, **encryption(endpoint, tls)))
        except BaseException:
            connected.close()
            raise

    async def begin(self, message: bytes) -> HttpResponse | None:
        """Send the request; returns the response if that is no stream. Raises OSError, MalformedResponse."""
        self._writer.write(message)
        while not self._parser.has_begun and self._parser.refusal is None:
            self._parser.receive(await self._reader.read(_READ_BYTES))
        return self._parser.refusal

    async def read(self, wait_s: float) -> list[ServerSentEvent]:
        """See ResponseStream."""
        messages = self._parser.messages()
        if not messages:
            async with asyncio.timeout(wait_s):
                self._parser.receive(await self._reader.read(_READ_BYTES))
            messages = self._parser.messages()
        return messages

    async def close(self) -> None:
        """See ResponseStream."""
        self._writer.transport.abort()
