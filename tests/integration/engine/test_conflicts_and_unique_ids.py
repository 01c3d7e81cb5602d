"""What a put finds under its id: live, dead and finished jobs, and ids that stay taken; puts with a longest wait."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from deferd.contract.errors import JobExists, JobNotFound, TopicFull
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.contract.operations.audits import FindingKind
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job


async def finish(driver: EngineDriver, job_id: str = "a") -> None:
    await driver.pop_one()
    await driver.queue.finish(TOPIC, job_id, ANY_RECEIPT)


async def bury(driver: EngineDriver, job_id: str = "a") -> None:
    await driver.pop_one()
    await driver.deliveries.bury(TOPIC, job_id, ANY_RECEIPT)


# States in results


async def test_the_results_of_a_batch_show_the_states_of_jobs_that_were_there(driver: EngineDriver) -> None:
    await driver.put("dead")
    await bury(driver, "dead")
    await driver.put("finished", retain=60)
    await finish(driver, "finished")
    await driver.put("held")
    await driver.pop_one()
    await driver.put("delayed", delay=60)
    await driver.put("ready")
    names = ("dead", "finished", "held", "delayed", "ready", "new")
    for on_conflict, status in (("keep", 200), ("reject", 409)):
        results = await driver.puts.put_many([job(name, on_conflict=on_conflict, delay=60) for name in names])
        assert [(result.status, result.state) for result in results[:-1]] == [
            (status, JobState.DEAD),
            (status, JobState.FINISHED),
            (status, JobState.RESERVED),
            (status, JobState.DELAYED),
            (status, JobState.READY),
        ]
        assert (results[-1].status, results[-1].state) in {(201, None), (409, JobState.DELAYED)}
    [held] = await driver.puts.put_many([job("held", on_conflict="replace")])
    assert (held.code, held.state) == ("job_reserved", JobState.RESERVED)


async def test_a_kept_job_of_the_same_batch_shows_its_state(driver: EngineDriver) -> None:
    results = await driver.puts.put_many([job("a"), job("a", on_conflict="keep"), job("a")])
    assert [result.state for result in results] == [None, JobState.READY, JobState.READY]
    with_jobs = await driver.puts.put_many_with_jobs([job("a", on_conflict="keep"), job("a")])
    assert [(result.state, record and record.state) for result, record in with_jobs] == [
        (JobState.READY, JobState.READY),
        (JobState.READY, None),
    ]


async def test_a_conflict_says_the_state_and_until_when_the_id_is_taken(driver: EngineDriver) -> None:
    await driver.put(delay=60)
    with pytest.raises(JobExists) as live:
        await driver.put()
    assert (live.value.state, live.value.until) == (JobState.DELAYED, None)
    await driver.cancels.cancel(TOPIC, "a")
    put = await driver.put(retain=60)
    await finish(driver)
    with pytest.raises(JobExists) as finished:
        await driver.put()
    assert finished.value.state is JobState.FINISHED
    assert finished.value.until_ms is not None
    assert 0 <= finished.value.until_ms - put.created_at_ms - 60_000 < 5000


# conflict_with


async def test_nothing_is_left_of_an_ended_job_that_a_put_takes_the_place_of(driver: EngineDriver) -> None:
    for number, on_conflict in enumerate(("reject", "keep", "replace")):
        for ending in (bury, finish):
            job_id = f"{ending.__name__}-{number}"
            await driver.put(job_id, retain=60, unique_for=100)
            await ending(driver, job_id)
            put = await driver.puts.put(job(job_id, on_conflict=on_conflict, conflict_with="live", delay=5))
            assert (put.outcome, put.record.state) == ("created", JobState.DELAYED)
    assert not driver.keys_left() & {"dead", "finished", "taken"}
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


async def test_a_dead_job_gives_its_place_only_if_the_topic_has_room(driver: EngineDriver) -> None:
    await driver.put("dead")
    await bury(driver, "dead")
    await driver.topics.set(TOPIC, TopicSettings(max_jobs=1))
    await driver.put("other")
    with pytest.raises(TopicFull):
        await driver.put("dead", conflict_with="live")
    assert await driver.state("dead") is JobState.DEAD


# unique_for


async def test_an_id_that_stays_taken_says_until_when_and_leaves_nothing(driver: EngineDriver) -> None:
    put = await driver.put(unique_for=60)
    await finish(driver)
    for on_conflict in ("reject", "keep", "replace"):
        with pytest.raises(JobExists) as refused:
            await driver.put(on_conflict=on_conflict)
        assert refused.value.state == "finished"
        assert refused.value.until_ms is not None
        assert 0 <= refused.value.until_ms - put.created_at_ms - 60_000 < 5000
    [result] = await driver.puts.put_many([job("a")])
    assert (result.status, result.state) == (409, JobState.FINISHED)
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean
    await driver.pass_time(61)
    assert "taken" not in driver.keys_left()


async def test_an_id_is_free_at_its_time_also_when_the_timer_is_late(driver: EngineDriver) -> None:
    await driver.put(unique_for=60)
    await finish(driver)
    driver.move_clock(61)
    with pytest.raises(JobNotFound):
        await driver.cancels.cancel(TOPIC, "a")
    await driver.put()
    assert "taken" not in driver.keys_left()


async def test_a_topic_is_not_forgotten_while_it_has_taken_ids(driver: EngineDriver) -> None:
    await driver.put(unique_for=3 * 3600)
    await finish(driver)
    await driver.pass_time(2 * 3600)
    await driver.pass_time(3000)
    with pytest.raises(JobExists):
        await driver.put()
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean
    for _ in range(4):
        await driver.pass_time(3700)
    assert driver.keys_left() == set()


async def test_taken_ids_count_as_tombstones(driver: EngineDriver) -> None:
    await driver.put(unique_for=60)
    await finish(driver)
    assert await driver.engine.usage.jobs(0, [TOPIC]) == (0, 1)


async def test_a_repair_frees_an_id_that_a_live_job_has(driver: EngineDriver) -> None:
    await driver.put(delay=60)
    driver.server.command("ZADD", f"{KEY}:taken", 10**13, "a")
    report = await driver.engine.consistency.audit_topic(TOPIC)
    assert FindingKind.TAKEN_WRONG in report.findings.counts
    await driver.engine.consistency.audit_topic(TOPIC, repair=True)
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean
    assert "taken" not in driver.keys_left()


# max_wait


async def test_a_job_that_ended_does_not_shorten_the_next_wait(driver: EngineDriver) -> None:
    for ending in (bury, finish):
        job_id = ending.__name__
        await driver.put(job_id, retain=60, max_wait=25, on_conflict="replace")
        await ending(driver, job_id)
        driver.move_clock(20)
        put = await driver.put(job_id, delay=10, max_wait=25, on_conflict="replace")
        assert put.due_at_ms == put.created_at_ms + 10_000


async def test_the_longest_wait_counts_within_a_batch(driver: EngineDriver) -> None:
    jobs = [job("a", delay=60), job("a", delay=60, max_wait=60, on_conflict="replace"), job("b")]
    results = await driver.puts.put_many([*jobs, job("a", max_wait=70, on_conflict="replace", delay=70)])
    assert [result.status for result in results] == [201, 200, 201, 200]
    record = await driver.queue.get(TOPIC, "a")
    assert record.due_at_ms == record.created_at_ms + 60_000


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"max_wait": 5, "delay": 6, "on_conflict": "replace"}, "at least the `delay`, 6 seconds"),
        ({"max_wait": 5}, "needs `on_conflict`"),
        ({"max_wait": 5, "on_conflict": "replace", "id": None}, "needs an `id`"),
        ({"unique_for": 5, "id": None}, "needs an `id`"),
        ({"unique_for": 0}, "unique_for"),
        ({"conflict_with": "dead"}, "conflict_with"),
    ],
)
def test_options_that_do_not_fit_together_are_refused(fields: dict[str, object], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        PutJob.model_validate({"topic": TOPIC, "id": "a", **fields})
