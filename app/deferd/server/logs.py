"""Logging of the service: one line per record on standard error, for people (`console`) or machines (`json`).

Fields of a record go into ``extra={...}``: JSON lines show them as fields, console lines omit them because the message
has them. Records of libraries have the same format.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import select
import sys
import threading
from collections import deque
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal, NamedTuple

from deferd.contract.timestamps import format_instant

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_LEVEL_WIDTH = len("CRITICAL")
_CONTROL_CODES = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_ESCAPES = {code: repr(chr(code))[1:-1] for code in _CONTROL_CODES}
"""Escapes, as in Python, for all characters that can break a line or control a terminal."""
_ESCAPES_IN_TRACES = {code: text for code, text in _ESCAPES.items() if chr(code) not in "\t\n"}


def configure(log_format: Literal["console", "json"], log_level: str) -> None:
    """Send every record of `log_level` (debug, info, warning, error, critical) or above to standard error.

    A record never waits for who reads that: see `LogWriter`. May be called again: the last call counts.
    """
    handler = LogWriter()
    handler.setFormatter(JsonLines() if log_format == "json" else ConsoleLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(log_level.upper())
    logging.captureWarnings(True)
    # uvicorn logs its start and end at INFO; the service does so itself, in one line each.
    logging.getLogger("uvicorn").setLevel(max(root.level, logging.WARNING))
    uvicorn_errors = logging.getLogger("uvicorn.error")
    uvicorn_errors.removeFilter(_is_new)
    uvicorn_errors.addFilter(_is_new)
    logging.getLogger("asyncio").setLevel(max(root.level, logging.INFO))


class ConsoleLines(logging.Formatter):
    """``2030-01-31T09:30:00.000Z WARNING  deferd.store: text``; a traceback follows on further lines."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as a line; line breaks and terminal controls in the message are escaped."""
        message = record.getMessage().translate(_ESCAPES)
        line = f"{_time(record)} {record.levelname:<{_LEVEL_WIDTH}} {record.name}: {message}"
        trace = _trace(self, record).translate(_ESCAPES_IN_TRACES)
        return f"{line}\n{trace}" if trace else line


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, pid, message, the extra fields, and `exception` if any."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as a JSON object without line breaks."""
        fields: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS | fields.keys()}
        trace = _trace(self, record)
        if trace:
            fields["exception"] = trace
        return json.dumps(fields, default=str)


def _is_new(record: logging.LogRecord) -> bool:
    """False for what the service has logged itself: a failed start, and each request that was aborted at shutdown."""
    aborted = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not aborted and not record.getMessage().startswith("Application startup failed")


def _time(record: logging.LogRecord) -> str:
    return format_instant(datetime.fromtimestamp(record.created, UTC))


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info and record.exc_info[1] else []
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)


WAITING_MAX_BYTES = 1024 * 1024
FLUSH_S = 0.25
"""At exit lines are written as long as one is within this time."""
_STDERR = 2
_RETRY_S = 1.0


_OWN_LOGGER = "deferd.server.log_writer"
"""In the line about dropped lines: filters of logs know the name."""


class _Line(NamedTuple):
    """Bytes to write, and how many records are lost without them."""

    content: bytes
    records: int = 1


class LogWriter(logging.Handler):
    """Writes records to a file descriptor without ever waiting for who reads it, from a thread of its own.

    A terminal that was stopped with Ctrl-S, a log collector that hangs, a disk that is full: the lines wait in a
    bounded queue of this process, and the thread writes them. What does not fit is dropped, and counted in a line that
    says so later. A process forked from this one writes itself.
    """

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
                if not self._changed.wait_for(partial(self._has_written_since, done), FLUSH_S):
                    return

    def _has_written_since(self, done: int) -> bool:
        return self._done != done

    def _encoded(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(self._encoding, "backslashreplace")

    def _add(self, line: _Line) -> None:
        self._lines.append(line)
        self._bytes += len(line.content)
        self._changed.notify_all()

    def _report_dropped(self) -> None:
        """Add a line that says how many records were dropped, behind those that were not."""
        if self._dropped:
            values = {"name": _OWN_LOGGER, "levelno": logging.WARNING, "levelname": "WARNING", "count": self._dropped}
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
