"""Pops by patterns of topics with several partitions: the pattern is that of the topic."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from deferd.contract.errors import InvalidInput
from deferd.contract.limits import POP_MATCHES_MAX
from deferd.contract.model import PutJob, TopicSettings
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.engine import Engine
from deferd.engine.record import JobRecord
from deferd.engine.topic_search import TopicSelection
from tests.integration.engine.engine_driver import make_topics, started_engine
from tests.integration.store.store_servers import StoreServer

SHARDS = 8
IDS = [f"job-{number}" for number in range(40)]


@pytest.fixture
async def engine(server: StoreServer) -> AsyncIterator[Engine]:
    async with started_engine(server.url, shards=SHARDS) as engine:
        await engine.topics.set("orders.eu", TopicSettings(partitions=4))
        yield engine


async def put(engine: Engine, topic: str, ids: Sequence[str], **fields: Any) -> None:
    await engine.puts.put_many([PutJob.model_validate({"topic": topic, "id": one, **fields}) for one in ids])


async def pop_by(
    engine: Engine, *entries: str, allowed: Sequence[str] | None = None, **options: Any
) -> list[JobRecord]:
    names = [entry for entry in entries if "*" not in entry]
    patterns = [entry for entry in entries if "*" in entry]
    selection = TopicSelection(patterns, names, None if allowed is None else TopicPatterns(allowed))
    return await engine.dispatcher.pop(names, selection=selection, **options)


async def all_by(engine: Engine, *entries: str, **options: Any) -> Counter[str]:
    """The topics of the jobs that pops find until there are none."""
    topics: Counter[str] = Counter()
    ids: set[tuple[str, str]] = set()
    while jobs := await pop_by(engine, *entries, count=7, **options):
        topics.update(job.topic for job in jobs)
        assert not ids & {(job.topic, job.id) for job in jobs}
        ids |= {(job.topic, job.id) for job in jobs}
    return topics


@pytest.mark.parametrize("pattern", ["orders.*", "*", "*.eu", "o*s.*u"])
async def test_a_pattern_finds_the_jobs_of_all_partitions(engine: Engine, pattern: str) -> None:
    await put(engine, "orders.eu", IDS)
    await put(engine, "orders.de.eu", IDS[:3])
    assert await all_by(engine, pattern) == {"orders.eu": 40, "orders.de.eu": 3}


@pytest.mark.parametrize("pattern", ["*1", "*#*", "orders.eu?*", "orders.eu.*", "mail*"])
async def test_no_pattern_finds_a_partition_by_its_own_name(engine: Engine, pattern: str) -> None:
    await put(engine, "orders.eu", IDS)
    assert await all_by(engine, pattern) == {}


async def test_a_topic_that_the_pop_names_itself_is_left_out_of_the_patterns(engine: Engine) -> None:
    """Else the jobs of its other partitions would come in turns with those of other topics."""
    selection = TopicSelection(["*"], ["orders.eu"])
    await put(engine, "orders.eu", IDS)
    await put(engine, "mail", IDS[:2])
    search = engine.dispatcher._patterns._search
    found = await search.ready(selection, range(SHARDS))
    assert (found.ready, found.matching) == ({"mail": 2}, 1)
    jobs = await pop_by(engine, "orders.eu", "*", count=42)
    topics = [job.topic for job in jobs]
    assert topics[: topics.count("orders.eu")] == ["orders.eu"] * topics.count("orders.eu")
    rest = await all_by(engine, "orders.eu", "*")
    assert Counter(topics) + rest == {"orders.eu": 40, "mail": 2}


async def test_a_key_for_other_topics_gets_none(engine: Engine) -> None:
    await put(engine, "orders.eu", IDS)
    await put(engine, "orders.us", IDS[:2])
    assert await all_by(engine, "*", allowed=["orders.us", "mail.*"]) == {"orders.us": 2}
    assert await all_by(engine, "*", allowed=["*.eu"]) == {"orders.eu": 40}


async def test_a_topic_counts_once_among_those_that_match(engine: Engine, server: StoreServer) -> None:
    await engine.topics.set("wide", TopicSettings(partitions=64))
    search = engine.dispatcher._patterns._search
    found = await search.ready(TopicSelection(["*"]), range(SHARDS))
    assert found.matching == 2
    names = [f"n-{number}" for number in range(POP_MATCHES_MAX - 2)]
    make_topics(server, names, SHARDS)
    for name in names[:3]:
        await put(engine, name, ["a"])
    assert len(await pop_by(engine, "*", count=3)) == 3
    await put(engine, "one.more", ["a"])
    with pytest.raises(InvalidInput, match="topics"):
        await pop_by(engine, "*")


async def test_a_waiting_pop_by_patterns_is_woken_by_any_partition(engine: Engine) -> None:
    for job_id in IDS[:8]:
        waiting = asyncio.create_task(pop_by(engine, "*.eu", wait_ms=20_000))
        await asyncio.sleep(0.02)
        await put(engine, "orders.eu", [job_id], delay=0.02)
        async with asyncio.timeout(2):
            assert [(job.topic, job.id) for job in await waiting] == [("orders.eu", job_id)]


async def test_a_paused_topic_serves_from_no_partition(engine: Engine) -> None:
    await put(engine, "orders.eu", IDS)
    await engine.topics.pause("orders.eu")
    await put(engine, "mail", IDS[:2])
    assert await all_by(engine, "*") == {"mail": 2}
    await engine.topics.resume("orders.eu")
    assert await all_by(engine, "*") == {"orders.eu": 40}


async def test_a_repeated_pop_by_patterns_gets_the_same_jobs(engine: Engine) -> None:
    await put(engine, "orders.eu", IDS)
    first = await pop_by(engine, "orders.*", count=20, request_id="r-1")
    assert len(first) > 1
    again = await pop_by(engine, "orders.*", count=20, request_id="r-1")
    assert sorted((job.topic, job.id, str(job.receipt)) for job in again) == sorted(
        (job.topic, job.id, str(job.receipt)) for job in first
    )
    assert await pop_by(engine, "mail.*", count=20, request_id="r-1") == []
