"""What operators look at while a shard of the store cannot be reached: everything else, and that it is missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import PutJob
from deferd.engine.inspection.consumers import Sample, SeenConsumer
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.test_dead_shard import Deployment, cluster, deployed, running_cluster
from tests.integration.store.store_servers import ClusterSet

__all__ = ["cluster", "running_cluster"]
pytestmark = pytest.mark.slow


@pytest.fixture
async def deployment(cluster: ClusterSet) -> AsyncIterator[Deployment]:
    async with deployed(cluster) as deployment:
        yield deployment


async def fill(deployment: Deployment) -> None:
    """One job of each state that is looked at, in a topic of the node that fails and in one of another node."""
    queue = deployment.engine.queue
    for topic in (deployment.dead[0], deployment.healthy[0]):
        await deployment.engine.puts.put(PutJob(topic=topic, id="later", delay=600))
        for job_id in ("dead", "held"):
            await deployment.engine.puts.put(PutJob(topic=topic, id=job_id, ttr=600))
            await queue.pop(topic, [PopRequest(1, consumer="w")])
        await deployment.engine.deliveries.bury(topic, "dead", ANY_RECEIPT, error="x")


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_dead_shard_is_missing_and_named(deployment: Deployment, how: str) -> None:
    await fill(deployment)
    seen = SeenConsumer("w", "10.0.0.1", f"{deployment.dead[0]},{deployment.healthy[0]}", None, 1, 0)
    deployment.engine.consumer_registry.sample = lambda: Sample([seen])
    await deployment.engine.consumer_registry.look()
    engine, healthy = deployment.engine, deployment.healthy[0]
    deployment.fail(how)
    await deployment.until_known()
    async with asyncio.timeout(20):
        dead = await engine.dead_jobs.by_error(None, lambda _: True)
        assert [(one.topic, one.count) for one in dead.groups] == [(healthy, 1)]
        assert dead.unreadable == deployment.dead_shards
        for wanted in (None, [deployment.dead[0], healthy]):
            forecast = await engine.forecasts.forecast(wanted, lambda _: True)
            assert (list(forecast.topics), forecast.total().delayed) == ([healthy], 1)
            assert forecast.unreadable <= set(deployment.dead_shards)
            assert forecast.unreadable
        consumers = await engine.consumers.all(lambda _: True)
        assert [(one.name, one.held) for one in consumers.consumers] == [("w", 1)]
        assert not consumers.is_complete
        now = await engine.alerts.now(lambda _: True)
        unavailable, *_ = now.alerts
        assert (unavailable.code, unavailable.facts) == ("shard_unavailable", {"shards": deployment.dead_shards})
        assert {one.topic for one in now.alerts if one.code == "dying"} == {healthy}
        assert now.next_due_jobs == 1
        assert not now.is_complete
        activity = await engine.consumer_registry.activity_of(healthy)
        assert (activity is None) is (0 in deployment.dead_shards)


async def test_nothing_can_be_reached(deployment: Deployment) -> None:
    for node in deployment.cluster.masters:
        node.pause()
    engine = deployment.engine
    async with asyncio.timeout(30):
        for look in (
            engine.dead_jobs.by_error(None, lambda _: True),
            engine.forecasts.forecast(None, lambda _: True),
            engine.consumers.all(lambda _: True),
            engine.alerts.now(lambda _: True),
            engine.topics.why("t1", "a"),
        ):
            with pytest.raises(StoreUnavailable):
                await look
