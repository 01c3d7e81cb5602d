"""The disk of an embedded store: syncs directories, and finds why files cannot be written."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from pathlib import Path

MIB = 1024 * 1024
_PROBE_BYTES = 4096
_KEPT_S = 1.0
_LOOK_S = 1.0
"""A file system that hangs must not hold up the call that failed."""
_LOG_TAIL_BYTES = 1000
_WRITE_FAILED = b"recover from AOF write error"
"""In the last line of a store that ended because of it; the line before has how much was written."""


def write_fault(directory: Path, *, needed_bytes: int = _PROBE_BYTES) -> str | None:
    """Why nothing can be written in the directory, found by writing a file without a name; None when that works.

    Fewer free bytes than are needed count as none: a store fails at the first write that is larger.
    """
    try:
        space = os.statvfs(directory)
        free_bytes = (space.f_bavail if os.geteuid() else space.f_bfree) * space.f_frsize
        if space.f_blocks and free_bytes < needed_bytes:
            return f"{os.strerror(errno.ENOSPC)} ({free_bytes // 1024} KiB are free)"
        with tempfile.TemporaryFile(dir=directory, prefix="temp-") as probe:
            probe.write(bytes(_PROBE_BYTES))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as exc:
        return exc.strerror or str(exc)
    return None


class DiskFault:
    """Finds out why an embedded store is down. The result is cached for a second and shared by all callers."""

    def __init__(self, directory: Path, log_file: Path) -> None:
        self._directory = directory
        self._log_file = log_file
        self._look: asyncio.Task[str | None] | None = None
        self._until_s = 0.0

    async def reason(self) -> str | None:
        """A clause about the store; None when its disk is not the reason, or when this is not found out in time."""
        clock = asyncio.get_running_loop().time
        if self._look is None or (self._look.done() and clock() >= self._until_s):
            self._until_s = clock() + _KEPT_S
            self._look = asyncio.create_task(asyncio.to_thread(self._found), name="disk-fault")
        try:
            return await asyncio.wait_for(asyncio.shield(self._look), _LOOK_S)
        except TimeoutError:
            return None

    def _found(self) -> str | None:
        fault = write_fault(self._directory, needed_bytes=MIB)
        return self._last_words() if fault is None else f"its data directory cannot be written: {fault}"

    def _last_words(self) -> str | None:
        try:
            with self._log_file.open("rb") as log:
                log.seek(max(0, self._log_file.stat().st_size - _LOG_TAIL_BYTES))
                last = log.read().splitlines()[-1:]
        except OSError:
            return None
        return "it could not write its append-only file" if any(_WRITE_FAILED in line for line in last) else None


def sync_directory(path: Path) -> None:
    """Sync a directory to disk, so that a power failure does not undo a change of the names in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
