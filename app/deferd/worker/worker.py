"""The worker as programs declare it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from deferd.client import AsyncClient, JobDefinition
from deferd.client.durations import Seconds, seconds
from deferd.contract.limits import ID_LENGTH, ID_PATTERN, POP_TOPICS_MAX
from deferd.stop_signals import stop_signals
from deferd.worker.handlers import Handler, Middleware, checked_topic
from deferd.worker.run import Running, Settings
from deferd.worker.topic_priority import Priority, order_of
from deferd.worker.transient_errors import LOG

Function = TypeVar("Function", bound=Callable[..., Any])
Layer = TypeVar("Layer", bound=Middleware)

_PREFETCH_TIMES = 10
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

    `url` and `key` are those of AsyncClient; a function that makes an AsyncClient, with `retry_for=0`, may stand in
    place of `url`. `name` is shown as `reserved_by` and shaped like a job id, by default host and process id. `grace`
    is how long handlers may go on when the worker stops, in seconds or as a timedelta.

    `priority`: `strict`, in the order in which handlers are declared; a list of topics, which come first, in its order;
    or a mapping of weights, as in ``{"urgent": 3, "bulk": 1}``, with 1 for topics that it leaves out, so that none
    starves. `prefetch` is how many further jobs it may have waiting, by default ten times the concurrency and at most
    1000; it has no more of them than are going to begin within a quarter of a second, going by how long handlers took
    so far. They are not overtaken by what comes later: 0 keeps priority sharp.

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
    ) -> None:
        self._url = url
        self._key = key
        if concurrency < 1:
            raise ValueError(f"the concurrency must be at least 1, not {concurrency}")
        self._concurrency = concurrency
        self._prefetch = min(_PREFETCH_TIMES * concurrency, _PREFETCH_MAX) if prefetch is None else prefetch
        if self._prefetch < 0:
            raise ValueError(f"the prefetch must be at least 0, not {prefetch}")
        if name is not None and not re.fullmatch(ID_PATTERN, name):
            raise ValueError(f"the name of a worker is shaped like a job id, unlike {name!r}")
        self._name = name
        self._priority = priority
        self._grace_s = seconds(grace)
        if not self._grace_s >= 0:
            raise ValueError(f"the grace must be at least 0 seconds, not {self._grace_s:g}")
        self._handlers: dict[str, Handler] = {}
        self._middleware: list[Middleware] = []
        self._stop_wanted = False
        self._serving: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    @property
    def topics(self) -> Sequence[str]:
        """Those with a handler, in the order in which they were declared."""
        return tuple(self._handlers)

    def handler(
        self, job: str | JobDefinition[Any], *, time_limit: Seconds | None = None
    ) -> Callable[[Function], Function]:
        """Declare the decorated function as the one for the jobs of a topic; the function itself stays as it is.

        `job` is the topic, or a definition made by `deferd.job`: the body is then parsed into the definition's type,
        and a function whose parameter is annotated with another type is refused.

        It may be async or plain; plain ones run in threads. Its first parameter gets the job's body, parsed by pydantic
        into the parameter's annotation; a body that does not parse goes to dead with the reason. A parameter annotated
        `Context` gets the job in hand. After `time_limit` seconds (or a timedelta) an async handler is cancelled, a
        plain one sees `context.cancelled`, and the job is released: that of an async one when it has ended, or after
        2 s. Handlers that go on nevertheless keep their place until they end.

        What it returns, if not None, is the job's result and must be JSON, or what pydantic can write as such. An
        exception releases the job with its text as `last_error`, so that it comes again after its backoff; Retry and
        Reject say otherwise.

        Raises:
            ValueError: the topic has a handler, there are 32 topics already, or a value is out of its range.
            TypeError: the function cannot be called so, takes another type than the definition's, or the topic was
                forgotten.
        """
        topic = checked_topic(job)

        def declare(function: Function) -> Function:
            if topic in self._handlers:
                raise ValueError(f"topic {topic!r} has a handler already: {self._handlers[topic].function!r}")
            if len(self._handlers) == POP_TOPICS_MAX:
                raise ValueError(
                    f"a worker has handlers for at most {POP_TOPICS_MAX} topics: {topic!r} is one too many"
                )
            self._handlers[topic] = Handler(job, function, time_limit=time_limit)
            return function

        return declare

    def middleware(self, layer: Layer) -> Layer:
        """Put the decorated ``async def layer(context, call_next)`` around all handlers, the first declared outermost.

        ``await call_next()`` runs the rest and gives what the handler returned; what the layer returns counts instead.
        It may raise what a handler may. A time limit holds for handler and middleware together.
        """
        self._middleware.append(layer)
        return layer

    def run(self, *, url: str | Sequence[str] | None = None, key: str | None = None) -> int:
        """Work until SIGTERM, SIGINT or SIGHUP, then stop as `stop` says; a second SIGINT ends the process at once.

        For a program's main thread; in another one it takes no signals and ends by `stop`. Returns the exit code for
        the process: 0, or 1 when jobs are left that come back only as their leases end, since the service was away.

        `url` and `key` take precedence over those that the worker was made with: `deferd worker` passes --url and --key
        here. A function in place of the worker's `url` makes the client all the same.

        Raises:
            RuntimeError: an event loop runs in this thread already: use `await worker.serve()` there.
            ValueError: as for `serve`.
        """
        if _is_in_event_loop():
            raise RuntimeError(
                "Worker.run() starts an event loop, and one is running in this thread already: "
                "use `await worker.serve()` here, and `worker.stop()` to end it"
            )
        loop = asyncio.new_event_loop()
        try:
            with self._signals(loop):
                left = loop.run_until_complete(self._serve(url=url, key=key))
            return 1 if left else 0
        finally:
            _close(loop)

    async def serve(self) -> None:
        """Work, in a program's own event loop, until `stop` is called. When cancelled, it stops without grace.

        Raises:
            ValueError: no topic has a handler, or `priority` does not fit the topics.
            RuntimeError: it runs already.
        """
        await self._serve()

    def stop(self) -> None:
        """Have `serve` or `run` come to an end; from any thread. Returns at once.

        No further job is fetched, and those that wait are given back. Handlers that run have the grace time; then async
        ones are cancelled, plain ones see `context.cancelled`, and their jobs are given back. Those come again at once,
        and since somebody had them, with an attempt counted. The end is at most some seconds after the grace time, also
        when a handler does not end. A stop before the begin ends the next `serve` at once.
        """
        self._stop_wanted = True
        if self._serving is not None:
            loop, stop = self._serving
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(stop.set)

    async def _serve(self, *, url: str | Sequence[str] | None = None, key: str | None = None) -> int:
        if self._serving is not None:
            raise RuntimeError("this worker runs already")
        settings = self._settings()
        stop = asyncio.Event()
        self._serving = (asyncio.get_running_loop(), stop)
        if self._stop_wanted:
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
                left = await Running(settings, client).serve(stop)
        finally:
            self._serving = None
            self._stop_wanted = False
        if left:
            text = "worker %s has ended; %d jobs could not be reported and come back when their leases end"
            LOG.error(text, settings.name, left, extra={**facts, "left": left})
        else:
            LOG.info("worker %s has ended", settings.name, extra=facts)
        return left

    def _settings(self) -> Settings:
        if not self._handlers:
            raise ValueError("a worker needs at least one handler: @worker.handler(TOPIC)")
        return Settings(
            name=self._name or _default_name(),
            handlers=self._handlers,
            middleware=self._middleware,
            order=order_of(self._priority, tuple(self._handlers)),
            concurrency=self._concurrency,
            prefetch=self._prefetch,
            grace_s=self._grace_s,
        )

    def _client(self, url: str | Sequence[str] | None, key: str | None) -> AsyncClient:
        if callable(self._url):
            client = self._url()
            if url is not None and AsyncClient(url).urls != client.urls:
                text = "the worker's client is made by the program, for %s: the URL %s that was given is not used"
                LOG.warning(text, ",".join(client.urls), url if isinstance(url, str) else ",".join(url))
            return client
        url = self._url if url is None else url
        # The worker tries again by itself, for as long as it lives, and knows which answers were lost.
        return AsyncClient(url, key=self._key if key is None else key, retry_for=0)

    @contextlib.contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        interrupted = False

        def take(number: int) -> None:
            nonlocal interrupted
            if number == signal.SIGINT and interrupted:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            interrupted = interrupted or number == signal.SIGINT
            LOG.info("%s: stopping, within %g s", signal.Signals(number).name, self._grace_s)
            self.stop()

        with contextlib.ExitStack() as handlers:
            for number in stop_signals():
                handlers.callback(_handle(loop, number, take))
            yield


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _handle(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, take: Callable[[int], None]
) -> Callable[[], object]:
    """Call `take` in the loop when the signal comes; returns what ends that."""
    try:
        loop.add_signal_handler(number, take, number)
    except NotImplementedError:  # by the loops of Windows
        before = signal.signal(number, lambda number, _frame: loop.call_soon_threadsafe(take, number))
        return lambda: signal.signal(number, before or signal.SIG_DFL)
    return lambda: loop.remove_signal_handler(number)


def _default_name() -> str:
    host = re.sub(r"[^A-Za-z0-9._:-]", "-", socket.gethostname()).lstrip("._:-")
    end = f"-{os.getpid()}"
    return f"{host[: ID_LENGTH - len(end)] or 'worker'}{end}"


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """End a loop in bounded time: what asyncio.run does, but for waiting without end for tasks that do not end."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=_LEFT_TASKS_S))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
