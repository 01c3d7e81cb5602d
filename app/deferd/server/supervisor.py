"""Serving from several processes: the supervisor owns socket and store, its workers run the application.

All workers accept on one socket, so that a connection never waits on a worker that is gone. A worker is connected
with its supervisor by a pair of sockets: through it comes what it is to do (so that no secret stands among its
arguments or in its environment), it answers when it serves, and by its end it learns that the supervisor is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import uvloop
from prometheus_client.multiprocess import mark_process_dead
from pydantic import SecretStr

from deferd.api.auth.api_keys import KeysRefused
from deferd.server import logs
from deferd.server.last_good import FollowedFiles, LastGood
from deferd.server.run import CLOSING_S, CannotServe, Premises, log_refusal, serve_application
from deferd.server.tls import CertificateRefused
from deferd.settings import Settings
from deferd.stop_signals import StopSignals
from deferd.store.preflight import StoreRefused

_log = logging.getLogger("deferd.server.supervisor")

START_S = 60.0
"""Most time that a worker takes until it serves."""
PAUSE_FIRST_S = 0.2
PAUSE_MOST_S = 10.0
PAUSE_WHILE_NONE_SERVES_S = 0.5
"""Most time between two tries while no worker serves."""
SETTLED_S = 1.0
"""A worker that has served for so long is replaced at once when it dies; one that has not, once only."""
_READY = b"ready\n"


async def supervise(settings: Settings, place: Premises, signals: StopSignals) -> None:
    """Run `settings.workers` workers, start again those that die, and on a stop signal end all.

    Raises:
        CannotServe: a worker did not even start at the beginning, or the keys or the certificate cannot be used.
    """
    try:
        files = await asyncio.to_thread(FollowedFiles, settings)
    except (KeysRefused, CertificateRefused) as exc:
        raise CannotServe(str(exc)) from exc
    with tempfile.TemporaryDirectory(prefix="deferd-metrics-") as metrics_dir:
        team = Team(settings, place, files, metrics_dir)
        workers = [Worker(number, team) for number in range(1, settings.workers + 1)]
        stop = asyncio.Event()
        signals.on_stop = stop.set
        signals.on_force = lambda: _kill(workers)
        stopping = asyncio.create_task(stop.wait(), name="stop")
        keepers = {asyncio.create_task(worker.keep(), name=f"worker-{worker.number}") for worker in workers}
        greeting = asyncio.create_task(_announce(workers, place), name="greeting")
        following = asyncio.create_task(files.follow(), name="followed-files")
        try:
            ended, _ = await asyncio.wait({stopping, *keepers}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = {stopping, greeting, following, *keepers}
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


class Team:
    """What the workers have in common, and how many of them serve."""

    def __init__(self, settings: Settings, place: Premises, files: FollowedFiles, metrics_dir: str) -> None:
        self.settings = settings
        self.place = place
        self.files = files
        self.metrics_dir = metrics_dir
        self._serving = 0
        self._none_serves = asyncio.Event()
        self._none_serves.set()

    @contextlib.contextmanager
    def one_serves(self) -> Iterator[None]:
        """One worker serves while the block runs."""
        self._serving += 1
        self._none_serves.clear()
        try:
            yield
        finally:
            self._serving -= 1
            if self._serving == 0:
                self._none_serves.set()

    async def pause(self, seconds: float) -> None:
        """Sleep; not for long while no worker serves."""
        shortened_s = min(seconds, PAUSE_WHILE_NONE_SERVES_S)
        await asyncio.sleep(shortened_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds - shortened_s):
                await self._none_serves.wait()


class Worker:
    """One worker process after the other; `serving` is set when the first of them serves."""

    def __init__(self, number: int, team: Team) -> None:
        self.number = number
        self.serving = asyncio.Event()
        self._team = team
        self._process: asyncio.subprocess.Process | None = None
        self._channel: asyncio.StreamWriter | None = None

    async def keep(self) -> None:
        """Start a process, and another when it dies, until cancelled (which leaves the process running).

        Raises:
            CannotServe: the very first one does not come to serve.
        """
        deaths = 0  # in a row, without having served for a while in between
        pause_s = 0.0
        while True:
            deaths = 1 if await self._live_once() >= SETTLED_S else deaths + 1
            pause_s = 0.0 if deaths == 1 else min(max(pause_s * 2, PAUSE_FIRST_S), PAUSE_MOST_S)
            how = self._process.returncode if self._process else None
            when = f"in {pause_s:.1f} s" if pause_s else "at once"
            _log.error("worker %d ended by itself (exit code %s); another is started %s", self.number, how, when)
            await self._team.pause(pause_s)

    async def _live_once(self) -> float:
        """Start a process and wait for its end; for how many seconds it served. Raises as `keep`."""
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
        _log.log(level, "worker %d serves (process %d)", self.number, self.pid)
        self.serving.set()
        began_at = clock()
        with self._team.one_serves():
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
        """Until the process has ended; then its live metrics are gone too."""
        if self._process is None:
            return
        await self._process.wait()
        mark_process_dead(self._process.pid, self._team.metrics_dir)
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        team, place = self._team, self._team.place
        with theirs:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "deferd",
                    "worker-process",
                    str(theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), place.listener.fileno(), *place.inherited),
                    start_new_session=True,  # Ctrl-C is for the supervisor, which tells the workers
                    env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": team.metrics_dir},
                )
            except OSError as exc:
                ours.close()
                raise CannotServe(f"worker {self.number} cannot be started: {exc}") from exc
        reader, self._channel = await asyncio.open_unix_connection(sock=ours)
        order = {
            "settings": _with_secrets(team.settings),
            "store_url": place.store_url,
            "listener": place.listener.fileno(),
            "metrics_dir": team.metrics_dir,
            "last_good": asdict(team.files.last_good),
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
        in_use = os.open(order["metrics_dir"], os.O_RDONLY)
        fcntl.flock(in_use, fcntl.LOCK_SH)
        try:
            with (
                socket.socket(fileno=order["listener"]) as listener,
                asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
            ):
                last_good = LastGood(**order["last_good"])
                orphaned = runner.run(_work(settings, order["store_url"], listener, channel, last_good))
        except (StoreRefused, CannotServe) as exc:
            log_refusal(exc)
            return 1
        if orphaned:
            _remove_if_last(order["metrics_dir"], in_use)
    return 0


def _remove_if_last(metrics_dir: str, in_use: int) -> None:
    """Remove the folder for metrics when the supervisor is gone, unless another worker process still writes there.

    Each worker process has a shared lock on it, `in_use`.
    """
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(in_use, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(metrics_dir, ignore_errors=True)


async def _work(
    settings: Settings, store_url: str, listener: socket.socket, channel: socket.socket, last_good: LastGood
) -> bool:
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
        await serve_application(settings, store_url, listener, signals, tell_supervisor, last_good=last_good)
    except asyncio.CancelledError:
        if not signals.stopping:
            raise
    finally:
        loop.remove_reader(channel)
    return orphaned
