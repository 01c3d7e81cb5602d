"""Pops that finish their jobs, of a topic with several partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.engine.engine import Engine
from tests.integration.engine.engine_driver import started_engine
from tests.integration.engine.partitioned_topic import (
    SHARDS,
    TOPIC,
    break_shard_of,
    counts,
    fill,
    grow,
    put_all,
    restore,
)
from tests.integration.store.store_servers import StoreServer

IDS = [f"job-{number}" for number in range(40)]


@pytest.fixture
async def engine(server: StoreServer) -> AsyncIterator[Engine]:
    async with started_engine(server.url, shards=SHARDS) as engine:
        yield engine


async def test_the_jobs_of_all_partitions_are_popped_and_finished(engine: Engine) -> None:
    await fill(engine, IDS, grown=True)
    singles = [(await engine.queue.pops_and_finishes.pop(TOPIC, 1))[0] for _ in range(8)]
    rest = await engine.queue.pops_and_finishes.pop(TOPIC, 1000)
    assert sorted(job.id for job in (*singles, *rest)) == sorted(IDS)
    assert {job.topic for job in rest} == {TOPIC}
    assert await engine.queue.pops_and_finishes.pop(TOPIC, 1) == []
    assert await counts(engine) == {}


async def test_large_jobs_of_several_partitions_come_in_several_replies(engine: Engine) -> None:
    await grow(engine)
    await put_all(engine, IDS, body="x" * 100_000)
    found: list[str] = []
    while jobs := await engine.queue.pops_and_finishes.pop(TOPIC, 1000):
        assert sum(len(job.body) for job in jobs) < 2 * 1024 * 1024
        found += (job.id for job in jobs)
    assert sorted(found) == sorted(IDS)


async def test_what_other_partitions_have_finished_is_not_lost_with_a_shard(engine: Engine) -> None:
    await fill(engine, IDS, grown=False)
    known = engine.partitions.known
    away = [job_id for job_id in IDS if known.home(TOPIC, job_id) == "t#2"]
    break_shard_of(engine, "t#2")
    found = [job.id for job in await engine.queue.pops_and_finishes.pop(TOPIC, len(IDS))]
    assert sorted(found) == sorted(set(IDS) - set(away))
    with pytest.raises(StoreUnavailable):
        await engine.queue.pops_and_finishes.pop(TOPIC, 1)
    restore(engine)
    assert sorted(job.id for job in await engine.queue.pops_and_finishes.pop(TOPIC, 1000)) == sorted(away)
