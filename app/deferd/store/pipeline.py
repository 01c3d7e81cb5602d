"""A pipeline: one connection on which calls are sent without waiting for the replies to earlier ones.

redis-py's asyncio client takes a connection from a pool for each call, reads the reply in several steps and returns the
connection: a third of the service's time. Here a call is one write and its reply one read, shared with all calls of
the same moment, and the server runs them in the order in which they were made. redis-py still opens the connection
(host of the primary, TLS, user and password, database) and maps error replies to exceptions.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterable
from math import inf
from typing import Any, cast

import hiredis
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, NoPermissionError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.contract.clocks import RemoteClock

TOO_LATE = "TOOLATE"
"""First word of the error of a script that did nothing; the clock in ms follows."""
READ_AGAIN_S = 5.0
"""The clock is read again with the first call after this time."""


class NotAfter:
    """The last argument of a call of a script: the connection sends the instant at which the caller gives up.

    That is when the call would time out, or at `until_s` on the event loop's clock if that is earlier.
    """

    __slots__ = ("until_s",)

    def __init__(self, until_s: float = inf) -> None:
        self.until_s = until_s


NOT_AFTER = NotAfter()
"""For a caller that waits until the call times out."""


class CallTooLate(ResponseError):
    """A script did nothing: its caller had given it up, or the server's clock was set forward."""


class ServerClock(RemoteClock):
    """The clock of the server at the other end of a connection.

    A call that is given up may still be on its way: in the kernel's queues, in the network, or at a server that hangs.
    So each call of a script carries the instant at which its caller gives it up, by the clock of the server that runs
    it, and the script does nothing from then on (`engine/lua/lib/calls.lua`). That holds however late the call arrives,
    because the instant computed here is never later than the server's own clock shows when the caller gives up: what is
    known of that clock is a reading and the time since its reply was received, which is less than the time since the
    clock was read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read_again_at_s = -inf
        """When it is to be read again, on the monotonic clock."""
        self.is_reading = False
        """Whether a reading is under way."""
        self.error: Exception | None = None
        """Why it cannot be read: the store's user lacks the permission."""

    def note_reading(self, reading: asyncio.Future[Any]) -> None:
        """Handle the result of a reading."""
        self.is_reading = False
        error = None if reading.cancelled() else reading.exception()
        if isinstance(error, NoPermissionError):
            self.error = error
        elif error is None and not reading.cancelled():
            self.error = None
            self.note_reply(reading.result())

    def note_reply(self, reply: Any) -> None:
        """Note a reply to TIME at its reception."""
        self.note_ms(int(reply[0]) * 1000 + int(reply[1]) / 1000)

    def note_ms(self, now_ms: float) -> None:
        """See RemoteClock."""
        self.read_again_at_s = time.monotonic() + READ_AGAIN_S
        super().note_ms(now_ms)

    def at(self, until_s: float) -> int:
        """The earliest time, in ms, that it can show at `until_s` on the event loop's clock."""
        if sys.platform == "darwin":  # elsewhere both are one; here uvloop's also counts while the machine sleeps
            now_s = time.monotonic()
            until_s = min(until_s, now_s + until_s - asyncio.get_running_loop().time())
        return super().at(until_s)


def given_up_at(args: tuple[Any, ...], until_s: float) -> tuple[Any, ...]:
    """The arguments of a call that its caller gives up at `until_s` at the latest, on the event loop's clock."""
    last = args[-1]
    return (*args[:-1], NotAfter(min(until_s, last.until_s))) if isinstance(last, NotAfter) else args


Command = tuple[str | bytes | float | NotAfter, ...]
_Call = tuple[asyncio.Future[Any], float, bool]
"""A call that waits for its reply: until when on the event loop's clock, and whether it has a `NotAfter`."""
ASKING: Command = ("ASKING",)
"""To a node of a cluster to which the slot of the next call is being moved."""
_INCOMPLETE = object()
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
"""For SO_LINGER: what the kernel has not sent yet is dropped when the socket is closed, also at the process's end."""
_SHUTTING_DOWN = "the service is shutting down"


