"""A topic with several partitions on a cluster of which a node is dead: its other partitions go on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import CancelItem, FinishItem, PutJob, TopicSettings
from deferd.engine.engine import Engine
from tests.integration.engine.engine_driver import started_engine
from tests.integration.store.store_servers import ClusterSet, StoreServer

pytestmark = pytest.mark.slow

SHARDS, PARTITIONS = 12, 6
STORE_TIMEOUT_S = 1.0
LONGEST_S = 4 * STORE_TIMEOUT_S
Result = TypeVar("Result")
IDS = [f"job-{number}" for number in range(60)]


@pytest.fixture
def cluster_set(tmp_path: Path) -> Iterator[ClusterSet]:
    with ClusterSet(tmp_path) as cluster:
        yield cluster


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_dead_shard_stops_only_its_own_partitions(cluster_set: ClusterSet, how: str) -> None:
    async with started_engine(cluster_set.url, timeout_s=STORE_TIMEOUT_S, shards=SHARDS) as engine:
        await engine.topics.set("t", TopicSettings(partitions=PARTITIONS))
        await engine.partitions._forget_former("t", engine.partitions.known.layouts["t"])
        await engine.puts.put_many([PutJob(topic="t", id=job_id) for job_id in IDS])
        failing, on_it = node_without_the_first(engine, cluster_set)
        lost = [job_id for job_id in IDS if engine.partitions.known.home("t", job_id) in on_it]
        served = [job_id for job_id in IDS if job_id not in lost]
        assert lost
        getattr(failing, how)()
        popped: dict[str, str] = {}
        for _ in IDS:
            jobs = await within(engine.dispatcher.pop(["t"], count=10))
            popped |= {job.id: str(job.receipt) for job in jobs}
            if len(popped) == len(served):
                break
        assert sorted(popped) == sorted(served)
        finishes = [FinishItem(id=job_id, receipt=popped.get(job_id)) for job_id in IDS]
        finished = await within(engine.queue.finish_many("t", finishes))
        assert [one.status for one in finished] == [503 if one in lost else 200 for one in IDS]
        put = await within(engine.puts.put_many([PutJob(topic="t", id=job_id, delay=3600) for job_id in IDS]))
        assert [one.status for one in put] == [503 if one in lost else 201 for one in IDS]
        cancelled = await within(engine.cancels.cancel_many("t", [CancelItem(id=job_id) for job_id in IDS]))
        assert [one.status for one in cancelled] == [503 if one in lost else 200 for one in IDS]
        with pytest.raises(StoreUnavailable):
            await within(engine.puts.put(PutJob(topic="t", id=lost[0])))
        waiting = asyncio.create_task(engine.dispatcher.pop(["t"], wait_ms=20_000))
        await asyncio.sleep(0.1)
        await engine.puts.put(PutJob(topic="t", id=served[0]))
        assert [job.id for job in await within(waiting)] == [served[0]]
        (failing.start if how == "kill" else failing.unpause)()


def node_without_the_first(engine: Engine, cluster: ClusterSet) -> tuple[StoreServer, set[str]]:
    """A node that has some partitions of the topic, but not the first, and those."""
    keys = engine.queue._keys
    holders = {name: cluster.holder_of(keys.named(name, "pool")) for name in keys.partitions.of("t")}
    failing = next(node for node in holders.values() if node is not holders["t"])
    return failing, {name for name, node in holders.items() if node is failing}


async def within(call: Awaitable[Result]) -> Result:
    began = time.monotonic()
    result = await call
    assert time.monotonic() - began < LONGEST_S
    return result
