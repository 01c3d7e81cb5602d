"""Puts that append: the consumer gets an array of all bodies that were put under the id until it is popped."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest

from deferd.contract import limits
from deferd.contract.errors import JobExists, JobReserved, PayloadTooLarge, StoreUnavailable, TopicFull
from deferd.contract.model import ChangeJob, JobState, TopicSettings
from deferd.contract.operations.audits import FindingKind
from deferd.engine.record import ANY_RECEIPT, JobRecord
from deferd.engine.script_arguments import PutBounds
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs, redrive_jobs


async def append(driver: EngineDriver, body: Any, job_id: str = "a", **fields: Any) -> tuple[str, JobRecord]:
    put = await driver.puts.put(job(job_id, body=body, on_conflict="append", **fields))
    return put.outcome, put.record


async def finish(driver: EngineDriver, held: JobRecord) -> None:
    await driver.queue.finish(TOPIC, held.id, held.receipt)


async def is_sound(driver: EngineDriver) -> bool:
    found = await driver.engine.consistency.audit_topic(TOPIC)
    return found.clean


def items_left(driver: EngineDriver) -> bool:
    return bool(driver.server.command("KEYS", f"{KEY}:items*"))


async def test_without_a_longest_wait_appends_move_the_due_time_for_ever(driver: EngineDriver) -> None:
    for number in range(5):
        _, record = await append(driver, number, delay=10)
        driver.move_clock(8)
        await driver.run_timer()
    assert await driver.state() is JobState.DELAYED
    assert record.due_at_ms - record.created_at_ms >= 42_000


async def test_a_held_job_refuses_or_is_followed_by_the_next_collection(driver: EngineDriver) -> None:
    await append(driver, 1)
    held = await driver.pop_one()
    with pytest.raises(JobReserved):
        await append(driver, 2)
    outcome, record = await append(driver, 2, if_reserved="after")
    assert (outcome, record.is_follow_up, record.body, record.items) == ("follow_up", True, b"[2]", 1)
    outcome, record = await append(driver, 3, if_reserved="after")
    assert (outcome, record.is_follow_up, record.body, record.items) == ("appended", True, b"[3]", 2)
    shown = await driver.queue.get(TOPIC, "a")
    assert shown.followed_by is not None
    assert shown.followed_by.body == b"[2,3]"
    kept = await driver.puts.put_many_with_jobs([job(on_conflict="keep", if_reserved="after"), job("b")])
    assert [one and one.body for _, one in kept] == [b"[2,3]", b"null"]
    assert await is_sound(driver)
    await finish(driver, held)
    assert (await append(driver, 4))[0] == "appended"
    await driver.run_timer()
    assert {one.id: one.body for one in await driver.pop(2)} == {"a": b"[2,3,4]", "b": b"null"}
    assert await is_sound(driver)


async def test_an_append_to_a_job_that_came_back_waits_for_it(driver: EngineDriver) -> None:
    await append(driver, 1)
    held = await driver.pop_one()
    await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=1000)
    assert (await append(driver, 2))[0] == "follow_up"
    assert (await append(driver, 3))[0] == "appended"
    await driver.pass_time(2)
    again = await driver.pop_one()
    assert again.body == b"[1]"
    await finish(driver, again)
    await driver.run_timer()
    assert (await driver.pop_one()).body == b"[2,3]"
    assert await is_sound(driver)


async def test_a_follow_up_that_was_put_otherwise_is_the_first_item(driver: EngineDriver) -> None:
    await driver.put()
    held = await driver.pop_one()
    await driver.puts.put(job(body="x", on_conflict="replace", if_reserved="after"))
    await append(driver, "y", if_reserved="after")
    assert await is_sound(driver)
    await finish(driver, held)
    await driver.run_timer()
    assert (await driver.pop_one()).body == b'["x","y"]'


async def test_replacing_a_follow_up_drops_its_items(driver: EngineDriver) -> None:
    await driver.put()
    await driver.pop_one()
    await append(driver, 1, if_reserved="after")
    await driver.puts.put(job(body="x", on_conflict="replace", if_reserved="after"))
    assert not items_left(driver)
    assert await is_sound(driver)


@pytest.mark.parametrize("verb", ["cancel", "replace", "purge", "change", "expire", "live"])
async def test_nothing_of_a_collection_stays_when_its_job_goes(driver: EngineDriver, verb: str) -> None:
    await append(driver, 1, delay=5, ttl=5)
    await append(driver, 2, delay=5)
    match verb:
        case "cancel":
            await driver.cancels.cancel(TOPIC, "a")
        case "replace":
            await driver.put(on_conflict="replace")
        case "purge":
            await purge_jobs(driver.engine, TOPIC, JobState.DELAYED)
        case "change":
            await driver.queue.change(TOPIC, "a", ChangeJob(body="new"))
            assert (await driver.queue.get(TOPIC, "a")).body == b'"new"'
        case "expire":
            await driver.pass_time(12)
            assert (await driver.queue.get(TOPIC, "a")).body == b"[1,2]"
            assert await is_sound(driver)
            await driver.pass_time(31 * 86400)
        case "live":
            await driver.pass_time(12)
            assert (await append(driver, 3, conflict_with="live"))[0] == "created"
            assert (await driver.pop_one()).body == b"[3]"
    assert not items_left(driver)
    assert await is_sound(driver)


async def test_a_dead_collection_is_redriven_with_its_items(driver: EngineDriver) -> None:
    await append(driver, 1, delay=1, ttl=5)
    await append(driver, 2, delay=1)
    await driver.pass_time(7)
    assert await driver.state() is JobState.DEAD
    with pytest.raises(JobExists) as taken:
        await append(driver, 3)
    assert taken.value.state is JobState.DEAD
    await redrive_jobs(driver.engine, TOPIC)
    assert (await driver.pop_one()).body == b"[1,2]"


async def test_a_change_of_the_due_time_keeps_the_items(driver: EngineDriver) -> None:
    await append(driver, 1, delay=60)
    changed = await driver.queue.change(TOPIC, "a", ChangeJob(delay=0))
    assert (changed.state, changed.body) == (JobState.READY, b"[1]")
    await append(driver, 2)
    assert (await driver.pop_one()).body == b"[1,2]"


async def test_what_is_too_large_is_refused_and_nothing_is_lost(driver: EngineDriver) -> None:
    bounds = PutBounds(body_bytes=100)
    item = job(body="x" * 38, on_conflict="append", delay=5)  # 40 bytes
    await driver.puts.put(item, bounds)
    await driver.puts.put(item, bounds)  # 83 bytes
    with pytest.raises(PayloadTooLarge, match="100 bytes"):
        await driver.puts.put(item, bounds)
    exact = job(body="y" * 14, on_conflict="append", delay=5)  # 16 and a comma: 100 bytes
    larger = job(body="y" * 15, on_conflict="append", delay=5)
    results = await driver.puts.put_many([larger, exact, larger], bounds)
    assert [(result.status, result.code) for result in results] == [
        (413, "payload_too_large"),
        (200, None),
        (413, "payload_too_large"),
    ]
    with pytest.raises(PayloadTooLarge):
        await driver.puts.put(job("b", body="x" * 97, on_conflict="append"), bounds)
    body = (await driver.queue.get(TOPIC, "a")).body
    assert (len(body), len(orjson.loads(body))) == (100, 3)
    assert await is_sound(driver)


async def test_a_collection_has_a_largest_number_of_items(driver: EngineDriver) -> None:
    for _ in range(limits.ITEMS_MAX // 1000):
        results = await driver.puts.put_many([job(body=0, on_conflict="append", delay=60)] * 1000)
    assert results[-1].status == 200
    with pytest.raises(PayloadTooLarge, match="10000 items"):
        await append(driver, 1, delay=60)
    assert (await driver.queue.get(TOPIC, "a")).items == limits.ITEMS_MAX
    await driver.pass_time(61)
    assert len(orjson.loads((await driver.pop_one()).body)) == limits.ITEMS_MAX


async def test_a_full_topic_refuses_new_collections_only(driver: EngineDriver) -> None:
    await driver.topics.set(TOPIC, TopicSettings(max_jobs=1))
    await append(driver, 1)
    await append(driver, 2)
    with pytest.raises(TopicFull):
        await append(driver, 1, "b")
    assert (await driver.pop_one()).body == b"[1,2]"
    assert not items_left(driver)


async def test_a_pop_of_many_collections_stays_within_its_size(driver: EngineDriver) -> None:
    await driver.put("plain")
    for name in "bcd":
        for _ in range(3):
            await append(driver, "x" * 200_000, name)
    await driver.put("last")
    popped: list[list[str]] = []
    while jobs := await driver.pop(10):
        popped.append([one.id for one in jobs])
        assert sum(len(one.body) for one in jobs) < 1024 * 1024
    assert popped == [["plain", "b"], ["c"], ["d", "last"]]
    assert await is_sound(driver)


async def test_without_memory_appends_are_refused_and_pops_are_not(driver: EngineDriver) -> None:
    await append(driver, 1)
    driver.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="memory"):
            await append(driver, 2)
        assert (await driver.pop_one()).body == b"[1]"
    finally:
        driver.server.command("CONFIG", "SET", "maxmemory", "0")
    assert await is_sound(driver)


@pytest.mark.parametrize(
    "commands",
    [
        (("HSET", f"{KEY}:items", "a", "77"),),
        (("HDEL", f"{KEY}:items", "a"),),
        (("DEL", f"{KEY}:items/a"),),
        (("HSET", f"{KEY}:items", "ghost", "1"), ("RPUSH", f"{KEY}:items/ghost", "1")),
    ],
    ids=["wrong size", "no entry", "no list", "no job"],
)
async def test_a_repair_leaves_sound_items(driver: EngineDriver, commands: tuple[tuple[str, ...], ...]) -> None:
    await append(driver, 1)
    for command in commands:
        driver.server.command(*command)
    found = await driver.engine.consistency.audit_topic(TOPIC)
    assert set(found.findings.counts) == {FindingKind.ITEMS_WRONG}
    await driver.engine.consistency.audit_topic(TOPIC, repair=True)
    assert await is_sound(driver)
    assert (await driver.pop_one()).body in {b"[1]", b"[]"}
    assert not driver.keys_left() & {"items"}


async def test_every_item_is_delivered_once_and_in_order(driver: EngineDriver) -> None:
    """400 calls by chance on two ids; a finished delivery counts."""
    chance = random.Random(3)
    put: dict[str, list[int]] = {"a": [], "b": []}
    done: dict[str, list[int]] = {"a": [], "b": []}
    held: list[JobRecord] = []
    for number in range(400):
        verb = chance.choice(("put", "put", "put", "pop", "finish", "release", "return", "time"))
        if verb == "put":
            job_id = chance.choice("ab")
            await append(
                driver,
                number,
                job_id,
                if_reserved="after",
                delay=chance.choice((0, 5)),
                max_items=chance.choice((3, None)),
            )
            put[job_id].append(number)
        elif verb == "pop":
            held += await driver.pop(2)
            assert len({one.id for one in held}) == len(held)
        elif verb == "time":
            await driver.pass_time(chance.choice((1, 5)))
            held = [one for one in held if (await driver.queue.get(TOPIC, one.id)).nonce == one.nonce]
        elif held:
            one = held.pop(0)
            if verb == "finish":
                await finish(driver, one)
                done[one.id] += orjson.loads(one.body)
            elif verb == "release":
                await driver.deliveries.release(TOPIC, one.id, one.receipt, delay_ms=1000)
            else:
                await driver.held_jobs.return_popped([one])
            await driver.run_timer()
    assert await is_sound(driver)
    for _ in range(8):
        await driver.pass_time(61)
        for one in await driver.pop(2):
            await driver.queue.finish(TOPIC, one.id, ANY_RECEIPT)
            done[one.id] += orjson.loads(one.body)
    assert done == put
    assert not items_left(driver)
