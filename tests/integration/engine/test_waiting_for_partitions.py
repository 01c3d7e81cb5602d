"""Many pops that wait for a topic with several partitions: what they cost while idle, and that all are woken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from deferd.contract.model import PutJob, TopicSettings
from deferd.engine import dispatcher
from deferd.engine.engine import Engine
from deferd.engine.partitions import Layout
from deferd.engine.queue import PopReply, PopRequest
from tests.integration.engine.engine_driver import started_engine
from tests.integration.engine.partitioned_topic import PARTITIONS, SHARDS, TOPIC, grow, put_all
from tests.integration.store.store_servers import StoreServer
from tests.waiting import until

IDS = [f"job-{number}" for number in range(60)]
MOST_POLLS = 40


@pytest.fixture
async def engine(server: StoreServer) -> AsyncIterator[Engine]:
    async with started_engine(server.url, shards=SHARDS) as engine:
        await grow(engine)
        yield engine


def wait_for_jobs(engine: Engine) -> list[asyncio.Task[Any]]:
    """More pops than one call serves, so that some are in a call of one partition and some in that of another."""
    return [asyncio.create_task(engine.dispatcher.pop([TOPIC], wait_ms=20_000)) for _ in IDS]


async def test_idle_pops_do_not_poll_again_and_again(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    polls: list[str] = []
    pop = engine.queue.pop

    async def count_and_pop(topic: str, requests: Sequence[PopRequest]) -> PopReply:
        polls.append(topic)
        return await pop(topic, requests)

    monkeypatch.setattr(engine.queue, "pop", count_and_pop)
    waiting = wait_for_jobs(engine)
    await asyncio.sleep(0.3)
    assert len(polls) < MOST_POLLS
    polls.clear()
    for partition in PARTITIONS:
        engine.dispatcher.on_ready(partition)
    await asyncio.sleep(0.3)
    assert len(polls) < MOST_POLLS
    polls.clear()
    await asyncio.sleep(0.3)
    assert polls == []
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_all_who_wait_get_the_jobs_of_a_topic_that_is_resumed(engine: Engine) -> None:
    for number in range(3):
        await put_all(engine, [f"{number}-{job_id}" for job_id in IDS])
        await engine.topics.pause(TOPIC)
        waiting = wait_for_jobs(engine)
        await asyncio.sleep(0.2)
        assert not any(one.done() for one in waiting)
        await engine.topics.resume(TOPIC)
        async with asyncio.timeout(5):
            popped = await asyncio.gather(*waiting)
        assert len({job.id for jobs in popped for job in jobs}) == len(IDS)


# Partitions without jobs


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


async def test_a_partition_does_not_count_as_empty_if_a_message_came_during_its_poll(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started_engine(server.url, shards=8) as engine:
        await engine.topics.set("t", TopicSettings(partitions=4))
        pop, was_polled, has_message = engine.queue.pop, asyncio.Event(), asyncio.Event()

        async def pop_and_wait(topic: str, requests: Sequence[PopRequest]) -> PopReply:
            reply = await pop(topic, requests)
            if topic == "t" and not has_message.is_set():
                was_polled.set()
                await has_message.wait()
            return reply

        monkeypatch.setattr(engine.queue, "pop", pop_and_wait)
        waiting = asyncio.create_task(engine.dispatcher.pop(["t"], wait_ms=20_000))
        await was_polled.wait()
        in_t = [job_id for job_id in map(str, range(100)) if Layout((4,)).home("t", job_id) == "t"]
        await engine.puts.put_many([PutJob(topic="t", id=job_id) for job_id in in_t[:2]])
        await until(lambda: engine.dispatcher._wait_queues["t"].dirty, "the message has come")
        has_message.set()
        assert [job.id for job in await waiting] == in_t[:1]
        assert "t" not in engine.dispatcher.empty_partitions
        assert [job.id for job in await engine.dispatcher.pop(["t"], wait_ms=20_000)] == in_t[1:2]


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
