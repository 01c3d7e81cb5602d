"""The durability of the jobs that a finish puts: the highest level that one of them asks for, or its topic."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deferd.contract.errors import DurabilityUnavailable, JobExists
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.durable_puts import TOPIC, engine_on, job, put_when_in_step, stored_ids
from tests.integration.store.store_servers import Pair, StoreServer

OTHER = "mail"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("pair")).start()
    yield pair
    pair.stop()


@pytest.fixture
async def engine(pair: Pair) -> AsyncIterator[Engine]:
    pair.clear()
    async with engine_on(pair.primary.url) as engine:
        await put_when_in_step(engine, "warm-up", "replicated:1")
        yield engine


async def hold(engine: Engine) -> None:
    await engine.puts.put(job("a", delay=0, on_conflict="replace"))
    [[held]] = (await engine.queue.pop(TOPIC, [PopRequest(1)])).jobs
    assert held.id == "a"


async def chain(engine: Engine, *puts: PutJob) -> set[str | None]:
    results = await engine.queue.finish_and_put(TOPIC, "a", ANY_RECEIPT, puts)
    return {result.durability for result in results}


@pytest.mark.slow
async def test_the_highest_level_of_the_puts_counts_for_all(pair: Pair, engine: Engine) -> None:
    await hold(engine)
    assert await chain(engine, job("b"), job("c", "replicated:1", topic=OTHER)) == {"replicated:1"}
    assert "c" in stored_ids(pair.replica, OTHER)
    assert {"a", "b"} & stored_ids(pair.replica) == {"b"}


async def test_the_default_of_a_topic_counts(pair: Pair, engine: Engine) -> None:
    await engine.topics.set(OTHER, TopicSettings(durability="replicated:1"))
    for attempt in range(2):
        await hold(engine)
        assert await chain(engine, job(f"b{attempt}"), job(f"c{attempt}", topic=OTHER)) == {"replicated:1"}
        assert f"c{attempt}" in stored_ids(pair.replica, OTHER)
    await hold(engine)
    assert await chain(engine, job("m", "memory", topic=OTHER)) == {"memory"}


async def test_a_refused_put_at_a_level_of_replicas_changes_nothing(engine: Engine) -> None:
    await hold(engine)
    with pytest.raises(JobExists):
        await chain(engine, job("b", "replicated:1"), job("warm-up", "replicated:1"))
    assert (await engine.queue.get(TOPIC, "a")).state is JobState.RESERVED


async def test_a_store_that_fsyncs_gives_fsync(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "v", appendonly="yes", appendfsync="always") as server:
        async with engine_on(server.url, embedded=True) as engine:
            await hold(engine)
            assert await chain(engine, job("b", "fsync")) == {"fsync"}
            await hold(engine)
            assert await chain(engine, job("c")) == {"fsync"}
            await hold(engine)
            with pytest.raises(DurabilityUnavailable):
                await chain(engine, job("d", "replicated:1"))
            await engine.queue.finish(TOPIC, "a", ANY_RECEIPT)
