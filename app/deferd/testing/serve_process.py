"""A `deferd serve` subprocess and its log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Protocol

START_S = 30.0
STOP_S = 15.0
_LISTENING = re.compile(r" listening on (https?://\S+) ")


class ServiceNotStarted(Exception):
    """The service did not come to serve; the text has its whole log."""


class Process(Protocol):
    """The part of `subprocess.Popen` that `ServeProcess` needs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""

    def terminate(self) -> None:
        """SIGTERM, unless it has ended."""

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""


def start_serve(
    module: Sequence[str],
    flags: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    start_new_session: bool = False,
) -> tuple[subprocess.Popen[str], IO[str]]:
    """Start ``python -m module flags`` with `environment` in place of variables named DEFERD_*.

    Returns the process, and its standard output and error as one stream.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("DEFERD_")}
    process = subprocess.Popen(  # noqa: S603 (this package, with the flags of the test)
        [sys.executable, "-m", *module, *flags],
        env={**inherited, **environment},
        start_new_session=start_new_session,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None  # noqa: S101 (it is a pipe)
    return process, process.stdout


class ServeProcess:
    """A started service, and a thread that collects its log lines. `lines` continues the log of an earlier one."""

    def __init__(self, process: Process, output: IO[str], lines: list[str] | None = None) -> None:
        self.lines: list[str] = [] if lines is None else lines
        self._process = process
        self._url: str | None = None
        self._url_or_end = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True, name="deferd-testing-log")
        self._reader.start()

    @property
    def log(self) -> str:
        """Everything that was logged so far."""
        return "".join(self.lines)

    def wait_for_url(self, timeout_s: float) -> str:
        """The URL on which the service listens.

        Raises:
            ServiceNotStarted: it ended or did not serve in time; it has been stopped.
        """
        in_time = self._url_or_end.wait(timeout_s)
        if self._url is None:
            reason = "ended" if in_time else f"did not serve within {timeout_s:g} s"
            self.stop()
            raise ServiceNotStarted(f"the service for tests {reason}; its log:\n{self.log or '(empty)'}")
        return self._url

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self.lines.append(line)
                if listening := _LISTENING.search(line):
                    self._url = listening[1]
                    self._url_or_end.set()
        self._url_or_end.set()

    def stop(self) -> bool:
        """SIGTERM, then SIGKILL after 15 s; True when SIGTERM was enough. May be called again."""
        in_time = True
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            in_time = False
            self.kill()
        self.join_reader()
        return in_time

    def kill(self) -> None:
        """SIGKILL the service, not its store or its server processes; they end by themselves, later."""
        self._process.kill()
        self._process.wait(STOP_S)

    def join_reader(self) -> None:
        """Wait until all processes that share the log have ended."""
        self._reader.join(STOP_S)
