"""Handlers that take batches, with the real service."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Any

import pytest
from opentelemetry import trace

from deferd import AsyncClient, BatchContext, FixedBackoff, Reject, Retry, Snooze, Then, Worker
from deferd.worker import lease_keeper, worker_run
from tests.acceptance.client.lossy_proxy import LossyProxy
from tests.acceptance.recorded_spans import RecordedSpans, context_of, is_child, linked
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.worker_runs import gone, in_state, serving
from tests.waiting import until

LATER = FixedBackoff(seconds=600)


async def put_numbers(client: AsyncClient, topic: str, count: int, **options: Any) -> None:
    await client.put_batch([{"topic": topic, "id": f"j{n}", "body": n, **options} for n in range(count)])


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_one_call_gets_jobs_of_several_topics_and_gives_each_its_outcome(
    client: AsyncClient, proxy: LossyProxy, topic: str, kind: str
) -> None:
    worker, calls = Worker(proxy.url, grace=5), list[list[Any]]()

    def give(bodies: list[int | str], batch: BatchContext) -> None:
        calls.append(bodies)
        assert {job.topic for job in batch} == {f"{topic}.a", f"{topic}.b"}
        for job in batch:
            match job.job.body:
                case "result":
                    batch.finish(job, {"row": 7})
                case "then":
                    job.put(f"{topic}-next", "put", id="put")
                    batch.finish(job, Then({"topic": f"{topic}-next", "id": "then"}))
                case "retry":
                    batch.fail(job, Retry(500, "busy"))
                case "snooze":
                    batch.fail(job, Snooze(500))
                case "reject":
                    batch.fail(job, Reject("no"))
                case "error":
                    batch.fail(job, ValueError("wrong"))

    async def give_async(bodies: list[int | str], batch: BatchContext) -> None:
        give(bodies, batch)

    special = ["result", "then", "retry", "snooze", "reject", "error"]
    worker.handler(f"{topic}.*", batch=30, within=60)(give if kind == "plain" else give_async)
    for name in special:
        await client.put(f"{topic}.a", name, id=name, retain=60, backoff=LATER)
    await client.put(f"{topic}.b", [1], id="invalid")
    await put_numbers(client, f"{topic}.b", 23, retain=60)
    async with serving(worker):
        for n in range(23):
            await in_state(client, f"{topic}.b", f"j{n}", "finished")
        states = {"result": "finished", "then": "finished", "retry": "delayed", "snooze": "delayed", "reject": "dead"}
        jobs = {name: await in_state(client, f"{topic}.a", name, state) for name, state in states.items()}
        failed = await in_state(client, f"{topic}.a", "error", "delayed")
        invalid = await in_state(client, f"{topic}.b", "invalid", "dead")
    assert [set(call) for call in calls] == [{*special, *range(23)}]
    assert (jobs["result"].result, jobs["then"].result) == ({"row": 7}, None)
    assert {job.id async for job in client.jobs(f"{topic}-next")} == {"put", "then"}
    assert (jobs["retry"].attempts, jobs["retry"].last_error) == (1, "busy")
    assert (jobs["snooze"].attempts, jobs["snooze"].snoozes) == (0, 1)
    assert (jobs["reject"].last_error, failed.last_error) == ("no", "ValueError: wrong")
    assert "the body does not fit" in str(invalid.last_error)
    finishes = [head.split()[1] for head in proxy.heads if "/finish " in head]
    assert len([path for path in finishes if path.startswith(f"/topics/{topic}.b/")]) == 1
    assert len(finishes) <= 3  # those of the other topic, and the one that puts jobs


async def test_an_exception_is_the_outcome_of_all_jobs_that_have_none(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "deferd.worker")
    worker = Worker(shared_service.url, is_failure=lambda error: not isinstance(error, ConnectionError))

    @worker.handler(topic, batch=4, within=60)
    def fail(numbers: list[int], batch: BatchContext) -> None:
        batch.finish(batch[0], "done")
        batch.fail(batch[1], ValueError(numbers[1]))
        raise ConnectionError("the database is away")

    await put_numbers(client, topic, 4, retain=60, backoff=LATER)
    async with serving(worker):
        done = await in_state(client, topic, "j0", "finished")
        others = [await in_state(client, topic, f"j{n}", "delayed") for n in (1, 2, 3)]
    assert (done.result, done.attempts) == ("done", 1)
    assert [(job.attempts, job.snoozes) for job in others] == [(1, 0), (0, 1), (0, 1)]
    assert [job.last_error for job in others] == ["ValueError: 1"] + ["ConnectionError: the database is away"] * 2
    tracebacks = [one.exc_info[1] for one in caplog.records if one.exc_info]
    assert [type(error) for error in tracebacks] == [ValueError, ConnectionError]


async def test_a_batch_begins_within_its_time_and_counts_as_one_handler(
    client: AsyncClient, proxy: LossyProxy, topic: str
) -> None:
    worker = Worker(proxy.url, concurrency=2, prefetch=0)
    calls: list[list[int]] = []
    may_end = asyncio.Event()

    @worker.handler(topic, batch=5, within=0.05)
    async def handle(numbers: list[int]) -> None:
        calls.append(numbers)
        await may_end.wait()

    await put_numbers(client, topic, 13)
    async with serving(worker):
        await until(lambda: len(calls) == 2, "both slots are busy")
        counts = (await client.topic(topic)).counts
        assert (counts["reserved"], counts["ready"]) == (10, 3)
        may_end.set()
        await until(lambda: len(calls) == 3, "the rest came")
    assert "count=10" in proxy.heads[0]
    assert sorted(map(len, calls)) == [3, 5, 5]
    assert sorted(number for call in calls for number in call) == [*range(13)]


async def test_a_worker_of_both_kinds_runs_single_jobs_while_a_batch_is_collected(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url, concurrency=1)
    calls: list[list[int]] = []

    @worker.handler(topic, batch=20, within=60)
    def of_batch(numbers: list[int]) -> None:
        calls.append(numbers)

    worker.handler(f"{topic}-single")(lambda: None)
    await put_numbers(client, topic, 19)
    await client.put(f"{topic}-single", id="a")
    async with serving(worker):
        await gone(client, f"{topic}-single", "a")
        assert calls == []
        await client.put(topic, 19, id="last")
        await until(lambda: len(calls) == 1, "it is full")
    assert sorted(calls[0]) == [*range(20)]


async def test_leases_are_kept_while_a_batch_is_collected_and_while_it_runs(
    client: AsyncClient, proxy: LossyProxy, topic: str
) -> None:
    worker, may_end = Worker(proxy.url, grace=5), threading.Event()
    began = asyncio.Event()

    @worker.handler(topic, batch=3, within=60)
    async def handle() -> None:
        began.set()
        await asyncio.to_thread(may_end.wait, 20)

    def touches(job_id: str) -> int:
        return sum(f"/{job_id}/touch " in head for head in proxy.heads)

    await put_numbers(client, topic, 2, ttr=0.6, retain=60)
    async with serving(worker):
        await until(lambda: min(touches("j0"), touches("j1")) >= 2, "they were touched while they waited")
        assert not began.is_set()
        await client.put(topic, id="last", ttr=0.6, retain=60)
        await began.wait()
        before = touches("j0")
        await until(lambda: min(touches("j0") - before, touches("last")) >= 2, "all are touched while it runs")
        may_end.set()
        for job_id in ("j0", "j1", "last"):
            assert (await in_state(client, topic, job_id, "finished")).attempts == 1


async def test_a_cancelled_job_is_left_out_or_seen_by_the_handler(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_run, "_CONFIRMED_S", 0.0)
    check_s = lease_keeper._CHECK_INTERVAL_S
    monkeypatch.setattr(lease_keeper, "_CHECK_INTERVAL_S", 600.0)
    worker = Worker(shared_service.url, grace=5)
    seen: list[BatchContext] = []
    may_end, ended = asyncio.Event(), asyncio.Event()

    @worker.handler(topic, batch=4, within=60)
    async def handle(batch: BatchContext) -> None:
        seen.append(batch)
        try:
            await may_end.wait()
        finally:
            ended.set()

    await put_numbers(client, topic, 3)
    async with serving(worker):
        await until_reserved(client, topic, 3)
        await client.cancel(topic, "j0")
        monkeypatch.setattr(lease_keeper, "_CHECK_INTERVAL_S", check_s)
        await client.put(topic, 3, id="j3")
        await until(lambda: bool(seen), "it has begun")
        assert {job.job.id for job in seen[0]} == {"j1", "j2", "j3"}
        await client.cancel(topic, "j1")
        first, *others = sorted(seen[0], key=lambda job: job.job.id)
        assert not await first.touch()
        assert [job.cancelled for job in others] == [False, False]
        may_end.set()
        for job_id in ("j2", "j3"):
            await gone(client, topic, job_id)
        may_end.clear()
        ended.clear()
        await put_numbers(client, topic, 4)
        await until(lambda: len(seen) == 2, "the next one has begun")
        for job in seen[1]:
            await client.cancel(topic, job.job.id)
            await job.touch()
        await ended.wait()


async def test_a_batch_whose_leases_cannot_be_confirmed_does_not_begin_and_is_returned(
    client: AsyncClient, proxy: LossyProxy, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_run, "_CONFIRMED_S", 0.0)
    monkeypatch.setattr(lease_keeper, "_CHECK_INTERVAL_S", 600.0)
    worker, calls = Worker(proxy.url, grace=5), list[list[int]]()
    worker.handler(topic, batch=2, within=60)(calls.append)
    await put_numbers(client, topic, 2, ttr=600, max_attempts=1)
    proxy.respond(503, sent=False, to="/check ")
    async with serving(worker):
        await until(lambda: len(calls) == 1, "it has begun after it was returned")
    paths = [head.split()[1] for head in proxy.heads]
    assert paths.index(f"/topics/{topic}/check") < paths.index(f"/topics/{topic}/return")
    assert sorted(calls[0]) == [0, 1]


async def test_a_stop_returns_what_is_collected_and_releases_what_runs_for_too_long(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url, grace=0.2)
    began, cancelled = asyncio.Event(), asyncio.Event()

    @worker.handler(topic, batch=3, within=60)
    async def handle(batch: BatchContext) -> None:
        batch.finish(batch[0], "so far")
        began.set()
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            batch.finish(batch[1], "saved")
            cancelled.set()
            raise

    await put_numbers(client, topic, 5, retain=60, ttr=600)
    async with serving(worker):
        await began.wait()
        await until_reserved(client, topic, 5)
    assert cancelled.is_set()
    jobs = [await client.get(topic, f"j{n}") for n in range(5)]
    assert [job.state for job in jobs] == ["finished", "finished", "ready", "ready", "ready"]
    assert [job.result for job in jobs[:2]] == ["so far", "saved"]
    assert [(job.attempts, job.last_error) for job in jobs[2:]] == [(1, "the worker stopped"), (0, None), (0, None)]


async def test_a_plain_handler_that_does_not_end_leaves_the_outcomes_it_has_given(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker, began, may_end = Worker(shared_service.url, grace=0.1), threading.Event(), threading.Event()

    @worker.handler(topic, batch=2, within=60)
    def hang(batch: BatchContext) -> None:
        batch.finish(batch[0])
        began.set()
        may_end.wait(30)

    await put_numbers(client, topic, 2, retain=60, ttr=600)
    with contextlib.ExitStack() as end:
        end.callback(may_end.set)
        async with serving(worker):
            await asyncio.to_thread(began.wait, 20)
        assert (await client.get(topic, "j0")).state == "finished"
        assert (await client.get(topic, "j1")).last_error == "the worker stopped"


async def test_a_time_limit_ends_the_handler_and_releases_all_jobs(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url)
    ended = asyncio.Event()

    @worker.handler(topic, batch=2, within=60, time_limit=0.1)
    async def handle(batch: BatchContext) -> None:
        batch.finish(batch[0])
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    await put_numbers(client, topic, 2, backoff=LATER)
    async with serving(worker):
        for n in range(2):
            released = await in_state(client, topic, f"j{n}", "delayed")
            assert (released.attempts, released.last_error) == (1, "the time limit of 0.1 s has passed")
        assert ended.is_set()


async def test_each_job_of_a_batch_has_its_process_span(
    traced: AsyncClient, shared_service: ServiceProcess, spans: RecordedSpans, topic: str
) -> None:
    worker = Worker(shared_service.url, tracing=spans.tracing())

    inside: list[trace.Span] = []

    @worker.handler(topic, batch=2, within=60)
    async def handle(batch: BatchContext) -> None:
        inside.append(trace.get_current_span())
        batch.fail(batch[1], Reject("no"))

    for job_id in ("a", "b"):
        await traced.put(topic, id=job_id)
    async with serving(worker):
        [finish] = await spans.until(f"finish {topic}")
        [bury] = await spans.until(f"bury {topic}")
    processes = spans.named(f"process {topic}")
    outcomes = {(span.attributes or {})["messaging.deferd.outcome"]: span for span in processes}
    assert set(outcomes) == {"finish", "bury"}
    puts = [context_of(put).span_id for put in spans.named(f"put {topic}")]
    assert [linked(outcomes[name]) for name in ("finish", "bury")] == [[put] for put in puts]
    assert is_child(finish, outcomes["finish"])
    assert is_child(bury, outcomes["bury"])
    assert inside == [trace.INVALID_SPAN]


async def until_reserved(client: AsyncClient, topic: str, count: int) -> None:
    """Wait until consumers hold so many jobs of the topic."""
    async with asyncio.timeout(20):
        while (await client.topic(topic)).counts["reserved"] != count:
            await asyncio.sleep(0.005)
