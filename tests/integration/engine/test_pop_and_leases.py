"""Replies of pop.lua and return.lua; what every door does is in tests/conformance/test_pop.py."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from deferd.contract.model import JobState, PutJob
from deferd.engine.queue import PopRequest
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver


async def test_requests_of_one_call_are_served_in_order(driver: EngineDriver) -> None:
    for number in range(5):
        await driver.put(f"j{number}")
    reply = await driver.queue.pop(TOPIC, [PopRequest(2, consumer="x"), PopRequest(2, consumer="y"), PopRequest(9)])
    assert [[popped.id for popped in jobs] for jobs in reply.jobs] == [["j0", "j1"], ["j2", "j3"], ["j4"]]
    assert reply.jobs[1][0].reserved_by == "y"
    assert not reply.more


@pytest.mark.parametrize(
    ("body_bytes", "wanted", "handed_out", "more"),
    [
        pytest.param([1, 1], 1, 1, True, id="one, of more"),
        pytest.param([1], 1, 1, False, id="one, and no more"),
        pytest.param([1, 1, 1], 2, 2, True, id="as many as wanted, of more"),
        pytest.param([1, 1], 2, 2, False, id="as many as wanted, and no more"),
        pytest.param([1, 1], 3, 2, False, id="all"),
        pytest.param([600_000, 600_000], 3, 1, True, id="as many as fit"),
        pytest.param([1_200_000, 1], 3, 1, True, id="one that does not fit alone"),
        pytest.param([1_200_000], 3, 1, False, id="all, which do not fit"),
    ],
)
async def test_more_reports_jobs_that_are_left(
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


async def test_repeated_deliveries_are_not_counted_again(driver: EngineDriver) -> None:
    def popped_and_waited() -> list[float | None]:
        names = ("deferd_pops_total", "deferd_ready_wait_seconds_count")
        return [REGISTRY.get_sample_value(name, {"topic": TOPIC}) for name in names]

    await driver.put()
    await driver.pop_one(request_id="r1")
    counted = popped_and_waited()
    await driver.pop_one(request_id="r1")
    assert counted == popped_and_waited()


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


async def test_many_ids_without_a_record_are_skipped_in_bounded_steps(driver: EngineDriver) -> None:
    """As a damaged store may contain them."""
    members = [part for number in range(2500) for part in (number, f"gone{number}")]
    driver.server.command("ZADD", f"{KEY}:ready", *members)
    await driver.put("last")
    assert await driver.pop() == []
    assert [popped.id for popped in await driver.engine.dispatcher.pop([TOPIC])] == ["last"]


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
