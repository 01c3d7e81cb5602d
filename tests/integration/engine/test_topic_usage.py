"""The usage of topics in the store, as quotas count it."""

from __future__ import annotations

import pytest

from deferd.api.auth.api_keys import Bounds
from deferd.api.auth.quota import Quota
from deferd.contract.errors import RateLimited
from deferd.contract.model import PutJob
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.topic_usage import JOB_OVERHEAD_BYTES
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job


async def all_names(driver: EngineDriver, *prefixes: str) -> list[str]:
    return [name async for page in driver.engine.usage.names(0, prefixes) for name in page]


async def test_only_the_topics_of_the_prefixes_are_read(driver: EngineDriver) -> None:
    for topic in ("a", "ab", "ab.1", "ab.2", "abz", "b", "z"):
        await driver.queue.put(PutJob(topic=topic))
    assert await all_names(driver, "ab.") == ["ab.1", "ab.2"]
    assert await all_names(driver, "z", "ab", "ab.") == ["ab", "ab.1", "ab.2", "abz", "z"]
    assert len(await all_names(driver, "")) == 7
    assert await all_names(driver, "c") == []


async def test_many_topics_are_read_in_pages(driver: EngineDriver) -> None:
    names = [f"t{number:04}" for number in range(2500)]
    for start in range(0, len(names), 500):
        await driver.queue.put_many([PutJob(topic=name) for name in names[start : start + 500]])
    pages = [page async for page in driver.engine.usage.names(0, ["t"])]
    assert [len(page) for page in pages] == [1000, 1000, 500]
    assert [name for page in pages for name in page] == names
    assert await driver.engine.usage.jobs(0, names) == (2500, 0)


async def test_jobs_of_every_state_and_tombstones_are_counted(driver: EngineDriver) -> None:
    await driver.put("delayed", delay=60)
    for job_id in ("dead", "finished", "cancelled"):
        await driver.put(job_id, retain=60)
    held = {popped.id: popped for popped in await driver.pop(3)}
    await driver.queue.bury(TOPIC, "dead", held["dead"].receipt)
    await driver.queue.finish(TOPIC, "finished", held["finished"].receipt)
    await driver.queue.cancel(TOPIC, "cancelled")
    assert await driver.engine.usage.jobs(0, [TOPIC]) == (3, 2)


async def test_bytes_are_counted_exactly_in_bounded_steps(driver: EngineDriver) -> None:
    bodies = {f"small{number}": "x" for number in range(3000)} | {
        f"large{number}": "x" * 900_000 for number in range(3)
    }
    for start in range(0, len(bodies), 1000):
        some = list(bodies.items())[start : start + 1000]
        await driver.queue.put_many([job(job_id, body=body) for job_id, body in some])
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
        with pytest.raises(RateLimited, match="max_topics is 1"), quota.room_for([PutJob(topic="b")]):
            pass
