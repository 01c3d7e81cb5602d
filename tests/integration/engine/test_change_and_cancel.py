"""get.lua, change.lua and cancel.lua: every code they can return."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.errors import JobCancelled, JobNotFound, JobReserved, ReceiptStale
from deferd.contract.model import ChangeJob, JobState
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job


def change(**fields: Any) -> ChangeJob:
    return ChangeJob.model_validate(fields)


async def test_get_changes_nothing(driver: EngineDriver) -> None:
    await driver.put(delay=5)
    before = await driver.queue.get(TOPIC, "a")
    assert before == await driver.queue.get(TOPIC, "a")


async def test_get_of_a_missing_job_is_not_found(driver: EngineDriver) -> None:
    with pytest.raises(JobNotFound):
        await driver.queue.get(TOPIC, "a")


async def test_a_delayed_job_can_be_rescheduled(driver: EngineDriver) -> None:
    await driver.put(delay=5)
    changed = await driver.queue.change(TOPIC, "a", change(delay=60))
    assert changed.state is JobState.DELAYED
    await driver.pass_time(10)
    assert await driver.pop() == []
    await driver.pass_time(51)
    assert (await driver.pop_one()).id == "a"


async def test_a_delayed_job_can_be_made_ready_at_once(driver: EngineDriver) -> None:
    await driver.put(delay=5)
    assert (await driver.queue.change(TOPIC, "a", change(delay=0))).state is JobState.READY
    assert (await driver.pop_one()).id == "a"


async def test_a_ready_job_can_be_delayed_again(driver: EngineDriver) -> None:
    await driver.put()
    assert (await driver.queue.change(TOPIC, "a", change(delay=5))).state is JobState.DELAYED
    assert await driver.pop() == []
    await driver.pass_time(6)
    assert [popped.id for popped in await driver.pop(5)] == ["a"]


async def test_a_ready_job_made_due_again_is_handed_out_once(driver: EngineDriver) -> None:
    await driver.put()
    await driver.queue.change(TOPIC, "a", change(delay=0))
    assert [popped.id for popped in await driver.pop(5)] == ["a"]


async def test_fields_that_a_change_leaves_out_stay(driver: EngineDriver) -> None:
    put = await driver.put(delay=5, body={"x": 1}, ttr=7, max_attempts=3)
    changed = await driver.queue.change(TOPIC, "a", change(body={"x": 2}))
    assert changed.due_at_ms == put.due_at_ms
    assert (changed.body, changed.stored("ttr"), changed.stored("max_attempts")) == (b'{"x":2}', 7000, 3)
    changed = await driver.queue.change(TOPIC, "a", change(ttr=8, max_attempts=None))
    assert (changed.body, changed.stored("ttr"), changed.stored("max_attempts")) == (b'{"x":2}', 8000, 0)


async def test_a_changed_ttl_applies(driver: EngineDriver) -> None:
    await driver.put(delay=5)
    await driver.queue.change(TOPIC, "a", change(ttl=10))
    await driver.pass_time(16)
    assert await driver.state() is JobState.DEAD


async def test_a_cleared_ttl_no_longer_applies(driver: EngineDriver) -> None:
    await driver.put(ttl=10)
    await driver.queue.change(TOPIC, "a", change(ttl=None))
    await driver.pass_time(60)
    assert await driver.state() is JobState.READY
    assert "expiry" not in driver.keys_left()


async def test_a_reserved_job_cannot_change(driver: EngineDriver) -> None:
    await driver.put()
    await driver.pop_one()
    with pytest.raises(JobReserved):
        await driver.queue.change(TOPIC, "a", change(delay=5))


async def test_a_missing_dead_or_finished_job_cannot_change(driver: EngineDriver) -> None:
    with pytest.raises(JobNotFound):
        await driver.queue.change(TOPIC, "a", change(delay=5))
    await driver.put(retain=60)
    await driver.pop_one()
    await driver.queue.finish(TOPIC, "a", ANY_RECEIPT)
    with pytest.raises(JobNotFound, match="finished"):
        await driver.queue.change(TOPIC, "a", change(delay=5))
    await driver.put("b")
    await driver.pop_one()
    await driver.queue.bury(TOPIC, "b", ANY_RECEIPT)
    with pytest.raises(JobNotFound, match="redrive"):
        await driver.queue.change(TOPIC, "b", change(delay=5))


async def test_cancel_returns_the_state_of_the_job(driver: EngineDriver) -> None:
    await driver.put("delayed", delay=5)
    await driver.put("reserved")
    await driver.pop_one()
    await driver.put("dead")
    await driver.pop_one()
    await driver.queue.bury(TOPIC, "dead", ANY_RECEIPT)
    await driver.put("finished", retain=60)
    await driver.pop_one()
    await driver.queue.finish(TOPIC, "finished", ANY_RECEIPT)
    await driver.put("ready")
    for state in JobState:
        assert await driver.cancels.cancel(TOPIC, state.value) is state
    assert await driver.counts() == {}


async def test_cancel_of_a_missing_job_is_not_found(driver: EngineDriver) -> None:
    with pytest.raises(JobNotFound):
        await driver.cancels.cancel(TOPIC, "a")


async def test_a_cancelled_job_is_never_handed_out(driver: EngineDriver) -> None:
    await driver.put("a", delay=5)
    await driver.put("b")
    await driver.cancels.cancel(TOPIC, "a")
    await driver.cancels.cancel(TOPIC, "b")
    await driver.pass_time(60)
    assert await driver.pop(5) == []
    assert driver.keys_left() == set()


@pytest.mark.parametrize("way", ["cancelled and put again", "replaced", "rescheduled", "replaced with a delay"])
async def test_an_id_that_becomes_ready_again_goes_to_the_end_of_a_long_ready_list(
    driver: EngineDriver, way: str
) -> None:
    ids = [f"j{number}" for number in range(3000)]
    await driver.puts.put_many([job(job_id) for job_id in ids])
    if way == "cancelled and put again":
        await driver.cancels.cancel(TOPIC, "j1500")
        await driver.put("j1500")
    elif way == "replaced":
        await driver.put("j1500", on_conflict="replace")
    elif way == "rescheduled":
        await driver.queue.change(TOPIC, "j1500", change(delay=5))
        await driver.pass_time(6)
    else:
        await driver.put("j1500", on_conflict="replace", delay=5)
        await driver.pass_time(6)
    assert [popped.id for _ in range(3) for popped in await driver.pop(1000)] == [*ids[:1500], *ids[1501:], "j1500"]


async def test_a_ready_job_that_is_changed_to_be_due_now_keeps_its_place(driver: EngineDriver) -> None:
    """It has been ready all the time."""
    for job_id in ("a", "b"):
        await driver.put(job_id)
    await driver.queue.change(TOPIC, "a", change(delay=0, body="new"))
    assert [popped.id for popped in await driver.pop(5)] == ["a", "b"]


async def test_returned_jobs_come_first_in_their_order(driver: EngineDriver) -> None:
    for job_id in ("a", "b", "c"):
        await driver.put(job_id)
    held = await driver.pop(2)
    await driver.held_jobs.return_popped(held)
    assert await driver.held_jobs.return_popped(await driver.pop(1)) == 1
    await driver.put("d")
    assert driver.ready_list() == ["a", "b", "c", "d"]


async def test_churn_deep_inside_a_long_ready_list_leaves_only_ready_jobs_in_it(driver: EngineDriver) -> None:
    """If ids were left in it, put-only topics would make it grow without limit, and every pop slower."""
    ids = [f"j{number}" for number in range(3000)]
    await driver.puts.put_many([job(job_id) for job_id in ids])
    for _ in range(3):
        for delay in (60, 0):
            churn = [job(job_id, on_conflict="replace", delay=delay) for job_id in ids[1000:2000]]
            await driver.puts.put_many(churn)
    assert len(driver.ready_list()) == len(ids)
    assert await driver.counts() == {"ready": len(ids)}


async def test_the_ready_list_does_not_grow_with_jobs_that_are_put_and_cancelled(driver: EngineDriver) -> None:
    await driver.put("stays")
    await driver.put("j0")
    for number in range(1, 50):
        await driver.put(f"j{number}")
        await driver.cancels.cancel(TOPIC, f"j{number - 1}")
    assert driver.ready_list() == ["stays", "j49"]


async def test_a_job_that_was_cancelled_and_put_again_is_last(driver: EngineDriver) -> None:
    for job_id in ("a", "b", "c"):
        await driver.put(job_id)
    await driver.cancels.cancel(TOPIC, "b")
    await driver.put("b")
    assert [popped.id for popped in await driver.pop(5)] == ["a", "c", "b"]


async def test_the_ready_list_does_not_grow_with_a_job_that_is_replaced_or_delayed(driver: EngineDriver) -> None:
    await driver.put("stays")
    for _ in range(50):
        await driver.put("a", on_conflict="replace")
        await driver.put("a", on_conflict="replace")
        await driver.put("a", on_conflict="replace", delay=60)
        await driver.queue.change(TOPIC, "a", change(delay=0))
        await driver.queue.change(TOPIC, "a", change(delay=60))
    assert driver.ready_list() == ["stays"]


async def test_cancel_may_refuse_a_reserved_job(driver: EngineDriver) -> None:
    await driver.put()
    held = await driver.pop_one()
    with pytest.raises(JobReserved):
        await driver.cancels.cancel(TOPIC, "a", refuse_reserved=True)
    await driver.queue.finish(TOPIC, "a", held.receipt)


async def test_the_holder_of_a_cancelled_job_is_notified(driver: EngineDriver) -> None:
    await driver.put()
    held = await driver.pop_one(consumer="worker-1")
    assert await driver.cancels.cancel(TOPIC, "a") is JobState.RESERVED
    for receipt in (held.receipt, ANY_RECEIPT):
        with pytest.raises(JobCancelled):
            await driver.queue.finish(TOPIC, "a", receipt)
        with pytest.raises(JobCancelled):
            await driver.queue.release(TOPIC, "a", receipt)
        with pytest.raises(JobCancelled):
            await driver.queue.touch(TOPIC, "a", receipt)
        with pytest.raises(JobCancelled):
            await driver.queue.bury(TOPIC, "a", receipt)


async def test_the_holder_of_a_cancelled_job_cannot_touch_the_next_job_of_that_id(driver: EngineDriver) -> None:
    await driver.put()
    held = await driver.pop_one()
    await driver.cancels.cancel(TOPIC, "a")
    await driver.put()
    with pytest.raises(ReceiptStale):
        await driver.queue.finish(TOPIC, "a", held.receipt)
    again = await driver.pop_one()
    with pytest.raises(ReceiptStale):
        await driver.queue.finish(TOPIC, "a", held.receipt)
    await driver.queue.finish(TOPIC, "a", again.receipt)


async def test_the_tombstone_of_a_cancelled_delivery_expires(driver: EngineDriver) -> None:
    await driver.put(ttr=5)
    held = await driver.pop_one()
    await driver.cancels.cancel(TOPIC, "a")
    await driver.pass_time(66)
    with pytest.raises(JobNotFound):
        await driver.queue.finish(TOPIC, "a", held.receipt)
    assert driver.keys_left() == set()
