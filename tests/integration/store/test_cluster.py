"""Cluster: calls go to the node that has their key, and the failure of a node does not affect the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import RedisError

from deferd.store.connection import Store, connect
from deferd.store.pipeline import NOT_AFTER
from deferd.store.preflight import StoreRefused, check
from tests.integration.store.store_servers import ClusterSet, StoreServer
from tests.waiting import wait_until

TIMEOUT_S = 1.5
SLACK_S = 2.5
RECOVERY_S = 30.0
KEYS = [f"{{{number}}}:count" for number in range(30)]
COUNT = "return redis.call('INCR', KEYS[1])"


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSet]:
    with ClusterSet(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: ClusterSet) -> Iterator[ClusterSet]:
    """A healthy, empty cluster."""
    for node in running_cluster.masters:
        node.command("FLUSHALL")
    yield running_cluster
    for node in running_cluster.masters:
        if node.running:
            node.unpause()
        else:
            node.start()
    wait_until(lambda: all(map(is_healthy, running_cluster.masters)), RECOVERY_S, "the cluster is healthy again")


@pytest.fixture
async def clustered_store(cluster: ClusterSet) -> AsyncIterator[Store]:
    store = await connect(cluster.url, timeout_s=TIMEOUT_S)
    await check(store, shards=16)
    yield store
    await store.close()


def is_healthy(node: StoreServer) -> bool:
    info = node.command("CLUSTER INFO")
    return info["cluster_state"] == "ok" and int(info["cluster_slots_ok"]) == 16384


async def all_counted(store: Store, keys: list[str]) -> int:
    """Call for each key until all succeed; returns how many rounds that took."""
    end = time.monotonic() + RECOVERY_S
    rounds = 1
    while any(isinstance(reply, BaseException) for reply in await counted(store, keys)):
        assert time.monotonic() < end, "calls did not succeed again"
        await asyncio.sleep(0.05)
        rounds += 1
    return rounds


async def counted(store: Store, keys: list[str]) -> list[int | BaseException]:
    """One call for each key at the same time; each must return or fail in time."""
    began = time.monotonic()
    replies = await asyncio.gather(*(store.call("EVAL", COUNT, 1, key) for key in keys), return_exceptions=True)
    assert time.monotonic() - began < TIMEOUT_S + SLACK_S
    return replies


def held(cluster: ClusterSet, node: StoreServer) -> tuple[list[str], list[str]]:
    """The keys on the node, and the others."""
    own = [key for key in KEYS if cluster.holder_of(key) is node]
    assert own
    return own, [key for key in KEYS if key not in own]


@pytest.mark.slow
async def test_a_script_runs_on_the_node_that_holds_its_key(cluster: ClusterSet, clustered_store: Store) -> None:
    assert clustered_store.cluster
    assert clustered_store.server.startswith("valkey ")
    assert await counted(clustered_store, KEYS) == [1] * len(KEYS)

    for key in KEYS:
        assert cluster.holder_of(key).command("GET", key) == b"1"


@pytest.mark.slow
async def test_cluster_nodes_are_refused_as_single_servers(cluster: ClusterSet) -> None:
    store = await connect(cluster.masters[0].url, timeout_s=TIMEOUT_S)

    with pytest.raises(StoreRefused, match=r"use redis\+cluster://"):
        await check(store, shards=16)
    await store.close()


@pytest.mark.slow
async def test_a_call_is_redirected_to_a_node_that_joined_later(tmp_path: Path) -> None:
    with ClusterSet(tmp_path / "cluster") as cluster:
        store = await connect(cluster.url, timeout_s=TIMEOUT_S)
        await counted(store, KEYS)
        slot, source = key_slot(KEYS[0].encode()), cluster.holder_of(KEYS[0])
        joined = cluster.add_master(tmp_path / "joined")
        source.command("FLUSHALL")
        cluster.start_moving([slot], source, joined)

        assert await counted(store, [KEYS[0]]) == [1]

        assert joined.command("CLUSTER COUNTKEYSINSLOT", slot) == 1
        for node in store.calls_of(KEYS[0])._cluster._nodes.values():  # type: ignore[union-attr]
            if node.pipeline.is_open:
                node.pipeline._open._clock.read_again_at_s = 0  # type: ignore[union-attr]
        assert await store.call("EVAL", COUNT, 1, KEYS[0], NOT_AFTER) == 2
        refused = joined.command("INFO", "errorstats")
        assert "errorstat_MOVED" not in refused, "something came between ASKING and the call"
        await store.close()


async def test_a_subscription_receives_what_is_published(clustered_store: Store) -> None:
    subscription = clustered_store.pubsub()
    await subscription.subscribe("news")
    await clustered_store.client.execute_command("PUBLISH", "news", "first")

    message: Any = await subscription.get_message(timeout=2)
    while message is not None and message["type"] != "message":
        message = await subscription.get_message(timeout=2)

    assert message["data"] == b"first"
    await subscription.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_failed_node_affects_only_its_own_keys(cluster: ClusterSet, clustered_store: Store, how: str) -> None:
    await counted(clustered_store, KEYS)
    own, others = held(cluster, cluster.masters[1])
    assert own
    assert others
    getattr(cluster.masters[1], how)()

    for iteration in range(2, 5):
        failed, worked = await asyncio.gather(counted(clustered_store, own), counted(clustered_store, others))
        assert all(isinstance(reply, RedisError) for reply in failed)
        assert worked == [iteration] * len(others)

    sent_before = 4
    if how == "pause":
        cluster.masters[1].unpause()
    else:
        cluster.masters[1].start()
        sent_before = 0  # it lost its data
    sent = sent_before + await all_counted(clustered_store, own)
    for key in own:  # no call was sent more than once
        assert int(cluster.masters[1].command("GET", key)) <= sent


@pytest.mark.slow
async def test_a_restarted_node_is_used_again_without_an_error(cluster: ClusterSet, clustered_store: Store) -> None:
    await counted(clustered_store, KEYS)
    node = cluster.masters[0]
    own, others = held(cluster, node)
    await asyncio.to_thread(node.restart)
    await asyncio.to_thread(wait_until, lambda: is_healthy(node), RECOVERY_S, "the node is back")

    assert await counted(clustered_store, own) == [1] * len(own)
    assert await counted(clustered_store, others) == [2] * len(others)


@pytest.mark.slow
async def test_calls_to_a_dead_cluster_fail_in_time_and_succeed_after_its_restart(
    cluster: ClusterSet, clustered_store: Store
) -> None:
    for node in cluster.nodes:
        node.kill()
    for _ in range(2):
        assert all(isinstance(reply, RedisError) for reply in await counted(clustered_store, KEYS))
    for node in cluster.nodes:
        node.start()

    await all_counted(clustered_store, KEYS)


@pytest.mark.slow
async def test_calls_work_again_after_a_failover(tmp_path: Path) -> None:
    with ClusterSet(tmp_path, replicas=1, node_timeout_ms=500) as cluster:
        store = await connect(cluster.url, timeout_s=TIMEOUT_S)
        await counted(store, KEYS)
        own, _ = held(cluster, cluster.masters[2])
        cluster.masters[2].kill()

        await all_counted(store, own)

        assert not any(isinstance(reply, BaseException) for reply in await counted(store, KEYS))
        await store.close()
