"""Batches that return what single calls return: puts with the stored jobs, and cancels."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from deferd.contract import limits
from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import CancelItem, FinishItem, JobState, PutJob
from deferd.contract.operations.jobs import CancelResult
from deferd.engine.engine import Engine
from deferd.engine.job_batches import FROM_JOBS, SMALL_AT_ONCE
from deferd.engine.puts import KEPT_BYTES
from deferd.store.connection import connect
from tests.integration.engine.engine_driver import TOPIC, EngineDriver
from tests.integration.store.store_servers import StoreServer


def job(job_id: str, **fields: object) -> PutJob:
    return PutJob.model_validate({"topic": TOPIC, "id": job_id, **fields})


async def test_a_batch_returns_the_jobs_that_single_puts_return(driver: EngineDriver) -> None:
    await driver.put("held", body="held")
    await driver.pop_one()
    await driver.put("kept", body="kept", delay=60)
    batch = [
        job("new", body={"a": 1}, delay=5, ttr=7),
        job("new", on_conflict="replace", body=2),
        job("kept", on_conflict="keep", body="other"),
        job("held", on_conflict="keep"),
        job("held", on_conflict="replace"),
        job("kept"),
        job("ready", max_attempts=3, durability="memory"),
    ]
    results = await driver.puts.put_many_with_jobs(batch)
    assert [201, 200, 200, 200, 409, 409, 201] == [result.status for result, _ in results]
    jobs = [record for _, record in results]
    assert [(record.id, record.state, record.body) for record in jobs if record is not None] == [
        ("new", JobState.DELAYED, b'{"a":1}'),
        ("new", JobState.READY, b"2"),
        ("kept", JobState.DELAYED, b'"kept"'),
        ("held", JobState.RESERVED, b'"held"'),
        ("ready", JobState.READY, b"null"),
    ]
    assert jobs[4] is jobs[5] is None
    found = [await driver.queue.get(TOPIC, name) for name in ("new", "kept", "held", "ready")]
    found[2].reserved_since_ms = None  # a put does not tell it
    assert jobs[1:4] + jobs[6:] == found


async def test_existing_jobs_are_returned_up_to_a_mebibyte(driver: EngineDriver) -> None:
    """Beyond it their results have no job; new jobs, which the request itself contains, always have theirs."""
    large = "x" * (KEPT_BYTES // 10)
    names = [f"j{number}" for number in range(20)]
    await driver.puts.put_many([job(name, body=large) for name in names])
    batch = [job(name, on_conflict="keep") for name in names] + [
        job(f"new{number}", body=large) for number in range(20)
    ]
    results = await driver.puts.put_many_with_jobs(batch)
    assert [200] * 20 + [201] * 20 == [result.status for result, _ in results]
    kept = [record for _, record in results[:20] if record is not None]
    assert 0 < sum(len(record.body) for record in kept) <= KEPT_BYTES
    assert all(record is not None for _, record in results[20:])


async def test_a_thousand_jobs_are_cancelled(engine: Engine) -> None:
    names = [f"j{number}" for number in range(limits.BATCH_MAX)]
    await engine.puts.put_many([job(name) for name in names])
    results = await engine.cancels.cancel_many(TOPIC, [CancelItem(id=name) for name in names])
    assert results == [CancelResult(id=name, status=200, was=JobState.READY) for name in names]


async def test_a_batch_of_cancels_that_the_store_confirmed_none_of_fails(server: StoreServer) -> None:
    store = await connect(server.url, timeout_s=0.5)
    engine = Engine(store)
    await engine.ping()
    server.pause()
    try:
        with pytest.raises(StoreUnavailable):
            await engine.cancels.cancel_many(TOPIC, [CancelItem(id="a")])
    finally:
        server.unpause()
        await store.close()


async def test_a_small_batch_does_not_wait_for_bulk_calls(driver: EngineDriver) -> None:
    """A client joins its single calls into such batches: they wait no longer than single calls would."""
    throttle = driver.queue._bulk_throttle
    async with throttle.slot(TOPIC), throttle.slot(TOPIC):
        names = [f"j{number}" for number in range(FROM_JOBS)]
        async with asyncio.timeout(10):
            await driver.puts.put_many_with_jobs([job(name) for name in names])
            await driver.queue.finish_many(TOPIC, [FinishItem(id=name) for name in names])
            await driver.cancels.cancel_many(TOPIC, [CancelItem(id=name) for name in names])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await driver.puts.put_many([job(f"bulk{number}") for number in range(FROM_JOBS + 1)])


async def test_small_batches_wait_for_each_other(driver: EngineDriver) -> None:
    """Else those of one caller would fill the store's queue, and single calls of others wait behind them."""
    throttle = driver.queue._bulk_throttle
    async with AsyncExitStack() as held:
        for _ in range(SMALL_AT_ONCE):
            await held.enter_async_context(throttle.slot(TOPIC, FROM_JOBS))
        for waits in (
            driver.puts.put_many([job("a")]),
            driver.queue.finish_many(TOPIC, [FinishItem(id="a")]),
            driver.cancels.cancel_many(TOPIC, [CancelItem(id="a")]),
        ):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await waits
        async with asyncio.timeout(10):
            await driver.put("single")
            await driver.puts.put_many([job(f"bulk{number}") for number in range(FROM_JOBS + 1)])
