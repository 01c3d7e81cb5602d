"""Follow-ups: puts that wait while a consumer holds the job, and take its place when it has ended."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from deferd.contract.errors import JobCancelled, JobNotFound
from deferd.contract.model import CancelItem, FinishItem, JobState, TopicSettings
from deferd.engine.record import ANY_RECEIPT, JobRecord
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs

Ending = Callable[[EngineDriver, JobRecord], Coroutine[Any, Any, None]]


async def finish(driver: EngineDriver, held: JobRecord) -> None:
    await driver.queue.finish(TOPIC, held.id, held.receipt)


async def bury(driver: EngineDriver, held: JobRecord) -> None:
    await driver.deliveries.bury(TOPIC, held.id, held.receipt, error="poison")


async def exhaust(driver: EngineDriver, held: JobRecord) -> None:
    await driver.deliveries.release(TOPIC, held.id, held.receipt, error="poison")


async def lose_the_last_lease(driver: EngineDriver, held: JobRecord) -> None:
    await driver.pass_time(61)


async def hold(driver: EngineDriver, job_id: str = "a", **fields: Any) -> JobRecord:
    await driver.put(job_id, body="held", **fields)
    return await driver.pop_one()


async def follow(driver: EngineDriver, body: Any, on_conflict: str = "replace", **fields: Any) -> tuple[str, JobRecord]:
    put = await driver.puts.put(job(body=body, on_conflict=on_conflict, if_reserved="after", **fields))
    return put.outcome, put.record


async def is_sound(driver: EngineDriver) -> bool:
    return (await driver.engine.consistency.audit_topic(TOPIC)).clean


@pytest.mark.parametrize("retain", [0, 600])
async def test_a_follow_up_becomes_the_job_when_the_holder_has_ended(driver: EngineDriver, retain: float) -> None:
    for ending in (finish, bury, exhaust, lose_the_last_lease):
        await check_follow_up_of(driver, ending, retain)


async def check_follow_up_of(driver: EngineDriver, ending: Ending, retain: float) -> None:
    held = await hold(driver, max_attempts=1, retain=retain, unique_for=600)
    outcome, record = await follow(driver, "next")
    assert (outcome, record.state, record.is_follow_up) == ("follow_up", JobState.DELAYED, True)
    assert await driver.pop() == []
    assert (await driver.counts(), await is_sound(driver)) == ({"reserved": 1}, True)
    await ending(driver, held)
    await driver.run_timer()
    assert (await driver.counts(), await is_sound(driver)) == ({"ready": 1}, True)
    following = await driver.pop_one()
    lost = "the lease ended before the job was finished"
    errors: dict[Ending, str | None] = {finish: None, lose_the_last_lease: lost}
    assert (following.body, following.attempts) == (b'"next"', 1)
    assert following.last_error == errors.get(ending, "poison")
    await finish(driver, following)
    assert not driver.keys_left() & {"pool", "follow", "reserved"}
    assert await is_sound(driver)


async def test_a_job_that_nobody_holds_is_put_as_usual(driver: EngineDriver) -> None:
    assert (await follow(driver, 1))[0] == "created"
    assert (await follow(driver, 2))[0] == "replaced"
    assert (await follow(driver, 3, "keep"))[0] == "kept"
    assert "follow" not in driver.keys_left()


async def test_a_follow_up_keeps_its_due_time(driver: EngineDriver) -> None:
    held = await hold(driver)
    _, record = await follow(driver, 1, delay=600, ttl=30)
    await finish(driver, held)
    stored = await driver.queue.get(TOPIC, "a")
    assert (stored.state, stored.due_at_ms) == (JobState.DELAYED, record.due_at_ms)
    assert await is_sound(driver)
    driver.move_clock(631)
    await driver.run_timer()
    assert await driver.counts() == {"dead": 1}


async def test_a_follow_up_that_waited_is_due_when_the_holder_ends(driver: EngineDriver) -> None:
    held = await hold(driver)
    _, record = await follow(driver, 1)
    driver.move_clock(30)
    await finish(driver, held)
    assert (await driver.queue.get(TOPIC, "a")).due_at_ms >= record.due_at_ms + 30_000


async def test_the_longest_wait_of_follow_ups_counts_from_the_first_of_them(driver: EngineDriver) -> None:
    await hold(driver, ttr=600)
    _, first = await follow(driver, 1, delay=10, max_wait=15)
    driver.move_clock(10)
    _, second = await follow(driver, 2, delay=10, max_wait=15)
    assert second.due_at_ms == first.created_at_ms + 15_000


@pytest.mark.parametrize("returns", ["release", "lease end", "return to queue"])
async def test_a_job_that_comes_back_runs_before_its_follow_up(driver: EngineDriver, returns: str) -> None:
    held = await hold(driver)
    await follow(driver, "next")
    if returns == "release":
        await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=5000)
        await driver.pass_time(6)
    elif returns == "lease end":
        await driver.pass_time(61)
    else:
        await driver.held_jobs.return_popped([held])
    assert await is_sound(driver)
    again = await driver.pop_one()
    assert again.body == b'"held"'
    assert await driver.pop() == []
    assert (await follow(driver, "newest"))[0] == "replaced"
    await finish(driver, again)
    await driver.run_timer()
    assert (await driver.pop_one()).body == b'"newest"'


async def test_a_put_that_replaces_a_job_on_retry_replaces_its_follow_up_too(driver: EngineDriver) -> None:
    held = await hold(driver)
    await follow(driver, "next")
    await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=5000)
    assert (await follow(driver, "newest"))[0] == "replaced"
    assert "follow" not in driver.keys_left()
    assert (await driver.pop_one()).body == b'"newest"'


@pytest.mark.parametrize("many", [False, True])
async def test_a_cancel_takes_the_follow_up_along(driver: EngineDriver, many: bool) -> None:
    for is_on_retry in (False, True):
        held = await hold(driver)
        await follow(driver, 1)
        if is_on_retry:
            await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=5000)
        if many:
            await driver.cancels.cancel_many(TOPIC, [CancelItem(id="a")])
        else:
            await driver.cancels.cancel(TOPIC, "a")
        assert not driver.keys_left() & {"pool", "follow"}
        with pytest.raises(JobNotFound if is_on_retry else JobCancelled):
            await finish(driver, held)
        assert await is_sound(driver)


@pytest.mark.parametrize("many", [False, True])
async def test_a_cancel_keeps_the_follow_up_if_asked_but_not_before_the_lease_would_have_ended(
    driver: EngineDriver, many: bool
) -> None:
    held = await hold(driver)
    await follow(driver, 1)
    if many:
        [result] = await driver.cancels.cancel_many(TOPIC, [CancelItem(id="a", follow_up="keep")])
        assert result.was is JobState.RESERVED
    else:
        assert await driver.cancels.cancel(TOPIC, "a", keep_follow_up=True) is JobState.RESERVED
    assert held.reserved_until_ms is not None
    assert (await driver.queue.get(TOPIC, "a")).due_at_ms == held.reserved_until_ms
    await driver.pass_time(61)
    assert (await driver.pop_one()).body == b"1"
    assert await is_sound(driver)


async def test_a_cancel_on_retry_lets_the_follow_up_run_at_once_if_asked(driver: EngineDriver) -> None:
    held = await hold(driver)
    await follow(driver, 1)
    await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=5000)
    assert await driver.cancels.cancel(TOPIC, "a", keep_follow_up=True) is JobState.DELAYED
    await driver.run_timer()
    assert (await driver.pop_one()).body == b"1"


async def test_a_purge_takes_follow_ups_along(driver: EngineDriver) -> None:
    for state in (None, JobState.RESERVED):
        await hold(driver)
        await follow(driver, 1)
        assert await purge_jobs(driver.engine, TOPIC, state) == 1
        assert not driver.keys_left() & {"pool", "follow"}


async def test_a_full_topic_takes_follow_ups(driver: EngineDriver) -> None:
    await driver.topics.set(TOPIC, TopicSettings(max_jobs=1))
    held = await hold(driver)
    await follow(driver, 1)
    await finish(driver, held)
    assert await driver.counts() == {"delayed": 1}


async def test_an_expired_job_that_came_back_gives_its_place(driver: EngineDriver) -> None:
    held = await hold(driver, ttl=30)
    await follow(driver, "next")
    await driver.held_jobs.return_popped([held])
    driver.move_clock(31)
    assert await driver.pop() == []
    await driver.run_timer()
    assert (await driver.pop_one()).body == b'"next"'
    assert await is_sound(driver)


async def test_without_memory_a_holder_can_end(driver: EngineDriver) -> None:
    held = await hold(driver)
    await follow(driver, 1)
    driver.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        await finish(driver, held)
    finally:
        driver.server.command("CONFIG", "SET", "maxmemory", "0")
    await driver.run_timer()
    assert (await driver.pop_one()).body == b"1"


async def test_no_update_is_lost_and_none_runs_beside_another(driver: EngineDriver) -> None:  # noqa: PLR0912
    """300 calls by chance on one id: what was put last is delivered last, and one consumer at a time holds the job."""
    chance = random.Random(1)
    newest, held, handed_out = 0, list[JobRecord](), list[int]()
    for _ in range(300):
        verb = chance.choice(("put", "put", "pop", "pop", "finish", "release", "bury", "return", "time"))
        if verb == "put":
            newest += 1
            await follow(driver, newest, conflict_with="live", delay=chance.choice((0, 5)))
        elif verb == "pop":
            popped = await driver.pop(2)
            assert len(held) + len(popped) <= 1
            held += popped
            handed_out += [int(one.body) for one in popped]
        elif verb == "time":
            await driver.pass_time(chance.choice((1, 5, 5, 70)))
            if held and held[0].reserved_until_ms is not None and await driver.state() is not JobState.RESERVED:
                held = []
        elif held:
            one = held.pop()
            if verb == "finish":
                await finish(driver, one)
            elif verb == "bury":
                await bury(driver, one)
            elif verb == "release":
                await driver.deliveries.release(TOPIC, "a", one.receipt, delay_ms=1000)
            else:
                await driver.held_jobs.return_popped([one])
            await driver.run_timer()
        assert handed_out == sorted(handed_out)
    assert await is_sound(driver)
    if held:
        await finish(driver, held[0])
    for _ in range(2):
        await driver.pass_time(5)
        for one in await driver.pop():
            handed_out.append(int(one.body))
            await driver.queue.finish(TOPIC, "a", ANY_RECEIPT)
    assert handed_out[-1] == newest


async def test_the_longest_wait_counts_again_once_a_job_was_snoozed(driver: EngineDriver) -> None:
    held = await hold(driver, on_conflict="replace", max_wait=15)
    driver.move_clock(20)
    await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=5000, counts=False)
    replacing = await driver.put(on_conflict="replace", delay=10, max_wait=15)
    assert replacing.due_at_ms == replacing.created_at_ms + 10_000


async def test_a_second_finish_in_a_batch_meets_the_follow_up(driver: EngineDriver) -> None:
    held = await hold(driver)
    await follow(driver, 1)
    item = FinishItem(id="a", receipt=str(held.receipt))
    first, second = await driver.queue.finish_many(TOPIC, [item, item])
    assert (first.code, second.code) == (None, None)  # the second repeats the first
    assert await is_sound(driver)
