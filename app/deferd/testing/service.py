"""A private service for tests: a real `deferd serve` process with a clock that can be moved."""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from deferd.client import AsyncClient, Client
from deferd.contract.errors import CalendarNotFound, PushNotFound, ScheduleNotFound, TopicNotFound
from deferd.contract.real_time import monotonic_s
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.testing.clock import ServiceClock
from deferd.testing.serve_process import START_S, ServeProcess, start_serve
from deferd.worker import Context, Worker
from deferd.worker.handlers import CallNext

_CHECK_INTERVAL_S = 0.01
_GRACE_S = 0.02
"""Of a worker in a test: when it is idle, only handlers of jobs that are over may still run."""


@contextlib.contextmanager
def start_service(*flags: str, start_timeout: float = START_S) -> Iterator[ServiceForTests]:
    """Start a service with its own store and a movable clock; stop and remove it at the end of the block.

    It listens on a free port of the loopback address and keeps its data in a temporary directory. `flags` are further
    flags of `deferd serve`, such as ``"--workers", "2"``; variables named DEFERD_* have no effect. A start takes about
    two seconds: share the service among tests and `purge` in between.

    Raises:
        ServiceNotStarted: it did not serve within `start_timeout` seconds; needs `pip install 'deferd[server]'`.
    """
    with tempfile.TemporaryDirectory(prefix="deferd-testing-", ignore_cleanup_errors=True) as directory:
        data_dir = Path(directory) / "data"
        popen, output = start_serve(
            ["deferd.testing.attached_serve"],
            ["--test-clock", "--port", "0", "--data-dir", str(data_dir), *flags],
            # The tests' directory is not on the import path: it may contain a redis.py.
            {"PYTHONSAFEPATH": "1"},
            start_new_session=True,  # Ctrl-C goes to the tests, which then stop the service
            stdin=subprocess.PIPE,  # its end tells the service that this process is gone
        )
        process = ServeProcess(popen, output)
        try:
            service = ServiceForTests(process.wait_for_url(start_timeout), process)
            with contextlib.closing(service):
                yield service
        finally:
            if not process.stop():
                _kill_store(data_dir)
            if popen.stdin is not None:
                popen.stdin.close()


class ServiceForTests:
    """A running service, made by `start_service`, with its `url` and its `clock`."""

    def __init__(self, url: str, process: ServeProcess) -> None:
        self.url = url
        self._process = process
        self._own_client = Client(url)
        self.clock = ServiceClock(self._own_client)

    def client(self, **options: Any) -> Client:
        """A new client of this service, with these options of Client besides the URL; the caller closes it."""
        return Client(self.url, **options)

    def async_client(self, **options: Any) -> AsyncClient:
        """As `client`, for asyncio: with these options of AsyncClient."""
        return AsyncClient(self.url, **options)

    def run_until_idle(self, worker: Worker, *, timeout: float = 30.0) -> None:
        """Run a worker on this service until none of its topics has a ready or reserved job.

        ::

            close.bind(client).put(Order(number=1042), delay=timedelta(minutes=30))
            deferd_service.clock.advance(minutes=30)
            deferd_service.run_until_idle(worker)

        The worker runs in a separate thread and uses this service instead of its own URL; it is not changed
        and may be run again. Delayed jobs stay delayed, including those that wait for their backoff: advance the clock
        and run it again. Ready jobs of a paused topic do not count. In an async test:
        ``await asyncio.to_thread(deferd_service.run_until_idle, worker)``.

        Raises:
            TimeoutError: it is not idle within `timeout` seconds.
            ValueError: the worker has no handler.
        """
        _run_until_idle(worker, self.url, self._own_client, timeout)

    def purge(self) -> None:
        """Remove all schedules, calendars, pushes, jobs, and topics with their settings; stop all tasks.

        The clock is not set back. What tells of the past stays (activity, history, tasks that have ended), and so does
        a topic with `partitions`, whose number cannot be lowered, without jobs.
        """
        client = self._own_client
        for schedule in list(client.schedules(jobs=False)):
            with contextlib.suppress(ScheduleNotFound):
                client.delete_schedule(schedule.name)
        for task in client.tasks():
            if task.state == "running":
                client.stop_task(task.id)
                while client.task(task.id).state == "running":  # for about a second
                    time.sleep(_CHECK_INTERVAL_S)
        for view in list(client.topics()):
            with contextlib.suppress(TopicNotFound):
                if view.paused:
                    client.resume(view.topic)
                with contextlib.suppress(PushNotFound):
                    client.remove_push(view.topic)
                client.set_topic(view.topic, {})  # a topic with settings outlives its jobs
                client.purge(view.topic)
        for calendar in client.calendars():
            with contextlib.suppress(CalendarNotFound):
                client.delete_calendar(calendar.name)

    @property
    def log(self) -> str:
        """Everything that the service has logged so far."""
        return self._process.log

    def close(self) -> None:
        """Close the connections of this object. `start_service` calls it."""
        self._own_client.close()


def _run_until_idle(worker: Worker, url: str, client: Client, timeout_s: float) -> None:
    """See `ServiceForTests.run_until_idle`; `client` is connected to the service at `url`."""
    started = 0

    async def count(_context: Context, call_next: CallNext) -> Any:
        nonlocal started
        started += 1
        return await call_next()

    running = copy.copy(worker)
    running._url = url
    running._key = ""
    running._grace_s = min(worker._grace_s, _GRACE_S)
    running._middleware = [count, *worker._middleware]
    running._running, running._stop_requested = None, False
    end_s = monotonic_s() + timeout_s
    with ThreadPoolExecutor(1, "deferd-testing-worker") as thread:
        run = thread.submit(running.run)
        try:
            while not run.done():
                started_before = started
                # Check twice, without a handler starting in between: a handler may have put a job into a topic that
                # was checked just before.
                busy = _busy(running, client) or _busy(running, client)
                if not busy and started == started_before:
                    break
                if monotonic_s() > end_s:
                    raise TimeoutError(
                        f"the worker is not idle after {timeout_s:g} s: {', '.join(busy) or 'a handler runs'}"
                    )
                time.sleep(_CHECK_INTERVAL_S)
        finally:
            running.stop()
    run.result()


def _topics(worker: Worker, client: Client) -> list[str]:
    """The topics that the worker names, and those that its patterns match now."""
    named = [topic for topic in worker.topics if not is_pattern(topic)]
    patterns = TopicPatterns(topic for topic in worker.topics if is_pattern(topic))
    pages = client.topic_pages() if patterns.patterns else ()
    return [*named, *(view.topic for page in pages for view in page.topics if patterns.match(view.topic))]


def _busy(worker: Worker, client: Client) -> list[str]:
    """Topics that keep the worker busy: ``["orders.close has 2 ready, 1 reserved"]``."""
    busy = []
    for topic in _topics(worker, client):
        try:
            view = client.topic(topic)
        except TopicNotFound:
            continue
        ready, reserved = 0 if view.paused else view.counts["ready"], view.counts["reserved"]
        if ready or reserved:
            busy.append(f"{topic} has {ready} ready, {reserved} reserved")
    return busy


def _kill_store(data_dir: Path) -> None:
    from deferd.store.data_dir import DataDirectory  # noqa: PLC0415 (of the server extra, which is there: it has run)

    folder = DataDirectory(data_dir)
    pid = folder.store_pid()
    if pid is not None and folder.is_store(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
