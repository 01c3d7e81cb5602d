"""A request that takes the fast path of `fast_path`, without ASGI."""

from __future__ import annotations

import asyncio

from deferd.api.incoming_request import IncomingRequest, host_of
from deferd.api.operation import OperationRoute
from deferd.api.request_body import check_media_type


class FastPathRequest(IncomingRequest):
    """A plain request to an operation, which is handled once all of it has come."""

    __slots__ = ("body", "body_length", "client", "keep_alive", "operation", "task")

    task: asyncio.Task[None]
    """Handles the request; set once the whole request has come."""

    def __init__(
        self,
        operation: OperationRoute,
        path_values: dict[str, str],
        *,
        method: str,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        body_length: int,
        keep_alive: bool,
        client: tuple[str, int] | None,
    ) -> None:
        super().__init__(method, path_values, query, headers)
        self.operation = operation
        self.body_length = body_length
        self.body: bytes | bytearray = b""
        self.keep_alive = keep_alive
        self.client = client

    def add_to_body(self, piece: bytes) -> None:
        """Add the next piece of the body."""
        if not self.body:
            self.body = piece if len(piece) == self.body_length else bytearray(piece)
        else:
            self.body += piece

    def missing_bytes(self) -> int:
        """How much of the body has not come: what follows in the input is a part of it, and can be parsed at once."""
        return self.body_length - len(self.body)

    def client_address(self) -> str | None:
        """See IncomingRequest."""
        return host_of(self.client)

    async def read_body(self) -> bytes:
        """See IncomingRequest."""
        if self.body:
            check_media_type(self.headers)
        body, self.body = bytes(self.body), b""  # an idle connection keeps its last request, but not the body
        return body
