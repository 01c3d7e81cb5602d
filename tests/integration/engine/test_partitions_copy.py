"""Copies of stores in which topics have several partitions: into as many shards, more, fewer, and onto a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from deferd.contract.errors import JobExists
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.engine.engine import Engine
from deferd.engine.partitions import Layout
from deferd.engine.record import Receipt
from deferd.engine.redis_keys import Keys
from deferd.engine.store_copy import copy_store
from deferd.engine.topics import ids_with_tag
from deferd.store.connection import Store, connect
from deferd.store.preflight import check
from tests.integration.engine.test_partitions import IDS, pop_all
from tests.integration.store.store_servers import ClusterSet, StoreServer

COUNT = 4
PARTITIONS = ("t", "t#1", "t#2", "t#3")


@pytest.fixture(scope="module")
def running_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with StoreServer(tmp_path_factory.mktemp("target")) as server:
        yield server


@pytest.fixture
async def target(running_target: StoreServer) -> AsyncIterator[Store]:
    running_target.command("FLUSHALL")
    store = await connect(running_target.url, timeout_s=5)
    yield store
    await store.close()


@pytest.fixture
async def clustered_store(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Store]:
    with ClusterSet(tmp_path_factory.mktemp("cluster")) as cluster:
        store = await connect(cluster.url, timeout_s=5)
        yield store
        await store.close()


async def seed(store: Store, shards: int) -> dict[str, Receipt]:
    """A topic that got its partitions while it had jobs; returns the held ones."""
    await check(store, shards=shards)
    engine = Engine(store, shards=shards)
    await engine.puts.put_many([PutJob(topic="t", id=job_id, delay=3600, tags=["x"]) for job_id in IDS[:20]])
    await engine.topics.set("t", TopicSettings(partitions=COUNT, max_jobs=1000))
    await engine.puts.put_many([PutJob(topic="t", id=job_id, tags=["x"]) for job_id in IDS[20:]])
    held = await pop_all(engine)
    await engine.puts.put(PutJob(topic="other", id="a"))
    await engine.close()
    assert len(held) == 20
    return held


async def assert_right(store: Store, shards: int, held: dict[str, Receipt]) -> None:
    """Each partition is in its shard of this store, and all calls find all jobs."""
    keys = Keys(shards)
    sizes = [await store.call("HLEN", keys.named(partition, "pool")) for partition in PARTITIONS]
    assert (sum(sizes), min(sizes) > 0) == (40, True)
    engine = Engine(store, shards=shards)
    await engine.start()
    assert engine.partitions.known.layouts == {"t": Layout((COUNT, 1))}
    for partition in PARTITIONS:
        places = [
            shard for shard in range(shards) if await store.call("HEXISTS", keys.of_shard(shard, "settings"), partition)
        ]
        assert places == [keys.shard_of(partition)]
    report = await engine.consistency.audit_topic("t")
    assert report.clean
    assert (report.counts[JobState.DELAYED], report.counts[JobState.RESERVED]) == (20, 20)
    of_store = await engine.consistency.audit_store()
    assert (of_store.findings.counts, of_store.unlisted, of_store.stray_keys) == ({}, [], [])
    tagged = {
        job_id
        for partition in PARTITIONS
        async for ids in ids_with_tag(engine._scripts, keys, partition, "x", "", reverse=False)
        for job_id in ids
    }
    assert tagged == set(IDS)
    with pytest.raises(JobExists):
        await engine.puts.put(PutJob(topic="t", id=IDS[0]))
    for job_id, receipt in held.items():
        await engine.queue.finish("t", job_id, receipt)
    for job_id in IDS[:20]:
        assert await engine.cancels.cancel("t", job_id) is JobState.DELAYED
    for job_id in IDS:
        await engine.puts.put(PutJob(topic="t", id=job_id))
    assert sorted(await pop_all(engine)) == sorted(IDS)
    await engine.close()


@pytest.mark.parametrize(("from_shards", "to_shards"), [(8, 3), (1, 5), (8, 1)])
async def test_each_partition_goes_to_its_shard_of_the_target(
    store: Store, target: Store, from_shards: int, to_shards: int
) -> None:
    held = await seed(store, from_shards)

    report = await copy_store(store, target, shards=to_shards)

    assert report.adds_up
    assert (report.left_out, report.shards) == ([], to_shards)
    assert sum(report.target.totals().values()) == 41
    await assert_right(target, to_shards, held)


@pytest.mark.slow
async def test_partitions_go_to_the_nodes_of_a_cluster(store: Store, clustered_store: Store) -> None:
    held = await seed(store, 2)

    assert (await copy_store(store, clustered_store, shards=7)).adds_up

    await assert_right(clustered_store, 7, held)
