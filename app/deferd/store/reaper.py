"""Stops the embedded store when its service was killed.

A small process, the reaper, holds the read ends of two pipes. Only the service holds the write end of the first; the
service and its server processes hold that of the second. The system closes them when these processes die. Pipes work
on Linux and macOS; a parent-death signal exists on Linux only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from pathlib import Path

from deferd.store import reaper_process
from deferd.store.process_end import end_of

_log = logging.getLogger("deferd.store")

RESTART_PAUSE_S = 1.0
STOP_S = 2.0


class StoreReaper:
    """The process that stops the store when this process has died and its server processes have ended.

    It waits for the server processes, which inherit `serving_fd`, for at most `linger_s`. The store is the process that
    locks `lock_file`.
    """

    def __init__(self, lock_file: Path, linger_s: float) -> None:
        self._lock_file = lock_file
        self._linger_s = linger_s
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._store_pid = 0
        self._alive_read, self._alive_write = os.pipe()
        self._serving_read, self.serving_fd = os.pipe()

    async def start(self) -> None:
        """Start the reaper, and start another whenever it ends. Raises OSError."""
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep(), name="store-reaper")

    def watch(self, store_pid: int) -> None:
        """Set the process id of the store; 0 when there is none."""
        self._store_pid = store_pid
        os.write(self._alive_write, b"%d\n" % store_pid)

    async def stop(self) -> None:
        """Stop the reaper, after the store has ended."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
            self._keeper = None
        if self._process is not None:
            self.watch(0)
        for end in (self._alive_write, self.serving_fd, self._alive_read, self._serving_read):
            os.close(end)
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), STOP_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()

    async def _spawn(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", reaper_process.__file__),
            *(str(self._lock_file), str(self._store_pid), str(self._serving_read), str(self._linger_s)),
            cwd="/",
            stdin=self._alive_read,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            pass_fds=(self._serving_read,),
            start_new_session=True,  # Ctrl-C and the end of the terminal must not stop it
        )

    async def _keep(self) -> None:
        while self._process is not None:
            code = await self._process.wait()
            _log.warning("the store's reaper exited unexpectedly (%s); starting another", end_of(code))
            await asyncio.sleep(RESTART_PAUSE_S)
            try:
                await self._spawn()
            except OSError as exc:
                _log.error("the store's reaper cannot be started: %s", exc)
