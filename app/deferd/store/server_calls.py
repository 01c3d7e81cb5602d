"""The calls to one server, those that replicas confirm too, and its durability. A cluster has these for each node."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any, NamedTuple

from redis.asyncio import ConnectionPool
from redis.exceptions import AskError, NoPermissionError, ReadOnlyError, RedisError, ResponseError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError

from deferd.store.durability_levels import StoreDurability
from deferd.store.pipeline import ASKING, Command, NotAfter, Pipeline, PipelineConnection, given_up_at
from deferd.store.task_cancellation import forget_error


class ServerCalls:
    """Calls to the server that new connections of `pool` lead to. `place` is its name in errors.

    In place of a `NotAfter` as last argument, each sends the instant at which the caller gives up. `call` runs one
    command and returns the reply, and raises redis-py's error for an error reply. `call_replicated` does the same, and
    returns when that number of replicas has the effect; see `ReplicatedCalls.call`.

    `durability` is how durable calls are by default at the server that ran the last one, or else would run the next.
    `probe` reads that now and returns the level; it raises redis-py's errors when the server does not respond.
    """

    def __init__(self, pool: ConnectionPool, *, timeout_s: float, confirm_s: float, place: str = "the store") -> None:
        self.pipeline = Pipeline(pool, deadline_s=timeout_s)
        self.durability = StoreDurability(self.pipeline, place)
        self.probe = self.durability.probe
        self.call = self.pipeline.call
        self._pool = pool
        self._replicated = ReplicatedCalls(pool, deadline_s=timeout_s, within_s=confirm_s)
        self.call_replicated = self._replicated.call

    @property
    def server(self) -> ServerCalls:
        """The calls to the server that ran the last call, or else would run the next: here always these."""
        return self

    async def call_probed(self, *args: str | bytes | float | NotAfter) -> Any:
        """As `call`. Right after the reply, `durability.level` holds for this call."""
        self.durability.refresh()
        return await self.pipeline.send(*args)

    async def close(self) -> None:
        """Close all connections, for good. Calls in progress fail."""
        await self._replicated.close()
        await self.pipeline.close()
        await self._pool.aclose()


MARKER_CHANNEL = "deferd:confirm"
_MARKER: Command = ("PUBLISH", MARKER_CHANNEL, "")
_WRITE_AND_DELETE = "redis.call('SET', KEYS[1], '') redis.call('DEL', KEYS[1])"
_REPLICA_ERRORS = ("replica instances", "UNBLOCKED")
"""Parts of the error of WAIT at a server that is a replica, or became one during the call."""
CALLS_PER_BATCH = 40
IN_SYNC_WAIT_S = 0.25
"""How long replicas may take to catch up before a batch is refused."""
_WAIT_SHARE = 0.9
"""The part of a call's time that its WAIT may take, so that its result comes before the call times out."""


class TooFewReplicas(Exception):
    """Nothing was sent: fewer replicas are in sync than the call requires."""

    def __init__(self, required: int, in_sync: int) -> None:
        self.required = required
        self.in_sync = in_sync
        super().__init__(f"{in_sync} of {required} replicas are in sync")


class NotReplicated(Exception):
    """The call was or may have been executed, but the replicas did not confirm it in time."""

    def __init__(self, required: int, within_s: float) -> None:
        self.required = required
        self.within_s = within_s
        super().__init__(f"{required} replicas did not confirm within {within_s:g} s")


class MissingPermission(NoPermissionError):
    """Nothing was sent: the store's user lacks a permission that confirmation by replicas needs."""

    def __init__(self) -> None:
        super().__init__(f"the store's user needs permission for WAIT, and for PUBLISH on {MARKER_CHANNEL}")


class WaitUnsupported(ResponseError):
    """Nothing was sent: the store has no command WAIT, so replicas cannot confirm."""

    def __init__(self) -> None:
        super().__init__("the store has no command WAIT")


