"""Spans of the calls of a client, by the messaging conventions of OpenTelemetry (semantic conventions 1.44).

| call | span | kind | parent and links |
|---|---|---|---|
| put, put_batch, put_many | `put TOPIC` (send) | producer | in the current trace; the jobs carry its context |
| put of jobs with a `traceparent` each | `put TOPIC` (send) | client | in the current trace, linked to those |
| pop | `pop TOPIC` (receive) | client | links to the puts of its jobs; none for a pop without jobs |
| handler of a worker | `process TOPIC` (process) | consumer | a trace of its own, linked to the put |
| finish, release, bury | `finish TOPIC` ... (settle) | client | child of one process, or links to several |

A job carries the context of its put as its `traceparent`, and the vendor's part, where there is one, as its header
`tracestate`. No error of a tracer, processor or exporter reaches the caller.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import INVALID_SPAN, Link, Span, SpanContext, SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from deferd.client.http1 import HttpResponse
from deferd.client.request_body import JobToFinish
from deferd.client.requests import ApiRequest
from deferd.client.spans import Jobs, OpenSpan, Process, ProcessWithTraceparent, Spans
from deferd.client.transport import ResponseStream, StreamingTransport
from deferd.contract.errors import DeferdError
from deferd.contract.limits import HEADERS_OF_JOB_BYTES, HEADERS_OF_JOB_MAX
from deferd.contract.operations.jobs import Delivery
from deferd.version import VERSION

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
TRACESTATE = "tracestate"
"""The header of a job with the `tracestate` of its put."""
_PORTS = {"http": 80, "https": 443}
_LINKS_MAX = 128
"""The SDK keeps no more links of a span by default."""

_log = logging.getLogger("deferd.tracing")
_propagator = TraceContextTextMapPropagator()
_settled: ContextVar[Sequence[SpanContext] | None] = ContextVar("deferd_settled", default=None)
"""The process spans of the deliveries that the current call settles, if they are known."""


class Tracing(Spans):
    """Makes spans with the tracers of `provider`, by default those of the program (`set_tracer_provider`).

    A process is linked to the put of its job, as days may lie between the two. With `continue_trace` it is a child of
    the put as well, so that both are in one trace: for short delays, and backends that do not show links.
    """

    def __init__(self, provider: TracerProvider | None = None, *, continue_trace: bool = False) -> None:
        self._tracer = trace.get_tracer("deferd", VERSION, provider, schema_url=SCHEMA_URL)
        self._continue_trace = continue_trace
        self._server: dict[str, str | int] = {}

    def of_service(self, urls: Sequence[str]) -> Tracing:
        """See Spans. One URL is in the attributes `server.address` and `server.port`; of several, any may be used."""
        bound = copy(self)
        if len(urls) == 1:
            url = urlsplit(urls[0])
            port = url.port or _PORTS.get(url.scheme)
            bound._server = {"server.address": url.hostname or url.path} | (
                {} if port is None else {"server.port": port}
            )
        return bound

    @contextmanager
    def put(self, jobs: Sequence[dict[str, Any]]) -> Iterator[OpenSpan]:
        """See Spans."""
        attributes = _attributes("put", "send", _common(job["topic"] for job in jobs))
        if len(jobs) != 1:
            attributes["messaging.batch.message_count"] = len(jobs)
        own = [job for job in jobs if job.get("traceparent") is not None]
        kind = SpanKind.PRODUCER if len(own) < len(jobs) else SpanKind.CLIENT  # what jobs carry is made by producers
        with self._current(attributes, kind, _links(own)) as span:
            if kind is SpanKind.PRODUCER:
                _guarded(_carry, jobs, span.span)
            try:
                yield span
            finally:
                if len(jobs) == 1:  # it may have got its id only now
                    span.note("messaging.message.id", jobs[0].get("id"))

    @contextmanager
    def settle(self, operation: str, topic: str, jobs: Sequence[JobToFinish]) -> Iterator[OpenSpan]:
        """See Spans."""
        attributes = _attributes(operation, "settle", topic)
        if len(jobs) == 1:
            job = jobs[0]
            attributes["messaging.message.id"] = job["id"] if isinstance(job, Mapping) else job.id
        else:
            attributes["messaging.batch.message_count"] = len(jobs)
        processes = _settled.get()
        if processes is None:
            context, links = None, _links([job for job in jobs if isinstance(job, Delivery)])
        elif len(processes) == 1:
            context, links = trace.set_span_in_context(trace.NonRecordingSpan(processes[0]), Context()), []
        else:
            context, links = Context(), [Link(process) for process in processes[:_LINKS_MAX]]
        with self._current(attributes, SpanKind.CLIENT, links, context) as span:
            yield span

    async def pop(self, popping: Awaitable[Jobs], topics: str | Sequence[str], consumer: str | None) -> Jobs:
        """See Spans. The span is made when the pop has ended: one that found no job has none."""
        began_ns = time.time_ns()
        names = topics.split(",") if isinstance(topics, str) else topics
        try:
            jobs = await popping
        except Exception as error:
            attributes = _attributes("pop", "receive", _common(names), consumer)
            span = self._start(attributes, SpanKind.CLIENT, [], None, began_ns)
            span.fail(error)
            span.end()
            raise
        if jobs:
            attributes = _attributes("pop", "receive", _common(job.topic for job in jobs), consumer)
            attributes["messaging.batch.message_count"] = len(jobs)
            self._start(attributes, SpanKind.CLIENT, _links(jobs), None, began_ns).end()
        return jobs

    def process(self, job: Delivery, consumer: str | None = None) -> Process:
        """See Spans."""
        put = _put_of(job)
        attributes = _attributes("process", "process", job.topic, consumer)
        attributes["messaging.message.id"] = job.id
        attributes["messaging.deferd.attempt"] = job.attempt
        context = Context()
        if put is not None and self._continue_trace:
            context = trace.set_span_in_context(trace.NonRecordingSpan(put), context)
        links = [] if put is None else [Link(put)]
        return _TracedProcess(self._start(attributes, SpanKind.CONSUMER, links, context), job.traceparent)

    @contextmanager
    def settling(self, processes: Iterable[Process | None]) -> Iterator[None]:
        """See Spans."""
        contexts = [process.context for process in processes if isinstance(process, _TracedProcess)]
        token = _settled.set([context for context in contexts if context.is_valid])
        try:
            yield
        finally:
            _settled.reset(token)

    def transport(self, transport: StreamingTransport) -> StreamingTransport:
        """See Spans."""
        return _TracedTransport(transport)

    @contextmanager
    def _current(
        self, attributes: dict[str, Any], kind: SpanKind, links: Sequence[Link], context: Context | None = None
    ) -> Iterator[_OpenSpan]:
        """A span that is the current one until the block ends."""
        span = self._start(attributes, kind, links, context)
        token = otel_context.attach(trace.set_span_in_context(span.span, context))
        try:
            yield span
        except BaseException as error:
            span.fail(error)
            raise
        finally:
            otel_context.detach(token)
            span.end()

    def _start(
        self,
        attributes: dict[str, Any],
        kind: SpanKind,
        links: Sequence[Link],
        context: Context | None,
        began_ns: int | None = None,
    ) -> _OpenSpan:
        destination = attributes.get("messaging.destination.name")
        operation = attributes["messaging.operation.name"]
        try:
            span = self._tracer.start_span(
                operation if destination is None else f"{operation} {destination}",
                context,
                kind,
                attributes | self._server,
                links,
                began_ns,
                record_exception=False,
                set_status_on_exception=False,
            )
        except Exception:  # noqa: BLE001 (of a sampler or processor)
            _log.debug("a span could not be started", exc_info=True)
            span = INVALID_SPAN
        return _OpenSpan(span)


class _OpenSpan(OpenSpan):
    __slots__ = ("span",)

    def __init__(self, span: Span) -> None:
        self.span = span

    def note(self, name: str, value: str | int | None) -> None:
        """Set an attribute, unless the value is None."""
        if value is not None:
            _guarded(self.span.set_attribute, name, value)

    def refused(self, codes: Iterable[str | None]) -> None:
        """See OpenSpan. The span fails with the first code."""
        found = [code for code in codes if code is not None]
        if found:
            self._fail(found[0], f"{len(found)} of the jobs: {', '.join(sorted(set(found)))}")

    def fail(self, error: BaseException) -> None:
        """Set the status from an error."""
        _guarded(self.span.record_exception, error)
        self._fail(error_type(error), _text(error))

    def _fail(self, kind: str, text: str) -> None:
        self.note("error.type", kind)
        _guarded(self.span.set_status, Status(StatusCode.ERROR, text))

    def end(self) -> None:
        """End it."""
        _guarded(self.span.end)


class _TracedProcess(ProcessWithTraceparent):
    __slots__ = ("_context_token", "_span", "context")
    _context_token: Token[Context]

    def __init__(self, span: _OpenSpan, traceparent: str | None) -> None:
        self._span = span
        self.context = span.span.get_span_context()
        if self.context.is_valid:
            traceparent = _carrier(span.span).get("traceparent", traceparent)
        super().__init__(traceparent)
        self._context_token = otel_context.attach(trace.set_span_in_context(span.span))

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        """See Process."""
        otel_context.detach(self._context_token)
        super().end(outcome)
        self._span.note("messaging.deferd.outcome", outcome)
        if error is not None:
            self._span.fail(error)
        self._span.end()


class _TracedTransport:
    """A transport that sends the current trace context along, in the headers of W3C Trace Context."""

    def __init__(self, transport: StreamingTransport) -> None:
        self._transport = transport
        self.sleep, self.close = transport.sleep, transport.close

    async def exchange(self, url: str, request: ApiRequest[Any]) -> HttpResponse:
        return await self._transport.exchange(url, _in_trace(request))

    async def open_stream(self, url: str, request: ApiRequest[Any]) -> ResponseStream:
        return await self._transport.open_stream(url, _in_trace(request))


def _in_trace(request: ApiRequest[Any]) -> ApiRequest[Any]:
    carrier = _carrier(trace.get_current_span())
    return replace(request, headers={**(request.headers or {}), **carrier}) if carrier else request


def error_type(error: BaseException) -> str:
    """The value of `error.type`: the code of an error of the API, else the name of its class."""
    return error.code if isinstance(error, DeferdError) else type(error).__qualname__


def _attributes(operation: str, kind: str, topic: str | None, consumer: str | None = None) -> dict[str, Any]:
    attributes = {
        "messaging.system": "deferd",
        "messaging.operation.name": operation,
        "messaging.operation.type": kind,
    }
    if topic is not None:
        attributes["messaging.destination.name"] = topic
    if consumer is not None:
        attributes["messaging.client.id"] = consumer
    return attributes


def _common(topics: Iterable[str]) -> str | None:
    """The topic, if all are the same one."""
    different = set(topics)
    return different.pop() if len(different) == 1 else None


def _carrier(span: Span) -> dict[str, str]:
    """`traceparent` and, if there is one, `tracestate` of a span; empty for an invalid one."""
    carrier: dict[str, str] = {}
    _guarded(_propagator.inject, carrier, trace.set_span_in_context(span, Context()))
    return carrier


def _carry(jobs: Sequence[dict[str, Any]], span: Span) -> None:
    """Give jobs the context of their put, unless they have one."""
    carrier = _carrier(span)
    for job in jobs:
        if carrier and job.get("traceparent") is None:
            job["traceparent"] = carrier["traceparent"]
            state, headers = carrier.get(TRACESTATE), job.get("headers") or {}
            if state is not None and TRACESTATE not in headers and _has_room(headers, state):
                job["headers"] = {**headers, TRACESTATE: state}


def _has_room(headers: Mapping[str, str], state: str) -> bool:
    """Whether the job may have this header as well: a put must not be refused because it is traced."""
    size = sum(len(str(text).encode()) for pair in headers.items() for text in pair)
    return len(headers) < HEADERS_OF_JOB_MAX and size + len(TRACESTATE) + len(state) <= HEADERS_OF_JOB_BYTES


def _put_of(job: Delivery | Mapping[str, Any]) -> SpanContext | None:
    """The context of the put of a job; None without a valid one."""
    parent, headers = (
        (job.get("traceparent"), job.get("headers") or {})
        if isinstance(job, Mapping)
        else (job.traceparent, {} if job.traceparent is None else job.headers)
    )
    if parent is None:
        return None
    carrier = {"traceparent": parent}
    if (state := headers.get(TRACESTATE)) is not None:
        carrier[TRACESTATE] = state
    put = trace.get_current_span(_propagator.extract(carrier, Context())).get_span_context()
    return put if put.is_valid else None


def _links(jobs: Sequence[Delivery | Mapping[str, Any]]) -> list[Link]:
    """Links to the puts of jobs, each once."""
    puts = {put.span_id: put for put in map(_put_of, islice(jobs, _LINKS_MAX)) if put is not None}
    return [Link(put) for put in puts.values()]


def _guarded(function: Callable[..., Any], *arguments: Any) -> None:
    """Call a function of OpenTelemetry; an error in it is logged, and the call of the user goes on."""
    try:
        function(*arguments)
    except BaseException:  # noqa: BLE001 (no error of a span may fail what it is about)
        _log.debug("a span could not be recorded", exc_info=True)


def _text(error: BaseException) -> str:
    """Its text; empty when its `__str__` fails."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 (it may raise anything)
        return ""
