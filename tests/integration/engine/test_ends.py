"""What an end puts in stores that are full or damaged, and into topics that have got partitions."""

from __future__ import annotations

from itertools import count

import orjson
import pytest

from deferd.contract.errors import DifferentShard
from deferd.contract.model import CancelItem, ChangeJob, PutJob, TopicSettings
from deferd.contract.operations.batches import PutBatchOfJobs
from deferd.engine.batches import StoredBatch
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine import partitioned_topic
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import redrive_jobs
from tests.integration.store.store_servers import StoreServer

ENDS = "ended"
ON_END = {"on_end": {"topic": ENDS, "body": True}}
KEY = f"deferd:{{0}}:{ENDS}"


async def outcomes(driver: EngineDriver) -> list[tuple[str, str]]:
    jobs = (await driver.queue.pop(ENDS, [PopRequest(100)])).jobs[0]
    bodies = [orjson.loads(one.body) for one in jobs]
    return [(body["id"], body["outcome"]) for body in bodies]


async def end_all(driver: EngineDriver) -> None:
    """End jobs in all ways; `a` is reserved, `b` overdue, the others wait."""
    await driver.puts.put_many([job(one, **ON_END, delay=60) for one in ("c", "d")])
    await driver.put("a", **ON_END)
    await driver.pop_one()
    await driver.put("b", ttl=1, **ON_END)
    await driver.queue.finish(TOPIC, "a", ANY_RECEIPT)
    await driver.cancels.cancel_many(TOPIC, [CancelItem(id="c"), CancelItem(id="d")])
    await driver.pass_time(2)


ENDED = [("a", "finished"), ("c", "cancelled"), ("d", "cancelled"), ("b", "dead")]


async def test_a_store_without_memory_ends_jobs_and_puts_what_their_ends_put(driver: EngineDriver) -> None:
    await driver.put("a", **ON_END)
    await driver.put("b", delay=60, **ON_END)
    await driver.pop_one()
    driver.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        await driver.queue.finish(TOPIC, "a", ANY_RECEIPT)
        await driver.cancels.cancel(TOPIC, "b")
    finally:
        driver.server.command("CONFIG", "SET", "maxmemory", "0")
    assert await outcomes(driver) == [("a", "finished"), ("b", "cancelled")]


@pytest.mark.parametrize("name", ["pool", "ready", "cancelled", "taken"])
async def test_where_a_key_of_their_topic_is_damaged_jobs_end_and_put_nothing(driver: EngineDriver, name: str) -> None:
    driver.server.command("SET", f"{KEY}:{name}", "x")
    await end_all(driver)
    assert await driver.counts() == {"dead": 1}
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean
    driver.server.command("DEL", f"{KEY}:{name}")
    assert await outcomes(driver) == []


@pytest.mark.parametrize("name", ["tally", "expiry", "holders", "delay", "events/log", "groups"])
async def test_a_damaged_key_that_a_put_does_not_need_first_costs_no_job_of_an_end(
    driver: EngineDriver, name: str
) -> None:
    driver.server.command("SET", f"{KEY}:{name}", "x")
    await end_all(driver)
    driver.server.command("DEL", f"{KEY}:{name}")
    assert await outcomes(driver) == ENDED


async def test_damaged_items_stop_neither_an_end_nor_the_timer(driver: EngineDriver) -> None:
    for job_id in ("a", "b"):
        await driver.puts.put(job(job_id, on_conflict="append", ttl=1, **ON_END))
        driver.server.command("SET", f"deferd:{{0}}:{TOPIC}:items/{job_id}", "x")
    await driver.put("c", ttl=1)
    await driver.cancels.cancel(TOPIC, "a")
    await driver.pass_time(2)
    assert await driver.counts() == {"dead": 2}
    assert await outcomes(driver) == [("a", "cancelled"), ("b", "dead")]


@pytest.mark.parametrize(("shelved", "job_id"), [(0, "a-cancelled"), (1, "end-")])
async def test_an_id_that_may_be_on_the_shelf_is_not_taken(driver: EngineDriver, shelved: int, job_id: str) -> None:
    driver.server.command("HSET", f"{KEY}:shelf", "jobs", shelved)
    await driver.put("a", delay=60, on_end={"topic": ENDS, "id": "{id}-{outcome}"})
    await driver.cancels.cancel(TOPIC, "a")
    [stored] = driver.server.command("HKEYS", f"{KEY}:pool")
    assert stored.decode().startswith(job_id)


async def test_a_topic_that_has_got_partitions_finds_the_jobs_that_ends_put(server: StoreServer) -> None:
    async with partitioned_topic.unaware_engine(server, movable_clock=True) as engine:
        ended, shard_of = partitioned_topic.TOPIC, engine._keys.shard_of
        topic = next(name for name in map("from{}".format, count()) if shard_of(name) == shard_of(ended))
        ids = [f"a{number}" for number in range(8)]
        await partitioned_topic.put_all(engine, ids, topic, delay=60, on_end={"topic": ended})
        await partitioned_topic.grow(engine)
        await engine.partitions._forget_former(ended, engine.partitions.known.layout_of(ended))
        assert engine.partitions.known.layout_of(ended).counts == (partitioned_topic.COUNT,)
        for job_id in ids:
            await engine.cancels.cancel(topic, job_id)
        popped = await engine.dispatcher.pop([ended], count=len(ids))
        assert sorted(orjson.loads(one.body)["id"] for one in popped) == ids
        for one in popped:
            await engine.queue.finish(ended, one.id, one.receipt)


