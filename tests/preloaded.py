"""`python -m deferd ...` without its start: a fork of a process that has imported everything and built the library.

A fork has the pid, signals, output, working directory and variables of a process of its own. What it does not show is
that the imports work, and its command line and initial environment in /proc are not its own: tests about those, and
about start and end of the process, use `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

_MESSAGE_BYTES = 1 << 20
_RUN_S = 40.0


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


class PreloadedProcess:
    """`deferd` with these words, forked from the preloader."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        environment: Mapping[str, str],
        stdin: int,
        stdout: int,
        stderr: int,
        folder: Path | None = None,
    ) -> None:
        self.words = list(words)
        self.returncode: int | None = None
        self._status, theirs = socket.socketpair()
        facts = {"words": self.words, "environment": dict(environment), "folder": str(folder or Path.cwd())}
        request = json.dumps(facts).encode()
        with theirs:
            socket.send_fds(_preloader(), [request], [theirs.fileno(), stdin, stdout, stderr])
        self._file = self._status.makefile("r")
        pid = self._file.readline()
        assert pid, "the preloader has ended: see what it wrote to standard error"
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


def start_preloaded(words: Sequence[str], environment: Mapping[str, str]) -> tuple[PreloadedProcess, IO[str]]:
    """The process, and its standard output and error in one, to read."""
    reader, writer = os.pipe()
    with open(os.devnull) as nothing:  # noqa: PTH123
        try:
            process = PreloadedProcess(
                words, environment=environment, stdin=nothing.fileno(), stdout=writer, stderr=writer
            )
        finally:
            os.close(writer)
    return process, os.fdopen(reader)


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


@functools.cache
def _preloader() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


class _Preloader:
    """Forks on request until the tests have ended, and reports how each child ended."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._children: dict[int, socket.socket] = {}

    def serve(self) -> bool:
        """Returns True in each child, and False at the end in the parent."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, and for the children
        signal.signal(signal.SIGCHLD, self._reap)
        while True:
            data, (status, *streams), _, _ = _receive(self._requests)
            if not data:
                return False
            request = json.loads(data)
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
            pid = os.fork()
            if pid == 0:
                self._become(request, status, streams)
                return True
            with socket.socket(fileno=status) as connection:
                self._children[pid] = connection.dup()
            for stream in streams:
                os.close(stream)
            self._children[pid].sendall(b"%d\n" % pid)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})

    def _reap(self, _number: int, _frame: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with self._children.pop(ended[0]) as connection, contextlib.suppress(OSError):
                    connection.sendall(b"%d\n" % ended[1])

    def _become(self, request: dict[str, object], status: int, streams: list[int]) -> None:
        """Give the child what a new process has."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.close(status)
        self._requests.close()
        for connection in self._children.values():
            connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(request["environment"])  # type: ignore[call-overload]
        os.chdir(str(request["folder"]))
        time.tzset()
        sys.argv = ["deferd", *request["words"]]  # type: ignore[misc]
        # New objects: those of the preloader know whether its own files could be sought in.
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
        sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def _receive(requests: socket.socket) -> tuple[bytes, list[int], int, object]:
    data, fds, flags, address = socket.recv_fds(requests, _MESSAGE_BYTES, 4)
    return data, fds or [-1], flags, address


def _main() -> None:
    import deferd  # noqa: PLC0415

    for module in pkgutil.walk_packages(deferd.__path__, "deferd."):
        if not module.name.endswith(("__main__", "pytest_plugin", "serving", "reaper_process", "server_process")):
            importlib.import_module(module.name)
    for movable_clock in (False, True):
        sys.modules["deferd.engine.scripts"].library(movable_clock)
    gc.collect()
    gc.freeze()  # so that collections in a child do not touch, and thereby copy, the imported objects
    if _Preloader(socket.socket(fileno=int(sys.argv[1]))).serve():
        runpy.run_module("deferd", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
