"""Actions on many jobs of topics with several partitions: each of the jobs once, whichever partition has them.

What they do to a few jobs is in tests/conformance, also where the topic grew when it had jobs: the door `grown`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.errors import StoreUnavailable, TopicNotFound
from deferd.contract.model import JobState
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine import tasks
from deferd.engine.bulk_actions import BulkOutcome
from deferd.engine.engine import Engine
from deferd.engine.tasks import Task, request_of
from deferd.engine.topic_sweeps import Sweep
from deferd.store.connection import Store
from tests.integration.engine.partitioned_topic import (
    COUNT,
    PARTITIONS,
    SHARDS,
    TOPIC,
    break_shard_of,
    bury,
    counts,
    fill,
    grow,
    put_all,
    reserve,
    restore,
    unaware_engine,
)
from tests.integration.engine.sweeping import purge_jobs, redrive_jobs
from tests.integration.store.store_servers import StoreServer

IDS = [f"job-{number}" for number in range(60)]
OTHERS = [f"other-{number}" for number in range(10)]


@pytest.fixture
async def engine(store: Store) -> AsyncIterator[Engine]:
    engine = Engine(store, shards=SHARDS)
    await engine.start()
    yield engine
    await engine.close()


async def cancel(engine: Engine, visible: TopicPatterns | None = None, **call: Any) -> BulkOutcome:
    return await engine.bulk.cancel(CancelSelected.model_validate(call), visible)


async def reschedule(engine: Engine, **call: Any) -> BulkOutcome:
    return await engine.bulk.reschedule(RescheduleSelected.model_validate(call))


def names(ids: Sequence[str], topic: str = TOPIC) -> list[dict[str, str]]:
    return [{"topic": topic, "id": job_id} for job_id in ids]


async def ids_in(engine: Engine, state: JobState | None = None, topic: str = TOPIC) -> set[str]:
    jobs, cursor = await engine.topics.jobs(topic, state, limit=1000)
    assert cursor is None
    return {job.id for job in jobs}


async def make_dead(engine: Engine) -> list[str]:
    """The ids of dead jobs, in the order in which they died."""
    await fill(engine, IDS, grown=True)
    held = await reserve(engine, len(IDS))
    await bury(engine, held)
    return held


# Sweeps


async def test_sweeps_of_an_unknown_topic(engine: Engine) -> None:
    with pytest.raises(TopicNotFound):
        await purge_jobs(engine, "other")
    with pytest.raises(TopicNotFound):
        await engine.sweeps.preview(Sweep(verb="redrive", topic="other"), 3)


async def test_a_redrive_of_so_many(engine: Engine) -> None:
    held = await make_dead(engine)
    sweep = Sweep(verb="redrive", topic=TOPIC, limit=25)
    preview = await engine.sweeps.preview(sweep, 100)
    assert (preview.matched, preview.is_complete) == (25, False)
    assert await engine.sweeps.run(sweep) == 25
    redriven = await ids_in(engine, JobState.READY)
    assert redriven == {job_id for job_id, _ in preview.samples}
    in_first = [job_id for job_id in held if await is_in(engine, PARTITIONS[0], job_id)]
    assert set(in_first[:25]) == redriven & set(in_first)
    assert (await engine.sweeps.preview(sweep.with_limit(35), 0)).is_complete
    assert await redrive_jobs(engine, TOPIC) == 35
    assert await counts(engine) == {"ready": len(IDS)}


async def test_a_limit_that_ends_with_a_partition_is_all_when_the_others_have_no_dead_jobs(engine: Engine) -> None:
    await grow(engine)
    ids = [job_id for job_id in IDS if engine.partitions.known.home(TOPIC, job_id) == PARTITIONS[1]]
    await put_all(engine, ids)
    await bury(engine, await reserve(engine, len(ids)))
    sweep = Sweep(verb="redrive", topic=TOPIC, limit=len(ids))
    assert (await engine.sweeps.preview(sweep, 0)).is_complete
    assert not (await engine.sweeps.preview(sweep.with_limit(len(ids) - 1), 0)).is_complete


async def is_in(engine: Engine, partition: str, job_id: str) -> bool:
    return bool(await engine._scripts.command("HEXISTS", engine._keys.named(partition, "pool"), job_id))


async def test_the_cutoff_is_the_earliest_time_of_the_shards(store: Store, server: StoreServer) -> None:
    engine = Engine(store, shards=SHARDS, movable_clock=True)
    await grow(engine)
    for partition in PARTITIONS:
        shard = engine._keys.shard_of(partition)
        server.command("SET", f"deferd:{{{shard}}}:clock", 50_000 if partition == PARTITIONS[2] else 90_000)
    earliest = await engine._scripts.run("now", (engine._keys.of_topic(PARTITIONS[2])[0],), ())
    preview = await engine.sweeps.preview(Sweep(verb="purge", topic=TOPIC), 0)
    assert earliest <= preview.cutoff_ms < earliest + 30_000
    assert earliest <= await engine.sweeps.now_ms(TOPIC) < earliest + 30_000
    await engine.close()


# Calls on many jobs


async def test_jobs_with_a_tag(engine: Engine) -> None:
    await fill(engine, IDS, grown=True, delay=3600, tags=["customer-7"])
    await put_all(engine, OTHERS, delay=3600, tags=["customer-8"])
    await put_all(engine, OTHERS, topic="other", delay=3600, tags=["customer-7"])
    hidden = await cancel(engine, TopicPatterns(["other"]), select={"tag": "customer-7"}, dry_run=True)
    assert hidden.matched == len(OTHERS)
    done = await cancel(engine, TopicPatterns([TOPIC]), select={"tag": "customer-7"})
    assert (done.matched, done.done) == (len(IDS), len(IDS))
    assert await ids_in(engine) == set(OTHERS)
    moved = await reschedule(engine, select={"tag": "customer-8", "topics": [TOPIC]}, by=60)
    assert moved.done == len(OTHERS)
    assert (await cancel(engine, select={"tag": "customer-7", "topics": [TOPIC]})).matched == 0
    assert len(await ids_in(engine, topic="other")) == len(OTHERS)


async def test_a_pattern_means_topics_not_partitions(engine: Engine) -> None:
    await fill(engine, IDS, grown=False)
    await put_all(engine, OTHERS, topic="t1")
    select = {"state": "ready", "topics": ["*1"]}
    done = await cancel(engine, select=select)
    assert done.done == len(OTHERS)
    assert await counts(engine) == {"ready": len(IDS)}


@pytest.mark.parametrize(
    "select",
    [{"state": "delayed", "topics": [TOPIC]}, {"tag": "x"}, {"ids": names(IDS)}],
    ids=["state", "tag", "ids"],
)
async def test_a_call_that_failed_in_one_shard_goes_on(engine: Engine, select: dict[str, Any]) -> None:
    await fill(engine, IDS, grown=True, delay=3600, tags=["x"])
    call: dict[str, Any] = {"select": select, "request_id": "r-1"}
    due = {job_id: (await engine.queue.get(TOPIC, job_id)).due_at_ms for job_id in IDS}
    break_shard_of(engine, PARTITIONS[2])
    with pytest.raises(StoreUnavailable):
        await reschedule(engine, by=60, **call)
    restore(engine)
    moved = [(await engine.queue.get(TOPIC, job_id)).due_at_ms > due_ms for job_id, due_ms in due.items()]
    assert 0 < sum(moved) < len(IDS)
    for _ in range(2):
        done = await reschedule(engine, by=60, **call)
        assert (done.matched, done.done, done.complete) == (len(IDS), len(IDS), True)
    for job_id, due_ms in due.items():
        assert (await engine.queue.get(TOPIC, job_id)).due_at_ms == due_ms + 60_000
    await put_all(engine, OTHERS, delay=3600, tags=["x"])
    for _ in range(2):
        done = await cancel(engine, **call)
        assert done.done == len(IDS) + (0 if "ids" in select else len(OTHERS))
    await put_all(engine, IDS, delay=3600, tags=["x"])
    assert (await cancel(engine, **call)).done == len(IDS) + (0 if "ids" in select else len(OTHERS))
    assert await ids_in(engine, JobState.DELAYED) >= set(IDS)


# Tasks


CHANGE = {"operation": "purge_topic", "by": "ops", "via": "api", "topic": TOPIC, "filter": None}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short waits. The lease itself stays: tests move the clock."""
    monkeypatch.setattr(tasks, "_NOTE_EVERY_S", 0.01)
    monkeypatch.setattr(tasks, "_RETRY_S", 0.01)


