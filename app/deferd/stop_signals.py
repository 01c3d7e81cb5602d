"""The signals that ask a process to stop, and how a server process handles them."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

_log = logging.getLogger("deferd")


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT, and SIGHUP (the terminal was closed) unless it is ignored, as under `nohup`."""
    always = (signal.SIGTERM, signal.SIGINT)
    hangup: signal.Signals | None = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:
        return always
    return (*always, hangup)


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
            loop.add_signal_handler(number, self._received, number)

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
