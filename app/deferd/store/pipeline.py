"""One connection on which calls follow each other without waiting for answers: a pipeline.

redis-py's asyncio client takes a connection for each call, waits for its answer in several steps and gives it back:
a third of the service's time. Here a call is one write and its answer one read, shared with all calls of the same
moment, and they are carried out in the order in which they were made. Opening a connection (address of the master,
TLS, user and password, database) stays redis-py's; what it says about errors does too.
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
_CLOSED = "the service closes"


class Pipeline:
    """Calls to the server that `pool` leads to. Each answers or fails within `deadline_s`, connecting included.

    A call is sent once: what it did is not known after redis-py's TimeoutError or ConnectionError. A server that
    leaves one call without an answer for so long gets no more on that connection, and all that wait on it fail; the
    next call opens another.
    """

    def __init__(self, pool: ConnectionPool, *, deadline_s: float) -> None:
        self._pool = pool
        self._deadline_s = deadline_s
        self._open: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._in_line: list[tuple[bytes, asyncio.Future[Any], float]] = []
        self._closed = False
        self.opened = 0
        """How many connections were opened so far: what was learned of a server over one may not hold for the next."""

    @property
    def is_open(self) -> bool:
        """Whether a call would go out at once."""
        return self._open is not None and not self._open.closed

    async def call(self, *args: str | bytes | float) -> Any:
        """Run one command and return its answer; an error that the server answers with is raised."""
        return await self.begin(*args)

    def begin(self, *args: str | bytes | float) -> asyncio.Future[Any]:
        """Send one command now, ahead of what is sent later; its answer comes in the future."""
        must_end_at = asyncio.get_running_loop().time() + self._deadline_s
        command = pack(args)
        connection = self._open
        if connection is not None and not connection.closed:
            return connection.send(command, must_end_at)
        return self._send_when_open(command, must_end_at)

    async def connection(self) -> Connection:
        """The open connection, opened if need be, for calls that must all go to one and the same server."""
        while (connection := self._open) is None or connection.closed:
            await self.begin("PING")
        return connection

    async def close(self) -> None:
        """Close the connection; calls under way fail, and so do all later ones."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        if self._open is not None:
            self._open.abort(_CLOSED)

    def _send_when_open(self, command: bytes, must_end_at: float) -> asyncio.Future[Any]:
        """Stand in line for the connection that is being opened: the line goes out in its order, ahead of later calls.

        The wait is bounded by the deadline of opening, which began before.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._closed:
            answer.set_exception(RedisConnectionError(_CLOSED))
            return answer
        self._in_line.append((command, answer, must_end_at))
        if self._opening is None:
            self._opening = asyncio.create_task(self._open_one())
            self._opening.add_done_callback(self._opened)
        return answer

    async def _open_one(self) -> Connection:
        async with asyncio.timeout(self._deadline_s):
            link: Any = self._pool.make_connection()
            try:
                await link.connect()
            except BaseException:
                await link.disconnect(nowait=True)
                raise
            return Connection(link)

    def _opened(self, opening: asyncio.Task[Connection]) -> None:
        self._opening = None
        in_line, self._in_line = self._in_line, []
        error: BaseException | None = RedisConnectionError(_CLOSED)
        if not opening.cancelled():
            error = opening.exception()
            if isinstance(error, TimeoutError):
                error = RedisTimeoutError(f"no connection within {self._deadline_s} s")
        if error is None:
            self._open = opening.result()
            self.opened += 1
        for command, answer, must_end_at in in_line:
            if answer.done():  # its caller has gone
                continue
            if error is not None:
                answer.set_exception(error)
            elif self._open is not None:
                self._open.send(command, must_end_at, answer)


def pack(command: tuple[str | bytes | float, ...]) -> bytes:
    """A command as it goes over the wire."""
    packed: bytes = hiredis.pack_command(cast("tuple[str]", command))  # as many as there are, whatever its stub says
    return packed


class Connection(asyncio.Protocol):
    """An open connection, taken over from redis-py once it has greeted the server."""

    def __init__(self, link: AbstractConnection) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._watch: asyncio.TimerHandle | None = None
        parser: Any = link._parser
        self._reader = hiredis.Reader(
            protocolError=InvalidResponse, replyError=parser.parse_error, notEnoughData=_INCOMPLETE
        )
        self._link: Any = link
        writer = cast("asyncio.StreamWriter", link._writer)
        self._transport = writer.transport
        self._transport.set_protocol(self)
        self.closed = self._transport.is_closing()  # then nobody calls connection_lost here

    def send(
        self, command: bytes, must_end_at: float, answer: asyncio.Future[Any] | None = None
    ) -> asyncio.Future[Any]:
        """Send a packed command; its answer comes in the future, by `must_end_at` on the loop's clock."""
        if answer is None:
            answer = self._loop.create_future()
        if self.closed:  # since it was opened, a moment ago
            answer.set_exception(RedisConnectionError("the connection to the store broke"))
            return answer
        self._waiting.append((answer, must_end_at))
        watch = self._watch
        if watch is None or must_end_at < watch.when():  # sooner than the end of what was sent before, a WAIT
            if watch is not None:
                watch.cancel()
            self._watch = self._loop.call_at(must_end_at, self._look_at_the_time)
        self._transport.write(command)
        return answer

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._reader.feed(data)
        try:
            while not self.closed and (reply := self._reader.gets()) is not _INCOMPLETE:
                self._answer(reply)
        except InvalidResponse as exc:
            self.abort(f"the store sent what is no answer: {exc}")

    def _answer(self, reply: Any) -> None:
        if not self._waiting:
            self.abort("the store answered what nobody had asked")
            return
        answer, _ = self._waiting.popleft()
        if isinstance(reply, RedisError):
            if not answer.done():
                answer.set_exception(reply)
            # It was the master, and is no longer. Servers before 7.0 wrap the error when it came from a script.
            if isinstance(reply, ReadOnlyError) or "-READONLY " in str(reply):
                self.abort("the store became a read-only replica")
        elif not answer.done():  # else its caller has gone
            answer.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        self._end(RedisConnectionError(f"the connection to the store broke: {exc or 'closed by the store'}"))

    def abort(self, reason: str) -> None:
        """Close at once; calls under way fail for this reason."""
        self._end(RedisConnectionError(reason))

    def _look_at_the_time(self) -> None:
        self._watch = None
        if not self._waiting:
            return
        _, must_end_at = self._waiting[0]
        if self._loop.time() < must_end_at:
            self._watch = self._loop.call_at(must_end_at, self._look_at_the_time)
        else:
            self._end(RedisTimeoutError("no answer in time"))

    def _end(self, error: RedisError) -> None:
        if self.closed:
            return
        self.closed = True
        self._transport.abort()
        self._link._close()  # it complains when it is forgotten with its socket open
        if self._watch is not None:
            self._watch.cancel()
        for answer, _ in self._waiting:
            if not answer.done():
                answer.set_exception(error)
        self._waiting.clear()
