"""Sentinel: the primary is found, and found again after a failover."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from deferd.store.connection import Store, connect
from deferd.store.preflight import check
from tests.faults.tcp_proxy import tcp_proxy
from tests.integration.store.store_servers import SentinelSet, StoreServer

pytestmark = pytest.mark.slow

TIMEOUT_S = 1.0
SLACK_S = 1.8
FAILOVER_S = 30.0


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


def query_count(sentinel: StoreServer) -> int:
    """How often it was queried for primaries."""
    stats = sentinel.command("INFO", "commandstats")
    return int(stats.get("cmdstat_sentinel|masters", {"calls": 0})["calls"])


async def test_one_sentinel_that_responds_is_enough_and_without_any_a_call_fails_in_time(
    servers: SentinelSet, watched_store: Store
) -> None:
    servers.sentinels[0].pause()
    servers.sentinels[1].kill()
    for _ in range(3):  # many connections are opened at the same time
        await watched_store.close()
        queries_before = query_count(servers.sentinels[2])
        began = time.monotonic()

        replies = await asyncio.gather(*(watched_store.client.incr("count") for _ in range(30)), return_exceptions=True)

        assert [] == [reply for reply in replies if not isinstance(reply, int)]
        assert query_count(servers.sentinels[2]) - queries_before <= 2, "each call sent a query"
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