def marker_in_slot_of(key: str) -> Command:
    """A marker for calls of a key of a cluster. It leaves nothing in the store, so it does no harm when it is late."""
    start = key.find("{")
    end = key.find("}", start + 1)
    tag = key[start + 1 : end] if 0 <= start < end - 1 else key
    return ("EVAL", _WRITE_AND_DELETE, 1, f"deferd:{{{tag}}}:confirm")


class _Call(NamedTuple):
    command: Command
    future: asyncio.Future[Any]
    marker: Command
    asks: bool


class ReplicatedCalls:
    """Calls to the server that `pool` connects to, which return once a number of replicas have them.

    A call takes at most `within_s`. When the server itself does not respond it fails after `deadline_s`.

    This is a group commit over WAIT, which covers the last write of its own connection. So the calls and their WAIT use
    one connection, which a failover cannot replace in between. They are sent in batches: all queued calls, then one
    WAIT for them. Calls that come in the meantime go into the next batch.

    Since 7.2 a connection counts as having written only when its command changed something. A repeated put that finds
    its job changes nothing, and a bare WAIT after it would confirm what no replica has. So each batch ends with a
    marker, which is always replicated: a replica that has it has all that came before. The marker is a PUBLISH. A node
    of a cluster does not replicate that but sends it over the cluster bus, so there it is a write to a key in the slot
    of each call.
    """

    def __init__(self, pool: ConnectionPool, *, deadline_s: float, within_s: float) -> None:
        self._pool = pool
        self._deadline_s = deadline_s
        self._within_s = within_s
        self._batches: dict[int, _Batches] = {}

    async def call(
        self, replicas: int, *args: str | bytes | float | NotAfter, marker: Command = _MARKER, asks: bool = False
    ) -> Any:
        """Run one command, once, and return the reply when `replicas` have its effect and all that came before it.

        In a cluster, `marker` belongs to the call's key. `asks`: send an ASKING right before it, for a key whose slot
        is being moved to this node.

        Raises:
            TooFewReplicas, MissingPermission, WaitUnsupported, NotReplicated, and redis-py's errors.
        """
        batches = self._batches.get(replicas)
        if batches is None:
            pipeline = Pipeline(self._pool, deadline_s=self._deadline_s)
            batches = self._batches[replicas] = _Batches(pipeline, replicas, self._deadline_s, self._within_s)
        args = given_up_at(args, asyncio.get_running_loop().time() + self._within_s)
        try:
            async with asyncio.timeout(self._within_s):
                return await batches.add(args, marker, asks=asks)
        except TimeoutError as exc:
            raise NotReplicated(replicas, self._within_s) from exc

    async def close(self) -> None:
        """Close the connections. Calls in progress fail."""
        for batches in self._batches.values():
            await batches.close()


