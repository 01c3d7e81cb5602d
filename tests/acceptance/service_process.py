"""A real `deferd serve` process with its embedded store, for tests that start, stop and kill services as users do."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import ssl
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import httpx

from deferd.testing.service import START_S, STOP_S, ServeProcess, ServiceForTests, start_serve
from tests.acceptance.http_calls import NO_TLS
from tests.preloaded import OWNER, PRELOADER, SERVER_PROCESS, Process, belongs_to, start_preloaded
from tests.waiting import wait_until

_ANY_CERTIFICATE = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_ANY_CERTIFICATE.check_hostname = False
_ANY_CERTIFICATE.verify_mode = ssl.CERT_NONE
LOGGED_S = 10.0
WAITING_S = 10.0
"""Less than the 20 s after which a pop ends by itself."""


class ServiceProcess:
    """`python -m deferd serve` on a free port. Folder and port stay the same across kill and start.

    With `preloaded` it is forked from a process that has imported deferd already, see `tests.preloaded`. `module` is
    what Python runs, with arguments before the flags.
    """

    def __init__(
        self,
        folder: Path,
        *flags: str,
        port: int = 0,
        environment: dict[str, str] | None = None,
        preloaded: bool = False,
        module: Sequence[str] = ("deferd", "serve"),
    ) -> None:
        self.folder = folder
        self._module = module
        self.data_dir = folder / "data"
        self.port = port
        self._flags = flags
        self.environment = environment or {}
        self._preloaded = preloaded
        self.release: Path | None = None
        """Where another release is unpacked that it is of, from its next start on; that one is never preloaded."""
        self._process: Process | None = None
        self._serving: ServeProcess | None = None  # the newest one, which may have ended
        self.lines: list[str] = []

    @property
    def serving(self) -> ServeProcess:
        """The service's log and end."""
        assert self._serving is not None, "the service was not started"
        return self._serving

    @property
    def url(self) -> str:
        """Where the service listens."""
        return f"{'https' if '--tls-cert' in self._flags else 'http'}://127.0.0.1:{self.port}"

    @property
    def process(self) -> Process:
        """The running `deferd serve`."""
        assert self._process is not None, "the service is not running"
        return self._process

    def start(self) -> Self:
        """Start the service and wait until it listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        flags = ["--port", str(self.port), "--data-dir", str(self.data_dir), *self._flags]
        environment = {**self.environment, OWNER: str(self.folder)}
        if self.release is not None:
            inherited_path = environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
            environment["PYTHONPATH"] = os.pathsep.join([str(self.release / "app"), inherited_path])
        process: Process
        if self._preloaded and self.release is None:
            inherited = {name: value for name, value in os.environ.items() if not name.startswith("DEFERD_")}
            process, output = start_preloaded(["serve", *flags], {**inherited, **environment})
        else:
            process, output = start_serve([sys.executable, "-m", *self._module], flags, environment)
        self._process, self._serving = process, ServeProcess(process, output, self.lines)
        port = urlsplit(self._serving.wait_for_url(START_S)).port
        assert port is not None
        self.port = port
        return self

    def output(self) -> str:
        """The log so far, over all starts."""
        return "".join(self.lines)

    def wait_logged(self, text: str, times: int = 1) -> None:
        """Wait until the log has a text so often: a thread writes it, a moment after what it tells."""
        wait_until(lambda: self.output().count(text) >= times, LOGGED_S, f"the log has {text!r} {times} times")

    def stop(self) -> int:
        """SIGTERM; returns the exit code. After 15 s SIGKILL, and the test fails."""
        process, serving = self._take()
        assert serving.stop(), f"the service did not end within {STOP_S} s:\n{self.output()}"
        return process.wait()

    def kill(self) -> None:
        """SIGKILL the service alone, as a crash would end it; its server processes and its store end afterwards."""
        self._take()[1].kill()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """SIGSTOP all processes of the service but its store during the block, the supervisor first."""
        pids = [self.process.pid, *self.server_process_pids()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def kill_store(self) -> None:
        """SIGKILL the embedded store."""
        pid = self.store_pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def store_pid(self) -> int | None:
        """Process id of the embedded store, found by its data directory; None when none runs."""
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
        """Process ids of the reapers for this data directory, including those of earlier services."""
        lock_file = str(self.data_dir.resolve() / "valkey.lock")
        return _pids_of(lambda command: "reaper_process" in command and lock_file in command)

    def reaper_pid(self) -> int | None:
        """Process id of the store's reaper; None when none runs."""
        return next(iter(self.reaper_pids()), None)

    def server_process_pids(self) -> list[int]:
        """Process ids of this service's server processes, also when the supervisor was killed."""
        inherited = f"{OWNER}={self.folder}".encode()
        started = _pids_of(lambda command: "deferd.server.server_process" in command)
        forked = _pids_of(lambda command: PRELOADER in command)
        return [
            *(pid for pid in started if inherited in _read(pid, "environ").split(b"\0")),
            *(pid for pid in forked if _read(pid, "comm").strip() == SERVER_PROCESS and belongs_to(self.folder, pid)),
        ]

    def kill_server_processes(self) -> None:
        """SIGKILL all server processes, and wait until as many others serve."""
        killed = self.server_process_pids()
        serving = self.output().count(" is serving (pid ")
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wanted = serving + len(killed)
        wait_until(
            lambda: self.output().count(" is serving (pid ") >= wanted, START_S, "there are other server processes"
        )

    def wait_ready(self, timeout_s: float = START_S) -> None:
        """Wait until `/readyz` responds 200."""
        try:
            wait_until(self._is_ready, timeout_s, "the service is ready")
        except TimeoutError as late:
            raise AssertionError(f"{late}:\n{self.output()}") from None

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{self.url}/readyz", timeout=2, verify=_ANY_CERTIFICATE).status_code == 200
        return False

    def waiting_pops(self) -> int:
        """How many pops currently wait for a job, in all server processes."""
        return self._gauge("deferd_waiting_pops")

    def _gauge(self, name: str) -> int:
        metrics = httpx.get(f"{self.url}/metrics", timeout=5, verify=NO_TLS).text
        counts = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)", metrics, re.MULTILINE)
        return round(sum(map(float, counts)))

    def wait_for_job_waits(self, number: int) -> None:
        """Wait until this number of requests wait for the end or the progress of a job."""
        wait_until(lambda: self._gauge("deferd_job_waits") == number, WAITING_S, f"{number} requests wait for jobs")

    def wait_for_waiting_pops(self, number: int) -> None:
        """Wait until this number of pops wait for a job."""
        wait_until(lambda: self.waiting_pops() == number, WAITING_S, f"{number} pops wait")

    def _take(self) -> tuple[Process, ServeProcess]:
        process, self._process = self.process, None
        assert self._serving is not None
        return process, self._serving

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
        if self._serving is not None:
            self._serving.join_reader()


def _pids_of(wanted: Callable[[str], bool]) -> list[int]:
    """Ids of the processes whose command line, joined by spaces, matches."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if wanted(_read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace"))]


def _read(pid: int, file: str) -> bytes:
    with contextlib.suppress(OSError):  # it has ended
        return Path(f"/proc/{pid}/{file}").read_bytes()
    return b""


@contextlib.contextmanager
def running_service(*flags: str, data_dir: Path, **environment: str) -> Iterator[ServiceProcess]:
    """A preloaded service with these flags and variables and its files below `data_dir`; stopped at the end."""
    with ServiceProcess(data_dir, *flags, environment=environment, preloaded=True) as service:
        yield service


@contextlib.contextmanager
def service_for_tests(data_dir: Path) -> Iterator[ServiceForTests]:
    """As `deferd.testing.start_service`, but preloaded."""
    with (
        running_service("--test-clock", data_dir=data_dir) as service,
        contextlib.closing(ServiceForTests(service.url, service.serving)) as for_tests,
    ):
        yield for_tests
