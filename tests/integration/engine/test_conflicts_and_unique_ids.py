"""What a put finds under its id: live, dead and finished jobs, and ids that stay taken; puts with a longest wait."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from deferd.contract.errors import JobExists, JobNotFound, JobReserved, TopicFull
from deferd.contract.finding_kinds import FindingKind
from deferd.contract.model import CancelItem, JobState, PutJob, TopicSettings
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs


async def finish(driver: EngineDriver, job_id: str = "a") -> None:
    await driver.pop_one()
    await driver.queue.finish(TOPIC, job_id, ANY_RECEIPT)


async def bury(driver: EngineDriver, job_id: str = "a") -> None:
    await driver.pop_one()
    await driver.queue.bury(TOPIC, job_id, ANY_RECEIPT)


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


@pytest.mark.parametrize("on_conflict", ["reject", "keep", "replace"])
@pytest.mark.parametrize("ending", [bury, finish])
async def test_only_live_jobs_are_in_the_way_if_the_put_says_so(
    driver: EngineDriver, ending: object, on_conflict: str
) -> None:
    await driver.put(retain=60, unique_for=100)
    await ending(driver)  # type: ignore[operator]
    put = await driver.puts.put(job(body="new", on_conflict=on_conflict, conflict_with="live", delay=5))
    assert (put.outcome, put.record.body, put.record.state) == ("created", b'"new"', JobState.DELAYED)
    assert await driver.counts() == {"delayed": 1}
    assert not driver.keys_left() & {"dead", "finished", "taken"}
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


@pytest.mark.parametrize("delay", [0, 60])
async def test_live_jobs_stay_in_the_way(driver: EngineDriver, delay: float) -> None:
    await driver.put(body="old", delay=delay)
    with pytest.raises(JobExists):
        await driver.put(conflict_with="live")
    assert (await driver.puts.put(job(conflict_with="live", on_conflict="keep"))).record.body == b'"old"'
    assert (await driver.puts.put(job(conflict_with="live", on_conflict="replace"))).outcome == "replaced"


async def test_a_held_job_stays_in_the_way(driver: EngineDriver) -> None:
    await driver.put()
    held = await driver.pop_one()
    with pytest.raises(JobReserved):
        await driver.put(conflict_with="live", on_conflict="replace")
    with pytest.raises(JobExists):
        await driver.put(conflict_with="live")
    await driver.queue.finish(TOPIC, "a", held.receipt)


async def test_a_dead_job_gives_its_place_only_if_the_topic_has_room(driver: EngineDriver) -> None:
    await driver.put("dead")
    await bury(driver, "dead")
    await driver.topics.set(TOPIC, TopicSettings(max_jobs=1))
    await driver.put("other")
    with pytest.raises(TopicFull):
        await driver.put("dead", conflict_with="live")
    assert await driver.state("dead") is JobState.DEAD


# unique_for


async def test_the_id_of_a_finished_job_stays_taken(driver: EngineDriver) -> None:
    put = await driver.put(unique_for=60)
    assert put.unique_for_ms == 60_000
    await finish(driver)
    with pytest.raises(JobNotFound):
        await driver.queue.get(TOPIC, "a")
    for on_conflict in ("reject", "keep", "replace"):
        with pytest.raises(JobExists) as refused:
            await driver.put(on_conflict=on_conflict)
        assert refused.value.state == "finished"
        assert refused.value.until_ms is not None
        assert 0 <= refused.value.until_ms - put.created_at_ms - 60_000 < 5000
    results = await driver.puts.put_many([job("a"), job("b")])
    assert [(result.status, result.state) for result in results] == [(409, JobState.FINISHED), (201, None)]
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean
    await driver.pass_time(61)
    assert "taken" not in driver.keys_left()
    await driver.put()


async def test_an_id_is_free_at_its_time_also_when_the_timer_is_late(driver: EngineDriver) -> None:
    await driver.put(unique_for=60)
    await finish(driver)
    driver.move_clock(61)
    await driver.put()
    assert "taken" not in driver.keys_left()


async def test_a_kept_record_and_its_unique_id_end_each_at_its_time(driver: EngineDriver) -> None:
    await driver.put(unique_for=120, retain=60)
    await finish(driver)
    kept = await driver.puts.put(job(on_conflict="keep"))
    assert (kept.outcome, kept.record.state) == ("kept", JobState.FINISHED)
    with pytest.raises(JobExists):
        await driver.put(on_conflict="replace")
    await driver.pass_time(61)
    with pytest.raises(JobExists):
        await driver.put(on_conflict="keep")
    await driver.pass_time(61)
    await driver.put(on_conflict="keep")


async def test_only_a_finish_takes_the_id(driver: EngineDriver) -> None:
    await driver.put("dead", unique_for=60)
    await bury(driver, "dead")
    await driver.put("cancelled", unique_for=60)
    await driver.cancels.cancel(TOPIC, "cancelled")
    assert "taken" not in driver.keys_left()
    await driver.put("cancelled", unique_for=60)


@pytest.mark.parametrize("retain", [0, 30])
async def test_a_cancel_frees_the_id(driver: EngineDriver, retain: float) -> None:
    await driver.put(unique_for=60, retain=retain)
    await finish(driver)
    [result] = await driver.cancels.cancel_many(TOPIC, [CancelItem(id="a")])
    assert result.was is JobState.FINISHED
    with pytest.raises(JobNotFound):
        await driver.cancels.cancel(TOPIC, "a")
    await driver.put()


@pytest.mark.parametrize("state", [None, JobState.FINISHED])
async def test_a_purge_frees_the_ids(driver: EngineDriver, state: JobState | None) -> None:
    for number in range(3):
        await driver.put(f"j{number}", unique_for=60, retain=30 * (number % 2))
        await finish(driver, f"j{number}")
    assert await purge_jobs(driver.engine, TOPIC, state) == 1
    assert not driver.keys_left() & {"taken", "pool", "finished"}


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


async def test_each_put_moves_the_due_time_but_not_beyond_the_longest_wait(driver: EngineDriver) -> None:
    def put(body: int) -> PutJob:
        return job(body=body, delay=10, max_wait=25, on_conflict="replace")

    first = (await driver.puts.put(put(0))).record
    assert first.due_at_ms - first.created_at_ms == 10_000
    assert first.due_by_ms == first.created_at_ms + 25_000
    driver.move_clock(8)
    second = (await driver.puts.put(put(1))).record
    assert second.due_at_ms - second.created_at_ms == 10_000
    driver.move_clock(8)
    third = (await driver.puts.put(put(2))).record
    assert third.due_at_ms == third.due_by_ms == first.due_by_ms
    driver.move_clock(10)
    last = (await driver.puts.put(put(3))).record
    assert last.state is JobState.READY
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean
    assert (await driver.pop_one()).body == b"3"


async def test_the_longest_wait_counts_from_the_first_put_also_if_that_had_none(driver: EngineDriver) -> None:
    first = await driver.put(delay=10)
    driver.move_clock(8)
    second = await driver.put(delay=10, max_wait=15, on_conflict="replace")
    assert second.due_at_ms == first.created_at_ms + 15_000


@pytest.mark.parametrize("ending", [bury, finish])
async def test_a_job_that_ended_does_not_shorten_the_next_wait(driver: EngineDriver, ending: object) -> None:
    await driver.put(retain=60, max_wait=25, on_conflict="replace")
    await ending(driver)  # type: ignore[operator]
    driver.move_clock(20)
    put = await driver.put(delay=10, max_wait=25, on_conflict="replace")
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
