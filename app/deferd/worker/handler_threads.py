"""Threads for plain handlers.

They are daemon threads. Those of concurrent.futures are joined when the interpreter exits, so one handler that hangs
would keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import sys
import threading
import traceback
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
    """Runs functions in threads, which are started on demand and then reused. It belongs to one event loop.

    The number of threads is not limited here: it is the largest number of functions that ran at a time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pid = os.getpid()
        self._work: SimpleQueue[_Work | None] = SimpleQueue()
        self._ended: deque[tuple[_Work, _Ended]] = deque()
        self._delivery_scheduled = False
        self._busy = 0
        self._threads = 0

    async def run(self, function: Callable[[], Any]) -> Any:
        """Run a function and return its value, or raise its exception. It sees the caller's context variables."""
        future: asyncio.Future[_Ended] = self._loop.create_future()
        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            name = f"deferd-worker-{self._threads}"
            threading.Thread(target=self._run_thread, name=name, daemon=True).start()
        self._work.put(_Work(function, contextvars.copy_context(), future))
        value, error = await future
        if error is None:
            return value
        try:
            raise error
        finally:
            del error  # it refers to this frame

    def close(self) -> None:
        """End the threads, each when its function has returned."""
        for _ in range(self._threads):
            self._work.put(None)

    def _run_thread(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                ended = _Ended(work.context.run(work.function), None)
            except BaseException as error:  # noqa: BLE001 (SystemExit must end the handler, not the thread)
                ended = _Ended(None, error)
            exit_in_child(self._pid, ended.error)
            self._ended.append((work, ended))
            del work, ended
            # One callback serves all functions that end before it runs. It resets the flag before it reads the queue.
            if not self._delivery_scheduled:
                self._delivery_scheduled = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the result
                    self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._delivery_scheduled = False
        while self._ended:
            work, ended = self._ended.popleft()
            self._busy -= 1
            if not work.future.done():
                work.future.set_result(ended)


def exit_in_child(pid: int, error: BaseException | None) -> None:
    """End this process if it is not `pid`, with the exit code of a program that raised `error`, or nothing.

    A handler, or what it called, has forked, and the child has returned from the handler. It shares the connections and
    the event loop of the worker, so it would report the job a second time, and take the worker's jobs.
    """
    if os.getpid() == pid:
        return
    code = 0
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        code = error.code or 0
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # it may be None, closed or full
            stream.flush()
    os._exit(code & 0xFF)
