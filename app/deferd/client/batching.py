"""Joins concurrent calls of one client into batches: a group commit on the client's side.

A call that arrives alone is sent at once. Calls that arrive while a request for the same group is under way are
collected and go together in the next one, so none waits for others to arrive. `AsyncBatching` does this for the tasks
of an event loop, `BlockingBatching` for threads, one of which sends the batch that it waits for.

At most AT_ONCE requests of a group hold up its other calls, each for HOLD_S: a request that takes longer, for example
because it hangs, no longer counts. This is checked every HOLD_S / 2, so a call waits in the client for less than
1.5 HOLD_S, and a group has at most AT_ONCE requests under way for each HOLD_S of the time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Hashable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from deferd.contract.clocks import monotonic_s
from deferd.contract.errors import DeferdError

Result = TypeVar("Result")

AT_ONCE = 2
"""Requests of a group at the same time: while the service works on one, the client prepares another."""
HOLD_S = 0.5
MOST_JOBS = 500
MOST_BYTES = 512 * 1024
MOST_BYTES_OF_ONE = 64 * 1024
"""A larger call is sent by itself at once."""
_GROUPS_KEPT = 1000


class Call(ABC, Generic[Result]):
    """One call of the user. `piece` is its JSON in a batch.

    After its batch it has a `value` or an `error`, or it is `again` to be sent by itself; `doubtful` if it may have
    been executed.
    """

    __slots__ = ("again", "began_s", "doubtful", "error", "piece", "value", "waiter")

    def __init__(self) -> None:
        self.began_s: float | None = None
        """When it began to wait for a batch; None if it was sent at once."""
        self.piece = b""
        self.waiter: Any = None
        self.value: Any = None
        self.error: DeferdError | None = None
        self.again = False
        self.doubtful = False

    @abstractmethod
    def json(self) -> bytes:
        """The call in a batch. Raises InvalidInput if it cannot be written as JSON."""

    @abstractmethod
    async def send_alone(self) -> Result:
        """Send it as a request of its own, with regard to `doubtful` and the time since `began_s`."""

    def wait(self, waiter: Any) -> None:
        """Begin to wait for a batch; `waiter` belongs to the Batching."""
        self.began_s = monotonic_s()
        self.waiter = waiter

    def fail(self, error: DeferdError) -> None:
        """End with an error."""
        self.error = error
        self.again = False

    def succeed(self, value: Result) -> None:
        """End with a value."""
        self.value = value
        self.again = False

    def send_again(self, *, doubtful: bool) -> None:
        """Let it be sent by itself, because the batch had no result for it."""
        self.again = True
        self.doubtful = doubtful

    async def outcome(self) -> Result:
        """The result after its batch. Raises its error."""
        if self.again:
            return await self.send_alone()
        if self.error is not None:
            raise self.error
        value: Result = self.value
        return value


class CallKind(Protocol):
    """Sends batches of calls of one kind. `most_jobs` and `most_bytes` adapt to what the service accepts."""

    most_jobs: int
    most_bytes: int

    async def send_batch(self, calls: list[Any]) -> None:
        """Send calls in one request and set the outcome of each. Raises nothing of the service."""


class Batching(Protocol):
    """Runs calls, joined into batches where there are several at the same time."""

    async def run(self, kind: CallKind, key: Hashable, call: Call[Result]) -> Result:
        """The result of a call; calls with the same `kind` and `key` may share a request."""


class _Slot:
    """A request under way that holds up other calls, with `count` calls in it. `over`: it has its response."""

    __slots__ = ("began_s", "count", "over")

    def __init__(self, count: int) -> None:
        self.began_s = monotonic_s()
        self.count = count
        self.over = False


class CallGroup:
    """The calls of one kind and key that wait, and the requests that hold them up."""

    def __init__(self, kind: CallKind) -> None:
        self.kind = kind
        self.waiting: deque[Call[Any]] = deque()
        self.slots: list[_Slot] = []

    def begin(self, count: int) -> _Slot:
        """Count a request as under way."""
        slot = _Slot(count)
        self.slots.append(slot)
        return slot

    def has_room(self) -> bool:
        """Whether waiting calls may be sent now."""
        return len(self.slots) < AT_ONCE

    def drop_ended(self) -> None:
        """Stop counting requests that are over or have held up others for HOLD_S."""
        oldest_s = monotonic_s() - HOLD_S
        self.slots = [slot for slot in self.slots if not slot.over and slot.began_s > oldest_s]

    def take(self) -> list[Call[Any]]:
        """The calls of the next batch: all that wait, but no more than their share of the requests under way.

        With equal shares the requests overlap: the client encodes and decodes one while the service works on another.
        """
        outstanding = len(self.waiting) + sum(slot.count for slot in self.slots)
        most_jobs = min(-(-outstanding // AT_ONCE), self.kind.most_jobs)
        batch: list[Call[Any]] = []
        size = 0
        while self.waiting and len(batch) < most_jobs:
            size += len(self.waiting[0].piece) + 1
            if batch and size > self.kind.most_bytes:
                break
            batch.append(self.waiting.popleft())
        if len(batch) > 1:
            for call in batch:
                call.send_again(doubtful=True)  # unless its batch ends with another outcome for it
        return batch


_Group = TypeVar("_Group", bound=CallGroup)


def _without_idle(groups: dict[Hashable, _Group]) -> dict[Hashable, _Group]:
    """The groups, without those that are not in use if there are many."""
    if len(groups) < _GROUPS_KEPT:
        return groups
    return {key: group for key, group in groups.items() if group.waiting or group.slots}


class AsyncBatching:
    """Batching for one event loop, that of its last call: the transport refuses calls of others."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _AsyncGroup] = {}
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None

    async def run(self, kind: CallKind, key: Hashable, call: Call[Result]) -> Result:
        loop = asyncio.get_running_loop()
        if self._owner is None or self._owner[1] is not loop or self._owner[0] != os.getpid():
            self._groups, self._owner = {}, (os.getpid(), loop)  # after a fork, the parent process sends its calls
        group = self._groups.get((kind, key))
        if group is None:
            self._groups = _without_idle(self._groups)
            group = self._groups[kind, key] = _AsyncGroup(kind, loop)
        return await group.run(call)


