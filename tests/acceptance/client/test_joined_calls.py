"""Concurrent puts, finishes and cancels of one client share requests, and each has the outcome of a single call."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deferd import AsyncClient, Client, FixedBackoff, Job, JobRef, NoAnswer, UnexpectedAnswer
from deferd.client.errors import ClientClosed
from deferd.client.joined_calls import JoinedCalls
from deferd.contract.errors import (
    DeferdError,
    InvalidInput,
    JobCancelled,
    JobExists,
    JobNotFound,
    JobReserved,
    ReceiptStale,
    StoreUnavailable,
)
from deferd.contract.model import JobState
from deferd.contract.operations.jobs import CancelResult
from tests.acceptance.client.lossy_proxy import LossyProxy, lossy_proxy
from tests.acceptance.service_process import ServiceProcess
from tests.waiting import until, wait_until

RUN_AT = datetime.now(UTC) + timedelta(hours=1)
CHANGING = {"id", "created_at", "due_at"}


def batches(proxy: LossyProxy) -> list[str]:
    """The requests so far that had several calls, without the version."""
    lines = [head.partition(" HTTP/")[0] for head in proxy.heads]
    return [line for line in lines if "/batch" in line or (line.startswith("POST /topics/") and "/pop" not in line)]


async def joined(
    proxy: LossyProxy,
    client: AsyncClient,
    calls: Sequence[Awaitable[Any]],
    opening: Awaitable[Any],
    fault: Callable[[], None] | None = None,
) -> list[Any]:
    """The outcomes of calls that arrive while `opening` is under way. The first half of them meets the fault."""
    before = len(proxy.heads)
    proxy.hold_response()
    first = asyncio.ensure_future(opening)
    await until(lambda: len(proxy.heads) > before and proxy.is_done(), "the first call is executed")
    if fault is not None:
        fault()
    pending = [asyncio.ensure_future(call) for call in calls]
    await until(lambda: len(proxy.heads) > before + 1, "the first batch is sent")
    proxy.release_responses()
    await first
    return await asyncio.gather(*pending, return_exceptions=True)


def facts(seen: Any) -> Any:
    """What two outcomes of equal calls have in common: the fields of a job, the class and details of an error."""
    if isinstance(seen, DeferdError):
        return type(seen), vars(seen), str(seen)
    if isinstance(seen, Job):
        due_after_s = round((seen.due_at - seen.created_at).total_seconds(), 2)
        if abs((seen.due_at - RUN_AT).total_seconds()) < 0.001:
            due_after_s = 0
        return list(seen.fields), {**seen.fields, **dict.fromkeys(CHANGING)}, due_after_s
    return seen


def same_outcomes(topic: str, one: Sequence[Any], other: Sequence[Any]) -> None:
    """What calls on TOPIC-one came to must be what the same calls on TOPIC-all came to."""

    def shown(seen: Any, name: str) -> str:
        return repr(facts(seen)).replace(f"{topic}-{name}", "<topic>").partition("<object object")[0]

    assert [shown(seen, "all") for seen in other] == [shown(seen, "one") for seen in one]


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except DeferdError as error:
        return error


TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OPTIONS: list[dict[str, Any]] = [
    {},
    {"body": {"nested": [1, 2.5, None, "ü\u2028"]}},
    {"body": 10**30},
    {"delay": 7.25},
    {"delay": timedelta(minutes=3)},
    {"run_at": RUN_AT},
    {"ttr": 5, "max_attempts": 3, "ttl": 9.5, "retain": 60},
    {"max_attempts": None, "ttl": None},
    {"backoff": FixedBackoff(seconds=3)},
    {"backoff": {"kind": "schedule", "seconds": [1, 2], "then": "repeat_last"}},
    {"traceparent": TRACEPARENT},
    {"durability": "memory"},
    {"durability": "fsync"},
    {"on_conflict": "keep"},
    {"on_conflict": "replace"},
]


@pytest.fixture
async def single(shared_service: ServiceProcess) -> AsyncIterator[AsyncClient]:
    """A client that sends each call as a request of its own, past the proxy."""
    async with AsyncClient(shared_service.url, timeout=5) as client:
        client._calls = JoinedCalls(client._sender, None)
        yield client


async def test_puts_of_many_tasks_share_requests(proxy: LossyProxy, client: AsyncClient, topic: str) -> None:
    jobs = await joined(proxy, client, [client.put(topic, n, id=f"j{n}") for n in range(50)], client.put(topic, id="a"))
    assert [(f"j{n}", n, "ready", topic) for n in range(50)] == [
        (job.id, job.body, job.state, job.topic) for job in jobs
    ]
    assert len(proxy.heads) <= 10  # requests share what waits, so their number depends on which ends first
    assert (await client.topic(topic)).counts["ready"] == 51


@pytest.mark.parametrize("existing", [False, True])
async def test_a_joined_put_returns_what_a_single_one_returns(
    proxy: LossyProxy, client: AsyncClient, single: AsyncClient, topic: str, *, existing: bool
) -> None:
    """Over all options, for new ids and for ids that are taken."""

    def put(via: AsyncClient, name: str, number: int) -> Awaitable[Job]:
        return via.put(f"{topic}-{name}", **{"id": f"j{number}", **OPTIONS[number]})

    if existing:
        for name in ("one", "all"):
            for number in range(len(OPTIONS)):
                await single.put(f"{topic}-{name}", "existing", id=f"j{number}", delay=99, retain=5)
    expected = [await outcome(put(single, "one", number)) for number in range(len(OPTIONS))]
    calls = [put(client, "all", number) for number in range(len(OPTIONS))]
    actual = await joined(proxy, client, [*calls], client.put(f"{topic}-all", id="opening"))
    assert len(batches(proxy)) >= 1
    same_outcomes(topic, expected, actual)


async def test_errors_of_joined_puts_are_those_of_single_ones(
    proxy: LossyProxy, client: AsyncClient, single: AsyncClient, topic: str
) -> None:
    for name in ("one", "all"):
        await single.put(f"{topic}-{name}", id="held")
        await single.pop(f"{topic}-{name}", wait=5)
        await single.put(f"{topic}-{name}", id="taken")
    wrong: list[dict[str, Any]] = [
        {"id": "taken"},
        {"id": "held", "on_conflict": "replace"},
        {"id": "held"},
        {"id": "too-short", "ttr": 0},
        {"id": "no id!"},
        {"id": "both", "delay": 3, "run_at": RUN_AT},
        {"id": "replicated", "durability": "replicated:1"},
        {"id": "unknown-level", "durability": "paper"},
        {"id": "nan", "body": float("nan")},
        {"id": "object", "body": object()},
        {"id": "large", "body": "x" * 2_000_000},
    ]
    expected = [await outcome(single.put(f"{topic}-one", **options)) for options in wrong]
    good = [client.put(f"{topic}-all", id=f"good{n}") for n in range(20)]
    bad = [client.put(f"{topic}-all", **options) for options in wrong]
    outcomes = await joined(proxy, client, [*bad, *good], client.put(f"{topic}-all", id="opening"))
    assert [f"good{n}" for n in range(20)] == [job.id for job in outcomes[len(wrong) :]]
    assert all(isinstance(one, DeferdError) for one in expected)
    same_outcomes(topic, expected, outcomes[: len(wrong)])


async def test_errors_of_joined_puts_into_a_full_topic_are_those_of_single_ones(proxy: LossyProxy, topic: str) -> None:
    async with AsyncClient(proxy.url, timeout=5, retry_for=0.2) as client:
        await client.set_topic(topic, {"max_jobs": 5})
        outcomes = await joined(
            proxy, client, [client.put(topic, id=f"j{n}") for n in range(12)], client.put(topic, id="opening")
        )
        assert sum(isinstance(one, Job) for one in outcomes) == 4
        errors = [one for one in outcomes if not isinstance(one, Job)]
        assert {("TopicFull", 5)} == {(type(error).__name__, error.max_jobs) for error in errors}


@pytest.mark.slow
async def test_finishes_and_their_errors_are_those_of_single_ones(
    proxy: LossyProxy, client: AsyncClient, single: AsyncClient, topic: str
) -> None:
    kinds = ["plain", "kept", "by-name", "cancelled", "gone", "buried", "released", "stale", "again", "nan"]

    async def prepare(name: str) -> dict[str, Any]:
        one = f"{topic}-{name}"
        for kind in [*kinds, "opening"]:
            await single.put(one, id=kind, retain=60 if kind in {"kept", "again"} else 0)
        held = {job.id: job for job in await single.pop(one, count=50, wait=5)}
        assert len(held) == len(kinds) + 1
        await single.cancel(one, "cancelled")
        await single.purge(one, state="delayed")
        await single.finish(held["gone"])
        await single.bury(held["buried"])
        await single.release(held["released"], delay=60)
        await single.release(held["stale"], delay=0)
        assert [job.id for job in await single.pop(one, wait=5)] == ["stale"]
        await single.finish(held["again"])
        return held

    def finish(via: AsyncClient, held: dict[str, Any], kind: str) -> Awaitable[None]:
        if kind == "by-name":
            return via.finish(JobRef(held[kind].topic, kind))
        result = {"kept": [1], "nan": float("nan")}.get(kind)
        return via.finish(held[kind], result)

    one, other = await prepare("one"), await prepare("all")
    expected = [await outcome(finish(single, one, kind)) for kind in kinds]
    actual = await joined(
        proxy, client, [finish(client, other, kind) for kind in kinds], client.finish(other["opening"])
    )
    assert len(batches(proxy)) >= 1
    same_outcomes(topic, expected, actual)
    assert [type(one) for one in expected[3:8]] == [JobCancelled, JobNotFound, *[ReceiptStale] * 3]
    assert (await client.get(f"{topic}-all", "kept")).result == [1]


async def test_cancels_and_their_errors_are_those_of_single_ones(
    proxy: LossyProxy, client: AsyncClient, single: AsyncClient, topic: str
) -> None:
    kinds = ["ready", "delayed", "reserved", "refused", "dead", "finished", "missing", "no id!"]

    async def prepare(name: str) -> None:
        one = f"{topic}-{name}"
        for kind in ("reserved", "refused", "dead", "finished"):
            await single.put(one, id=kind, retain=60)
        held = {job.id: job for job in await single.pop(one, count=4, wait=5)}
        await single.bury(held["dead"])
        await single.finish(held["finished"])
        await single.put(one, id="ready")
        await single.put(one, id="delayed", delay=60)
        await single.put(one, id="opening")

    def cancel(via: AsyncClient, name: str, kind: str) -> Awaitable[Any]:
        return via.cancel(f"{topic}-{name}", kind, if_reserved="refuse" if kind == "refused" else "cancel")

    await prepare("one")
    await prepare("all")
    expected = [await outcome(cancel(single, "one", kind)) for kind in kinds]
    calls = [cancel(client, "all", kind) for kind in kinds]
    actual = await joined(proxy, client, calls, client.cancel(f"{topic}-all", "opening"))
    assert len(batches(proxy)) >= 1
    same_outcomes(topic, expected, actual)
    assert isinstance(expected[3], JobReserved)


async def test_a_batch_of_puts_with_a_lost_response_is_stored_once(
    proxy: LossyProxy, client: AsyncClient, topic: str
) -> None:
    await client.put(topic, "another", id="j0", delay=60)
    calls = [client.put(topic, n, id=f"j{n}") for n in range(10)]
    taken, *jobs = await joined(proxy, client, calls, client.put(topic), proxy.lose_responses)
    assert isinstance(taken, JobExists)
    assert [f"j{n}" for n in range(1, 10)] == [job.id for job in jobs]
    assert [*range(1, 10)] == [job.body for job in jobs]
    counts = (await client.topic(topic)).counts
    assert (counts["ready"], counts["delayed"]) == (10, 1)


async def test_finishes_and_cancels_with_a_lost_response_follow_the_rules_of_single_ones(
    proxy: LossyProxy, client: AsyncClient, topic: str
) -> None:
    for n in range(14):
        await client.put(topic, id=f"j{n}")
    held = {job.id: job for job in await client.pop(topic, count=7, wait=5)}
    first = [client.finish(job) for name, job in held.items() if name not in {"j0", "j1"}]
    outcomes = await joined(
        proxy, client, [client.finish(JobRef(topic, "j1")), *first], client.finish(held["j0"]), proxy.lose_responses
    )
    assert isinstance(outcomes[0], NoAnswer)  # without a receipt it is not repeated
    assert [None] * 5 == outcomes[1:]
    cancels = [client.cancel(topic, f"j{n}") for n in range(8, 14)]
    outcomes = await joined(proxy, client, cancels, client.cancel(topic, "j7"), proxy.lose_responses)
    lost = [one for one in outcomes if isinstance(one, NoAnswer)]
    assert len(lost) >= 3
    assert "the job is gone, by this cancel or before it" in str(lost[0])
    assert {"ready"} == {one.was for one in outcomes if not isinstance(one, NoAnswer)}
    assert set((await client.topic(topic)).counts.values()) == {0}


async def test_with_no_time_to_retry_a_lost_response_is_no_answer_for_each(proxy: LossyProxy, topic: str) -> None:
    async with AsyncClient(proxy.url, timeout=5, retry_for=0) as client:
        calls = [client.put(topic, id=f"j{n}") for n in range(7)]
        outcomes = await joined(proxy, client, calls, client.put(topic), proxy.lose_responses)
        errors = [one for one in outcomes if not isinstance(one, Job)]
        assert {NoAnswer} == {type(error) for error in errors}
        assert len({id(error) for error in errors}) == len(errors) >= 3


def problem(status: int, code: str, **fields: Any) -> bytes:
    return json.dumps({"status": status, "code": code, "detail": "refused", **fields}).encode()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, problem(404, "not_found")),
        (413, problem(413, "payload_too_large", limit_bytes=100)),
        (422, problem(422, "validation", errors=[{"field": "body.jobs", "message": "too many"}])),
        (429, problem(429, "rate_limited")),
        (403, problem(403, "forbidden")),
        (500, b"a bug"),
        (503, problem(503, "store_unavailable")),
        (200, b'{"results": []}'),
        (200, b"{}"),
    ],
)
async def test_after_a_batch_that_failed_each_call_is_sent_by_itself(
    proxy: LossyProxy, client: AsyncClient, topic: str, status: int, body: bytes
) -> None:
    """One that the service found too large is followed by smaller ones."""
    calls = [client.put(topic, "x" * 1000, id=f"j{n}") for n in range(11)]
    jobs = await joined(proxy, client, calls, client.put(topic), lambda: proxy.respond(status, sent=False, body=body))
    assert [f"j{n}" for n in range(11)] == [job.id for job in jobs]
    assert (await client.topic(topic)).counts["ready"] == 12
    before = len(batches(proxy))
    await asyncio.gather(*(client.put(topic) for _ in range(30)))
    assert len(batches(proxy)) > before
    if b"body.jobs" in body:
        assert client._calls._puts.most_jobs == 3
    if status == 413:
        assert client._calls._puts.most_bytes < 4000


async def test_a_service_that_is_unavailable_for_a_batch_is_named_to_each(proxy: LossyProxy, topic: str) -> None:
    body = problem(503, "store_unavailable")
    async with AsyncClient(proxy.url, timeout=5, retry_for=0) as client:
        calls = [client.put(topic, id=f"j{n}") for n in range(7)]
        outcomes = await joined(
            proxy, client, calls, client.put(topic), lambda: proxy.respond(503, sent=False, body=body)
        )
    assert {Job, StoreUnavailable} == {type(one) for one in outcomes}


async def test_invalid_calls_of_another_kind_still_raise_at_once(client: AsyncClient, topic: str) -> None:
    with pytest.raises(InvalidInput):
        await client.put(topic, id=[1])  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await client.put([topic])  # type: ignore[arg-type]
    with contextlib.suppress(DeferdError):
        await client.cancel(topic, "")


async def test_cancel_many_returns_a_result_for_each(proxy: LossyProxy, client: AsyncClient, topic: str) -> None:
    ids = [f"j{number}" for number in range(1100)]
    assert len([result async for result in client.put_many({"topic": topic, "id": name} for name in ids)]) == 1100
    held = await client.pop(topic, wait=5)
    results = await client.cancel_many(topic, [*ids, "missing"], if_reserved="refuse")
    assert (results[0].id, results[0].status, results[0].code) == (held[0].id, 409, "job_reserved")
    assert results[1:-1] == [CancelResult(id=name, status=200, was=JobState.READY) for name in ids[1:]]
    assert results[-1] == CancelResult(id="missing", status=404, code="job_not_found")
    proxy.lose_responses()
    [lost] = await client.cancel_many(topic, ["j0"])
    assert (lost.status, lost.code) == (503, "no_answer")


# What is not known


@pytest.fixture
def proxy(shared_service: ServiceProcess) -> Iterator[LossyProxy]:
    with lossy_proxy(shared_service.url) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: LossyProxy) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(proxy.url, timeout=5, retry_for=3) as client:
        yield client


async def test_after_a_lost_batch_a_refusal_of_its_calls_is_no_answer(
    proxy: LossyProxy, client: AsyncClient, topic: str
) -> None:
    """The jobs are stored, so an error must not say that they are not: neither 429 nor Unreachable."""

    def fault() -> None:
        proxy.lose_responses()
        for _ in range(2):
            proxy.respond(429, "retry-after: 60", sent=False)

    calls = [client.put(topic, n, id=f"j{n}") for n in range(2)]
    outcomes = await joined(proxy, client, calls, client.put(topic), fault)
    assert [NoAnswer] * 2 == [type(one) for one in outcomes]
    assert all("may have been executed" in str(one) for one in outcomes)
    assert {"j0", "j1"} <= {job.id async for job in client.jobs(topic)}


async def test_a_put_whose_stored_job_cannot_be_read_is_no_answer(
    proxy: LossyProxy, client: AsyncClient, topic: str
) -> None:
    proxy.lose_responses()
    proxy.forward()
    proxy.respond(429, "retry-after: 60", sent=False)
    with pytest.raises(NoAnswer, match="may have been executed"):
        await client.put(topic, id="a")
    assert (await client.get(topic, "a")).id == "a"


async def test_a_finish_without_a_receipt_is_not_sent_again_after_a_response_that_says_nothing(
    proxy: LossyProxy, client: AsyncClient, topic: str
) -> None:
    for n in range(3):
        await client.put(topic, id=f"j{n}")
    await client.pop(topic, count=3)
    calls = [client.finish(JobRef(topic, f"j{n}")) for n in (1, 2)]
    said = b'{"results": [{"id": "j1"}, {"id": "j2", "status": 200}]}'
    before = len(proxy.heads)
    outcomes = await joined(
        proxy, client, calls, client.finish(JobRef(topic, "j0")), lambda: proxy.respond(200, sent=True, body=said)
    )
    assert [type(one) for one in outcomes] == [UnexpectedAnswer, UnexpectedAnswer]
    assert len(proxy.heads) == before + 2


async def test_a_batch_with_an_append_goes_to_no_other_replica_after_a_lost_response(
    shared_service: ServiceProcess, proxy: LossyProxy, topic: str
) -> None:
    """The other puts in it could be repeated, but the append is done once at most."""
    async with AsyncClient([proxy.url, shared_service.url], timeout=5, retry_for=3) as client:
        calls = [client.put(topic, 1, id="a", on_conflict="append"), client.put(topic, 2, id="b")]
        outcomes = await joined(proxy, client, calls, client.put(topic), proxy.lose_responses)
        assert [type(one) for one in outcomes] == [NoAnswer, Job]
        assert (await client.get(topic, "a")).body == [1]


# Calls that are interrupted


async def test_a_waiting_call_that_is_cancelled_is_withdrawn_and_others_go_on(
    proxy: LossyProxy, client: AsyncClient, topic: str
) -> None:
    with proxy.responses_held():
        first = asyncio.create_task(client.put(topic, id="first"))
        await until(lambda: len(proxy.heads) == 1, "the first put is sent")
        second = asyncio.create_task(client.put(topic, id="second"))
        await until(lambda: len(proxy.heads) == 2, "the second put is sent")
        others = [asyncio.create_task(client.put(topic, id=f"j{n}")) for n in range(9)]
        await asyncio.sleep(0)
        for task in (first, others[0], others[8]):
            task.cancel()
    outcomes = await asyncio.gather(first, second, *others, return_exceptions=True)
    cancelled = [at for at, one in enumerate(outcomes) if isinstance(one, asyncio.CancelledError)]
    assert cancelled == [0, 2, 10]
    assert {*(f"j{n}" for n in range(1, 8)), "first", "second"} == {job.id async for job in client.jobs(topic)}


async def test_a_storm_of_cancelled_callers_loses_and_doubles_nothing(
    proxy: LossyProxy, client: AsyncClient, topic: str
) -> None:
    """Every put that returned is stored; each id is put once and finished once."""
    drawn = random.Random(7)
    stored: set[str] = set()

    async def put(number: int) -> None:
        job = await client.put(topic, number, id=f"j{number}")
        stored.add(job.id)

    for start in range(0, 400, 40):
        tasks = [asyncio.create_task(put(start + n)) for n in range(40)]
        for task in drawn.sample(tasks, 12):
            await asyncio.sleep(drawn.random() / 500)
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(None), asyncio.CancelledError} >= {type(one) for one in outcomes}
    assert len(stored) >= 280
    held = [job async for job in client.jobs(topic)]
    assert stored <= {job.id for job in held}
    assert len(held) == len({job.id for job in held})
    popped = await client.pop(topic, count=1000, wait=5)
    await asyncio.gather(*(client.finish(job) for job in popped))
    assert (await client.topic(topic)).counts["reserved"] == 0


async def test_calls_that_wait_when_the_client_is_closed_end(proxy: LossyProxy, topic: str) -> None:
    client = AsyncClient(proxy.url, timeout=5)
    with proxy.responses_held():
        puts = [asyncio.create_task(client.put(topic, id="j0"))]
        await until(lambda: len(proxy.heads) == 1, "the first put is sent")
        puts += [asyncio.create_task(client.put(topic, id=f"j{n}")) for n in range(1, 8)]
        await until(lambda: len(proxy.heads) == 2, "the first batch is sent")
        await client.close()
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    assert [Job] * 5 + [ClientClosed] * 3 == [type(one) for one in outcomes]


def test_a_loop_that_ends_takes_its_waiting_calls_with_it(proxy: LossyProxy, topic: str) -> None:
    async def main() -> None:
        client = AsyncClient(proxy.url, timeout=5)
        for n in range(20):
            asyncio.create_task(client.put(topic, n))  # noqa: RUF006 (asyncio.run cancels it)
        await until(lambda: len(proxy.heads) == 2, "a put and a batch are sent")

    with proxy.responses_held():
        asyncio.run(main())


def test_puts_of_many_threads_share_requests(proxy: LossyProxy, topic: str) -> None:
    with Client(proxy.url, timeout=5) as client, ThreadPoolExecutor(24) as threads:
        with proxy.responses_held():
            first = threads.submit(client.put, topic, id="a")
            wait_until(lambda: bool(proxy.heads), 5, "the first put is sent")
            others = [threads.submit(client.put, topic, n, id=f"j{n}") for n in range(23)]
            wait_until(lambda: len(proxy.heads) > 1, 5, "another is sent")
        assert first.result().id == "a"
        assert [(f"j{n}", n) for n in range(23)] == [(job.result().id, job.result().body) for job in others]
        assert batches(proxy)
        heads = len(proxy.heads)
        numbers = [*threads.map(lambda n: client.put(topic, n).body, range(600))]
        assert numbers == [*range(600)]
        assert len(proxy.heads) - heads < 500
        held = client.pop(topic, count=1000, wait=5)
        assert len(held) == 624
        assert [None] * 624 == [*threads.map(client.finish, held)]


def test_ctrl_c_in_a_waiting_thread_takes_nothing_with_it(proxy: LossyProxy, topic: str) -> None:
    """The main thread waits and is interrupted; the others go on."""
    with Client(proxy.url, timeout=5) as client, ThreadPoolExecutor(12) as threads:
        proxy.hold_response()
        others = [threads.submit(client.put, topic, id="first")]
        wait_until(lambda: bool(proxy.heads), 5, "the first put is sent")
        others += [threads.submit(client.put, topic, id=f"j{n}") for n in range(10)]
        wait_until(lambda: len(proxy.heads) > 1, 5, "another is sent")
        interrupt = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            client.put(topic, id="interrupted")
        proxy.release_responses()
        ids = [other.result(timeout=10).id for other in others]
        assert ["first", *(f"j{n}" for n in range(10))] == ids
        assert {*ids, "interrupted"} >= {job.id for job in client.jobs(topic)} >= {*ids}
