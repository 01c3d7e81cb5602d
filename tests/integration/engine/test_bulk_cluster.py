"""Calls on many jobs, and the check of the tag index, where the shards are on several nodes of a Cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.model import JobState, PutJob
from deferd.engine.bulk_actions import BulkOutcome
from deferd.engine.engine import Engine
from deferd.engine.topics import JobFilter
from deferd.store.connection import connect
from tests.integration.engine.sweeping import purge_jobs
from tests.integration.store.store_servers import ClusterSet

TOPICS = [f"t{number}" for number in range(12)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSet]:
    with ClusterSet(Path(tmp_path_factory.mktemp("cluster"))) as cluster:
        yield cluster


@pytest.fixture
async def engine(cluster: ClusterSet) -> AsyncIterator[Engine]:
    for node in cluster.masters:
        node.command("FLUSHALL")
    store = await connect(cluster.url, timeout_s=5)
    engine = Engine(store, shards=6)
    yield engine
    await engine.close()
    await store.close()


@pytest.mark.slow
async def test_jobs_of_all_nodes_are_moved_and_cancelled(engine: Engine, cluster: ClusterSet) -> None:
    for topic in TOPICS:
        jobs = [PutJob(topic=topic, id=f"j{n}", delay=3600, tags=["x", f"t-{n}"]) for n in range(5)]
        assert {result.status for result in await engine.puts.put_many(jobs)} == {201}
    assert [len(node.command("KEYS", "deferd:*:tag/x")) > 0 for node in cluster.masters] == [True] * 3
    before = (await engine.queue.get("t3", "j4")).due_at_ms
    by_state = {"select": {"state": "delayed", "topics": ["t*"]}, "by": 60, "request_id": "r"}
    expected = BulkOutcome(60, 60, {JobState.DELAYED: 60}, True)
    for _ in range(2):
        assert await engine.bulk.reschedule(RescheduleSelected.model_validate(by_state)) == expected
    by_tag = {"select": {"tag": "x"}, "by": 60}
    assert await engine.bulk.reschedule(RescheduleSelected.model_validate(by_tag)) == expected
    assert (await engine.queue.get("t3", "j4")).due_at_ms - before == 120_000
    found, _, _ = await engine.topics.search("t3", JobFilter(tag="t-2"))
    assert [job.id for job in found] == ["j2"]
    assert await purge_jobs(engine, "t3", tag="t-2") == 1
    assert (await engine.consistency.audit_store()).clean
    cancelled = await engine.bulk.cancel(CancelSelected.model_validate({"select": {"tag": "x"}}))
    assert cancelled == BulkOutcome(59, 59, {JobState.DELAYED: 59}, True)
    assert [node.command("KEYS", "deferd:*:tag/*") for node in cluster.masters] == [[]] * 3