class Pipeline:
    """Calls to the server that `pool` connects to. Each returns or fails within `deadline_s`, connecting included.

    A call is sent once: after redis-py's TimeoutError or ConnectionError its effect is unknown. When one call times
    out, its connection is closed, and the next call opens a new one. Other calls that wait on it fail at once, except
    those with a `NotAfter`: they may be executed until the instant that they carry, and fail then. A connection that
    the server, or something on the way to it, breaks fails all at once.
    """

    def __init__(self, pool: ConnectionPool, *, deadline_s: float) -> None:
        self._pool = pool
        self._deadline_s = deadline_s
        self._open: PipelineConnection | None = None
        self._opening: asyncio.Task[PipelineConnection] | None = None
        self._queued: list[tuple[Command, asyncio.Future[Any], float]] = []
        self._former: list[PipelineConnection] = []
        """Closed connections with calls that have not failed yet."""
        self._closed = False
        self.connections_opened = 0
        """Connections opened so far. What was learned about the server over one may not hold for the next."""

    @property
    def is_open(self) -> bool:
        """Whether a call would be sent at once."""
        return self._open is not None and not self._open.closed

    async def call(self, *args: str | bytes | float | NotAfter) -> Any:
        """Run one command and return the reply. Raises redis-py's error for an error reply."""
        return await self.send(*args)

    def send(self, *args: str | bytes | float | NotAfter) -> asyncio.Future[Any]:
        """Send one command now, ahead of later ones. The future gets its reply."""
        must_end_at = asyncio.get_running_loop().time() + self._deadline_s
        connection = self._open
        if connection is not None and not connection.closed:
            return connection.send(args, must_end_at)
        return self._send_when_open(args, must_end_at)

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
        for connection in (*self._former, self._open):
            if connection is not None:
                connection.abort(_SHUTTING_DOWN)

    def _send_when_open(self, command: Command, must_end_at: float) -> asyncio.Future[Any]:
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
            clock = ServerClock()
            try:
                await connection.connect()
                await connection.send_command("TIME", check_health=False)
                try:
                    clock.note_reply(await connection.read_response())
                except NoPermissionError as exc:  # calls that need no clock can be made
                    clock.error = exc
                return PipelineConnection(connection, clock)
            except BaseException:
                await connection.disconnect(nowait=True)
                raise

    def _on_opened(self, opening: asyncio.Task[PipelineConnection]) -> None:
        self._opening = None
        queued, self._queued = self._queued, []
        error: BaseException | None = RedisConnectionError(_SHUTTING_DOWN)
        if not opening.cancelled():
            error = opening.exception()
            if isinstance(error, TimeoutError):
                error = RedisTimeoutError(f"no connection within {self._deadline_s} s")
        if error is None:
            self._former = [former for former in (*self._former, self._open) if former is not None and former.has_calls]
            self._open = opening.result()
            self.connections_opened += 1
        for command, reply, must_end_at in queued:
            if reply.done():  # its caller was cancelled
                continue
            if error is not None:
                reply.set_exception(error)
            elif self._open is not None:
                self._open.send(command, must_end_at, reply)


def pack(command: Command) -> bytes:
    """A command as it is sent."""
    packed: bytes = hiredis.pack_command(cast("tuple[str]", command))  # any number, though its stub says one
    return packed


