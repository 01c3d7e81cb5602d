"""One HTTP request as its server hands it over.

Any ASGI server calls `deferd.api.app.Service`, which makes an `AsgiRequest`. Under `deferd serve` small plain requests,
nearly all, arrive as a `FastPathRequest` of `deferd.server.http`, at a quarter of ASGI's cost. Both go to
`deferd.api.dispatch.RequestHandler.handle`. Usual single calls need neither: see `deferd.api.direct`.
"""

from __future__ import annotations

import asyncio
import re
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from deferd.api import request_body
from deferd.contract.clocks import NOT_AFTER_HEADER
from deferd.contract.errors import DeferdError, FieldError, InvalidInput

TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""A valid header of this version by W3C Trace Context, section 3.2, which has any other ignored."""

_NOT_AFTER = NOT_AFTER_HEADER.encode()
_INSTANT_MAX_DIGITS = 15
_SHOWN_BYTES = 100

Headers = Sequence[tuple[bytes, bytes]]
Result = TypeVar("Result")


class IncomingRequest(ABC):
    """`path_values` are the named parts of the path; `query` is still encoded.

    `key_name` is the name of the API key that the request was admitted with, if any.
    """

    __slots__ = ("_task", "disconnected", "half_closed", "headers", "key_name", "method", "path_values", "query")

    is_of_console: ClassVar[bool] = False
    """Whether the console makes the request, within this process. Nothing that a client sends decides this."""
    is_own: ClassVar[bool] = False
    """Whether the service makes the request for its operator, as its relays do: it needs no key. As above."""
    key_digest: bytes | None = None
    """The digest of the key that a session of the console was opened with; it stands for a token in the headers."""

    def __init__(self, method: str, path_values: dict[str, str], query: bytes, headers: Headers) -> None:
        self.method = method
        self.path_values = path_values
        self.query = query
        self.headers = headers
        self.key_name: str | None = None
        self.disconnected = self.half_closed = False
        self._task: asyncio.Task[Any] | None = None

    def traceparent(self) -> str | None:
        """The W3C trace context in the headers; None without a valid one, or with several."""
        found = None
        for name, value in self.headers:
            if name == b"traceparent":
                if found is not None:
                    return None
                found = value
        if found is None or TRACEPARENT.fullmatch(found) is None:
            return None
        return found.decode("ascii")

    def not_after_ms(self) -> int | None:
        """The instant from which the request must have no effect, by the service's clock; None if it names none.

        Raises:
            InvalidInput: the header is no instant, or there are several.
        """
        found = [value for name, value in self.headers if name == _NOT_AFTER]
        if not found:
            return None
        [value, *more] = found
        if more or not value.isdigit() or len(value) > _INSTANT_MAX_DIGITS:
            shown = value[:_SHOWN_BYTES].decode("latin-1")
            message = (
                "is given more than once" if more else "must be an instant: milliseconds since 1970, a whole number"
            )
            raise InvalidInput([FieldError(("header", "Deferd-Not-After"), message, shown)])
        return int(value)

    @abstractmethod
    def client_address(self) -> str | None:
        """The address of the caller, behind trusted proxies; None when the server does not know it."""

    @abstractmethod
    async def read_body(self) -> bytes:
        """The whole body, empty when there is none.

        Raises PayloadTooLarge, UnsupportedMediaType, and starlette's ClientDisconnect when the rest does not arrive.
        """

    async def cancel_on_disconnect(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await `work`; cancel it when the client disconnects first, or closes its side, which may be the same.

        `work` itself undoes what it did when it is cancelled.

        Raises:
            ClientDisconnect: the client has disconnected.
        """
        if self.half_closed:
            work.close()
            raise ClientDisconnect
        self._task = asyncio.current_task()
        try:
            return await work
        except (asyncio.CancelledError, DeferdError):
            if self.half_closed:
                raise ClientDisconnect from None
            raise
        finally:
            self._task = None

    def disconnect(self) -> None:
        """Note that the client has disconnected, and cancel the work that it waits for."""
        self.disconnected = True
        self.half_close()

    def half_close(self) -> None:
        """Note that the client sends no more, and cancel the work that only a connected client needs."""
        self.half_closed = True
        if self._task is not None:
            self._task.cancel()


class AsgiRequest(IncomingRequest):
    """A request of any ASGI server."""

    __slots__ = ("_max_body_bytes", "_receive", "_scope")

    def __init__(self, scope: Scope, receive: Receive, path_values: dict[str, str], max_body_bytes: int) -> None:
        super().__init__(scope["method"], path_values, scope["query_string"], scope["headers"])
        self._scope = scope
        self._receive = receive
        self._max_body_bytes = max_body_bytes

    def client_address(self) -> str | None:
        """See IncomingRequest."""
        return host_of(self._scope.get("client"))

    async def read_body(self) -> bytes:
        """See IncomingRequest."""
        return await request_body.read_body(self._scope, self._receive, self._max_body_bytes)

    async def cancel_on_disconnect(self, work: Coroutine[Any, Any, Result]) -> Result:
        """See IncomingRequest. What is left of the request's body is dropped."""
        watching = asyncio.create_task(self._watch_for_disconnect())
        try:
            return await super().cancel_on_disconnect(work)
        finally:
            watching.cancel()

    async def _watch_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.disconnect()


def host_of(client: Sequence[Any] | None) -> str | None:
    """The host of ASGI's `client`, a pair of host and port."""
    return str(client[0]) if client else None
