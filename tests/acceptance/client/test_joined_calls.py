"""Concurrent puts, finishes and cancels of one client share requests, and each has the outcome of a single call."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable
from datetime import timedelta
from typing import Any

import pytest

from deferd import AsyncClient, FixedBackoff, Job, JobRef, NoAnswer
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
from tests.acceptance.client.joining import RUN_AT, batches, joined, outcome, same_outcomes
from tests.acceptance.client.lossy_proxy import LossyProxy
from tests.acceptance.service_process import ServiceProcess

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
        await single.release(held["stale"])
        await single.pop(one, wait=5)
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
