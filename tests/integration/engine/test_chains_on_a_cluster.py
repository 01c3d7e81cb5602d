"""Finishes that put other jobs on a cluster: into topics of the same shard only."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deferd.contract.errors import DifferentShard
from deferd.contract.model import JobState, PutJob
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.redis_keys import Keys
from deferd.store.connection import connect
from tests.integration.store.store_servers import ClusterSet

SHARDS = 5
KEYS = Keys(SHARDS)
TOPICS = [f"t{number}" for number in range(40)]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    with ClusterSet(tmp_path) as cluster:
        store = await connect(cluster.url, timeout_s=5)
        engine = Engine(store, shards=SHARDS)
        yield engine
        await engine.close()
        await store.close()


@pytest.mark.slow
async def test_a_finish_puts_into_topics_of_its_shard_on_each_node(engine: Engine) -> None:
    for shard in range(SHARDS):
        first, second, third = [topic for topic in TOPICS if KEYS.shard_of(topic) == shard][:3]
        far = next(topic for topic in TOPICS if KEYS.shard_of(topic) != shard)
        await engine.puts.put(PutJob(topic=first, id="a"))
        [[held]] = (await engine.queue.pop(first, [PopRequest(1)])).jobs
        near = [PutJob(topic=topic, id="next", delay=60) for topic in (second, first, third)]
        with pytest.raises(DifferentShard, match=f"topic '{far}' is in another shard"):
            await engine.queue.finish_and_put(first, "a", held.receipt, [*near, PutJob(topic=far)])
        assert (await engine.queue.get(first, "a")).state is JobState.RESERVED
        results = await engine.queue.finish_and_put(first, "a", ANY_RECEIPT, near)
        assert [(result.topic, result.status) for result in results] == [(second, 201), (first, 201), (third, 201)]
        for topic in (first, second, third):
            assert (await engine.queue.get(topic, "next")).state is JobState.DELAYED
            assert (await engine.consistency.audit_topic(topic)).clean
