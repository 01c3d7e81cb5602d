"""A lost subscription to the store's messages is noticed within a bound, and waiting pops are served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import PutJob
from deferd.engine import metrics
from deferd.engine.engine import Engine
from deferd.engine.notifications import HEARTBEAT_S
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from tests.faults.tcp_proxy import tcp_proxy
from tests.integration.engine.engine_driver import TOPIC, started_engine
from tests.integration.store.store_servers import ClusterSet, StoreServer
from tests.waiting import BUSY_S, until

pytestmark = pytest.mark.slow

BOUND_S = 3 * HEARTBEAT_S
"""What docs/guarantees.md promises."""
SLACK_S = BUSY_S
LOST = "lost the store's messages"
BACK = "the store's messages arrive again"
SHARDS = 16


def engine_at(url: str, **options: int) -> AbstractAsyncContextManager[Engine]:
    """An engine whose timer ticks so rarely that only messages wake consumers in time."""
    return started_engine(url, timeout_s=1.5, tick_s=60, **options)


@pytest.fixture
async def producer(server: StoreServer) -> AsyncIterator[Engine]:
    """Another process, whose subscription stays intact."""
    async with engine_at(server.url) as engine:
        yield engine


async def served_within_bound(consumer: Engine, producer: Engine, topic: str = TOPIC) -> None:
    """Assert that a waiting pop is served in time when another process puts a job."""
    waiting = asyncio.create_task(consumer.dispatcher.pop([topic], wait_ms=30_000))
    queues = consumer.dispatcher._wait_queues
    await until(lambda: topic in queues and not queues[topic].newcomers and not queues[topic].polling, "the pop waits")
    await producer.puts.put(PutJob(topic=topic))
    async with asyncio.timeout(BOUND_S + SLACK_S):
        assert len(await waiting) == 1


async def ended_within_bound(waiting: Engine, producer: Engine) -> None:
    """Assert that a wait for a job ends in time when another process finishes the job."""
    await producer.puts.put(PutJob(topic=TOPIC, id="waited", retain=60))
    call = asyncio.create_task(waiting.waits.wait(TOPIC, "waited", 30_000))
    await until(lambda: metrics.JOB_WAITS._value.get() == 1, "the call waits")
    await producer.queue.pop(TOPIC, [PopRequest(1)])
    await producer.queue.finish(TOPIC, "waited", ANY_RECEIPT)
    async with asyncio.timeout(BOUND_S + SLACK_S):
        assert (await call).outcome == "finished"


async def woken_at_once(consumer: Engine, producer: Engine, topic: str = TOPIC) -> None:
    """Assert that a waiting pop is served without waiting for a heartbeat."""
    async with asyncio.timeout(HEARTBEAT_S):
        await served_within_bound(consumer, producer, topic)


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    await until(lambda: text in caplog.text, f"the log has: {text}", within_s=BOUND_S + SLACK_S)


async def test_a_connection_whose_packets_are_dropped_is_noticed(
    server: StoreServer, producer: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "deferd")
    with tcp_proxy("127.0.0.1", server.port) as proxy:
        async with engine_at(f"redis://127.0.0.1:{proxy.port}") as consumer:
            await woken_at_once(consumer, producer)
            proxy.silence(b"SUBSCRIBE")
            await ended_within_bound(consumer, producer)
            await served_within_bound(consumer, producer)
            await logged(caplog, LOST)
            await served_within_bound(consumer, producer)  # it cannot subscribe, so it polls
            proxy.silence(None)
            await logged(caplog, BACK)
            await woken_at_once(consumer, producer)


async def test_a_connection_that_the_store_closes_is_noticed(
    server: StoreServer, producer: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "deferd")
    async with engine_at(server.url) as consumer:
        server.command("CLIENT", "KILL", "TYPE", "pubsub")
        await served_within_bound(consumer, producer)
        await logged(caplog, BACK)
        await woken_at_once(consumer, producer)


async def test_a_user_who_may_no_longer_subscribe_is_noticed_and_pops_are_still_served(
    server: StoreServer, producer: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "deferd")
    server.command("ACL", "SETUSER", "narrow", "on", ">pw", "~*", "+@all", "resetchannels", "&deferd:*")
    try:
        async with engine_at(server.url.replace("redis://", "redis://narrow:pw@")) as consumer:
            await woken_at_once(consumer, producer)
            server.command("ACL", "SETUSER", "narrow", "resetchannels", "&deferd:due", "&deferd:heartbeat:*")
            await served_within_bound(consumer, producer)
            await logged(caplog, LOST)
            await served_within_bound(consumer, producer)
            server.command("ACL", "SETUSER", "narrow", "&deferd:*")
            await logged(caplog, BACK)
            await woken_at_once(consumer, producer)
    finally:
        server.command("ACL", "DELUSER", "narrow")


async def test_a_long_outage_of_the_store_is_logged_once(server: StoreServer, caplog: pytest.LogCaptureFixture) -> None:
    async with engine_at(server.url) as consumer:
        server.stop()
        try:
            await logged(caplog, LOST)
            await asyncio.sleep(3 * HEARTBEAT_S)  # time in which it must not log
            ours = [record for record in caplog.records if record.name == "deferd.engine.notifications"]
            assert len(ours) == 1
        finally:
            server.start()
        await asyncio.wait_for(consumer._notifications.listening(10), 10)


def has_subscriber(node: StoreServer) -> bool:
    """Whether a service is subscribed at this node."""
    return b"deferd:ready" in node.command("PUBSUB", "CHANNELS")


async def finds_its_shards(engine: Engine) -> None:
    """A call to a node that has left fails, and makes the client look up the nodes again."""
    for number in range(SHARDS):
        while True:
            try:
                await engine.queue.pop(f"topic{number}", [PopRequest(0)])
                break
            except StoreUnavailable:
                await asyncio.sleep(0.01)


async def test_a_node_that_leaves_the_cluster_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "deferd")
    with ClusterSet(tmp_path, masters=4) as cluster:
        async with engine_at(cluster.url, shards=SHARDS) as consumer:
            node = next(filter(has_subscriber, cluster.masters))
            async with engine_at(cluster.url, shards=SHARDS) as producer:
                await served_within_bound(consumer, producer)
                await asyncio.to_thread(cluster.remove, node)
                await asyncio.gather(*(finds_its_shards(engine) for engine in (consumer, producer)))
                for number in range(SHARDS):  # on every shard, whose node may have changed
                    await served_within_bound(consumer, producer, f"topic{number}")
                await logged(caplog, BACK)
                await until(lambda: not has_subscriber(node), "the node has no subscriber", within_s=BOUND_S + SLACK_S)
                await until(lambda: caplog.text.count(LOST) == caplog.text.count(BACK), "all are subscribed again")
                for number in range(SHARDS):
                    await woken_at_once(consumer, producer, f"topic{number}")
