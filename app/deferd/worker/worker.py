"""The worker: its declaration in a program, and its start and stop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from deferd.client import AsyncClient, JobDefinition
from deferd.client.request_body import Seconds, seconds
from deferd.client.scheduling import RunOptions, ScheduledJobOptions
from deferd.contract.limits import ID_LENGTH, ID_PATTERN
from deferd.stop_signals import handle_in_loop, restore_in_children, stop_signals
from deferd.worker.declared_schedules import DeclaredSchedules, schedules_registered
from deferd.worker.fetcher import Priority, topic_order
from deferd.worker.handlers import BatchHandler, Handler, Middleware, TopicHandlers, check_layer, check_topic
from deferd.worker.log import LOG
from deferd.worker.worker_run import WorkerRun, WorkerSettings

if TYPE_CHECKING:
    from deferd.client import Cipher
    from deferd.client.tracing import Tracing

Function = TypeVar("Function", bound=Callable[..., Any])
Layer = TypeVar("Layer", bound=Middleware)
_PREFETCH_PER_HANDLER = 10
_PREFETCH_MAX = 1000
_LEFT_TASKS_S = 1.0


class Worker:
    """Runs handlers on the jobs of their topics, at most `concurrency` of them at a time.

    ::

        worker = Worker("http://127.0.0.1:8000")

        @worker.handler("orders.close")
        async def close(order: Order) -> None:
            ...

        worker.run()

    `url` and `key` are those of AsyncClient; `url` may also be a function that makes an AsyncClient with `retry_for=0`.
    `name` is shown as `reserved_by` and has the form of a job id; the default is host name and process id. `grace` is
    how long handlers may continue when the worker stops, in seconds or as a timedelta.

    `priority`: `strict` serves topics in the order in which their handlers are declared; a list of topics serves these
    first, in its order; a mapping of weights, as in ``{"urgent": 3, "bulk": 1}``, starves no topic, and topics that it
    leaves out have weight 1. Topics that match a pattern come after all others and take turns, with any priority.
    `prefetch` is how many further jobs may wait in the worker, by default ten times the
    concurrency and at most 1000; it fetches only those that will start within a quarter of a second, judging by earlier
    run times. Jobs that arrive later do not overtake prefetched ones: 0 makes the priority exact.

    `is_failure` is called with an exception of a handler and decides whether that counts as an attempt; by default all
    do but Snooze. An exception that does not count snoozes the job for the time of its backoff. It is not asked about
    Reject. `tracing` is the argument of AsyncClient; a client made by a function keeps its own. Handlers run in a span
    each.

    `cipher` is the argument of AsyncClient, too: handlers get what it decrypts, and results and jobs that they put are
    encrypted. A job that it cannot decrypt fails with Undecryptable before its handler begins, as if that had raised
    it: it is delivered again after its backoff, perhaps to a worker that has the key. A function that makes the client
    gives it its cipher.

    Raises:
        ValueError: a value is out of its range.
    """

    def __init__(
        self,
        url: str | Sequence[str] | Callable[[], AsyncClient] | None = None,
        *,
        key: str | None = None,
        concurrency: int = 10,
        prefetch: int | None = None,
        name: str | None = None,
        priority: Priority = "strict",
        grace: Seconds = 30,
        is_failure: Callable[[BaseException], bool] | None = None,
        tracing: bool | Tracing | None = None,
        cipher: Cipher | None = None,
    ) -> None:
        self._url = url
        self._key = key
        self._tracing = tracing
        self._cipher = cipher
        if cipher is not None:
            from deferd.client.cipher import check_cipher  # noqa: PLC0415 (for those who encrypt)

            check_cipher(cipher)
            if callable(url):
                raise ValueError("the function makes the worker's client: give the cipher to that")
        if concurrency < 1:
            raise ValueError(f"the concurrency must be at least 1, not {concurrency}")
        self._concurrency = concurrency
        self._prefetch = min(_PREFETCH_PER_HANDLER * concurrency, _PREFETCH_MAX) if prefetch is None else prefetch
        if self._prefetch < 0:
            raise ValueError(f"the prefetch must be at least 0, not {prefetch}")
        if name is not None and not re.fullmatch(ID_PATTERN, name):
            raise ValueError(f"the name of a worker has the form of a job id, unlike {name!r}")
        self._name = name
        self._priority = priority
        self._grace_s = seconds(grace)
        if not self._grace_s >= 0:
            raise ValueError(f"the grace must be at least 0 seconds, not {self._grace_s:g}")
        self._is_failure = is_failure
        self._handlers = TopicHandlers()
        self._schedules = DeclaredSchedules(self._handlers)
        self._middleware: list[Middleware] = []
        self._stop_requested = False
        self._running: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    @property
    def topics(self) -> Sequence[str]:
        """The topics and patterns that have a handler, in the order of their declaration."""
        self._schedules.make_handlers()
        return tuple(self._handlers)

    def handler(
        self,
        job: str | JobDefinition[Any],
        *,
        time_limit: Seconds | None = None,
        batch: int | None = None,
        within: Seconds | None = None,
    ) -> Callable[[Function], Function]:
        """Declare the decorated function as the handler of a topic. The function itself is not changed.

        `job` is the topic, or a definition made by `deferd.job`: the body is then parsed into the definition's type,
        and a function whose parameter has another type is refused. A topic with `*`, which stands for any characters,
        is a pattern: the function handles all topics that match and have no handler of their own, also new ones, and
        the first pattern declared that matches counts. `context.topic` is the topic of the job.

        The function is async, or plain and runs in a thread. Its first parameter gets the job's body, parsed by
        pydantic into the parameter's annotation; an invalid body makes the job dead, with the reason. A parameter
        annotated with `Context` gets the context. After `time_limit` (seconds or a timedelta) an async handler is
        cancelled, a plain one sees `context.cancelled`, and the job is released: that of an async handler when it has
        ended, or after 2 s. A handler that continues nevertheless counts towards the concurrency until it ends. The
        `time_limit` of a job counts from its pop; its handler ends up to 1 s earlier, so that the release is in time.

        The return value, if not None, is the job's result and must be JSON, or a value that pydantic can write as JSON.
        To put further jobs in the same step, return `Then` or call `context.put`.
        An exception releases the job, with its text as `last_error`, so that it is delivered again after its backoff.
        Retry, Snooze and Reject override that.

        With `batch` (1 to 1000), one call gets up to so many jobs, of any topics that the handler is for. It begins
        when the batch is full, or `within` (0 to 60 s, by default 1 s) after the first job came; sooner if half of a
        job's `time_limit` has passed. The first parameter gets a list of bodies, without invalid ones, and a parameter
        annotated with `BatchContext` the jobs, to give them different outcomes. If the function returns, which it must
        do without a value, all others are finished; an exception is the outcome of all others. A call counts as one
        handler towards the concurrency. An async one is cancelled when all its jobs are stopped: by cancels, lost
        leases, their time limits or the end of the worker. One that is stopped alone shows that by `cancelled`.

        Raises:
            ValueError: the topic has a handler, there are 32 topics already, or a value is out of its range.
            TypeError: the function cannot be called with these arguments, takes another type than the definition's, the
                topic was forgotten, or a middleware does not take batches.
        """
        check_topic(job)
        if batch is None and within is not None:
            raise ValueError("within is for a handler that takes batches: give batch, too")

        def declare(function: Function) -> Function:
            if batch is None:
                handler = Handler(job, function, time_limit=time_limit)
            else:
                handler = BatchHandler(job, function, batch=batch, within=within, time_limit=time_limit)
                for layer in self._middleware:
                    check_layer(layer)
            self._handlers.add(handler)
            return function

        return declare

    def schedule(
        self,
        cron: str | None = None,
        *,
        name: str | None = None,
        topic: str | None = None,
        job: ScheduledJobOptions | None = None,
        **options: Unpack[RunOptions],
    ) -> Callable[[Function], Function]:
        """Declare a schedule whose runs the decorated function handles. The function itself is not changed.

        ::

            @worker.schedule("0 3 * * *", zone="Europe/Berlin")
            @worker.handler("reports.nightly")
            async def nightly() -> None: ...

        The options are those of `Client.put_schedule`; give one of `cron`, `every` and `at`. The jobs go into `topic`,
        by default that of the function's `handler`. A function that does not handle the topic becomes its handler;
        without a `topic` that is the name of the function. `name` is by default the topic. `job` is the job of each
        run, with the defaults of the handler's job definition, if that is one.

        The worker puts the schedule when it starts. One that the service has already is left alone, with its next run;
        a pause continues. While the service cannot be reached, the worker tries again, beside its handlers. Schedules
        that a program does not declare any more remain: delete them.

        Raises:
            TypeError: an option is unknown.
            ValueError: the name or the topic is invalid.
        """
        given: dict[str, Any] = {**options, "cron": cron, "job": job}

        def declare(function: Function) -> Function:
            self._schedules.add(function, name, topic, given)
            return function

        return declare

    def middleware(self, layer: Layer) -> Layer:
        """Wrap all handlers in the decorated ``async def layer(context, call_next)``, the first declared outermost.

        ``await call_next()`` runs the inner layers and returns the handler's value; the layer's own return value
        replaces it. A layer may raise what a handler may. A time limit covers handler and middleware together.

        A layer wraps the call of a batch once, with a BatchContext. In a worker with such handlers, the annotation of
        its first parameter must say that it takes that: ``Context | BatchContext``.

        Raises:
            TypeError: it does not, and a handler takes batches.
        """
        if self._handlers.take_batches:
            check_layer(layer)
        self._middleware.append(layer)
        return layer

    def run(self, *, url: str | Sequence[str] | None = None, key: str | None = None) -> int:
        """Work until SIGTERM, SIGINT or SIGHUP, then stop as `stop` does; a second SIGINT ends the process at once.

        For a program's main thread; in another thread it gets no signals and ends by `stop`. Returns the exit code of
        the process: 0, or 1 if some jobs could not be reported and are delivered again only when their leases end.

        `url` and `key` override those of the worker: `deferd worker` passes --url and --key here. If the worker's `url`
        is a function, that makes the client nevertheless.

        Raises:
            RuntimeError: an event loop runs in this thread already: use `await worker.serve()` there.
            ValueError, InvalidInput: as for `serve`.
        """
        if running_loop() is not None:
            raise RuntimeError(
                "Worker.run() starts an event loop, and one is running in this thread already: "
                "use `await worker.serve()` here, and `worker.stop()` to end it"
            )
        loop = asyncio.new_event_loop()
        try:
            with _signals_handled(loop, self._on_signal):
                left = loop.run_until_complete(self._serve(url=url, key=key))
            return 1 if left else 0
        finally:
            _close(loop)

    async def serve(self) -> None:
        """Work in the current event loop until `stop` is called. A cancellation stops it without grace time.

        Raises:
            ValueError: no topic has a handler, or `priority` does not fit the topics.
            InvalidInput: a schedule is invalid; the paths of the field errors start with ``"schedule"`` and its name.
            RuntimeError: the worker runs already.
        """
        await self._serve()

    def stop(self) -> None:
        """End `serve` or `run`; from any thread. Returns at once.

        No further job is fetched, no further handler starts, and those that wait are released. Running handlers have
        the grace time; then async ones are cancelled, plain ones see `context.cancelled`, and their jobs are released.
        Released jobs are delivered again at once, and the attempt counts. The end is some seconds after the grace time
        at the latest, even if a handler does not end. A stop before the start ends the next `serve` at once.
        """
        self._stop_requested = True
        if self._running is not None:
            loop, stop = self._running
            if running_loop() is loop:
                stop.set()
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(stop.set)

    async def _serve(self, *, url: str | Sequence[str] | None = None, key: str | None = None) -> int:
        if self._running is not None:
            raise RuntimeError("this worker runs already")
        settings = self._settings()
        schedules = self._schedules.definitions()
        stop = asyncio.Event()
        self._running = (asyncio.get_running_loop(), stop)
        if self._stop_requested:
            stop.set()
        facts: dict[str, Any] = {
            "worker": settings.name,
            "topics": list(self._handlers),
            "concurrency": self._concurrency,
        }
        try:
            async with self._client(url, key) as client:
                facts["url"] = ",".join(client.urls)
                topics = ", ".join(self._handlers)
                LOG.info("worker %s starts at %s: %s", settings.name, facts["url"], topics, extra=facts)
                async with schedules_registered(client, schedules, stop):
                    left = await WorkerRun(settings, client, stop).serve()
        finally:
            self._running = None
            self._stop_requested = False
        if left:
            text = "worker %s has ended; %d jobs could not be reported and are delivered again when their leases end"
            LOG.error(text, settings.name, left, extra={**facts, "left": left})
        else:
            LOG.info("worker %s has ended", settings.name, extra=facts)
        return left

    def _settings(self) -> WorkerSettings:
        self._schedules.make_handlers()
        if not self._handlers:
            raise ValueError("a worker needs at least one handler: @worker.handler(TOPIC)")
        return WorkerSettings(
            name=self._name or default_name(),
            handlers=self._handlers,
            middleware=self._middleware,
            order=topic_order(self._priority, tuple(self._handlers)),
            concurrency=self._concurrency,
            prefetch=self._prefetch,
            grace_s=self._grace_s,
            is_failure=self._is_failure,
        )

    def _client(self, url: str | Sequence[str] | None, key: str | None) -> AsyncClient:
        if callable(self._url):
            client = self._url()
            if url is not None and AsyncClient(url).urls != client.urls:
                text = "the program makes the worker's client, for %s: the URL %s that was given is not used"
                LOG.warning(text, ",".join(client.urls), url if isinstance(url, str) else ",".join(url))
            return client
        url = self._url if url is None else url
        # The worker retries by itself, without limit, and keeps track of lost responses.
        key = self._key if key is None else key
        return AsyncClient(url, key=key, retry_for=0, tracing=self._tracing, cipher=self._cipher)

    def _on_signal(self, number: signal.Signals) -> None:
        self.stop()
        LOG.info("%s: stopping, within %g s", number.name, self._grace_s)


def default_name() -> str:
    """The name of a worker or relay that was given none: host name and process id."""
    host = re.sub(r"[^A-Za-z0-9._:-]", "-", socket.gethostname()).lstrip("._:-")
    suffix = f"-{os.getpid()}"
    return f"{host[: ID_LENGTH - len(suffix)] or 'worker'}{suffix}"


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if one does."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@contextlib.contextmanager
def _signals_handled(loop: asyncio.AbstractEventLoop, on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `on_signal` in the loop for each stop signal. After one SIGINT, the next has its default effect.

    Outside the main thread, Python delivers no signals and this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def handle(number: int) -> None:
        nonlocal interrupted
        if number == signal.SIGINT and interrupted:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        interrupted = interrupted or number == signal.SIGINT
        on_signal(signal.Signals(number))

    with contextlib.ExitStack() as handlers:
        for number in stop_signals():
            handlers.callback(_add_handler(loop, number, handle))
        yield


def _add_handler(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, handle: Callable[[int], None]
) -> Callable[[], object]:
    """Call `handle` in the loop when the signal arrives; returns the function that removes it."""
    try:
        handle_in_loop(loop, number, handle, number)
    except NotImplementedError:  # the event loops of Windows
        before = signal.signal(number, lambda number, _frame: loop.call_soon_threadsafe(handle, number))
        restore_in_children(number, before)
        return lambda: signal.signal(number, before or signal.SIG_DFL)
    return lambda: loop.remove_signal_handler(number)


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """Close a loop like asyncio.run, but do not wait without limit for tasks that ignore their cancellation."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_LEFT_TASKS_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
