"""The spans of a client's own calls, over a real service."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.semconv._incubating.attributes import messaging_attributes as semconv
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from deferd import AsyncClient, Client, JobExists, PutJob, Unreachable
from deferd.client.tracing import Tracing
from tests.acceptance.recorded_spans import RecordedSpans, context_of, is_child, linked, traceparent_of
from tests.acceptance.service_process import ServiceProcess

THEIRS = f"00-{'a' * 32}-{'b' * 16}-01"


async def test_a_job_carries_the_context_of_its_put_and_not_in_its_body(
    traced: AsyncClient, spans: RecordedSpans, topic: str
) -> None:
    job = await traced.put(topic, {"n": 1})
    put = spans.one(f"put {topic}")
    assert (job.traceparent, job.body, job.headers) == (traceparent_of(put), {"n": 1}, {})
    assert (put.attributes or {})[semconv.MESSAGING_MESSAGE_ID] == job.id


async def test_a_traceparent_of_the_caller_stays_and_is_linked(
    traced: AsyncClient, spans: RecordedSpans, topic: str
) -> None:
    job = await traced.put(topic, traceparent=THEIRS)
    assert job.traceparent == THEIRS
    put = spans.one(f"put {topic}")
    assert (linked(put), put.kind) == ([int("b" * 16, 16)], SpanKind.CLIENT)


async def test_a_tracestate_travels_in_a_header_of_the_job(
    traced: AsyncClient, spans: RecordedSpans, topic: str
) -> None:
    remote = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("vendor", "x:1")]))
    with trace.use_span(NonRecordingSpan(remote)):
        await traced.put(topic, id="a", headers={"tenant": "acme"})
        await traced.put(topic, id="b", headers={str(n): "x" for n in range(16)})
    [one, other] = sorted(await traced.pop(topic, count=2), key=lambda job: job.id)
    assert one.headers == {"tenant": "acme", "tracestate": "vendor=x:1"}
    assert "tracestate" not in other.headers  # it has as many headers as a job may have
    pop = spans.one(f"pop {topic}")
    states = {link.context.span_id: link.context.trace_state.get("vendor") for link in pop.links}
    assert sorted(map(str, states.values())) == ["None", "x:1"]


async def test_concurrent_puts_that_share_a_request_have_a_span_each(
    traced: AsyncClient, spans: RecordedSpans, topic: str
) -> None:
    jobs = await asyncio.gather(*(traced.put(topic, number) for number in range(50)))
    puts = spans.named(f"put {topic}")
    assert {traceparent_of(put) for put in puts} == {job.traceparent for job in jobs}
    assert len({context_of(put).trace_id for put in puts}) == 50


async def test_a_batch_has_one_span_and_its_refusals_an_error(
    traced: AsyncClient, spans: RecordedSpans, topic: str
) -> None:
    results = [
        result
        async for result in traced.put_many(
            [{"topic": topic, "id": "a"}, PutJob(topic=topic, id="b"), {"topic": topic, "id": "a"}]
        )
    ]
    assert [result.status for result in results] == [201, 201, 409]
    put = spans.one(f"put {topic}")
    attributes = put.attributes or {}
    assert attributes[semconv.MESSAGING_BATCH_MESSAGE_COUNT] == 3
    assert semconv.MESSAGING_MESSAGE_ID not in attributes
    assert (attributes[ERROR_TYPE], put.status.description) == ("job_exists", "1 of the jobs: job_exists")
    assert {(await traced.get(topic, name)).traceparent for name in ("a", "b")} == {traceparent_of(put)}


async def test_a_batch_of_several_topics_names_none(traced: AsyncClient, spans: RecordedSpans, topic: str) -> None:
    await traced.put_batch([{"topic": f"{topic}.a"}, {"topic": f"{topic}.b"}])
    assert semconv.MESSAGING_DESTINATION_NAME not in (spans.one("put").attributes or {})


async def test_an_error_is_the_status_of_its_span_and_reaches_the_caller(
    traced: AsyncClient, spans: RecordedSpans, topic: str
) -> None:
    await traced.put(topic, id="a")
    with pytest.raises(JobExists):
        await traced.put(topic, id="a")
    failed = spans.named(f"put {topic}")[1]
    assert (failed.status.status_code, (failed.attributes or {})[ERROR_TYPE]) == (StatusCode.ERROR, "job_exists")
    async with AsyncClient("http://127.0.0.1:9", retry_for=0, tracing=spans.tracing()) as unreachable:
        with pytest.raises(Unreachable):
            await unreachable.pop(topic)
    assert (spans.one(f"pop {topic}").attributes or {})[ERROR_TYPE] == "unreachable"


async def test_a_pop_without_jobs_has_no_span_and_one_with_jobs_has_its_whole_time(
    traced: AsyncClient, client: AsyncClient, spans: RecordedSpans, topic: str
) -> None:
    assert await traced.pop(topic, wait=0) == []
    assert not spans.all()
    waiting = asyncio.create_task(traced.pop([topic, f"{topic}.other"], consumer="c1", wait=20))
    await asyncio.sleep(0.3)
    await client.put(topic, traceparent=THEIRS)
    await waiting
    pop = spans.one(f"pop {topic}")
    assert (pop.end_time or 0) - (pop.start_time or 0) > 250_000_000
    assert (pop.attributes or {})[semconv.MESSAGING_CLIENT_ID] == "c1"
    assert linked(pop) == [int("b" * 16, 16)]


async def test_settling_by_hand_is_in_the_trace_of_its_caller_and_linked_to_the_puts(
    traced: AsyncClient, spans: RecordedSpans, topic: str
) -> None:
    await traced.put_batch([{"topic": topic, "id": name} for name in "abcd"])
    put = spans.one(f"put {topic}")
    one, other, third, fourth = await traced.pop(topic, count=4)
    with spans.provider.get_tracer("app").start_as_current_span("work") as work:
        await traced.finish(one)
        await traced.release(other, delay=600)
        await traced.bury(third)
    [result] = await traced.finish_many(topic, [fourth])
    assert result.code is None
    settled = [spans.named(f"finish {topic}")[0], spans.one(f"release {topic}"), spans.one(f"bury {topic}")]
    for span in settled:
        assert (span.parent or work.get_span_context()).span_id == work.get_span_context().span_id
        assert linked(span) == [context_of(put).span_id]
        assert span.kind is SpanKind.CLIENT
    assert linked(spans.named(f"finish {topic}")[1]) == [context_of(put).span_id]


async def test_the_job_of_a_pop_can_be_processed_by_hand(traced: AsyncClient, spans: RecordedSpans, topic: str) -> None:
    await traced.put(topic)
    [job] = await traced.pop(topic)
    process = traced.spans.process(job, "by-hand")
    await traced.put(f"{topic}.next")
    process.end("finish")
    assert not trace.get_current_span().get_span_context().is_valid
    assert is_child(spans.one(f"put {topic}.next"), spans.one(f"process {topic}"))


def test_the_blocking_client_makes_the_same_spans(
    shared_service: ServiceProcess, spans: RecordedSpans, topic: str
) -> None:
    with Client(shared_service.url, tracing=spans.tracing()) as client:
        with spans.provider.get_tracer("app").start_as_current_span("request"):
            client.put(topic, id="a")
        [*_] = client.put_many([{"topic": topic, "id": "b"}, {"topic": topic, "id": "c"}])
        jobs = client.pop(topic, count=3)
        client.finish(jobs[0])
        client.finish_many(topic, jobs[1:])
    names = [span.name.split()[0] for span in spans.all()]
    assert names == ["put", "request", "put", "pop", "finish", "finish"]
    assert is_child(spans.all()[0], spans.all()[1])
    assert not trace.get_current_span().get_span_context().is_valid


async def test_without_tracing_no_span_is_made_and_jobs_carry_nothing(
    shared_service: ServiceProcess, spans: RecordedSpans, topic: str
) -> None:
    async with AsyncClient(shared_service.url, tracing=False) as client:
        with spans.provider.get_tracer("app").start_as_current_span("request"):
            job = await client.put(topic)
    assert job.traceparent is None
    assert [span.name for span in spans.all()] == ["request"]


class _FailingExporter(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise ConnectionError("no collector")


class _FailingProcessor(SpanProcessor):
    def __init__(self, at: str) -> None:
        self._at = at

    def on_start(self, span: Span, parent_context: object = None) -> None:
        self._fail("start")

    def on_end(self, span: ReadableSpan) -> None:
        self._fail("end")

    def _fail(self, at: str) -> None:
        if at == self._at:
            raise RuntimeError("a bug in a processor")


@pytest.mark.parametrize(
    "processor", [SimpleSpanProcessor(_FailingExporter()), _FailingProcessor("start"), _FailingProcessor("end")]
)
async def test_no_error_of_an_exporter_or_processor_breaks_a_call(
    shared_service: ServiceProcess, topic: str, processor: SpanProcessor
) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    async with AsyncClient(shared_service.url, tracing=Tracing(provider)) as client:
        await client.put(topic, id="a")
        [job] = await client.pop(topic)
        await client.finish(job)
        assert [topic async for topic in client.jobs(topic)] == []
    assert not trace.get_current_span().get_span_context().is_valid
