"""What operators see of the groups of a topic: which jobs wait, why, and for how long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deferd.api.routes.inspection import explanation
from deferd.contract.operations.inspection import WhyReason
from deferd.engine import groups as engine_groups
from deferd.engine.engine import Engine
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.test_flow_control import finish, put_some, set_limits
from tests.integration.store.store_servers import StoreServer
from tests.waiting import BUSY_S, until


async def limits_of(driver: EngineDriver, job_id: str) -> list[tuple[Any, ...]]:
    """The limits that hold a job back, each with the jobs of its group ahead and whether the time is known."""
    reasons = await why(driver, job_id)
    return [(one.limit, one.jobs_ahead, one.next_at is not None) for one in reasons if one.code == "limited"]


async def why(driver: EngineDriver, job_id: str) -> list[WhyReason]:
    return explanation(TOPIC, job_id, await driver.topics.why(TOPIC, job_id), None).reasons


async def test_the_oldest_ready_job_is_found_among_the_heads_of_groups(driver: EngineDriver) -> None:
    await put_some(driver, ["a0"], group="a")
    await put_some(driver, ["b1"], group="b")
    await driver.pass_time(10)
    await put_some(driver, ["a1"], group="a")
    await driver.cancels.cancel(TOPIC, "a0")
    await put_some(driver, ["p1"])
    assert driver.ready_list() == ["a1", "b1", "p1"]
    for gone, age_ms in (("b1", 10_000), ("a1", 0)):
        view = await driver.topics.get(TOPIC)
        assert view.oldest_ready_age_ms is not None
        assert age_ms <= view.oldest_ready_age_ms < age_ms + 1000
        attention = await driver.engine.alerts._reader.read()
        assert attention.topics[TOPIC].oldest_ready_due_ms == view.oldest_ready_due_at_ms
        await driver.cancels.cancel(TOPIC, gone)
    await driver.cancels.cancel(TOPIC, "p1")
    assert (await driver.topics.get(TOPIC)).oldest_ready_age_ms is None


async def test_jobs_ahead_are_those_of_the_group(driver: EngineDriver) -> None:
    await put_some(driver, ["a1", "a2"], group="a")
    await put_some(driver, ["b1", "b2"], group="b")
    await put_some(driver, ["a3"], group="a", priority=2)
    await put_some(driver, ["u1"], priority=1)
    await put_some(driver, ["p1", "p2"])
    ahead = {}
    for job_id in ("a1", "a2", "a3", "b1", "b2", "u1", "p1", "p2"):
        (reason,) = await why(driver, job_id)
        assert (reason.code, reason.ready, "groups take turns" in reason.text) == ("behind", 8, True)
        ahead[job_id] = reason.jobs_ahead
    assert ahead == {"a3": 0, "a1": 1, "a2": 2, "b1": 0, "b2": 1, "u1": 0, "p1": 1, "p2": 2}


async def test_why_names_the_limits_of_the_topic(driver: EngineDriver) -> None:
    await put_some(driver, ["a", "b", "c"])
    assert await limits_of(driver, "a") == []
    await set_limits(driver, n=1, r={"c": 1, "p": 5000})
    held = await driver.pop_one()
    assert held.id == "a"
    assert await limits_of(driver, "c") == [("max_in_flight", 1, False), ("rate", 1, True)]
    await finish(driver, held)
    (reason, behind) = await why(driver, "c")
    assert (reason.limit, behind.code) == ("rate", "behind")
    assert f"Topic {TOPIC} has handed out as many jobs as its `rate` allows; the next may go in " in reason.text
    await driver.pass_time(6)
    assert await limits_of(driver, "c") == []


async def test_a_group_may_be_paused_while_all_its_jobs_are_held(driver: EngineDriver) -> None:
    await put_some(driver, ["a1"], group="a")
    held = await driver.pop_one()
    await driver.engine.groups.pause(TOPIC, "a")
    await finish(driver, held)
    await put_some(driver, ["a2"], group="a")
    assert await driver.pop() == []
    await driver.engine.groups.resume(TOPIC, "a")
    assert (await driver.pop_one()).id == "a2"


async def test_why_reads_a_rate_as_the_next_pop_would(driver: EngineDriver) -> None:
    await put_some(driver, ["a", "b", "c"])
    await set_limits(driver, r={"c": 2, "p": 10_000})
    assert (await driver.pop_one()).id == "a"
    await driver.pass_time(6)
    assert (await driver.pop_one()).id == "b"
    assert await limits_of(driver, "c") == [("rate", 0, True)]
    await driver.pass_time(5)  # the first one counts no longer
    assert await limits_of(driver, "c") == []
    driver.move_clock(-8)  # both began later than now
    assert await limits_of(driver, "c") == [("rate", 0, True)]
    assert await driver.pop() == []


async def test_why_names_the_limits_of_a_group(driver: EngineDriver) -> None:
    await driver.put("d1", group="d")
    await driver.engine.groups.pause(TOPIC, "d")
    assert await limits_of(driver, "d1") == [("group_paused", 0, False)]
    await set_limits(driver, g={"n": 2}, s={"b": {"r": {"c": 1, "p": 5000}}, "c": {"n": 1}})
    await put_some(driver, ["a1", "a2", "a3", "a4"], group="a")
    await put_some(driver, ["b1", "b2"], group="b")
    await put_some(driver, ["c1", "c2"], group="c")
    jobs = {job.id: job for job in await driver.pop(10)}
    assert sorted(jobs) == ["a1", "a2", "b1", "c1"]
    assert await limits_of(driver, "a4") == [("group_max_in_flight", 1, False)]
    assert await limits_of(driver, "b2") == [("group_rate", 0, True)]
    assert await limits_of(driver, "c2") == [("group_max_in_flight", 0, False)]
    await driver.deliveries.release(TOPIC, "c1", jobs["c1"].receipt, delay_ms=60_000)
    assert await limits_of(driver, "c2") == [("group_order", 0, False)]
    reason = (await why(driver, "c2"))[0]
    assert reason.group == "c"
    assert reason.text.startswith(
        f"Group c of topic {TOPIC} hands out its jobs one after the other, and waits for a job "
    )


async def test_many_groups_are_read_in_steps_and_sorted_in_parts(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_groups, "_FLOWS_PER_CALL", 7)
    monkeypatch.setattr(engine_groups, "_SORTED_AT_ONCE", 6)
    number_of = {f"g{number}": number for number in range(40)}
    await driver.puts.put_many(
        [
            job(f"{group}-{index}", group=group, priority=index % 3)
            for group, number in number_of.items()
            for index in range(number % 5 + 1)
        ]
    )
    await put_some(driver, ["plain", "other"])
    driver.server.command("HSET", f"{KEY}:groups", "g0", "damaged")  # a repair counts it anew
    pages, cursor = [], None
    while True:
        groups, cursor = await driver.engine.groups.page(TOPIC, "ready", cursor, 9)
        pages += [(group.name, group.ready) for group in groups]
        if cursor is None:
            break
    wanted = [(group, number % 5 + 1) for group, number in number_of.items()] + [(None, 2)]
    assert pages == sorted(wanted, key=lambda one: (-one[1], one[0] or ""))


async def test_a_resumed_group_wakes_consumers(engine: Engine, server: StoreServer) -> None:
    await engine.groups.pause(TOPIC, "a")
    await engine.puts.put_many([job("a1", group="a"), job("a2", group="a")])
    popping = asyncio.create_task(engine.dispatcher.pop([TOPIC], wait_ms=10_000))
    await until(lambda: server.command("EXISTS", f"{KEY}:limited") == 1, "the pop has found the group")
    group, was_paused = await engine.groups.resume(TOPIC, "a")
    assert (group.ready, group.is_paused, was_paused) == (2, False, True)
    async with asyncio.timeout(BUSY_S):
        assert [one.id for one in await popping] == ["a1"]
    assert not (await engine.groups.resume(TOPIC, "a"))[1]
