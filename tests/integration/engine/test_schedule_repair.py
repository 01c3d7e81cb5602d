"""Consistency checks, repairs, copies and purges of schedules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from deferd.contract.errors import ScheduleNotFound
from deferd.contract.model import ChangeJob
from deferd.contract.operations.audits import FindingKind
from deferd.engine.engine import Engine
from deferd.engine.store_copy import copy_store
from deferd.store.connection import Store, connect
from tests.integration.engine.engine_driver import KEY, TOPIC
from tests.integration.engine.schedule_driver import NAME, ScheduleDriver
from tests.integration.engine.sweeping import purge_jobs
from tests.integration.store.store_servers import StoreServer

SHARD = "deferd:{0}:"
Damage = Callable[[StoreServer], object]


def stop(server: StoreServer) -> None:
    server.command("ZREM", f"{SHARD}schedule_due", NAME)


def lose_visit(server: StoreServer) -> None:
    server.command("ZREM", f"{SHARD}due", ":schedules")


def unlist(server: StoreServer) -> None:
    server.command("ZREM", f"{SHARD}schedules", NAME)


def list_ghost(server: StoreServer) -> None:
    server.command("ZADD", f"{SHARD}schedules", 0, "ghost")
    server.command("ZADD", f"{SHARD}schedule_due", 0, "ghost")


def list_inactive(server: StoreServer) -> None:
    server.command("HSET", f"{SHARD}schedule/{NAME}", "active", 0)


@pytest.mark.parametrize(
    ("damage", "kinds"),
    [
        (stop, {FindingKind.SCHEDULE_STOPPED}),
        (lose_visit, {FindingKind.TIMER_LATE}),
        (unlist, {FindingKind.SCHEDULE_WRONG}),
        (list_ghost, {FindingKind.SCHEDULE_WRONG, FindingKind.TIMER_LATE}),
        (list_inactive, {FindingKind.SCHEDULE_WRONG}),
    ],
)
async def test_damage_is_found_and_repaired(schedules: ScheduleDriver, damage: Damage, kinds: set[FindingKind]) -> None:
    await schedules.schedule()
    damage(schedules.server)
    check = schedules.engine.consistency.audit_store
    assert (await check()).findings.counts.keys() == kinds
    assert (await check(repair=True)).findings.counts.keys() == kinds
    assert (await check()).clean
    if damage is not list_inactive:
        await schedules.advance(200)
        assert await schedules.counters() == (3, 0, 0, 1)


@pytest.mark.parametrize("key", ["schedules", "schedule_due", "due"])
async def test_a_key_of_the_wrong_type_is_found_and_repaired(schedules: ScheduleDriver, key: str) -> None:
    await schedules.schedule()
    schedules.server.command("SET", f"{SHARD}{key}", "x")
    check = schedules.engine.consistency.audit_store
    assert not (await check()).clean
    assert (await check(repair=True)).repaired
    assert (await check()).clean


async def test_a_schedule_that_cannot_be_read_is_moved_aside(schedules: ScheduleDriver) -> None:
    await schedules.schedule()
    schedules.server.command("HSET", f"{SHARD}schedule/{NAME}", "state", "[1]")
    report = await schedules.engine.consistency.audit_store(repair=True)
    assert report.findings.counts == {FindingKind.SCHEDULE_UNREADABLE: 1}
    with pytest.raises(ScheduleNotFound):
        await schedules.get()
    [aside] = schedules.server.command("KEYS", f"{SHARD}aside/schedule/{NAME}/*")
    assert schedules.server.command("HGET", aside, "state") == b"[1]"
    assert (await schedules.engine.consistency.audit_store()).clean


async def test_a_run_that_no_longer_waits_is_settled(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60)
    schedules.server.command("HSET", f"{KEY}:runs", "gone", f"{NAME} 1 2 allow last")
    schedules.server.command("HINCRBY", f"{SHARD}schedule/{NAME}", "waiting", 1)
    check = schedules.engine.consistency.audit_topic
    assert (await check(TOPIC)).findings.counts == {FindingKind.RUN_STALE: 1}
    await check(TOPIC, repair=True)
    assert (await check(TOPIC)).clean
    assert await schedules.counters() == (1, 0, 0, 1)


async def test_a_next_run_that_was_moved_to_now_is_no_finding(schedules: ScheduleDriver) -> None:
    await schedules.queue.change(TOPIC, (await schedules.schedule()).schedule.next_id, ChangeJob(delay=0))
    await schedules.assert_clean()


async def test_a_name_in_two_shards_is_found_and_repaired(store: Store, server: StoreServer) -> None:
    engine = Engine(store, shards=2, movable_clock=True)
    driver = ScheduleDriver(engine, server)
    a, b = (next(t for t in (f"t{n}" for n in range(9)) if engine._keys.shard_of(t) == shard) for shard in (0, 1))
    await driver.schedule(topic=a)
    await driver.schedule("other", topic=b)
    with server.client() as client:
        fields = client.hgetall("deferd:{1}:schedule/other")
        client.hset(f"deferd:{{1}}:schedule/{NAME}", mapping={**fields, "version": 7})
    server.command("ZADD", "deferd:{1}:schedules", 0, NAME)
    server.command("ZADD", "deferd:{1}:schedule_due", 2_000_000_000_000, NAME)
    report = await engine.consistency.audit_store(repair=True)
    assert report.findings.counts == {FindingKind.SCHEDULE_TWICE: 1}
    assert (await driver.get()).topic == b
    assert (await engine.consistency.audit_store()).clean
    await engine.close()


async def test_a_purged_and_forgotten_topic_gets_runs_again(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=7200)
    await purge_jobs(schedules.engine, TOPIC)
    assert not schedules.server.command("EXISTS", f"{KEY}:runs")
    await schedules.advance(7300)
    assert await schedules.counters() == (0, 1, 0, 1)
    await schedules.advance(7200)
    assert await schedules.counters() == (1, 1, 0, 1)
    await schedules.assert_clean()


@pytest.mark.parametrize("shards", [(1, 3), (3, 1), (2, 5)])
async def test_a_copy_has_all_schedules_in_the_shards_of_their_topics(
    store: Store, server: StoreServer, tmp_path: Path, shards: tuple[int, int]
) -> None:
    from_shards, to_shards = shards
    server.mark_used(from_shards)
    engine = Engine(store, shards=from_shards)
    driver = ScheduleDriver(engine, server)
    for number in range(12):
        await driver.schedule(f"s{number}", topic=f"t{number}", every=3600, job={"body": number})
    await driver.schedule("paused", topic="t0", every=3600, paused=True)
    before = {name: await driver.get(name) for name in [*(f"s{number}" for number in range(12)), "paused"]}
    earlier = f"s1 {before['s1'].next_id}"
    server.command("ZADD", f"deferd:{{{before['s1'].shard}}}:earlier_runs", 0, earlier)
    await engine.close()
    with StoreServer(tmp_path) as target_server:
        target = await connect(target_server.url, timeout_s=5)
        report = await copy_store(store, target, shards=to_shards, force=True)
        assert report.adds_up
        assert report.left_out == []
        copied = Engine(target, shards=to_shards)
        for name, schedule in before.items():
            there = await copied.schedules.get(name)
            assert (there.next_id, there.body, there.rev) == (schedule.next_id, schedule.body, schedule.rev)
            assert there.shard == copied._keys.shard_of(there.topic)
        shard = copied._keys.shard_of("t1")
        assert target_server.command("ZRANGE", f"deferd:{{{shard}}}:earlier_runs", 0, -1) == [earlier.encode()]
        assert (await copied.consistency.audit_store()).clean
        await copied.close()
        await target.close()
