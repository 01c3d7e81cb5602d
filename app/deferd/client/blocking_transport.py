"""The transport of Client: exchanges that block the calling thread."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar

import httpx

from deferd.client.errors import ClientClosed
from deferd.client.requests import ApiRequest
from deferd.client.transport import HttpResponse, HttpSettings, http_failure, http_response

Value = TypeVar("Value")


class BlockingTransport:
    """Transport for any number of threads. Each connection is an httpx transport, as in AsyncTransport."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._slots = threading.BoundedSemaphore(settings.connections)
        self._idle: list[httpx.HTTPTransport] = []
        self._inherited: list[httpx.HTTPTransport] = []
        self._closed = False

    async def exchange(self, url: str, request: ApiRequest[Any]) -> HttpResponse:
        try:
            with self._connection(request) as connection:
                end_s = time.monotonic() + self._settings.max_exchange_s(request)
                response = connection.handle_request(self._settings.http_request(url, request))
                content = bytearray()
                try:
                    for piece in response.iter_bytes():
                        content += piece
                        if time.monotonic() > end_s:
                            raise self._settings.too_slow(request)
                finally:
                    response.close()
        except httpx.HTTPError as error:
            raise http_failure(url, request, error) from error
        return http_response(response, bytes(content))

    @contextlib.contextmanager
    def _connection(self, request: ApiRequest[Any]) -> Iterator[httpx.HTTPTransport]:
        """A connection for one exchange. It is reused only if the exchange completes."""
        self._drop_inherited_connections()
        slots = self._slots
        if not slots.acquire(timeout=self._settings.timeout_s):
            raise self._settings.busy(request)
        try:
            if self._closed:
                raise ClientClosed("the client is closed")
            connection = self._idle_or_new_connection()
            completed = False
            try:
                yield connection
                completed = True
            finally:
                if completed and not self._closed:
                    self._idle.append(connection)
                else:
                    connection.close()
        finally:
            slots.release()

    def _drop_inherited_connections(self) -> None:
        """Drop the connections of the parent process after a fork."""
        if self._pid != os.getpid():
            self._inherited += self._idle  # kept open: the parent process uses them
            self._idle, self._slots = [], threading.BoundedSemaphore(self._settings.connections)
            self._pid = os.getpid()

    def _idle_or_new_connection(self) -> httpx.HTTPTransport:
        try:
            return self._idle.pop()
        except IndexError:
            return httpx.HTTPTransport(limits=self._settings.limits, verify=self._settings.tls, trust_env=False)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (blocks on purpose)

    def lock(self) -> _ThreadLock:
        return _ThreadLock()

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class _ThreadLock:
    """A thread lock with the interface of an asynchronous one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._lock.release()


def run_blocking(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine over a BlockingTransport to its end, in this thread."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: Value = end.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine over a blocking transport was suspended")
