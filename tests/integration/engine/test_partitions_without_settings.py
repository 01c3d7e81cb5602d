"""Topics whose settings another program has replaced, though they have several partitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import TopicSettings
from deferd.engine.engine import Engine
from deferd.engine.partitions import Layout
from tests.integration.engine.engine_driver import started_engine
from tests.integration.engine.partitioned_topic import (
    COUNT,
    PARTITIONS,
    SHARDS,
    TOPIC,
    break_shard_of,
    grow,
    put_all,
    restore,
)
from tests.integration.store.store_servers import StoreServer

IDS = [f"job-{number}" for number in range(20)]


@pytest.fixture
async def engine(server: StoreServer) -> AsyncIterator[Engine]:
    async with started_engine(server.url, shards=SHARDS) as engine:
        yield engine


async def replace_settings(engine: Engine, settings: str) -> None:
    key = engine._keys.of_shard(engine._keys.shard_of(TOPIC), "settings")
    await engine._scripts.command("HSET", key, TOPIC, settings)


@pytest.mark.parametrize(
    ("settings", "count"), [("", None), ("{}", COUNT), ('{"t":5000}', COUNT + 1), ('{"n":4}', COUNT + 1)]
)
async def test_new_settings_keep_the_partitions(engine: Engine, settings: str, count: int | None) -> None:
    await grow(engine)
    await put_all(engine, IDS[:10], delay=3600)
    await replace_settings(engine, settings)
    await put_all(engine, IDS[10:15], delay=3600)  # the other partitions know how many there are
    view = await engine.topics.set(TOPIC, TopicSettings(ttr=7, partitions=count))
    assert view.settings.partitions == (count or COUNT)
    key = engine._keys.of_shard(engine._keys.shard_of(TOPIC), "partitioned")
    stored = Layout.read(await engine._scripts.command("HGET", key, TOPIC))
    assert stored == engine.partitions.known.layouts[TOPIC]
    assert stored.count == (count or COUNT)
    await put_all(engine, IDS[15:], delay=3600)
    assert (await engine.topics.pause(TOPIC)).paused
    assert {(await engine.queue.get(TOPIC, job_id)).id for job_id in IDS} == set(IDS)
    assert sum((await engine.topics.get(TOPIC)).counts.values()) == len(IDS)


async def test_all_partitions_get_settings_after_their_topic_had_lost_them(engine: Engine) -> None:
    await grow(engine)
    for _ in range(3):
        await engine.topics.set(TOPIC, TopicSettings(ttr=5))
    await replace_settings(engine, "")
    await engine.topics.pause(TOPIC)
    for partition in PARTITIONS:
        key = engine._keys.of_shard(engine._keys.shard_of(partition), "settings")
        assert b'"p":1' in await engine._scripts.command("HGET", key, partition)


async def test_a_topic_that_cannot_be_completed_does_not_hold_up_others(engine: Engine) -> None:
    await grow(engine)
    await grow(engine, topic="v")
    layouts = engine.partitions.known.layouts
    assert [layout.counts for layout in layouts.values()] == [(COUNT, 1)] * 2
    assert list(layouts) == [TOPIC, "v"]
    break_shard_of(engine, TOPIC)
    engine.partitions.on_gap()
    with pytest.raises(StoreUnavailable):
        await engine.partitions._follow()
    restore(engine)
    assert layouts["v"].counts == (COUNT,)
    async with asyncio.timeout(5):
        while layouts[TOPIC].counts != (COUNT,):
            await asyncio.sleep(0.05)
