"""Groups take turns, priorities go first, and limits hold back what is ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from deferd.contract.model import ChangeJob, TopicSettings
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import JobRecord
from deferd.engine.script_arguments import encode_finish
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.waiting import until

LONG_WAIT_MS = 10_000
FLOW_KEYS = {"groups", "flows", "flows/free", "turns", "turns/newest", "limited"}


def set_limits(driver: EngineDriver, **limits: Any) -> Any:
    """Set the limits of the topic, as the store has them."""
    keys = driver.queue._keys.of_topic(TOPIC)
    settings = orjson.dumps({"li": limits} if limits else {})
    return driver.engine._scripts.run("topic_set", keys, (TOPIC, "settings", settings, ""))


def groups(driver: EngineDriver) -> dict[str, str]:
    """What the store has of each group."""
    return {name.decode(): entry.decode() for name, entry in driver.server.command("HGETALL", f"{KEY}:groups").items()}


async def ids(driver: EngineDriver, count: int = 1000) -> list[str]:
    return [job.id for job in await driver.pop(count)]


async def all_ids(driver: EngineDriver) -> list[str]:
    """Those that a pop which may wait is handed out, until it waits."""
    popped: list[str] = []
    while True:
        reply = await driver.queue.pop(TOPIC, [PopRequest(1000)])
        popped += [job.id for job in reply.jobs[0]]
        if not reply.more:
            return popped


async def put_some(driver: EngineDriver, names: Sequence[str], **fields: Any) -> None:
    for name in names:
        await driver.put(name, **fields)


async def finish(driver: EngineDriver, *jobs: JobRecord) -> None:
    for one in jobs:
        await driver.queue.finish(TOPIC, one.id, one.receipt)


@pytest.mark.parametrize("at_once", [True, False])
async def test_groups_take_turns(driver: EngineDriver, at_once: bool) -> None:
    await put_some(driver, ["a1", "a2", "a3"], group="a")
    await put_some(driver, ["b1", "b2"], group="b")
    await put_some(driver, ["p1", "p2"])
    await put_some(driver, ["c1"], group="c", delay=10)
    await driver.pass_time(10)
    popped = await ids(driver) if at_once else [(await driver.pop_one()).id for _ in range(8)]
    assert sorted(popped[:4]) == ["a1", "b1", "c1", "p1"]
    assert sorted(popped[4:7]) == ["a2", "b2", "p2"]
    assert popped[7:] == ["a3"]
    assert await ids(driver) == []
    assert groups(driver) == {"a": "3 3 0 ", "b": "2 2 0 ", "c": "1 1 0 "}


async def test_higher_priorities_go_first_in_the_order_of_becoming_ready(driver: EngineDriver) -> None:
    await put_some(driver, ["n1", "n2"])
    await put_some(driver, ["h1", "h2"], priority=9)
    await put_some(driver, ["m1"], priority=4, delay=5)
    await put_some(driver, ["h3"], priority=9, delay=5)
    await driver.pass_time(5)
    assert await ids(driver) == ["h1", "h2", "h3", "m1", "n1", "n2"]


async def test_nothing_is_left_when_all_jobs_have_ended(driver: EngineDriver) -> None:
    await driver.put("plain")
    plain = driver.keys_left()
    await driver.put("a", group="g", priority=3)
    await driver.put("b", group="g", delay=5)
    await driver.put("c", priority=3)
    assert driver.keys_left() >= {"groups", "turns", "flows"}
    await driver.cancels.cancel(TOPIC, "b")
    assert groups(driver) == {"": "1 0 0 ", "g": "1 0 0 "}
    jobs = await driver.pop(3)
    assert [job.id for job in jobs] == ["a", "c", "plain"]
    assert driver.ready_list() == []
    assert groups(driver) == {"": "1 0 0 ", "g": "1 1 0 "}
    await finish(driver, *jobs)
    assert groups(driver) == {}
    assert await ids(driver) == []
    assert driver.keys_left().isdisjoint(FLOW_KEYS | plain)


async def test_a_group_with_strict_order_waits_for_the_job_before(driver: EngineDriver) -> None:
    await set_limits(driver, g={"n": 1})
    await put_some(driver, ["a1", "a2"], group="a")
    await put_some(driver, ["b1"], group="b")
    first, other = await driver.pop(10)
    assert [first.id, other.id] == ["a1", "b1"]
    await driver.put("a0", group="a", priority=9)
    assert await ids(driver) == []
    await finish(driver, other)
    await driver.deliveries.release(TOPIC, "a1", first.receipt, delay_ms=5000)
    assert await ids(driver) == []
    await driver.pass_time(5)
    (again,) = await driver.pop(10)
    assert again.id == "a1"
    await driver.pass_time(61)  # its lease ends: it keeps its place
    (again,) = await driver.pop(10)
    assert (again.id, again.attempts) == ("a1", 3)
    await finish(driver, again)
    assert await ids(driver) == ["a0"]


@pytest.mark.parametrize("how", ["cancel", "bury", "move"])
async def test_the_place_of_a_job_is_free_once_it_has_left(driver: EngineDriver, how: str) -> None:
    await set_limits(driver, g={"n": 1})
    await put_some(driver, ["a1", "a2"], group="a")
    taken = await driver.pop_one()
    if how == "bury":
        await driver.deliveries.bury(TOPIC, "a1", taken.receipt)
    else:
        await driver.deliveries.release(TOPIC, "a1", taken.receipt, delay_ms=5000)
        assert await ids(driver) == []
        if how == "cancel":
            await driver.cancels.cancel(TOPIC, "a1")
        else:
            await driver.queue.change(TOPIC, "a1", ChangeJob(group="z"))
    assert await ids(driver) == ["a2"]


@pytest.mark.parametrize("fields", [{"group": "a"}, {"delay": 1}])
async def test_a_changed_job_keeps_its_place_while_it_stays_in_the_group(
    driver: EngineDriver, fields: dict[str, Any]
) -> None:
    await set_limits(driver, g={"n": 1})
    await put_some(driver, ["a1", "a2"], group="a")
    job = await driver.pop_one()
    await driver.deliveries.release(TOPIC, "a1", job.receipt, delay_ms=5000)
    await driver.queue.change(TOPIC, "a1", ChangeJob.model_validate(fields))
    assert await ids(driver) == []
    await driver.pass_time(5)
    assert await ids(driver) == ["a1"]


async def test_in_flight_limits_of_topic_and_groups(driver: EngineDriver) -> None:
    await set_limits(driver, n=4, g={"n": 2}, s={"big": {"n": 3}})
    await put_some(driver, [f"a{n}" for n in range(4)], group="a")
    await put_some(driver, [f"b{n}" for n in range(4)], group="big")
    jobs = await driver.pop(100)
    assert sorted(job.id for job in jobs) == ["a0", "a1", "b0", "b1"]
    await finish(driver, jobs[0], jobs[2])  # both of a
    assert {jobs[0].id, jobs[2].id} == {"a0", "a1"}
    jobs = await driver.pop(100)
    assert sorted(job.id for job in jobs) == ["a2", "b2"]
    await set_limits(driver, g={"n": 2}, s={"big": {"n": 3}})
    await driver.run_timer()
    assert await ids(driver) == ["a3"]
    await set_limits(driver)
    await driver.run_timer()
    assert await ids(driver) == ["b3"]


async def test_rates_hold_back_what_is_too_early(driver: EngineDriver) -> None:
    await set_limits(driver, r={"c": 3, "p": 10_000}, g={"r": {"c": 1, "p": 4_000}})
    await put_some(driver, [f"a{n}" for n in range(4)], group="a")
    await put_some(driver, [f"p{n}" for n in range(3)])
    assert sorted(await ids(driver)) == ["a0", "p0", "p1"]
    await driver.pass_time(9)
    assert await ids(driver) == []
    await driver.pass_time(1.1)
    assert sorted(await ids(driver)) == ["a1", "p2"]
    await driver.pass_time(3.5)
    assert await ids(driver) == []
    await driver.pass_time(0.6)
    assert await ids(driver) == ["a2"]
    assert await ids(driver) == []


async def test_weights_are_shares(driver: EngineDriver) -> None:
    await set_limits(driver, s={"big": {"w": 3}})
    await put_some(driver, [f"a{n}" for n in range(8)], group="a")
    await put_some(driver, [f"b{n}" for n in range(24)], group="big")
    await ids(driver, 4)  # who begins, and with how many, is not said
    popped = await ids(driver, 16)
    assert sum(name[0] == "b" for name in popped) == 12


async def test_a_changed_group_or_priority_moves_a_ready_job(driver: EngineDriver) -> None:
    await put_some(driver, ["p1", "p2", "p3"])
    await driver.queue.change(TOPIC, "p3", ChangeJob(priority=5))
    await driver.queue.change(TOPIC, "p2", ChangeJob(group="g", priority=1))
    assert groups(driver) == {"": "1 0 0 ", "g": "1 0 0 "}
    await driver.queue.change(TOPIC, "p2", ChangeJob(group=None))
    assert groups(driver) == {"": "2 0 0 "}
    assert await ids(driver) == ["p3", "p2", "p1"]


async def test_a_new_priority_keeps_the_place_of_a_job(driver: EngineDriver) -> None:
    await set_limits(driver, g={"n": 1})
    await put_some(driver, ["a1", "a2"], group="a")
    taken = await driver.pop_one()
    await driver.deliveries.release(TOPIC, "a1", taken.receipt, delay_ms=5000)
    await driver.queue.change(TOPIC, "a1", ChangeJob(priority=2))
    assert await ids(driver) == []
    await driver.pass_time(5)
    assert await ids(driver) == ["a1"]


async def test_all_groups_are_looked_at_after_a_change_of_limits(driver: EngineDriver) -> None:
    count = 2500  # more than a visit of the timer looks at
    await set_limits(driver, g={"r": {"c": 1, "p": 3_600_000}})
    for start in range(0, 2 * count, 1000):
        jobs = [job(f"j{n}", group=f"g{n % count}") for n in range(start, min(start + 1000, 2 * count))]
        await driver.puts.put_many(jobs)
    first = await all_ids(driver)
    assert len(first) == count
    assert driver.server.command("ZCOUNT", f"{KEY}:turns", 2**49, "+inf") > 0
    await set_limits(driver)
    await driver.run_timer()
    assert driver.server.command("ZCOUNT", f"{KEY}:turns", 2**49, "+inf") == 0
    assert len(set(await all_ids(driver)) - set(first)) == count


async def test_a_group_whose_limited_jobs_were_cancelled_begins_anew(driver: EngineDriver) -> None:
    await set_limits(driver, g={"r": {"c": 1, "p": 10_000}})
    await put_some(driver, ["a1", "a2"], group="a")
    await finish(driver, await driver.pop_one())
    assert await ids(driver) == []
    await driver.cancels.cancel(TOPIC, "a2")
    assert groups(driver) == {}
    await driver.put("a3", group="a")
    await driver.pass_time(11)
    assert await ids(driver) == ["a3"]


@pytest.mark.parametrize("whose", [{}, {"group": "a"}])
async def test_a_clock_that_is_set_back_holds_nothing_back_for_longer_than_the_rate(
    driver: EngineDriver, whose: dict[str, str]
) -> None:
    rate = {"r": {"c": 2, "p": 60_000}}
    await set_limits(driver, **(rate if not whose else {"g": rate}))
    await put_some(driver, ["a1", "a2", "a3"], **whose)
    assert await ids(driver) == ["a1", "a2"]
    assert await ids(driver) == []
    driver.move_clock(-36_000)
    assert await ids(driver) == []
    await driver.run_timer()
    assert await ids(driver) == []
    await driver.pass_time(30)
    assert await ids(driver) == []
    await driver.pass_time(30.1)
    assert await ids(driver) == ["a3"]


async def test_a_clock_that_is_set_back_a_little_moves_only_what_is_later(driver: EngineDriver) -> None:
    await set_limits(driver, r={"c": 2, "p": 60_000})
    await put_some(driver, ["a1", "a2", "a3"])
    await driver.pop_one()
    await driver.pass_time(50)
    await driver.pop_one()
    driver.move_clock(-0.01)
    assert await ids(driver) == []
    await driver.pass_time(10.1)
    assert await ids(driver) == ["a3"]


@pytest.mark.parametrize("rest", [["SET", "x"], ["RPUSH", "x"], ["RPUSH", "x" * 16]])
async def test_a_damaged_rate_begins_again(driver: EngineDriver, rest: list[str]) -> None:
    """Jobs that the call has taken already are handed out."""
    await set_limits(driver, g={"r": {"c": 2, "p": 60_000}})
    command, value = rest
    driver.server.command(command, f"{KEY}:rate/b", value)
    await put_some(driver, ["a1", "a2"], group="a")
    await put_some(driver, ["b1", "b2", "b3"], group="b")
    found = await ids(driver)
    assert set(found) >= {"a1", "a2"}
    if len(value) < 16:
        assert set(found) == {"a1", "a2", "b1", "b2"}
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


async def test_a_blocked_group_takes_turns_with_those_that_came_meanwhile(driver: EngineDriver) -> None:
    await set_limits(driver, s={"a": {"n": 1}})
    await put_some(driver, [f"a{n}" for n in range(9)], group="a")
    for _ in range(6):  # it has had more turns than the others will have
        (taken,) = await driver.pop(2)
        await finish(driver, taken)
    (taken,) = await driver.pop(2)
    await put_some(driver, [f"b{n}" for n in range(4)], group="b")
    await finish(driver, taken)
    assert set(await ids(driver, 3)) == {"a7", "b0", "b1"}


async def test_a_pop_looks_at_few_groups(driver: EngineDriver) -> None:
    count = 480
    await driver.puts.put_many([job(f"j{n}", group=f"g{n % count}") for n in range(2 * count)])
    taken = [one for most in (250, 230) for one in await driver.pop(most)]
    await driver.queue.finish_many(TOPIC, [encode_finish(one.id, one.receipt, None) for one in taken[::2]])
    await set_limits(driver, g={"n": 1})
    await driver.run_timer()
    assert [len(await driver.pop(count)) for _ in range(3)] == [125, 115, 0]
    assert driver.server.command("ZCOUNT", f"{KEY}:turns", 2**49, "+inf") == count // 2


async def test_deliveries_from_before_the_limits_make_room(driver: EngineDriver) -> None:
    await put_some(driver, ["a", "b", "c", "d"])
    taken = [await driver.pop_one(), await driver.pop_one(request_id="q"), await driver.pop_one(ttr_ms=1000)]
    await set_limits(driver, n=1)
    for one in taken:
        assert await ids(driver) == []
        assert driver.server.command("ZSCORE", f"{KEY}:limited", "") is not None
        await finish(driver, one)
        assert driver.server.command("ZSCORE", f"{KEY}:limited", "") is None
    assert await ids(driver) == ["d"]


async def test_a_change_to_the_same_group_or_priority_moves_nothing(driver: EngineDriver) -> None:
    await put_some(driver, ["a1", "a2"], group="a", priority=2)
    await driver.queue.change(TOPIC, "a1", ChangeJob(group="a", priority=2))
    assert await ids(driver) == ["a1", "a2"]


async def test_returned_jobs_are_first_also_where_only_groups_had_ready_ones(driver: EngineDriver) -> None:
    await put_some(driver, ["p2", "p1", "p3"])
    held = await driver.pop(2)
    await driver.put("a1", group="a")
    await driver.cancels.cancel(TOPIC, "p3")
    await driver.put("p4")
    await driver.held_jobs.return_popped(held)
    assert [one for one in await ids(driver) if one != "a1"] == ["p2", "p1", "p4"]


def is_waiting(engine: Engine) -> bool:
    return any(waiter.stage == "waiting" for waiter in engine.dispatcher.waiting.all())


@pytest.mark.parametrize(
    "limits", [{"max_in_flight": 1}, {"per_group": {"max_in_flight": 1}}, {"rate": {"count": 1, "per": 0.4}}]
)
async def test_a_pop_that_waits_for_room_is_woken(engine: Engine, limits: dict[str, Any]) -> None:
    await engine.topics.set(TOPIC, TopicSettings.model_validate({"limits": limits}))
    await engine.puts.put_many([job(name, group="g") for name in "abc"])
    [held] = await engine.dispatcher.pop([TOPIC], count=3)
    began_s = time.monotonic()
    waiting = asyncio.create_task(engine.dispatcher.pop([TOPIC], count=3, wait_ms=LONG_WAIT_MS))
    await until(lambda: is_waiting(engine), "the pop waits")
    if "rate" not in limits:
        await engine.queue.finish(TOPIC, held.id, held.receipt)
    assert [one.id for one in await waiting] == ["b"]
    waiting = asyncio.create_task(engine.dispatcher.pop([TOPIC], count=3, wait_ms=LONG_WAIT_MS))
    await until(lambda: is_waiting(engine), "the pop waits")
    await engine.topics.set(TOPIC, TopicSettings())
    assert [one.id for one in await waiting] == ["c"]
    assert time.monotonic() - began_s < LONG_WAIT_MS / 1000 / 2


async def test_a_purge_of_groups_goes_in_steps_of_a_megabyte(driver: EngineDriver) -> None:
    for index in range(12):
        await driver.put(f"j{index}", group="g", body="x" * 100_000)
    options = orjson.dumps({"state": "ready", "most": 1000})
    keys = driver.queue._keys.of_topic(TOPIC)
    removed, more, *_ = await driver.engine._scripts.run("purge", keys, (TOPIC, options))
    assert (removed, more, groups(driver)) == (11, 1, {"g": "1 0 0 "})


async def test_a_returned_job_waits_when_there_are_too_many_flows(driver: EngineDriver) -> None:
    await driver.put("a", group="g")
    (taken,) = await driver.pop(2)  # the search for a second one forgets the flow
    for slot in (2**21, 2**21 + 1):  # beyond the last one
        driver.server.command("ZADD", f"{KEY}:flows/free", slot, slot)
    await driver.held_jobs.return_popped([taken])
    assert await ids(driver) == []
    await driver.pass_time(1)
    await finish(driver, *await driver.pop(2))
    assert groups(driver) == {}


async def test_a_visit_of_the_timer_moves_few_jobs_of_groups(driver: EngineDriver) -> None:
    await driver.puts.put_many([job(f"j{n}", group=f"g{n}", delay=5) for n in range(300)])
    for state in ("due", "held"):
        driver.move_clock(61)
        await driver.engine.timers[0].run_once()
        assert (await driver.counts())["ready"] == 250, state
        await driver.run_timer()
        assert len(await all_ids(driver)) == 300


async def test_of_two_jobs_that_were_released_the_first_keeps_the_place(driver: EngineDriver) -> None:
    await set_limits(driver, g={"n": 2})
    await put_some(driver, ["a1", "a2", "a3"], group="a")
    first, second = await driver.pop(10)
    await set_limits(driver, g={"n": 1})
    await driver.deliveries.release(TOPIC, first.id, first.receipt, delay_ms=5000)
    await driver.deliveries.release(TOPIC, second.id, second.receipt, delay_ms=0)
    await driver.run_timer()
    assert await ids(driver) == []
    await driver.pass_time(5)
    assert await ids(driver) == ["a1"]


async def test_jobs_of_one_flow_too_many_wait_until_there_is_room_for_it(driver: EngineDriver) -> None:
    await driver.put("a", group="a")
    most = 2**21 - 2**11
    driver.server.command("ZADD", f"{KEY}:flows/free", most, most)  # the slot that the next flow would get
    await driver.put("b", group="b")
    assert await driver.counts() == {"ready": 1, "delayed": 1}
    await driver.pass_time(1)
    assert await ids(driver) == ["a", "b"]


async def test_jobs_of_a_flow_whose_place_was_removed_are_handed_out(driver: EngineDriver) -> None:
    await put_some(driver, ["a1", "a2"], group="a")
    driver.server.command("DEL", f"{KEY}:flows")
    assert sorted(await ids(driver) + await ids(driver)) == ["a1", "a2"]
