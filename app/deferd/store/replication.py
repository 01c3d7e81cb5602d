"""Calls that count only when replicas have them too: a group commit over WAIT.

WAIT tells of what its own connection wrote last, so the calls and their WAIT go down one connection, which a failover
cannot exchange in between. They go in rounds: all that wait, then one WAIT for them; what comes meanwhile goes in the
next round.

Since 7.2 a connection counts as having written only when its command changed something. A repeated put that finds its
job changes nothing, and a bare WAIT after it would confirm what no replica has. So each round ends with a PUBLISH,
which replicas are sent in any case: they have all that came before it when they have that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from redis.asyncio import ConnectionPool
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, ReadOnlyError, RedisError, ResponseError

from deferd.store.pipeline import Connection, Pipeline, pack

MARK_CHANNEL = "deferd:confirm"
_MARK = pack(("PUBLISH", MARK_CHANNEL, ""))
_OF_A_REPLICA = ("replica instances", "UNBLOCKED")
"""Parts of the answers to WAIT of a server that is a replica, or became one meanwhile."""
CALLS_A_ROUND = 40
IN_STEP_S = 0.25
"""How long replicas get to catch up before a round is refused."""
_SHARE = 0.9
"""The part of the time for a call that its WAIT may take, so that the caller learns how many replicas had it."""


class TooFewReplicas(Exception):
    """Nothing was sent: fewer replicas are in step than the call asks for."""

    def __init__(self, wanted: int, in_step: int) -> None:
        self.wanted = wanted
        self.in_step = in_step
        super().__init__(f"{in_step} of {wanted} replicas are in step")


class NotReplicated(Exception):
    """The call was carried out, or may have been, and the replicas did not say in time that they have it."""

    def __init__(self, wanted: int, within_s: float) -> None:
        self.wanted = wanted
        self.within_s = within_s
        super().__init__(f"{wanted} replicas did not have it within {within_s:g} s")


class MissingRight(NoPermissionError):
    """Nothing was sent: the store's user may not do what it takes to have calls confirmed."""

    def __init__(self) -> None:
        super().__init__(f"the service's user at the store lacks a right: WAIT, and PUBLISH on {MARK_CHANNEL}")


class WaitUnknown(ResponseError):
    """Nothing was sent: the store has no command WAIT, so it cannot tell what its replicas have."""

    def __init__(self) -> None:
        super().__init__("the store has no command WAIT")


class ReplicatedCalls:
    """Calls to the server that `pool` leads to, which are answered when so and so many replicas have them.

    `within_s` is the most that a call takes; a server that does not answer fails it after `deadline_s`, as it does
    every other call.
    """

    def __init__(self, pool: ConnectionPool, *, deadline_s: float, within_s: float) -> None:
        self._pool = pool
        self._deadline_s = deadline_s
        self._within_s = within_s
        self._rounds: dict[int, _Rounds] = {}

    async def call(self, replicas: int, *args: str | bytes | float) -> Any:
        """Run one command and return its answer once `replicas` have what it did, and all that came before it.

        An error that the server answers with is raised. The command is sent once.

        Raises:
            TooFewReplicas, MissingRight, WaitUnknown, NotReplicated, and redis-py's errors.
        """
        rounds = self._rounds.get(replicas)
        if rounds is None:
            pipeline = Pipeline(self._pool, deadline_s=self._deadline_s)
            rounds = self._rounds[replicas] = _Rounds(pipeline, replicas, self._deadline_s, self._within_s)
        try:
            async with asyncio.timeout(self._within_s):
                return await rounds.join(pack(args))
        except TimeoutError as exc:
            raise NotReplicated(replicas, self._within_s) from exc

    async def close(self) -> None:
        """Close the connections; calls under way fail."""
        for rounds in self._rounds.values():
            await rounds.close()


