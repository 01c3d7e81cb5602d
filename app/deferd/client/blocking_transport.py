"""The transport of Client: exchanges that block the calling thread."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from deferd.client.addresses import Endpoint
from deferd.client.blocking_connection import BlockingConnection
from deferd.client.http1 import HttpResponse, MalformedResponse
from deferd.client.requests import ApiRequest
from deferd.client.transport import HttpSettings, closed, no_answer, not_sent

Value = TypeVar("Value")


class BlockingTransport:
    """Transport for any number of threads. A connection whose exchange was not completed is never reused."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._slots = threading.BoundedSemaphore(settings.connections)
        self._idle: list[BlockingConnection] = []
        self._inherited: list[BlockingConnection] = []
        self._closed = False

    async def exchange(self, url: str, request: ApiRequest[Any]) -> HttpResponse:
        settings = self._settings
        endpoint = settings.endpoints[url]
        message = endpoint.writer.write(request)
        self._drop_inherited_connections()
        slots = self._slots
        if not slots.acquire(timeout=settings.timeout_s):
            raise settings.busy(request)
        connection = None
        try:
            if self._closed:
                raise closed()
            end_s = time.monotonic() + settings.max_exchange_s(request)
            connection = self._idle_connection(endpoint) or self._new_connection(endpoint, request)
            return connection.exchange(
                message, head_only=request.method == "HEAD", read_s=settings.read_s(request), end_s=end_s
            )
        except (OSError, MalformedResponse) as error:
            raise no_answer(url, request, error) from error
        finally:
            if connection is not None:
                if connection.is_idle():
                    self._idle.append(connection)
                else:
                    connection.close()
            if self._closed:  # asked after the append: `close` may have come in between
                self._close_idle()
            slots.release()

    def _drop_inherited_connections(self) -> None:
        """Drop the connections of the parent process after a fork."""
        if self._pid != os.getpid():
            self._inherited += self._idle  # kept open: the parent process uses them
            self._idle, self._slots = [], threading.BoundedSemaphore(self._settings.connections)
            self._pid = os.getpid()

    def _idle_connection(self, endpoint: Endpoint) -> BlockingConnection | None:
        """The idle connection that was used last, if it is one to this endpoint."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.endpoint is endpoint and connection.is_alive():
                return connection
            connection.close()

    def _new_connection(self, endpoint: Endpoint, request: ApiRequest[Any]) -> BlockingConnection:
        try:
            return BlockingConnection(endpoint, self._settings.tls, timeout_s=self._settings.timeout_s)
        except (OSError, MalformedResponse) as error:
            raise not_sent(endpoint.url, request, error) from error

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (blocks on purpose)

    async def close(self) -> None:
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with contextlib.suppress(IndexError):  # another thread may take the last one
            while True:
                self._idle.pop().close()


def run_blocking(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine over a BlockingTransport to its end, in this thread."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: Value = end.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine over a blocking transport was suspended")