class PipelineConnection(asyncio.Protocol):
    """An open connection, taken over from redis-py after its handshake with the server, whose clock was read."""

    def __init__(self, connection: AbstractConnection, clock: ServerClock) -> None:
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._waiting: deque[_Call] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf
        """When it fires. That of uvloop does not say if it is for an instant that has passed."""
        self._parser: Any = connection._parser
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=self._error_of, notEnoughData=_INCOMPLETE
        )
        self._connection: Any = connection
        writer = cast("asyncio.StreamWriter", connection._writer)
        self._transport = writer.transport
        with contextlib.suppress(OSError):  # the server has ended
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.set_protocol(self)
        self.closed = self._transport.is_closing()  # then connection_lost is not called on this protocol

    @property
    def has_calls(self) -> bool:
        """Whether calls wait for a reply, or have not failed yet."""
        return bool(self._waiting)

    def send(
        self, command: Command, must_end_at: float, future: asyncio.Future[Any] | None = None
    ) -> asyncio.Future[Any]:
        """Send a command. The future gets its reply, or a time-out at `must_end_at` on the loop's clock.

        In place of a `NotAfter`, the last argument, the instant of the server's clock is sent at which the caller gives
        up: `must_end_at`, if it names none that is earlier.
        """
        if future is None:
            future = self._loop.create_future()
        if self.closed:  # between opening and this call
            future.set_exception(RedisConnectionError("the connection to the store broke"))
            return future
        clock = self._clock
        last = command[-1]
        if has_instant := isinstance(last, NotAfter):
            if clock.error is not None or time.monotonic() > clock.read_again_at_s:
                self.refresh_clock(must_end_at)
                if clock.error is not None:
                    future.set_exception(clock.error)
                    return future
            command = (*command[:-1], clock.at(min(must_end_at, last.until_s)))
        elif clock.error is not None or command == ASKING:  # nothing may come between that and the next call
            self.refresh_clock(must_end_at)
        self._waiting.append((future, must_end_at, has_instant))
        if self._timer is None or must_end_at < self._timer_s:  # it may end before an earlier command does: a WAIT
            self._set_timer(must_end_at)
        self._transport.write(pack(command))
        return future

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(at_s, self._check_deadline), at_s

    def refresh_clock(self, must_end_at: float) -> None:
        """Read the server's clock again if that is due."""
        clock = self._clock
        if not clock.is_reading and time.monotonic() > clock.read_again_at_s:
            clock.is_reading = True
            self.send(("TIME",), must_end_at).add_done_callback(clock.note_reading)

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
        future, _, _ = self._waiting.popleft()
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
        if not self.closed:
            self.abort(f"the connection to the store broke: {exc or 'closed by the store'}")

    def abort(self, reason: str) -> None:
        """Close at once. Calls in progress fail with this reason, also those that are left of a call's time-out."""
        self._close()
        self._fail(RedisConnectionError(reason), self._waiting)
        self._waiting.clear()

    def _error_of(self, text: str) -> RedisError:
        """The error for an error reply, at its reception."""
        if text.startswith(TOO_LATE):
            self._clock.note_ms(int(text.split()[1]))  # what is sent again gets an instant of this clock
            return CallTooLate(text)
        error: RedisError = self._parser.parse_error(text)
        return error

    def _check_deadline(self) -> None:
        self._timer = None
        if self._waiting and (self.closed or self._loop.time() >= self._waiting[0][1]):
            self._time_out()
        elif self._waiting:
            self._set_timer(self._waiting[0][1])

    def _time_out(self) -> None:
        """Close, and fail all calls but those with an instant that is not over: they may still be executed."""
        self._close()
        now_s = self._loop.time()
        left, ended = deque[_Call](), list[_Call]()
        for call in self._waiting:
            _, must_end_at, has_instant = call
            (left if has_instant and now_s < must_end_at else ended).append(call)
        self._waiting = left
        self._fail(RedisTimeoutError("no response in time"), ended)
        if left:
            self._set_timer(min(must_end_at for _, must_end_at, _ in left))

    def _close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self.closed:
            self.closed = True
            self._transport.abort()
            self._connection._close()  # otherwise redis-py warns about an unclosed socket

    @staticmethod
    def _fail(error: RedisError, calls: Iterable[_Call]) -> None:
        for future, _, _ in calls:
            if not future.done():
                future.set_exception(error)
