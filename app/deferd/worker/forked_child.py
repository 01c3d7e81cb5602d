"""A process that a handler has forked: it must not continue as the worker."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback


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
