"""A topic with four partitions, from its first job on or only after some, and engines that use it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import PutJob, TopicSettings
from deferd.engine.engine import Engine
from deferd.engine.record import ANY_RECEIPT
from deferd.store.connection import connect
from tests.integration.store.store_servers import StoreServer

SHARDS = 8
COUNT = 4
TOPIC = "t"
PARTITIONS = (TOPIC, "t#1", "t#2", "t#3")


async def grow(engine: Engine, count: int = COUNT, topic: str = TOPIC) -> None:
    await engine.topics.set(topic, TopicSettings(partitions=count))


async def put_all(engine: Engine, ids: Sequence[str], topic: str = TOPIC, **fields: Any) -> None:
    jobs = [PutJob.model_validate({"topic": topic, "id": job_id, **fields}) for job_id in ids]
    results = await engine.puts.put_many(jobs)
    assert {result.status for result in results} == {201}


async def fill(engine: Engine, ids: Sequence[str], *, grown: bool, **fields: Any) -> None:
    """Put jobs into four partitions; `grown`: the first half of them when the topic had only one."""
    half = len(ids) // 2 if grown else 0
    if half:
        await put_all(engine, ids[:half], **fields)
    await grow(engine)
    await put_all(engine, ids[half:], **fields)
    partitions = engine.partitions.known
    assert {partitions.home(TOPIC, job_id) for job_id in ids[half:]} == set(PARTITIONS)


async def reserve(engine: Engine, count: int) -> list[str]:
    """Pop so many jobs, from any partitions; returns their ids."""
    held: list[str] = []
    while len(held) < count:
        jobs = await engine.dispatcher.pop([TOPIC], count=count - len(held), consumer="worker-1")
        assert jobs
        held += [job.id for job in jobs]
    return held


async def bury(engine: Engine, ids: Sequence[str], error: str = "no use") -> None:
    for job_id in ids:
        await engine.queue.bury(TOPIC, job_id, ANY_RECEIPT, error=error)


async def counts(engine: Engine) -> dict[str, int]:
    """How many jobs are in each state, without empty states."""
    view = await engine.topics.get(TOPIC)
    return {state.value: count for state, count in view.counts.items() if count}


def break_shard_of(engine: Engine, partition: str) -> None:
    """Let every call of scripts and commands for the shard of a partition fail, until `engine._scripts` is restored."""
    tag = f"{{{engine._keys.shard_of(partition)}}}"
    scripts = engine._scripts
    run, command = scripts.run, scripts.command

    async def run_or_fail(verb: str, keys: Sequence[str], *args: Any, **options: Any) -> Any:
        if tag in keys[0]:
            raise StoreUnavailable("the shard is away")
        return await run(verb, keys, *args, **options)

    async def command_or_fail(name: str, key: str, *args: Any) -> Any:
        if tag in key:
            raise StoreUnavailable("the shard is away")
        return await command(name, key, *args)

    scripts.run, scripts.command = run_or_fail, command_or_fail  # type: ignore[method-assign, assignment]


def restore(engine: Engine) -> None:
    """End what `break_shard_of` began."""
    del engine._scripts.run
    del engine._scripts.command


@asynccontextmanager
async def unaware_engine(server: StoreServer, **options: Any) -> AsyncIterator[Engine]:
    """That of a process which has not been told that topics have several partitions."""
    store = await connect(server.url, timeout_s=5)
    engine = Engine(store, shards=SHARDS, **options)
    try:
        yield engine
    finally:
        await engine.close()
        await store.close()
