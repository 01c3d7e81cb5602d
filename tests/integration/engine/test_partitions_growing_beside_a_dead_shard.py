"""Puts into a topic that has got more partitions, while one of the shards cannot be reached."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import PutJob
from deferd.engine.engine import Engine
from tests.integration.engine.engine_driver import started_engine
from tests.integration.engine.partitioned_topic import SHARDS, TOPIC, break_shard_of, grow, put_all, restore
from tests.integration.store.store_servers import StoreServer

IDS = [f"job-{number}" for number in range(60)]
AWAY = "t#1"


@pytest.fixture
async def engine(server: StoreServer) -> AsyncIterator[Engine]:
    async with started_engine(server.url, shards=SHARDS) as engine:
        await grow(engine, 2)
        await engine.partitions._forget_former(TOPIC, engine.partitions.known.layouts[TOPIC])
        await grow(engine, 5)
        assert engine.partitions.known.layouts[TOPIC].counts == (5, 2)
        break_shard_of(engine, AWAY)
        yield engine


def by_reach(engine: Engine) -> tuple[list[str], list[str]]:
    """Ids all of whose partitions can be reached, and the others."""
    homes = {job_id: engine.partitions.known.homes(TOPIC, job_id) for job_id in IDS}
    return [one for one in IDS if AWAY not in homes[one]], [one for one in IDS if AWAY in homes[one]]


async def test_a_batch_stores_the_jobs_whose_partitions_can_be_reached(engine: Engine) -> None:
    reachable, others = by_reach(engine)
    assert len(reachable) > 5 < len(others)
    results = await engine.puts.put_many([PutJob(topic=TOPIC, id=job_id) for job_id in IDS])
    assert [one.status for one in results] == [201 if one in reachable else 503 for one in IDS]
    with pytest.raises(StoreUnavailable):
        await engine.puts.put_many([PutJob(topic=TOPIC, id=job_id) for job_id in others])
    restore(engine)
    await put_all(engine, others)


async def test_puts_that_share_a_call_fail_each_for_itself(engine: Engine) -> None:
    reachable, others = by_reach(engine)
    puts = (engine.puts.put(PutJob(topic=TOPIC, id=job_id)) for job_id in IDS)
    outcomes = await asyncio.gather(*puts, return_exceptions=True)
    failed = [job_id for job_id, one in zip(IDS, outcomes, strict=True) if isinstance(one, BaseException)]
    assert failed == others
    assert {type(one) for one in outcomes if isinstance(one, BaseException)} == {StoreUnavailable}
    restore(engine)
    assert {(await engine.queue.get(TOPIC, job_id)).id for job_id in reachable} == set(reachable)
    await put_all(engine, others)
