"""check.lua and return.lua: every result they can have; and since when jobs are held."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.errors import ReceiptStale
from deferd.contract.model import CancelItem, FinishItem, HeldJob, JobState, JobToReturn
from deferd.engine.inspection.job_facts import JobFacts
from deferd.engine.record import ANY_RECEIPT, JobRecord
from deferd.engine.topics import JobFilter
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver

HELD, MISSING, STALE, CANCELLED = (
    (200, None),
    (404, "job_not_found"),
    (409, "receipt_stale"),
    (410, "job_cancelled"),
)


def held(*jobs: JobRecord) -> list[HeldJob]:
    return [HeldJob(id=job.id, receipt=str(job.receipt)) for job in jobs]


async def checked(driver: EngineDriver, *jobs: JobRecord) -> list[tuple[int, str | None]]:
    return [(one.status, one.code) for one in await driver.held_jobs.check_many(TOPIC, held(*jobs))]


async def returned(driver: EngineDriver, *jobs: JobRecord) -> list[tuple[int, str | None]]:
    items = [JobToReturn(id=job.id, receipt=str(job.receipt)) for job in jobs]
    return [(one.status, one.code) for one in await driver.held_jobs.return_many(TOPIC, items)]


async def taken_back(driver: EngineDriver, *ids: str, consumer: str | None = None) -> list[tuple[int, str | None]]:
    items = [JobToReturn(id=job_id) for job_id in ids]
    return [(one.status, one.code) for one in await driver.held_jobs.return_many(TOPIC, items, consumer)]


async def since_ms(driver: EngineDriver, job_id: str = "a") -> int | None:
    """Since when a job is held: everything that reads it says the same."""
    [listed], _ = await driver.topics.jobs(TOPIC, JobState.RESERVED, limit=1)
    [found], _, _ = await driver.topics.search(TOPIC, JobFilter(ids=(job_id,)))
    facts = await driver.topics.why(TOPIC, job_id)
    assert isinstance(facts, JobFacts)
    read = await driver.queue.get(TOPIC, job_id)
    [since] = {one.reserved_since_ms for one in (read, listed, found, facts.record)}
    return since


def now_ms(driver: EngineDriver) -> int:
    seconds, microseconds = driver.server.command("TIME")
    moved = driver.server.command("GET", "deferd:{0}:clock") or 0
    return int(seconds) * 1000 + int(microseconds) // 1000 + int(moved)


async def in_all_states(driver: EngineDriver) -> list[JobRecord]:
    """Deliveries of jobs that became what their ids say."""
    names = ("held", "cancelled", "finished", "kept", "dead", "delayed", "ready", "popped", "replaced")
    for name in names:
        await driver.put(name, ttr=5 if name in {"ready", "popped"} else 600, retain=60 if name == "kept" else 0)
    deliveries = await driver.pop(len(names))
    await driver.pass_time(6)
    [again] = await driver.pop()
    assert again.id == "popped"
    await driver.cancels.cancel_many(TOPIC, [CancelItem(id=name) for name in ("cancelled", "replaced")])
    await driver.queue.finish_many(TOPIC, [FinishItem(id=name) for name in ("finished", "kept")])
    await driver.deliveries.bury(TOPIC, "dead", ANY_RECEIPT)
    await driver.deliveries.release(TOPIC, "delayed", ANY_RECEIPT, delay_ms=60_000)
    await driver.put("replaced")
    return deliveries


async def test_a_check_tells_which_deliveries_are_over(driver: EngineDriver) -> None:
    deliveries = await in_all_states(driver)
    # Another consumer has "popped": only a touch tells.
    expected = [HELD, CANCELLED, MISSING, STALE, STALE, STALE, STALE, HELD, CANCELLED]
    assert await checked(driver, *deliveries) == expected
    assert await driver.counts() == {"delayed": 1, "ready": 2, "reserved": 2, "dead": 1, "finished": 1}


async def test_a_check_forgets_a_cancel_with_its_tombstone(driver: EngineDriver) -> None:
    await driver.put(ttr=5)
    delivery = await driver.pop_one()
    await driver.cancels.cancel(TOPIC, "a")
    driver.move_clock(64)
    assert await checked(driver, delivery) == [CANCELLED]
    driver.move_clock(2)  # and before the timer has removed it
    assert await checked(driver, delivery) == [MISSING]


async def test_a_return_counts_nothing_and_only_live_deliveries_return(driver: EngineDriver) -> None:
    deliveries = await in_all_states(driver)
    expected = [HELD, CANCELLED, MISSING, *[STALE] * 6]
    assert await returned(driver, *deliveries) == expected
    assert driver.ready_list()[0] == "held"
    [again] = await driver.pop()
    assert (again.id, again.attempts, again.endings.snoozes) == ("held", 1, 0)
    assert await returned(driver, deliveries[0]) == [STALE]


async def test_more_jobs_than_one_call_of_the_script_takes_return_in_their_order(driver: EngineDriver) -> None:
    names = [f"j{number:03}" for number in range(600)]
    for name in names:
        await driver.put(name)
    deliveries = await driver.pop(599, request_id="r1")
    assert {HELD} == set(await returned(driver, *deliveries))
    assert driver.ready_list() == names


async def test_a_job_is_taken_back_from_the_consumer_that_holds_it(driver: EngineDriver) -> None:
    await driver.put("a", ttl=10, max_attempts=1)
    await driver.put("next")
    held = await driver.pop_one(consumer="hangs")
    assert await taken_back(driver, "a", consumer="another") == [STALE]
    assert await driver.state() is JobState.RESERVED
    await driver.pass_time(20)
    assert await taken_back(driver, "a", "next", "none", consumer="hangs") == [HELD, STALE, MISSING]
    assert driver.ready_list() == ["a", "next"]
    with pytest.raises(ReceiptStale):
        await driver.deliveries.touch(TOPIC, "a", held.receipt)
    with pytest.raises(ReceiptStale):
        await driver.queue.finish(TOPIC, "a", held.receipt)
    await driver.run_timer()  # its ttl has passed, but it was delivered
    again = await driver.pop_one(consumer="hangs")
    assert (again.id, again.attempts, again.endings.snoozes) == ("a", 1, 1)
    assert await taken_back(driver, "a") == [HELD]
    assert (await driver.queue.get(TOPIC, "a")).endings.snoozes == 2


@pytest.mark.parametrize(
    ("put", "ttr_ms", "noted"),
    [({}, None, False), ({"ttr": 7}, None, False), ({}, 7000, True), ({"time_limit": 7}, None, True)],
    ids=["default ttr", "own ttr", "ttr of the pop", "time limit"],
)
async def test_a_held_job_says_since_when(
    driver: EngineDriver, put: dict[str, Any], ttr_ms: int | None, noted: bool
) -> None:
    await driver.put(**put)
    before = now_ms(driver)
    await driver.pop_one(ttr_ms=ttr_ms)
    since = await since_ms(driver)
    assert since is not None
    assert before <= since <= now_ms(driver)
    assert driver.server.command("HEXISTS", f"{KEY}:requests", "a") == noted  # most pops store nothing
    for seconds, touch_ms in ((2, None), (1, 5000), (1, None)):
        driver.move_clock(seconds)
        await driver.deliveries.touch(TOPIC, "a", ANY_RECEIPT, ttr_ms=touch_ms)
        assert await since_ms(driver) == since
    await taken_back(driver, "a")
    assert (await driver.queue.get(TOPIC, "a")).reserved_since_ms is None
    await driver.pop_one()
    again = await since_ms(driver)
    assert again is not None
    assert again >= since + 4000


async def test_since_when_a_job_is_held_may_not_be_known(driver: EngineDriver) -> None:
    await driver.put()
    await driver.pop_one()
    await driver.deliveries.touch(TOPIC, "a", ANY_RECEIPT)
    assert driver.server.command("HDEL", f"{KEY}:requests", "a")  # as versions leave it that do not note it
    assert await since_ms(driver) is None


@pytest.mark.parametrize("request_id", ["r1", "*r1"])
async def test_a_request_is_forgotten_also_when_it_is_noted_since_when_its_jobs_are_held(
    driver: EngineDriver, request_id: str
) -> None:
    for name in ("a", "b", "c"):
        await driver.put(name)
    popped = await driver.pop(3, request_id=request_id, ttr_ms=7000)
    await driver.deliveries.touch(TOPIC, "b", ANY_RECEIPT)
    again = await driver.pop(3, request_id=request_id)
    assert [job.receipt for job in again] == [job.receipt for job in popped]
    await driver.queue.finish(TOPIC, "a", ANY_RECEIPT)
    assert [job.id for job in await driver.pop(3, request_id=request_id)] == ["b", "c"]
    await driver.queue.finish_many(TOPIC, [FinishItem(id="b"), FinishItem(id="c")])
    assert driver.keys_left().isdisjoint({"requests", f"request/{request_id}"})
    assert not driver.server.command("EXISTS", f"deferd:{{0}}::request/{request_id}")


async def test_a_record_that_cannot_be_read_keeps_no_other_job_from_being_returned(driver: EngineDriver) -> None:
    for name in ("a", "short", "unreadable", "b"):
        await driver.put(name)
    held = await driver.pop(4)
    raw = driver.server.command("HGET", f"{KEY}:pool", "unreadable")
    driver.server.command("HSET", f"{KEY}:pool", "short", "short", "unreadable", raw[:22] + b'\x03\0\0\0{"p' + b"null")
    assert await returned(driver, *held) == [HELD, STALE, STALE, HELD]
    await driver.pop(2)
    assert await taken_back(driver, "a", "short", "unreadable", "b") == [HELD, STALE, STALE, HELD]
    assert driver.ready_list() == ["a", "b"]
