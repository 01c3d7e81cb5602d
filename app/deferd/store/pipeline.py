"""A pipeline: one connection on which calls are sent without waiting for the replies to earlier ones.

redis-py's asyncio client takes a connection from a pool for each call, reads the reply in several steps and returns the
connection: a third of the service's time. Here a call is one write and its reply one read, shared with all calls of
the same moment, and the server runs them in the order in which they were made. redis-py still opens the connection
(host of the primary, TLS, user and password, database) and maps error replies to exceptions.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

import hiredis
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ReadOnlyError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

_INCOMPLETE = object()
_SHUTTING_DOWN = "the service is shutting down"


class Pipeline:
    """Calls to the server that `pool` connects to. Each returns or fails within `deadline_s`, connecting included.

    A call is sent once: after redis-py's TimeoutError or ConnectionError its effect is unknown. When one call times
    out, its connection is closed, and all calls that wait on it fail. The next call opens a new connection.
    """

    def __init__(self, pool: ConnectionPool, *, deadline_s: float) -> None:
        self._pool = pool
        self._deadline_s = deadline_s
        self._open: PipelineConnection | None = None
        self._opening: asyncio.Task[PipelineConnection] | None = None
        self._queued: list[tuple[bytes, asyncio.Future[Any], float]] = []
        self._closed = False
        self.connections_opened = 0
        """Connections opened so far. What was learned about the server over one may not hold for the next."""

    @property
    def is_open(self) -> bool:
        """Whether a call would be sent at once."""
        return self._open is not None and not self._open.closed

    async def call(self, *args: str | bytes | float) -> Any:
        """Run one command and return the reply. Raises redis-py's error for an error reply."""
        return await self.send(*args)

    def send(self, *args: str | bytes | float) -> asyncio.Future[Any]:
        """Send one command now, ahead of later ones. The future gets its reply."""
        must_end_at = asyncio.get_running_loop().time() + self._deadline_s
        command = pack(args)
        connection = self._open
        if connection is not None and not connection.closed:
            return connection.send(command, must_end_at)
        return self._send_when_open(command, must_end_at)

    async def connection(self) -> PipelineConnection:
        """The open connection, or a new one, for calls that must all go to the same server."""
        while (connection := self._open) is None or connection.closed:
            await self.send("PING")
        return connection

    async def close(self) -> None:
        """Close the connection. Calls in progress fail, and so do all later ones."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        if self._open is not None:
            self._open.abort(_SHUTTING_DOWN)

    def _send_when_open(self, command: bytes, must_end_at: float) -> asyncio.Future[Any]:
        """Queue the command until the connection is open. The queue is sent in order, ahead of later calls.

        The deadline for opening, which began earlier, bounds the wait.
        """
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._closed:
            reply.set_exception(RedisConnectionError(_SHUTTING_DOWN))
            return reply
        self._queued.append((command, reply, must_end_at))
        if self._opening is None:
            self._opening = asyncio.create_task(self._open_connection())
            self._opening.add_done_callback(self._on_opened)
        return reply

    async def _open_connection(self) -> PipelineConnection:
        async with asyncio.timeout(self._deadline_s):
            connection: Any = self._pool.make_connection()
            try:
                await connection.connect()
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            return PipelineConnection(connection)

    def _on_opened(self, opening: asyncio.Task[PipelineConnection]) -> None:
        self._opening = None
        queued, self._queued = self._queued, []
        error: BaseException | None = RedisConnectionError(_SHUTTING_DOWN)
        if not opening.cancelled():
            error = opening.exception()
            if isinstance(error, TimeoutError):
                error = RedisTimeoutError(f"no connection within {self._deadline_s} s")
        if error is None:
            self._open = opening.result()
            self.connections_opened += 1
        for command, reply, must_end_at in queued:
            if reply.done():  # its caller was cancelled
                continue
            if error is not None:
                reply.set_exception(error)
            elif self._open is not None:
                self._open.send(command, must_end_at, reply)


def pack(command: tuple[str | bytes | float, ...]) -> bytes:
    """A command as it is sent."""
    packed: bytes = hiredis.pack_command(cast("tuple[str]", command))  # any number, though its stub says one
    return packed


class PipelineConnection(asyncio.Protocol):
    """An open connection, taken over from redis-py after its handshake with the server."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        parser: Any = connection._parser
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=parser.parse_error, notEnoughData=_INCOMPLETE
        )
        self._connection: Any = connection
        writer = cast("asyncio.StreamWriter", connection._writer)
        self._transport = writer.transport
        self._transport.set_protocol(self)
        self.closed = self._transport.is_closing()  # then connection_lost is not called on this protocol

    def send(
        self, command: bytes, must_end_at: float, future: asyncio.Future[Any] | None = None
    ) -> asyncio.Future[Any]:
        """Send a packed command. The future gets its reply, or a time-out at `must_end_at` on the loop's clock."""
        if future is None:
            future = self._loop.create_future()
        if self.closed:  # between opening and this call
            future.set_exception(RedisConnectionError("the connection to the store broke"))
            return future
        self._waiting.append((future, must_end_at))
        timer = self._timer
        if timer is None or must_end_at < timer.when():  # it may end before an earlier command does: a WAIT
            if timer is not None:
                timer.cancel()
            self._timer = self._loop.call_at(must_end_at, self._check_deadline)
        self._transport.write(command)
        return future

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._reader.feed(data)
        try:
            while not self.closed and (reply := self._reader.gets()) is not _INCOMPLETE:
                self._deliver(reply)
        except InvalidResponse as exc:
            self.abort(f"the store sent an invalid reply: {exc}")

    def _deliver(self, reply: Any) -> None:
        if not self._waiting:
            self.abort("the store sent a reply without a command")
            return
        future, _ = self._waiting.popleft()
        if isinstance(reply, RedisError):
            if not future.done():
                future.set_exception(reply)
            # It is no longer the primary. Servers before 7.0 wrap the error when it comes from a script.
            if isinstance(reply, ReadOnlyError) or "-READONLY " in str(reply):
                self.abort("the store became a read-only replica")
        elif not future.done():  # otherwise its caller was cancelled
            future.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._end(RedisConnectionError(f"the connection to the store broke: {exc or 'closed by the store'}"))

    def abort(self, reason: str) -> None:
        """Close at once. Calls in progress fail with this reason."""
        self._end(RedisConnectionError(reason))

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        _, must_end_at = self._waiting[0]
        if self._loop.time() < must_end_at:
            self._timer = self._loop.call_at(must_end_at, self._check_deadline)
        else:
            self._end(RedisTimeoutError("no response in time"))

    def _end(self, error: RedisError) -> None:
        if self.closed:
            return
        self.closed = True
        self._transport.abort()
        self._connection._close()  # otherwise redis-py warns about an unclosed socket
        if self._timer is not None:
            self._timer.cancel()
        for future, _ in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
