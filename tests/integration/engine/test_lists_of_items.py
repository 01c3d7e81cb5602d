"""Lists of collected items that nothing knows of are found in the store and repaired, so that no job gets old items."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.operations.audits import FindingKind
from deferd.engine.consistency import StoreReport
from deferd.engine.engine import Engine
from deferd.store.connection import Store
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.store.store_servers import StoreServer


async def survey(driver: EngineDriver, *, repair: bool = False) -> StoreReport:
    return await driver.engine.consistency.audit_store(repair=repair)


def items_of(driver: EngineDriver, key: str) -> list[bytes]:
    items: list[bytes] = driver.server.command("LRANGE", key, 0, -1)
    return items


async def append(driver: EngineDriver, *bodies: int, **fields: Any) -> None:
    for body in bodies:
        await driver.put(body=body, on_conflict="append", **fields)


async def test_a_list_of_no_job_is_found_and_moved_aside(driver: EngineDriver) -> None:
    await driver.put("other", delay=5)
    driver.server.command("RPUSH", f"{KEY}:items/a", "1", "2")
    for _ in range(2):  # nothing is changed
        found = await survey(driver)
        assert found.findings.counts == {FindingKind.ITEMS_WRONG: 1}
        [example] = found.findings.examples
        assert (example.subject, example.detail) == (f"{TOPIC}/a", "of no job")
        assert not found.clean
    assert (await survey(driver, repair=True)).findings.counts == {FindingKind.ITEMS_WRONG: 1}
    assert (await survey(driver)).clean
    [aside] = driver.server.command("KEYS", f"{KEY}:aside/items/a/*")
    assert items_of(driver, aside.decode()) == [b"1", b"2"]
    await append(driver, 3)
    await driver.run_timer()
    assert (await driver.pop_one()).body == b"[3]"


@pytest.mark.parametrize("is_follow_up", [False, True])
@pytest.mark.parametrize("of_the_topic", [False, True])
async def test_a_list_that_is_not_recorded_goes_back_to_its_job(
    driver: EngineDriver, is_follow_up: bool, of_the_topic: bool
) -> None:
    if is_follow_up:
        await driver.put(body="held")
        held = await driver.pop_one()
    await append(driver, 10, 20, if_reserved="after")
    driver.server.command("HDEL", f"{KEY}:items", "a")
    consistency = driver.engine.consistency
    for repair in (False, True):
        found = await (consistency.audit_topic(TOPIC, repair=repair) if of_the_topic else survey(driver, repair=repair))
        assert found.findings.counts == {FindingKind.ITEMS_WRONG: 1}
        assert found.findings.examples[0].detail.startswith("4 bytes, ")
    assert (await consistency.audit_topic(TOPIC)).clean
    assert (await survey(driver)).clean
    await append(driver, 30, if_reserved="after")
    if is_follow_up:
        await driver.queue.finish(TOPIC, "a", held.receipt)
    await driver.run_timer()
    assert (await driver.pop_one()).body == b"[10,20,30]"
    assert not [name for name in driver.keys_left() if name.startswith("items")]


async def test_sound_lists_are_no_finding(driver: EngineDriver) -> None:
    await driver.puts.put_many([job(f"j{number}", on_conflict="append") for number in range(700)])
    assert (await survey(driver)).clean


@pytest.mark.slow
async def test_many_lists_are_moved_aside_in_bounded_steps(driver: EngineDriver) -> None:
    for number in range(700):
        driver.server.command("RPUSH", f"{KEY}:items/j{number}", "1")
    driver.server.command("RPUSH", "deferd:{0}:unknown:items/a", "1")
    found = await survey(driver, repair=True)
    assert found.findings.counts == {FindingKind.ITEMS_WRONG: 701}
    assert (await survey(driver)).clean
    assert len(driver.server.command("KEYS", f"{KEY}:aside/items/*")) == 700


async def test_large_lists_go_back_one_after_the_other(driver: EngineDriver) -> None:
    for number in range(3):
        for _ in range(3):
            await driver.puts.put(job(f"j{number}", body="x" * 300_000, on_conflict="append"))
    driver.server.command("DEL", f"{KEY}:items")
    assert (await survey(driver, repair=True)).findings.counts == {FindingKind.ITEMS_WRONG: 3}
    assert (await survey(driver)).clean
    sizes = driver.server.command("HGETALL", f"{KEY}:items")
    assert set(sizes.values()) == {b"%d" % (3 * 300_002)}


@pytest.mark.parametrize("name", ["items", "pool", "follow"])
async def test_a_topic_with_a_key_of_the_wrong_type_stops_no_survey(driver: EngineDriver, name: str) -> None:
    driver.server.command("RPUSH", f"{KEY}:items/a", "1")
    driver.server.command("SET", f"{KEY}:{name}", "x")
    await driver.puts.put(job().model_copy(update={"topic": "other"}))
    assert (await survey(driver, repair=True)).findings.counts == {}
    await driver.engine.consistency.audit_topic(TOPIC, repair=True)
    assert (await survey(driver, repair=True)).findings.counts == {FindingKind.ITEMS_WRONG: 1}


@pytest.mark.parametrize("command", [("SET", "x"), ("HSET", "1", "2")])
async def test_what_is_no_list_is_moved_aside(driver: EngineDriver, command: tuple[str, ...]) -> None:
    driver.server.command(command[0], f"{KEY}:items/a", *command[1:])
    assert (await survey(driver, repair=True)).findings.counts == {FindingKind.ITEMS_WRONG: 1}
    assert (await survey(driver)).clean
    await append(driver, 1)


async def test_lists_of_other_shards_are_left_alone(store: Store, server: StoreServer) -> None:
    engine = Engine(store, shards=3)
    server.command("RPUSH", "deferd:{1}:not a topic:items/a", "1")
    for shard in range(3):
        server.command("RPUSH", f"deferd:{{{shard}}}:t1:items/a", "1")
    found = await engine.consistency.audit_store(repair=True)
    assert found.findings.counts == {FindingKind.ITEMS_WRONG: 1}
    assert len(server.command("KEYS", "deferd:{?}:t1:items/a")) == 2
    await engine.close()
