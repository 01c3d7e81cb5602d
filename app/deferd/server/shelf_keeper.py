"""Starts the process that owns the shelf, restarts it whenever it dies, and stops it.

The process locks `shelf.lock` in the data directory by an open file that it inherits, as the store does: so that lock
is held exactly as long as a process uses the files, even after its service was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import cast

from msgspec import json

from deferd.contract.errors import StoreUnavailable
from deferd.engine.shelf import OPENING
from deferd.server.startup_errors import CannotServe
from deferd.settings import Settings, flag
from deferd.shelf.calls import ShelfConfiguration
from deferd.shelf.client import ShelfClient
from deferd.stop_signals import leave_process_group
from deferd.store.data_dir import DataDirectory, lock_within
from deferd.store.embedded import TAKE_OVER_S
from deferd.store.supervision import keep_running
from deferd.store.task_cancellation import cancel_and_wait
from deferd.store.valkey_process import end_of

_log = logging.getLogger("deferd.shelf")

STOP_S = 3.0
"""How long the process may take to end after SIGTERM."""
START_S = 30.0
"""How long a start waits for the shelf; then the service serves without it."""
_POLL_S = 0.02
_MODULE = "deferd.server.shelf_process"


def is_needed(settings: Settings) -> bool:
    """Whether the service needs a shelf: it is to have one, or an earlier service has left jobs on one."""
    if settings.redis_url is not None:
        return False
    return settings.shelf_after is not None or DataDirectory(settings.data_dir).shelf_dir.exists()


class ShelfKeeper:
    """Keeps the process of a service running, on the embedded store at `store_url`."""

    def __init__(self, settings: Settings, store_url: str, *, linger_s: float) -> None:
        self._after_s = settings.shelf_after
        self._data_dir = DataDirectory(settings.data_dir)
        self._configuration = ShelfConfiguration(
            folder=str(self._data_dir.shelf_dir),
            socket=str(self.socket),
            store_url=store_url,
            shards=settings.shards,
            movable_clock=settings.test_clock,
            store_timeout_s=settings.store_timeout,
            after_ms=None if settings.shelf_after is None else round(settings.shelf_after * 1000),
            linger_s=linger_s,
            log_format=settings.log_format,
            log_level=settings.log_level,
        )
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def socket(self) -> Path:
        """Where the process serves calls."""
        return self._data_dir.shelf_socket

    async def start(self) -> None:
        """Start the process, and wait until it serves or knows why it cannot.

        A process that an earlier service left running is ended first.

        Raises:
            CannotServe: it cannot be started.
            StoreRefused: the data directory is not writable.
        """
        if find_spec("rocksdict") is None:
            raise CannotServe(
                f"the shelf ({flag('shelf_after')}, or {self._data_dir.shelf_dir} of an earlier service) needs the "
                "package rocksdict, which is not available here"
            )
        if self._after_s is None:
            _log.info("%s is not set: jobs on the shelf come back into the store", flag("shelf_after"))
        await self._end_predecessor()
        await self._wait_until_served(await self._launch())
        supervision = keep_running("the shelf's process", self._ended, self._launch, CannotServe, _log)
        self._supervisor = asyncio.create_task(supervision, name="shelf-keeper")

    async def stop(self) -> None:
        """Stop the process (SIGTERM, after 3 s SIGKILL). Does nothing if it is not running."""
        if self._supervisor is not None:
            await cancel_and_wait({self._supervisor})
            self._supervisor = None
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        self.socket.unlink(missing_ok=True)

    async def _launch(self) -> asyncio.subprocess.Process:
        lock = await self._wait_for_lock()
        if lock is None:
            raise CannotServe(f"another process still uses the shelf in {self._data_dir.shelf_dir}")
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", _MODULE),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=(lock,),
                preexec_fn=leave_process_group,
            )
            self._data_dir.note_pid(lock, process.pid)
        except OSError as exc:
            raise CannotServe(f"the shelf's process cannot be started: {exc}") from exc
        finally:
            os.close(lock)  # from here on only the process holds it
        configured = cast("asyncio.StreamWriter", process.stdin)
        with contextlib.suppress(ConnectionError):  # it has died already
            configured.write(json.encode(self._configuration) + b"\n")
            await configured.drain()
        return process

    async def _wait_until_served(self, process: asyncio.subprocess.Process) -> None:
        """Wait until jobs can be moved, or there is a reason why not, which the process logs."""
        client = ShelfClient(self.socket)
        clock = asyncio.get_running_loop().time
        end_s = clock() + START_S
        try:
            while process.returncode is None and clock() < end_s:
                with contextlib.suppress(StoreUnavailable):
                    if (await client.status()).fault != OPENING:
                        return
                await asyncio.sleep(_POLL_S)
        finally:
            await client.close()
        if process.returncode is not None:
            raise CannotServe(f"the shelf's process did not start ({end_of(process.returncode)})")
        _log.warning("the shelf does not serve after %.0f s; serving without it until it does", START_S)

    async def _ended(self) -> str:
        """Wait until the process has ended; returns why."""
        process = cast("asyncio.subprocess.Process", self._process)  # supervised from its first launch on
        return end_of(await process.wait())

    async def _end_predecessor(self) -> None:
        """End the process of a service that was killed; it may still serve that service's server processes."""
        lock = self._data_dir.try_shelf_lock()
        if lock is None:
            pid = self._data_dir.shelf_pid()
            _log.warning("the shelf's process of an earlier service (process %s) is still running; ending it", pid)
            client = ShelfClient(self.socket)
            with contextlib.suppress(StoreUnavailable):
                await client.end()
            await client.close()
            lock = await self._wait_for_lock()
            if lock is None and pid is not None and _is_shelf(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                lock = await self._wait_for_lock()
            if lock is None:
                raise CannotServe(
                    f"the shelf's process of an earlier service (process {pid}) uses {self._data_dir.shelf_dir} and "
                    "cannot be ended: kill it"
                )
        os.close(lock)

    async def _wait_for_lock(self) -> int | None:
        return await lock_within(self._data_dir.try_shelf_lock, TAKE_OVER_S)


def _is_shelf(pid: int) -> bool:
    """Whether the process is one of a shelf; False where /proc does not exist."""
    try:
        return _MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
