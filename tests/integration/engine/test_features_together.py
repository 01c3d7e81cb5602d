"""Features of jobs where they meet: tags, deadlines, chains, follow-ups, collections, and calls on many jobs."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.errors import JobCancelled, JobExists, JobNotFound
from deferd.contract.model import ChangeJob, JobState, PutJob
from deferd.engine.bulk_actions import BulkOutcome
from deferd.engine.record import ANY_RECEIPT, JobRecord
from deferd.engine.topic_search import TopicSelection
from deferd.engine.topics import JobFilter
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs
from tests.integration.store.store_contents import Contents, read_contents

TAG = {"tag": "customer:7"}
TAGGED: dict[str, Any] = {"tags": ["customer:7"]}


async def cancel(driver: EngineDriver, **select: Any) -> BulkOutcome:
    return await driver.engine.bulk.cancel(CancelSelected.model_validate({"select": select}))


async def reschedule(driver: EngineDriver, delay: float, **select: Any) -> BulkOutcome:
    call = {"select": select, "delay": delay}
    return await driver.engine.bulk.reschedule(RescheduleSelected.model_validate(call))


def contents(driver: EngineDriver) -> Contents:
    with driver.server.client() as client:
        return read_contents(client, TOPIC)


def tagged(driver: EngineDriver) -> set[str]:
    """The ids in the tag index."""
    index = contents(driver).index
    assert index.keys() <= {"customer:7"}
    return index.get("customer:7", set())


async def is_sound(driver: EngineDriver) -> bool:
    of_topic, of_store = (
        await driver.engine.consistency.audit_topic(TOPIC),
        await driver.engine.consistency.audit_store(),
    )
    return of_topic.clean and of_store.clean


async def hold(driver: EngineDriver, job_id: str = "a", **fields: Any) -> JobRecord:
    await driver.put(job_id, body="held", **fields)
    return await driver.pop_one()


@pytest.mark.parametrize("retain", [0, 60])
async def test_a_tagged_job_is_finished_with_a_tagged_put(driver: EngineDriver, retain: float) -> None:
    held = await hold(driver, **TAGGED, retain=retain, deadline=60, time_limit=30)
    puts = [job("next", **TAGGED, delay=5), job("other")]
    await driver.queue.finish_and_put(TOPIC, "a", held.receipt, puts)
    assert tagged(driver) == {"next"} | ({"a"} if retain else set())
    assert contents(driver).expiry == {}
    assert await is_sound(driver)
    assert (await cancel(driver, **TAG)).done == len({"next"} | ({"a"} if retain else set()))
    assert await driver.counts() == {"ready": 1}
    assert await is_sound(driver)


async def test_a_chain_that_is_refused_leaves_the_tags(driver: EngineDriver) -> None:
    held = await hold(driver, **TAGGED)
    await driver.put("taken", unique_for=60)
    taken = await driver.pop_one()
    await driver.queue.finish(TOPIC, "taken", taken.receipt)
    with pytest.raises(JobExists, match="already has a job 'taken'"):
        await driver.queue.finish_and_put(TOPIC, "a", held.receipt, [job("next", **TAGGED), job("taken", **TAGGED)])
    assert tagged(driver) == {"a"}
    assert await is_sound(driver)


@pytest.mark.parametrize("was_retried", [False, True])
async def test_rescheduled_jobs_have_their_deadline_from_the_new_due_time(
    driver: EngineDriver, was_retried: bool
) -> None:
    await driver.put("late", deadline=100, **TAGGED)
    await driver.put("soon", deadline=100, ttl=50, **TAGGED)
    if was_retried:
        for held in await driver.pop(2):
            driver.move_clock(20)
            await driver.deliveries.release(TOPIC, held.id, held.receipt, delay_ms=1000)
    assert (await reschedule(driver, 300, **TAG)).done == 2
    for job_id in ("late", "soon"):
        moved = await driver.queue.get(TOPIC, job_id)
        assert moved.deadline_at_ms == moved.due_at_ms + 100_000
        ttl_ms = 50_000 if job_id == "soon" and not was_retried else 100_000
        assert contents(driver).expiry[job_id] == moved.due_at_ms + ttl_ms
    assert await is_sound(driver)
    await driver.pass_time(350.5)
    assert await driver.counts() == ({"ready": 2} if was_retried else {"ready": 1, "dead": 1})
    await driver.pass_time(50)
    assert await driver.counts() == {"dead": 2}
    assert await is_sound(driver)


async def test_a_deadline_that_was_removed_does_not_count_from_before_a_reschedule(driver: EngineDriver) -> None:
    held = await hold(driver, deadline=100, **TAGGED)
    await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=1000)
    await driver.queue.change(TOPIC, "a", ChangeJob(deadline=None))
    assert (await reschedule(driver, 300, **TAG)).done == 1
    await driver.queue.change(TOPIC, "a", ChangeJob(deadline=10))
    moved = await driver.queue.get(TOPIC, "a")
    assert moved.deadline_at_ms == moved.due_at_ms + 10_000
    assert await is_sound(driver)


async def test_a_cancel_by_tag_takes_a_held_job_with_a_time_limit(driver: EngineDriver) -> None:
    held = await hold(driver, **TAGGED, time_limit=30, deadline=500)
    assert contents(driver).expiry.keys() == {"a"}
    outcome = await cancel(driver, **TAG)
    assert (outcome.done, outcome.was) == (1, {JobState.RESERVED: 1})
    with pytest.raises(JobCancelled):
        await driver.deliveries.touch(TOPIC, "a", held.receipt)
    assert (contents(driver).expiry, tagged(driver)) == ({}, set())
    assert await is_sound(driver)
    await driver.pass_time(600)
    assert await driver.counts() == {}


@pytest.mark.parametrize("dead_retain", [0, 60])
async def test_a_dead_job_is_found_by_its_tag_as_long_as_it_is_kept(driver: EngineDriver, dead_retain: float) -> None:
    for job_id in ("buried", "exhausted", "lost", "overdue"):
        await driver.put(job_id, dead_retain=dead_retain, max_attempts=1, **TAGGED)
    await driver.pop(4)
    await driver.deliveries.bury(TOPIC, "buried", ANY_RECEIPT)
    await driver.deliveries.release(TOPIC, "exhausted", ANY_RECEIPT)
    await driver.put("expired", dead_retain=dead_retain, ttl=1, **TAGGED)
    await driver.pass_time(61)
    assert len(tagged(driver)) == (0 if dead_retain == 0 else len(contents(driver).pool))
    assert await is_sound(driver)
    await driver.pass_time(61)
    assert tagged(driver) == set()
    assert await is_sound(driver)


async def test_a_pattern_pops_jobs_with_tags_headers_and_limits(driver: EngineDriver) -> None:
    fields = {**TAGGED, "headers": {"tenant": "acme"}, "time_limit": 5, "deadline": 60}
    for topic in ("orders.a", "orders.b"):
        await driver.puts.put(PutJob.model_validate({"topic": topic, "id": "x", **fields}))
    selection = TopicSelection(["orders.*"])
    pop = driver.engine.dispatcher.pop
    jobs = await pop((), selection=selection, count=5, consumer="c", request_id="r")
    again = await pop((), selection=selection, count=5, consumer="c", request_id="r")
    assert {one.topic for one in jobs} == {"orders.a", "orders.b"}
    for one in (*jobs, *again):
        assert (one.tags, one.headers, one.stored("time_limit")) == (["customer:7"], {"tenant": "acme"}, 5000)
        assert one.reserved_until_ms is not None
        assert one.reserved_until_ms - one.due_at_ms < 6000
    assert sorted(one.receipt for one in again) == sorted(one.receipt for one in jobs)


@pytest.mark.parametrize("count", [3, 100, 250])
async def test_new_jobs_that_are_stored_together_have_their_deadlines(driver: EngineDriver, count: int) -> None:
    fields: dict[str, Any] = {"deadline": 60, "delay": 10}
    puts = [job(f"j{number}", **fields, **({"ttl": 20} if number % 2 else {})) for number in range(count)]
    assert {one.status for one in await driver.puts.put_many(puts)} == {201}
    expiry, due = contents(driver).expiry, contents(driver).scores[JobState.DELAYED]
    assert {job_id: at - due[job_id] for job_id, at in expiry.items()} == {
        f"j{number}": 20_000 if number % 2 else 60_000 for number in range(count)
    }
    assert await is_sound(driver)
    await driver.pass_time(31)
    assert (await driver.counts())["dead"] == count // 2
    await driver.pass_time(41)
    assert await driver.counts() == {"dead": count}


@pytest.mark.parametrize("ending", ["finish", "bury", "cancel", "drop"])
async def test_a_follow_up_is_found_by_its_tags_when_it_is_the_job(driver: EngineDriver, ending: str) -> None:
    held = await hold(driver, tags=["of-holder"], deadline=500, dead_retain=0 if ending == "drop" else 60)
    await driver.put(body="next", on_conflict="replace", if_reserved="after", deadline=20, **TAGGED)
    assert contents(driver).index == {"of-holder": {"a"}}
    if ending == "finish":
        await driver.queue.finish(TOPIC, "a", held.receipt)
    elif ending == "cancel":
        await driver.cancels.cancel(TOPIC, "a", keep_follow_up=True)
        driver.move_clock(61)
    else:
        await driver.deliveries.bury(TOPIC, "a", held.receipt)
    assert contents(driver).index == {"customer:7": {"a"}}
    following = await driver.queue.get(TOPIC, "a")
    assert contents(driver).expiry == {"a": following.due_at_ms + 20_000}
    assert await is_sound(driver)
    assert (await cancel(driver, **TAG)).done == 1
    assert driver.keys_left() & {"pool", "follow", "expiry", "tagged", "delay"} == set()
    assert await is_sound(driver)


async def test_a_cancel_by_tag_takes_along_what_waits_for_the_jobs(driver: EngineDriver) -> None:
    await hold(driver, "held", **TAGGED)
    await driver.put("held", on_conflict="append", if_reserved="after", body=1)
    for number in range(3):
        await driver.put("collected", on_conflict="append", delay=60, body=number, **TAGGED)
    assert (await cancel(driver, **TAG)).done == 2
    assert driver.keys_left() & {"pool", "follow", "items", "items/held", "items/collected", "tagged"} == set()
    assert await is_sound(driver)


async def test_a_cancel_of_many_frees_the_ids_of_finished_jobs(driver: EngineDriver) -> None:
    held = await hold(driver, **TAGGED, unique_for=60, retain=60)
    await driver.queue.finish(TOPIC, "a", held.receipt)
    assert contents(driver).taken.keys() == {"a"}
    assert (await cancel(driver, **TAG)).done == 1
    assert contents(driver).taken == {}
    assert (await driver.puts.put(job("a"))).outcome == "created"
    assert await is_sound(driver)


async def test_a_purge_of_finished_jobs_frees_ids_only_without_a_filter(driver: EngineDriver) -> None:
    for job_id in ("plain", "tagged"):
        held = await hold(driver, job_id, unique_for=60, **(TAGGED if job_id == "tagged" else {}))
        await driver.queue.finish(TOPIC, job_id, held.receipt)
    await purge_jobs(driver.engine, TOPIC, JobState.FINISHED, tag="customer:7")
    assert contents(driver).taken.keys() == {"plain", "tagged"}
    await purge_jobs(driver.engine, TOPIC, JobState.FINISHED)
    assert contents(driver).taken == {}


async def test_a_collection_is_handed_out_within_its_time_limit_and_tags(driver: EngineDriver) -> None:
    for number in range(3):
        await driver.put(on_conflict="append", body=number, time_limit=5, **TAGGED)
    assert tagged(driver) == {"a"}
    held = await driver.pop_one(ttr_ms=60_000)
    assert (held.body, held.items, held.tags) == (b"[0,1,2]", 3, ["customer:7"])
    assert held.reserved_until_ms == contents(driver).expiry["a"]
    assert await is_sound(driver)


async def test_an_append_to_a_snoozed_job_follows_it(driver: EngineDriver) -> None:
    held = await hold(driver)
    await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=1000, counts=False)
    put = await driver.puts.put(job(body="next", on_conflict="append"))
    assert (put.outcome, put.record.is_follow_up) == ("follow_up", True)
    await driver.pass_time(1.1)
    snoozed = await driver.pop_one()
    assert (snoozed.body, snoozed.endings.snoozes) == (b'"held"', 1)
    await driver.queue.finish(TOPIC, "a", snoozed.receipt)
    await driver.run_timer()
    assert (await driver.pop_one()).body == b'["next"]'
    assert await is_sound(driver)


async def test_a_search_shows_collected_items(driver: EngineDriver) -> None:
    for number in range(3):
        await driver.put(on_conflict="append", delay=60, body=number, **TAGGED)
    jobs, _, looked = await driver.topics.search(TOPIC, JobFilter(tag="customer:7"))
    assert ([(one.body, one.items) for one in jobs], looked) == ([(b"[0,1,2]", 3)], 1)


async def test_a_chain_onto_the_id_of_a_job_with_a_follow_up_meets_that(driver: EngineDriver) -> None:
    held = await hold(driver)
    await driver.put(body=1, on_conflict="append", if_reserved="after", delay=60)
    results = await driver.queue.finish_and_put(TOPIC, "a", held.receipt, [job(body=2, on_conflict="append", delay=60)])
    assert [(one.status, one.code) for one in results] == [(200, None)]
    collected = await driver.queue.get(TOPIC, "a")
    assert (collected.body, collected.items, collected.state) == (b"[1,2]", 2, JobState.DELAYED)
    assert await is_sound(driver)


async def test_the_id_of_a_chained_job_may_stay_taken(driver: EngineDriver) -> None:
    held = await hold(driver, unique_for=60)
    with pytest.raises(JobExists, match="already has a job") as refused:
        await driver.queue.finish_and_put(TOPIC, "a", held.receipt, [job("a")])
    assert refused.value.state is JobState.FINISHED
    assert await driver.state("a") is JobState.RESERVED
    await driver.queue.finish_and_put(TOPIC, "a", held.receipt, [job("a", conflict_with="live")])
    assert await driver.state("a") is JobState.READY
    with pytest.raises(JobNotFound):
        await driver.queue.get(TOPIC, "b")
    assert await is_sound(driver)
