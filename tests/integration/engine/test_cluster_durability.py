"""The durability of puts on a cluster: that of the primary which has the topic, also when the topic moves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from redis.crc import key_slot

from deferd.contract.errors import DurabilityUnavailable, StoreUnavailable
from deferd.contract.model import TopicSettings
from deferd.engine.engine import Engine
from deferd.engine.redis_keys import Keys
from deferd.store.cluster import ClusterClient
from deferd.store.connection import Store, connect
from deferd.store.durability_levels import MEMORY
from deferd.store.pipeline import NotAfter
from tests.integration.engine.durable_puts import CONFIRM_S, STORE_TIMEOUT_S, engine_on, job, put, put_when_in_step
from tests.integration.store.store_servers import ClusterSet, StoreServer, in_sync
from tests.waiting import BUSY_S, wait_until

pytestmark = pytest.mark.slow

SHARDS = 12
KEYS = Keys(SHARDS)
SETTLE_S = 30.0
COUNT = "return redis.call('INCR', KEYS[1])"


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSet]:
    with ClusterSet(tmp_path_factory.mktemp("cluster"), replicas=1, node_timeout_ms=10_000) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: ClusterSet) -> Iterator[ClusterSet]:
    """Three primaries, each with a replica in sync; empty. No test lasts long enough for a failover."""
    for node in running_cluster.masters:
        node.command("FLUSHALL")
    yield running_cluster
    for node in running_cluster.nodes:
        node.unpause()
    pairs = zip(running_cluster.masters, running_cluster.replicas, strict=True)
    wait_until(lambda: all(in_sync(*pair) for pair in pairs), SETTLE_S, "the replicas are in sync")


@pytest.fixture
async def producer(cluster: ClusterSet) -> AsyncIterator[Engine]:
    async with engine_on(cluster.url, shards=SHARDS) as engine:
        yield engine


def topics_of(cluster: ClusterSet, master: int, count: int = 1) -> list[str]:
    names = (f"t{number}" for number in range(1000))
    held = (name for name in names if cluster.holder_of(pool_of(name)) is cluster.masters[master])
    return [next(held) for _ in range(count)]


def pool_of(topic: str) -> str:
    return KEYS.of_topic(topic)[0]


def ids_on(replica: StoreServer, topic: str) -> set[str]:
    """The ids of a topic's jobs on a replica."""
    with replica.client(single_connection_client=True) as client:
        client.execute_command("READONLY")
        return {key.decode() for key in client.hkeys(pool_of(topic))}


async def test_a_put_returns_when_the_replica_of_its_topics_primary_has_it(
    cluster: ClusterSet, producer: Engine
) -> None:
    for master, replica in enumerate(cluster.replicas):
        [topic] = topics_of(cluster, master)
        for number in range(10):
            assert await put(producer, f"j{number}", "replicated:1", topic=topic) == "replicated:1"
            assert f"j{number}" in ids_on(replica, topic)


