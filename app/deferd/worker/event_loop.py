"""The event loop of `Worker.run`: stop signals while it runs, and a close that cannot hang."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from deferd.stop_signals import handle_in_loop, restore_in_children, stop_signals

_LEFT_TASKS_S = 1.0


def running_here() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@contextlib.contextmanager
def signals_handled(loop: asyncio.AbstractEventLoop, on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `on_signal` in the loop for each stop signal. After one SIGINT, the next has its default effect.

    Outside the main thread, Python delivers no signals and this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def handle(number: int) -> None:
        nonlocal interrupted
        if number == signal.SIGINT and interrupted:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        interrupted = interrupted or number == signal.SIGINT
        on_signal(signal.Signals(number))

    with contextlib.ExitStack() as handlers:
        for number in stop_signals():
            handlers.callback(_add_handler(loop, number, handle))
        yield


def _add_handler(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, handle: Callable[[int], None]
) -> Callable[[], object]:
    """Call `handle` in the loop when the signal arrives; returns the function that removes it."""
    try:
        handle_in_loop(loop, number, handle, number)
    except NotImplementedError:  # the event loops of Windows
        before = signal.signal(number, lambda number, _frame: loop.call_soon_threadsafe(handle, number))
        restore_in_children(number, before)
        return lambda: signal.signal(number, before or signal.SIG_DFL)
    return lambda: loop.remove_signal_handler(number)


def close(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop like asyncio.run, but do not wait without limit for tasks that ignore their cancellation."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_LEFT_TASKS_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
