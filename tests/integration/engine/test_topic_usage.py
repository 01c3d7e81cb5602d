"""The usage of topics in the store, as quotas count it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from deferd.api.auth.api_keys import Bounds
from deferd.api.auth.quota import Quota
from deferd.contract.bulk_model import CancelSelected, RescheduleSelected, Select
from deferd.contract.ends import OnEnd
from deferd.contract.errors import RateLimited
from deferd.contract.model import PutJob
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.script_arguments import NO_BOUNDS, encode_put
from deferd.engine.topic_usage import HELD_OVERHEAD_BYTES, ITEM_OVERHEAD_BYTES, JOB_OVERHEAD_BYTES, TAG_OVERHEAD_BYTES
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.schedule_driver import ScheduleDriver
from tests.integration.engine.test_topic_sums import MAKE_TOPICS


async def all_names(driver: EngineDriver, *prefixes: str) -> list[str]:
    return [name async for page in driver.engine.usage.names(0, prefixes) for name in page]


async def test_only_the_topics_of_the_prefixes_are_read(driver: EngineDriver) -> None:
    for topic in ("a", "ab", "ab.1", "ab.2", "abz", "b", "z"):
        await driver.puts.put(PutJob(topic=topic))
    assert await all_names(driver, "ab.") == ["ab.1", "ab.2"]
    assert await all_names(driver, "z", "ab", "ab.") == ["ab", "ab.1", "ab.2", "abz", "z"]
    assert len(await all_names(driver, "")) == 7
    assert await all_names(driver, "c") == []


async def test_many_topics_are_read_in_pages(driver: EngineDriver) -> None:
    names = [f"t{number:05}" for number in range(1, 2501)]
    driver.server.command("EVAL", MAKE_TOPICS, 0, len(names))
    pages = [page async for page in driver.engine.usage.names(0, ["t"])]
    assert [len(page) for page in pages] == [1000, 1000, 500]
    assert [name for page in pages for name in page] == names
    assert await driver.engine.usage.jobs(0, names) == (2500, 0)


async def test_jobs_of_every_state_and_tombstones_are_counted(driver: EngineDriver) -> None:
    await driver.put("delayed", delay=60)
    for job_id in ("dead", "finished", "cancelled"):
        await driver.put(job_id, retain=60)
    held = {popped.id: popped for popped in await driver.pop(3)}
    await driver.deliveries.bury(TOPIC, "dead", held["dead"].receipt)
    await driver.queue.finish(TOPIC, "finished", held["finished"].receipt)
    await driver.cancels.cancel(TOPIC, "cancelled")
    assert await driver.engine.usage.jobs(0, [TOPIC]) == (3, 2)


async def test_bytes_are_counted_exactly_in_bounded_steps(driver: EngineDriver) -> None:
    bodies = {f"small{number}": "x" for number in range(3000)} | {
        f"large{number}": "x" * 900_000 for number in range(3)
    }
    for start in range(0, len(bodies), 1000):
        some = list(bodies.items())[start : start + 1000]
        await driver.puts.put_many([job(job_id, body=body) for job_id, body in some])
    steps = [step async for step in driver.engine.usage.record_bytes(TOPIC)]
    header = 26
    expected = sum(2 * len(job_id) + len(body) + 2 + header + JOB_OVERHEAD_BYTES for job_id, body in bodies.items())
    assert sum(steps) == expected
    assert max(steps) < 3 * 1024 * 1024
    assert len(steps) >= 3


async def test_a_count_keeps_topics_with_puts_under_way(driver: EngineDriver) -> None:
    quota = Quota("shop", TopicPatterns(["*"]), Bounds(max_topics=1))
    with quota.room_for([PutJob(topic="a")]):
        await quota.count(driver.engine.usage)
        for other in (PutJob(topic="b"), PutJob(topic="a", on_end=OnEnd(topic="b"))):
            for put in (other, encode_put(other, NO_BOUNDS)):
                with pytest.raises(RateLimited, match="max_topics is 1"), quota.room_for([put]):
                    pass


def memory_of(driver: EngineDriver, pattern: str) -> int:
    """The bytes that the store uses for the keys whose names match."""
    return sum(
        driver.server.command("MEMORY", "USAGE", key, "SAMPLES", 0) for key in driver.server.command("KEYS", pattern)
    )


async def test_consumers_requests_and_touches_of_held_jobs_are_counted(driver: EngineDriver) -> None:
    await driver.puts.put_many([job(f"{number:0250}") for number in range(100)])
    waiting = sum([step async for step in driver.engine.usage.record_bytes(TOPIC)])
    for number in range(100):
        held = await driver.pop_one(consumer="c" * 100, request_id=f"{number:0250}")
        await driver.deliveries.touch(TOPIC, held.id, held.receipt)
    counted = sum([step async for step in driver.engine.usage.record_bytes(TOPIC)]) - waiting
    memory = sum(memory_of(driver, f"{KEY}:{name}*") for name in ("holders", "request", "touches"))
    assert memory <= counted <= 1.5 * memory


async def test_schedules_are_counted_in_pages_with_all_that_they_use(schedules: ScheduleDriver) -> None:
    work = {"body": "x" * 400}
    for number in range(260):
        await schedules.schedule(f"s{number:03}", topic="a" if number % 2 else "b", paused=number % 3 > 0, job=work)
    pages = [page async for page in schedules.engine.usage.schedules(0)]
    assert [sorted((topic, count) for topic, count, _ in page) for page in pages] == [
        [("a", 125), ("b", 125)],
        [("a", 5), ("b", 5)],
    ]
    counted = sum(used for page in pages for *_, used in page)
    assert memory_of(schedules, "deferd:*schedule*") <= counted <= 1.5 * memory_of(schedules, "deferd:*schedule*")


async def cancel(driver: EngineDriver, request_id: str, caller: str | None) -> None:
    """A call on many jobs that selects none."""
    await driver.engine.bulk.cancel(CancelSelected(select=Select(tag="none"), request_id=request_id), None, caller)


async def test_calls_and_tasks_are_counted_for_the_key_that_made_them(driver: EngineDriver) -> None:
    await driver.puts.put_many([job(f"order-{number:0100}", delay=60) for number in range(600)])
    shop, other = "shop", "other"
    cancels = (cancel(driver, f"{number:036}", shop) for number in range(510))
    await asyncio.gather(*cancels)
    select = Select(topics=[TOPIC], state="delayed")
    for request_id, caller in (("moved", shop), (None, other)):
        await driver.engine.bulk.reschedule(
            RescheduleSelected(select=select, by=1, request_id=request_id), None, caller
        )
    await cancel(driver, "r", other)
    await cancel(driver, "r", None)
    await driver.engine.tasks.begin("t1", {"select": {"tag": "x" * 1000}}, "process", shop)
    calls, used = await driver.engine.usage.calls(0, shop)
    assert calls == 510 + 1 + 1
    memory = memory_of(driver, "deferd:*bulk/*/shop/*") + memory_of(driver, "deferd:*of_key/shop")
    memory += memory_of(driver, "deferd:*task/*")
    assert memory <= used <= 1.5 * memory
    assert 1 == (await driver.engine.usage.calls(0, other))[0]
    driver.move_clock(3601)
    ended = driver.server.command("KEYS", "deferd:*bulk/*")
    driver.server.command("UNLINK", *ended)  # they expire by the server's own clock
    assert 1 == (await driver.engine.usage.calls(0, shop))[0]
    await cancel(driver, "last", shop)
    assert 2 == driver.server.command("ZCARD", "deferd:{0}:of_key/shop"), "those that have ended are forgotten"


# What waits beside jobs, or is kept with them

AFTER = {"on_conflict": "replace", "if_reserved": "after"}


async def used(driver: EngineDriver) -> tuple[int, int]:
    """Jobs and bytes."""
    jobs, _ = await driver.engine.usage.jobs(0, [TOPIC])
    return jobs, sum([step async for step in driver.engine.usage.record_bytes(TOPIC)])


def stored_bytes(driver: EngineDriver, of: str, job_id: str) -> int:
    return int(driver.server.command("HSTRLEN", f"{KEY}:{of}", job_id)) + 2 * len(job_id) + JOB_OVERHEAD_BYTES


async def test_a_follow_up_counts_until_it_is_gone(driver: EngineDriver) -> None:
    await driver.put(body="held")
    held = await driver.pop_one()
    await driver.put(body="x" * 5000, **AFTER)
    both = stored_bytes(driver, "pool", "a") + HELD_OVERHEAD_BYTES + stored_bytes(driver, "follow", "a")
    assert await used(driver) == (2, both)
    assert both > 5000
    await driver.queue.finish(TOPIC, "a", held.receipt)
    assert await used(driver) == (1, stored_bytes(driver, "pool", "a"))
    await driver.cancels.cancel(TOPIC, "a")
    assert await used(driver) == (0, 0)


@pytest.mark.parametrize("is_follow_up", [False, True])
async def test_collected_items_count_until_they_are_handed_out(driver: EngineDriver, is_follow_up: bool) -> None:
    held = None
    if is_follow_up:
        await driver.put(body="held")
        held = await driver.pop_one()
    for _ in range(3):
        await driver.put(body="x" * 998, on_conflict="append", if_reserved="after")
    where = "follow" if is_follow_up else "pool"
    items = 3 * (1000 + ITEM_OVERHEAD_BYTES) + 1 + len(f"{KEY}:items/a") + JOB_OVERHEAD_BYTES
    jobs, all_bytes = await used(driver)
    assert jobs == (2 if held else 1)
    assert all_bytes == items + stored_bytes(driver, where, "a") + (
        stored_bytes(driver, "pool", "a") + HELD_OVERHEAD_BYTES if held else 0
    )
    if held:
        await driver.queue.finish(TOPIC, "a", held.receipt)
    await driver.run_timer()
    taken = await driver.pop_one()
    assert await used(driver) == (1, stored_bytes(driver, "pool", "a") + HELD_OVERHEAD_BYTES)
    assert stored_bytes(driver, "pool", "a") > 3000
    await driver.queue.finish(TOPIC, "a", taken.receipt)
    assert await used(driver) == (0, 0)


async def test_groups_and_their_turns_count_too(driver: EngineDriver) -> None:
    await driver.put(group="tenant-7")
    of_group = len("tenant-7") + len("1 0 0 ") + TAG_OVERHEAD_BYTES
    of_flow = 2 * len("0 tenant-7") + 1 + 2 * TAG_OVERHEAD_BYTES
    assert await used(driver) == (1, stored_bytes(driver, "pool", "a") + of_group + of_flow)


async def test_tags_count_in_the_index_too(driver: EngineDriver) -> None:
    await driver.put(tags=["user:7", "x"])
    in_index = 1 + 2 * len("user:7 x") + 2 * (len(TOPIC) + 1 + TAG_OVERHEAD_BYTES)
    assert await used(driver) == (1, stored_bytes(driver, "pool", "a") + in_index)
    await driver.cancels.cancel(TOPIC, "a")
    assert await used(driver) == (0, 0)


async def test_the_log_of_attempts_counts_with_its_record(driver: EngineDriver) -> None:
    await driver.put()
    before = (await used(driver))[1]
    held = await driver.pop_one()
    await driver.deliveries.release(TOPIC, "a", held.receipt, error="x" * 1000)
    assert (await used(driver))[1] > before + 1500  # the error, and its first 500 bytes in the log


async def test_many_of_each_are_counted_in_bounded_steps(driver: EngineDriver) -> None:
    many: list[dict[str, Any]] = [{"body": "x" * 998, "on_conflict": "append"} for _ in range(2500)]
    for start in range(0, len(many), 500):
        puts = [job(f"j{start + at}", tags=["t"], **fields) for at, fields in enumerate(many[start : start + 500])]
        await driver.puts.put_many(puts)
    steps = [step async for step in driver.engine.usage.record_bytes(TOPIC)]
    assert sum(steps) > 2500 * (998 + 2 * JOB_OVERHEAD_BYTES + TAG_OVERHEAD_BYTES)
    assert max(steps) < 3 * 1024 * 1024
    assert len(steps) >= 7


async def test_a_topic_with_jobs_only_is_counted_in_one_step(driver: EngineDriver) -> None:
    await driver.put()
    assert len([step async for step in driver.engine.usage.record_bytes(TOPIC)]) == 1
