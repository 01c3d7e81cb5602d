"""A finish that puts other jobs: all of it is done, or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from deferd.contract.errors import (
    BatchSealed,
    DeferdError,
    DifferentShard,
    DurabilityUnavailable,
    JobCancelled,
    JobExists,
    JobNotFound,
    JobReserved,
    ReceiptStale,
    StoreUnavailable,
    TopicFull,
)
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.contract.operations.batches import PutBatchOfJobs
from deferd.contract.operations.jobs import PutResult
from deferd.engine import metrics
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT, JobRecord
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import NO_BOUNDS, PutBounds
from deferd.store.connection import connect
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, started_engine
from tests.integration.store.store_servers import ClusterSet, StoreServer

OTHER = "mail"


def put(job_id: str, topic: str = OTHER, **fields: Any) -> PutJob:
    return PutJob.model_validate({"topic": topic, "id": job_id, **fields})


async def held(driver: EngineDriver, job_id: str = "a", **fields: Any) -> JobRecord:
    await driver.put(job_id, **fields)
    return await driver.pop_one()


async def finish(
    driver: EngineDriver, job: JobRecord, *puts: PutJob, result: Any = None, bounds: PutBounds = NO_BOUNDS
) -> list[PutResult]:
    return await driver.queue.finish_and_put(TOPIC, job.id, job.receipt, puts, result=result, bounds=bounds)


async def state_of(driver: EngineDriver, topic: str, job_id: str) -> JobState | None:
    try:
        return (await driver.queue.get(topic, job_id)).state
    except JobNotFound:
        return None


async def check_tally(driver: EngineDriver) -> None:
    """The counters of both topics and all sets match the jobs."""
    for topic in (TOPIC, OTHER):
        assert (await driver.engine.consistency.audit_topic(topic)).clean


async def test_the_job_is_finished_and_the_others_are_put(driver: EngineDriver) -> None:
    job = await held(driver, retain=60)
    results = await finish(
        driver, job, put("m1"), put("next", TOPIC, delay=60, ttl=10), put("m2", body={"n": 1}), result={"ok": True}
    )
    assert [(one.topic, one.id, one.status) for one in results] == [
        (OTHER, "m1", 201),
        (TOPIC, "next", 201),
        (OTHER, "m2", 201),
    ]
    done = await driver.queue.get(TOPIC, "a")
    assert (done.state, done.result) == (JobState.FINISHED, b'{"ok":true}')
    assert await state_of(driver, TOPIC, "next") is JobState.DELAYED
    assert (await driver.queue.get(OTHER, "m2")).body == b'{"n":1}'
    await check_tally(driver)


async def test_a_retained_job_keeps_its_id_taken_for_those_that_follow(driver: EngineDriver) -> None:
    job = await held(driver, retain=60)
    with pytest.raises(JobExists):
        await finish(driver, job, put("a", TOPIC))
    assert await driver.state() is JobState.RESERVED
    [kept] = await finish(driver, job, put("a", TOPIC, on_conflict="keep"))
    assert (kept.status, await driver.state()) == (200, JobState.FINISHED)
    second = await held(driver, "b", retain=60)
    [replaced] = await finish(driver, second, put("b", TOPIC, on_conflict="replace", delay=60))
    assert (replaced.status, await driver.state("b")) == (200, JobState.DELAYED)


@pytest.mark.parametrize("how", ["stale", "lease", "cancelled", "gone", "snoozed"])
async def test_nothing_is_put_when_the_job_is_not_held(driver: EngineDriver, how: str) -> None:
    job = await held(driver, ttr=10)
    expected: type[DeferdError] = ReceiptStale
    if how == "stale":
        await driver.pass_time(10)
        await driver.pop_one()
    elif how == "lease":
        await driver.pass_time(10)
    elif how == "snoozed":
        await driver.deliveries.release(TOPIC, "a", job.receipt, delay_ms=1000, counts=False)
    elif how == "cancelled":
        await driver.cancels.cancel(TOPIC, "a")
        expected = JobCancelled
    else:
        await driver.queue.finish(TOPIC, "a", job.receipt)
        expected = JobNotFound
    with pytest.raises(expected):
        await finish(driver, job, put("m1"), put("next", TOPIC))
    assert await state_of(driver, OTHER, "m1") is await state_of(driver, TOPIC, "next") is None


async def refused(driver: EngineDriver, job: JobRecord, error: type[DeferdError], *puts: PutJob, **options: Any) -> Any:
    """Nothing may have changed when the puts are refused."""
    everything = driver.server.client()

    def contents() -> dict[Any, Any]:
        return {key: everything.dump(key) for key in everything.keys("*")}

    before = contents()
    with pytest.raises(error) as raised:
        await finish(driver, job, *puts, **options)
    assert contents() == before
    return raised.value


async def test_a_put_that_would_be_refused_refuses_everything(driver: EngineDriver) -> None:
    job = await held(driver)
    await driver.puts.put(put("taken"))
    error = await refused(driver, job, JobExists, put("m1"), put("next", TOPIC), put("taken"))
    assert (error.topic, error.job_id) == (OTHER, "taken")
    await driver.queue.pop(OTHER, [])
    await driver.put("b")
    other = await driver.pop_one()
    await refused(driver, job, JobReserved, put(other.id, TOPIC, on_conflict="replace"))
    await refused(driver, job, JobExists, put("same"), put("same"))
    await finish(driver, job, put("same"), put("same", on_conflict="replace"), put("taken", on_conflict="keep"))


async def test_the_limits_of_topics_and_of_the_caller_hold(driver: EngineDriver) -> None:
    await driver.topics.set(OTHER, TopicSettings(max_jobs=2))
    await driver.topics.set(TOPIC, TopicSettings(max_jobs=2))
    await driver.puts.put(put("one"))
    job = await held(driver)
    error = await refused(driver, job, TopicFull, put("m1"), put("m2"))
    assert (error.topic, error.max_jobs) == (OTHER, 2)
    bounds = PutBounds(max_jobs=1, dead_retain_ms=7000)
    error = await refused(driver, job, TopicFull, put("m1"), bounds=bounds)
    assert error.max_jobs == 1
    await driver.put("b")
    # The finish frees a place for one that follows.
    await refused(driver, job, TopicFull, put("n1", TOPIC), put("n2", TOPIC))
    n1 = put("n1", TOPIC, on_end={"topic": OTHER, "id": "end"})
    await finish(driver, job, n1, put("m1"), bounds=PutBounds(max_jobs=2, dead_retain_ms=7000))
    await driver.queue.pop(TOPIC, [])
    popped = (await driver.pop(2))[1]
    await driver.deliveries.bury(TOPIC, popped.id, popped.receipt)
    end = (await driver.queue.pop(OTHER, [PopRequest(3)])).jobs[0][2]
    await driver.deliveries.bury(OTHER, end.id, end.receipt)
    assert await state_of(driver, OTHER, "end") is JobState.DEAD
    await driver.pass_time(7)
    assert await state_of(driver, TOPIC, "n1") is None
    assert await state_of(driver, OTHER, "end") is None


@pytest.mark.parametrize("end", [{"topic": OTHER}, {"topic": OTHER, "id": "b"}])
async def test_the_end_of_the_job_takes_neither_the_room_nor_the_id_of_a_put(
    driver: EngineDriver, end: dict[str, str]
) -> None:
    await driver.topics.set(OTHER, TopicSettings(max_jobs=1))
    job = await held(driver, on_end=end)
    assert [result.status for result in await finish(driver, job, put("b", body=1))] == [201]
    popped = (await driver.queue.pop(OTHER, [PopRequest(10)])).jobs[0]
    assert popped[0].body == b"1"
    assert len(popped) == (1 if "id" in end else 2)  # with an id: a job that has it stays


async def test_a_put_that_replaces_the_follow_up_does_not_stay_in_the_batch_of_the_job(driver: EngineDriver) -> None:
    on_end = PutBatchOfJobs.model_validate({"on_end": {"topic": OTHER}})
    batch, _ = await driver.engine.batches.put("b", on_end, None)
    job = await held(driver, batch="b")
    await driver.put(job.id, if_reserved="after", on_conflict="replace")
    await driver.engine.batches.put("b", PutBatchOfJobs(seal=True), batch)
    with pytest.raises(BatchSealed):
        await finish(driver, job, put(job.id, TOPIC, on_conflict="replace", batch="b"))
    assert await driver.counts() == {"reserved": 1}


async def test_partitions_of_a_topic_share_its_limit(driver: EngineDriver) -> None:
    await driver.topics.set(OTHER, TopicSettings(max_jobs=4, partitions=2))
    home = driver.engine.partitions.known.home
    first, second, third = [name for name in map(str, range(40)) if home(OTHER, name) == OTHER][:3]
    job = await held(driver)
    error = await refused(driver, job, TopicFull, put(first), put(second), put(third))
    assert (error.topic, error.max_jobs) == (OTHER, 4)
    await finish(driver, job, put(first), put(second))


async def test_topics_give_defaults_to_the_jobs_that_follow(driver: EngineDriver) -> None:
    await driver.topics.set(OTHER, TopicSettings(ttr=7, deadline=100))
    await finish(driver, await held(driver), put("m1"))
    record = await driver.queue.get(OTHER, "m1")
    assert (record.stored("ttr"), record.stored("deadline")) == (7000, 100_000)


async def test_a_durability_that_the_store_cannot_give_refuses_everything(driver: EngineDriver) -> None:
    job = await held(driver)
    error = await refused(driver, job, StoreUnavailable, put("m1"), put("m2", durability="replicated:9"))
    assert "nothing was stored" in str(error)
    await refused(driver, job, DurabilityUnavailable, put("m1"), put("m2", durability="fsync"))
    driver.server.command("HSET", "deferd:{0}:settings", OTHER, '{"du":1}')  # fsync
    await refused(driver, job, DurabilityUnavailable, put("n1", TOPIC), put("m1"))
    [result] = await finish(driver, job, put("m1", durability="memory"))
    assert result.durability == "memory"


async def test_topics_of_different_shards_are_refused(server: StoreServer) -> None:
    async with started_engine(server.url, shards=16) as engine:
        far = next(
            f"t{n}" for n in range(99) if engine.queue._keys.shard_of(f"t{n}") != engine.queue._keys.shard_of(TOPIC)
        )
        await engine.puts.put(put("a", TOPIC))
        with pytest.raises(DifferentShard) as raised:
            await engine.queue.finish_and_put(TOPIC, "a", ANY_RECEIPT, [put("x", far)])
        assert raised.value.topic == far


async def test_without_memory_nothing_is_done(driver: EngineDriver) -> None:
    job = await held(driver)
    driver.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="memory"):
            await finish(driver, job, put("m1"))
        assert await driver.state() is JobState.RESERVED
        assert await state_of(driver, OTHER, "m1") is None
    finally:
        driver.server.command("CONFIG", "SET", "maxmemory", "0")
    await finish(driver, job, put("m1"))


async def test_finishes_and_puts_are_counted(driver: EngineDriver) -> None:
    def counts() -> tuple[float, float]:
        return (
            metrics.FINISHES.labels(TOPIC)._value.get(),
            metrics.PUTS.labels(OTHER, "created")._value.get(),
        )

    before = counts()
    await finish(driver, await held(driver), put("m1"), put("m2"))
    assert [after - was for was, after in zip(before, counts(), strict=True)] == [1, 2]


# On a cluster

SHARDS = 5
KEYS = Keys(SHARDS)
TOPICS = [f"t{number}" for number in range(40)]


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    with ClusterSet(tmp_path) as cluster:
        store = await connect(cluster.url, timeout_s=5)
        engine = Engine(store, shards=SHARDS)
        yield engine
        await engine.close()
        await store.close()


@pytest.mark.slow
async def test_a_finish_puts_into_topics_of_its_shard_on_each_node(engine: Engine) -> None:
    for shard in range(SHARDS):
        first, second, third = [topic for topic in TOPICS if KEYS.shard_of(topic) == shard][:3]
        far = next(topic for topic in TOPICS if KEYS.shard_of(topic) != shard)
        await engine.puts.put(PutJob(topic=first, id="a"))
        [[held]] = (await engine.queue.pop(first, [PopRequest(1)])).jobs
        near = [PutJob(topic=topic, id="next", delay=60) for topic in (second, first, third)]
        with pytest.raises(DifferentShard, match=f"topic '{far}' is in another shard"):
            await engine.queue.finish_and_put(first, "a", held.receipt, [*near, PutJob(topic=far)])
        assert (await engine.queue.get(first, "a")).state is JobState.RESERVED
        results = await engine.queue.finish_and_put(first, "a", ANY_RECEIPT, near)
        assert [(result.topic, result.status) for result in results] == [(second, 201), (first, 201), (third, 201)]
        for topic in (first, second, third):
            assert (await engine.queue.get(topic, "next")).state is JobState.DELAYED
            assert (await engine.consistency.audit_topic(topic)).clean
