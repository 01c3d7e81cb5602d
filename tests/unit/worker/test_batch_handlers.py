"""Handlers that take batches: which functions may be one, and what becomes of each job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from deferd import BatchContext, Context, Reject, Retry, Worker, job
from deferd.worker.handlers import BatchHandler, CallNext, Handler, InvalidBody
from deferd.worker.held_batch import BatchedJob, HeldBatch, OpenBatches
from deferd.worker.held_job import Stop
from tests.deliveries import delivery_of
from tests.unit.worker.handler_context import context_of


class Order(BaseModel):
    number: int


ORDER = job("orders", Order)


async def at_once(function: Callable[[], Any]) -> Any:
    return function()


async def called(function: Callable[..., Any], *bodies: Any, batch: int = 10) -> tuple[BatchContext, list[Context]]:
    """The context of a call with jobs that have these bodies, after it, and the jobs."""
    handler, jobs = BatchHandler("t", function, batch=batch), [context_of(body) for body in bodies]
    context = handler.context_of(jobs)
    await handler.call(context, (), at_once)
    return context, jobs


async def test_a_handler_gets_a_list_of_parsed_bodies_and_the_jobs_in_their_order() -> None:
    seen: list[Any] = []

    def takes_models(orders: list[Order], batch: BatchContext) -> None:
        assert batch[0] is next(iter(batch))
        seen.append([(order.number, one.job.body) for order, one in zip(orders, batch, strict=True)])

    async def takes_sequence(batch: BatchContext, orders: Sequence[Order]) -> None:
        seen.append([order.number for order in orders])

    def takes_anything(bodies: list[Any]) -> None:
        seen.append(bodies)

    for function in (takes_models, takes_sequence, takes_anything):
        await called(function, {"number": 1}, {"number": 2})
    await called(seen.append, "a")
    assert seen == [[(1, {"number": 1}), (2, {"number": 2})], [1, 2], [{"number": 1}, {"number": 2}], ["a"]]


async def test_a_job_with_an_invalid_body_is_left_out_and_rejected() -> None:
    seen: list[int] = []

    async def insert(orders: list[Order]) -> None:
        seen.extend(order.number for order in orders)

    context, [valid, invalid] = await called(insert, {"number": 1}, {"number": "x"})
    assert (seen, [*context], context.end_of(valid)) == ([1], [valid], None)
    end = context.end_of(invalid)
    assert end is not None
    assert isinstance(end.error, InvalidBody)
    assert str(end.error).startswith("the body does not fit: number: ")


async def test_the_last_outcome_given_to_a_job_counts() -> None:
    retry = Retry(30)

    def handle(batch: BatchContext) -> None:
        batch.finish(batch[0], "a")
        batch.fail(batch[0], retry)
        batch.fail(batch[1], Reject("no"))
        batch.finish(batch[1], "b")

    context, jobs = await called(handle, 1, 2, 3)
    assert [context.end_of(one) for one in jobs] == [(None, retry), ("b", None), None]
    with pytest.raises(ValueError, match="is not a job of this batch"):
        context.finish(context_of(1))
    with pytest.raises(TypeError, match="a job fails with an exception, not 'late'"):
        context.fail(jobs[0], "late")  # type: ignore[arg-type]


async def test_a_handler_of_a_batch_returns_no_value() -> None:
    with pytest.raises(TypeError, match=r"returned a value \(int\): give results to its jobs by BatchContext.finish"):
        await called(lambda: 1, 1)


def test_functions_and_options_that_do_not_fit_are_refused_when_declared() -> None:
    worker = Worker()

    def one(order: Order) -> None: ...

    def of_one(orders: list[Order], context: Context) -> None: ...

    def of_batch(order: Order, batch: BatchContext) -> None: ...

    def other(numbers: list[int]) -> None: ...

    for function, options, reason in (
        (one, {"batch": 2}, r"takes order: .*Order'?, but a batch has a list of bodies, as in list\[int\]"),
        (of_one, {"batch": 2}, "is declared with batch=, so it takes a BatchContext, not a Context"),
        (of_batch, {}, "is declared without batch=, so it takes a Context, not a BatchContext"),
    ):
        with pytest.raises(TypeError, match=f"'t'.*{reason}"):
            worker.handler("t", **options)(function)
    with pytest.raises(TypeError, match="defined as Order: annotate the parameter with a list of that"):
        worker.handler(ORDER, batch=2)(other)
    refused: list[Any] = [0, 1001, 1.5, "5", True]
    for batch in refused:
        with pytest.raises(ValueError, match=f"takes batches of 1 to 1000 jobs, not {batch!r}"):
            worker.handler("t", batch=batch)(lambda: None)
    for within in (-1, timedelta(minutes=2), float("nan")):
        with pytest.raises(ValueError, match=r"collects jobs within 0 to 60 seconds, not (-1|120|nan)"):
            worker.handler("t", batch=2, within=within)(lambda: None)
    no_durations: list[dict[str, Any]] = [{"within": "1s"}, {"time_limit": "1s"}]
    for options in no_durations:
        [name] = options
        with pytest.raises(TypeError, match=f"'t', has {name}='1s', but that is a number of seconds or a timedelta"):
            worker.handler("t", batch=2, **options)(lambda: None)
    with pytest.raises(ValueError, match="time limit above 0 seconds, not 0"):
        worker.handler("t", batch=2, time_limit=0)(lambda: None)
    with pytest.raises(ValueError, match="give batch, too"):
        worker.handler("t", within=1)
    assert worker.topics == ()


def test_a_definition_gives_the_type_of_the_bodies() -> None:
    handler = BatchHandler(ORDER, lambda orders: None, batch=2)
    [order] = handler.context_of([context_of({"number": 7})])._body
    assert order == Order(number=7)


async def test_a_layer_wraps_the_call_of_a_batch_once_if_it_says_that_it_takes_it() -> None:
    worker, seen = Worker(), list[int]()

    async def of_both(context: Context | BatchContext, call_next: CallNext) -> Any:
        seen.append(len(context) if isinstance(context, BatchContext) else 0)
        return await call_next()

    async def of_one(context: Context, call_next: CallNext) -> Any:
        return await call_next()

    async def silent(context, call_next):  # type: ignore[no-untyped-def]
        return await call_next()

    worker.middleware(of_both)
    worker.handler("t", batch=3)(lambda: None)
    handler = worker._handlers["t"]
    assert isinstance(handler, BatchHandler)
    await handler.call(handler.context_of([context_of(1), context_of(2)]), worker._middleware, at_once)
    assert seen == [2]
    for layer in (of_one, silent):
        with pytest.raises(TypeError, match=r"annotate its first parameter with Context \| BatchContext"):
            worker.middleware(layer)
        other = Worker()
        other.handler("t")(lambda: None)
        other.middleware(layer)
        with pytest.raises(TypeError, match="does not say that it takes their context"):
            other.handler("u", batch=3)(lambda: None)
    assert worker._middleware == [of_both]


# Batches that the worker holds


async def nothing() -> None: ...


def held(handler: BatchHandler, **fields: Any) -> BatchedJob:
    return BatchedJob(delivery_of(**fields), handler, lambda _: nothing(), asyncio.get_running_loop())


async def test_a_batch_is_closed_when_it_is_full_and_has_the_jobs_of_one_handler() -> None:
    closed: list[HeldBatch] = []
    batches, pair, triple = OpenBatches(closed.append), *(BatchHandler("t", nothing, batch=n) for n in (2, 3))
    jobs = [held(handler) for handler in (pair, triple, pair, triple, pair)]
    for one in jobs:
        batches.add(one)
    assert [(batch.handler, batch.jobs) for batch in closed] == [(pair, [jobs[0], jobs[2]])]
    assert len(batches) == 3
    jobs[4].settled = True  # it was cancelled
    batches.close()
    assert [batch.jobs for batch in closed[1:]] == [[jobs[1], jobs[3]]]
    assert len(batches) == 0


@pytest.mark.parametrize(
    ("within", "limits", "expected_s"), [(0.05, [None, None], 0.05), (60, [None, 0.1], 0.05), (60, [0.1, 50], 0.05)]
)
async def test_a_batch_is_closed_within_its_time_or_half_of_a_time_limit(
    within: float, limits: list[float | None], expected_s: float
) -> None:
    closed = asyncio.get_running_loop().create_future()
    batches, handler = OpenBatches(closed.set_result), BatchHandler("t", nothing, batch=9, within=within)
    for limit in limits:
        batches.add(held(handler, **({} if limit is None else {"time_limit": limit})))
    async with asyncio.timeout(10):
        batch = await closed
    assert len(batch.jobs) == 2
    assert batch.received_s - batch.jobs[0].received_s >= expected_s


async def test_an_async_handler_is_cancelled_when_all_its_jobs_are_stopped() -> None:
    began, handler = asyncio.Event(), BatchHandler("t", nothing, batch=9)
    jobs = [held(handler) for _ in range(3)]
    batch = HeldBatch(handler, jobs, 0)

    async def run() -> None:
        batch.begin(jobs[:2])  # the third one was returned
        began.set()
        await asyncio.sleep(600)

    task = asyncio.create_task(run())
    batch.runs_in(task)
    await began.wait()
    jobs[0].stop(Stop.OVER, None)
    assert not task.cancelling()
    assert (jobs[0].cancelled, jobs[1].cancelled, batch.context.cancelled) == (True, False, False)
    jobs[1].stop(Stop.TIME_LIMIT, None)
    assert batch.context.cancelled
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_handler_of_single_jobs_takes_no_batch() -> None:
    assert Handler("t", nothing).batch is None
    worker = Worker()
    worker.handler("a", batch=5)(lambda: None)
    assert (worker._handlers.take_batches, worker._handlers.jobs_per_call) == (True, 5)
    worker.handler("b")(lambda: None)
    assert (worker._handlers.take_batches, worker._handlers.jobs_per_call) == (True, 1)