class _Rounds:
    """The rounds for one number of replicas, on a connection of their own: a WAIT holds up what comes after it."""

    def __init__(self, pipeline: Pipeline, replicas: int, deadline_s: float, within_s: float) -> None:
        self._pipeline = pipeline
        self._replicas = replicas
        self._deadline_s = deadline_s
        self._within_s = within_s
        self._waiting: deque[tuple[bytes, asyncio.Future[Any]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._may_mark_on: Connection | None = None

    def join(self, command: bytes) -> asyncio.Future[Any]:
        """Have the command sent in the next round; its answer comes in the future."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((command, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="deferd-replicated")
        return answer

    async def close(self) -> None:
        """End; those who wait are told."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        await self._pipeline.close()

    async def _run(self) -> None:
        taken: list[tuple[bytes, asyncio.Future[Any]]] = []
        try:
            while self._waiting:
                taken = self._take()
                if taken:
                    await self._confirm(taken)
        except asyncio.CancelledError:
            _fail([*taken, *self._waiting], RedisConnectionError("the service closes"))
            raise

    def _take(self) -> list[tuple[bytes, asyncio.Future[Any]]]:
        taken: list[tuple[bytes, asyncio.Future[Any]]] = []
        while self._waiting and len(taken) < CALLS_A_ROUND:
            one = self._waiting.popleft()
            if not one[1].done():  # else its caller has gone
                taken.append(one)
        return taken

    async def _confirm(self, taken: list[tuple[bytes, asyncio.Future[Any]]]) -> None:
        """Send a round and answer it."""
        try:
            connection = await self._pipeline.connection()
            await self._see_replicas(connection)
            await self._send(connection, taken)
        except Exception as exc:  # noqa: BLE001 (whatever it is, those who asked must hear of it)
            _fail(taken, exc)

    async def _see_replicas(self, connection: Connection) -> None:
        """Raise TooFewReplicas unless so many have, by now, all that was sent before on this connection.

        Raises MissingRight or WaitUnknown where that cannot be asked. On a new one, see also that a round can be
        ended, before anything is stored that could not be confirmed.
        """
        try:
            if self._may_mark_on is not connection:
                await connection.send(_MARK, self._end_s())
                self._may_mark_on = connection
            wait = pack(("WAIT", self._replicas, round(IN_STEP_S * 1000)))
            in_step = await connection.send(wait, self._end_s() + IN_STEP_S)
        except NoPermissionError as exc:
            raise MissingRight from exc
        except ResponseError as exc:
            if "unknown command" in str(exc).lower():
                raise WaitUnknown from exc
            if not any(words in str(exc) for words in _OF_A_REPLICA):
                raise
            connection.abort("the store became a read-only replica")
            raise ReadOnlyError(str(exc)) from exc
        if in_step < self._replicas:
            raise TooFewReplicas(self._replicas, in_step)

    async def _send(self, connection: Connection, taken: list[tuple[bytes, asyncio.Future[Any]]]) -> None:
        end_s = self._end_s()
        wait_s = self._within_s * _SHARE
        sent = [connection.send(command, end_s) for command, answer in taken]
        mark = connection.send(_MARK, end_s)
        wait = connection.send(pack(("WAIT", self._replicas, round(wait_s * 1000))), end_s + wait_s)
        *replies, marked, reached = await asyncio.gather(*sent, mark, wait, return_exceptions=True)
        doubt = self._doubt(marked, reached)
        for (_, answer), reply in zip(taken, replies, strict=True):
            if answer.done():
                continue
            if isinstance(reply, BaseException):
                answer.set_exception(reply)
            elif doubt is not None:
                answer.set_exception(doubt)
            else:
                answer.set_result(reply)

    def _doubt(self, marked: Any, reached: Any) -> Exception | None:
        """Why the answers of a round do not count; None when they do."""
        for reply in (marked, reached):
            if isinstance(reply, RedisError) and not isinstance(reply, ResponseError):
                return reply
            if isinstance(reply, BaseException):
                return NotReplicated(self._replicas, self._within_s)
        return None if reached >= self._replicas else NotReplicated(self._replicas, self._within_s)

    def _end_s(self) -> float:
        return asyncio.get_running_loop().time() + self._deadline_s


def _fail(taken: list[tuple[bytes, asyncio.Future[Any]]], error: Exception) -> None:
    for _, answer in taken:
        if not answer.done():
            answer.set_exception(error)
