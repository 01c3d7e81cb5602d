"""A private service for tests: a real `deferd serve` process with a clock that can be moved."""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import IO, Any, Protocol

from pydantic_core import to_json

from deferd.client import AsyncClient, Client
from deferd.client.requests import request_for
from deferd.contract.clocks import monotonic_s
from deferd.contract.errors import BatchNotFound, CalendarNotFound, PushNotFound, ScheduleNotFound, TopicNotFound
from deferd.contract.operations import system as operations
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.worker import BatchContext, Context, Worker
from deferd.worker.handlers import CallNext

START_S = 30.0
STOP_S = 15.0
_LISTENING = re.compile(r" listening on (https?://\S+) ")
_COMMAND_VARIABLE = "DEFERD_TESTING_COMMAND"
_MOVE_S = 1.0
"""For how long one request moves the clock past runs of schedules; then `advance` logs how far it is."""
_LONGEST_STEP_S = 60.0
_CHECK_INTERVAL_S = 0.002
_HOLDS_BACK = frozenset({"group_paused", "group_order"})
_LOG = logging.getLogger("deferd.testing")


@contextlib.contextmanager
def start_service(
    *flags: str, start_timeout: float = START_S, command: str | Sequence[str] | None = None
) -> Iterator[ServiceForTests]:
    """Start a service with its own store and a movable clock; stop and remove it at the end of the block.

    It listens on a free port of the loopback address and keeps its data in a temporary directory. `flags` are further
    flags of `deferd serve`, such as ``"--workers", "2"``; variables named DEFERD_* have no effect on it. A start takes
    about two seconds: share the service among tests and `purge` in between.

    `command` is the `deferd` to run, with arguments that precede its `serve`; a text is split as by a shell. The
    default is the variable DEFERD_TESTING_COMMAND, then the deferd of this environment, which needs the extra `server`.
    So the service may have an environment of its own, such as ``"/opt/deferd/bin/deferd"``, of the same release.

    Raises:
        ServiceNotStarted: it did not serve within `start_timeout` seconds, or the command cannot be run.
    """
    if command is None:
        command = os.environ.get(_COMMAND_VARIABLE) or [sys.executable, "-m", "deferd"]
    words = shlex.split(command) if isinstance(command, str) else [*command]
    with tempfile.TemporaryDirectory(prefix="deferd-testing-", ignore_cleanup_errors=True) as directory:
        data_dir = Path(directory) / "data"
        popen, output = start_serve(
            [*words, "serve", "--stop-at-end-of-input"],
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
        and run it again. Ready jobs of a paused topic or group do not count, nor do those of a group that waits for a
        job with a backoff. In an async test:
        ``await asyncio.to_thread(deferd_service.run_until_idle, worker)``.

        Raises:
            TimeoutError: it is not idle within `timeout` seconds.
            ValueError: the worker has no handler.
        """
        _run_until_idle(worker, self.url, self._own_client, timeout)

    def purge(self) -> None:
        """Remove all schedules, calendars, batches, pushes, jobs, topics with settings and pauses, tasks and activity.

        What rates have counted is forgotten. The clock is not set back. The histories of topics stay, and so does a
        topic with `partitions`, whose number cannot be lowered, without jobs.
        """
        client = self._own_client
        for schedule in list(client.schedules(jobs=False)):
            with contextlib.suppress(ScheduleNotFound):
                client.delete_schedule(schedule.name)
        for batch in list(client.batches()):
            with contextlib.suppress(BatchNotFound):
                client.delete_batch(batch.name)
        for task in client.tasks():
            if task.state == "running":
                client.stop_task(task.id)
                while client.task(task.id).state == "running":  # for about a second
                    time.sleep(_CHECK_INTERVAL_S)
        for view in list(client.topics()):
            with contextlib.suppress(TopicNotFound):
                if view.paused:
                    client.resume(view.topic)
                for group in [one.group for one in client.groups(view.topic) if one.paused and one.group is not None]:
                    client.resume_group(view.topic, group)
                with contextlib.suppress(PushNotFound):
                    client.remove_push(view.topic)
                client.set_topic(view.topic, {})  # a topic with settings outlives its jobs
                client.purge(view.topic)
        for calendar in client.calendars():
            with contextlib.suppress(CalendarNotFound):
                client.delete_calendar(calendar.name)
        client.send(request_for(operations.FORGET_PAST))

    @property
    def log(self) -> str:
        """Everything that the service has logged so far."""
        return self._process.log

    def close(self) -> None:
        """Close the connections of this object. `start_service` calls it."""
        self._own_client.close()


class ServiceClock:
    """The clock that a service for tests uses for due times, leases, retries, ttl and retention.

    It runs in real time, jumps with `advance`, and never goes back.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def now(self) -> datetime:
        """The time of the service, in UTC."""
        return self._client.send(request_for(operations.READ_CLOCK)).now

    def advance(
        self,
        by: timedelta | None = None,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> datetime:
        """Move the clock forward by `by` plus these days, hours, minutes and seconds; returns the new time.

        When it returns, due jobs are ready, expired leases have ended and expired records are gone, so a pop with
        `wait=0` returns what is due. Waiting consumers get their jobs at once; the length of their wait is real time
        and not affected.

        The call takes milliseconds, and some more for each run of a schedule on its way. Each second it logs how far it
        is, as a warning of `deferd.testing`.

        All of that happens at the end of the jump. If something must happen in between (a job that is due after an
        hour, is released and is due again after two), advance in steps.

        Raises:
            InvalidInput: a negative duration, or more than ten years at once.
        """
        whole = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds) + (by or timedelta())
        left_s = whole.total_seconds()
        while True:
            body = to_json({"advance": left_s, "within": _MOVE_S})
            clock = self._client.send(request_for(operations.MOVE_CLOCK, body=body, wait_s=_LONGEST_STEP_S))
            left_s = clock.left
            if not left_s:
                return clock.now
            if clock.runs_left:
                text = "the clock is moved by %s and is at %s: about %d runs of schedules are left, most of %r"
                _LOG.warning(text, whole, f"{clock.now:%Y-%m-%d %H:%M:%S}", clock.runs_left, clock.busiest)


class ServiceNotStarted(Exception):
    """The service did not come to serve; the text has its whole log."""


def _run_until_idle(worker: Worker, url: str, client: Client, timeout_s: float) -> None:
    """See `ServiceForTests.run_until_idle`; `client` is connected to the service at `url`."""
    started = 0

    async def count(_context: Context | BatchContext, call_next: CallNext) -> Any:
        nonlocal started
        started += 1
        return await call_next()

    running = copy.copy(worker)
    running._url = url
    running._key = ""
    running._grace_s = 0  # when it is idle, only handlers of jobs that are over may still run
    running._middleware = [count, *worker._middleware]
    running._running, running._stop_requested = None, False
    running._schedules.make_handlers()
    schedules = set(running._schedules.definitions())
    end_s = monotonic_s() + timeout_s
    with ThreadPoolExecutor(1, "deferd-testing-worker") as thread:
        run = thread.submit(running.run)
        try:
            while not run.done():
                started_before = started
                # Check twice, without a handler starting in between: a handler may have put a job into a topic that
                # was checked just before.
                busy = _not_put(schedules, client) or _busy(running, client) or _busy(running, client)
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


def _not_put(schedules: set[str], client: Client) -> list[str]:
    """Those of a worker's schedules that it has not put yet. The others are removed from the set."""
    for name in [*schedules]:
        with contextlib.suppress(ScheduleNotFound):
            client.schedule(name)
            schedules.remove(name)
    return [f"the schedule {name} was not put" for name in sorted(schedules)]


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
        if reserved or (ready and not _are_held_back(topic, client)):
            busy.append(f"{topic} has {ready} ready, {reserved} reserved")
    return busy


def _are_held_back(topic: str, client: Client) -> bool:
    """Whether all its ready jobs are of groups that wait until something is done: a resume, or a move of the clock."""
    groups = {job.group: job for job in client.jobs(topic, state="ready")}
    reasons = (client.why(topic, job.id).reasons for group, job in groups.items() if group is not None)
    return None not in groups and all(any(reason.limit in _HOLDS_BACK for reason in of_job) for of_job in reasons)


class Process(Protocol):
    """The part of `subprocess.Popen` that `ServeProcess` needs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""

    def terminate(self) -> None:
        """SIGTERM, unless it has ended."""

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""


def start_serve(
    command: Sequence[str],
    flags: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int = subprocess.DEVNULL,
    start_new_session: bool = False,
) -> tuple[subprocess.Popen[str], IO[str]]:
    """Start `command` with these flags, and with `environment` in place of variables named DEFERD_*.

    Returns the process, and its standard output and error as one stream.

    Raises:
        ServiceNotStarted: the command cannot be run.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith("DEFERD_")}
    try:
        process = subprocess.Popen(  # noqa: S603 (this package, or what the tests name, with the flags of the test)
            [*command, *flags],
            env={**inherited, **environment},
            start_new_session=start_new_session,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        raise ServiceNotStarted(f"the command for the service cannot be run: {error}") from error
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


def _kill_store(data_dir: Path) -> None:
    """Kill the store of a service that had to be killed. One of another environment ends by itself, later."""
    try:
        from deferd.store.data_dir import DataDirectory  # noqa: PLC0415 (of the server extra)
    except ImportError:
        return
    folder = DataDirectory(data_dir)
    pid = folder.store_pid()
    if pid is not None and folder.is_store(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
