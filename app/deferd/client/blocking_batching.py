"""Joins concurrent calls of threads into batches. Each batch is sent by one of the threads that wait for it."""

from __future__ import annotations

import os
import threading
from collections.abc import Hashable
from typing import Any, NamedTuple

from deferd.client.batching import HOLD_S, MOST_BYTES_OF_ONE, Call, CallGroup, CallKind, Result, Slot, without_idle


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
                self._groups = without_idle(self._groups)
                group = self._groups[kind, key] = _ThreadGroup(kind)
        return await group.run(call)


class _Turn(NamedTuple):
    """A batch and the call whose thread sends it."""

    first: Call[Any]
    batch: list[Call[Any]]
    slot: Slot


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

    def _end(self, slot: Slot) -> None:
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