async def spec_of(engine: Engine, kind: str, **fields: Any) -> dict[str, Any]:
    now_ms = await engine.sweeps.now_ms(TOPIC)
    times = {"begun": now_ms, "cutoff": now_ms}
    sweep = {"topic": TOPIC}
    return {"kind": kind, **times, "limit": None, "visible": None, "change": CHANGE, "sweep": sweep, **fields}


async def ended(engine: Engine, task_id: str = "t1") -> Task:
    for _ in range(1000):
        task = await engine.tasks.get(task_id)
        if task.state != "running":
            return task
        await asyncio.sleep(0.01)
    raise AssertionError("the task does not end")


CALL = {"select": {"state": "delayed", "topics": [TOPIC]}}


@pytest.mark.parametrize("kind", ["cancel", "reschedule", "purge"])
@pytest.mark.usefixtures("quick")
async def test_a_task_acts_on_all_partitions(engine: Engine, server: StoreServer, kind: str) -> None:
    await fill(engine, IDS, grown=True, delay=3600)
    before = (await engine.queue.get(TOPIC, IDS[0])).due_at_ms
    await asyncio.sleep(0.005)
    call = {**CALL, "by": 60} if kind == "reschedule" else CALL
    spec = await spec_of(engine, kind, call=call)
    await asyncio.sleep(0.005)
    await put_all(engine, OTHERS, delay=3600)
    async with unaware_engine(server) as unaware:
        await unaware.task_runner.begin("t1", spec)
        task = await ended(unaware)
    assert (task.state, task.done, task.total) == ("done", len(IDS), len(IDS))
    assert await ids_in(engine) == ({*IDS, *OTHERS} if kind == "reschedule" else set(OTHERS))
    if kind == "reschedule":
        assert (await engine.queue.get(TOPIC, IDS[0])).due_at_ms == before + 60_000


