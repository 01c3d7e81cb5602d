"""Serving from several processes: the supervisor owns the socket and the store, its server processes the application.

All server processes accept on one socket, so no connection waits for a process that has died. Each is connected to the
supervisor by a socket pair, its channel: it reads its settings from there, which keeps secrets out of its arguments and
environment, reports there that it serves, and learns from its end that the supervisor has died.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prometheus_client.multiprocess import mark_process_dead
from pydantic import SecretStr

from deferd.server.credential_files import CredentialFiles, read_credentials
from deferd.server.http_server import CLOSING_S
from deferd.server.port_closing import admit_no_more
from deferd.server.serve_context import ServeContext
from deferd.server.server_process import SERVING
from deferd.server.startup_errors import CannotServe
from deferd.settings import Settings
from deferd.stop_signals import StopSignals, leave_process_group
from deferd.store.disk import MIB, write_fault
from deferd.store.valkey_process import end_of

_log = logging.getLogger("deferd.server.supervisor")

START_S = 60.0
"""How long a server process may take until it serves."""
PAUSE_FIRST_S = 0.2
PAUSE_MOST_S = 10.0
PAUSE_WHILE_NONE_SERVES_S = 0.5
"""Longest pause between two starts while no process serves."""
SETTLED_S = 1.0
"""A process that has served this long is replaced at once when it dies; otherwise only the first time."""


async def supervise(settings: Settings, context: ServeContext, signals: StopSignals) -> None:
    """Run `settings.workers` server processes, restart those that die, and end all on a stop signal.

    Raises:
        CannotServe: a process does not come to serve at startup, or the keys or the certificate cannot be used.
    """
    files = await read_credentials(settings)
    with tempfile.TemporaryDirectory(prefix="deferd-metrics-") as metrics_dir:
        pool = ProcessPool(settings, context, files, metrics_dir)
        processes = [ServerProcess(number, pool) for number in range(1, settings.workers + 1)]
        stop = asyncio.Event()
        signals.on_stop = stop.set
        signals.on_force = lambda: _kill(processes)
        stopping = asyncio.create_task(stop.wait(), name="stop")
        keepers = {
            asyncio.create_task(process.keep_running(), name=f"server-process-{process.number}")
            for process in processes
        }
        greeting = asyncio.create_task(_announce(processes, context), name="greeting")
        following = asyncio.create_task(files.follow(), name="credential-files")
        try:
            done, _ = await asyncio.wait({stopping, *keepers}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = {stopping, greeting, following, *keepers}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            # The processes close theirs when they begin to drain: from then on connections are refused, not left
            # waiting.
            for listener in context.listeners:
                admit_no_more(listener)
                listener.close()
            await _end(processes, settings.drain_idle_timeout + settings.drain_timeout)
        for keeper in done - {stopping}:  # a keeper only ends with an error
            keeper.result()


async def _announce(processes: list[ServerProcess], context: ServeContext) -> None:
    for process in processes:
        await process.serving.wait()
    context.announce()


def _kill(processes: list[ServerProcess]) -> None:
    for process in processes:
        process.kill()


async def _end(processes: list[ServerProcess], drain_s: float) -> None:
    for process in processes:
        process.terminate()
    waits = {asyncio.ensure_future(process.wait()) for process in processes}
    _, pending = await asyncio.wait(waits, timeout=drain_s + CLOSING_S + 0.2)
    if pending:
        _log.warning("killing %d server processes that did not end in time", len(pending))
        _kill(processes)
        await asyncio.wait(pending)


class ProcessPool:
    """What the server processes share, and how many of them serve."""

    def __init__(self, settings: Settings, context: ServeContext, files: CredentialFiles, metrics_dir: str) -> None:
        self.settings = settings
        self.context = context
        self.files = files
        self.metrics_dir = metrics_dir
        self._serving = 0
        self._none_serves = asyncio.Event()
        self._none_serves.set()

    @contextlib.contextmanager
    def one_serves(self) -> Iterator[None]:
        """One process serves while the block runs."""
        self._serving += 1
        self._none_serves.clear()
        try:
            yield
        finally:
            self._serving -= 1
            if self._serving == 0:
                self._none_serves.set()

    async def pause(self, seconds: float) -> None:
        """Sleep; only briefly while no process serves."""
        shortened_s = min(seconds, PAUSE_WHILE_NONE_SERVES_S)
        await asyncio.sleep(shortened_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - shortened_s):
                await self._none_serves.wait()

    async def end_of(self, code: int | None) -> str:
        """How a process ended. A full disk below its metrics, which are mapped to memory, ends it by SIGBUS."""
        fault = None
        if code == -signal.SIGBUS:
            fault = await asyncio.to_thread(write_fault, Path(self.metrics_dir), needed_bytes=MIB)
        return end_of(code) if fault is None else f"{end_of(code)}; {self.metrics_dir} cannot be written: {fault}"

    def configuration(self, number: int) -> bytes:
        """What a server process needs to serve, as a line of JSON. It holds the secrets of the settings.

        The first process runs the relays.
        """
        configuration: dict[str, Any] = {
            "settings": self.settings.model_dump(),
            "runs_relays": number == 1,
            "store_url": self.context.store_url,
            "listeners": [listener.fileno() for listener in self.context.listeners],
            "metrics_dir": self.metrics_dir,
            "last_good": asdict(self.files.last_good),
            "shelf_socket": None if self.context.shelf_socket is None else str(self.context.shelf_socket),
        }
        return json.dumps(configuration, default=_as_text).encode() + b"\n"


def _as_text(value: SecretStr | Path) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


class ServerProcess:
    """A server process and its replacements, one at a time; `serving` is set when the first of them serves."""

    def __init__(self, number: int, pool: ProcessPool) -> None:
        self.number = number
        self.serving = asyncio.Event()
        self._pool = pool
        self._process: asyncio.subprocess.Process | None = None
        self._channel: asyncio.StreamWriter | None = None

    async def keep_running(self) -> None:
        """Start a process, and another when it dies, until cancelled (which leaves the process running).

        Raises:
            CannotServe: the very first one does not come to serve.
        """
        deaths = 0  # in a row, without having served for SETTLED_S in between
        pause_s = 0.0
        while True:
            deaths = 1 if await self._run_once() >= SETTLED_S else deaths + 1
            pause_s = 0.0 if deaths == 1 else min(max(pause_s * 2, PAUSE_FIRST_S), PAUSE_MOST_S)
            code = self._process.returncode if self._process else None
            when = f"in {pause_s:.1f} s" if pause_s else "now"
            reason = await self._pool.end_of(code)
            _log.error("server process %d exited unexpectedly (%s); restarting it %s", self.number, reason, when)
            await self._pool.pause(pause_s)

    async def _run_once(self) -> float:
        """Start a process and wait for its end; for how many seconds it served. Raises as `keep_running`."""
        clock = asyncio.get_running_loop().time
        try:
            await self._start()
        except CannotServe as exc:
            if not self.serving.is_set():
                raise
            _log.error("%s", exc)
            await self.wait()
            return 0.0
        level = logging.INFO if self.serving.is_set() else logging.DEBUG
        _log.log(level, "server process %d is serving (pid %d)", self.number, self.pid)
        self.serving.set()
        began_at = clock()
        with self._pool.one_serves():
            await self.wait()
        return clock() - began_at

    @property
    def pid(self) -> int:
        """Id of the newest process, 0 before the first."""
        return self._process.pid if self._process is not None else 0

    def terminate(self) -> None:
        """Ask the process to drain and end."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def wait(self) -> None:
        """Wait for the end of the process and remove its live metrics."""
        if self._process is None:
            return
        await self._process.wait()
        mark_process_dead(self._process.pid, self._pool.metrics_dir)
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        context = self._pool.context
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    *("-m", "deferd.server.server_process", str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(
                        theirs.fileno(),
                        *(listener.fileno() for listener in context.listeners),
                        *context.inherited,
                    ),
                    preexec_fn=leave_process_group,
                    env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": self._pool.metrics_dir},
                )
            except OSError as exc:
                ours.close()
                raise CannotServe(f"server process {self.number} cannot be started: {exc}") from exc
        reader, self._channel = await asyncio.open_unix_connection(sock=ours)
        reply = b""
        # The process may die at any moment, which also ends the channel.
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(START_S):
                self._channel.write(self._pool.configuration(self.number))
                await self._channel.drain()
                reply = await reader.readline()
        if reply != SERVING:
            self.kill()
            raise CannotServe(f"server process {self.number} did not start to serve")
