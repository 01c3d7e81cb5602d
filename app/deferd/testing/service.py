"""A private service for tests: a real `deferd serve` in a process of its own, with a clock that can be moved."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from deferd.client import AsyncClient, Client
from deferd.contract.errors import TopicNotFound
from deferd.testing.clock import ServiceClock
from deferd.testing.idle_worker import run_until_idle
from deferd.worker import Worker

START_S = 30.0
STOP_S = 15.0
_LISTENING = re.compile(r" listening on (http://\S+) ")


class ServiceNotStarted(Exception):
    """The service did not come to serve; the text holds all that it said."""


@contextlib.contextmanager
def start_service(*flags: str, start_timeout: float = START_S) -> Iterator[ServiceForTests]:
    """Start a service with a store of its own and a clock that can be moved; at the end of the block it is gone.

    It listens on a free port of the loopback address and keeps its data in a temporary folder. `flags` are further
    ones of `deferd serve`, such as ``"--workers", "2"``; variables named DEFERD_* do not count. It takes about two
    seconds to start: share it among tests, and `purge` in between.

    Raises:
        ServiceNotStarted: it did not serve within `start_timeout` seconds; needs `pip install 'deferd[server]'`.
    """
    with tempfile.TemporaryDirectory(prefix="deferd-testing-", ignore_cleanup_errors=True) as folder:
        process = _ServeProcess(Path(folder), flags)
        try:
            service = ServiceForTests(process.wait_for_url(start_timeout), process)
            with contextlib.closing(service):
                yield service
        finally:
            process.end()


class ServiceForTests:
    """A running service. `url` is where it listens, `clock` is its clock; `start_service` makes it."""

    def __init__(self, url: str, process: _ServeProcess) -> None:
        self.url = url
        self._process = process
        self._own_client = Client(url)
        self.clock = ServiceClock(self._own_client)

    def client(self, **options: Any) -> Client:
        """A new client of it, with these options of Client besides the URL; yours to close."""
        return Client(self.url, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """A new client of it for asyncio, with these options of AsyncClient besides the URL; yours to close."""
        return AsyncClient(self.url, **options)

    def run_until_idle(self, worker: Worker, *, timeout: float = 30.0) -> None:
        """Run a program's worker on this service until none of its topics has a ready or reserved job.

        ::

            close.bind(client).put(Order(number=1042), delay=timedelta(minutes=30))
            deferd_service.clock.advance(minutes=30)
            deferd_service.run_until_idle(worker)

        The worker runs in a thread of its own and uses this service, whatever URL it was made with; it is not changed
        and may be run again. Jobs that are delayed stay so, those that wait for their backoff included: advance the
        clock and run it again. Ready jobs of a paused topic do not count. In an async test:
        ``await asyncio.to_thread(deferd_service.run_until_idle, worker)``.

        Raises:
            TimeoutError: it is not idle within `timeout` seconds.
            ValueError: the worker has no handler.
        """
        run_until_idle(worker, self.url, self._own_client, timeout)

    def purge(self) -> None:
        """Remove all jobs and all topics with their settings. The clock stays where it is, ahead of real time."""
        client = self._own_client
        for view in list(client.topics()):
            with contextlib.suppress(TopicNotFound):
                if view.paused:
                    client.resume(view.topic)
                client.set_topic(view.topic, {})  # one that has settings would outlive its jobs
                client.purge(view.topic)

    @property
    def log(self) -> str:
        """What the service has logged so far."""
        return self._process.log

    def close(self) -> None:
        """Close the connections of this object; `start_service` does."""
        self._own_client.close()


class _ServeProcess:
    """The process, and a thread that reads what it says."""

    def __init__(self, folder: Path, flags: tuple[str, ...]) -> None:
        self._data_dir = folder / "data"
        self._lines: list[str] = []
        self._url: str | None = None
        self._url_or_end = threading.Event()
        environment = {name: value for name, value in os.environ.items() if not name.upper().startswith("DEFERD_")}
        self._process = subprocess.Popen(  # noqa: S603 (this package, with the flags that the test gives)
            [
                *(sys.executable, "-m", "deferd.testing.serving"),
                *("--test-clock", "--port", "0", "--data-dir", str(self._data_dir)),
                *flags,
            ],
            # Without the folder in which the tests run among the places to import from: it may hold a redis.py.
            env={**environment, "PYTHONSAFEPATH": "1"},
            start_new_session=True,  # Ctrl-C is for the tests, which then end the service
            stdin=subprocess.PIPE,  # by its end the service learns that this process is gone
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), daemon=True, name="deferd-testing-log"
        )
        self._reader.start()

    @property
    def log(self) -> str:
        return "".join(self._lines)

    def wait_for_url(self, timeout_s: float) -> str:
        in_time = self._url_or_end.wait(timeout_s)
        if self._url is None:
            how = "ended" if in_time else f"did not serve within {timeout_s:g} s"
            self.end()
            raise ServiceNotStarted(f"the service for tests {how}; it said:\n{self.log or '(nothing)'}")
        return self._url

    def _read(self, said: Iterable[str]) -> None:
        for line in said:
            self._lines.append(line)
            found = _LISTENING.search(line)
            if found is not None:
                self._url = found[1]
                self._url_or_end.set()
        self._url_or_end.set()

    def end(self) -> None:
        """SIGTERM, and SIGKILL to service and store when that does not end them in time. May be called twice."""
        process = self._process
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_S)
                self._kill_store()
        if process.stdin is not None:
            process.stdin.close()
        self._reader.join(STOP_S)
        if process.stdout is not None and not self._reader.is_alive():
            process.stdout.close()

    def _kill_store(self) -> None:
        from deferd.store.data_dir import DataDirectory  # noqa: PLC0415 (of the server extra, which is there: it has run)

        folder = DataDirectory(self._data_dir)
        pid = folder.store_pid()
        if pid is not None and folder.is_store(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
