"""put.lua: every code it can return."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pydantic_core import from_json

from deferd.contract.errors import JobExists, JobReserved, TopicFull
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job


async def test_a_job_without_delay_is_ready_at_once(driver: EngineDriver) -> None:
    put = await driver.put(body={"order": 1})
    assert put.state is JobState.READY
    assert put.due_at_ms == put.created_at_ms
    assert (await driver.pop_one()).body == b'{"order":1}'


async def test_a_delayed_job_waits_in_the_delay_bucket(driver: EngineDriver) -> None:
    put = await driver.put(delay=30)
    assert put.state is JobState.DELAYED
    assert put.due_at_ms == put.created_at_ms + 30_000
    assert await driver.pop() == []
    await driver.pass_time(29.5)
    assert await driver.state() is JobState.DELAYED
    await driver.pass_time(0.6)
    assert await driver.state() is JobState.READY


async def test_a_delay_is_kept_to_the_millisecond(driver: EngineDriver) -> None:
    put = await driver.put(delay=1.2345)
    assert put.due_at_ms - put.created_at_ms in {1234, 1235}


async def test_run_at_is_the_due_time(driver: EngineDriver) -> None:
    run_at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    put = await driver.put(run_at=run_at)
    assert put.due_at_ms == round(run_at.timestamp() * 1000)


async def test_run_at_in_the_past_means_now(driver: EngineDriver) -> None:
    put = await driver.put(run_at=datetime(1969, 1, 1, tzinfo=UTC))
    assert put.state is JobState.READY
    assert put.due_at_ms == put.created_at_ms


async def test_a_job_put_without_an_id_gets_one(driver: EngineDriver) -> None:
    first = (await driver.puts.put(PutJob(topic=TOPIC))).record
    second = (await driver.puts.put(PutJob(topic=TOPIC))).record
    assert first.id != second.id


async def test_an_id_that_is_taken_is_rejected_and_the_old_job_stays(driver: EngineDriver) -> None:
    await driver.put(body="old", delay=5)
    with pytest.raises(JobExists):
        await driver.put(body="new")
    assert (await driver.queue.get(TOPIC, "a")).body == b'"old"'


async def test_keep_returns_the_old_job(driver: EngineDriver) -> None:
    await driver.put(body="old", delay=5)
    kept = await driver.puts.put(job(body="new", on_conflict="keep"))
    assert kept.outcome == "kept"
    assert kept.record.body == b'"old"'
    assert kept.record.state is JobState.DELAYED


async def test_keep_shows_who_holds_a_reserved_job(driver: EngineDriver) -> None:
    await driver.put()
    await driver.pop_one(consumer="worker-1")
    kept = await driver.puts.put(job(on_conflict="keep"))
    assert kept.record.state is JobState.RESERVED
    assert kept.record.reserved_by == "worker-1"


@pytest.mark.parametrize("old_delay", [0, 60])
@pytest.mark.parametrize("new_delay", [0, 60])
async def test_replace_takes_the_old_jobs_place(driver: EngineDriver, old_delay: int, new_delay: int) -> None:
    await driver.put(body="old", delay=old_delay)
    replaced = await driver.puts.put(job(body="new", delay=new_delay, on_conflict="replace"))
    assert replaced.outcome == "replaced"
    assert await driver.counts() == {"delayed" if new_delay else "ready": 1}
    await driver.pass_time(61)
    assert [popped.body for popped in await driver.pop(5)] == [b'"new"']


async def test_replace_of_a_reserved_job_is_refused(driver: EngineDriver) -> None:
    await driver.put(body="old")
    await driver.pop_one()
    with pytest.raises(JobReserved):
        await driver.put(body="new", on_conflict="replace")
    await driver.queue.finish(TOPIC, "a", ANY_RECEIPT)


async def test_replace_brings_a_dead_job_back_as_new(driver: EngineDriver) -> None:
    await driver.put(max_attempts=1)
    await driver.pop_one()
    await driver.queue.release(TOPIC, "a", ANY_RECEIPT)
    assert await driver.state() is JobState.DEAD
    replaced = await driver.put(on_conflict="replace")
    assert replaced.attempts == 0
    assert await driver.counts() == {"ready": 1}


async def test_a_full_topic_refuses_puts_but_not_replacements(driver: EngineDriver) -> None:
    await driver.topics.set(TOPIC, TopicSettings(max_jobs=2))
    await driver.put("a", delay=5)
    await driver.put("b")
    with pytest.raises(TopicFull) as refused:
        await driver.put("c")
    assert refused.value.max_jobs == 2
    with pytest.raises(JobExists):
        await driver.put("a")
    await driver.put("a", on_conflict="replace")
    await driver.cancels.cancel(TOPIC, "a")
    await driver.put("c")


async def test_dead_and_finished_jobs_do_not_fill_a_topic(driver: EngineDriver) -> None:
    await driver.topics.set(TOPIC, TopicSettings(max_jobs=1, retain=60))
    for job_id in ("a", "b"):
        await driver.put(job_id)
        await driver.pop_one()
        await driver.queue.finish(TOPIC, job_id, ANY_RECEIPT)
    assert await driver.counts() == {"finished": 2}
    await driver.put("c")
    with pytest.raises(TopicFull):
        await driver.put("a", on_conflict="replace")


async def test_fields_that_a_job_leaves_out_come_from_its_topic(driver: EngineDriver) -> None:
    await driver.topics.set(
        TOPIC,
        TopicSettings.model_validate(
            {"ttr": 5, "max_attempts": 3, "ttl": 9, "retain": 7, "backoff": {"kind": "fixed", "seconds": 4}}
        ),
    )
    put = await driver.put(ttr=1.5, max_attempts=None)
    assert put.stored("ttr") == 1500
    assert put.stored("max_attempts") == 0
    assert put.stored("ttl") == 9000
    assert put.stored("retain") == 7000
    assert put.stored("backoff")["seconds"] == 4


async def test_a_topics_new_defaults_leave_old_jobs_alone(driver: EngineDriver) -> None:
    await driver.put(delay=60)
    await driver.topics.set(TOPIC, TopicSettings(ttr=5))
    assert (await driver.queue.get(TOPIC, "a")).stored("ttr") is None


async def test_each_job_of_a_batch_has_its_own_result_in_order(driver: EngineDriver) -> None:
    await driver.put("taken", delay=9)
    results = await driver.puts.put_many(
        [
            job("one"),
            job("taken"),
            PutJob(topic="other", id="one"),
            job("taken", on_conflict="keep"),
            job("one"),
            job("one", on_conflict="replace", delay=3),
        ]
    )
    assert [(result.id, result.status, result.code) for result in results] == [
        ("one", 201, None),
        ("taken", 409, "job_exists"),
        ("one", 201, None),
        ("taken", 200, None),
        ("one", 409, "job_exists"),
        ("one", 200, None),
    ]
    assert await driver.counts() == {"delayed": 2}


async def test_a_batch_stops_at_the_topics_limit(driver: EngineDriver) -> None:
    await driver.topics.set(TOPIC, TopicSettings(max_jobs=2))
    results = await driver.puts.put_many([job("a"), job("b"), job("c"), job("a")])
    assert [result.status for result in results] == [201, 201, 429, 409]
    assert results[2].code == "topic_full"


async def test_a_thousand_jobs_go_in_one_call(driver: EngineDriver) -> None:
    results = await driver.puts.put_many([job(f"j{number}", delay=number % 3) for number in range(1000)])
    assert {result.status for result in results} == {201}
    assert await driver.counts() == {"delayed": 666, "ready": 334}


async def test_bodies_come_back_exactly(driver: EngineDriver) -> None:
    body = {
        "big": 2**80,
        "empty": [],
        "none": {},
        "text": "ü\u2028😀\x00",
        "float": 0.1,
        "nested": [[[{}]]],
        "nil": None,
    }
    await driver.put(body=body)
    record = await driver.pop_one()
    assert from_json(record.body) == body
