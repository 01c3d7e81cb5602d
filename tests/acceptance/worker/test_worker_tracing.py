"""The spans of a job from its put to its finish, over a real service."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from opentelemetry import trace
from opentelemetry.semconv._incubating.attributes import messaging_attributes as semconv
from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE
from opentelemetry.trace import SpanKind, StatusCode

from deferd import AsyncClient, Context, Reject, Retry, Snooze, Then, Worker
from tests.acceptance.recorded_spans import RecordedSpans, context_of, is_child, linked, traceparent_of
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.worker_runs import gone, in_state, serving

ATTEMPT = "messaging.deferd.attempt"
OUTCOME = "messaging.deferd.outcome"


@pytest.fixture
def worker(shared_service: ServiceProcess, spans: RecordedSpans) -> Worker:
    return Worker(shared_service.url, name="mailer", tracing=spans.tracing())


async def test_a_delayed_job_is_linked_from_its_put_to_its_finish(
    traced: AsyncClient, worker: Worker, spans: RecordedSpans, shared_service: ServiceProcess, topic: str
) -> None:
    inside: list[int] = []

    @worker.handler(topic)
    async def handle() -> None:
        inside.append(trace.get_current_span().get_span_context().span_id)

    with spans.provider.get_tracer("app").start_as_current_span("request") as request:
        await traced.put(topic, {"n": 1}, id="order-1", delay=timedelta(seconds=0.3))
    async with serving(worker):
        [finish] = await spans.until(f"finish {topic}")
    put, pop, process = (spans.one(f"{name} {topic}") for name in ("put", "pop", "process"))
    assert context_of(put).trace_id == request.get_span_context().trace_id
    assert context_of(process).trace_id != context_of(put).trace_id
    assert linked(pop) == linked(process) == [context_of(put).span_id]
    assert process.parent is None
    assert is_child(finish, process)
    assert inside == [context_of(process).span_id]
    assert (put.end_time or 0) + 200_000_000 < (process.start_time or 0)
    kinds = {span.name.split()[0]: span.kind for span in (put, pop, process, finish)}
    assert kinds == {
        "put": SpanKind.PRODUCER,
        "pop": SpanKind.CLIENT,
        "process": SpanKind.CONSUMER,
        "finish": SpanKind.CLIENT,
    }
    common: dict[str, str | int] = {semconv.MESSAGING_SYSTEM: "deferd", semconv.MESSAGING_DESTINATION_NAME: topic}
    common |= {"server.address": "127.0.0.1", "server.port": shared_service.port}
    types = semconv.MessagingOperationTypeValues
    for span, operation, kind, more in (
        (put, "put", types.SEND, {semconv.MESSAGING_MESSAGE_ID: "order-1"}),
        (pop, "pop", types.RECEIVE, {semconv.MESSAGING_BATCH_MESSAGE_COUNT: 1, semconv.MESSAGING_CLIENT_ID: "mailer"}),
        (
            process,
            "process",
            types.PROCESS,
            {
                semconv.MESSAGING_MESSAGE_ID: "order-1",
                semconv.MESSAGING_CLIENT_ID: "mailer",
                ATTEMPT: 1,
                OUTCOME: "finish",
            },
        ),
        (finish, "finish", types.SETTLE, {semconv.MESSAGING_MESSAGE_ID: "order-1"}),
    ):
        operations = {semconv.MESSAGING_OPERATION_NAME: operation, semconv.MESSAGING_OPERATION_TYPE: kind.value}
        assert span.attributes == {**common, **operations, **more}
        assert span.status.status_code is StatusCode.UNSET


async def test_with_continue_trace_the_process_is_in_the_trace_of_the_put(
    traced: AsyncClient, shared_service: ServiceProcess, spans: RecordedSpans, topic: str
) -> None:
    worker = Worker(shared_service.url, tracing=spans.tracing(continue_trace=True))

    @worker.handler(topic)
    def handle() -> None: ...

    await traced.put(topic)
    async with serving(worker):
        [finish] = await spans.until(f"finish {topic}")
    put, process = spans.one(f"put {topic}"), spans.one(f"process {topic}")
    assert is_child(process, put)
    assert is_child(finish, process)
    assert linked(process) == [context_of(put).span_id]


async def test_a_failed_attempt_has_an_error_and_the_next_one_its_number(
    traced: AsyncClient, worker: Worker, spans: RecordedSpans, topic: str
) -> None:
    @worker.handler(topic)
    async def handle(context: Context) -> None:
        if context.job.attempt == 1:
            raise ConnectionError("SMTP 421")
        if context.job.attempt == 2:
            raise Retry(0)

    await traced.put(topic, backoff={"kind": "fixed", "seconds": 0})
    async with serving(worker):
        await spans.until(f"finish {topic}")
    put, processes = spans.one(f"put {topic}"), spans.named(f"process {topic}")
    assert [(span.attributes or {})[ATTEMPT] for span in processes] == [1, 2, 3]
    assert [(span.attributes or {})[OUTCOME] for span in processes] == ["release", "release", "finish"]
    assert [(span.attributes or {}).get(ERROR_TYPE) for span in processes] == ["ConnectionError", "Retry", None]
    codes = [span.status.status_code for span in processes]
    assert codes == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert processes[0].status.description == "SMTP 421"
    assert [event.name for event in processes[0].events] == ["exception"]
    assert [linked(span) for span in processes] == [[context_of(put).span_id]] * 3
    releases = spans.named(f"release {topic}")
    assert all(is_child(release, process) for release, process in zip(releases, processes[:2], strict=True))


async def test_a_snooze_is_no_error_and_a_rejected_job_is(
    traced: AsyncClient, worker: Worker, spans: RecordedSpans, topic: str
) -> None:
    @worker.handler(topic)
    async def handle(context: Context) -> None:
        if not context.job.snoozes:
            raise Snooze(0.1)
        raise Reject("no such customer")

    await traced.put(topic, id="a")
    async with serving(worker):
        await in_state(traced, topic, "a", "dead")
        [bury] = await spans.until(f"bury {topic}")
    snoozed, rejected = spans.named(f"process {topic}")
    assert ((snoozed.attributes or {})[OUTCOME], snoozed.status.status_code) == ("snooze", StatusCode.UNSET)
    assert ((rejected.attributes or {})[OUTCOME], rejected.status.status_code) == ("bury", StatusCode.ERROR)
    assert is_child(bury, rejected)


async def test_a_time_limit_and_a_cancel_end_the_span_of_the_handler(
    traced: AsyncClient, worker: Worker, spans: RecordedSpans, topic: str
) -> None:
    @worker.handler(f"{topic}.slow", time_limit=0.1)
    async def slow() -> None:
        await asyncio.sleep(60)

    began = asyncio.Event()

    @worker.handler(f"{topic}.cancelled")
    async def until_cancelled(context: Context) -> None:
        began.set()
        while await context.touch():
            await asyncio.sleep(0.01)

    await traced.put(f"{topic}.slow", id="a", max_attempts=1)
    await traced.put(f"{topic}.cancelled", id="b")
    async with serving(worker):
        await in_state(traced, f"{topic}.slow", "a", "dead")
        await began.wait()
        await traced.cancel(f"{topic}.cancelled", "b")
        [cancelled] = await spans.until(f"process {topic}.cancelled")
        [late] = await spans.until(f"process {topic}.slow")
    assert ((late.attributes or {})[OUTCOME], (late.attributes or {})[ERROR_TYPE]) == ("release", "TimeoutError")
    assert ((cancelled.attributes or {})[OUTCOME], cancelled.status.status_code) == ("lost", StatusCode.UNSET)


async def test_many_jobs_share_the_spans_of_their_batches(
    traced: AsyncClient, worker: Worker, spans: RecordedSpans, topic: str
) -> None:
    go_on, all_began = asyncio.Event(), asyncio.Event()
    began: list[str] = []

    @worker.handler(topic)
    async def handle(context: Context) -> None:
        began.append(context.job.id)
        if len(began) == 3:
            all_began.set()
        await go_on.wait()

    theirs = f"00-{'a' * 32}-{'b' * 16}-01"
    await traced.put_batch(
        [{"topic": topic, "id": "a"}, {"topic": topic, "id": "b"}, {"topic": topic, "id": "c", "traceparent": theirs}]
    )
    async with serving(worker):
        await all_began.wait()
        go_on.set()
        await gone(traced, topic, "c")
        finishes = await spans.until(f"finish {topic}")
    put = spans.one(f"put {topic}")
    assert (put.attributes or {})[semconv.MESSAGING_BATCH_MESSAGE_COUNT] == 3
    assert linked(put) == [int("b" * 16, 16)]
    processes = {
        (span.attributes or {})[semconv.MESSAGING_MESSAGE_ID]: span for span in spans.named(f"process {topic}")
    }
    assert linked(processes["a"]) == linked(processes["b"]) == [context_of(put).span_id]
    assert linked(processes["c"]) == [int("b" * 16, 16)]
    settled = [
        context_id
        for finish in finishes
        for context_id in (linked(finish) or [finish.parent.span_id if finish.parent else 0])
    ]
    assert sorted(settled) == sorted(context_of(span).span_id for span in processes.values())


async def test_puts_of_a_handler_belong_to_its_span(
    traced: AsyncClient, worker: Worker, spans: RecordedSpans, shared_service: ServiceProcess, topic: str
) -> None:
    @worker.handler(topic)
    async def handle(context: Context) -> Then:
        await traced.put(f"{topic}.next", id="traced", delay=600)
        async with AsyncClient(shared_service.url) as untraced:
            await untraced.put(f"{topic}.next", id="untraced", delay=600)
        context.put(f"{topic}.next", id="then", delay=600)
        return Then()

    await traced.put(topic)
    async with serving(worker):
        await spans.until(f"finish {topic}")
    process, put = spans.one(f"process {topic}"), spans.one(f"put {topic}.next")
    assert is_child(put, process)
    by_id = {job.id: job.traceparent async for job in traced.jobs(f"{topic}.next")}
    own = traceparent_of(process)
    assert by_id == {"traced": traceparent_of(put), "untraced": own, "then": own}


async def test_a_client_that_a_function_makes_decides_for_the_worker(
    traced: AsyncClient, spans: RecordedSpans, shared_service: ServiceProcess, topic: str
) -> None:
    def make() -> AsyncClient:
        return AsyncClient(shared_service.url, retry_for=0, tracing=spans.tracing())

    worker = Worker(make, tracing=False)

    @worker.handler(topic)
    async def handle() -> None: ...

    await traced.put(topic)
    async with serving(worker):
        [finish] = await spans.until(f"finish {topic}")
    assert is_child(finish, spans.one(f"process {topic}"))


async def test_a_plain_handler_runs_in_its_span(
    traced: AsyncClient, worker: Worker, spans: RecordedSpans, topic: str
) -> None:
    seen: list[tuple[int, bool]] = []

    @worker.handler(topic)
    def handle() -> None:
        in_thread = threading.current_thread() is not threading.main_thread()
        seen.append((trace.get_current_span().get_span_context().span_id, in_thread))

    await traced.put(topic)
    async with serving(worker):
        await spans.until(f"finish {topic}")
    assert seen == [(context_of(spans.one(f"process {topic}")).span_id, True)]


async def test_a_job_without_a_trace_is_not_linked_to_the_one_before(
    client: AsyncClient, traced: AsyncClient, shared_service: ServiceProcess, spans: RecordedSpans, topic: str
) -> None:
    worker = Worker(shared_service.url, concurrency=1, prefetch=10, tracing=spans.tracing())

    @worker.handler(topic)
    async def handle(context: Context) -> None:
        await client.put(f"{topic}.next", id=context.job.id, delay=600)

    await traced.put(topic, id="traced")
    await client.put(topic, id="untraced")
    async with serving(worker):
        first, second = await spans.until(f"process {topic}", 2)
    assert [len(linked(first)), len(linked(second))] == [1, 0]
    assert context_of(first).trace_id != context_of(second).trace_id
    by_id = {job.id: job.traceparent async for job in client.jobs(f"{topic}.next")}
    assert by_id == {"traced": traceparent_of(first), "untraced": traceparent_of(second)}


async def test_a_put_of_an_untraced_worker_has_the_trace_of_its_own_job_only(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url, concurrency=1, prefetch=10)

    @worker.handler(topic)
    async def handle(context: Context) -> None:
        await client.put(f"{topic}.next", id=context.job.id, delay=600)

    # After the first job the others are prefetched together: the end of each starts the next.
    traces = {"first": None, "traced": f"00-{'a' * 32}-{'b' * 16}-01", "third": None, "fourth": None}
    await client.put_batch([{"topic": topic, "id": name, "traceparent": trace} for name, trace in traces.items()])
    async with serving(worker):
        for name in traces:
            await in_state(client, f"{topic}.next", name, "delayed")
    assert {job.id: job.traceparent async for job in client.jobs(f"{topic}.next")} == traces


async def test_runs_of_a_schedule_are_linked_to_the_trace_that_it_names(
    client: AsyncClient, worker: Worker, spans: RecordedSpans, topic: str
) -> None:
    @worker.handler(topic)
    async def handle() -> None: ...

    theirs = f"00-{'a' * 32}-{'b' * 16}-01"
    await client.put_schedule(f"{topic}.own", topic=topic, every=3600, job={"traceparent": theirs})
    await client.put_schedule(f"{topic}.none", topic=topic, every=3600)
    await client.run_schedule(f"{topic}.own")
    await client.run_schedule(f"{topic}.none")
    async with serving(worker):
        processes = await spans.until(f"process {topic}", 2)
    await client.delete_schedule(f"{topic}.own")
    await client.delete_schedule(f"{topic}.none")
    assert sorted(linked(span) for span in processes) == [[], [int("b" * 16, 16)]]
