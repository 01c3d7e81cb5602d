"""pop.lua, return.lua, touch.lua and the end of leases: every result they can have."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from prometheus_client import REGISTRY

from deferd.contract.errors import JobNotFound, ReceiptStale
from deferd.contract.model import JobState, PutJob
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT, Receipt
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver


async def test_jobs_are_handed_out_in_the_order_they_became_ready(driver: EngineDriver) -> None:
    await driver.put("late", delay=2)
    await driver.put("early", delay=1)
    await driver.put("now")
    await driver.pass_time(3)
    assert [popped.id for popped in await driver.pop(5)] == ["now", "early", "late"]


async def test_a_popped_job_carries_its_lease(driver: EngineDriver) -> None:
    await driver.put(ttr=5)
    popped = await driver.pop_one(consumer="worker-1")
    assert popped.state is JobState.RESERVED
    assert popped.attempts == 1
    assert popped.reserved_by == "worker-1"
    stored = await driver.queue.get(TOPIC, "a")
    assert stored == popped
    assert popped.reserved_until_ms is not None
    assert 4000 <= popped.reserved_until_ms - popped.due_at_ms <= 10_000


async def test_a_pop_can_choose_the_lease(driver: EngineDriver) -> None:
    await driver.put(ttr=5)
    popped = await driver.pop_one(ttr_ms=100_000)
    assert popped.reserved_until_ms is not None
    assert popped.reserved_until_ms - popped.due_at_ms > 90_000


async def test_requests_of_one_call_are_served_in_order(driver: EngineDriver) -> None:
    for number in range(5):
        await driver.put(f"j{number}")
    reply = await driver.queue.pop(TOPIC, [PopRequest(2, consumer="x"), PopRequest(2, consumer="y"), PopRequest(9)])
    assert [[popped.id for popped in jobs] for jobs in reply.jobs] == [["j0", "j1"], ["j2", "j3"], ["j4"]]
    assert reply.jobs[1][0].reserved_by == "y"
    assert not reply.more


async def test_more_reports_jobs_that_are_left(driver: EngineDriver) -> None:
    await driver.put("a")
    await driver.put("b")
    assert (await driver.queue.pop(TOPIC, [PopRequest(1)])).more
    assert not (await driver.queue.pop(TOPIC, [PopRequest(1)])).more


@pytest.mark.parametrize(
    ("body_bytes", "wanted", "handed_out", "more"),
    [
        pytest.param([1, 1, 1], 2, 2, True, id="as many as wanted, of more"),
        pytest.param([1, 1], 2, 2, False, id="as many as wanted, and no more"),
        pytest.param([1, 1], 3, 2, False, id="all"),
        pytest.param([600_000, 600_000], 3, 1, True, id="as many as fit"),
        pytest.param([1_200_000, 1], 3, 1, True, id="one that does not fit alone"),
        pytest.param([1_200_000], 3, 1, False, id="all, which do not fit"),
    ],
)
async def test_more_reports_jobs_that_are_left_by_a_pop_of_several(
    driver: EngineDriver, body_bytes: list[int], wanted: int, handed_out: int, more: bool
) -> None:
    for number, size in enumerate(body_bytes):
        await driver.put(f"j{number}", body="x" * size)
    reply = await driver.queue.pop(TOPIC, [PopRequest(wanted)])
    assert (len(reply.jobs[0]), reply.more) == (handed_out, more)


async def test_more_reports_a_job_whose_items_do_not_fit(driver: EngineDriver) -> None:
    await driver.put("first", body="x" * 600_000)
    await driver.put("items", body="x" * 600_000, on_conflict="append")
    reply = await driver.queue.pop(TOPIC, [PopRequest(3)])
    assert ([job.id for job in reply.jobs[0]], reply.more) == (["first"], True)
    assert [job.id for job in await driver.pop(3)] == ["items"]


async def test_a_topic_that_does_not_exist_has_no_jobs(driver: EngineDriver) -> None:
    assert await driver.pop() == []


async def test_a_job_whose_lease_ends_is_ready_again_at_once(driver: EngineDriver) -> None:
    await driver.put(ttr=5)
    held = await driver.pop_one(consumer="worker-1")
    await driver.pass_time(5.1)
    stored = await driver.queue.get(TOPIC, "a")
    assert (stored.state, stored.attempts, stored.reserved_by) == (JobState.READY, 1, None)
    again = await driver.pop_one()
    assert again.attempts == 2
    assert again.receipt != held.receipt
    with pytest.raises(ReceiptStale):
        await driver.queue.finish(TOPIC, "a", held.receipt)


async def test_a_lease_that_ends_on_the_last_attempt_ends_in_dead(driver: EngineDriver) -> None:
    await driver.put(ttr=5, max_attempts=1)
    await driver.pop_one()
    await driver.pass_time(6)
    stored = await driver.queue.get(TOPIC, "a")
    assert (stored.state, stored.reason, stored.attempts) == (JobState.DEAD, "attempts_exhausted", 1)
    assert stored.last_error


async def test_touch_extends_the_lease_by_the_jobs_ttr(driver: EngineDriver) -> None:
    await driver.put(ttr=5)
    held = await driver.pop_one()
    for _ in range(4):
        await driver.pass_time(4)
        assert await driver.deliveries.touch(TOPIC, "a", held.receipt) > 0
    assert await driver.state() is JobState.RESERVED
    await driver.pass_time(5.1)
    assert await driver.state() is JobState.READY


async def test_touch_can_choose_the_time(driver: EngineDriver) -> None:
    await driver.put(ttr=5)
    await driver.pop_one()
    await driver.deliveries.touch(TOPIC, "a", ANY_RECEIPT, ttr_ms=60_000)
    await driver.pass_time(50)
    assert await driver.state() is JobState.RESERVED


async def test_touch_needs_a_live_delivery(driver: EngineDriver) -> None:
    with pytest.raises(JobNotFound):
        await driver.deliveries.touch(TOPIC, "a", ANY_RECEIPT)
    await driver.put()
    with pytest.raises(ReceiptStale):
        await driver.deliveries.touch(TOPIC, "a", ANY_RECEIPT)


async def test_returned_jobs_are_next_in_their_order_and_no_attempt_counts(driver: EngineDriver) -> None:
    for job_id in ("a", "b", "c"):
        await driver.put(job_id)
    held = await driver.pop(2, consumer="gone")
    assert await driver.held_jobs.return_popped(held) == 2
    again = await driver.pop(3)
    assert [popped.id for popped in again] == ["a", "b", "c"]
    assert [popped.attempts for popped in again] == [1, 1, 1]
    assert again[0].reserved_by is None


async def test_the_receipt_of_a_returned_delivery_is_stale(driver: EngineDriver) -> None:
    await driver.put()
    held = await driver.pop_one()
    await driver.held_jobs.return_popped([held])
    await driver.pop_one()
    with pytest.raises(ReceiptStale):
        await driver.queue.finish(TOPIC, "a", held.receipt)


async def test_a_delivery_that_is_not_live_is_not_returned(driver: EngineDriver) -> None:
    await driver.put(ttr=5)
    held = await driver.pop_one()
    await driver.pass_time(6)
    await driver.pop_one()
    assert await driver.held_jobs.return_popped([held]) == 0
    await driver.cancels.cancel(TOPIC, "a")
    assert await driver.held_jobs.return_popped([held]) == 0


async def test_a_returned_job_still_expires(driver: EngineDriver) -> None:
    await driver.put(ttl=10)
    await driver.held_jobs.return_popped([await driver.pop_one()])
    await driver.pass_time(11)
    assert await driver.state() is JobState.DEAD


async def test_a_repeated_request_gets_the_same_deliveries(driver: EngineDriver) -> None:
    for job_id in ("a", "b", "c"):
        await driver.put(job_id)
    first = await driver.pop(2, request_id="r1", consumer="worker-1")
    again = await driver.pop(2, request_id="r1", consumer="worker-1")
    assert again == first
    await driver.queue.finish(TOPIC, "a", first[0].receipt)
    assert [popped.id for popped in await driver.pop(2, request_id="r1")] == ["b"]


async def test_the_consumer_that_repeats_a_request_is_the_holder(driver: EngineDriver) -> None:
    await driver.put()
    await driver.pop_one(request_id="r1", consumer="worker-1")
    again = await driver.pop_one(request_id="r1", consumer="worker-2")
    assert again.reserved_by == "worker-2"
    assert await driver.queue.get(TOPIC, "a") == replace(again, request_id=None)
    nameless = await driver.pop_one(request_id="r1")
    assert await driver.queue.get(TOPIC, "a") == replace(nameless, request_id=None)


async def test_repeated_deliveries_are_not_counted_again(driver: EngineDriver) -> None:
    def popped_and_waited() -> list[float | None]:
        names = ("deferd_pops_total", "deferd_ready_wait_seconds_count")
        return [REGISTRY.get_sample_value(name, {"topic": TOPIC}) for name in names]

    await driver.put()
    await driver.pop_one(request_id="r1")
    counted = popped_and_waited()
    await driver.pop_one(request_id="r1")
    assert counted == popped_and_waited()


async def test_a_request_id_whose_deliveries_have_ended_is_new(driver: EngineDriver) -> None:
    await driver.put("a")
    await driver.put("b")
    first = await driver.pop_one(request_id="r1")
    await driver.queue.finish(TOPIC, first.id, first.receipt)
    assert (await driver.pop_one(request_id="r1")).id == "b"


async def test_a_request_without_jobs_is_not_remembered(driver: EngineDriver) -> None:
    assert await driver.pop(1, request_id="r1") == []
    await driver.put()
    assert (await driver.pop_one(request_id="r1")).id == "a"


async def test_a_request_repeated_in_one_call_is_one_request(driver: EngineDriver) -> None:
    await driver.put("a")
    await driver.put("b")
    twice = [PopRequest(1, request_id="r1"), PopRequest(1, request_id="r1"), PopRequest(1)]
    reply = await driver.queue.pop(TOPIC, twice)
    assert [[popped.id for popped in jobs] for jobs in reply.jobs] == [["a"], ["a"], ["b"]]


async def test_requests_repeated_in_one_call_do_not_make_its_reply_larger_than_a_pop_may_be(
    driver: EngineDriver,
) -> None:
    for job_id in ("a", "b", "c"):
        await driver.put(job_id, body="x" * 3_000_000)
    first = await driver.pop(3, request_id="r1")
    repeated = [PopRequest(1, request_id="r1")] * 10
    reply = await driver.queue.pop(TOPIC, repeated)
    assert [first] + [[]] * 9 == reply.jobs
    assert list(range(1, 10)) == list(reply.resend)


async def test_a_delivery_whose_request_was_repeated_is_not_returned(driver: EngineDriver) -> None:
    await driver.put()
    lost = await driver.pop(1, request_id="r1")
    again = await driver.pop(1, request_id="r1")
    assert await driver.held_jobs.return_popped(lost) == 0
    await driver.queue.finish(TOPIC, "a", again[0].receipt)


async def test_a_delivery_whose_request_was_not_repeated_is_returned(driver: EngineDriver) -> None:
    await driver.put()
    assert await driver.held_jobs.return_popped(await driver.pop(1, request_id="r1")) == 1
    assert (await driver.pop_one(request_id="r1")).attempts == 1


async def test_a_job_past_its_ttl_is_not_handed_out_even_when_the_timer_is_late(driver: EngineDriver) -> None:
    await driver.put("old", ttl=10)
    driver.move_clock(11)
    await driver.put("new")
    assert [popped.id for popped in await driver.pop(5)] == ["new"]
    stored = await driver.queue.get(TOPIC, "old")
    assert (stored.state, stored.reason) == (JobState.DEAD, "expired")


async def test_a_ttl_applies_only_to_the_first_delivery(driver: EngineDriver) -> None:
    await driver.put(ttl=10, ttr=5)
    await driver.pop_one()
    await driver.pass_time(30)
    assert await driver.state() is JobState.READY
    assert (await driver.pop_one()).attempts == 2


async def test_a_paused_topic_hands_out_nothing_new_but_repeats_deliveries(driver: EngineDriver) -> None:
    await driver.put("a")
    await driver.put("b")
    first = await driver.pop(1, request_id="r1")
    await driver.topics.pause(TOPIC)
    reply = await driver.queue.pop(TOPIC, [PopRequest(1)])
    assert (reply.jobs, reply.more) == ([[]], False)
    assert await driver.pop(1, request_id="r1") == first
    await driver.topics.resume(TOPIC)
    assert (await driver.pop_one()).id == "b"


async def test_many_ids_without_a_record_are_skipped_in_bounded_steps(driver: EngineDriver) -> None:
    """As a damaged store may contain them."""
    members = [part for number in range(2500) for part in (number, f"gone{number}")]
    driver.server.command("ZADD", f"{KEY}:ready", *members)
    await driver.put("last")
    assert await driver.pop() == []
    assert [popped.id for popped in await driver.engine.dispatcher.pop([TOPIC])] == ["last"]


@pytest.mark.parametrize(
    ("body_bytes", "handed_out"),
    [
        pytest.param([400_000] * 5, [2, 2, 1], id="as many as fit"),
        pytest.param([2_000_000] * 3, [1, 1, 1], id="one that does not fit alone"),
        pytest.param([10] * 20 + [1_000_000] * 3, [21, 1, 1], id="large ones behind small ones"),
        pytest.param([1_000_000] + [10] * 20, [21], id="small ones behind a large one"),
    ],
)
async def test_a_reply_is_bounded_by_its_bytes(
    driver: EngineDriver, body_bytes: list[int], handed_out: list[int]
) -> None:
    for number, size in enumerate(body_bytes):
        await driver.put(f"j{number}", body="x" * size, max_attempts=1)
    popped = [len(await driver.pop(100)) for _ in handed_out]
    assert popped == handed_out
    assert await driver.pop(100) == []


async def test_a_request_id_never_names_another_topics_keys(driver: EngineDriver) -> None:
    await driver.put()
    for name in ("pool", "ready", "reserved", "delay"):
        await driver.pop(1, request_id=name)
        other = PutJob(topic=f"{TOPIC}:request", id=name)
        await driver.puts.put(other)
        (popped,) = (await driver.queue.pop(other.topic, [PopRequest(1)])).jobs[0]
        assert popped.id == name


async def test_a_repeated_delivery_comes_back_by_the_end_of_its_lease(driver: EngineDriver) -> None:
    """Which of the attempts still has a client is not known: they may have reached the store in any order."""
    await driver.put(ttr=30)
    attempts = [await driver.pop(1, request_id="r1") for _ in range(3)]
    for popped in (attempts[2], attempts[0], attempts[1]):
        assert await driver.held_jobs.return_popped(popped) == 0
        assert await driver.state() is JobState.RESERVED
    await driver.pass_time(31)
    assert (await driver.pop_one()).attempts == 2


async def test_a_receipt_of_attempt_zero_matches_no_delivery(driver: EngineDriver) -> None:
    await driver.put()
    held = await driver.pop_one()
    with pytest.raises(ReceiptStale):
        await driver.queue.finish(TOPIC, "a", Receipt.of(str(held.receipt).replace(".1", ".0")))