@pytest.mark.parametrize("damaged", ["7", '"x"', "{}", '{"topic":{}}', '{"topic":"t","on":7}', '{"topic":"t","id":{}}'])
async def test_a_damaged_on_end_stops_neither_the_timer_nor_the_ends_of_others(
    driver: EngineDriver, damaged: str
) -> None:
    on_end = {"on_end": {"topic": ENDS, "id": "of-{id}"}}
    await driver.puts.put_many([job(one, ttl=1, **on_end) for one in ("a", "b")])
    await driver.put("c", ttl=1)
    pool = f"deferd:{{0}}:{TOPIC}:pool"
    was = b'{"topic":"ended","id":"of-{id}"}'
    raw = driver.server.command("HGET", pool, "a")
    assert was in raw
    driver.server.command("HSET", pool, "a", raw.replace(was, damaged.encode().ljust(len(was))))
    await driver.pass_time(2)
    assert await driver.counts() == {"dead": 3}
    assert await outcomes(driver) == [("b", "dead")]


async def test_a_visit_of_the_timer_ends_fewer_jobs_where_ends_matter(driver: EngineDriver) -> None:
    """An end that puts a job takes several times as long as another one."""
    await driver.topics.set(TOPIC, TopicSettings(max_attempts=1, ttr=1))
    await driver.puts.put_many([job(f"a{number}", **ON_END) for number in range(300)])
    await driver.pop(300)
    driver.move_clock(2)
    [timer] = driver.engine.timers
    assert await timer.run_once() == 0
    assert await driver.counts() == {"dead": 200, "reserved": 100}
    assert await timer.run_once() > 0
    assert await driver.counts() == {"dead": 300}


async def begin_batch(driver: EngineDriver) -> StoredBatch:
    batch, _ = await driver.engine.batches.put(
        "batch", PutBatchOfJobs.model_validate({"on_end": {"topic": ENDS}}), None
    )
    return batch


@pytest.mark.parametrize("before", [[{"tags": ["t"]}], [{"delay": 60}] * 101], ids=["one by one", "together"])
async def test_a_batch_with_a_damaged_key_strands_no_job_of_the_same_call(
    driver: EngineDriver, before: list[dict[str, object]]
) -> None:
    driver.server.command("SET", "deferd:{0}:batch/damaged", "x")
    jobs = [job(f"a{number}", **fields) for number, fields in enumerate(before)]
    results = await driver.puts.put_many([*jobs, job("b", batch="damaged"), job("c")])
    assert [result.status for result in results] == [*[201] * len(jobs), 404, 201]
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


@pytest.mark.parametrize("how", ["finished", "cancelled", "replaced"])
async def test_a_damaged_list_of_batches_stops_neither_an_end_nor_the_job_of_a_batch(
    driver: EngineDriver, how: str
) -> None:
    batch = await begin_batch(driver)
    await driver.put("a", batch="batch", delay=0 if how == "finished" else 60)
    await driver.pop()
    await driver.engine.batches.put("batch", PutBatchOfJobs(seal=True), batch)
    driver.server.command("SET", "deferd:{0}:batches/completed", "x")
    match how:
        case "finished":
            await driver.queue.finish(TOPIC, "a", ANY_RECEIPT)
        case "cancelled":
            await driver.cancels.cancel(TOPIC, "a")
        case "replaced":
            await driver.put("a", on_conflict="replace", delay=60)
    assert await driver.counts() == ({"delayed": 1} if how == "replaced" else {})
    [done] = (await driver.queue.pop(ENDS, [PopRequest(2)])).jobs[0]
    assert orjson.loads(done.body)["batch"] == "batch"


async def test_counts_of_a_batch_that_are_no_numbers_strand_no_job(driver: EngineDriver) -> None:
    await begin_batch(driver)
    await driver.put("a", batch="batch")
    await driver.put("b", batch="batch")
    await driver.pop(2)
    await driver.deliveries.bury(TOPIC, "a", ANY_RECEIPT)
    driver.server.command("HSET", "deferd:{0}:batch/batch", "joined", "x", "dead", "x", "finished", "x")
    await driver.put("c", batch="batch")
    await redrive_jobs(driver.engine, TOPIC)
    await driver.queue.finish(TOPIC, "b", ANY_RECEIPT)
    assert await driver.counts() == {"ready": 2}
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


@pytest.mark.parametrize("how", ["put", "put of many", "change"])
async def test_a_job_of_a_former_partition_ends_into_no_topic_of_another_shard(server: StoreServer, how: str) -> None:
    """The partition to which its id belongs now is in the shard of the topic of `on_end`, the job is not."""
    async with partitioned_topic.unaware_engine(server, movable_clock=True) as engine:
        topic, shard_of = partitioned_topic.TOPIC, engine._keys.shard_of
        ids = [f"a{number}" for number in range(8)]
        await partitioned_topic.put_all(engine, ids, delay=60)
        await partitioned_topic.grow(engine)
        home = engine.partitions.known.home
        moved = next(one for one in ids if shard_of(home(topic, one)) != shard_of(topic))
        ended = next(name for name in map("to{}".format, count()) if shard_of(name) == shard_of(home(topic, moved)))
        put = PutJob.model_validate(
            {"topic": topic, "id": moved, "on_end": {"topic": ended}, "on_conflict": "replace", "delay": 60}
        )
        if how == "put of many":
            other = put.model_copy(update={"id": "new", "on_end": None})
            results = await engine.puts.put_many([put, other])
            assert [(result.status, result.code) for result in results] == [(422, "different_shard"), (201, None)]
        else:
            change = ChangeJob.model_validate({"on_end": {"topic": ended}})
            call = engine.puts.put(put) if how == "put" else engine.queue.change(topic, moved, change)
            with pytest.raises(DifferentShard, match=ended):
                await call
        assert (await engine.queue.get(topic, moved)).extra is None
