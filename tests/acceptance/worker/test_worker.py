"""Handlers on jobs of a real service: their arguments, and the outcomes of their jobs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from deferd import AsyncClient, Client, Context, FixedBackoff, InvalidInput, Reject, Retry, Worker, job
from deferd.testing import EagerJobs, ServiceForTests
from deferd.worker.handlers import CallNext
from tests.acceptance.service_process import ServiceProcess
from tests.acceptance.worker.worker_runs import gone, in_state, serving
from tests.waiting import until

SOON = FixedBackoff(seconds=0.01)


class Order(BaseModel):
    id: int


class Closed(BaseModel):
    order: int
    by: str


async def test_an_async_handler_gets_the_parsed_body_and_returns_the_result(
    client: AsyncClient, worker: Worker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "deferd.worker")

    @worker.handler(topic, time_limit=10)
    async def close(order: Order, context: Context) -> Closed:
        assert threading.current_thread() is threading.main_thread()
        return Closed(order=order.id, by=context.job.id)

    await client.put(topic, {"id": 7}, id="a", retain=60)
    async with serving(worker):
        assert (await in_state(client, topic, "a", "finished")).result == {"order": 7, "by": "a"}
    assert [one for one in caplog.records if hasattr(one, "job_id")] == []


async def test_a_job_definition_serves_producer_and_handler(
    shared_service: ServiceProcess, client: AsyncClient, worker: Worker, topic: str
) -> None:
    close = job(topic, Order, delay=timedelta(milliseconds=50), retain=60, max_attempts=3)
    closed: list[Order] = []

    @worker.handler(close)
    async def close_order(order: Order) -> Closed:
        closed.append(order)
        return Closed(order=order.id, by="definition")

    close_order_async = close.bind(client)
    put = await close_order_async.put(Order(id=7), id="a")
    assert (put.state, put.max_attempts) == ("delayed", 3)
    await client.put(topic, {"id": "seven"}, id="of-another-program")
    with Client(shared_service.url) as blocking:
        close_order_blocking = close.bind(blocking)
        await asyncio.to_thread(close_order_blocking.put, Order(id=8), id="b", delay=0)
        await asyncio.to_thread(close_order_blocking.put, Order(id=9), id="c", delay=600)
        assert (await asyncio.to_thread(close_order_blocking.cancel, "c")).was == "delayed"
    await close_order_async.put(Order(id=10), id="d", delay=600)
    assert (await close_order_async.cancel("d")).was == "delayed"
    [batched] = await client.put_batch([close.fields(Order(id=11), id="e")])
    single = await client.put(**close.fields(Order(id=12), id="f"))
    assert (batched.status, single.state) == (201, "delayed")
    async with serving(worker):
        for job_id in "abef":
            await in_state(client, topic, job_id, "finished")
        dead = await in_state(client, topic, "of-another-program", "dead")
    assert sorted(order.id for order in closed) == [7, 8, 11, 12]
    assert (dead.last_error or "").startswith("the body does not fit: id: Input should be a valid integer")


async def test_an_exception_releases_the_job_with_its_text_and_its_backoff(
    client: AsyncClient, worker: Worker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    @worker.handler(topic)
    async def fail(context: Context) -> str:
        if context.job.attempt == 1:
            raise ValueError("no such order")
        return f"attempt {context.job.attempt} after {context.job.last_error}"

    await client.put(topic, id="now", retain=60, backoff=SOON)
    await client.put(topic, id="later", backoff={"kind": "fixed", "seconds": 600})
    async with serving(worker):
        finished = await in_state(client, topic, "now", "finished")
        waiting = await in_state(client, topic, "later", "delayed")
    assert finished.result == "attempt 2 after ValueError: no such order"
    assert (waiting.last_error, waiting.attempts) == ("ValueError: no such order", 1)
    assert (waiting.due_at - waiting.created_at).total_seconds() > 500
    [record] = [one for one in caplog.records if getattr(one, "job_id", None) == "later"]
    assert (record.name, record.levelno) == ("deferd.worker", logging.WARNING)
    assert record.getMessage().endswith("is released: ValueError: no such order")
    facts = vars(record)
    assert (facts["topic"], facts["attempt"], facts["error"]) == (topic, 1, "ValueError: no such order")
    assert facts["seconds"] >= 0
    assert record.exc_info is not None


async def test_retry_releases_and_reject_buries_the_job(client: AsyncClient, worker: Worker, topic: str) -> None:
    @worker.handler(topic)
    async def decide(body: str) -> None:
        if body == "retry":
            raise Retry(delay=600, error="busy")
        raise Reject("no such customer")

    await client.put(topic, "retry", id="retry")
    await client.put(topic, "reject", id="reject")
    async with serving(worker):
        retried = await in_state(client, topic, "retry", "delayed")
        rejected = await in_state(client, topic, "reject", "dead")
    assert retried.last_error == "busy"
    assert 595 < (retried.due_at - retried.created_at).total_seconds() < 660
    assert (rejected.last_error, rejected.reason) == ("no such customer", "buried")


async def test_a_result_that_the_service_refuses_releases_only_its_job(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url, concurrency=3)
    all_run = asyncio.Barrier(3)

    @worker.handler(topic)
    async def give_much(length: int) -> str:
        await all_run.wait()
        return "x" * length

    for job_id, length in (("a", 10), ("large", 2_000_000), ("b", 20)):
        await client.put(topic, length, id=job_id, retain=60)
    async with serving(worker):
        released = await in_state(client, topic, "large", "delayed")
        assert (await in_state(client, topic, "a", "finished")).result == "x" * 10
        assert (await in_state(client, topic, "b", "finished")).result == "x" * 20
    assert released.last_error == (
        "the service refused the handler's result: the request body is larger than 1048576 bytes"
    )


async def test_an_async_handler_is_cancelled_at_its_time_limit_and_its_job_released(
    client: AsyncClient, worker: Worker, topic: str
) -> None:
    cleaned_up = []

    @worker.handler(topic, time_limit=0.05)
    async def hang(context: Context) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            cleaned_up.append(context.cancelled)

    await client.put(topic, id="a")
    async with serving(worker):
        released = await in_state(client, topic, "a", "delayed")
    assert released.last_error == "the time limit of 0.05 s has passed"
    assert cleaned_up == [True]


async def test_a_plain_handler_past_its_time_limit_keeps_its_slot_until_it_returns(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url, concurrency=1)
    cancel_seen, may_return, ran = threading.Event(), threading.Event(), []

    @worker.handler(topic, time_limit=0.05)
    def hang(body: str, context: Context) -> str:
        ran.append(body)
        if body == "slow":
            end_s = time.monotonic() + 10
            while not context.cancelled and time.monotonic() < end_s:
                time.sleep(0.005)
            cancel_seen.set()
            may_return.wait(10)
        return "too late"

    await client.put(topic, "slow", id="slow")
    async with serving(worker):
        released = await in_state(client, topic, "slow", "delayed")
        assert released.last_error == "the time limit of 0.05 s has passed"
        await until(cancel_seen.is_set, "the handler knows that it is cancelled")
        await client.put(topic, "next", id="next", retain=60)
        await asyncio.sleep(0.2)  # with a free slot it would start within a few milliseconds
        assert (ran, (await client.get(topic, "next")).state) == (["slow"], "ready")
        may_return.set()
        await in_state(client, topic, "next", "finished")
    assert (await client.get(topic, "slow")).state == "delayed"


async def test_middleware_wraps_handlers_the_first_outermost_and_may_raise_what_handlers_may(
    client: AsyncClient, worker: Worker, topic: str
) -> None:
    calls: list[str] = []

    @worker.middleware
    async def outer(context: Context, call_next: CallNext) -> Any:
        calls.append(f"outer {context.job.id}")
        return {"wrapped": await call_next()}

    @worker.middleware
    async def inner(context: Context, call_next: CallNext) -> Any:
        calls.append(f"inner {context.job.id}")
        if context.job.body == "refuse":
            raise Reject("not here")
        return await call_next()

    @worker.handler(topic)
    def handle(body: str) -> str:
        calls.append("handler")
        return body

    await client.put(topic, "fine", id="a", retain=60)
    async with serving(worker):
        assert (await in_state(client, topic, "a", "finished")).result == {"wrapped": "fine"}
        assert calls == ["outer a", "inner a", "handler"]
        await client.put(topic, "refuse", id="b")
        assert (await in_state(client, topic, "b", "dead")).last_error == "not here"


async def test_a_touch_from_a_handler_reports_a_cancel_at_once(client: AsyncClient, worker: Worker, topic: str) -> None:
    touched: dict[str, list[bool]] = {"async": [], "plain": []}
    go_on = {"async": threading.Event(), "plain": threading.Event()}

    @worker.handler(f"{topic}-async")
    async def touch_twice(context: Context) -> None:
        touched["async"].append(await context.touch())
        await asyncio.to_thread(go_on["async"].wait, 10)
        touched["async"].append(await context.touch())

    @worker.handler(f"{topic}-plain")
    def touch_twice_in_thread(context: Context) -> None:
        touched["plain"].append(context.touch_from_thread())
        go_on["plain"].wait(10)
        touched["plain"].append(context.touch_from_thread())

    async with serving(worker):
        for kind, touches in touched.items():
            await client.put(f"{topic}-{kind}", id="a", ttr=3600)
            await until(lambda touches=touches: touches == [True], "it has touched once")  # type: ignore[misc]
            assert (await client.cancel(f"{topic}-{kind}", "a")).was == "reserved"
            go_on[kind].set()
            await until(lambda touches=touches: len(touches) == 2, "it has touched twice")  # type: ignore[misc]
    assert touched == {"async": [True, False], "plain": [True, False]}


async def test_handlers_report_their_progress(client: AsyncClient, worker: Worker, topic: str) -> None:
    reported: list[bool] = []

    @worker.handler(f"{topic}-async")
    async def report(context: Context) -> None:
        reported.extend([await context.progress({"done": done}) for done in range(3)])
        with pytest.raises(InvalidInput, match="at most 1024 bytes"):
            await context.progress("x" * 1023)

    @worker.handler(f"{topic}-plain")
    def report_in_thread(context: Context) -> None:
        reported.append(context.progress_from_thread(0.5))

    async with serving(worker):
        for kind, progress in (("async", {"done": 2}), ("plain", 0.5)):
            put = await client.put(f"{topic}-{kind}", id="a", retain=60)
            job = await in_state(client, f"{topic}-{kind}", "a", "finished")
            assert job.progress == progress
            assert job.progress_at is not None
            assert job.progress_at >= put.created_at
    assert reported == [True] * 4


async def test_a_worker_is_shown_as_the_holder_of_its_jobs(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker(shared_service.url, name="closer-1")
    go_on = asyncio.Event()

    @worker.handler(topic)
    async def wait() -> None:
        await go_on.wait()

    await client.put(topic, id="a")
    async with serving(worker):
        assert (await in_state(client, topic, "a", "reserved")).reserved_by == "closer-1"
        go_on.set()


async def test_a_worker_without_handlers_or_with_an_invalid_priority_does_not_start(
    shared_service: ServiceProcess, topic: str
) -> None:
    with pytest.raises(ValueError, match="at least one handler"):
        await Worker(shared_service.url).serve()
    worker = Worker(shared_service.url, priority=["other"])
    worker.handler(topic)(lambda: None)
    with pytest.raises(ValueError, match="no handler: 'other'"):
        await worker.serve()


async def test_run_inside_a_running_loop_is_refused_with_advice(worker: Worker, topic: str) -> None:
    worker.handler(topic)(lambda: None)
    with pytest.raises(RuntimeError, match=r"use `await worker\.serve\(\)` here"):
        worker.run()


async def test_the_url_passed_to_run_overrides_that_of_the_worker(
    client: AsyncClient, shared_service: ServiceProcess, topic: str
) -> None:
    worker = Worker("http://127.0.0.1:9", key="wrong", grace=5)
    worker.handler(topic)(lambda: None)
    await client.put(topic, id="a")

    run = asyncio.create_task(asyncio.to_thread(worker.run, url=[shared_service.url], key="of-the-flag"))
    await gone(client, topic, "a")
    worker.stop()

    assert await run == 0


async def test_a_url_that_is_not_used_is_logged(
    client: AsyncClient, shared_service: ServiceProcess, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(lambda: AsyncClient(shared_service.url, retry_for=0), grace=5)
    worker.handler(topic)(lambda: None)
    await client.put(topic, id="a")

    run = asyncio.create_task(asyncio.to_thread(worker.run, url="http://127.0.0.1:9"))
    await gone(client, topic, "a")
    worker.stop()

    assert await run == 0
    assert "the URL http://127.0.0.1:9 that was given is not used" in caplog.text


async def test_a_worker_can_serve_again_but_not_concurrently(client: AsyncClient, worker: Worker, topic: str) -> None:
    @worker.handler(topic)
    async def nothing() -> None: ...

    for job_id in ("a", "b"):
        async with serving(worker):
            await client.put(topic, id=job_id)
            await gone(client, topic, job_id)
            with pytest.raises(RuntimeError, match="runs already"):
                await worker.serve()


# Handlers of patterns


async def test_a_pattern_handler_gets_the_topics_that_have_none_of_their_own(
    client: AsyncClient, worker: Worker, topic: str
) -> None:
    @worker.handler(f"{topic}.*")
    async def any_topic(context: Context) -> str:
        return f"any {context.topic}"

    @worker.handler(f"{topic}.own")
    def own(context: Context) -> str:
        return f"own {context.topic}"

    for name in ("a", "own"):
        await client.put(f"{topic}.{name}", id="j", retain=60)
    await client.put(f"{topic}x", id="j")
    async with serving(worker):
        assert (await in_state(client, f"{topic}.a", "j", "finished")).result == f"any {topic}.a"
        assert (await in_state(client, f"{topic}.own", "j", "finished")).result == f"own {topic}.own"
        await client.put(f"{topic}.new", id="j", retain=60)
        assert (await in_state(client, f"{topic}.new", "j", "finished")).result == f"any {topic}.new"
    assert (await client.get(f"{topic}x", "j")).state == "ready"


async def test_a_job_of_a_pattern_is_retried_and_finished(client: AsyncClient, worker: Worker, topic: str) -> None:
    @worker.handler(f"{topic}.*")
    async def twice(context: Context) -> None:
        if context.job.attempt == 1:
            raise Retry(delay=0)

    await client.put(f"{topic}.a", id="j", backoff=FixedBackoff(seconds=0.01))
    async with serving(worker):
        await gone(client, f"{topic}.a", "j")


def orders_worker() -> tuple[Worker, list[str]]:
    worker, seen = Worker(), []

    @worker.handler("orders.*")
    def note(body: str, context: Context) -> None:
        seen.append(f"{context.topic} {body}")

    return worker, seen


def test_eager_jobs_run_the_handlers_of_patterns() -> None:
    worker, seen = orders_worker()
    jobs = EagerJobs(worker)
    jobs.client.put("orders.close", "now")
    jobs.client.put("orders.open", "later", delay=60)
    jobs.client.put("users", "never")
    jobs.run_delayed()
    assert seen == ["orders.close now", "orders.open later"]
    assert [job.state for job in jobs.jobs] == ["finished", "finished", "ready"]


def test_a_worker_with_patterns_runs_until_it_is_idle(clocked_service: ServiceForTests) -> None:
    worker, seen = orders_worker()
    clocked_service.purge()
    with clocked_service.client() as client:
        for number in range(5):
            client.put(f"orders.{number}", "x")
        client.put("users", "x")
        clocked_service.run_until_idle(worker)
    assert sorted(seen) == [f"orders.{number} x" for number in range(5)]
