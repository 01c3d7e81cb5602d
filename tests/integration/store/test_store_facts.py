"""What /metrics says of the store itself, from real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deferd.store.connection import Store, connect
from deferd.store.durability_levels import level_named
from deferd.store.store_facts import UNKNOWN, StoreFacts, read_store_facts
from tests.integration.store.store_servers import ClusterSet, Pair, StoreServer
from tests.waiting import wait_until


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Store]:
    store = await connect(url, timeout_s=2)
    try:
        yield store
    finally:
        await store.close()


async def facts_of(url: str) -> StoreFacts:
    async with connected(url) as store:
        return await read_store_facts(store)


async def test_a_store_that_does_not_fsync_and_then_does(own_server: StoreServer) -> None:
    async with connected(own_server.url) as store:
        before = await read_store_facts(store)
        own_server.command("CONFIG", "SET", "appendonly", "yes")
        own_server.command("CONFIG", "SET", "appendfsync", "always")
        wait_until(
            lambda: own_server.command("INFO", "persistence")["aof_rewrite_in_progress"] == 0, 10, "the file is written"
        )
        after = await read_store_facts(store)
    assert before.server.startswith("valkey ")
    assert (before.fsyncs, before.replicas, after.fsyncs) == (False, 0, True)


@pytest.mark.slow
async def test_a_replica_counts_while_it_is_online(tmp_path: Path) -> None:
    with Pair(tmp_path) as pair:
        assert (await facts_of(pair.primary.url)).replicas == 1
        pair.replica.kill()
        wait_until(
            lambda: pair.primary.command("INFO", "replication")["connected_slaves"] == 0, 10, "the primary knows"
        )
        assert (await facts_of(pair.primary.url)).replicas == 0


@pytest.mark.slow
async def test_a_cluster_has_a_version_also_while_a_node_is_down(tmp_path: Path) -> None:
    with ClusterSet(tmp_path) as cluster:
        async with connected(cluster.url) as store:
            first = await read_store_facts(store)
            cluster.nodes[0].kill()
            later = [await read_store_facts(store) for _ in range(3)]
    assert first.server.startswith("valkey ")
    assert {facts.server for facts in later} <= {first.server, UNKNOWN}
    assert not first.supports(level_named("fsync"))


async def test_facts_that_may_not_be_read_are_unknown(own_server: StoreServer) -> None:
    own_server.command("ACL", "SETUSER", "shop", "on", ">word", "~*", "&*", "+@all", "-info")
    facts = await facts_of(own_server.url.replace("://", "://shop:word@"))
    assert facts == StoreFacts(UNKNOWN, False, 0)


@pytest.mark.parametrize(
    ("fsyncs", "replicas", "supported"),
    [
        (False, 0, ["memory"]),
        (True, 0, ["memory", "fsync"]),
        (False, 1, ["memory", "replicated:1"]),
        (True, 2, ["memory", "fsync", "replicated:1", "replicated:2"]),
    ],
)
def test_which_levels_are_supported(fsyncs: bool, replicas: int, supported: list[str]) -> None:
    facts = StoreFacts("valkey 9", fsyncs, replicas)
    levels = ["memory", "fsync", "replicated:1", "replicated:2", "replicated:3"]
    assert [level for level in levels if facts.supports(level_named(level))] == supported