class _AsyncGroup(CallGroup):
    def __init__(self, kind: CallKind, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(kind)
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._flushes_soon = False
        self._flushes_later = False
        self._checks_holds = False

    async def run(self, call: Call[Result]) -> Result:
        if not self.slots:
            return await self._send_alone(call, self.begin(1))
        call.piece = call.json()
        if len(call.piece) > MOST_BYTES_OF_ONE:
            return await call.send_alone()
        slot = await self._turn(call)
        return await (call.outcome() if slot is None else self._send_alone(call, slot))

    async def _send_alone(self, call: Call[Result], slot: _Slot) -> Result:
        try:
            return await call.send_alone()
        finally:
            self._end(slot)

    async def _turn(self, call: Call[Any]) -> _Slot | None:
        """Wait until the call has its outcome, or is to be sent by itself in the slot."""
        waiter: asyncio.Future[_Slot | None] = self._loop.create_future()
        call.wait(waiter)
        self.waiting.append(call)
        if self.has_room():
            self._flush_soon()
        if not self._checks_holds:
            self._checks_holds = True
            self._loop.call_later(HOLD_S, self._check_holds)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and (slot := waiter.result()) is not None:
                self._end(slot)
            raise

    def _end(self, slot: _Slot) -> None:
        """End a request. Tasks that it woke make their next calls first: those join the next batch."""
        slot.over = True
        if self.waiting or slot.count > 1:
            if self._flushes_soon and slot.count > 1:
                self._flushes_later = True
            self._flush_soon()
        else:
            self.drop_ended()

    def _flush_soon(self) -> None:
        """Flush when the tasks that can run now have run: the calls that they make join the batch."""
        if not self._flushes_soon:
            self._flushes_soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes_soon = False
        if self._flushes_later:  # another batch has ended: its tasks run first
            self._flushes_later = False
            self._flush_soon()
            return
        self.drop_ended()
        while self.waiting and self.has_room():
            batch = [call for call in self.take() if not call.waiter.done()]  # others were cancelled
            if len(batch) == 1:
                batch[0].send_again(doubtful=False)
                batch[0].waiter.set_result(self.begin(1))
            elif batch:
                task = self._loop.create_task(self._send(batch, self.begin(len(batch))))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _send(self, batch: list[Call[Any]], slot: _Slot) -> None:
        """Send a batch. It has a task of its own, so that no caller's cancellation ends it."""
        try:
            with contextlib.suppress(Exception):  # each call is sent by itself then, and raises it
                await self.kind.send_batch(batch)
        finally:
            for call in batch:
                if not call.waiter.done():
                    call.waiter.set_result(None)
            self._end(slot)

    def _check_holds(self) -> None:
        """Let calls pass requests that take too long."""
        self._checks_holds = bool(self.waiting)
        if self._checks_holds:
            self._loop.call_later(HOLD_S / 2, self._check_holds)
            self._flush()


class BlockingBatching:
    """Batching for any number of threads."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._groups: dict[Hashable, _ThreadGroup] = {}

    async def run(self, kind: CallKind, key: Hashable, call: Call[Result]) -> Result:
        if self._pid != os.getpid():  # after a fork, the parent process sends its calls and holds its locks
            self._lock, self._groups, self._pid = threading.Lock(), {}, os.getpid()
        with self._lock:
            group = self._groups.get((kind, key))
            if group is None:
                self._groups = _without_idle(self._groups)
                group = self._groups[kind, key] = _ThreadGroup(kind)
        return await group.run(call)


class _Turn(NamedTuple):
    """A batch and the call whose thread sends it."""

    first: Call[Any]
    batch: list[Call[Any]]
    slot: _Slot


class _Waiter:
    """A waiting thread. It is woken when its call has an outcome, or when it is to send the batch of its `turn`."""

    __slots__ = ("is_main", "thread", "turn", "woken")

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.is_main = self.thread is threading.main_thread()
        self.turn: _Turn | None = None
        self.woken = threading.Lock()
        self.woken.acquire()


class _ThreadGroup(CallGroup):
    def __init__(self, kind: CallKind) -> None:
        super().__init__(kind)
        self._lock = threading.Lock()

    async def run(self, call: Call[Result]) -> Result:
        with self._lock:
            slot = None if self.slots else self.begin(1)
        if slot is not None:
            try:
                return await call.send_alone()
            finally:
                self._end(slot)
        call.piece = call.json()
        if len(call.piece) > MOST_BYTES_OF_ONE:
            return await call.send_alone()
        waiter = _Waiter()
        call.wait(waiter)
        try:
            self._wait(call, waiter)
            if waiter.turn is not None and waiter.turn.first is call:
                if len(waiter.turn.batch) == 1:
                    return await call.send_alone()
                await self.kind.send_batch(waiter.turn.batch)
        except BaseException:  # Ctrl-C, for example, or an exception that another thread raises in this one
            self._withdraw(call)
            raise
        finally:
            if waiter.turn is not None and waiter.turn.first is call:
                self._end_turn(waiter.turn)
        return await call.outcome()

    def _wait(self, call: Call[Any], waiter: _Waiter) -> None:
        """Wait until the call has its outcome, or this thread is to send its batch."""
        with self._lock:
            self.waiting.append(call)
            self._flush()
        while not waiter.woken.acquire(timeout=HOLD_S / 2):
            with self._lock:
                if self._is_forgotten(call, waiter.turn):
                    return
                self._flush()

    def _is_forgotten(self, call: Call[Any], turn: _Turn | None) -> bool:
        """Whether nobody will wake the thread of a call, because an exception in another thread came in between."""
        if turn is not None:
            return turn.first is call or turn.slot.over or not turn.first.waiter.thread.is_alive()
        if call in self.waiting:
            return False
        call.send_again(doubtful=True)
        return True

    def _withdraw(self, call: Call[Any]) -> None:
        with self._lock:
            if call in self.waiting:
                self.waiting.remove(call)

    def _end_turn(self, turn: _Turn) -> None:
        self._end(turn.slot)
        for other in turn.batch:
            if other is not turn.first:
                other.waiter.woken.release()

    def _end(self, slot: _Slot) -> None:
        with self._lock:
            slot.over = True
            self._flush()

    def _flush(self) -> None:
        """Give waiting threads turns as far as there is room.

        The main thread sends no batch: Ctrl-C would end it.
        """
        self.drop_ended()
        while self.waiting and self.has_room():
            batch = self.take()
            first = next((call for call in batch if not call.waiter.is_main), batch[0])
            turn = _Turn(first, batch, self.begin(len(batch)))
            for call in batch:
                call.waiter.turn = turn
            first.waiter.woken.release()
