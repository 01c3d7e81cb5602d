"""Tags and headers of jobs, and the tag index: no job that has ended stays in it."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.errors import JobExists
from deferd.contract.model import ChangeJob, FinishItem, PutJob
from deferd.engine.record import ANY_RECEIPT
from deferd.store.connection import Store
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs
from tests.integration.store.store_contents import Contents, read_contents

TAGS = ["order-1042", "customer:7"]
HEADERS = {"tenant": "acme", "Käufer": 'Ada "A" / ü'}


def contents(driver: EngineDriver) -> Contents:
    with driver.server.client() as client:
        return read_contents(client, TOPIC)


def index(driver: EngineDriver) -> dict[str, set[str]]:
    return contents(driver).index


def assert_nothing_is_left(driver: EngineDriver) -> None:
    assert (contents(driver).tagged, index(driver)) == ({}, {})
    assert driver.server.command("KEYS", "deferd:{0}:tag/*") == []
    assert driver.server.command("EXISTS", f"{KEY}:tagged") == 0


async def end(driver: EngineDriver, how: str) -> None:
    """End job `a`, which is ready."""
    match how:
        case "finished":
            await driver.queue.finish(TOPIC, (await driver.pop_one()).id, ANY_RECEIPT)
        case "kept until its retention ends":
            await driver.queue.change(TOPIC, "a", ChangeJob(retain=10))
            await driver.queue.finish(TOPIC, (await driver.pop_one()).id, ANY_RECEIPT)
            assert index(driver) == {"order-1042": {"a"}, "customer:7": {"a"}}
            await driver.pass_time(20)
        case "dead until its retention ends":
            await driver.pop_one()
            await driver.deliveries.bury(TOPIC, "a", ANY_RECEIPT)
            assert index(driver) == {"order-1042": {"a"}, "customer:7": {"a"}}
            await driver.pass_time(3601)
        case "cancelled when delayed":
            await driver.queue.change(TOPIC, "a", ChangeJob(delay=10))
            await driver.cancels.cancel(TOPIC, "a")
        case "cancelled when ready":
            await driver.cancels.cancel(TOPIC, "a")
        case "cancelled when reserved":
            await driver.pop_one()
            await driver.cancels.cancel(TOPIC, "a")
        case "purged":
            await purge_jobs(driver.engine, TOPIC)
        case "replaced":
            await driver.put(on_conflict="replace")
        case "changed":
            await driver.queue.change(TOPIC, "a", ChangeJob(tags=[]))
        case "changed to null":
            await driver.queue.change(TOPIC, "a", ChangeJob(tags=None))


ENDS = [
    *("finished", "kept until its retention ends", "dead until its retention ends", "cancelled when delayed"),
    *("cancelled when ready", "cancelled when reserved", "purged", "replaced", "changed", "changed to null"),
]


async def test_a_job_leaves_the_index_when_it_has_ended_or_lost_its_tags(driver: EngineDriver) -> None:
    for how in ENDS:
        await driver.put(tags=TAGS, on_conflict="replace")
        assert index(driver) == {"order-1042": {"a"}, "customer:7": {"a"}}, how
        await end(driver, how)
        assert_nothing_is_left(driver)


async def test_a_change_replaces_tags_and_headers(driver: EngineDriver) -> None:
    await driver.put(delay=5, tags=TAGS, headers=HEADERS)
    changed = await driver.queue.change(TOPIC, "a", ChangeJob(tags=["customer:7", "vip"]))
    assert (changed.tags, changed.headers) == (["customer:7", "vip"], HEADERS)
    assert index(driver) == {"customer:7": {"a"}, "vip": {"a"}}
    changed = await driver.queue.change(TOPIC, "a", ChangeJob(headers={"x": "y"}, delay=7))
    assert (changed.tags, changed.headers) == (["customer:7", "vip"], {"x": "y"})
    changed = await driver.queue.change(TOPIC, "a", ChangeJob(headers={}, body=1))
    assert (changed.tags, changed.headers) == (["customer:7", "vip"], None)
    assert index(driver) == {"customer:7": {"a"}, "vip": {"a"}}


async def test_a_refused_or_kept_put_adds_nothing_to_the_index(driver: EngineDriver) -> None:
    await driver.put(delay=5)
    with pytest.raises(JobExists):
        await driver.put(tags=TAGS)
    await driver.put(tags=TAGS, on_conflict="keep")
    await driver.puts.put_many([job("a", tags=TAGS), job("a", tags=TAGS, on_conflict="keep")])
    assert_nothing_is_left(driver)


async def test_topic_defaults_keep_the_tags(driver: EngineDriver) -> None:
    driver.server.command("HSET", "deferd:{0}:settings", TOPIC, '{"po":{"t":7000,"m":3}}')
    put = await driver.put(tags=TAGS, headers=HEADERS)
    assert (put.stored("ttr"), put.stored("max_attempts"), put.tags, put.headers) == (7000, 3, TAGS, HEADERS)
    assert index(driver) == {"order-1042": {"a"}, "customer:7": {"a"}}


async def test_one_of_many_finished_together_leaves_the_index(driver: EngineDriver) -> None:
    puts: dict[str, dict[str, Any]] = {"a": {"tags": TAGS}, "b": {}, "c": {"tags": ["vip"]}, "d": {"ttr": 9}}
    for job_id, fields in puts.items():
        await driver.put(job_id, **fields)
    items = [{"id": job.id, "receipt": str(job.receipt)} for job in await driver.pop(3)]
    await driver.queue.finish_many(TOPIC, [FinishItem.model_validate(item) for item in items])
    assert_nothing_is_left(driver)


async def test_plain_jobs_store_no_tags(driver: EngineDriver, store: Store) -> None:
    await driver.put(delay=5)
    raw: Any = await store.call("HGET", f"{KEY}:pool", "a")
    assert raw[22:] == b"\0\0\0\0null"
    assert_nothing_is_left(driver)


async def test_topics_share_the_index(driver: EngineDriver) -> None:
    for topic in ("one", "two"):
        await driver.puts.put(PutJob(topic=topic, id="a", delay=5, tags=["both"]))
    assert driver.server.command("ZRANGE", "deferd:{0}:tag/both", 0, -1) == [b"one a", b"two a"]
    await driver.cancels.cancel("one", "a")
    assert driver.server.command("ZRANGE", "deferd:{0}:tag/both", 0, -1) == [b"two a"]
