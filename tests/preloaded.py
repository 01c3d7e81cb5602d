"""`python -m deferd ...` without its start: a fork of a process that has imported everything and built the library.

One preloader forks for a process and its children, which find it by a variable: under xdist, for the whole test run.
A fork has the pid, signals, output, working directory and variables of a process of its own. What it does not show is
that the imports work, and its command line and initial environment in /proc are not its own: tests about those, and
about start and end of the process, use `subprocess`. The server processes of a
forked service are forked too.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import logging
import os
import pkgutil
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol, cast

OWNER = "SERVICE_OF_TEST"
"""The variable with the folder of a service: its forks keep that folder open, so that `belongs_to` finds them."""
SERVER_PROCESS = b"server_process"
"""The name of a forked server process in /proc."""
PRELOADER = "/tests/preloaded.py"
"""How a word in the command line of all forks ends."""
_SOCKET = "PRELOADER_OF_TESTS"
"""The variable with the path of the socket on which the preloader of this test run takes requests."""
_ENDED = "the preloader has ended: see what it wrote to standard error"
_ROOT = Path(__file__).resolve().parents[1]
_SERVER_MODULE = "deferd.server.server_process"
_SPARES = 3
"""For each server process: itself, and others after it was killed. Further ones are started by the service."""
_MOST_WORKERS = 8
_HIGH_FD = 200
"""Above all file descriptors that a service hands to its server processes."""
_CLONE_NEWNET = 0x40000000
_MESSAGE_BYTES = 1 << 20
_RUN_S = 40.0
_ONE_AT_A_TIME = threading.Lock()


class Process(Protocol):
    """The part of `subprocess.Popen` that tests use."""

    @property
    def pid(self) -> int:
        """The process id."""

    @property
    def returncode(self) -> int | None:
        """The exit code, or minus the signal that ended it; None while no wait or poll has seen the end."""

    def poll(self) -> int | None:
        """The return code if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Nothing when it has ended."""

    def terminate(self) -> None:
        """SIGTERM."""

    def kill(self) -> None:
        """SIGKILL."""


def belongs_to(folder: Path, pid: int) -> bool:
    """Whether a process was forked for the service in this folder, or by it."""
    with contextlib.suppress(OSError):  # it has ended
        return str(folder) in {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir()}
    return False


class PreloadedProcess:
    """`deferd`, or another module, with these words, forked from the preloader."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        folder: Path | None = None,
        module: str = "deferd",
    ) -> None:
        self.words = list(words)
        self.returncode: int | None = None
        self._status, theirs = socket.socketpair()
        facts = {"module": module, "words": self.words, "environment": dict(environment)}
        request = json.dumps({**facts, "folder": str(folder or Path.cwd())}).encode()
        with theirs, _own_network() as network:
            socket.send_fds(_preloader(), [request], [theirs.fileno(), stdin, stdout, stderr, *network])
        self._file = self._status.makefile("r")
        pid = self._file.readline()
        assert pid, _ENDED
        self.pid = int(pid)

    def poll(self) -> int | None:
        return self._end(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.words, timeout or 0)
        return code

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if selector.select(timeout):
                    self.returncode = os.waitstatus_to_exitcode(int(self._file.readline()))
                    self._file.close()
                    self._status.close()
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def _own_network() -> Iterator[list[int]]:
    """The network of this thread, for the fork, as a child of this process would have it; see `private_network`."""
    if sys.platform != "linux":
        yield []
        return
    network = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    try:
        yield [network]
    finally:
        os.close(network)


def _enter_network(network: int) -> None:
    if Path(f"/proc/self/fd/{network}").readlink() != Path("/proc/self/ns/net").readlink():
        failed = ctypes.CDLL(None, use_errno=True).setns(network, _CLONE_NEWNET)
        assert not failed, os.strerror(ctypes.get_errno())
    os.close(network)


def start_preloaded(words: Sequence[str], environment: Mapping[str, str]) -> tuple[PreloadedProcess, IO[str]]:
    """The process, and its standard output and error in one, to read."""
    reader, writer = os.pipe()
    with open(os.devnull) as nothing:  # noqa: PTH123
        try:
            process = PreloadedProcess(
                words,
                environment=environment,
                stdin=nothing.fileno(),
                stdout=writer,
                stderr=writer,
            )
        finally:
            os.close(writer)
    return process, os.fdopen(reader)


def start_module(module: str, *words: str, log: Path, owner: Path) -> PreloadedProcess:
    """`python -m module words` of the run in the folder `owner`, with its output in the file `log`."""
    with open(os.devnull) as nothing, log.open("w") as output:  # noqa: PTH123
        return PreloadedProcess(
            words,
            module=module,
            environment={**os.environ, OWNER: str(owner)},
            stdin=nothing.fileno(),
            stdout=output.fileno(),
            stderr=output.fileno(),
        )


