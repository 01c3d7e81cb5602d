"""The transport of AsyncClient: exchanges on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from typing import Any

from deferd.client.addresses import Endpoint
from deferd.client.async_connection import AsyncConnection, connect
from deferd.client.async_stream import AsyncStream
from deferd.client.http1 import HttpResponse, MalformedResponse
from deferd.client.requests import ApiRequest
from deferd.client.response_stream import ResponseStream
from deferd.client.transport import HttpSettings, closed, no_answer, not_sent
from deferd.contract.real_time import monotonic_s


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
                stream = await AsyncStream.open(endpoint, settings.tls)
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
