"""The history of topics whose shards are on several nodes of a Cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from deferd.contract.model import PutJob
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.store.connection import connect
from tests.integration.engine.test_history import sums
from tests.integration.store.store_servers import ClusterSet

SHARDS = 6
TOPICS = [f"t{number}" for number in range(24)]


@pytest.mark.slow
async def test_all_shards_have_histories_which_are_summed_up(tmp_path: Path) -> None:
    with ClusterSet(tmp_path) as cluster:
        store = await connect(cluster.url, timeout_s=5)
        engine = Engine(store, shards=SHARDS, movable_clock=True)
        await engine.puts.put_many([PutJob(topic=topic, id="a") for topic in TOPICS])
        for topic in TOPICS[:10]:
            await engine.queue.pop(topic, [PopRequest(1)])
            await engine.queue.finish(topic, "a", ANY_RECEIPT)
        await engine.history_publisher.publish()
        for shard in range(SHARDS):
            await engine._scripts.command("INCRBY", f"deferd:{{{shard}}}:clock", 10_000)
        assert sums(await engine.histories.of_all(None, 60)) == {"put": 24, "popped": 10, "finished": 10}
        some = await engine.histories.of_all(TopicPatterns(["t1*"]), 60)
        assert sums(some) == {"put": 11, "popped": 1, "finished": 1}
        assert sums(await engine.histories.of_topic("t3", 60)) == {"put": 1, "popped": 1, "finished": 1}
        rates = await engine.finish_rates.read(["t3", "t20"], None, lambda _: True)
        assert 9 / 3600 < (rates.in_all or 0) < 11 / 3300
        assert rates.of_topic["t3"] > 0 == rates.of_topic["t20"]
        one = await engine.finish_rates.read([], ["t1*"], lambda topic: topic != "t1")
        assert one.in_all == 0
        await engine.close()
        await store.close()
