"""A service whose data outlives it, the longest calls of its store, and the size of its files, for long benchmarks."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import httpx
import redis

from deferd.engine.scripts import library
from deferd.store.data_dir import DataDirectory
from deferd.testing.service import ServeProcess, start_serve

START_S = 600.0
STOP_S = 120.0
CALL_S = 840.0
LOGGED_US = 3_000
LOGGED_MOST = 20_000


class LastingService:
    """`python -m deferd serve` on a data directory that outlives it, with further `flags`."""

    def __init__(self, data_dir: Path, text_bytes: int = 0, flags: Sequence[str] = ()) -> None:
        self._flags = flags
        self.data_dir = data_dir
        self.text_bytes = text_bytes
        self.folder = DataDirectory(data_dir)
        self.port = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Start it and wait until `/readyz` returns 200; returns the seconds."""
        began = time.perf_counter()
        flags = ["--port", str(self.port), "--data-dir", str(self.data_dir), *self._flags]
        self._process, output = start_serve([sys.executable, "-m", "deferd", "serve"], flags, {})
        self._serving = ServeProcess(self._process, output)
        self.port = httpx.URL(self._serving.wait_for_url(START_S)).port or 0
        self.wait_ready()
        return time.perf_counter() - began

    def wait_ready(self) -> None:
        """Wait until `/readyz` returns 200."""
        end_s = time.perf_counter() + START_S
        while time.perf_counter() < end_s:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{self.port}/readyz", timeout=2).status_code == 200:
                    return
            time.sleep(0.02)
        raise SystemExit(f"the service was not ready within {START_S:.0f} s")

    def stop(self) -> float:
        """SIGTERM; returns the seconds until it has ended."""
        if self._process is None:
            return 0.0
        began = time.perf_counter()
        self._process.terminate()
        self._process.wait(STOP_S)
        self._process = None
        return time.perf_counter() - began

    def kill(self) -> None:
        """SIGKILL the service; its store is stopped by its reaper."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(STOP_S)

    @property
    def pid(self) -> int:
        """The process id of the service."""
        assert self._process is not None
        return self._process.pid

    @property
    def store_pid(self) -> int:
        """The process id of its store."""
        pid = self.folder.store_pid()
        assert pid is not None
        return pid

    @contextlib.contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """A client of the store."""
        with redis.Redis(unix_socket_path=str(self.folder.socket), socket_timeout=60) as client:
            yield client

    def call(self, method: str, path: str) -> Any:
        """An HTTP call that may take long."""
        response = httpx.request(method, f"http://127.0.0.1:{self.port}{path}", timeout=CALL_S)
        response.raise_for_status()
        return response.json()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class LongestCalls:
    """The longest calls of the store during a block, by what they call."""

    def __init__(self, service: LastingService) -> None:
        self._service = service
        self.longest_ms: dict[str, float] = {}
        self.calls: dict[str, int] = {}

    def __enter__(self) -> Self:
        with self._service.client() as client:
            client.config_set("slowlog-log-slower-than", LOGGED_US)
            client.config_set("slowlog-max-len", LOGGED_MOST)
            client.slowlog_reset()
            self._verbs = _verbs()
        return self

    def __exit__(self, *_: object) -> None:
        with self._service.client() as client:
            for one in client.slowlog_get(LOGGED_MOST):
                words = one["command"].split()
                name = words[0].decode().upper()
                if name == "FCALL":
                    name = self._verbs.get(words[1].decode(), "a script")
                self.longest_ms[name] = max(self.longest_ms.get(name, 0.0), one["duration"] / 1000)
                self.calls[name] = self.calls.get(name, 0) + 1

    def __str__(self) -> str:
        longest = sorted(self.longest_ms.items(), key=lambda one: -one[1])[:6]
        names = ", ".join(f"{name} {ms:.1f} ms ({self.calls[name]})" for name, ms in longest)
        return names or f"none over {LOGGED_US / 1000:.0f} ms"

    @property
    def most_ms(self) -> float:
        """The longest of all."""
        return max(self.longest_ms.values(), default=LOGGED_US / 1000)


def _verbs() -> dict[str, str]:
    return {function: verb for verb, function in library(False).functions.items()}


class DiskWatch:
    """The most bytes that a directory held during a block, looked at four times a second."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.most = 0

    def _look(self) -> None:
        while not self._ended.wait(0.25):
            self.most = max(self.most, bytes_in(self._directory))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self.most = max(self.most, bytes_in(self._directory))


def bytes_in(directory: Path) -> int:
    """The bytes of all files in a directory and below."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # a rewrite removed it
            total += path.stat().st_size
    return total
