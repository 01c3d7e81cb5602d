"""Logging of the service: one line a record on standard error, for people (`console`) or for machines (`json`).

A record's own facts go into ``extra={...}``; as JSON they are fields of their own, on the console they are left out
(the message says them). Lines of the libraries come out in the same form.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_LEVEL_WIDTH = len("CRITICAL")
_CONTROL_CODES = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)
_WRITTEN_OUT = {code: repr(chr(code))[1:-1] for code in _CONTROL_CODES}
"""All that can break a line or command a terminal, as one would write it in Python."""
_WRITTEN_OUT_IN_TRACES = {code: text for code, text in _WRITTEN_OUT.items() if chr(code) not in "\t\n"}


def configure(log_format: Literal["console", "json"], log_level: str) -> None:
    """Send every record of `log_level` (debug, info, warning, error, critical) or above to standard error.

    May be called again: the last call counts.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else ConsoleLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(log_level.upper())
    logging.captureWarnings(True)
    # uvicorn tells of its own start and end at INFO; the service says that itself, in one line each.
    logging.getLogger("uvicorn").setLevel(max(root.level, logging.WARNING))
    uvicorn_errors = logging.getLogger("uvicorn.error")
    uvicorn_errors.removeFilter(_is_news)
    uvicorn_errors.addFilter(_is_news)
    logging.getLogger("asyncio").setLevel(max(root.level, logging.INFO))


class ConsoleLines(logging.Formatter):
    """``2030-01-31T09:30:00.000Z WARNING  deferd.store: text``; a traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as a line, line breaks inside the message shown as ``\\n`` so that no text can pose as a line.

        What would command a terminal is shown in the same way.
        """
        message = record.getMessage().translate(_WRITTEN_OUT)
        line = f"{_instant(record)} {record.levelname:<{_LEVEL_WIDTH}} {record.name}: {message}"
        trace = _trace(self, record).translate(_WRITTEN_OUT_IN_TRACES)
        return f"{line}\n{trace}" if trace else line


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, pid, message, the record's own facts, and `exception` if any."""

    def format(self, record: logging.LogRecord) -> str:
        """One record as a JSON object without line breaks."""
        fields: dict[str, Any] = {
            "time": _instant(record),
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


def _is_news(record: logging.LogRecord) -> bool:
    """False for what uvicorn repeats: that the start failed, and the traceback of each request that was cut off."""
    cut_off = record.exc_info is not None and isinstance(record.exc_info[1], asyncio.CancelledError)
    return not cut_off and not record.getMessage().startswith("Application startup failed")


def _instant(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = [formatter.formatException(record.exc_info)] if record.exc_info and record.exc_info[1] else []
    if record.stack_info:
        parts.append(record.stack_info)
    return "\n".join(parts)