class TestReplicated:
    async def test_puts_into_one_primary_are_confirmed_together(self, cluster: ClusterSet, producer: Engine) -> None:
        topics = topics_of(cluster, 1, 20)
        await put(producer, "first", "replicated:1", topic=topics[0])
        before = cluster.masters[1].command("INFO", "commandstats")["cmdstat_wait"]["calls"]

        reached = await asyncio.gather(
            *(put(producer, f"j{n}", "replicated:1", topic=topics[n % 20]) for n in range(400))
        )

        assert {"replicated:1"} == set(reached)
        assert cluster.masters[1].command("INFO", "commandstats")["cmdstat_wait"]["calls"] - before < 100
        assert sum(len(ids_on(cluster.replicas[1], topic)) for topic in topics) == 401

    async def test_a_primary_whose_replica_hangs_confirms_nothing_and_the_others_do(
        self, cluster: ClusterSet, producer: Engine
    ) -> None:
        [stuck], [free] = topics_of(cluster, 0), topics_of(cluster, 2)
        await put(producer, "before", "replicated:1", topic=stuck)
        cluster.replicas[0].pause()
        with pytest.raises(StoreUnavailable, match=r"may exist.*replicated:1.*same id is safe"):
            await put(producer, "doubtful", "replicated:1", topic=stuck)
        with pytest.raises(StoreUnavailable, match=r"0 of 1 replicas are in sync; nothing was stored"):
            await put(producer, "refused", "replicated:1", topic=stuck)
        assert await put(producer, "a", "replicated:1", topic=free) == "replicated:1"
        assert await put(producer, "b", topic=stuck) == "memory"
        cluster.replicas[0].unpause()
        assert await put_when_in_step(producer, "doubtful", "replicated:1", topic=stuck) == "replicated:1"
        assert {"before", "doubtful", "b"} == ids_on(cluster.replicas[0], stuck)

    async def test_a_repeated_put_that_changes_nothing_is_confirmed_no_sooner(
        self, cluster: ClusterSet, producer: Engine
    ) -> None:
        [topic] = topics_of(cluster, 0)
        await put(producer, "before", "replicated:1", topic=topic)
        cluster.replicas[0].pause()
        assert await put(producer, "a", topic=topic) == "memory"
        with pytest.raises(StoreUnavailable, match="may exist"):
            await put(producer, "a", "replicated:1", topic=topic, on_conflict="keep")
        cluster.replicas[0].unpause()
        assert await put_when_in_step(producer, "a", "replicated:1", topic=topic) == "replicated:1"
        assert ids_on(cluster.replicas[0], topic) == {"before", "a"}
        assert not [key for key in cluster.masters[0].command("KEYS", "*") if b"confirm" in key]

    async def test_a_put_at_its_topics_default_and_one_that_needs_more_replicas(
        self, cluster: ClusterSet, producer: Engine
    ) -> None:
        [topic] = topics_of(cluster, 1)
        await producer.topics.set(topic, TopicSettings(durability="replicated:1"))
        assert await put(producer, "a", topic=topic) == "replicated:1"
        assert ids_on(cluster.replicas[1], topic) == {"a"}
        with pytest.raises(StoreUnavailable, match=r"1 of 2 replicas are in sync; nothing was stored"):
            await put(producer, "b", "replicated:2", topic=topic)

    async def test_a_primary_that_forgot_the_script_is_sent_it_again(
        self, cluster: ClusterSet, producer: Engine
    ) -> None:
        [topic] = topics_of(cluster, 0)
        await put(producer, "a", "replicated:1", topic=topic)
        cluster.masters[0].command("FUNCTION", "FLUSH")
        assert await put(producer, "b", "replicated:1", topic=topic) == "replicated:1"
        assert ids_on(cluster.replicas[0], topic) == {"a", "b"}

    async def test_a_batch_goes_to_all_primaries(self, cluster: ClusterSet, producer: Engine) -> None:
        topics = [topics_of(cluster, master)[0] for master in range(3)]
        results = await producer.puts.put_many([job(topic, "replicated:1", topic=topic) for topic in topics])
        assert [(line.status, line.durability) for line in results] == [(201, "replicated:1")] * 3
        assert [ids_on(replica, topic) for replica, topic in zip(cluster.replicas, topics, strict=True)] == [
            {topic} for topic in topics
        ]


class TestFsync:
    async def test_what_counts_is_the_primary_that_has_the_topic(self, cluster: ClusterSet, producer: Engine) -> None:
        [synced], [other] = topics_of(cluster, 0), topics_of(cluster, 1)
        assert await put(producer, "a", topic=synced) == "memory"
        node = cluster.masters[0]
        node.command("CONFIG", "SET", "appendonly", "yes", "appendfsync", "always")
        try:
            assert await put_when_in_step(producer, "b", "fsync", topic=synced) == "fsync"
            assert await put(producer, "c", topic=synced) == "fsync"
            with pytest.raises(DurabilityUnavailable) as refused:
                await put(producer, "a", "fsync", topic=other)
            assert f"node {cluster.masters[1].address} of the store does not fsync" in str(refused.value)
            assert refused.value.available == ["memory", "replicated:N"]
            assert await put(producer, "a", topic=other) == "memory"
            system = await producer.system.read()
            assert (system.durability, system.replicas) == ("memory", 1)
            node.command("CONFIG", "SET", "appendfsync", "everysec")
            async with asyncio.timeout(1 + BUSY_S):  # a result is valid for a second
                while await put(producer, "c", topic=synced, on_conflict="keep") == "fsync":
                    await asyncio.sleep(0.01)
        finally:
            node.command("CONFIG", "SET", "appendonly", "no", "appendfsync", "everysec")


