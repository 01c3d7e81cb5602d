"""The embedded store: a Valkey that the service starts, restarts and stops, with its data in a directory.

When the service is killed, the store's reaper stops the store. Where that fails too, the
next service on the directory stops it and starts its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import cast
from urllib.parse import quote

from redis.exceptions import RedisError

from deferd.store import reaper_process
from deferd.store.data_dir import DataDirectory, lock_within
from deferd.store.preflight import StoreRefused
from deferd.store.rewrite_priority import let_others_go_before_rewrites
from deferd.store.server_info import LoadProgress
from deferd.store.supervision import keep_running
from deferd.store.task_cancellation import cancel_and_wait
from deferd.store.valkey_process import ValkeyProcess, end_of, socket_client

_log = logging.getLogger("deferd.store")

TAKE_OVER_S = 10.0
"""How long the store of an earlier service may take to end."""
LINGER_S = 2.0
"""How long, beyond their drain time, the store keeps running for the server processes of a service that was killed."""


class EmbeddedStore:
    """A Valkey on a data directory, restarted whenever it dies.

    Call `claim`, `start` and `stop` in this order. Connect to `url` with `deferd.store.connection.connect`. `drain_s`
    is how long server processes, which inherit `inherited`, may take to end after their service was killed.
    """

    def __init__(self, data_dir: Path, *, drain_s: float = 0.0) -> None:
        self._data_dir = DataDirectory(data_dir)
        self._linger_s = drain_s + LINGER_S
        self._reaper: _StoreReaper | None = None
        self._process: ValkeyProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The URL of its Unix socket."""
        return f"unix://{quote(os.fsencode(self._data_dir.socket))}"

    @property
    def pid(self) -> int | None:
        """Process id of the running store, or None."""
        return self._process.pid if self._process is not None and self._process.is_running else None

    @property
    def inherited(self) -> tuple[int, ...]:
        """File descriptors that each server process keeps open. While one does, the store outlives this process."""
        return () if self._reaper is None else (self._reaper.serving_fd,)

    async def load_progress(self) -> LoadProgress | None:
        """How far the store has loaded its data; None when it is not loading, or does not respond."""
        return None if self._process is None else await self._process.load_progress()

    async def fault(self) -> str | None:
        """What is wrong with its disk; see `DiskFault.reason`."""
        return await self._data_dir.fault.reason()

    def claim(self) -> None:
        """Own the data directory; see `DataDirectory.claim` for the errors."""
        self._data_dir.claim()

    async def start(self) -> None:
        """Start the store, wait until its data is loaded, however long that takes, and keep it running.

        A store that an earlier service left running is stopped first. Progress of a long load is logged.

        Raises:
            StoreRefused: it does not start; the text has the end of its log.
        """
        self._data_dir.prepare()
        await self._stop_predecessor()
        try:
            self._reaper = _StoreReaper(self._data_dir.store_lock_file, self._linger_s)
            await self._reaper.start()
        except OSError as exc:
            raise StoreRefused(f"the embedded store's reaper cannot be started: {exc}") from exc
        await self._launch()
        supervision = keep_running("the embedded store", self._ended, self._launch, StoreRefused, _log)
        self._supervisor = asyncio.create_task(supervision, name="embedded-store")

    async def stop(self) -> None:
        """Stop the store (SIGTERM, after 1 s SIGKILL) and release the directory. Does nothing if it is not running."""
        if self._supervisor is not None:
            await cancel_and_wait({self._supervisor})
            self._supervisor = None
        if self._process is not None:
            await self._process.stop()
        if self._reaper is not None:
            await self._reaper.stop()
            self._reaper = None
        self._data_dir.clean_up()
        self._data_dir.release()

    async def _launch(self) -> None:
        """Start a process and wait until it has loaded. When that fails no process is left."""
        lock = await self._wait_for_store_lock()
        if lock is None:
            raise StoreRefused(f"another store process is still running in {self._data_dir.path}")
        try:
            process = self._process = await ValkeyProcess.spawn(self._data_dir, lock)
            self._data_dir.note_pid(lock, process.pid)
            if self._reaper is not None:
                self._reaper.watch(process.pid)
        finally:
            os.close(lock)  # from here on only the store holds it
        try:
            await process.wait_until_loaded()
        except BaseException:
            await process.stop()
            raise

    async def _ended(self) -> str:
        """Wait until the store has ended; returns why."""
        process = cast("ValkeyProcess", self._process)  # supervised from its first launch on
        rewrites = asyncio.create_task(let_others_go_before_rewrites(process.pid), name="store-rewrites")
        try:
            await process.wait()
        finally:
            await cancel_and_wait({rewrites})
        return await process.exit_reason()

    async def _stop_predecessor(self) -> None:
        """Stop the store of a service that was killed."""
        lock = self._data_dir.try_store_lock()
        pid = self._data_dir.store_pid()
        if lock is None:
            _log.warning(
                "a store of an earlier service (process %s) is still running in %s; stopping it",
                pid,
                self._data_dir.path,
            )
            async with socket_client(self._data_dir) as client:
                with contextlib.suppress(RedisError, OSError):
                    await client.execute_command("SHUTDOWN", "NOSAVE")
            lock = await self._wait_for_store_lock()
        if lock is None and pid is not None and self._data_dir.is_store(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            lock = await self._wait_for_store_lock()
        if lock is None:
            raise StoreRefused(
                f"a store of an earlier service (process {pid}) is running in {self._data_dir.path} and cannot be "
                "stopped: kill it"
            )
        os.close(lock)

    async def _wait_for_store_lock(self) -> int | None:
        return await lock_within(self._data_dir.try_store_lock, TAKE_OVER_S)


RESTART_PAUSE_S = 1.0
STOP_S = 2.0


class _StoreReaper:
    """The process that stops the store when this process has died and its server processes have ended.

    It holds the read ends of two pipes. Only this process holds the write end of the first; this process and its server
    processes hold the write end of the second. The system closes them when these processes die. Pipes work on Linux and
    macOS; a parent-death signal exists on Linux only.

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
