"""The transport of AsyncClient: exchanges on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

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
    RequestClock,
    ResponseParser,
    ServerSentEvent,
    StreamParser,
)
from deferd.client.requests import ApiRequest
from deferd.client.transport import IDLE_S, HttpSettings, ResponseStream, closed, no_answer, not_sent
from deferd.contract.clocks import monotonic_s

_NEXT_ADDRESS_S = 0.25
"""After this time without a connection, the next address of the host is tried as well (RFC 8305)."""
_TLS_END_S = 1.0
"""How long the server may take to confirm the end of TLS."""
_JUST_USED_S = 0.05
"""A connection that was idle for longer is checked at its socket before it is reused."""
_READ_BYTES = 65_536


class AsyncTransport:
    """Transport for one event loop, that of its first exchange.

    An exchange on an idle connection awaits nothing but the response. A connection whose exchange was not completed is
    never reused: after a cancelled request it might deliver the wrong response.
    """

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None
        self._inherited: list[AsyncConnection] = []
        self._closed = False
        self._forget_all()

    def _forget_all(self) -> None:
        self._exchanges = 0
        self._waiting: deque[asyncio.Future[bool]] = deque()
        self._connections: set[AsyncConnection] = set()
        self._idle: list[AsyncConnection] = []

    async def exchange(self, url: str, request: ApiRequest[Any]) -> HttpResponse:
        settings = self._settings
        endpoint = settings.endpoints[url]
        self._check_owner()
        if self._exchanges < settings.connections:
            self._exchanges += 1
        else:
            await self._wait_for_turn(request)
        connection = None
        try:
            if self._closed:
                raise closed()
            now_s = monotonic_s()
            end_s = now_s + settings.max_exchange_s(request)
            connection = self._idle_connection(endpoint, now_s)
            if connection is None:
                connection = await self._new_connection(endpoint, request)
                now_s = monotonic_s()
            first_byte_s = settings.first_byte_s(request, now_s, end_s)
            return await connection.exchange(
                settings.message(endpoint, request, first_byte_s),
                now_s=now_s,
                first_byte_s=first_byte_s,
                read_s=settings.read_s(request),
                end_s=end_s,
                head_only=request.method == "HEAD",
            )
        except (OSError, MalformedResponse) as error:
            raise no_answer(url, request, error) from error
        finally:
            if connection is not None:
                if connection.is_idle() and not self._closed:
                    self._idle.append(connection)
                else:
                    connection.end()
            self._end_turn()

    async def open_stream(self, url: str, request: ApiRequest[Any]) -> ResponseStream:
        settings = self._settings
        endpoint = settings.endpoints[url]
        message = endpoint.writer.write(request)
        if self._closed:
            raise closed()
        stream = None
        try:
            async with asyncio.timeout(settings.timeout_s):
                stream = await _AsyncStream.open(endpoint, settings.tls)
        except (OSError, MalformedResponse) as error:
            raise not_sent(url, request, error) from error
        try:
            async with asyncio.timeout(settings.timeout_s):
                refusal = await stream.begin(message)
        except (OSError, MalformedResponse) as error:
            await stream.close()
            raise no_answer(url, request, error) from error
        except BaseException:
            await stream.close()
            raise
        if refusal is not None:
            await stream.close()
            request.read_response(*refusal, url=url)
        return stream

    async def _wait_for_turn(self, request: ApiRequest[Any]) -> None:
        """Wait until another exchange ends. Exchanges take turns in their order.

        Raises:
            ClientBusy: that takes too long.
        """
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append(turn)
        timer = loop.call_later(self._settings.timeout_s, _give_up, turn)
        try:
            if not await turn:
                raise self._settings.busy(request)
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self._end_turn()
            raise
        finally:
            timer.cancel()

    def _end_turn(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(True)
                return
        self._exchanges -= 1

    def _check_owner(self) -> None:
        """Drop the connections of the parent process after a fork.

        Raises:
            RuntimeError: this is another event loop.
        """
        pid, loop = os.getpid(), asyncio.get_running_loop()
        if self._owner is None or self._owner[0] != pid:
            self._inherited += self._connections  # kept open: the parent process uses them
            self._forget_all()
            self._owner = pid, loop
        elif self._owner[1] is not loop:
            raise RuntimeError("an AsyncClient belongs to the event loop of its first call: make one for each loop")

    def _idle_connection(self, endpoint: Endpoint, now_s: float) -> AsyncConnection | None:
        """The idle connection that was used last, if it is one to this endpoint."""
        while self._idle:
            connection = self._idle.pop()
            if connection.endpoint is endpoint and connection.is_alive(now_s):
                return connection
            connection.end()
        return None

    async def _new_connection(self, endpoint: Endpoint, request: ApiRequest[Any]) -> AsyncConnection:
        timeout_s = self._settings.timeout_s
        try:
            async with asyncio.timeout(timeout_s) as limit:
                connection = await connect(endpoint, self._settings, self._on_lost)
        except (OSError, MalformedResponse) as error:
            reason = TimeoutError(f"connecting took more than {timeout_s:g} s") if limit.expired() else error
            raise not_sent(endpoint.url, request, reason) from error
        if connection.is_closing():
            raise not_sent(endpoint.url, request, ConnectionError("the service closed the new connection"))
        self._connections.add(connection)
        return connection

    def _on_lost(self, connection: AsyncConnection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        self._closed = True
        if self._owner is None or self._owner[0] != os.getpid():
            return  # the connections are those of the parent process
        if self._owner[1] is not asyncio.get_running_loop():
            self._close_from_another_loop()
            return
        while self._idle:
            self._idle.pop().end()
        closing = [connection.lost for connection in self._connections if connection.is_closing()]
        if closing:
            await asyncio.wait(closing, timeout=self._settings.timeout_s)

    def _close_from_another_loop(self) -> None:
        while self._idle:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                self._idle.pop().end()


def _give_up(turn: asyncio.Future[bool]) -> None:
    if not turn.done():
        turn.set_result(False)


class _AsyncStream:
    """A connection of its own for one response."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._parser = StreamParser()

    @classmethod
    async def open(cls, endpoint: Endpoint, tls: ssl.SSLContext | None) -> _AsyncStream:
        """Connect. Raises OSError, MalformedResponse."""
        connected = await _connected_socket(endpoint)
        try:
            return cls(*await asyncio.open_connection(sock=connected, **_encryption(endpoint, tls)))
        except BaseException:
            connected.close()
            raise

    async def begin(self, message: bytes) -> HttpResponse | None:
        """Send the request; returns the response if that is no stream. Raises OSError, MalformedResponse."""
        self._writer.write(message)
        while not self._parser.has_begun and self._parser.refusal is None:
            self._parser.receive(await self._reader.read(_READ_BYTES))
        return self._parser.refusal

    async def read(self, wait_s: float) -> list[ServerSentEvent]:
        """See ResponseStream."""
        messages = self._parser.messages()
        if not messages:
            async with asyncio.timeout(wait_s):
                self._parser.receive(await self._reader.read(_READ_BYTES))
            messages = self._parser.messages()
        return messages

    async def close(self) -> None:
        """See ResponseStream."""
        self._writer.transport.abort()