class TestMovedTopics:
    """A slot that moves to another primary, or is about to."""

    @pytest.fixture
    async def store(self, cluster: ClusterSet) -> AsyncIterator[Store]:
        store = await connect(cluster.url, timeout_s=STORE_TIMEOUT_S, confirm_s=CONFIRM_S)
        yield store
        await store.close()

    @pytest.fixture
    def key(self, cluster: ClusterSet) -> str:
        """A key of the first primary."""
        return next(key for key in map(str, range(100)) if cluster.holder_of(key) is cluster.masters[0])

    async def test_a_call_for_a_key_that_is_being_moved_is_confirmed_by_the_replica_of_its_new_primary(
        self, cluster: ClusterSet, store: Store, key: str
    ) -> None:
        assert await store.calls_of(key).call_replicated(1, "EVAL", COUNT, 1, key) == 1
        source, target = cluster.masters[:2]
        source.command("FLUSHALL")
        cluster.start_moving([key_slot(key.encode())], source, target)
        try:
            calls = (store.calls_of(key).call_replicated(1, "EVAL", COUNT, 1, key) for _ in range(20))
            assert sorted(await asyncio.gather(*calls)) == list(range(1, 21))
            assert await store.call("EVAL", COUNT, 1, key) == 21
            assert (source.command("DBSIZE"), target.command("DBSIZE")) == (0, 1)
            assert cluster.replicas[1].command("DBSIZE") == 1
        finally:
            target.command("FLUSHALL")
            for node in (source, target):
                node.command("CLUSTER SETSLOT", key_slot(key.encode()), "STABLE")

    async def test_a_call_of_a_script_carries_the_end_of_its_callers_wait_wherever_it_is_sent(
        self, cluster: ClusterSet, store: Store, key: str
    ) -> None:
        loop = asyncio.get_running_loop()
        echo = "redis.call('SET', KEYS[1], 1) return ARGV[1]"
        source, target = cluster.masters[:2]
        cluster.start_moving([key_slot(key.encode())], source, target)
        try:
            calls = store.calls_of(key)

            async def instants_ms(not_after: NotAfter) -> list[int]:
                args = ("EVAL", echo, 1, key, not_after)
                replies = await asyncio.gather(
                    calls.call(*args), calls.call_probed(*args), calls.call_replicated(1, *args)
                )
                return list(map(int, replies))

            began_ms, until_s = time.time() * 1000, loop.time() + 0.01
            assert max(await instants_ms(NotAfter(until_s))) <= began_ms + 11
            began_ms = time.time() * 1000
            instants = await instants_ms(NotAfter())
            assert began_ms < min(instants)
            assert max(instants) <= time.time() * 1000 + STORE_TIMEOUT_S * 1000
        finally:
            for node in (source, target):
                node.command("FLUSHALL")
                node.command("CLUSTER SETSLOT", key_slot(key.encode()), "STABLE")

    async def test_a_call_for_a_key_that_has_moved_is_confirmed_by_the_replica_of_its_new_primary(
        self, cluster: ClusterSet, store: Store, key: str
    ) -> None:
        assert await store.calls_of(key).call_replicated(1, "EVAL", COUNT, 1, key) == 1
        source, target = cluster.masters[:2]
        source.command("FLUSHALL")
        move(cluster, key, source, target)
        try:
            calls = store.calls_of(key)
            assert await calls.call_replicated(1, "EVAL", COUNT, 1, key) == 1
            assert cluster.replicas[1].command("DBSIZE") == 1
            assert await calls.probe() == MEMORY
            assert f"node {target.address} of the store" in calls.durability.why_not
        finally:
            target.command("FLUSHALL")
            move(cluster, key, target, source)

    async def test_a_call_is_redirected_also_when_no_node_is_known_to_serve_its_slot(
        self, cluster: ClusterSet, store: Store, key: str
    ) -> None:
        source, target = cluster.masters[:2]
        assert await store.call("EXISTS", key) == 0
        assert isinstance(store.client, ClusterClient)
        move(cluster, key, source, target)
        try:
            call = asyncio.ensure_future(store.call("EXISTS", key))
            await asyncio.sleep(0)
            del store.client.nodes_manager.slots_cache[key_slot(key.encode())]  # as a refresh may, meanwhile
            assert await call == 0
        finally:
            move(cluster, key, target, source)

    async def test_a_put_at_fsync_counts_what_the_primary_that_ran_it_gives(
        self, cluster: ClusterSet, producer: Engine
    ) -> None:
        async with topic_that_left_a_node_with_fsync(cluster, producer) as topic:
            with pytest.raises(
                StoreUnavailable, match=r"may exist.*not confirmed at durability fsync.*same id is safe"
            ):
                await put(producer, "b", "fsync", topic=topic)
            with pytest.raises(DurabilityUnavailable, match=cluster.masters[1].address):
                await put(producer, "b", "fsync", topic=topic)
            assert await put(producer, "b", topic=topic, on_conflict="keep") == "memory"

    async def test_a_cancel_at_fsync_counts_what_the_primary_that_ran_it_gives(
        self, cluster: ClusterSet, producer: Engine
    ) -> None:
        async with topic_that_left_a_node_with_fsync(cluster, producer) as topic:
            with pytest.raises(
                StoreUnavailable, match=r"may be cancelled.*not confirmed at durability fsync.*the cancel is safe"
            ):
                await producer.cancels.cancel_durably(topic, "a", "fsync")

    async def test_a_node_that_lost_a_topic_is_not_trusted_with_a_rewrite(
        self, cluster: ClusterSet, producer: Engine
    ) -> None:
        topics = (f"t{number}" for number in range(1000))
        source, target = cluster.masters[:2]
        moved = next(topic for topic in topics if cluster.holder_of(pool_of(topic)) is source)
        other = next(
            topic
            for topic in topics
            if cluster.holder_of(pool_of(topic)) is source and KEYS.shard_of(topic) != KEYS.shard_of(moved)
        )
        source.command("CONFIG", "SET", "appendonly", "yes", "appendfsync", "always")
        await put_when_in_step(producer, "a", "fsync", topic=other)
        source.command("CONFIG", "SET", "rdb-key-save-delay", 10_000_000)
        source.command("BGREWRITEAOF")
        has_moved = False
        try:
            assert await put(producer, "b", "fsync", topic=other) == "fsync"
            move(cluster, pool_of(moved), source, target)
            has_moved = True
            assert await put(producer, "a", topic=moved) == "memory"
            with pytest.raises(StoreUnavailable, match="may exist"):  # noticed with the reply to this put
                await put(producer, "c", "fsync", topic=other)
            with pytest.raises(StoreUnavailable, match="is rewriting its append-only file"):
                await put(producer, "d", "fsync", topic=other)
        finally:
            source.command("CONFIG", "SET", "rdb-key-save-delay", 0, "appendonly", "no", "appendfsync", "everysec")
            if has_moved:
                target.command("FLUSHALL")
                move(cluster, pool_of(moved), target, source)


@asynccontextmanager
async def topic_that_left_a_node_with_fsync(cluster: ClusterSet, producer: Engine) -> AsyncIterator[str]:
    """An empty topic whose slot has moved to a node without fsync, and `producer` does not know that yet."""
    [topic] = topics_of(cluster, 0)
    source, target = cluster.masters[:2]
    source.command("CONFIG", "SET", "appendonly", "yes", "appendfsync", "always")
    has_moved = False
    try:
        await put_when_in_step(producer, "a", "fsync", topic=topic)
        source.command("FLUSHALL")
        move(cluster, pool_of(topic), source, target)
        has_moved = True
        yield topic
    finally:
        if has_moved:
            target.command("FLUSHALL")
            move(cluster, pool_of(topic), target, source)
        source.command("CONFIG", "SET", "appendonly", "no", "appendfsync", "everysec")


def move(cluster: ClusterSet, key: str, source: StoreServer, target: StoreServer) -> None:
    """Give the slot of a key, which is empty, to another primary."""
    slot, target_id = key_slot(key.encode()), target.command("CLUSTER MYID")
    cluster.start_moving([slot], source, target)
    for node in (target, source):
        node.command("CLUSTER SETSLOT", slot, "NODE", target_id)