def run_preloaded(
    *words: str,
    environment: Mapping[str, str],
    stdin: str = "",
    folder: Path | None = None,
    timeout: float = _RUN_S,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with captured text; `folder` is the working directory."""
    with (
        tempfile.TemporaryFile("w+") as standard_input,
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
    ):
        standard_input.write(stdin)
        standard_input.seek(0)
        process = PreloadedProcess(
            words,
            environment=environment,
            stdin=standard_input.fileno(),
            stdout=out.fileno(),
            stderr=err.fileno(),
            folder=folder,
        )
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(words), code, out.read(), err.read())


def start_preloader() -> None:
    """Start it for this process and its children, until this process ends. Raises OSError."""
    path = f"{tempfile.mkdtemp(prefix='deferd-preloader-')}/socket"
    ours, theirs = socket.socketpair()
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen()
        fds = (listening.fileno(), theirs.fileno())
        process = subprocess.Popen(
            [sys.executable, "-P", f"{_ROOT}{PRELOADER}", *map(str, fds)], pass_fds=fds, stdin=subprocess.DEVNULL
        )
    os.environ[_SOCKET] = path

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)


def _preloader() -> socket.socket:
    with _ONE_AT_A_TIME:  # otherwise services that start at once would each start one
        return _connected_preloader()


@functools.cache
def _connected_preloader() -> socket.socket:
    if _SOCKET not in os.environ:
        start_preloader()
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(os.environ[_SOCKET])
    except OSError as exc:
        raise AssertionError(_ENDED) from exc
    return connection


class _Preloader:
    """Forks on request until the process that started it has ended, and reports how each child ended."""

    def __init__(self, listening: socket.socket, starter: socket.socket) -> None:
        self._listening = listening
        self._starter = starter
        self._selector = selectors.DefaultSelector()
        for waited in (listening, starter):
            self._selector.register(waited, selectors.EVENT_READ)
        self._children: dict[int, socket.socket] = {}

    def serve(self) -> str | None:
        """Returns in each child the module to run, and None at the end in the parent."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, and for the children
        signal.signal(signal.SIGCHLD, self._reap)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._starter:
                    shutil.rmtree(Path(self._listening.getsockname()).parent)
                    return None
                if key.fileobj is self._listening:
                    self._selector.register(self._listening.accept()[0], selectors.EVENT_READ)
                elif module := self._fork(cast("socket.socket", key.fileobj)):
                    return module

    def _fork(self, requests: socket.socket) -> str | None:
        """Take a request. Returns in the child the module to run, and None in the parent."""
        data, (status, *files), _, _ = _receive(requests)
        if not data:
            self._selector.unregister(requests)
            requests.close()
            return None
        request = json.loads(data)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            self._become(request, status, files)
            module: str = request["module"]
            return _SERVER_MODULE if _SpareServerProcesses().fork() else module
        with socket.socket(fileno=status) as connection:
            self._children[pid] = connection.dup()
        for file in files:
            os.close(file)
        with contextlib.suppress(OSError):  # the one who asked has ended meanwhile
            self._children[pid].sendall(b"%d\n" % pid)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        return None

    def _reap(self, _number: int, _frame: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with self._children.pop(ended[0]) as connection, contextlib.suppress(OSError):
                    connection.sendall(b"%d\n" % ended[1])

    def _become(self, request: dict[str, Any], status: int, files: list[int]) -> None:
        """Give the child what a new process has."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.close(status)
        for connection in [*(key.fileobj for key in self._selector.get_map().values()), *self._children.values()]:
            cast("socket.socket", connection).close()
        self._selector.close()
        for number, stream in enumerate(files[:3]):
            os.dup2(stream, number)
            os.close(stream)
        for network in files[3:]:
            _enter_network(network)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        time.tzset()
        sys.argv = [request["module"], *request["words"]]
        # New objects: those of the preloader know whether its own files could be sought in.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
        if OWNER in os.environ:
            folder = os.open(os.environ[OWNER], os.O_RDONLY)
            fcntl.fcntl(folder, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
            os.close(folder)
        sys.path[:0] = places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
        for place in places:
            if (customize := Path(place) / "sitecustomize.py").exists():
                runpy.run_path(str(customize))
        if request["module"].startswith("tests."):
            sys.path.insert(0, str(_ROOT))


class _SpareServerProcesses:
    """Children of a service with several server processes that wait to become one of them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, socket.socket]] = []

    def fork(self) -> bool:
        """Returns True in a child that is to run a server process, and False in the service."""
        for _ in range(_SPARES * _workers() if hasattr(os, "pidfd_open") else 0):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            pid = os.fork()
            if pid == 0:
                for _, of_another in [*self._waiting, (0, ours)]:
                    of_another.close()
                _become_server_process(theirs)
                return True
            theirs.close()
            self._waiting.append((pid, ours))
        start = asyncio.create_subprocess_exec

        async def start_or_use(*command: str, **options: Any) -> Any:
            if _SERVER_MODULE in command and self._waiting:
                return self._use(command[-1], **options)
            return await start(*command, **options)

        asyncio.create_subprocess_exec = start_or_use  # type: ignore[assignment]
        return False

    def _use(self, word: str, *, env: Mapping[str, str], pass_fds: Sequence[int], **_: Any) -> _UsedSpare:
        pid, channel = self._waiting.pop(0)
        with channel:
            request = {"word": word, "environment": dict(env), "numbers": list(pass_fds)}
            socket.send_fds(channel, [json.dumps(request).encode()], pass_fds)
        return _UsedSpare(pid)