class _Batches:
    """The batches for one number of replicas, on a connection of their own: a WAIT blocks what comes after it."""

    def __init__(self, pipeline: Pipeline, replicas: int, deadline_s: float, within_s: float) -> None:
        self._pipeline = pipeline
        self._replicas = replicas
        self._deadline_s = deadline_s
        self._within_s = within_s
        self._waiting: deque[_Call] = deque()
        self._task: asyncio.Task[None] | None = None
        self._marker_tested_on: PipelineConnection | None = None

    def add(self, command: Command, marker: Command, *, asks: bool) -> asyncio.Future[Any]:
        """Send the command in the next batch. The future gets its reply."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Call(command, future, marker, asks))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="deferd-replicated")
        return future

    async def close(self) -> None:
        """Close the connection. Calls in progress fail."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._pipeline.close()

    async def _run(self) -> None:
        batch: list[_Call] = []
        try:
            while self._waiting:
                batch = self._next_batch()
                if batch:
                    await self._confirm(batch)
        except asyncio.CancelledError:
            _fail([*batch, *self._waiting], RedisConnectionError("the service is shutting down"))
            raise

    def _next_batch(self) -> list[_Call]:
        batch: list[_Call] = []
        while self._waiting and len(batch) < CALLS_PER_BATCH:
            call = self._waiting.popleft()
            if not call.future.done():  # otherwise its caller was cancelled
                batch.append(call)
        return batch

    async def _confirm(self, batch: list[_Call]) -> None:
        """Send a batch and resolve its futures."""
        try:
            connection = await self._pipeline.connection()
            await self._require_replicas(connection, batch[0])
            await self._send(connection, batch)
        except Exception as exc:  # noqa: BLE001 (every error must reach the callers)
            _fail(batch, exc)

    async def _require_replicas(self, connection: PipelineConnection, first: _Call) -> None:
        """Raise TooFewReplicas unless enough replicas have all that was sent before on this connection.

        Raises MissingPermission or WaitUnsupported where that cannot be determined. On a new connection it also tries
        the marker of the first call, before anything is stored that could not be confirmed.
        """
        connection.refresh_clock(self._end_s())  # the reply to WAIT comes later
        try:
            if self._marker_tested_on is not connection:
                with contextlib.suppress(AskError, TryAgainError):  # the call is redirected, too
                    await self._send_one(connection, first.marker, self._end_s(), asks=first.asks)
                    self._marker_tested_on = connection
            wait = ("WAIT", self._replicas, round(IN_SYNC_WAIT_S * 1000))
            in_sync = await connection.send(wait, self._end_s() + IN_SYNC_WAIT_S)
        except NoPermissionError as exc:
            raise MissingPermission from exc
        except ResponseError as exc:
            if "unknown command" in str(exc).lower():
                raise WaitUnsupported from exc
            if not any(text in str(exc) for text in _REPLICA_ERRORS):
                raise
            connection.abort("the store became a read-only replica")
            raise ReadOnlyError(str(exc)) from exc
        if in_sync < self._replicas:
            raise TooFewReplicas(self._replicas, in_sync)

    async def _send(self, connection: PipelineConnection, batch: list[_Call]) -> None:
        end_s = self._end_s()
        wait_s = self._within_s * _WAIT_SHARE
        sent = [self._send_one(connection, call.command, end_s, asks=call.asks) for call in batch]
        kinds = {(call.marker, call.asks) for call in batch}
        marks = {kind: self._send_one(connection, kind[0], end_s, asks=kind[1]) for kind in kinds}
        wait = connection.send(("WAIT", self._replicas, round(wait_s * 1000)), end_s + wait_s)
        confirmed, *replies = await asyncio.gather(wait, *marks.values(), *sent, return_exceptions=True)
        marked = dict(zip(marks, replies, strict=False))
        for call, reply in zip(batch, replies[len(marks) :], strict=True):
            error = self._error_of(marked[call.marker, call.asks], confirmed)
            if call.future.done():
                continue
            if isinstance(reply, BaseException):
                call.future.set_exception(reply)
            elif error is not None:
                call.future.set_exception(error)
            else:
                call.future.set_result(reply)

    @staticmethod
    def _send_one(connection: PipelineConnection, command: Command, end_s: float, *, asks: bool) -> asyncio.Future[Any]:
        if asks:
            connection.send(ASKING, end_s).add_done_callback(forget_error)  # the call that follows gets one too
        return connection.send(command, end_s)

    def _error_of(self, marked: Any, confirmed: Any) -> Exception | None:
        """Why a batch is not confirmed, or None when it is."""
        for reply in (marked, confirmed):
            if isinstance(reply, RedisError) and not isinstance(reply, ResponseError):
                return reply
            if isinstance(reply, BaseException):
                return NotReplicated(self._replicas, self._within_s)
        return None if confirmed >= self._replicas else NotReplicated(self._replicas, self._within_s)

    def _end_s(self) -> float:
        return asyncio.get_running_loop().time() + self._deadline_s


def _fail(batch: list[_Call], error: Exception) -> None:
    for call in batch:
        if not call.future.done():
            call.future.set_exception(error)
