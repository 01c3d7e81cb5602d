"""A tracer provider whose spans tests can read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

from deferd.client.tracing import Tracing

WITHIN_S = 20.0


class RecordedSpans:
    """Keeps the spans that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def tracing(self, *, continue_trace: bool = False) -> Tracing:
        return Tracing(self.provider, continue_trace=continue_trace)

    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        [span] = self.named(name)
        return span

    async def until(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Wait for this many spans."""
        async with asyncio.timeout(WITHIN_S):
            while len(found := self.named(name)) < count:
                await asyncio.sleep(0.01)
        return found


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def traceparent_of(span: ReadableSpan) -> str:
    context = context_of(span)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def linked(span: ReadableSpan) -> list[int]:
    """The span ids of its links."""
    return [link.context.span_id for link in span.links]


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    context = context_of(parent)
    return (
        span.parent is not None
        and span.parent.span_id == context.span_id
        and context_of(span).trace_id == context.trace_id
    )
