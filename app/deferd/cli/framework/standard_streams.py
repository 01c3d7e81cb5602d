"""Handles standard input, output and error that are closed or cannot be written to."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Final, TextIO

_MODES: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}
_WRITE_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def open_closed_streams(*, output_counts: bool) -> None:
    """Put the null device where a standard stream is closed (``<&- >&- 2>&-``), for this process and its children.

    Otherwise the next socket or file gets its number: libuv aborts on that, and what a library prints goes there. Input
    is empty then. With `output_counts`, output fails as it does with a closed stream, because what the command prints
    must not be lost unnoticed (a popped job, the token of a key); else it is dropped.
    """
    for number, (name, mode) in enumerate(_MODES.items()):
        try:
            os.fstat(number)
        except OSError:
            reads = mode == "r" or output_counts
            opened = os.open(os.devnull, os.O_RDONLY if reads else os.O_WRONLY)  # the lowest free number: this one
            os.set_inheritable(opened, True)
            if getattr(sys, name) is None:
                setattr(sys, name, open(number, mode, buffering=1, encoding="utf-8", closefd=False))  # noqa: SIM115 (it stays open)


def is_write_error(error: OSError) -> bool:
    """Whether a standard stream failed: commands report errors of the files that they use themselves."""
    return error.filename is None and error.errno in _WRITE_ERRORS


def discard(stream: TextIO | None) -> None:
    """Drop the stream's buffer, so that the interpreter does not try to write it again when it exits."""
    if stream is not None:
        with contextlib.suppress(OSError, ValueError):  # a stream of a test has no descriptor
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
