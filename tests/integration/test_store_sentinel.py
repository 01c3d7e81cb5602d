"""A sentinel set: the master is found, and found anew after a failover."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from deferd.store.connection import Store, connect
from deferd.store.preflight import check
from tests.integration.store_servers import SentinelSet, StoreServer

pytestmark = pytest.mark.slow

TIMEOUT_S = 1.0
SLACK_S = 0.4
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
    """Try until a call works again; each try must fail in time."""
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
async def test_calls_work_again_when_the_master_dies_or_hangs(
    servers: SentinelSet, watched_store: Store, how: str
) -> None:
    client = watched_store.client
    await asyncio.gather(*(client.incr("count") for _ in range(50)))
    assert await client.execute_command("WAIT", 1, 300) == 1

    getattr(servers.master, how)()

    assert await incremented_after_failover(watched_store) > 50
    answers = await asyncio.gather(*(client.incr("count") for _ in range(50)), return_exceptions=True)
    assert all(isinstance(answer, int) for answer in answers), "connections to the old master were used again"
    assert int(servers.replica.command("GET", "count")) > 100


def times_asked(sentinel: StoreServer) -> int:
    """How often it was asked for masters."""
    stats = sentinel.command("INFO", "commandstats")
    return int(stats.get("cmdstat_sentinel|masters", {"calls": 0})["calls"])


async def test_one_sentinel_that_answers_is_enough_and_without_any_a_call_fails_in_time(
    servers: SentinelSet, watched_store: Store
) -> None:
    servers.sentinels[0].pause()
    servers.sentinels[1].kill()
    for _ in range(3):  # asked for anew, by many at once
        await watched_store.close()
        asked_before = times_asked(servers.sentinels[2])
        began = time.monotonic()

        answers = await asyncio.gather(*(watched_store.client.incr("count") for _ in range(30)), return_exceptions=True)

        assert [] == [answer for answer in answers if not isinstance(answer, int)]
        assert times_asked(servers.sentinels[2]) - asked_before <= 2, "each call asked for itself"
        assert time.monotonic() - began < TIMEOUT_S + SLACK_S

    for sentinel in servers.sentinels:
        sentinel.kill()
    await watched_store.close()
    began = time.monotonic()

    with pytest.raises(RedisError, match="none of the sentinels names a master"):
        await watched_store.client.get("count")

    assert time.monotonic() - began < TIMEOUT_S + SLACK_S
