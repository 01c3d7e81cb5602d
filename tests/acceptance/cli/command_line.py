"""`deferd` commands as a shell runs them, against a service: in this process, or as a process with a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from deferd.cli import main as cli

RUN_S = 40.0


def environment(url: str, **variables: str) -> dict[str, str]:
    """The environment of a command that calls the service at `url`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DEFERD_") and name != "COLUMNS"}
    return {**kept, "DEFERD_URL": url, **variables}


def run_in_process(
    *words: str, stdin: str = "", env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `deferd` with these words in this process: most commands take less time than the start of a process."""
    output, errors = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    variables = mock.patch.dict(os.environ, os.environ if env is None else env, clear=True)
    with tempfile.TemporaryFile() as file, variables:
        file.write(stdin.encode())
        file.seek(0)
        with (
            io.TextIOWrapper(file, encoding="utf-8") as standard_input,
            mock.patch.multiple(sys, stdin=standard_input, stdout=output, stderr=errors),
        ):
            code = cli.main(words)
    texts = []
    for stream in (output, errors):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return subprocess.CompletedProcess(words, code, *texts)


class Shell:
    """Runs commands against the service at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url

    def run(self, *words: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `deferd` with these words in this process."""
        return run_in_process(*words, stdin=stdin, env=environment(self.url, **variables))

    def run_process(self, *words: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `deferd` with these words in a process of its own, with pipes."""
        return subprocess.run(
            [sys.executable, "-m", "deferd", *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=RUN_S,
            check=False,
            env=environment(self.url, **variables),
        )

    def good(self, *words: str, stdin: str = "") -> str:
        """The output of a command that must succeed with nothing on stderr."""
        done = self.run(*words, stdin=stdin)
        assert (0, "") == (done.returncode, done.stderr)
        return done.stdout

    def json(self, *words: str, stdin: str = "") -> list[Any]:
        """The JSON lines of a command that must succeed."""
        return [json.loads(line) for line in self.good(*words, "--json", stdin=stdin).splitlines()]

    def refused(self, code: int, *words: str, stdin: str = "") -> str:
        """The error line of a command that must end with `code` and print nothing else."""
        done = self.run(*words, stdin=stdin)
        assert (code, "") == (done.returncode, done.stdout), done.stderr
        [line] = done.stderr.splitlines()
        assert line.startswith("deferd: ")
        return line


class Terminal:
    """A command on its own terminal: reads its output and types keys."""

    def __init__(self, process: subprocess.Popen[bytes], controller: int) -> None:
        self.process = process
        self._controller = controller
        self.text = ""

    def wait_for(self, pattern: str, timeout_s: float = 20.0) -> str:
        """Read until the output since the last wait has the pattern; returns that output."""
        deadline = time.monotonic() + timeout_s
        while not re.search(pattern, self.text):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.text!r}"
            if not self.read(0.1) and self.process.poll() is not None:
                raise AssertionError(f"ended with {self.process.returncode} without {pattern!r}: {self.text!r}")
        found, self.text = self.text, ""
        return found

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._controller, keys.encode())

    def end(self, timeout_s: float = 20.0) -> int:
        """Wait for the end and return the exit code; the output is read meanwhile."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still there: {self.text!r}"
            self.read(0.05)
        while self.read(0.0):
            pass
        return self.process.returncode

    def read(self, wait_s: float) -> bool:
        """Read its output for at most `wait_s`; returns whether there was any."""
        if not select.select([self._controller], [], [], wait_s)[0]:
            return False
        try:
            data = os.read(self._controller, 65536)
        except OSError:  # no process has it open any more
            return False
        self.text += data.decode(errors="replace")
        return bool(data)


@contextlib.contextmanager
def terminal(
    url: str, *words: str, size: tuple[int, int] = (24, 80), program: Sequence[str] = (sys.executable, "-m", "deferd")
) -> Iterator[Terminal]:
    """`deferd`, or another program, with these words on a terminal of `size` rows and columns."""
    controller, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    process = subprocess.Popen(
        [*program, *words],
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
        env=environment(url, TERM="xterm-256color"),
        preexec_fn=_take_terminal,  # noqa: PLW1509 (this process has no threads that hold locks here)
    )
    os.close(end)
    try:
        yield Terminal(process, controller)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(10)
        os.close(controller)


def _take_terminal() -> None:
    """Make Ctrl-C on the terminal a SIGINT for the command."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def ids(jobs: Sequence[Any]) -> list[str]:
    """The ids of jobs as JSON."""
    return [job["id"] for job in jobs]
