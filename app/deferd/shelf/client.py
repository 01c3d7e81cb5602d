"""The shelf as a server process uses it: calls of the process that owns it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

from msgspec import Raw, msgpack

from deferd.contract.errors import StoreUnavailable
from deferd.engine.scripts import request_ends_at_s
from deferd.engine.shelf import Asked, Page, Status, Wanted
from deferd.shelf.calls import END, RELEASE, STATUS, STILL, VERBS, BadFrame, Frames, frame
from deferd.store.task_cancellation import forget_error

CALL_S = 5.0
"""How long a call may take, and to connect."""
LOAD_DUE_S = 60.0
"""The same for what loads any number of jobs: only tests call it."""
RESTART_S = 2.0
"""How long calls wait for another process after one has died; later ones fail at once."""
_POLL_S = 0.02
_UNREACHABLE = "the shelf cannot be reached"
_RETRY_S = 1
_READ_TEXT = msgpack.Decoder(str)


class ShelfClient:
    """ShelfCalls on the socket of the shelf's process. It connects at the first call, and again after the process died.

    A call ends with the request that it is for; the shelf may do it nevertheless.
    """

    def __init__(self, socket: Path) -> None:
        self._socket = str(socket)
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[_Connection] | None = None
        self._away_since_s: float | None = None
        """When it was first found that no process serves."""

    async def close(self) -> None:
        """Close the connection. Calls under way fail."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait({self._connecting})
        if self._connection is not None:
            self._connection.close()

    async def load(self, topic: str, ids: Sequence[str], let_go: Sequence[Asked] = (), at_least: int = 0) -> int:
        """See ShelfCalls."""
        generation: int = await self._call("load", topic, list(ids), let_go, at_least)
        return generation

    async def load_due(self, until_ms: int) -> None:
        """See ShelfCalls."""
        await self._call("load_due", until_ms, within_s=LOAD_DUE_S)

    async def keep(self, topic: str) -> None:
        """See ShelfCalls."""
        await self._call("keep", topic)

    @contextlib.asynccontextmanager
    async def still(self, topic: str) -> AsyncIterator[None]:
        """See ShelfCalls."""
        end_s = _end_s(CALL_S)
        connection = await self._connected(end_s)
        number = connection.next_number()
        try:
            await connection.call(number, STILL, (topic,), end_s)
            yield
        except BaseException:
            connection.send(connection.next_number(), RELEASE, (number,))  # nobody waits for the reply
            raise
        await connection.call(connection.next_number(), RELEASE, (number,), _end_s(CALL_S))

    async def page(
        self, topic: str, wanted: Wanted, most: int, after: tuple[int, str] | None = None, *, reverse: bool = False
    ) -> Page:
        """See ShelfCalls."""
        page: Page = await self._call("page", topic, wanted, most, after, reverse)
        return page

    async def with_tag(self, topic: str, tag: str, most: int, after: str = "", *, reverse: bool = False) -> list[str]:
        """See ShelfCalls."""
        ids: list[str] = await self._call("with_tag", topic, tag, most, after, reverse)
        return ids

    async def topics_with_tag(self, tag: str) -> list[str]:
        """See ShelfCalls."""
        topics: list[str] = await self._call("topics_with_tag", tag)
        return topics

    async def counts_before(self, topic: str, times_ms: Sequence[int]) -> list[int]:
        """See ShelfCalls."""
        counts: list[int] = await self._call("counts_before", topic, list(times_ms))
        return counts

    async def first_due(self, topic: str) -> int | None:
        """See ShelfCalls."""
        due_ms: int | None = await self._call("first_due", topic)
        return due_ms

    async def status(self) -> Status:
        """See ShelfCalls."""
        status: Status = await self._call(STATUS)
        return status

    async def end(self) -> int:
        """End the process; returns its id. Raises StoreUnavailable if it does not respond."""
        pid: int = await self._call(END)
        return pid

    async def _call(self, verb: str, *args: object, within_s: float = CALL_S) -> Any:
        end_s = _end_s(within_s)
        connection = await self._connected(end_s)
        reply = await connection.call(connection.next_number(), verb, args, end_s)
        try:
            return VERBS[verb].read_value(reply)
        except ValueError as exc:  # it is of another release
            raise StoreUnavailable(f"the shelf's reply cannot be read: {exc}", _RETRY_S) from exc

    async def _connected(self, end_s: float) -> _Connection:
        """The connection; all who need one wait for the same attempt, which is bounded."""
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._connecting is None:
            self._connecting = asyncio.create_task(self._connect(), name="shelf-connect")
            self._connecting.add_done_callback(self._on_connected)
        connecting = self._connecting
        await asyncio.wait({connecting}, timeout=max(end_s - asyncio.get_running_loop().time(), 0))
        if not connecting.done():
            raise _too_late()
        if connecting.cancelled():  # by `close`
            raise StoreUnavailable(_UNREACHABLE, _RETRY_S)
        return connecting.result()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(CALL_S):
                    _, connection = await loop.create_unix_connection(_Connection, self._socket)
            except (OSError, TimeoutError) as exc:
                if self._away_since_s is None:
                    self._away_since_s = loop.time()
                if loop.time() > self._away_since_s + RESTART_S:
                    raise StoreUnavailable(_UNREACHABLE, _RETRY_S) from exc
                await asyncio.sleep(_POLL_S)
            else:
                self._connection, self._away_since_s = connection, None
                return connection

    def _on_connected(self, connecting: asyncio.Task[_Connection]) -> None:
        self._connecting = None
        forget_error(connecting)


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.is_open = False
        self._numbers = itertools.count(1)
        self._frames = Frames()
        self._replies: dict[int, asyncio.Future[Raw]] = {}

    def next_number(self) -> int:
        return next(self._numbers)

    def send(self, number: int, verb: str, args: tuple[object, ...]) -> None:
        """Send a call, unless the connection has ended. Raises StoreUnavailable if it is too large."""
        try:
            sent = frame(number, verb, args)
        except BadFrame as exc:
            raise StoreUnavailable(f"the shelf cannot be asked: {exc}") from exc
        if self.is_open:
            self._transport.write(sent)

    async def call(self, number: int, verb: str, args: tuple[object, ...], end_s: float) -> Raw:
        if not self.is_open:
            raise StoreUnavailable(_UNREACHABLE, _RETRY_S)
        self.send(number, verb, args)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(end_s):
                value: Raw = await reply
                return value
        except TimeoutError:
            raise _too_late() from None
        finally:
            del self._replies[number]
            if reply.done():
                forget_error(reply)

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        try:
            for number, is_value, value in self._frames.feed(data):
                self._on_reply(number, is_value, value)
        except (BadFrame, ValueError):
            self._transport.abort()

    def _on_reply(self, number: int, is_value: object, value: Raw) -> None:
        reply = self._replies.get(number)
        if reply is None or reply.done():  # the caller has given up
            return
        if is_value is True:
            reply.set_result(value)
        else:
            reply.set_exception(StoreUnavailable(_READ_TEXT.decode(value), _RETRY_S))

    def connection_lost(self, _: Exception | None) -> None:
        self.is_open = False
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(StoreUnavailable(_UNREACHABLE, _RETRY_S))


def _end_s(within_s: float) -> float:
    """When a call ends, on the event loop's clock."""
    return min(asyncio.get_running_loop().time() + within_s, request_ends_at_s())


def _too_late() -> StoreUnavailable:
    return StoreUnavailable("the shelf did not respond in time", _RETRY_S, timed_out=True)
