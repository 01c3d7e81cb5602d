"""Edges at which features of jobs meet returned deliveries, redrives and leftovers in the store."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from deferd.contract.model import FinishItem, JobState, PutJob
from deferd.contract.operations.audits import FindingKind
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import redrive_jobs


async def is_sound(driver: EngineDriver) -> bool:
    of_topic = await driver.engine.consistency.audit_topic(TOPIC)
    of_store = await driver.engine.consistency.audit_store()
    return of_topic.clean and of_store.clean


async def append(driver: EngineDriver, body: Any, **fields: Any) -> str:
    return (await driver.puts.put(job(body=body, on_conflict="append", **fields))).outcome


@pytest.mark.parametrize("chained", [False, True])
async def test_an_append_to_a_returned_job_joins_its_follow_up(driver: EngineDriver, chained: bool) -> None:
    await driver.put(body="held")
    await driver.put("other", delay=1000)
    held = await driver.pop_one()
    assert await append(driver, 1, if_reserved="after") == "follow_up"
    await driver.held_jobs.return_popped([held])
    if chained:
        await driver.puts.put(PutJob(topic=TOPIC, id="first", body=None))
        popped = await driver.pop(2)
        [first] = [one for one in popped if one.id == "first"]
        [again] = [one for one in popped if one.id == "a"]
        await driver.held_jobs.return_popped([again])
        spec = job(body=2, on_conflict="append")
        await driver.queue.finish_and_put(TOPIC, "first", first.receipt, [spec])
    else:
        assert await append(driver, 2) == "appended"
    assert await is_sound(driver)
    held = await driver.pop_one()
    assert held.body == b'"held"'
    await driver.queue.finish(TOPIC, "a", held.receipt)
    await driver.run_timer()
    assert orjson.loads((await driver.pop_one()).body) == [1, 2]
    assert await is_sound(driver)


async def test_a_job_that_was_delivered_does_not_shorten_the_next_wait(driver: EngineDriver) -> None:
    await driver.put(delay=10, max_wait=15, on_conflict="replace")
    await driver.pass_time(11)
    held = await driver.pop_one()
    await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=1_000_000, counts=False)
    await driver.pass_time(60)
    put = await driver.put(delay=10, max_wait=15, on_conflict="replace")
    assert put.due_at_ms == put.created_at_ms + 10_000


async def test_a_lease_beyond_the_time_limit_does_not_keep_the_timer_busy(driver: EngineDriver) -> None:
    await driver.put(time_limit=10, ttr=10)
    await driver.pop_one()
    driver.server.command("ZINCRBY", f"{KEY}:reserved", 3_600_000, "a")
    await driver.pass_time(11)
    assert await driver.state() is JobState.READY


async def test_a_finished_job_does_not_die_by_a_leftover_deadline(driver: EngineDriver) -> None:
    await driver.put(retain=60, deadline=20)
    held = await driver.pop_one()
    expiry = driver.server.command("ZSCORE", f"{KEY}:expiry", "a")
    await driver.queue.finish(TOPIC, "a", held.receipt)
    driver.server.command("ZADD", f"{KEY}:expiry", expiry, "a")
    await driver.pass_time(21)
    assert await driver.state() is JobState.FINISHED
    assert await is_sound(driver)


async def test_a_leftover_deadline_does_not_end_the_lease_of_another_job(driver: EngineDriver) -> None:
    put = await driver.put()
    driver.server.command("ZADD", f"{KEY}:expiry", put.created_at_ms + 5000, "a")
    await driver.pop_one()
    for delay in (6, 7):  # the timer visits the topic
        await driver.put(f"after-{delay}", delay=delay)
    await driver.pass_time(6)
    await driver.pass_time(1)
    assert await driver.state() is JobState.RESERVED
    assert await is_sound(driver)


async def test_collected_items_and_follow_ups_count_as_bytes_of_the_topic(driver: EngineDriver) -> None:
    for _ in range(20):
        await append(driver, "x" * 1000, delay=60)
    await driver.put("held")
    await driver.pop_one()
    spec = job("held", body="y" * 5000, on_conflict="replace", if_reserved="after")
    await driver.puts.put(spec)
    counted = sum([step async for step in driver.engine.usage.record_bytes(TOPIC)])
    assert 20 * 1000 + 5000 < counted < 20 * 1000 + 5000 + 2000


async def test_many_collections_are_counted_in_bounded_steps(driver: EngineDriver) -> None:
    for number in range(5):
        for _ in range(3):
            await driver.puts.put(job(f"c{number}", body="x" * 300_000, on_conflict="append", delay=60))
    steps = [step async for step in driver.engine.usage.record_bytes(TOPIC)]
    assert sum(steps) > 5 * 900_000


DAMAGED = [b"short", b"\0" * 22 + b"\2\0\0\0[}null"]


@pytest.mark.parametrize("damaged", DAMAGED)
@pytest.mark.parametrize("ending", ["finish", "bury", "cancel", "timer"])
async def test_a_follow_up_that_cannot_be_read_strands_no_other_job(
    driver: EngineDriver, ending: str, damaged: bytes
) -> None:
    for job_id in ("a", "b", "c"):
        await driver.put(job_id, max_attempts=1 if job_id == "b" else None, ttr=10)
    held = {one.id: one for one in await driver.pop(3)}
    await driver.puts.put(job("b", body=1, on_conflict="replace", if_reserved="after"))
    driver.server.command("HSET", f"{KEY}:follow", "b", damaged)
    if ending == "finish":
        results = await driver.queue.finish_many(TOPIC, [FinishItem(id=one.id) for one in held.values()])
        assert [result.status for result in results] == [200, 200, 200]
    elif ending == "bury":
        await driver.deliveries.bury(TOPIC, "b", held["b"].receipt)
    elif ending == "cancel":
        await driver.cancels.cancel(TOPIC, "b", keep_follow_up=True)
    await driver.pass_time(11)
    assert (
        await driver.counts()
        == {
            "finish": {},
            "bury": {"ready": 2, "dead": 1},
            "cancel": {"ready": 2},
            "timer": {"ready": 2, "dead": 1},
        }[ending]
    )


@pytest.mark.parametrize("damaged", DAMAGED)
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("follow_up", [False, True])
async def test_an_append_to_what_cannot_be_read_is_refused_alone(
    driver: EngineDriver, damaged: bytes, held: bool, follow_up: bool
) -> None:
    await driver.put("b", delay=0 if held or follow_up else 60)
    if held or follow_up:
        [popped] = await driver.pop()
        await driver.puts.put(job("b", on_conflict="replace", if_reserved="after"))
        if not held:
            await driver.deliveries.release(TOPIC, "b", popped.receipt, delay_ms=60_000)
    driver.server.command("HSET", f"{KEY}:{'follow' if follow_up else 'pool'}", "b", damaged)
    specs = [job("a", delay=5), job("b", on_conflict="append", if_reserved="after"), job("c", delay=5)]
    results = await driver.puts.put_many(specs)
    assert [result.status for result in results] == [201, 409, 201]
    await driver.pass_time(6)
    assert {one.id for one in await driver.pop(2)} == {"a", "c"}


@pytest.mark.parametrize("damaged", DAMAGED)
async def test_a_job_that_cannot_be_read_can_be_replaced(driver: EngineDriver, damaged: bytes) -> None:
    await driver.put(delay=60)
    driver.server.command("HSET", f"{KEY}:pool", "a", damaged)
    put = await driver.put(delay=5, on_conflict="replace", max_wait=10)
    assert put.due_at_ms == put.created_at_ms + 5000


@pytest.mark.parametrize("limit", [2, 1000])
@pytest.mark.parametrize("reason", [None, "buried"])
async def test_a_dead_job_that_cannot_be_read_does_not_keep_others_from_a_redrive(
    driver: EngineDriver, reason: str | None, limit: int
) -> None:
    for job_id in ("a", "b", "c"):
        await driver.put(job_id)
    for held in await driver.pop(3):
        await driver.deliveries.bury(TOPIC, held.id, held.receipt)
    driver.server.command("HSET", f"{KEY}:pool", "a", b"short")
    assert await redrive_jobs(driver.engine, TOPIC, limit=limit, reason=reason) == 2
    assert await driver.counts() == {"ready": 2, "dead": 1}


@pytest.mark.parametrize(("items", "size"), [(2, 200_000), (1000, 10)])
async def test_collected_items_are_checked_in_bounded_steps(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch, items: int, size: int
) -> None:
    ids = [f"c{number}" for number in range(25)]
    item = f'"{"x" * size}"'
    await driver.puts.put_many([job(job_id, body="x" * size, on_conflict="append", delay=60) for job_id in ids])
    for job_id in ids:
        driver.server.command("RPUSH", f"{KEY}:items/{job_id}", *[item] * (items - 1))
        driver.server.command("HINCRBY", f"{KEY}:items", job_id, len(item) * (items - 1))
    steps: list[bytes] = []
    scripts = driver.engine.consistency._scripts
    run = scripts.run

    async def noting(verb: str, keys: Any, args: Any, **options: Any) -> Any:
        reply = await run(verb, keys, args, **options)
        if verb == "audit_members" and args[2] == "items":
            steps.append(reply[0])
        return reply

    monkeypatch.setattr(scripts, "run", noting)
    assert await is_sound(driver)
    assert 3 <= len(steps) <= len(ids)
    for job_id in ids:
        driver.server.command("HINCRBY", f"{KEY}:items", job_id, 1)
    found = await driver.engine.consistency.audit_topic(TOPIC, repair=True)
    assert found.findings.counts == {FindingKind.ITEMS_WRONG: len(ids)}
    assert await is_sound(driver)


@pytest.mark.parametrize("delay", [0, 5])
@pytest.mark.parametrize("ttl", [None, 1000])
@pytest.mark.parametrize("timer", [False, True])
async def test_an_expiry_of_an_earlier_job_does_not_end_the_next_one(
    driver: EngineDriver, delay: float, ttl: float | None, timer: bool
) -> None:
    await driver.put(delay=delay, ttl=ttl)
    driver.server.command("ZADD", f"{KEY}:expiry", 1, "a")
    if timer or delay:
        await driver.pass_time(6)
    assert (await driver.pop_one()).id == "a"
    assert await is_sound(driver)
