"""Serving from several processes: the supervisor owns socket and store, its workers run the application.

All workers accept on one socket, so that a connection never waits on a worker that is gone. A worker is connected
with its supervisor by a pair of sockets: through it comes what it is to do (so that no secret stands among its
arguments or in its environment), it answers when it serves, and by its end it learns that the supervisor is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
from typing import Any

import uvloop
from prometheus_client.multiprocess import mark_process_dead
from pydantic import SecretStr

from deferd import logs
from deferd.serve import CLOSING_S, CannotServe, Premises, log_refusal, serve_application
from deferd.settings import Settings
from deferd.stop_signals import StopSignals
from deferd.store.checks import StoreRefused

_log = logging.getLogger("deferd.supervisor")

START_S = 60.0
"""Most time that a worker takes until it serves."""
PAUSE_FIRST_S = 0.2
PAUSE_MOST_S = 10.0
SETTLED_S = 30.0
"""A worker that has served for so long begins anew with the shortest pause when it dies."""
_READY = b"ready\n"


async def supervise(settings: Settings, place: Premises, signals: StopSignals) -> None:
    """Run `settings.workers` workers, start again those that die, and on a stop signal end all.

    Raises:
        CannotServe: a worker did not even start at the beginning.
    """
    with tempfile.TemporaryDirectory(prefix="deferd-metrics-") as metrics_dir:
        workers = [Worker(number, settings, place, metrics_dir) for number in range(1, settings.workers + 1)]
        stop = asyncio.Event()
        signals.on_stop = stop.set
        signals.on_force = lambda: _kill(workers)
        stopping = asyncio.create_task(stop.wait(), name="stop")
        keepers = {asyncio.create_task(worker.keep(), name=f"worker-{worker.number}") for worker in workers}
        greeting = asyncio.create_task(_announce(workers, place), name="greeting")
        try:
            ended, _ = await asyncio.wait({stopping, *keepers}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = {stopping, greeting, *keepers}
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            # The workers close theirs as they begin to drain: from then on connections are refused, not left waiting.
            place.listener.close()
            await _end(workers, settings.drain_timeout)
        for keeper in ended - {stopping}:  # a keeper ends by an error only
            keeper.result()


async def _announce(workers: list[Worker], place: Premises) -> None:
    for worker in workers:
        await worker.serving.wait()
    place.announce()


def _kill(workers: list[Worker]) -> None:
    for worker in workers:
        worker.kill()


async def _end(workers: list[Worker], drain_timeout_s: float) -> None:
    for worker in workers:
        worker.terminate()
    endings = {asyncio.ensure_future(worker.wait()) for worker in workers}
    _, late = await asyncio.wait(endings, timeout=drain_timeout_s + CLOSING_S + 0.2)
    if late:
        _log.warning("%d workers did not end in time and are killed", len(late))
        _kill(workers)
        await asyncio.wait(late)


class Worker:
    """One worker process after the other; `serving` is set when the first of them serves."""

    def __init__(self, number: int, settings: Settings, place: Premises, metrics_dir: str) -> None:
        self.number = number
        self.serving = asyncio.Event()
        self._settings = settings
        self._place = place
        self._metrics_dir = metrics_dir
        self._process: asyncio.subprocess.Process | None = None
        self._channel: asyncio.StreamWriter | None = None

    async def keep(self) -> None:
        """Start a process, and another when it dies, until cancelled (which leaves the process running).

        Raises:
            CannotServe: the very first one does not come to serve.
        """
        clock = asyncio.get_running_loop().time
        pause_s = PAUSE_FIRST_S
        while True:
            began_at = clock()
            try:
                await self._start()
            except CannotServe as exc:
                if not self.serving.is_set():
                    raise
                _log.error("%s", exc)
            else:
                _log.log(
                    logging.INFO if self.serving.is_set() else logging.DEBUG,
                    "worker %d serves (process %d)",
                    self.number,
                    self.pid,
                )
                self.serving.set()
            await self.wait()
            if clock() - began_at > SETTLED_S:
                pause_s = PAUSE_FIRST_S
            how = self._process.returncode if self._process else None
            _log.error(
                "worker %d ended by itself (exit code %s); another is started in %.1f s", self.number, how, pause_s
            )
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MOST_S)

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
        """Until the process has ended; then its live metrics are gone too."""
        if self._process is None:
            return
        await self._process.wait()
        mark_process_dead(self._process.pid, self._metrics_dir)
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        listener = self._place.listener
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "deferd",
                    "worker-process",
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), listener.fileno(), *self._place.inherited),
                    start_new_session=True,  # Ctrl-C is for the supervisor, which tells the workers
                    env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": self._metrics_dir},
                )
            except OSError as exc:
                ours.close()
                raise CannotServe(f"worker {self.number} cannot be started: {exc}") from exc
        reader, self._channel = await asyncio.open_unix_connection(sock=ours)
        order = {
            "settings": _with_secrets(self._settings),
            "store_url": self._place.store_url,
            "listener": listener.fileno(),
            "metrics_dir": self._metrics_dir,
        }
        answer = b""
        # It may die at any moment; then the channel is at its end, too.
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(START_S):
                self._channel.write(json.dumps(order).encode() + b"\n")
                await self._channel.drain()
                answer = await reader.readline()
        if answer != _READY:
            self.kill()
            raise CannotServe(f"worker {self.number} did not start to serve")


def _with_secrets(settings: Settings) -> dict[str, Any]:
    given = {name: getattr(settings, name) for name in type(settings).model_fields}
    secrets = {name: value.get_secret_value() for name, value in given.items() if isinstance(value, SecretStr)}
    return settings.model_dump(mode="json") | secrets


def work(channel_fd: int) -> int:
    """Be a worker, and return its exit code: 0, or 1 when it cannot serve. `channel_fd` leads to the supervisor."""
    with socket.socket(fileno=channel_fd) as channel, channel.makefile("rb") as lines:
        first_line = lines.readline()
        if not first_line:
            return 1  # the supervisor died while this process started
        order = json.loads(first_line)
        settings = Settings(**order["settings"])
        logs.configure(settings.log_format, settings.log_level)
        try:
            with (
                socket.socket(fileno=order["listener"]) as listener,
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                orphaned = runner.run(_work(settings, order["store_url"], listener, channel))
        except (StoreRefused, CannotServe) as exc:
            log_refusal(exc)
            return 1
        if orphaned:  # nobody else is left to do it
            shutil.rmtree(order["metrics_dir"], ignore_errors=True)
    return 0


async def _work(settings: Settings, store_url: str, listener: socket.socket, channel: socket.socket) -> bool:
    """Serve until stopped; True when that was because the supervisor is gone."""
    signals = StopSignals(log_level=logging.DEBUG)  # the supervisor has said it
    channel.setblocking(False)
    loop = asyncio.get_running_loop()
    orphaned = False

    def supervisor_is_gone() -> None:
        nonlocal orphaned
        orphaned = True
        loop.remove_reader(channel)  # it says nothing after the first line: what can be read is the end
        signals.stop("the supervisor is gone")

    def tell_supervisor() -> None:
        with contextlib.suppress(OSError):
            channel.send(_READY)

    loop.add_reader(channel, supervisor_is_gone)
    try:
        await serve_application(settings, store_url, listener, signals, tell_supervisor)
    except asyncio.CancelledError:
        if not signals.stopping:
            raise
    finally:
        loop.remove_reader(channel)
    return orphaned