class AsyncConnection(asyncio.Protocol):
    """A connection to the service. After an exchange that was not completed it is closed.

    It has one timer, for the end of an exchange or of the idle time. The timer is not moved with each exchange: when it
    fires early, it is set again. The clock is `time.monotonic`: the time of uvloop stands still within an iteration.
    """

    def __init__(self, endpoint: Endpoint, clock: RequestClock, on_lost: Callable[[AsyncConnection], None]) -> None:
        self.endpoint = endpoint
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self.lost = self._loop.create_future()
        """Done when the connection is closed."""
        self._parser = ResponseParser(clock)
        self._response: asyncio.Future[HttpResponse] | None = None
        self._transport: asyncio.Transport
        self._is_open = False
        self._deadline_s = monotonic_s() + IDLE_S
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = self._read_s = self._end_s = 0.0

    # Used by the transport of the client

    def exchange(
        self, message: bytes, *, now_s: float, first_byte_s: float, read_s: float, end_s: float, head_only: bool
    ) -> asyncio.Future[HttpResponse]:
        """Send a request; the future gets the response, an OSError or MalformedResponse.

        `now_s` is the time on the clock. The exchange ends at `first_byte_s` if nothing of the response has come, and
        later when nothing comes for `read_s`; at `end_s` it ends in any case.
        """
        response = self._response = self._loop.create_future()
        self._read_s, self._end_s = read_s, end_s
        self._deadline_s = first_byte_s
        if self._timer is None or self._timer_s > self._deadline_s:
            self._set_timer(now_s)
        self._parser.begin(head_only=head_only)
        self._transport.write(message)
        return response

    def is_idle(self) -> bool:
        """Whether the connection is open and the last exchange was completed."""
        return self._is_open and self._response is None

    def is_closing(self) -> bool:
        """Whether it was closed, by either side; `lost` says when that is complete."""
        return not self._is_open

    def is_alive(self, now_s: float) -> bool:
        """Whether an idle connection can be reused: it is open, not too old, and the server has not closed it."""
        if not self._is_open:
            return False
        left_s = self._deadline_s - now_s
        if left_s > IDLE_S - _JUST_USED_S:
            return True
        # The loop may not have noticed yet that the server has closed it.
        return left_s > 0 and not is_readable(self._transport.get_extra_info("socket").fileno())

    def end(self) -> None:
        """Close the connection: an idle one in order, so that the end of TLS is announced, another one at once."""
        if self.is_idle():
            self._stop()
            self._transport.close()
        elif self._is_open:
            self._abort()

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is established."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        self._is_open = True

    def data_received(self, data: bytes) -> None:
        """Bytes of the response have arrived."""
        future = self._response
        if future is None:  # nothing was requested
            self._abort()
            return
        try:
            response = self._parser.receive(data)
        except MalformedResponse as error:
            self._fail(error)
            return
        now_s = monotonic_s()
        if response is None:
            self._deadline_s = min(now_s + self._read_s, self._end_s)
            return
        self._response = None
        self._deadline_s = now_s + IDLE_S
        if self._transport.get_write_buffer_size():  # the response came before the request was sent whole
            self._abort()
        elif not self._parser.is_reusable:
            self.end()
        if not future.done():
            future.set_result(response)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed."""
        self._stop()
        if not self.lost.done():
            self.lost.set_result(None)
        if error is not None:
            self._fail(error)
        elif self._response is not None and not self._response.done():
            try:
                self._response.set_result(self._parser.end())
            except MalformedResponse as early:
                self._response.set_exception(early)
        self._on_lost(self)

    def _stop(self) -> None:
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _abort(self) -> None:
        self._stop()
        if not self._transport.is_closing():
            reset_on_close(self._transport.get_extra_info("socket"))
        self._transport.abort()

    def _fail(self, error: Exception) -> None:
        self._abort()
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)

    def _set_timer(self, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = self._deadline_s
        self._timer = self._loop.call_later(self._timer_s - now_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now_s = monotonic_s()
        if now_s < self._deadline_s:
            self._set_timer(now_s)
        elif self._response is None:
            self.end()
        elif self._deadline_s < self._end_s:
            self._fail(TimeoutError(f"nothing was received for {self._read_s:g} s"))
        else:
            self._fail(TimeoutError("the response was not complete in time"))


async def connect(
    endpoint: Endpoint,
    settings: HttpSettings,
    on_lost: Callable[[AsyncConnection], None],
) -> AsyncConnection:
    """A new connection to the service.

    Raises:
        OSError, MalformedResponse: it failed.
    """
    loop = asyncio.get_running_loop()
    connected = await _connected_socket(endpoint)
    _, connection = await loop.create_connection(
        lambda: AsyncConnection(endpoint, settings.clock, on_lost),
        sock=connected,
        **_encryption(endpoint, settings.tls),
    )
    return connection


async def _connected_socket(endpoint: Endpoint) -> socket.socket:
    """A socket that is connected to the service, through a tunnel if need be, without TLS. Raises as `connect`."""
    connected = await _socket(endpoint)
    if endpoint.tunnel is not None:
        await _open_tunnel(connected, endpoint.tunnel)
    return connected


def _encryption(endpoint: Endpoint, tls: ssl.SSLContext | None) -> dict[str, Any]:
    """The arguments for TLS with which asyncio opens a connection; none for plain HTTP."""
    if endpoint.server_name is None:
        return {}
    return {"ssl": tls, "server_hostname": endpoint.server_name, "ssl_shutdown_timeout": _TLS_END_S}


async def _socket(endpoint: Endpoint) -> socket.socket:
    if endpoint.socket_path is not None:
        return await _connected((socket.AF_UNIX, socket.SOCK_STREAM, 0, "", endpoint.socket_path))
    addresses = endpoint.numeric_address()  # so that no thread is needed
    if addresses is None:
        loop = asyncio.get_running_loop()
        addresses = alternating(await loop.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM))
    try:
        return await (_connected(addresses[0]) if len(addresses) == 1 else _first_connected(addresses))
    except OSError as error:
        raise OSError("All connection attempts failed") from error


async def _first_connected(addresses: Sequence[AddressInfo]) -> socket.socket:
    """A socket connected to the first address that accepts; each is tried a while after the one before (RFC 8305)."""
    attempts: list[asyncio.Task[socket.socket]] = []
    connected = None
    try:
        for address in addresses:
            attempts.append(asyncio.create_task(_connected(address)))
            is_last = len(attempts) == len(addresses)
            while pending := [attempt for attempt in attempts if not attempt.done()]:
                await asyncio.wait(pending, timeout=None if is_last else _NEXT_ADDRESS_S, return_when="FIRST_COMPLETED")
                connected = next((attempt for attempt in attempts if _succeeded(attempt)), None)
                if connected is not None:
                    return connected.result()
                if not is_last:
                    break
        return attempts[-1].result()  # all have failed
    finally:
        for attempt in attempts:
            if attempt is not connected:
                attempt.cancel()
                attempt.add_done_callback(_discard)


def _succeeded(attempt: asyncio.Task[socket.socket]) -> bool:
    return attempt.done() and not attempt.cancelled() and attempt.exception() is None


def _discard(attempt: asyncio.Task[socket.socket]) -> None:
    if _succeeded(attempt):
        attempt.result().close()


async def _connected(address: AddressInfo) -> socket.socket:
    new = new_socket(address)
    try:
        new.setblocking(False)
        await asyncio.get_running_loop().sock_connect(new, address[4])
    except BaseException:
        new.close()
        raise
    return new


async def _open_tunnel(connected: socket.socket, request: bytes) -> None:
    loop = asyncio.get_running_loop()
    response = TunnelResponse()
    try:
        await loop.sock_sendall(connected, request)
        while not response.receive(await loop.sock_recv(connected, _READ_BYTES)):
            pass
    except BaseException:
        connected.close()
        raise
