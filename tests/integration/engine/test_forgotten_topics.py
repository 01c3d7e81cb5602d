"""Unused topics leave nothing in the store, and remembered requests end with their deliveries."""

from __future__ import annotations

import pytest

from deferd.contract.errors import JobNotFound, TopicNotFound
from deferd.contract.model import JobState, TopicSettings
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver
from tests.integration.engine.sweeping import purge_jobs

HOUR_S = 3600


async def put_and_finish(driver: EngineDriver) -> None:
    await driver.put()
    held = await driver.pop_one()
    await driver.queue.finish(TOPIC, "a", held.receipt)


async def names(driver: EngineDriver) -> list[str]:
    return (await driver.engine.topic_list.names()).names


def shard_tally(driver: EngineDriver) -> dict[bytes, bytes]:
    tally: dict[bytes, bytes] = driver.server.command("HGETALL", "deferd:{0}:tally")
    return tally


async def test_a_topic_without_jobs_and_settings_is_forgotten_after_an_hour(driver: EngineDriver) -> None:
    await put_and_finish(driver)
    await driver.pass_time(HOUR_S - 60)
    assert await names(driver) == [TOPIC]
    await driver.pass_time(2 * HOUR_S)
    await driver.pass_time(2 * HOUR_S)
    assert await names(driver) == []
    left = {key for key in driver.server.command("KEYS", "deferd:{0}:*") if not key.endswith((b":clock", b":lock"))}
    assert left == {b"deferd:{0}:tally"}
    with pytest.raises(TopicNotFound):
        await driver.topics.get(TOPIC)


async def test_the_tallies_of_forgotten_topics_are_added_up(driver: EngineDriver) -> None:
    for _ in range(2):
        await put_and_finish(driver)
        await driver.put("b")
        await driver.cancels.cancel(TOPIC, "b")
        for _ in range(3):
            await driver.pass_time(2 * HOUR_S)
        assert await names(driver) == []
    assert shard_tally(driver) == {b"put": b"4", b"finished": b"2", b"cancelled": b"2"}
    await put_and_finish(driver)
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


async def test_a_topic_with_occasional_puts_is_not_forgotten(driver: EngineDriver) -> None:
    for _ in range(6):
        await put_and_finish(driver)
        await driver.pass_time(HOUR_S - 120)
        assert await names(driver) == [TOPIC]


@pytest.mark.parametrize("way", ["cancel", "purge"])
async def test_a_topic_whose_long_delayed_jobs_were_cancelled_is_forgotten_as_soon(
    driver: EngineDriver, way: str
) -> None:
    await driver.put(delay=365 * 86_400)
    await driver.pass_time(2 * HOUR_S)
    if way == "cancel":
        await driver.cancels.cancel(TOPIC, "a")
    else:
        await purge_jobs(driver.engine, TOPIC, JobState.DELAYED)
    for _ in range(3):
        await driver.pass_time(2 * HOUR_S)
    assert await names(driver) == []


async def test_a_cancel_of_a_missing_job_leaves_nothing_behind(driver: EngineDriver) -> None:
    with pytest.raises(JobNotFound):
        await driver.cancels.cancel("nobody-used-this", "a")
    assert driver.server.command("ZCARD", "deferd:{0}:due") == 0


async def test_a_topic_with_jobs_or_settings_is_not_forgotten(driver: EngineDriver) -> None:
    await driver.put()
    for _ in range(4):
        await driver.pass_time(2 * HOUR_S)
    assert await driver.counts() == {"ready": 1}
    await driver.topics.set(TOPIC, TopicSettings(ttr=30))
    await driver.cancels.cancel(TOPIC, "a")
    for _ in range(4):
        await driver.pass_time(2 * HOUR_S)
    assert await names(driver) == [TOPIC]
    await driver.topics.set(TOPIC, TopicSettings())
    for _ in range(4):
        await driver.pass_time(2 * HOUR_S)
    assert await names(driver) == []


async def test_a_topic_with_a_paused_group_is_not_forgotten(driver: EngineDriver) -> None:
    await driver.put("a", group="g")
    await driver.put("b", group="h")
    await driver.engine.groups.pause(TOPIC, "g")
    await purge_jobs(driver.engine, TOPIC)
    await driver.pass_time(2 * HOUR_S)
    assert driver.server.command("HGETALL", f"{KEY}:groups") == {b"g": b"0 0 1 "}
    await driver.engine.groups.resume(TOPIC, "g")
    await driver.pass_time(2 * HOUR_S)
    await driver.pass_time(2 * HOUR_S)
    assert driver.keys_left() == set()


@pytest.mark.parametrize("end", ["finish", "release", "bury", "cancel", "purge", "lease end", "return"])
async def test_a_request_id_is_forgotten_with_its_last_delivery(driver: EngineDriver, end: str) -> None:
    await driver.put("a")
    await driver.put("b")
    held = await driver.pop(2, request_id="r1", ttr_ms=86_400_000)
    assert driver.keys_left() >= {"request/r1", "requests"}
    if end == "purge":
        await purge_jobs(driver.engine, TOPIC)
    elif end == "lease end":
        await driver.pass_time(86_500)
    elif end == "return":
        await driver.held_jobs.return_popped(held)
    else:
        for job in held:
            assert "request/r1" in driver.keys_left()
            if end == "cancel":
                await driver.cancels.cancel(TOPIC, job.id)
            else:
                owner = driver.queue if end == "finish" else driver.deliveries
                await getattr(owner, end)(TOPIC, job.id, job.receipt)
    assert driver.keys_left().isdisjoint({"request/r1", "requests"})


async def test_a_request_id_is_remembered_for_an_hour_at_most(driver: EngineDriver) -> None:
    await driver.put()
    for _ in range(2):
        await driver.pop(1, request_id="r1", ttr_ms=86_400_000)
        assert 0 < driver.server.command("PTTL", f"{KEY}:request/r1") <= HOUR_S * 1000
    await driver.queue.finish(TOPIC, "a", ANY_RECEIPT)
