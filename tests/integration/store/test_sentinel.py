"""Sentinel: the primary is found, and found again after a failover."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from deferd.store.connection import Store, connect
from deferd.store.preflight import check
from tests.faults.tcp_proxy import tcp_proxy
from tests.integration.store.store_servers import SentinelSet, StoreServer
from tests.private_network import cut, in_private_network

pytestmark = pytest.mark.slow

TIMEOUT_S = 1.0
SLACK_S = 1.8
FAILOVER_S = 30.0
LEAVE_S = 2.0
"""Within this time calls leave a primary that was deposed."""


@pytest.fixture
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SentinelSet]:
    sentinels = getattr(request, "param", 3)
    with SentinelSet(tmp_path, sentinels=sentinels, quorum=sentinels // 2 + 1) as servers:
        yield servers


@pytest.fixture
async def watched_store(servers: SentinelSet) -> AsyncIterator[Store]:
    store = await connect(servers.url, timeout_s=TIMEOUT_S)
    await check(store, shards=1)
    yield store
    await store.close()


async def incremented_after_failover(store: Store) -> int:
    """Try until a call works again; each attempt must fail in time."""
    end = time.monotonic() + FAILOVER_S
    while True:
        began = time.monotonic()
        try:
            return int(await store.client.incr("count"))
        except RedisError:
            assert time.monotonic() - began < TIMEOUT_S + SLACK_S
        assert time.monotonic() < end, "no failover"
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(("servers", "how"), [(3, "kill"), (1, "pause")], indirect=["servers"])
async def test_calls_work_again_after_the_primary_dies_or_hangs(
    servers: SentinelSet, watched_store: Store, how: str
) -> None:
    client = watched_store.client
    await asyncio.gather(*(client.incr("count") for _ in range(50)))
    assert await client.execute_command("WAIT", 1, 300) == 1

    getattr(servers.master, how)()

    assert await incremented_after_failover(watched_store) > 50
    replies = await asyncio.gather(*(client.incr("count") for _ in range(50)), return_exceptions=True)
    assert all(isinstance(reply, int) for reply in replies), "connections to the old primary were used again"
    assert int(servers.replica.command("GET", "count")) > 100


def query_counts(sentinel: StoreServer) -> Counter[str]:
    """How many commands came over each of its open connections, apart from the one that asks here."""
    clients = sentinel.command("CLIENT LIST")
    return Counter({client["id"]: int(client["tot-cmds"]) for client in clients if client["cmd"] != "client|list"})


async def test_one_sentinel_that_responds_is_enough_and_without_any_a_call_fails_in_time(
    servers: SentinelSet, watched_store: Store
) -> None:
    servers.sentinels[0].pause()
    servers.sentinels[1].kill()
    for _ in range(3):  # many connections are opened at the same time
        await watched_store.close()
        queries_before = query_counts(servers.sentinels[2])
        began = time.monotonic()

        replies = await asyncio.gather(*(watched_store.client.incr("count") for _ in range(30)), return_exceptions=True)

        assert [] == [reply for reply in replies if not isinstance(reply, int)]
        queries = query_counts(servers.sentinels[2]) - queries_before  # without connections that were closed meanwhile
        assert 0 < queries.total() < 10, "each call sent a query"
        assert time.monotonic() - began < TIMEOUT_S + SLACK_S

    for sentinel in servers.sentinels:
        sentinel.kill()
    await watched_store.close()
    began = time.monotonic()

    with pytest.raises(RedisError, match="no sentinel knows a primary"):
        await watched_store.client.get("count")

    assert time.monotonic() - began < TIMEOUT_S + SLACK_S


async def test_a_sentinel_that_responds_late_is_used_when_no_other_responds(servers: SentinelSet) -> None:
    late, hanging, dead = servers.sentinels
    hanging.pause()
    dead.kill()
    timeout_s = 2.0
    with tcp_proxy("127.0.0.1", late.port) as proxy:
        proxy.delay_responses(timeout_s / 3)  # the next sentinel is queried after a quarter of the time
        store = await connect(servers.url.replace(late.address, f"127.0.0.1:{proxy.port}"), timeout_s=timeout_s)

        assert await store.client.incr("count") == 1

        await store.close()


def connections_of_the_store(server: StoreServer) -> int:
    """How many connections of this process the server has, apart from the test's own."""
    addresses: list[str] = [client["addr"] for client in server.command("CLIENT LIST")]
    return sum(address.startswith("127.0.0.1:") for address in addresses) - 1


def named_primary(sentinel: StoreServer) -> tuple[str, int]:
    [state] = sentinel.command("SENTINEL MASTERS").values()
    return state["ip"], state["port"]


@pytest.mark.usefixtures("private_network")
def test_in_a_split_the_store_leaves_the_primary_that_most_sentinels_have_deposed(tmp_path: Path) -> None:
    in_private_network(lambda: asyncio.run(run_in_a_split(tmp_path)))


async def run_in_a_split(folder: Path) -> None:
    """The old primary and the first sentinel are cut off from the other servers. The store here reaches all of them."""
    async with asyncio.timeout(FAILOVER_S), AsyncExitStack() as opened:
        servers = opened.enter_context(SentinelSet(folder, sentinels=3, quorum=2, own_hosts=True))
        old, new, (first, *others) = servers.master, servers.replica, servers.sentinels
        store = await connect(servers.url, timeout_s=FAILOVER_S)
        opened.push_async_callback(store.close)
        await check(store, shards=1)
        assert await store.calls_of("count").call_replicated(1, "INCR", "count") == 1
        pubsub = await opened.enter_async_context(aclosing(store.pubsub()))
        await pubsub.subscribe("deferd:ready")
        assert connections_of_the_store(old) == 4, "not each kind of connection is open"
        old.command("CLIENT", "PAUSE", 60_000, "WRITE")
        in_progress = asyncio.ensure_future(store.call("INCR", "count"))

        cut([old.host, first.host], [server.host for server in (new, *others)])
        while {named_primary(one) for one in others} != {(new.host, new.port)}:
            await asyncio.sleep(0.01)
        deposed_s = time.monotonic()
        with pytest.raises(RedisConnectionError, match="broke"):
            await in_progress
        while connections_of_the_store(old):
            await asyncio.sleep(0.01)

        assert time.monotonic() - deposed_s < LEAVE_S
        assert named_primary(first) == (old.host, old.port), "the split has ended"
        assert await store.call("INCR", "count") == 2
        assert int(new.command("GET", "count")) == 2

        for sentinel in others:
            sentinel.kill()
        queries_before = query_counts(first).total()
        while query_counts(first).total() < queries_before + 2:
            await asyncio.sleep(0.01)
        assert await store.call("INCR", "count") == 3, "the only sentinel left led back to the old primary"
        assert connections_of_the_store(old) == 0
