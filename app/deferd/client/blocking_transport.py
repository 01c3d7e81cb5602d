"""The transport of Client: exchanges that block the calling thread."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from deferd.client.endpoint import (
    AddressInfo,
    Endpoint,
    TunnelResponse,
    alternating,
    is_readable,
    new_socket,
    reset_on_close,
)
from deferd.client.http1 import (
    HttpResponse,
    MalformedResponse,
    ResponseParser,
    ServerSentEvent,
    StreamParser,
)
from deferd.client.requests import ApiRequest
from deferd.client.transport import IDLE_S, HttpSettings, ResponseStream, closed, no_answer, not_sent
from deferd.contract.clocks import monotonic_s

Value = TypeVar("Value")
_READ_BYTES = 65_536


class BlockingTransport:
    """Transport for any number of threads. A connection whose exchange was not completed is never reused."""

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._pid = os.getpid()
        self._slots = threading.BoundedSemaphore(settings.connections)
        self._idle: list[_BlockingConnection] = []
        self._inherited: list[_BlockingConnection] = []
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
        stream = _BlockingStream(connection)
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

    def _idle_connection(self, endpoint: Endpoint) -> _BlockingConnection | None:
        """The idle connection that was used last, if it is one to this endpoint."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.endpoint is endpoint and connection.is_alive():
                return connection
            connection.close()

    def _new_connection(self, endpoint: Endpoint, request: ApiRequest[Any]) -> _BlockingConnection:
        try:
            return _BlockingConnection(endpoint, self._settings)
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


class _BlockingStream:
    """A ResponseStream."""

    def __init__(self, connection: _BlockingConnection) -> None:
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


class _BlockingConnection:
    """A connection to the service, for one exchange at a time."""

    def __init__(self, endpoint: Endpoint, settings: HttpSettings) -> None:
        """Connect.

        Raises:
            OSError, MalformedResponse: it failed.
        """
        self.endpoint = endpoint
        self._parser = ResponseParser(settings.clock)
        self._timeout_s = timeout_s = settings.timeout_s
        self._is_idle = True
        self._idle_until_s = 0.0
        end_s = monotonic_s() + timeout_s
        connected = _connected(endpoint, end_s)
        try:
            if endpoint.tunnel is not None:
                _open_tunnel(connected, endpoint.tunnel, end_s)
            if endpoint.server_name is not None and settings.tls is not None:
                connected.settimeout(_left(end_s))
                connected = settings.tls.wrap_socket(connected, server_hostname=endpoint.server_name)
            connected.settimeout(timeout_s)
        except BaseException:
            connected.close()
            raise
        self._socket = connected

    def exchange(
        self, message: bytes, *, first_byte_s: float, read_s: float, end_s: float, head_only: bool
    ) -> HttpResponse:
        """Send a request and wait for the response.

        The exchange ends at `first_byte_s` if nothing of the response has come, and later when nothing comes for
        `read_s`; at `end_s` it ends in any case.

        Raises:
            OSError, MalformedResponse: there is no whole response.
        """
        self._is_idle = False
        parser = self._parser
        parser.begin(head_only=head_only)
        self._wait_at_most(self._timeout_s)
        sent_whole = True
        try:
            self._socket.sendall(message)
        except OSError:  # the service may have responded without reading the whole body
            sent_whole = False
        # Not before `first_byte_s`; later does no harm, and a time-out that is the same each time costs nothing.
        wait_s = _left(end_s) if first_byte_s == end_s else min(read_s, _left(end_s))
        while True:
            self._wait_at_most(wait_s)
            try:
                data = self._socket.recv(_READ_BYTES)
            except TimeoutError:
                raise TimeoutError(f"nothing was received for {wait_s:.3g} s") from None
            response = parser.receive(data) if data else parser.end()
            if response is not None:
                break
            wait_s = min(read_s, _left(end_s))
        self._is_idle = parser.is_reusable and sent_whole and not self._has_unread_bytes()
        self._idle_until_s = monotonic_s() + IDLE_S
        return response

    def begin_stream(self, message: bytes) -> None:
        """Send a request whose response is read by `receive`. Raises OSError."""
        self._is_idle = False
        self._socket.sendall(message)

    def receive(self, wait_s: float) -> bytes:
        """The next bytes, b'' at the end. Raises OSError, also when nothing comes within `wait_s`."""
        self._wait_at_most(wait_s)
        return self._socket.recv(_READ_BYTES)

    def _has_unread_bytes(self) -> bool:
        return isinstance(self._socket, ssl.SSLSocket) and self._socket.pending() > 0

    def _wait_at_most(self, seconds: float) -> None:
        if self._socket.gettimeout() != seconds:
            self._socket.settimeout(seconds)

    def is_idle(self) -> bool:
        """Whether the last exchange was completed and the connection can be used for another one."""
        return self._is_idle

    def is_alive(self) -> bool:
        """Whether an idle connection is not too old, and the server has not closed it."""
        return monotonic_s() < self._idle_until_s and not is_readable(self._socket.fileno())

    def close(self) -> None:
        """Close the connection: an idle one with the end of TLS, another one at once. Does not wait."""
        if not self._is_idle:
            reset_on_close(self._socket)
        elif isinstance(self._socket, ssl.SSLSocket):
            with contextlib.suppress(OSError, ValueError):
                self._socket.settimeout(0)
                self._socket.unwrap()
        self._socket.close()


def _left(end_s: float) -> float:
    left_s = end_s - monotonic_s()
    if left_s <= 0:
        raise TimeoutError("it took too long")
    return left_s


def _connected(endpoint: Endpoint, end_s: float) -> socket.socket:
    if endpoint.socket_path is not None:
        return _connected_to((socket.AF_UNIX, socket.SOCK_STREAM, 0, "", endpoint.socket_path), _left(end_s))
    addresses = alternating(socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM))
    errors: list[str] = []
    for index, address in enumerate(addresses):
        try:
            return _connected_to(address, _left(end_s) / (len(addresses) - index))
        except OSError as error:
            errors.append(str(error))
    raise OSError("; ".join(errors))


def _connected_to(address: AddressInfo, timeout_s: float) -> socket.socket:
    new = new_socket(address)
    try:
        new.settimeout(timeout_s)
        new.connect(address[4])
    except BaseException:
        new.close()
        raise
    return new


def _open_tunnel(connected: socket.socket, request: bytes, end_s: float) -> None:
    response = TunnelResponse()
    connected.settimeout(_left(end_s))
    connected.sendall(request)
    while not response.receive(connected.recv(_READ_BYTES)):
        connected.settimeout(_left(end_s))