def _workers() -> int:
    """How many server processes the words and variables ask for, if they ask for several."""
    given = os.environ.get("DEFERD_WORKERS", "")
    if "--workers" in sys.argv[:-1]:
        given = sys.argv[sys.argv.index("--workers") + 1]
    is_service = sys.argv[1:2] == ["serve"] and given.isdecimal()
    return int(given) if is_service and 1 < int(given) <= _MOST_WORKERS else 0


def _become_server_process(channel: socket.socket) -> None:
    """Wait until the service asks for it, and take what a new process would get; end with the service."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    data, received, _, _ = _receive(channel, most=_HIGH_FD)
    if not data:
        os._exit(0)
    channel.close()
    request = json.loads(data)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, _HIGH_FD) for fd in received]
    for fd in received:
        os.close(fd)
    with open(os.devnull) as nothing:  # noqa: PTH123
        for fd, number in zip((*high, nothing.fileno()), (*request["numbers"], 0), strict=True):
            os.dup2(fd, number)
    for fd in high:
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = [_SERVER_MODULE, request["word"]]
    Path("/proc/self/comm").write_bytes(SERVER_PROCESS)
    _keep_metrics_in_files()


def _keep_metrics_in_files() -> None:
    """As the import of `prometheus_client` arranges it when PROMETHEUS_MULTIPROC_DIR is set before."""
    from prometheus_client import REGISTRY, values  # noqa: PLC0415
    from prometheus_client.metrics import MetricWrapperBase  # noqa: PLC0415

    values.ValueClass = values.MultiProcessValue()
    for metric in list(REGISTRY._collector_to_names):
        if isinstance(metric, MetricWrapperBase):
            assert not metric._labelnames or not metric._metrics, "the preloader has counted something"
            if metric._is_observable():
                metric._metric_init()


class _UsedSpare:
    """The part of `asyncio.subprocess.Process` that the supervisor uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._fd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._fd, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set()

    async def wait(self) -> int | None:
        await self._ended.wait()
        return self.returncode

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def _receive(requests: socket.socket, most: int = 5) -> tuple[bytes, list[int], int, object]:
    data, fds, flags, address = socket.recv_fds(requests, _MESSAGE_BYTES, most)
    return data, fds or [-1], flags, address


class _QuickEnd:
    """Ends a fork whose module ends with an exit code, before Python frees, and thereby copies, what was imported.

    To free it takes five times as long as to fork. Python has joined the threads then, and has called what was
    registered with `atexit` after this.
    """

    def __init__(self) -> None:
        self._code: object = None
        atexit.register(self._end)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:
            self._code = 0
        elif isinstance(error, SystemExit):
            self._code = 0 if error.code is None else error.code

    def _end(self) -> None:
        if isinstance(self._code, int):
            gc.collect()  # coroutines that were never awaited, tasks whose errors nobody has seen: they say so
            logging.shutdown()  # it was registered before this
            with contextlib.suppress(OSError, ValueError, AttributeError):  # Python reports those it does not ignore
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(self._code)


def _main() -> None:
    ending = _QuickEnd()  # before deferd's imports, which register what is to be called before it

    import deferd  # noqa: PLC0415

    gc.disable()  # it would look for garbage in a thousand modules again and again
    for module in pkgutil.walk_packages(deferd.__path__, "deferd."):
        if not module.name.endswith(("__main__", "pytest_plugin", "serving", "reaper_process", "server_process")):
            importlib.import_module(module.name)
    for movable_clock in (False, True):
        sys.modules["deferd.engine.scripts"].library(movable_clock)
    gc.collect()
    gc.freeze()  # so that collections in a child do not touch, and thereby copy, the imported objects
    gc.enable()
    if forked := _Preloader(*(socket.socket(fileno=int(fd)) for fd in sys.argv[1:])).serve():
        with ending:
            runpy.run_module(forked, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
