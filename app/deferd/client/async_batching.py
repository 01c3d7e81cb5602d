"""Joins concurrent calls of the tasks of an event loop into batches."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Hashable
from typing import Any

from deferd.client.batching import HOLD_S, MOST_BYTES_OF_ONE, Call, CallGroup, CallKind, Result, Slot, without_idle


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
            self._groups = without_idle(self._groups)
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

    async def _send_alone(self, call: Call[Result], slot: Slot) -> Result:
        try:
            return await call.send_alone()
        finally:
            self._end(slot)

    async def _turn(self, call: Call[Any]) -> Slot | None:
        """Wait until the call has its outcome, or is to be sent by itself in the slot."""
        waiter: asyncio.Future[Slot | None] = self._loop.create_future()
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

    def _end(self, slot: Slot) -> None:
        """End a request. Tasks that it woke make their next calls first: those join the next batch."""
        slot.over = True
        if self.waiting or slot.count > 1:
            if self._flushes_soon and slot.count > 1:
                self._flushes_later = True
            self._flush_soon()
        else:
            self.drop_ended()

    def _flush_soon(self) -> None:
        """Flush when the tasks that can run now have run: what they call meanwhile joins the batch."""
        if not self._flushes_soon:
            self._flushes_soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushes_soon = False
        if self._flushes_later:  # a batch ended meanwhile: its tasks run first
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

    async def _send(self, batch: list[Call[Any]], slot: Slot) -> None:
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
