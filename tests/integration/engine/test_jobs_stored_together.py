"""Batches whose jobs the scripts handle together: they end as the same calls one by one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from redis.exceptions import ResponseError

from deferd.contract.errors import JobNotFound
from deferd.contract.fields import POLICY
from deferd.contract.model import FinishItem, JobState, PutJob, TopicSettings
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.script_arguments import PutBounds
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver

OTHER = "orders.single"
TOGETHER = 100
"""As in lua/put.lua."""
COUNTS = (2, TOGETHER, TOGETHER + 1, 2 * TOGETHER + 7)


def put_of(topic: str, fields: dict[str, Any]) -> PutJob:
    return PutJob.model_validate({"topic": topic, **fields})


def drawn_put(draw: random.Random, job_id: str, rare_share: float) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": job_id, "body": draw.choice([None, job_id, {"n": [1.5, "ä"]}, "x" * 300])}
    if draw.random() < 0.7:
        fields["delay"] = draw.choice([0, 500, 6000])
    policy: dict[str, Any] = {"ttl": 3000, "ttr": 700, "max_attempts": 3, "retain": 60}
    policy |= {"deadline": draw.choice([2000, 9000]), "time_limit": 500, "dead_retain": 0, "unique_for": 1000}
    fields |= {name: value for name, value in policy.items() if draw.random() < 0.1}
    rare = {"tags": draw.sample(["x", "y", "z"], 2), "headers": {"tenant": "ä"}, "conflict_with": "live"}
    fields |= {name: value for name, value in rare.items() if draw.random() < rare_share}
    if draw.random() < 0.3:
        fields["on_conflict"] = draw.choice(["reject", "keep", "replace", *(["append"] if rare_share else [])])
    if rare_share and fields.get("on_conflict") == "append" and draw.random() < 0.5:
        fields |= {"max_items": draw.choice([1, 2, 3]), "max_wait": 6000}
    return fields


async def stored_in(driver: EngineDriver, topic: str, ids: list[str]) -> list[Any]:
    """The jobs, without their instants, which differ between calls; how long an appended job waits differs by less."""
    jobs = [await driver.queue.get(topic, job_id) for job_id in ids]
    waits = [round((job.due_at_ms - job.created_at_ms) / 100_000) for job in jobs]
    names = ["id", "state", "body", "attempts", "tags", "headers", "endings", "unique_for_ms", "items"]
    return [
        (*(getattr(job, name) for name in names), [job.stored(field.name) for field in POLICY], wait)
        for job, wait in zip(jobs, waits, strict=True)
    ]


async def in_each_set(driver: EngineDriver, topic: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in ("delay", "ready", "expiry"):
        ids = driver.server.command("ZRANGE", f"deferd:{{0}}:{topic}:{name}", 0, -1)
        found[name] = ids if name == "ready" else sorted(ids)
    found["index"] = {
        tag: [
            member.removeprefix(f"{topic} ".encode())
            for member in driver.server.command("ZRANGE", f"deferd:{{0}}:tag/{tag}", 0, -1)
            if member.startswith(f"{topic} ".encode())
        ]
        for tag in ("x", "y", "z")
    }
    for name in ("tagged", "tally", "items"):
        found[name] = driver.server.command("HGETALL", f"deferd:{{0}}:{topic}:{name}")
    return found


@pytest.mark.parametrize("rare_share", [0, 0.01, 0.2])
@pytest.mark.parametrize("seed", range(len(COUNTS)))
async def test_a_batch_ends_as_its_puts_one_by_one(driver: EngineDriver, seed: int, rare_share: float) -> None:
    draw = random.Random(seed)
    for topic in (TOPIC, OTHER):
        if seed == 3:
            await driver.topics.set(topic, TopicSettings(ttr=900, ttl=4000))
    count = COUNTS[seed]
    ids = [f"job-{draw.randrange(2 * count if seed % 2 else 10**9)}" for _ in range(count)]
    puts = [drawn_put(draw, job_id, rare_share) for job_id in ids]
    before = [drawn_put(draw, draw.choice(ids), rare_share) for _ in range(seed)]
    singly = []
    for fields in before:
        for topic in (TOPIC, OTHER):
            await driver.puts.put_many([put_of(topic, fields)])
    for fields in puts:
        singly += await driver.puts.put_many([put_of(OTHER, fields)])
    together = await driver.puts.put_many([put_of(TOPIC, fields) for fields in puts])
    assert [(one.id, one.status, one.code) for one in together] == [(one.id, one.status, one.code) for one in singly]
    distinct = sorted(set(ids))
    assert await stored_in(driver, TOPIC, distinct) == await stored_in(driver, OTHER, distinct)
    assert await in_each_set(driver, TOPIC) == await in_each_set(driver, OTHER)


async def test_an_existing_job_in_a_later_step_is_kept(driver: EngineDriver) -> None:
    ids = [f"job-{number}" for number in range(3 * TOGETHER)]
    existing = ids[TOGETHER + 50]
    await driver.put(existing, body="first")
    results = await driver.puts.put_many([put_of(TOPIC, {"id": job_id, "body": "second"}) for job_id in ids])
    assert [one.id for one in results if one.status != 201] == [existing]
    assert (await driver.queue.get(TOPIC, existing)).body == b'"first"'
    assert (await driver.counts()) == {"ready": len(ids)}


async def test_a_batch_forgets_that_earlier_jobs_with_its_ids_were_cancelled(driver: EngineDriver) -> None:
    ids = ["a", "b", "c"]
    await driver.puts.put_many([put_of(TOPIC, {"id": job_id}) for job_id in ids])
    held = await driver.pop(3)
    for job_id in ids:
        await driver.cancels.cancel(TOPIC, job_id)
    await driver.puts.put_many([put_of(TOPIC, {"id": job_id}) for job_id in ids])
    await driver.pop(3)
    for job in held:
        await driver.queue.finish(TOPIC, job.id, ANY_RECEIPT)
        with pytest.raises(JobNotFound):  # not JobCancelled, as of the earlier job
            await driver.queue.finish(TOPIC, job.id, ANY_RECEIPT)
    assert await driver.counts() == {}


@pytest.mark.parametrize("size", [3, TOGETHER, 250])
async def test_an_id_may_occur_twice_among_new_jobs(driver: EngineDriver, size: int) -> None:
    puts: list[dict[str, Any]] = [{"id": f"job-{number}"} for number in range(size - 3)]
    puts += [{"id": "a", "body": 1}, {"id": "b", "body": 2}, {"id": "a", "body": 3}]
    results = await driver.puts.put_many([put_of(TOPIC, fields) for fields in puts])
    assert [one.status for one in results] == [201] * (size - 1) + [409]
    assert (await driver.queue.get(TOPIC, "a")).body == b"1"
    assert await driver.counts() == {"ready": size - 1}


@pytest.mark.parametrize("size", [1, 3])
async def test_instants_in_the_past_are_due_now(driver: EngineDriver, size: int) -> None:
    """So the ttl has not passed already."""
    puts = [{"id": f"job-{number}", "run_at": "2020-01-31T09:30:00Z", "ttl": 60} for number in range(size)]
    await driver.puts.put_many([put_of(TOPIC, fields) for fields in puts])
    jobs = await driver.pop(size)
    assert [job.due_at_ms for job in jobs] == [job.created_at_ms for job in jobs]
    assert len(jobs) == size


async def test_a_batch_within_a_limit_stores_no_more_than_that(driver: EngineDriver) -> None:
    await driver.topics.set(TOPIC, TopicSettings(max_jobs=150))
    results = await driver.puts.put_many([put_of(TOPIC, {"id": f"job-{number}"}) for number in range(300)])
    assert [one.status for one in results] == [201] * 150 + [429] * 150
    assert await driver.counts() == {"ready": 150}


async def test_a_batch_within_the_limit_of_its_caller_stores_no_more_than_that(driver: EngineDriver) -> None:
    jobs = [put_of(TOPIC, {"id": f"job-{number}"}) for number in range(300)]
    results = await driver.puts.put_many(jobs, PutBounds(max_jobs=150))
    assert [one.status for one in results] == [201] * 150 + [429] * 150


@pytest.mark.parametrize("count", [64, 65, 300])
async def test_many_deliveries_of_a_request_are_repeated_and_forgotten(driver: EngineDriver, count: int) -> None:
    ids = [f"job-{number}" for number in range(count)]
    await driver.puts.put_many([put_of(TOPIC, {"id": job_id}) for job_id in ids])
    held = await driver.pop(count, request_id="r1", consumer="c1")
    request = f"{KEY}:request/r1"
    expected = {job.id: b"%d %d 1 0" % (2 * at + 1, job.nonce) for at, job in enumerate(held)}
    assert [job.id for job in held] == ids
    assert driver.server.command("HGETALL", request) == {key.encode(): value for key, value in expected.items()}
    assert set(driver.server.command("HVALS", f"{KEY}:requests")) == {b"r1"}
    assert set(driver.server.command("HVALS", f"{KEY}:holders")) == {b"c1"}
    if count > 64:  # not one list, which each access would scan
        for key in (request, f"{KEY}:requests", f"{KEY}:holders"):
            assert driver.server.command("OBJECT", "ENCODING", key) == b"hashtable"
    again = await driver.pop(count, request_id="r1", consumer="c1")
    assert [(job.id, job.receipt) for job in again] == [(job.id, job.receipt) for job in held]
    for job in again:
        await driver.queue.finish(TOPIC, job.id, job.receipt)
    assert driver.keys_left().isdisjoint({"request/r1", "requests", "holders", "pool"})


async def test_requests_of_one_call_are_remembered_apart(driver: EngineDriver) -> None:
    await driver.puts.put_many([put_of(TOPIC, {"id": f"job-{number}"}) for number in range(9)])
    requests = [PopRequest(3, consumer=f"c{at}", request_id=f"r{at}") for at in range(3)]
    first = await driver.queue.pop(TOPIC, requests)
    again = await driver.queue.pop(TOPIC, requests)
    assert [[job.id for job in jobs] for jobs in first.jobs] == [[job.id for job in jobs] for jobs in again.jobs]
    for at, jobs in enumerate(first.jobs):
        assert {(await driver.queue.get(TOPIC, job.id)).reserved_by for job in jobs} == {f"c{at}"}
    items = [FinishItem(id=job.id, receipt=str(job.receipt)) for jobs in first.jobs for job in jobs]
    assert [one.status for one in await driver.queue.finish_many(TOPIC, items)] == [200] * 9
    assert driver.keys_left() == set()


async def test_later_work_does_not_write_the_timers_schedule(driver: EngineDriver) -> None:
    await driver.put("soon", delay=5)
    due = driver.server.command("ZSCORE", "deferd:{0}:due", TOPIC)
    await driver.put("later", delay=50)
    assert driver.server.command("ZSCORE", "deferd:{0}:due", TOPIC) == due
    await driver.put("sooner", delay=1)
    assert driver.server.command("ZSCORE", "deferd:{0}:due", TOPIC) < due
    assert await driver.state("later") is JobState.DELAYED


async def test_many_topics_are_not_one_list_either(driver: EngineDriver) -> None:
    settings, encodings = "deferd:{0}:settings", set()
    for number in range(66):
        encodings.add((number < 64, driver.server.command("OBJECT", "ENCODING", settings) if number else b"listpack"))
        await driver.puts.put_many([put_of(f"topic-{number}", {"id": "a"})])
    assert encodings == {(True, b"listpack"), (False, b"listpack"), (False, b"hashtable")}
    assert set(driver.server.command("HVALS", settings)) == {b""}


async def test_a_damaged_set_of_cancelled_jobs_fails_a_batch_before_a_job_is_stored(driver: EngineDriver) -> None:
    await driver.put("known")
    driver.server.command("SET", f"{KEY}:cancelled", "damaged")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await driver.puts.put_many([put_of(TOPIC, {"id": f"job-{number}"}) for number in range(TOGETHER)])
    assert driver.server.command("HKEYS", f"{KEY}:pool") == [b"known"]
