"""Logging of the service: one line per record on standard error, for people (`console`) or machines (`json`).

Fields of a record go into ``extra={...}``: JSON lines show them as fields, console lines omit them because the message
has them. Records of libraries have the same format.
"""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime
from typing import Any, Literal

from deferd.contract.timestamps import format_instant
from deferd.server.log_writer import LogWriter

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
