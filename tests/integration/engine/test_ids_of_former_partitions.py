"""Ids that a partition of a former number still has, or had: what is over there affects no job elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import permutations
from typing import Any

import pytest

from deferd.contract.errors import DeferdError, JobCancelled, JobNotFound
from deferd.contract.model import JobState, PutJob
from deferd.engine.engine import Engine
from deferd.engine.partitions import Layout
from deferd.engine.record import ANY_RECEIPT, JobRecord
from deferd.engine.redis_keys import Keys
from tests.integration.engine.engine_driver import EngineDriver
from tests.integration.engine.partitioned_topic import SHARDS, TOPIC, grow, unaware_engine
from tests.integration.store.store_servers import StoreServer

FORMER, NOW = 2, 5
UNIQUE_FOR_S = 60


def ids_that_move(former: str, now: str, count: int) -> list[str]:
    """Ids that belonged into one partition, and belong into another one since the topic has grown."""
    ids = (f"job-{number}" for number in range(1000))
    found = [
        one for one in ids if Layout((FORMER,)).home(TOPIC, one) == former and Layout((NOW,)).home(TOPIC, one) == now
    ]
    return found[:count]


def job(job_id: str, **fields: object) -> PutJob:
    return PutJob.model_validate({"topic": TOPIC, "id": job_id, **fields})


@pytest.fixture
async def engine(server: StoreServer) -> AsyncIterator[Engine]:
    """That of a process whose timer does not run, on a topic of the former number of partitions."""
    async with unaware_engine(server, movable_clock=True) as engine:
        await grow(engine, FORMER)
        yield engine


async def take(engine: Engine, job_id: str) -> None:
    """Let an id stay taken after its job is finished."""
    await engine.puts.put(job(job_id, unique_for=UNIQUE_FOR_S))
    [popped] = await engine.dispatcher.pop([TOPIC])
    await engine.queue.finish(TOPIC, job_id, popped.receipt)


async def test_a_batch_is_stored_in_its_order_also_when_an_id_is_let_go(engine: Engine) -> None:
    taken, *others = ids_that_move("t#1", "t#4", 3)
    await take(engine, taken)
    await grow(engine, NOW)
    ids = [others[0], taken, others[1]]
    await engine.puts.put_many([job(job_id, conflict_with="live") for job_id in ids])
    assert [popped.id for popped in await engine.dispatcher.pop([TOPIC], count=3)] == ids


async def test_the_puts_of_a_batch_that_a_taken_id_refuses_come_before_one_that_it_does_not(engine: Engine) -> None:
    [taken] = ids_that_move("t#1", "t#4", 1)
    await take(engine, taken)
    await grow(engine, NOW)
    puts = [job(taken), job(taken, on_conflict="keep"), job(taken, conflict_with="live", body=1), job(taken, body=2)]
    results = await engine.puts.put_many(puts)
    assert [result.status for result in results] == [409, 409, 201, 409]
    assert [result.state for result in results if result.code] == ["finished", "finished", "ready"]
    assert (await engine.queue.get(TOPIC, taken)).body == b"1"


async def test_a_process_that_does_not_know_of_a_growth_cancels_the_job_and_not_what_is_over(
    engine: Engine, server: StoreServer
) -> None:
    [job_id] = ids_that_move("t#1", "t#4", 1)
    await take(engine, job_id)
    async with unaware_engine(server, movable_clock=True) as unaware:
        await unaware.partitions.refresh(TOPIC)
        await grow(engine, NOW)
        EngineDriver(engine, server).move_clock(UNIQUE_FOR_S)
        await engine.puts.put(job(job_id))
        assert unaware.partitions.known.count(TOPIC) == FORMER
        assert await unaware.cancels.cancel(TOPIC, job_id) is JobState.READY
    with pytest.raises(JobNotFound):
        await engine.queue.get(TOPIC, job_id)


ENDS: dict[str, Callable[[Engine, str], Awaitable[Any]]] = {
    "finish": lambda engine, job_id: engine.queue.finish(TOPIC, job_id, ANY_RECEIPT),
    "release": lambda engine, job_id: engine.deliveries.release(TOPIC, job_id, ANY_RECEIPT),
    "touch": lambda engine, job_id: engine.deliveries.touch(TOPIC, job_id, ANY_RECEIPT),
    "bury": lambda engine, job_id: engine.deliveries.bury(TOPIC, job_id, ANY_RECEIPT),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
async def test_a_process_that_does_not_know_of_a_growth_does_not_call_a_job_cancelled_that_was_put_since(
    engine: Engine, server: StoreServer, end: Callable[[Engine, str], Awaitable[Any]]
) -> None:
    job_id, gone = ids_that_move("t#1", "t#4", 2)
    await engine.puts.put_many([job(job_id), job(gone)])
    assert len(await engine.dispatcher.pop([TOPIC], count=2)) == 2
    for one in (job_id, gone):
        await engine.cancels.cancel(TOPIC, one)
    async with unaware_engine(server, movable_clock=True) as unaware:
        await unaware.partitions.refresh(TOPIC)
        await grow(engine, NOW)
        await engine.puts.put(job(job_id))
        [popped] = await engine.dispatcher.pop([TOPIC])
        with pytest.raises(JobCancelled):
            await end(unaware, gone)
        unaware.partitions.known.note(TOPIC, Layout((FORMER,)))
        await end(unaware, job_id)
    with pytest.raises(JobCancelled):
        await engine.queue.finish(TOPIC, gone, ANY_RECEIPT)
    assert await is_held(engine, popped) is (end is ENDS["touch"])


async def is_held(engine: Engine, popped: JobRecord) -> bool:
    try:
        record = await engine.queue.get(TOPIC, popped.id)
    except DeferdError:
        return False
    return record.state is JobState.RESERVED and record.receipt == popped.receipt


async def test_a_finish_that_puts_goes_by_the_partitions_of_today(server: StoreServer) -> None:
    """By those that the process knows, the put belongs into another shard than the job."""
    async with unaware_engine(server) as aware, unaware_engine(server) as unaware:
        await grow(aware, FORMER)
        await unaware.partitions.refresh(TOPIC)
        before, now = Layout((FORMER,)), Layout((NOW,))
        shard_of = Keys(SHARDS).shard_of
        held, put = next(
            (first, second)
            for first, second in permutations([f"job-{number}" for number in range(100)], 2)
            if before.home(TOPIC, first) == now.home(TOPIC, first) == now.home(TOPIC, second)
            and shard_of(before.home(TOPIC, second)) != shard_of(before.home(TOPIC, first))
        )
        await grow(aware, NOW)
        await aware.puts.put(job(held))
        [popped] = await aware.dispatcher.pop([TOPIC])
        assert unaware.partitions.known.count(TOPIC) == FORMER
        [result] = await unaware.queue.finish_and_put(TOPIC, held, popped.receipt, [job(put)])
        assert result.status == 201
