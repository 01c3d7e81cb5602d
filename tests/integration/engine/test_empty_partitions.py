"""Partitions that are known to be empty: what a lost message costs."""

from __future__ import annotations

import asyncio

import pytest

from deferd.contract.model import PutJob, TopicSettings
from deferd.engine import dispatcher
from tests.integration.engine.engine_driver import started_engine
from tests.integration.store.store_servers import StoreServer


async def test_a_job_whose_message_was_lost_is_found_by_the_next_look(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_LOOK_AGAIN_S", 0.2)
    async with started_engine(server.url, shards=8) as engine:
        await engine.topics.set("t", TopicSettings(partitions=4))
        known = engine.dispatcher.empty_partitions
        for number in range(3):
            waiting = asyncio.create_task(engine.dispatcher.pop(["t"], wait_ms=20_000))
            async with asyncio.timeout(5):
                while not all(partition in known for partition in ("t", "t#1", "t#2", "t#3")):
                    await asyncio.sleep(0.01)
            engine._notifications._on_ready = lambda _topic, _mark: None
            await asyncio.sleep(0.3)  # at least one look has found nothing, and is remembered
            await engine.puts.put(PutJob(topic="t", id=f"job-{number}"))
            async with asyncio.timeout(5):
                assert [job.id for job in await waiting] == [f"job-{number}"]


async def test_partitions_for_which_nobody_waits_are_forgotten(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "_LOOK_AGAIN_S", 0.1)
    async with started_engine(server.url, shards=8) as engine:
        await engine.topics.set("t", TopicSettings(partitions=4))
        known = engine.dispatcher.empty_partitions
        assert await engine.dispatcher.pop(["t"]) == []
        assert "t#1" in known
        async with asyncio.timeout(5):
            while "t#1" in known:
                await asyncio.sleep(0.01)
