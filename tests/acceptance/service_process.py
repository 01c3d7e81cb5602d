"""A real `deferd serve` process with its embedded store, for tests that act as users do: start, kill, look."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import httpx

from tests.preloaded import Process, start_preloaded
from tests.waiting import wait_until

START_S = 30.0
STOP_S = 15.0
PARKED_S = 10.0
"""Less than the 20 s after which a pop ends by itself."""


class ServiceProcess:
    """`python -m deferd serve` on a port of its own. Folder and port stay the same across kill and start.

    With `preloaded` it is forked from a process that has imported deferd already, see `tests.preloaded`.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        port: int = 0,
        environment: dict[str, str] | None = None,
        preloaded: bool = False,
    ) -> None:
        self.folder = folder
        self.data_dir = folder / "data"
        self.port = port
        self._flags = flags
        self._environment = environment or {}
        self._preloaded = preloaded
        self._process: Process | None = None
        self._reader: threading.Thread | None = None
        self.lines: list[str] = []

    @property
    def url(self) -> str:
        """Where the service listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def process(self) -> Process:
        """The running `deferd serve`."""
        assert self._process is not None, "the service is not running"
        return self._process

    def start(self) -> Self:
        """Start it and wait for the line that says where it listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("DEFERD_")}
        environment = {
            **inherited,
            **self._environment,
            "PYTHONUNBUFFERED": "1",
            "SERVICE_OF_TEST": str(self.folder),
        }
        words = ["serve", "--port", str(self.port), "--data-dir", str(self.data_dir), *self._flags]
        process, output = (start_preloaded if self._preloaded else _start)(words, environment)
        self._process = process
        found: queue.Queue[int | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, args=(output, found), daemon=True)
        self._reader.start()
        try:
            port = found.get(timeout=START_S)
        except queue.Empty:
            port = None
        if port is None:
            self.kill()
            raise AssertionError(f"the service did not start:\n{self.output()}")
        self.port = port
        return self

    def _read(self, output: IO[str], found: queue.Queue[int | None]) -> None:
        with output:
            for line in output:
                self.lines.append(line)
                if listening := re.search(r"listening on https?://[^:]+:(\d+)", line):
                    found.put(int(listening.group(1)))
        found.put(None)

    def output(self) -> str:
        """All that it has written so far, over all its lives."""
        return "".join(self.lines)

    def stop(self) -> int:
        """SIGTERM it; returns its exit code. SIGKILL, and a failure, after 15 s."""
        process = self._take()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)
            raise AssertionError(f"the service did not end within {STOP_S} s:\n{self.output()}") from None
        self._join_reader()
        return code

    def kill(self) -> None:
        """SIGKILL the service alone, as a crash would end it; its workers and its store end by themselves, after it."""
        process = self._take()
        process.kill()
        process.wait(STOP_S)

    def kill_store(self) -> None:
        """SIGKILL the embedded store."""
        pid = self.store_pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def store_pid(self) -> int | None:
        """Process id of the embedded store, found by its configuration file's folder; None when there is none."""
        wanted = str(self.data_dir.resolve())
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes().decode(errors="replace")
                    cwd = str((entry / "cwd").readlink())
                    if "valkey-server" in command and (cwd == wanted or wanted in command):
                        return int(entry.name)
        return None

    def reaper_pids(self) -> list[int]:
        """Process ids of the reapers of stores in the data folder, also of those of earlier services."""
        lock_file = str(self.data_dir.resolve() / "valkey.lock")
        return _pids_of(lambda command: "reaper_process" in command and lock_file in command)

    def reaper_pid(self) -> int | None:
        """Process id of the store's reaper; None when there is none."""
        return next(iter(self.reaper_pids()), None)

    def worker_pids(self) -> list[int]:
        """Process ids of this service's worker processes, also when the supervisor was killed."""
        inherited = f"SERVICE_OF_TEST={self.folder}".encode()
        found = _pids_of(lambda command: "worker-process" in command)
        return [pid for pid in found if inherited in _read(pid, "environ").split(b"\0")]

    def kill_workers(self) -> None:
        """SIGKILL all worker processes, and wait until as many others serve."""
        killed = self.worker_pids()
        serving = self.output().count(" serves (process ")
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wanted = serving + len(killed)
        wait_until(
            lambda: self.output().count(" serves (process ") >= wanted, START_S, "there are other worker processes"
        )

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait until `/readyz` says that the store answers."""
        try:
            wait_until(self._is_ready, timeout_s, "the service is ready")
        except TimeoutError as late:
            raise AssertionError(f"{late}:\n{self.output()}") from None

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200
        return False

    def parked_pops(self) -> int:
        """How many pops wait for a job at this moment, over all workers."""
        metrics = httpx.get(f"{self.url}/metrics", timeout=5).text
        counts = re.findall(r"^deferd_parked_consumers(?:\{.*\})? (\S+)", metrics, re.MULTILINE)
        return round(sum(map(float, counts)))

    def wait_for_parked_pops(self, number: int) -> None:
        """Wait until so many pops wait for a job."""
        wait_until(lambda: self.parked_pops() == number, PARKED_S, f"{number} pops wait")

    def _take(self) -> Process:
        process, self._process = self._process, None
        assert process is not None, "the service is not running"
        return process

    def _join_reader(self) -> None:
        if self._reader is not None:
            self._reader.join(STOP_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process is not None:
            if kind is None:
                self.stop()
            else:
                self.kill()
        self.kill_store()
        self._join_reader()


def _start(words: Sequence[str], environment: Mapping[str, str]) -> tuple[Process, IO[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "deferd", *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    return process, process.stdout


def _pids_of(wanted: Callable[[str], bool]) -> list[int]:
    """Ids of the running processes with such command lines, whose parts are divided by spaces."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if wanted(_read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace"))]


def _read(pid: int, file: str) -> bytes:
    with contextlib.suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/{file}").read_bytes()
    return b""


@contextlib.contextmanager
def running_service(*flags: str, data_dir: Path, **environment: str) -> Iterator[ServiceProcess]:
    """A preloaded service with these flags and variables, which keeps what it has below `data_dir`."""
    with ServiceProcess(data_dir, *flags, environment=environment, preloaded=True) as service:
        yield service
