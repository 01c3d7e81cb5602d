"""The transport of AsyncClient: exchanges on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx

from deferd.client.errors import ClientClosed
from deferd.client.requests import ApiRequest
from deferd.client.transport import HttpResponse, HttpSettings, http_failure, http_response


class AsyncTransport:
    """Transport for one event loop, that of its first exchange.

    Each connection is an httpx transport with a pool of one: httpx scans all connections of a pool for every request,
    which with 64 concurrent requests takes several times as long as the requests. A connection whose exchange was not
    completed is never reused: after a cancelled request it might wait forever.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._slots = asyncio.Semaphore(settings.connections)
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._inherited: list[httpx.AsyncHTTPTransport] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    async def exchange(self, url: str, request: ApiRequest[Any]) -> HttpResponse:
        async with self._connection(request) as connection:
            try:
                async with asyncio.timeout(self._settings.max_exchange_s(request)):
                    # httpx.AsyncClient, with its cookies and redirects, would take twice as long.
                    response = await connection.handle_async_request(self._settings.http_request(url, request))
                    try:
                        content = await response.aread()
                    finally:
                        await response.aclose()
            except TimeoutError:
                raise self._settings.too_slow(request) from None
            except httpx.HTTPError as error:
                raise http_failure(url, request, error) from error
        return http_response(response, content)

    @contextlib.asynccontextmanager
    async def _connection(self, request: ApiRequest[Any]) -> AsyncIterator[httpx.AsyncHTTPTransport]:
        """A connection for one exchange. It is reused only if the exchange completes."""
        self._check_owner()
        slots = self._slots
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                await slots.acquire()
        except TimeoutError:
            raise self._settings.busy(request) from None
        try:
            if self._closed:
                raise ClientClosed("the client is closed")
            connection = self._idle.pop() if self._idle else self._new_connection()
            completed = False
            try:
                yield connection
                completed = True
            finally:
                if completed and not self._closed:
                    self._idle.append(connection)
                else:
                    self._close_soon(connection)
        finally:
            slots.release()

    def _check_owner(self) -> None:
        """Drop the connections of the parent process after a fork.

        Raises:
            RuntimeError: this is another event loop.
        """
        pid, loop = os.getpid(), asyncio.get_running_loop()
        if self._owner is None or self._owner[0] != pid:
            self._inherited += self._idle  # kept open: the parent process uses them
            self._idle, self._slots = [], asyncio.Semaphore(self._settings.connections)
            self._owner = pid, loop
        elif self._owner[1] is not loop:
            raise RuntimeError("an AsyncClient belongs to the event loop of its first call: make one for each loop")

    def _new_connection(self) -> httpx.AsyncHTTPTransport:
        return httpx.AsyncHTTPTransport(limits=self._settings.limits, verify=self._settings.tls, trust_env=False)

    def _close_soon(self, connection: httpx.AsyncHTTPTransport) -> None:
        closing = asyncio.ensure_future(_close(connection))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def lock(self) -> asyncio.Lock:
        return asyncio.Lock()

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._close_soon(self._idle.pop())
        if self._closing:
            await asyncio.wait(self._closing, timeout=self._settings.timeout_s)


async def _close(connection: httpx.AsyncHTTPTransport) -> None:
    with contextlib.suppress(httpx.HTTPError, OSError, RuntimeError):  # it is discarded in any case
        await connection.aclose()
