"""A worker in its own process, which tests can kill."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

WITHIN_S = 20.0


class WorkerProcess:
    """Runs `python -m MODULE ARGUMENTS`, or `command`, and collects its output.

    It and what it has started are killed when the block ends.
    """

    def __init__(
        self,
        *arguments: str,
        module: str = "tests.acceptance.worker.worker_program",
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = [*(command or (sys.executable, "-m", module)), *arguments]
        self._environment = {**os.environ, **(environment or {})}
        self._new_lines: queue.Queue[str] = queue.Queue()
        self.lines: list[str] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill_all()
        if kind is not None:
            print(f"a worker wrote:\n{''.join(self.lines)}")

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.append(line)
                self._new_lines.put(line)

    def wait_for(self, *texts: str) -> None:
        """Wait until each text has appeared in a line since the last call."""
        missing = set(texts)
        end_s = time.monotonic() + WITHIN_S
        while missing:
            try:
                line = self._new_lines.get(timeout=max(end_s - time.monotonic(), 0))
            except queue.Empty:
                raise AssertionError(f"no line with {missing} came:\n{''.join(self.lines)}") from None
            missing = {text for text in missing if text not in line}

    def kill_all(self) -> None:
        """SIGKILL the worker and what it has started, and wait for the end of its output."""
        with contextlib.suppress(ProcessLookupError):  # they have ended
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(WITHIN_S)
        self._reader.join(WITHIN_S)

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for the end of the process and return its exit code."""
        code = self.process.wait(WITHIN_S)
        self._reader.join(WITHIN_S)
        return code
