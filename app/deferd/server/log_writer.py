"""Writes log lines to standard error without ever waiting for who reads it.

A terminal that was stopped with Ctrl-S, a log collector that hangs, a disk that is full: the lines wait in a bounded
queue of this process, and a thread writes them. What does not fit is dropped, and counted in a line that says so later.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections import deque
from typing import NamedTuple

WAITING_MAX_BYTES = 1024 * 1024
FLUSH_S = 0.25
"""At exit lines are written as long as one is within this time."""
_STDERR = 2
_RETRY_S = 1.0


class _Line(NamedTuple):
    """Bytes to write, and how many records are lost without them."""

    content: bytes
    records: int = 1


class LogWriter(logging.Handler):
    """Writes records to a file descriptor, from a thread of its own. A process forked from this one writes itself."""

    def __init__(self, descriptor: int = _STDERR, *, waiting_max_bytes: int = WAITING_MAX_BYTES) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._max_bytes = waiting_max_bytes
        self._encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        self._thread: threading.Thread | None = None
        self._is_forked = False
        self._start_empty()
        if hasattr(os, "register_at_fork"):  # a worker may run on Windows
            os.register_at_fork(after_in_child=self._after_fork)

    def _start_empty(self) -> None:
        self._changed = threading.Condition()  # reentrant: a finalizer that logs may run at any allocation below
        self._lines: deque[_Line] = deque()
        self._bytes = 0
        self._is_full = False
        self._done = 0
        self._dropped = 0
        self._error: str | None = None

    def _after_fork(self) -> None:
        """The thread is not in the child, another one may hold the lock, and the parent writes the waiting lines."""
        self._start_empty()
        self._is_forked = True

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record. Returns at once."""
        try:
            line = _Line(self._encoded(record))
        except Exception:  # noqa: BLE001 (a handler of logging raises nothing)
            self.handleError(record)
            return
        if self._is_forked:
            self._write(line.content)
            return
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
                self._thread.start()
            # Once it was full, half of it must be free: else every other line would say that one was dropped.
            room = self._max_bytes // 2 if self._is_full else self._max_bytes
            if self._lines and self._bytes + len(line.content) > room:
                self._is_full = True
                self._dropped += 1
                return
            self._is_full = False
            self._report_dropped()
            self._add(line)

    def flush(self) -> None:
        """Wait until all lines are written, or none was within FLUSH_S. `logging` calls this when the process exits."""
        with self._changed:
            while self._lines and self._thread is not None:
                done = self._done
                # mypy infers no type for the default of a lambda
                if not self._changed.wait_for(lambda done=done: self._done != done, FLUSH_S):  # type: ignore[misc]
                    return

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(self._encoding, "backslashreplace")

    def _add(self, line: _Line) -> None:
        self._lines.append(line)
        self._bytes += len(line.content)
        self._changed.notify_all()

    def _report_dropped(self) -> None:
        """Add a line that says how many records were dropped, behind those that were not."""
        if self._dropped:
            values = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING", "count": self._dropped}
            reason = self._error or "nobody read standard error"
            lines = "1 log line was" if self._dropped == 1 else f"{self._dropped} log lines were"
            text = f"{lines} dropped: {reason}"
            self._add(_Line(self._encoded(logging.makeLogRecord({**values, "msg": text})), self._dropped))
            self._dropped, self._error = 0, None

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._lines and self._error is None:
                    self._report_dropped()
                while not self._lines:
                    self._changed.wait()
                line = self._lines[0]
            error = self._write(line.content)
            with self._changed:
                self._lines.popleft()
                self._bytes -= len(line.content)
                self._done += 1
                if error is not None:
                    self._dropped += line.records
                    self._error = error  # it is reported with the next record: to try at once would fail again
                self._changed.notify_all()

    def _write(self, line: bytes) -> str | None:
        """Write a line, however long that takes; returns why that is not possible."""
        left = memoryview(line)
        while left:
            try:
                left = left[os.write(self._descriptor, left) :]
            except BlockingIOError:  # another process has made this terminal or pipe non-blocking
                select.select((), (self._descriptor,), (), _RETRY_S)
            except OSError as exc:
                return exc.strerror or str(exc)
        return None
