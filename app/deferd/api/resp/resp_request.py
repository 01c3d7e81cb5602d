"""A command as a request of an operation."""

from __future__ import annotations

from deferd.api.incoming_request import Headers, IncomingRequest, host_of
from deferd.api.metrics import RESP_METHOD


class RespRequest(IncomingRequest):
    """`body` is JSON, `query` encoded as in a URL."""

    __slots__ = ("_body", "_client")

    def __init__(
        self,
        path_values: dict[str, str],
        query: bytes,
        body: bytes,
        headers: Headers,
        client: tuple[str, int] | None,
    ) -> None:
        super().__init__(RESP_METHOD, path_values, query, headers)
        self._body = body
        self._client = client

    def client_address(self) -> str | None:
        """See IncomingRequest."""
        return host_of(self._client)

    async def read_body(self) -> bytes:
        """See IncomingRequest."""
        return self._body
