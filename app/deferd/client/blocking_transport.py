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
from deferd.client.response_stream import ResponseStream, ServerSentEvent, StreamParser
from deferd.client.transport import HttpSettings, closed, no_answer, not_sent
from deferd.contract.real_time import monotonic_s

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
        self._drop_inherited_connections()
        slots = self._slots
        if not slots.acquire(timeout=settings.timeout_s):
            raise settings.busy(request)
        connection = None
        try:
            if self._closed:
                raise closed()
            end_s = monotonic_s() + settings.max_exchange_s(request)
            connection = self._idle_connection(endpoint) or self._new_connection(endpoint, request)
            first_byte_s = settings.first_byte_s(request, monotonic_s(), end_s)
            return connection.exchange(
                settings.message(endpoint, request, first_byte_s),
                first_byte_s=first_byte_s,
                read_s=settings.read_s(request),
                end_s=end_s,
                head_only=request.method == "HEAD",
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

    async def open_stream(self, url: str, request: ApiRequest[Any]) -> ResponseStream:
        settings = self._settings
        endpoint = settings.endpoints[url]
        message = endpoint.writer.write(request)
        if self._closed:
            raise closed()
        connection = self._new_connection(endpoint, request)
        stream = BlockingStream(connection)
        try:
            refusal = stream.begin(message, settings.timeout_s)
        except (OSError, MalformedResponse) as error:
            connection.close()
            raise no_answer(url, request, error) from error
        except BaseException:
            connection.close()
            raise
        if refusal is not None:
            connection.close()
            request.read_response(*refusal, url=url)
        return stream

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
            return BlockingConnection(endpoint, self._settings)
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


class BlockingStream:
    """A ResponseStream."""

    def __init__(self, connection: BlockingConnection) -> None:
        self._connection = connection
        self._parser = StreamParser()

    def begin(self, message: bytes, wait_s: float) -> HttpResponse | None:
        """Send the request; returns the response if that is no stream. Raises OSError, MalformedResponse."""
        self._connection.begin_stream(message)
        end_s = monotonic_s() + wait_s
        while not self._parser.has_begun and self._parser.refusal is None:
            left_s = end_s - monotonic_s()
            if left_s <= 0:
                raise TimeoutError(f"nothing was received for {wait_s:g} s")
            self._parser.receive(self._connection.receive(left_s))
        return self._parser.refusal

    async def read(self, wait_s: float) -> list[ServerSentEvent]:
        messages = self._parser.messages()
        if not messages:
            self._parser.receive(self._connection.receive(wait_s))
            messages = self._parser.messages()
        return messages

    async def close(self) -> None:
        self._connection.close()


def run_blocking(coroutine: Coroutine[Any, Any, Value]) -> Value:
    """Run a coroutine over a BlockingTransport to its end, in this thread."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: Value = end.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine over a blocking transport was suspended")
