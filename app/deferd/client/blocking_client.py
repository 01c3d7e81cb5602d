"""The client for code without asyncio, derived from the methods of the asynchronous one.

Over a `BlockingTransport` the coroutines of `ApiMethods` never suspend, so each runs to its end where it is called.
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from deferd.client.async_client import ApiMethods, sender_for, spans_of
from deferd.client.batching import BlockingBatching
from deferd.client.blocking_transport import BlockingTransport, run_blocking
from deferd.client.request_body import JobToPut
from deferd.client.topics import JobFilters
from deferd.client.transport import HttpSettings
from deferd.contract.errors import DeferdError
from deferd.contract.model import JobState
from deferd.contract.operations.batches import Batch
from deferd.contract.operations.events import Change, JobEvent
from deferd.contract.operations.jobs import Job, PutResult
from deferd.contract.operations.schedules_and_calendars import Schedule
from deferd.contract.operations.topics import GroupOrder, GroupView, TopicPage, TopicView

if TYPE_CHECKING:
    from deferd.client.cipher import Cipher
    from deferd.client.tracing import Tracing

P = ParamSpec("P")
Value = TypeVar("Value")
Item = TypeVar("Item")


def _blocking(
    method: Callable[Concatenate[ApiMethods, P], Coroutine[Any, Any, Value]],
) -> Callable[Concatenate[Client, P], Value]:
    @functools.wraps(method)
    def call(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> Value:
        return run_blocking(method(client._methods, *args, **kwargs))

    return call


class Client:
    """A client of a deferd service, with a pool of connections; use it as a context manager, or close it.

    Any number of threads may share one. Its arguments, methods and errors are those of AsyncClient.
    """

    def __init__(
        self,
        url: str | Iterable[str] | None = None,
        *,
        key: str | None = None,
        timeout: float = 5.0,
        retry_for: float = 10.0,
        connections: int = 100,
        tls: ssl.SSLContext | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        proxy: str | None = None,
        tracing: bool | Tracing | None = None,
        cipher: Cipher | None = None,
    ) -> None:
        settings = HttpSettings(
            url, timeout_s=timeout, key=key, connections=connections, tls=tls, ca_file=ca_file, proxy=proxy
        )
        spans = spans_of(tracing).of_service(settings.urls)
        self._transport = spans.transport(BlockingTransport(settings))
        sender = sender_for(self._transport, settings.urls, retry_for, cipher)
        self._methods = ApiMethods(self._transport, sender, BlockingBatching(), spans, cipher)

    @property
    def urls(self) -> tuple[str, ...]:
        """The base URL of the service, or those of its replicas."""
        return self._methods.urls

    send = _blocking(ApiMethods.send)
    put = _blocking(ApiMethods.put)
    put_batch = _blocking(ApiMethods.put_batch)
    get = _blocking(ApiMethods.get)
    wait = _blocking(ApiMethods.wait)
    change = _blocking(ApiMethods.change)
    cancel = _blocking(ApiMethods.cancel)
    cancel_many = _blocking(ApiMethods.cancel_many)
    cancel_all = _blocking(ApiMethods.cancel_all)
    preview_cancel_all = _blocking(ApiMethods.preview_cancel_all)
    reschedule_all = _blocking(ApiMethods.reschedule_all)
    undo_cancel = _blocking(ApiMethods.undo_cancel)
    why = _blocking(ApiMethods.why)
    dead_errors = _blocking(ApiMethods.dead_errors)
    forecast = _blocking(ApiMethods.forecast)
    consumers = _blocking(ApiMethods.consumers)
    history = _blocking(ApiMethods.history)
    history_of_all = _blocking(ApiMethods.history_of_all)
    now = _blocking(ApiMethods.now)
    acknowledge_alerts = _blocking(ApiMethods.acknowledge_alerts)
    latest_events = _blocking(ApiMethods.latest_events)
    overview = _blocking(ApiMethods.overview)
    system = _blocking(ApiMethods.system)
    relays = _blocking(ApiMethods.relays)
    report_relay = _blocking(ApiMethods.report_relay)
    upgrade_store = _blocking(ApiMethods.upgrade_store)
    key = _blocking(ApiMethods.key)
    pop = _blocking(ApiMethods.pop)
    finish = _blocking(ApiMethods.finish)
    finish_many = _blocking(ApiMethods.finish_many)
    check_many = _blocking(ApiMethods.check_many)
    return_many = _blocking(ApiMethods.return_many)
    release = _blocking(ApiMethods.release)
    touch = _blocking(ApiMethods.touch)
    bury = _blocking(ApiMethods.bury)
    topic = _blocking(ApiMethods.topic)
    set_topic = _blocking(ApiMethods.set_topic)
    pause = _blocking(ApiMethods.pause)
    resume = _blocking(ApiMethods.resume)
    pause_group = _blocking(ApiMethods.pause_group)
    resume_group = _blocking(ApiMethods.resume_group)
    put_calendar = _blocking(ApiMethods.put_calendar)
    calendar = _blocking(ApiMethods.calendar)
    calendars = _blocking(ApiMethods.calendars)
    delete_calendar = _blocking(ApiMethods.delete_calendar)
    set_push = _blocking(ApiMethods.set_push)
    push = _blocking(ApiMethods.push)
    remove_push = _blocking(ApiMethods.remove_push)
    test_push = _blocking(ApiMethods.test_push)
    redrive = _blocking(ApiMethods.redrive)
    preview_redrive = _blocking(ApiMethods.preview_redrive)
    purge = _blocking(ApiMethods.purge)
    preview_purge = _blocking(ApiMethods.preview_purge)
    audit = _blocking(ApiMethods.audit)
    repair = _blocking(ApiMethods.repair)
    audit_store = _blocking(ApiMethods.audit_store)
    repair_store = _blocking(ApiMethods.repair_store)
    set_batch = _blocking(ApiMethods.set_batch)
    batch = _blocking(ApiMethods.batch)
    delete_batch = _blocking(ApiMethods.delete_batch)
    put_schedule = _blocking(ApiMethods.put_schedule)
    schedule = _blocking(ApiMethods.schedule)
    delete_schedule = _blocking(ApiMethods.delete_schedule)
    pause_schedule = _blocking(ApiMethods.pause_schedule)
    resume_schedule = _blocking(ApiMethods.resume_schedule)
    run_schedule = _blocking(ApiMethods.run_schedule)
    preview_schedule = _blocking(ApiMethods.preview_schedule)
    start_cancel_all = _blocking(ApiMethods.start_cancel_all)
    start_reschedule_all = _blocking(ApiMethods.start_reschedule_all)
    start_redrive = _blocking(ApiMethods.start_redrive)
    start_purge = _blocking(ApiMethods.start_purge)
    tasks = _blocking(ApiMethods.tasks)
    task = _blocking(ApiMethods.task)
    stop_task = _blocking(ApiMethods.stop_task)
    is_ready = _blocking(ApiMethods.is_ready)
    metrics = _blocking(ApiMethods.metrics)

    def put_many(self, jobs: Iterable[JobToPut]) -> Iterator[PutResult]:
        """As AsyncClient.put_many: a batch is sent when its first result is consumed."""
        return _each(self._methods.put_many(jobs))

    def topics(self) -> Iterator[TopicView]:
        """As AsyncClient.topics."""
        return _each(self._methods.topics())

    def topic_pages(self) -> Iterator[TopicPage]:
        """As AsyncClient.topic_pages."""
        return _each(self._methods.topic_pages())

    def groups(self, topic: str, *, order: GroupOrder | None = None) -> Iterator[GroupView]:
        """As AsyncClient.groups."""
        return _each(self._methods.groups(topic, order=order))

    def jobs(self, topic: str, *, state: JobState | str | None = None, **filters: Unpack[JobFilters]) -> Iterator[Job]:
        """As AsyncClient.jobs."""
        return _each(self._methods.jobs(topic, state=state, **filters))

    def events(
        self,
        topics: Sequence[str] | str | None = None,
        *,
        last: int = 0,
        last_event_id: str | None = None,
        retry_for: float | None = None,
        on_refusal: Callable[[DeferdError], None] | None = None,
    ) -> Iterator[JobEvent]:
        """As AsyncClient.events."""
        methods = self._methods
        return _each(
            methods.events(topics, last=last, last_event_id=last_event_id, retry_for=retry_for, on_refusal=on_refusal)
        )

    def batches(self) -> Iterator[Batch]:
        """As AsyncClient.batches."""
        return _each(self._methods.batches())

    def schedules(
        self, *, topic: str | None = None, paused: bool | None = None, prefix: str | None = None, jobs: bool = True
    ) -> Iterator[Schedule]:
        """As AsyncClient.schedules."""
        return _each(self._methods.schedules(topic=topic, paused=paused, prefix=prefix, jobs=jobs))

    def activity(self, *, topics: Sequence[str] | str | None = None, limit: int | None = None) -> Iterator[Change]:
        """As AsyncClient.activity."""
        return _each(self._methods.activity(topics=topics, limit=limit))

    def close(self) -> None:
        """Close each connection as soon as it is idle. Later calls raise Unreachable."""
        run_blocking(self._transport.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _each(items: AsyncIterator[Item]) -> Iterator[Item]:
    try:
        while True:
            try:
                item = run_blocking(_next(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        if isinstance(items, AsyncGenerator):
            run_blocking(_close(items))


async def _next(items: AsyncIterator[Item]) -> Item:
    return await anext(items)


async def _close(items: AsyncGenerator[Any, None]) -> None:
    await items.aclose()
