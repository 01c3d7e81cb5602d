"""A call on the short way of `short_way`, past ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, ClassVar

from starlette.requests import ClientDisconnect

from deferd.api.call import Call, Result, Undo, address_of
from deferd.api.operation import Operation
from deferd.api.request_body import check_media_type
from deferd.api.service import Service


class PlainCall(Call):
    """A call on the short way. Towards uvicorn's protocol it plays the part of a request-response cycle."""

    __slots__ = (
        "body",
        "body_length",
        "client",
        "disconnected",
        "keep_alive",
        "operation",
        "response_complete",
        "task",
        "work",
    )

    message_event: ClassVar[asyncio.Event] = asyncio.Event()
    """What uvicorn wakes a cycle by. Nobody waits for this one, so it may stay set."""
    task: asyncio.Task[None]
    """What answers it; there from when the request has come as a whole."""

    def __init__(
        self,
        service: Service,
        operation: Operation,
        path_values: dict[str, str],
        *,
        method: str,
        query: bytes,
        headers: list[tuple[bytes, bytes]],
        body_length: int,
        keep_alive: bool,
        client: tuple[str, int] | None,
    ) -> None:
        super().__init__(service, method, path_values, query, headers)
        self.operation = operation
        self.body_length = body_length
        self.body: bytes | bytearray = b""
        self.keep_alive = keep_alive
        self.client = client
        self.disconnected = False
        self.response_complete = False
        self.work: asyncio.Task[Any] | None = None

    def take(self, piece: bytes) -> None:
        """Add a piece of the body."""
        if not self.body:
            self.body = piece if len(piece) == self.body_length else bytearray(piece)
        else:
            self.body += piece

    def client_address(self) -> str | None:
        """See Call."""
        return address_of(self.client)

    def hang_up(self) -> None:
        """The client is gone."""
        self.disconnected = True
        if self.work is not None:
            self.work.cancel()

    async def read_body(self) -> bytes:
        """See Call."""
        if self.body:
            check_media_type(self.headers)
        body, self.body = bytes(self.body), b""  # a connection remembers its last call, however long it is idle
        return body

    async def unless_gone(
        self,
        work: Coroutine[Any, Any, Result],
        *,
        undo: Undo[Result] | None = None,  # noqa: ARG002 (hanging up cancels within `work`, which undoes its own)
    ) -> Result:
        """See Call."""
        if self.disconnected:
            work.close()
            raise ClientDisconnect
        self.work = asyncio.current_task()
        try:
            return await work
        except asyncio.CancelledError:
            if self.disconnected:
                raise ClientDisconnect from None
            raise
        finally:
            self.work = None
