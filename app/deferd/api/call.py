"""One request to an operation, whichever door it came through.

There are two doors. Any server of ASGI applications hands requests to `deferd.api.service.Service`, which makes an
`AsgiCall` of each. Under `deferd serve` requests that are small and plain, nearly all, take the short way of
`deferd.server.http`, which saves three quarters of what ASGI costs. Behind the doors there is one way.
"""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from deferd.api import request_body
from deferd.contract.model import ChangeJob, PutJob
from deferd.engine.engine import Engine
from deferd.engine.script_arguments import NO_BOUNDS, PutBounds

if TYPE_CHECKING:
    from deferd.api.auth.api_keys import Key
    from deferd.api.auth.usage_limits import Account
    from deferd.api.service import Service

_log = logging.getLogger(__name__)
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
"""What W3C Trace Context (section 3.2) calls a valid header of this version; any other is to be ignored."""

_ANY_NUMBER = nullcontext()

Headers = Iterable[tuple[bytes, bytes]]
Result = TypeVar("Result")
Undo = Callable[[Result], Awaitable[None]]


class Call(ABC):
    """What a route can know of a request. `path_values` are the named parts of its path, `query` is still encoded.

    `account` has the limits of the key whose call it is; None when it has none, or there is no key.
    """

    __slots__ = ("account", "headers", "key", "method", "path_values", "query", "service")

    key: Key
    """Whose call it is; not there when the service has no keys, or the call needs none."""

    def __init__(
        self, service: Service, method: str, path_values: dict[str, str], query: bytes, headers: Headers
    ) -> None:
        self.account: Account | None = None
        self.service = service
        self.method = method
        self.path_values = path_values
        self.query = query
        self.headers = headers

    @property
    def engine(self) -> Engine:
        """The engine that serves this call."""
        return self.service.engine

    @property
    def key_name(self) -> str | None:
        """The name of the key whose call it is; None when there is none."""
        key: Key | None = getattr(self, "key", None)
        return None if key is None else key.name

    def traceparent(self) -> str | None:
        """The W3C trace context in the request's headers; None when there is none that is valid."""
        found = None
        for name, value in self.headers:
            if name == b"traceparent":
                if found is not None:
                    return None
                found = value
        if found is None or _TRACEPARENT.fullmatch(found) is None:
            return None
        return found.decode("ascii")

    def room_for(self, jobs: Sequence[PutJob]) -> AbstractContextManager[None]:
        """Around a put. Raises RateLimited when the quota of its key has no room for these jobs."""
        quota = None if self.account is None else self.account.quota
        return _ANY_NUMBER if quota is None else quota.room_for(jobs)

    def room_for_change(self, change: ChangeJob) -> AbstractContextManager[None]:
        """Around a change of a job. Raises RateLimited when the quota of its key has no room for the new body."""
        quota = None if self.account is None else self.account.quota
        return _ANY_NUMBER if quota is None else quota.room_for_change(change)

    def counting(self, *values: Any) -> AbstractContextManager[None]:
        """Around the end of a delivery, which may store these values; they count for the quota of its key."""
        quota = None if self.account is None else self.account.quota
        return _ANY_NUMBER if quota is None else quota.counting(values)

    def put_bounds(self) -> PutBounds:
        """The bounds that the key of this call puts on each job."""
        return NO_BOUNDS if self.account is None else self.account.put_bounds

    @abstractmethod
    def client_address(self) -> str | None:
        """The address that the connection came from; None when the server does not know it."""

    @abstractmethod
    async def read_body(self) -> bytes:
        """The request's body, empty when there is none.

        Raises PayloadTooLarge, UnsupportedMediaType, and starlette's ClientDisconnect when the rest does not come.
        """

    @abstractmethod
    async def unless_gone(self, work: Coroutine[Any, Any, Result], *, undo: Undo[Result] | None = None) -> Result:
        """What `work` brings. When the client hangs up first it is cancelled; what it had brought by then is undone.

        Raises starlette's ClientDisconnect when the client has hung up.
        """


def _bound_by_the_operation() -> Call:
    raise AssertionError("an Operation binds its calls itself")


CurrentCall = Annotated[Call, Depends(_bound_by_the_operation)]
"""How a route asks for its Call. `Depends` tells FastAPI that this is no part of the request."""


class AsgiCall(Call):
    """A request that came through ASGI."""

    __slots__ = ("_receive", "_scope")

    def __init__(self, service: Service, path_values: dict[str, str], scope: Scope, receive: Receive) -> None:
        super().__init__(service, scope["method"], path_values, scope["query_string"], scope["headers"])
        self._scope = scope
        self._receive = receive

    def client_address(self) -> str | None:
        """See Call."""
        return address_of(self._scope.get("client"))

    async def read_body(self) -> bytes:
        """See Call."""
        return await request_body.read_body(self._scope, self._receive, self.service.settings.max_body_bytes)

    async def unless_gone(self, work: Coroutine[Any, Any, Result], *, undo: Undo[Result] | None = None) -> Result:
        """See Call."""
        return await unless_gone(asyncio.create_task(work), self._receive, undo)


def address_of(client: Sequence[Any] | None) -> str | None:
    """The host of what ASGI calls a client, (host, port)."""
    return str(client[0]) if client else None


async def unless_gone(work: asyncio.Task[Result], receive: Receive, undo: Undo[Result] | None = None) -> Result:
    """See Call."""
    leaving = asyncio.create_task(_hang_up(receive))
    try:
        await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone = leaving.done()
        leaving.cancel()
        if not work.done():
            # The client is gone, or this server is stopping.
            work.cancel()
            await asyncio.wait((work,))
    if not gone:
        return work.result()
    if undo is not None and not work.cancelled() and work.exception() is None:
        await undo(work.result())
    raise ClientDisconnect


async def _hang_up(receive: Receive) -> None:
    """Return when the client has hung up. What is left of the request's body is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass
