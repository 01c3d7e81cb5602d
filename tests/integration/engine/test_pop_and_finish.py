"""A pop that finishes its jobs in the same step: afterwards everything is as after a pop and a finish."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deferd.contract.errors import JobExists, StoreUnavailable, TopicPushed
from deferd.contract.model import JobState, TopicSettings
from deferd.contract.operations.push import SetPush
from deferd.engine import metrics
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver
from tests.integration.engine.sweeping import purge_jobs


async def ids_of(driver: EngineDriver, count: int) -> list[str]:
    return [job.id for job in await driver.queue.pops_and_finishes.pop(TOPIC, count)]


async def check_consistent(driver: EngineDriver) -> None:
    report = await driver.engine.consistency.audit_topic(TOPIC)
    assert report.clean, report


async def test_jobs_come_in_their_order_and_are_gone(driver: EngineDriver) -> None:
    for job_id in "abc":
        await driver.put(job_id, body=job_id.upper())
    await driver.put("later", delay=60)
    popped = await driver.queue.pops_and_finishes.pop(TOPIC, 2)
    assert [(job.id, job.body, job.attempts) for job in popped] == [("a", b'"A"', 1), ("b", b'"B"', 1)]
    assert await ids_of(driver, 10) == ["c"]
    assert await ids_of(driver, 10) == []
    assert await driver.counts() == {"delayed": 1}
    await check_consistent(driver)


async def test_it_is_an_end(driver: EngineDriver) -> None:
    await driver.put("a", on_end={"topic": "ended"})
    assert await ids_of(driver, 1) == ["a"]
    [end] = await driver.queue.pops_and_finishes.pop("ended", 1)
    assert b'"outcome":"finished","attempts":1' in end.body


async def test_the_jobs_of_a_pushed_topic_stay(driver: EngineDriver) -> None:
    await driver.put("a")
    push = {"url": "https://shop.example.com/", "secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]}
    await driver.engine.push.set(TOPIC, SetPush.model_validate(push))
    with pytest.raises(TopicPushed):
        await ids_of(driver, 1)
    assert await driver.counts() == {"ready": 1}
    await driver.engine.push.remove(TOPIC)
    assert await ids_of(driver, 1) == ["a"]
    await check_consistent(driver)


async def test_only_what_a_pop_and_a_finish_leave_is_left(driver: EngineDriver) -> None:
    """All keys of the topic, compared with those of another topic whose jobs are popped and finished one by one."""
    fields: list[dict[str, Any]] = [
        {},
        {"retain": 600},
        {"unique_for": 600},
        {"tags": ["x", "y"]},
        {"ttl": 600},
        {"deadline": 600, "time_limit": 60},
        {"max_attempts": 1},
    ]
    for index, more in enumerate(fields):
        await driver.put(f"j{index}", **more)
    assert len(await ids_of(driver, len(fields))) == len(fields)
    together = driver.keys_left()
    assert await driver.counts() == {"finished": 1}
    await purge_jobs(driver.engine, TOPIC)
    for index, more in enumerate(fields):
        await driver.put(f"k{index}", **more)
    for job in await driver.pop(len(fields)):
        await driver.queue.finish(TOPIC, job.id, job.receipt)
    assert driver.keys_left() == together
    await check_consistent(driver)


async def test_retention_and_uniqueness_hold(driver: EngineDriver) -> None:
    await driver.put("kept", retain=600)
    await driver.put("unique", unique_for=600)
    assert await ids_of(driver, 2) == ["kept", "unique"]
    kept = await driver.queue.get(TOPIC, "kept")
    assert (kept.state, kept.attempts, kept.result) == (JobState.FINISHED, 1, None)
    with pytest.raises(JobExists):
        await driver.put("unique")
    await driver.pass_time(601)
    await driver.put("unique")


async def test_a_follow_up_takes_the_place_of_its_job(driver: EngineDriver) -> None:
    await driver.put("a")
    await driver.pop_one()
    await driver.put("a", on_conflict="replace", if_reserved="after", body="second")
    await driver.deliveries.release(TOPIC, "a", ANY_RECEIPT, delay_ms=0)
    await driver.run_timer()
    assert await ids_of(driver, 1) == ["a"]
    await driver.run_timer()
    [second] = await driver.queue.pops_and_finishes.pop(TOPIC, 1)
    assert second.body == b'"second"'
    await check_consistent(driver)


async def test_collected_items_are_the_body(driver: EngineDriver) -> None:
    for item in (1, 2):
        await driver.put("a", on_conflict="append", body=item)
    [job] = await driver.queue.pops_and_finishes.pop(TOPIC, 1)
    assert job.body == b"[1,2]"
    await check_consistent(driver)


async def test_events_tell_of_both_steps(driver: EngineDriver) -> None:
    await driver.topics.set(TOPIC, TopicSettings(events=100))
    await driver.put("a")
    await ids_of(driver, 1)
    log = driver.server.command("LRANGE", f"{KEY}:events/log", 0, -1)
    assert [entry[:1] for entry in log[-2:]] == [b"O", b"F"]


async def test_expired_jobs_are_not_handed_out(driver: EngineDriver) -> None:
    await driver.put("old", ttl=5)
    await driver.put("new")
    driver.move_clock(6)
    assert await ids_of(driver, 10) == ["new"]
    assert await driver.counts() == {"dead": 1}
    await check_consistent(driver)


async def test_a_paused_topic_hands_out_nothing(driver: EngineDriver) -> None:
    await driver.put("a")
    await driver.topics.pause(TOPIC)
    assert await ids_of(driver, 1) == []
    await driver.topics.resume(TOPIC)
    assert await ids_of(driver, 1) == ["a"]


async def test_both_steps_are_counted(driver: EngineDriver) -> None:
    label = driver.queue._labels.label(TOPIC)
    pops, finishes = metrics.pops_of(label)._value.get(), metrics.finishes_of(label)._value.get()
    for job_id in "ab":
        await driver.put(job_id)
    await ids_of(driver, 5)
    assert metrics.pops_of(label)._value.get() == pops + 2
    assert metrics.finishes_of(label)._value.get() == finishes + 2


async def test_callers_at_the_same_time_get_different_jobs_in_few_calls(driver: EngineDriver) -> None:
    for number in range(100):
        await driver.put(f"j{number:02}")
    calls = 0
    send = driver.engine._scripts.run

    async def count(verb: str, *args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += verb == "pop_and_finish"
        return await send(verb, *args, **options)

    driver.engine._scripts.run = count  # type: ignore[method-assign]
    popped = await asyncio.gather(*(ids_of(driver, 2) for _ in range(60)))
    assert sorted(job_id for some in popped for job_id in some) == [f"j{number:02}" for number in range(100)]
    assert calls < 10


async def test_a_caller_gets_nothing_only_when_there_is_nothing(driver: EngineDriver) -> None:
    """A reply has 1 MiB of records at most, and callers at the same time share one."""
    body = "x" * 400_000
    for number in range(8):
        await driver.put(f"j{number}", body=body)
    popped = await asyncio.gather(*(ids_of(driver, 1) for _ in range(9)))
    assert sorted(map(len, popped)) == [0] + [1] * 8


async def test_an_error_after_a_part_of_the_callers_got_theirs_is_only_that_of_the_others(
    driver: EngineDriver,
) -> None:
    for number in range(6):
        await driver.put(f"j{number}", body="x" * 400_000)
    send = driver.engine._scripts.run
    calls = 0

    async def fail_later(verb: str, *args: Any, **options: Any) -> Any:
        nonlocal calls
        if verb == "pop_and_finish":
            calls += 1
            if calls == 3:
                raise StoreUnavailable("cut")
        return await send(verb, *args, **options)

    driver.engine._scripts.run = fail_later  # type: ignore[method-assign]
    popped = await asyncio.gather(*(ids_of(driver, 1) for _ in range(6)), return_exceptions=True)
    got = [some for some in popped if not isinstance(some, BaseException)]
    assert [type(some) for some in popped if isinstance(some, BaseException)] == [StoreUnavailable] * (6 - len(got))
    assert 1 < len(got) < 6
    assert len(await driver.queue.pops_and_finishes.pop(TOPIC, 6)) + len(
        await driver.queue.pops_and_finishes.pop(TOPIC, 6)
    ) == (6 - sum(map(len, got)))


async def test_a_damaged_record_is_neither_popped_nor_finished(driver: EngineDriver) -> None:
    await driver.put("bad")
    await driver.put("good")
    driver.server.command("HSET", f"{KEY}:pool", "bad", b"x" * 22 + b"\xff\xff\0\0{")
    assert await ids_of(driver, 5) == ["good"]
