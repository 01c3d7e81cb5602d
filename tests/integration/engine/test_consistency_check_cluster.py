"""The consistency check of topics that are spread over the nodes of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deferd.contract.model import PutJob
from deferd.contract.operations.audits import FindingKind
from deferd.engine.engine import Engine
from deferd.store.connection import Store, connect
from tests.integration.store.store_servers import ClusterSet

SHARDS = 5
TOPICS = [f"t{number}" for number in range(10)]


@pytest.fixture
async def clustered_store(tmp_path: Path) -> AsyncIterator[Store]:
    with ClusterSet(tmp_path) as cluster:
        store = await connect(cluster.url, timeout_s=5)
        yield store
        await store.close()


@pytest.mark.slow
async def test_each_shard_is_surveyed_and_repaired_on_its_node(clustered_store: Store) -> None:
    engine = Engine(clustered_store, shards=SHARDS)
    for topic in TOPICS:
        await engine.puts.put_many([PutJob(topic=topic, id=f"j{number}", delay=60) for number in range(2)])
        assert (await engine.consistency.audit_topic(topic)).clean
    assert (await engine.consistency.audit_store()).clean

    for shard in range(SHARDS):
        await clustered_store.call("DEL", f"deferd:{{{shard}}}:settings")
        await clustered_store.call("SET", f"deferd:{{{shard}}}:settings", "x")
    for topic in TOPICS:
        await clustered_store.call("ZREM", engine.consistency._keys.of_topic(topic)[1], "j0")
    survey = await engine.consistency.audit_store(repair=True)
    assert survey.findings.counts == {FindingKind.WRONG_TYPE: SHARDS}
    assert survey.unlisted == TOPICS
    for topic in TOPICS:
        repaired = await engine.consistency.audit_topic(topic, repair=True)
        assert repaired.findings.counts == {FindingKind.UNKNOWN_TOPIC: 1, FindingKind.IN_NO_PLACE: 1}
        assert (await engine.consistency.audit_topic(topic)).clean
    assert (await engine.consistency.audit_store()).clean
    await engine.close()
