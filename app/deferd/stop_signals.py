"""The signals that ask a process to stop, how a server process handles them, and what forked children do with them.

An event loop handles signals by a file descriptor that a forked child inherits: a SIGTERM of the child would stop this
process or, where Python resets the descriptor (3.12), nothing. So a child gets back what the signals did before.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("deferd")
_replaced: dict[signal.Signals, tuple[Any, Any]] = {}
"""By signal: its handler before an event loop handled it, and the one that it had then."""
_forking = threading.local()


def leave_process_group() -> None:
    """In a child process of the service, before its program starts: Ctrl-C then goes to the service, which ends it.

    It stays in the session, as Linux schedules each session as a whole: what one runs at the lowest priority would get
    as much of the processor as another one.
    """
    os.setpgrp()


def write_in_background() -> None:
    """In a program that `leave_process_group` began: a terminal with `stty tostop` must not stop it when it logs.

    The event loop resets what is ignored before the program starts.
    """
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT, and SIGHUP (the terminal was closed) unless it is ignored, as under `nohup`."""
    always = (signal.SIGTERM, signal.SIGINT)
    hangup: signal.Signals | None = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:
        return always
    return (*always, hangup)


def handle_in_loop(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, callback: Callable[..., object], *arguments: Any
) -> None:
    """As `loop.add_signal_handler`, but a forked child gets back what the signal does now."""
    before = signal.getsignal(number)
    loop.add_signal_handler(number, callback, *arguments)
    restore_in_children(number, before)


def restore_in_children(number: signal.Signals, handler: Any) -> None:
    """Set this handler in a forked child, unless the signal has another one than now by then."""
    _replaced[number] = (signal.SIG_DFL if handler is None else handler, signal.getsignal(number))


def _before_fork() -> None:
    # A signal that reached the child before its handlers are restored would be written to the descriptor.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _replaced) if _replaced else None


def _after_fork() -> None:
    if _forking.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _restore_handlers() -> None:
    restored = {number: before for number, (before, now) in _replaced.items() if signal.getsignal(number) is now}
    _replaced.clear()
    if restored:
        signal.set_wakeup_fd(-1)
    for number, handler in restored.items():
        signal.signal(number, handler)
    _after_fork()


if hasattr(os, "register_at_fork"):  # Windows has none
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_restore_handlers)


class StopSignals:
    """Handles stop signals: the first one calls `on_stop`, a later SIGINT `on_force`.

    By default `on_stop` cancels the task that made this object, and `on_force` does nothing.
    """

    def __init__(self, *, log_level: int = logging.INFO) -> None:
        self._log_level = log_level
        task = asyncio.current_task()
        self.on_stop: Callable[[], object] = task.cancel if task is not None else lambda: None
        self.on_force: Callable[[], object] = lambda: None
        self.stopping = False
        self.forced = False
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            handle_in_loop(loop, number, self._received, number)

    def stop(self, reason: str) -> None:
        """Begin to stop, unless that has begun."""
        if not self.stopping:
            self.stopping = True
            _log.log(self._log_level, "stopping: %s", reason)
            self.on_stop()

    def _received(self, number: signal.Signals) -> None:
        if not self.stopping:
            self.stop(number.name)
        elif number is signal.SIGINT and not self.forced:
            self.forced = True
            _log.warning("stopping at once: aborting the requests in progress")
            self.on_force()
