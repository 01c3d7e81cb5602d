"""Threads for plain handlers.

concurrent.futures would do, but it waits at the interpreter's exit for all its threads, so that one handler that is
stuck would keep the process from ending. These are daemon threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NamedTuple


class _Work(NamedTuple):
    function: Callable[[], Any]
    context: contextvars.Context
    future: asyncio.Future[_Ended]


class _Ended(NamedTuple):
    value: Any
    error: BaseException | None


class DaemonThreads:
    """Runs functions in threads, which are started as they are needed and then kept. It belongs to one event loop.

    There are as many as functions ran at once so far: whoever calls bounds that.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._ended: deque[tuple[_Work, _Ended]] = deque()
        self._wake_up_sent = False
        self._busy = 0
        self._threads = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """Its value, or the exception it raises. Context variables are those of the caller."""
        future: asyncio.Future[_Ended] = self._loop.create_future()
        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            name = f"deferd-worker-{self._threads}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()
        self._work.put(_Work(function, contextvars.copy_context(), future))
        value, error = await future
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # it refers to this frame

    def close(self) -> None:
        """Let the threads end, each when its function has returned."""
        for _ in range(self._threads):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                ended = _Ended(work.context.run(work.function), None)
            except BaseException as error:  # noqa: BLE001 (also SystemExit ends the handler, not the thread)
                ended = _Ended(None, error)
            self._ended.append((work, ended))
            del work, ended
            # One wake-up for all that end before the loop comes to it. It marks the next as needed before it looks.
            if not self._wake_up_sent:
                self._wake_up_sent = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._wake_up_sent = False
        while self._ended:
            work, ended = self._ended.popleft()
            self._busy -= 1
            if not work.future.done():
                work.future.set_result(ended)
