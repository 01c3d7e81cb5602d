"""Pushing on a Cluster, through a failover, and with a rate over several processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import PutJob
from deferd.engine.engine import Engine
from deferd.store.connection import connect
from tests.integration.engine.engine_driver import TOPIC, started_engine
from tests.integration.push.pushing_engine import PushingEngine, pushing_engine, until_async
from tests.integration.store.store_servers import ClusterSet, SentinelSet, StoreServer, in_sync
from tests.push_receiver import Receiver
from tests.waiting import until


async def put_many(pushing: PushingEngine, number: int, topic: str = TOPIC, first: int = 0) -> None:
    jobs = [PutJob.model_validate({"topic": topic, "id": f"{topic}-{first + at}", "ttr": 2}) for at in range(number)]
    await pushing.engine.puts.put_many(jobs)


async def test_two_processes_together_keep_the_rate(
    pushing: PushingEngine, server: StoreServer, target: Receiver
) -> None:
    async with started_engine(server.url) as other, pushing_engine(other, target):
        await pushing.push(rate=40, max_in_flight=100)
        began_s = asyncio.get_running_loop().time()
        await put_many(pushing, 40)
        await pushing.until_received(40)
    times = [one.at_s for one in target.requests]
    for number, at_s in enumerate(times, start=1):  # from the start: the first may arrive late on a busy machine
        assert at_s - began_s >= (number - 4) / 40 - 0.05, number  # 4 come in the first burst of 0.1 s
    for first, later in zip(times, times[14:], strict=False):
        assert later - first >= 10 / 40 - 0.05


@pytest.mark.slow
async def test_topics_on_all_nodes_of_a_cluster_are_pushed(tmp_path: Path, target: Receiver) -> None:
    topics = [f"t{at}" for at in range(12)]
    with ClusterSet(tmp_path) as cluster:
        store = await connect(cluster.url, timeout_s=5)
        engine = Engine(store, shards=6)
        try:
            await engine.start()
            async with pushing_engine(engine, target) as pushing:
                for topic in topics:
                    await pushing.push(topic)
                    await put_many(pushing, 5, topic)
                await pushing.until_received(60)
                for topic in topics:
                    await pushing.until_gone(f"{topic}-4", topic)
                target.hang()
                await pushing.put("cancelled", "t3")
                await until(lambda: "cancelled" in target.ids, "it is under way")
                await engine.cancels.cancel("t3", "cancelled")
                await until(lambda: target.closed == 1, "the cancel closed the request")
                await engine.push.remove("t3")
                assert "t3" not in await engine.push.all()
        finally:
            await engine.close()
            await store.close()
    assert set(Counter(target.ids).values()) == {1}


@pytest.mark.slow
async def test_pushing_goes_on_after_a_failover(tmp_path: Path, target: Receiver) -> None:
    with SentinelSet(tmp_path) as servers:
        async with started_engine(servers.url, timeout_s=1) as engine, pushing_engine(engine, target) as pushing:
            await pushing.push()
            await put_many(pushing, 20)
            await pushing.until_received(20)
            await pushing.until_gone(f"{TOPIC}-19")
            await until(lambda: in_sync(servers.master, servers.replica), "the replica has all", within_s=10)
            servers.master.kill()
            await until_async(lambda: _is_put(pushing), "a job can be put after the failover", within_s=40)
            await until(lambda: "after" in target.ids, "it is pushed", within_s=40)


async def _is_put(pushing: PushingEngine) -> bool:
    try:
        await pushing.put("after", on_conflict="keep")
    except StoreUnavailable:
        await asyncio.sleep(0.05)
        return False
    return True