@pytest.mark.usefixtures("quick")
async def test_a_redrive_task_with_a_limit(engine: Engine) -> None:
    await make_dead(engine)
    await asyncio.sleep(0.005)
    await engine.task_runner.begin("t1", await spec_of(engine, "redrive", limit=45))
    task = await ended(engine)
    assert (task.state, task.done, task.total) == ("done", 45, 45)
    assert await counts(engine) == {"ready": 45, "dead": 15}
    await engine.task_runner.begin("t2", await spec_of(engine, "redrive"))
    task = await ended(engine, "t2")
    assert (task.state, task.done, task.total) == ("done", 15, 15)
    for number, task_id in ((45, "t1"), (15, "t2")):
        spec = (await engine.tasks.get(task_id)).spec
        became = await engine.redriven_jobs.became(TOPIC, request_of(task_id, spec), spec["cutoff"])
        assert (became.looked_at, became.waiting) == (number, number)


async def test_a_call_goes_on_in_other_shards_when_that_of_the_topic_is_away(engine: Engine) -> None:
    await fill(engine, IDS, grown=False, delay=3600)
    break_shard_of(engine, PARTITIONS[0])
    with pytest.raises(StoreUnavailable):
        await cancel(engine, select={"state": "delayed", "topics": [TOPIC]})
    restore(engine)
    assert {engine.partitions.known.home(TOPIC, job_id) for job_id in await ids_in(engine)} == {PARTITIONS[0]}


@pytest.mark.parametrize(("kind", "done_before"), [("purge", 1), ("redrive", 3), ("cancel", 0), ("cancel", 1)])
@pytest.mark.usefixtures("quick")
async def test_another_process_goes_on(store: Store, server: StoreServer, kind: str, done_before: int) -> None:
    """One that stopped for ever after some steps, each in another partition."""
    engine = Engine(store, shards=SHARDS, movable_clock=True)
    await fill(engine, IDS, grown=True)
    verb = {"purge": "purge", "redrive": "redrive", "cancel": "bulk_cancel"}[kind]
    limit = None
    if kind == "redrive":
        await bury(engine, await reserve(engine, len(IDS)))
        limit = len(IDS) - 5
    await asyncio.sleep(0.005)
    call = {"select": {"state": "ready", "topics": [TOPIC]}}
    sweep = {"topic": TOPIC, "state": "ready"} if kind == "purge" else {"topic": TOPIC}
    spec = await spec_of(engine, kind, call=call, sweep=sweep, limit=limit)
    async with unaware_engine(server, movable_clock=True) as other:
        steps, run = [0], other._scripts.run

        async def run_or_hang(called: str, keys: Sequence[str], args: Sequence[Any], **options: Any) -> Any:
            is_step = called == verb and b'"samples"' not in args[1] and b'"dry_run"' not in args[1]
            if (is_step or called == "task_progress") and steps[0] >= done_before:
                await asyncio.Event().wait()
            steps[0] += is_step
            return await run(called, keys, args, **options)

        other._scripts.run = run_or_hang  # type: ignore[method-assign, assignment]
        await other.task_runner.begin("t1", spec)
        await asyncio.sleep(0.2)
        assert steps == [done_before]
        for shard in range(SHARDS):
            server.command("INCRBY", f"deferd:{{{shard}}}:clock", 10_000)
        await put_all(engine, OTHERS)
        await engine.task_runner.look()
        task = await ended(engine)
        done = len(IDS) if limit is None else limit
        assert (task.state, task.done, task.total) == ("done", done, done)
    if kind == "redrive":
        assert await counts(engine) == {"ready": done + len(OTHERS), "dead": 5}
    else:
        assert await ids_in(engine) == set(OTHERS)
    await engine.close()


@pytest.mark.usefixtures("quick")
async def test_what_a_task_has_noted_is_forgotten_in_all_shards(engine: Engine, server: StoreServer) -> None:
    await fill(engine, IDS, grown=False)
    await asyncio.sleep(0.005)
    await engine.task_runner.begin("t1", await spec_of(engine, "purge"))
    await ended(engine)
    runner = engine.task_runner
    while not runner._to_forget or runner._running:
        await asyncio.sleep(0.01)
    keys = server.command("KEYS", "deferd:*:bulk/purge/task/t1/*")
    assert len(keys) == COUNT
    assert all(650_000 < server.command("PTTL", key) <= 660_000 for key in keys)
    [(_, action)] = runner._to_forget
    await action.forget(0)
    assert server.command("KEYS", "deferd:*:bulk/purge/task/t1/*") == []
