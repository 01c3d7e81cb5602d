"""Relays within the service, for `--relay`: they send outboxes of databases by calls of its own process.

A call takes the way of any other request from `RequestHandler.find` on, without the network. It needs no key: the
operator has given the database to the service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlencode

from starlette.responses import Response

from deferd.api import problem_details
from deferd.api.dispatch import RequestHandler
from deferd.api.incoming_request import IncomingRequest
from deferd.client.http1 import HttpResponse
from deferd.client.requests import ApiRequest
from deferd.contract.errors import PayloadTooLarge
from deferd.engine.scripts import request_ending_at
from deferd.outbox.relay import Relay
from deferd.outbox.sending import CALL_S, Service
from deferd.store.task_cancellation import cancel_and_wait
from deferd.worker.worker import default_name

_LOG = logging.getLogger("deferd.relay")
_AGAIN_S = 5.0
"""How long a relay rests that has met a bug: the next rows may have nothing of it."""
_CONTENT_TYPE, _RETRY_AFTER = b"content-type", b"retry-after"


class OwnRelays:
    """The relays of databases, each a task, and what they call. `max_body_bytes`: as for a request of a client."""

    def __init__(self, database_urls: Sequence[str], handler: RequestHandler, max_body_bytes: int) -> None:
        self._database_urls = database_urls
        self._handler = handler
        self._max_body_bytes = max_body_bytes
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to relay. A database that cannot be used is logged and tried again."""
        self._tasks = [
            asyncio.create_task(self._run(number, url), name=f"deferd-relay-{number}")
            for number, url in enumerate(self._database_urls, start=1)
        ]

    def drain(self) -> None:
        """Let the relays end when their calls have."""
        self._stop.set()

    async def close(self) -> None:
        """End them; a database that does not respond is not waited for."""
        self._stop.set()
        await asyncio.wait(self._tasks, timeout=CALL_S)
        await cancel_and_wait(self._tasks)

    async def _run(self, number: int, url: str) -> None:
        name = default_name() if number == 1 else f"{default_name()}.{number}"
        while not self._stop.is_set():
            try:
                service = Service(("this service",), _OwnTransport(self._handler, self._max_body_bytes))
                await Relay(url, service, name=name).run(self._stop)
            except Exception:  # noqa: BLE001 (jobs of others do not depend on this)
                _LOG.exception("relay %s has failed, and begins again in %g s", name, _AGAIN_S, extra={"relay": name})
                stopped = asyncio.create_task(self._stop.wait())
                await asyncio.wait({stopped}, timeout=_AGAIN_S)
                await cancel_and_wait([stopped])


class _OwnTransport:
    """Calls operations of this process. A call has no effect after CALL_S."""

    def __init__(self, handler: RequestHandler, max_body_bytes: int) -> None:
        self._handler = handler
        self._max_body_bytes = max_body_bytes

    async def exchange(self, _url: str, request: ApiRequest[Any]) -> HttpResponse:
        """See Transport."""
        found = self._handler.find(request.method, unquote(request.path.replace("%2F", "%252F")))
        if found is None:
            return _received(problem_details.response(problem_details.UnknownPath(request.path)))
        operation, path_values = found
        own = _OwnRequest(request, path_values, self._max_body_bytes)
        with request_ending_at(asyncio.get_running_loop().time() + CALL_S):
            response = await self._handler.handle(operation, own)
        return _received(response)

    async def sleep(self, seconds: float) -> None:
        """See Transport."""
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        """See Transport. There is nothing to close."""


class _OwnRequest(IncomingRequest):
    """A request that the service makes. Nobody waits for it directly."""

    __slots__ = ("_body", "_max_body_bytes")

    is_own = True

    def __init__(self, request: ApiRequest[Any], path_values: dict[str, str], max_body_bytes: int) -> None:
        query = urlencode(request.query or {}).encode()
        super().__init__(request.method, path_values, query, ((_CONTENT_TYPE, b"application/json"),))
        self._body = request.body or b""
        self._max_body_bytes = max_body_bytes

    def client_address(self) -> str | None:
        """See IncomingRequest."""
        return None

    async def read_body(self) -> bytes:
        """See IncomingRequest."""
        if len(self._body) > self._max_body_bytes:
            raise PayloadTooLarge(self._max_body_bytes)
        return self._body


def _received(response: Response | None) -> HttpResponse:
    if response is None:
        raise AssertionError("an own request cannot disconnect")
    headers = dict(response.raw_headers)
    retry_after = headers.get(_RETRY_AFTER)
    return HttpResponse(
        response.status_code,
        bytes(response.body),
        None if retry_after is None else retry_after.decode(),
        headers.get(_CONTENT_TYPE, b""),
    )
