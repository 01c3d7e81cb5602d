"""The consistency check: it finds and repairs planted damage, and finds nothing in a sound store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from deferd.contract.errors import DeferdError, ReceiptStale, StoreUnavailable, TopicNotFound
from deferd.contract.model import ChangeJob, PutJob, TopicSettings
from deferd.contract.operations.audits import FindingKind
from deferd.contract.timestamps import instant
from deferd.engine.consistency import TopicReport
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.store.connection import Store, connect
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs, redrive_jobs
from tests.integration.store.store_servers import ClusterSet, StoreServer

LONG = 5000
"""Enough jobs for many steps of a check."""
FAR_MS = 4_000_000_000_000


async def put_one_in_every_state(driver: EngineDriver) -> None:
    await driver.put("reserved")
    await driver.put("limited", time_limit=3_000, deadline=1_000_000)
    await driver.put("dead", tags=["t-1", "t-2"], headers={"tenant": "acme"})
    await driver.put("finished", retain=3600)
    await driver.pop(4, consumer="worker-1", ttr_ms=3_000_000)
    await driver.deliveries.bury(TOPIC, "dead", ANY_RECEIPT)
    await driver.queue.finish(TOPIC, "finished", ANY_RECEIPT)
    await driver.put("delayed", delay=60, ttl=1000)
    await driver.put("ready", ttl=1000, deadline=500)


class Plant(NamedTuple):
    """Planted damage: the commands, the expected findings, and the jobs that are lost."""

    commands: tuple[tuple[str | int | bytes, ...], ...]
    kinds: dict[str, int]
    costs: frozenset[str] = frozenset()
    has_groups: bool = False


def in_no_place(*commands: tuple[str | int | bytes, ...]) -> Plant:
    return Plant(commands, {"in_no_place": 1})


PLANTS: dict[str, Plant] = {
    "a ready job that is not in the list": in_no_place(("DEL", f"{KEY}:ready")),
    "a delayed job that is not in the bucket": in_no_place(("ZREM", f"{KEY}:delay", "delayed")),
    "a reserved job without a lease": Plant(
        (("ZREM", f"{KEY}:reserved", "reserved"),), {"in_no_place": 1, "holder_wrong": 1}
    ),
    "a lease that does not end": Plant((("ZADD", f"{KEY}:reserved", FAR_MS, "reserved"),), {"lease_endless": 1}),
    "a dead job that is not among the dead": in_no_place(("ZREM", f"{KEY}:dead", "dead")),
    "a finished job that is delayed": Plant(
        (("ZADD", f"{KEY}:delay", FAR_MS, "finished"),), {"in_two_places": 1}, frozenset({"finished"})
    ),
    "a reserved job that is delayed": Plant((("ZADD", f"{KEY}:delay", FAR_MS, "reserved"),), {"in_two_places": 1}),
    "a dead job that is reserved": Plant(
        (("ZADD", f"{KEY}:reserved", FAR_MS, "dead"),), {"in_two_places": 1}, frozenset({"dead"})
    ),
    "a job in all places": Plant(
        tuple(("ZADD", f"{KEY}:{place}", FAR_MS, "ready") for place in ("delay", "reserved", "dead", "finished")),
        {"in_two_places": 1, "expiry_wrong": 1, "tally_off": 1},
        frozenset({"ready"}),
    ),
    "a bucket entry without a record": Plant(
        (("HDEL", f"{KEY}:pool", "delayed"),), {"no_record": 2, "tally_off": 1}, frozenset({"delayed"})
    ),
    "a lease without a record": Plant(  # the lease, its consumer, and when it began: the pop named a ttr
        (("HDEL", f"{KEY}:pool", "reserved"),), {"no_record": 3, "tally_off": 1}, frozenset({"reserved"})
    ),
    "entries of jobs that never were": Plant(
        (
            *(("ZADD", f"{KEY}:{place}", FAR_MS, "ghost") for place in ("delay", "dead", "expiry")),
            ("HSET", f"{KEY}:holders", "ghost", "worker-1"),
        ),
        {"no_record": 4},
    ),
    "a finished entry of a job that never was": Plant(
        (("ZADD", f"{KEY}:finished", FAR_MS, "ghost"),), {"no_record": 1, "tally_off": 1}
    ),
    "a record that is too short": Plant(
        (("HSET", f"{KEY}:pool", "delayed", "x"),), {"unreadable": 1}, frozenset({"delayed"})
    ),
    "a record whose extra is no JSON": Plant(
        (("HSET", f"{KEY}:pool", "reserved", b"\0" * 22 + b"\x03\0\0\0{{{null"),),
        {"unreadable": 1},
        frozenset({"reserved"}),
    ),
    "a record whose extra is longer than itself": Plant(
        (("HSET", f"{KEY}:pool", "ready", b"\0" * 22 + b"\xff\xff\0\0{}"),), {"unreadable": 1}, frozenset({"ready"})
    ),
    "a record of settings of the wrong kind": Plant(
        (("HSET", f"{KEY}:pool", "dead", b"\0" * 22 + b'\x0e\0\0\0{"t":"soon !"}null'),),
        {"unreadable": 1},
        frozenset({"dead"}),
    ),
    "an id that no call can name": Plant(
        (("HSET", f"{KEY}:pool", "a b", b"\0" * 26 + b"null"),), {"unreadable": 1, "tally_off": 1}
    ),
    "a due time that is not the record's": Plant((("ZADD", f"{KEY}:delay", FAR_MS, "delayed"),), {"due_differs": 1}),
    "a ttl that nobody watches": Plant((("ZREM", f"{KEY}:expiry", "delayed"),), {"expiry_wrong": 1}),
    "a ttl watched for a dead job": Plant((("ZADD", f"{KEY}:expiry", FAR_MS, "dead"),), {"expiry_wrong": 1}),
    "a deadline that nobody watches": Plant((("ZREM", f"{KEY}:expiry", "ready"),), {"expiry_wrong": 1}),
    "a time limit that nobody watches": Plant((("ZREM", f"{KEY}:expiry", "limited"),), {"expiry_wrong": 1}),
    "a time limit that ends before the lease": Plant(
        (("ZADD", f"{KEY}:expiry", "XX", "INCR", -1, "limited"),), {"expiry_wrong": 1}
    ),
    "a time limit that ends after the deadline": Plant(
        (("ZADD", f"{KEY}:expiry", FAR_MS, "limited"),), {"expiry_wrong": 1}
    ),
    "a ttl watched in a consumer's hands": Plant((("ZADD", f"{KEY}:expiry", FAR_MS, "reserved"),), {"expiry_wrong": 1}),
    "a deadline of the wrong kind": Plant(
        (("HSET", f"{KEY}:pool", "dead", b"\0" * 22 + b'\x0e\0\0\0{"l":"soon !"}null'),),
        {"unreadable": 1},
        frozenset({"dead"}),
    ),
    "a log of attempts of the wrong kind": Plant(
        (("HSET", f"{KEY}:pool", "dead", b"\0" * 22 + b'\x0b\0\0\0{"a":[[1]]}null'),),
        {"unreadable": 1},
        frozenset({"dead"}),
    ),
    "a holder of a job that is ready": Plant((("HSET", f"{KEY}:holders", "ready", "worker-9"),), {"holder_wrong": 1}),
    "a tombstone of a job that is there": Plant(
        (("ZADD", f"{KEY}:cancelled", FAR_MS, "ready"),), {"tombstone_wrong": 1}
    ),
    "an id taken that a job has": Plant((("ZADD", f"{KEY}:taken", FAR_MS, "delayed"),), {"taken_wrong": 1}),
    "a follow-up of a job that never was": Plant(
        (("HSET", f"{KEY}:follow", "ghost", b"\0" * 26 + b"null"),), {"follow_up_stuck": 1}
    ),
    "a follow-up of a dead job": Plant(
        (("HSET", f"{KEY}:follow", "dead", b"\0" * 26 + b"null"),), {"follow_up_stuck": 1}
    ),
    "a follow-up that is too short": Plant((("HSET", f"{KEY}:follow", "reserved", "x"),), {"unreadable": 1}),
    "items of no job": Plant(
        (("HSET", f"{KEY}:items", "ghost", "1"), ("RPUSH", f"{KEY}:items/ghost", "1")), {"items_wrong": 1}
    ),
    "a topic in no list": Plant(
        (("HDEL", "deferd:{0}:settings", TOPIC), ("ZREM", "deferd:{0}:topics", TOPIC)), {"unknown_topic": 1}
    ),
    "a topic without settings": Plant((("HDEL", "deferd:{0}:settings", TOPIC),), {"unknown_topic": 1}),
    "a topic that is not in topics": Plant((("ZREM", "deferd:{0}:topics", TOPIC),), {"unknown_topic": 1}),
    "settings that are no JSON": Plant((("HSET", "deferd:{0}:settings", TOPIC, "{{"),), {"settings_unreadable": 1}),
    "settings that no call would set": Plant(
        (("HSET", "deferd:{0}:settings", TOPIC, '{"po":{"t":-5}}'),), {"settings_unreadable": 1}
    ),
    "a timer that has no plan": Plant((("ZREM", "deferd:{0}:due", TOPIC),), {"timer_late": 1}),
    "a timer that plans to come late": Plant((("ZADD", "deferd:{0}:due", FAR_MS, TOPIC),), {"timer_late": 1}),
    "more put than there is": Plant((("HINCRBY", f"{KEY}:tally", "put", 3),), {"tally_off": 1}),
    "fewer put than there is": Plant((("DEL", f"{KEY}:tally"),), {"tally_off": 1}),
    "a tally that is no number": Plant((("HSET", f"{KEY}:tally", "finished", "many"),), {"tally_off": 1}),
    "a ready job that is delayed": Plant((("ZADD", f"{KEY}:ready", 1, "delayed"),), {"in_two_places": 1}),
    "a reserved job that is ready": Plant((("ZADD", f"{KEY}:ready", 1, "reserved"),), {"in_two_places": 1}),
    "ready entries of jobs that never were": Plant(
        (("ZADD", f"{KEY}:ready", 0, "ghost", 9, "spook"),), {"no_record": 2}
    ),
    "a ready list of an earlier layout": Plant(
        (("DEL", f"{KEY}:ready"), ("RPUSH", f"{KEY}:ready", "ready")), {"wrong_type": 1, "in_no_place": 1}
    ),
    "a list that is a string": Plant(
        (("DEL", f"{KEY}:ready"), ("SET", f"{KEY}:ready", "x")), {"wrong_type": 1, "in_no_place": 1}
    ),
    "a due set that is a list": Plant(
        (("DEL", "deferd:{0}:due"), ("RPUSH", "deferd:{0}:due", "x")), {"wrong_type": 1, "timer_late": 1}
    ),
    "a list of topics that is a string": Plant(
        (("SET", "deferd:{0}:topics", "x"),), {"wrong_type": 1, "unknown_topic": 1}
    ),
    "settings that are a set": Plant(
        (("DEL", "deferd:{0}:settings"), ("SADD", "deferd:{0}:settings", "x")), {"wrong_type": 1, "unknown_topic": 1}
    ),
}
PLANTS |= {
    "a job that is not found by its tag": Plant((("ZREM", "deferd:{0}:tag/t-1", f"{TOPIC} dead"),), {"tags_wrong": 1}),
    "a job without its tags": Plant((("HDEL", f"{KEY}:tagged", "dead"),), {"tags_wrong": 1}),
    "a job with tags that it never had": Plant((("HSET", f"{KEY}:tagged", "ready", "t-9"),), {"tags_wrong": 1}),
    "tags of a job that never was": Plant((("HSET", f"{KEY}:tagged", "ghost", "t-1 t-9"),), {"no_record": 1}),
    "tags that are a string": Plant(
        (("DEL", f"{KEY}:tagged"), ("SET", f"{KEY}:tagged", "x")), {"wrong_type": 1, "tags_wrong": 1}
    ),
    "a record whose tags are no list": Plant(
        (("HSET", f"{KEY}:pool", "dead", b"\0" * 22 + b'\x09\0\0\0{"g":"x"}null'),),
        {"unreadable": 1},
        frozenset({"dead"}),
    ),
}
ALL_JOBS = {"delayed", "ready", "reserved", "limited", "dead"}
"""The jobs that can still be finished in an undamaged store."""
OF_GROUPS = {"kept", "held", "in-turn", "later", "urgent"}
NEVER, BAND = 1 << 53, 1 << 49


async def put_some_in_groups(driver: EngineDriver) -> None:
    """A job for which the others of its group wait, a held one, ready ones of three flows, and a delayed one."""
    await driver.topics.set(TOPIC, TopicSettings.model_validate({"limits": {"groups": {"s": {"max_in_flight": 1}}}}))
    for job_id, group in (("kept", "s"), ("held", "g")):
        await driver.put(job_id, group=group, priority=9)
        assert (await driver.pop_one(ttr_ms=3_000_000)).id == job_id
    await driver.deliveries.release(TOPIC, "kept", ANY_RECEIPT, delay_ms=60_000)
    await driver.put("in-turn", group="g")
    await driver.put("later", group="g", delay=60)
    await driver.put("urgent", priority=3)


def among_groups(kinds: dict[str, int], *commands: tuple[str | int | bytes, ...], costs: str = "") -> Plant:
    return Plant(commands, kinds, frozenset(costs.split()), has_groups=True)


def replaced(name: str) -> tuple[tuple[str | int | bytes, ...], ...]:
    return ("DEL", f"{KEY}:{name}"), ("SET", f"{KEY}:{name}", "x")


PLANTS |= {
    "a group that is not known": among_groups({"group_wrong": 1}, ("HDEL", f"{KEY}:groups", "g")),
    "no group is known": among_groups({"group_wrong": 3}, ("DEL", f"{KEY}:groups")),
    "a group that is counted wrong": among_groups({"group_wrong": 1}, ("HSET", f"{KEY}:groups", "g", "7 5 0 ")),
    "a group without jobs that has some": among_groups({"group_wrong": 1}, ("HSET", f"{KEY}:groups", "z", "2 1 0 ")),
    "a group without numbers": among_groups({"group_wrong": 2}, ("HSET", f"{KEY}:groups", "g", "x", "z", "")),
    "a group that waits for a job of another": among_groups(
        {"group_wrong": 1}, ("HSET", f"{KEY}:groups", "s", "1 0 0 urgent")
    ),
    "a group that waits for a job that is held": among_groups(
        {"group_wrong": 1}, ("HSET", f"{KEY}:groups", "g", "3 1 0 held")
    ),
    "a held job whose group is not noted": among_groups({"group_wrong": 1}, ("HDEL", f"{KEY}:requests", "held")),
    "a held job that is noted with another group": among_groups(
        {"group_wrong": 1}, ("HSET", f"{KEY}:requests", "held", " 1790000000000 =s")
    ),
    "a held job that is noted with a group it does not have": among_groups(
        {"group_wrong": 1}, ("HSET", f"{KEY}:requests", "reserved", " 1790000000000 =s")
    ),
    "a held job of a group without a record": among_groups(
        {"no_record": 2, "group_wrong": 1, "tally_off": 1}, ("HDEL", f"{KEY}:pool", "held"), costs="held"
    ),
    "a record of a group that is a number": among_groups(
        {"unreadable": 1, "group_wrong": 1},
        ("HSET", f"{KEY}:pool", "later", b"\0" * 22 + b'\x08\0\0\0{"gr":7}null'),
        costs="later",
    ),
    "a job of a group among those without": among_groups({"place_wrong": 1}, ("ZADD", f"{KEY}:ready", 1, "in-turn")),
    "a job without a group among those of one": among_groups(
        {"place_wrong": 1}, ("ZADD", f"{KEY}:ready", str(4096 - (1 << 53)), "ready")
    ),
    "groups without places": among_groups({"place_wrong": 2, "turns_wrong": 3}, ("DEL", f"{KEY}:flows")),
    "groups that take no turns": among_groups({"turns_wrong": 3}, ("DEL", f"{KEY}:turns")),
    "a group that is held back by nothing": among_groups({"turns_wrong": 1}, ("ZADD", f"{KEY}:turns", BAND + 7, "0 g")),
    "a group whose turn is that of another priority": among_groups(
        {"turns_wrong": 1}, ("ZADD", f"{KEY}:turns", -2 * BAND, "0 g")
    ),
    "two groups with one place": among_groups(
        {"turns_wrong": 1, "place_wrong": 1}, ("HSET", f"{KEY}:flows", "0 g", "0", "3 ", "0")
    ),
    "a place that is free, too": among_groups({"turns_wrong": 1}, ("ZADD", f"{KEY}:flows/free", 0, "0")),
    "a place behind all others": among_groups(
        {"turns_wrong": 1, "place_wrong": 1}, ("HSET", f"{KEY}:flows", "0 g", "900")
    ),
    "a place that is no number": among_groups(
        {"turns_wrong": 1, "place_wrong": 1}, ("HSET", f"{KEY}:flows", "0 g", "x")
    ),
    "a free place that is none": among_groups({"turns_wrong": 1}, ("ZADD", f"{KEY}:flows/free", 7, "x")),
    "a group that is noted as held back": among_groups({"turns_wrong": 1}, ("ZADD", f"{KEY}:limited", NEVER, "g")),
    "a timer that does not look at limits": among_groups(
        {"timer_late": 1}, ("ZADD", f"{KEY}:limited", 1, ""), ("ZADD", "deferd:{0}:due", FAR_MS, TOPIC)
    ),
    "groups that are a string": among_groups({"wrong_type": 1, "group_wrong": 3}, *replaced("groups")),
    "places that are a string": among_groups({"wrong_type": 1, "place_wrong": 2, "turns_wrong": 3}, *replaced("flows")),
    "turns that are a string": among_groups({"wrong_type": 1, "turns_wrong": 3}, *replaced("turns")),
    "what is limited is a string": among_groups({"wrong_type": 1}, *replaced("limited")),
    "free places that are a string": among_groups({"wrong_type": 1}, *replaced("flows/free")),
    "the newest turns are a string": among_groups({"wrong_type": 1}, *replaced("turns/newest")),
}


async def audit(driver: EngineDriver, *, repair: bool = False) -> TopicReport:
    return await driver.engine.consistency.audit_topic(TOPIC, repair=repair)


def kinds(found: TopicReport) -> dict[str, int]:
    return {kind.value: count for kind, count in found.findings.counts.items()}


async def apply_plant(driver: EngineDriver, plant: Plant) -> None:
    await put_one_in_every_state(driver)
    if plant.has_groups:
        await put_some_in_groups(driver)
    for command in plant.commands:
        driver.server.command(*command)


async def finish_all_jobs(driver: EngineDriver) -> set[str]:
    """Redrive, wait for all delays and leases, and finish; return the ids that were handed out."""
    finished: set[str] = set()
    await redrive_jobs(driver.engine, TOPIC)
    for wait_s in (0, 100, 3000):
        await driver.pass_time(wait_s)
        for popped in await driver.pop(10):
            assert popped.id not in finished
            finished.add(popped.id)
            await driver.queue.finish(TOPIC, popped.id, popped.receipt)
    return finished


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS.keys())
async def test_each_kind_of_damage_is_found_and_repaired_so_that_the_jobs_can_be_finished(
    driver: EngineDriver, plant: Plant
) -> None:
    await apply_plant(driver, plant)
    before = driver.server.command("DBSIZE")
    found = await audit(driver)
    assert not found.clean
    counted = kinds(found)
    if "wrong_type" in plant.kinds:  # other findings are reported after the repair
        assert found.unchecked is not None
        assert counted == {"wrong_type": 1}
    else:
        assert counted == plant.kinds
    assert {finding.kind.value for finding in found.findings.examples} == set(counted)
    again = await audit(driver)
    assert kinds(again) == counted
    assert driver.server.command("DBSIZE") == before, "it was not to be changed"

    repaired = await audit(driver, repair=True)
    # A missing record makes the tally wrong; so does one that the repair moved aside.
    assert kinds(repaired) | {"tally_off": 1} == plant.kinds | {"tally_off": 1}
    assert repaired.unchecked is None
    again = await audit(driver)
    assert kinds(again) == {}
    assert again.sums["put"] == sum(count for outcome, count in again.sums.items() if outcome != "put")
    assert again.sums == repaired.sums
    survey = await driver.engine.consistency.audit_store()
    assert (survey.findings.counts, survey.unlisted, survey.stray_keys) == ({}, [], [])
    handed_out = await finish_all_jobs(driver)
    handed_out -= {"ghost"} if "follow_up_stuck" in plant.kinds else set()
    assert handed_out == (ALL_JOBS | (OF_GROUPS if plant.has_groups else set())) - plant.costs | (
        {"dead"} if "dead" in plant.costs and "reserved" in str(plant) else set()
    )
    assert (await audit(driver)).clean


def test_every_kind_of_finding_is_tested() -> None:
    of_store = {
        FindingKind.TAG_STALE,
        FindingKind.BATCH_WRONG,
        *(kind for kind in FindingKind if kind.startswith("schedule_")),
    }
    of_partitions = {kind for kind in FindingKind if "partition" in kind} | {FindingKind.MISPLACED}
    of_shelf = {kind for kind in FindingKind if "shelf" in kind}
    of_topics = {
        kind.value
        for kind in set(FindingKind)
        - of_store
        - of_partitions
        - of_shelf
        - {FindingKind.RUN_STALE, FindingKind.RUN_UNLISTED}
    }
    assert {kind for plant in PLANTS.values() for kind in plant.kinds} == of_topics


async def test_a_repairing_survey_removes_index_entries_of_jobs_without_the_tag(driver: EngineDriver) -> None:
    await driver.put("a", delay=60, tags=["t-1", "t-2"])
    driver.server.command("ZADD", "deferd:{0}:tag/t-1", 0, f"{TOPIC} ghost", 0, "no-topic a", 0, "neither")
    driver.server.command("ZADD", "deferd:{0}:tag/t-9", 0, f"{TOPIC} a")
    driver.server.command("SET", "deferd:{0}:tag/t-3", "x")
    for number in range(600):
        driver.server.command("ZADD", "deferd:{0}:tag/many", 0, f"{TOPIC} ghost-{number}")
    wanted = {FindingKind.TAG_STALE: 604, FindingKind.WRONG_TYPE: 1}
    found = await driver.engine.consistency.audit_store()
    assert (found.findings.counts, found.stray_count) == (wanted, 0)
    assert (await driver.engine.consistency.audit_store(repair=True)).findings.counts == wanted
    assert (await driver.engine.consistency.audit_store()).clean
    assert (await audit(driver)).clean
    assert driver.server.command("ZRANGE", "deferd:{0}:tag/t-1", 0, -1) == [f"{TOPIC} a".encode()]


async def test_examples_show_what_was_found(driver: EngineDriver) -> None:
    await put_one_in_every_state(driver)
    driver.server.command("ZADD", f"{KEY}:delay", FAR_MS, "delayed", FAR_MS, "dead")
    driver.server.command("HSET", f"{KEY}:holders", "ready", "worker-4000000000000")
    due = (await driver.queue.get(TOPIC, "delayed")).due_at_ms
    counted = {finding.subject: finding.detail for finding in (await audit(driver)).findings.examples}
    assert counted == {
        "delayed": f"2096-10-02T07:06:40.000Z, its record says {instant(due)}",
        "dead": "dead, delayed",
        "ready": "ready, and held by worker-4000000000000",
    }


async def test_data_that_a_repair_removes_is_moved_aside(driver: EngineDriver) -> None:
    await put_one_in_every_state(driver)
    driver.server.command("HSET", f"{KEY}:pool", "delayed", "broken")
    driver.server.command("HSET", "deferd:{0}:settings", TOPIC, "{{")
    driver.server.command("DEL", f"{KEY}:holders")
    driver.server.command("SET", f"{KEY}:holders", "x")
    repaired = await audit(driver, repair=True)
    aside = driver.server.command("HGETALL", f"{KEY}:aside")
    assert sorted(aside.values()) == [b"broken", b"{{"]
    [moved] = [finding for finding in repaired.findings.examples if finding.kind is FindingKind.WRONG_TYPE]
    assert driver.server.command("GET", moved.detail.removeprefix("a string, now at ")) == b"x"
    assert repaired.sums["lost"] == 1


async def test_a_dead_job_stays_dead_and_a_finished_one_finished(driver: EngineDriver) -> None:
    await put_one_in_every_state(driver)
    for place in ("delay", "reserved"):
        driver.server.command("ZADD", f"{KEY}:{place}", 1, "dead", 1, "finished")
    await audit(driver, repair=True)
    await driver.run_timer()
    assert await driver.counts() == {"delayed": 1, "ready": 1, "reserved": 2, "dead": 1, "finished": 1}


async def test_many_findings_are_counted_and_some_are_examples(driver: EngineDriver) -> None:
    await driver.puts.put_many([job(f"j{number}", delay=1000) for number in range(3000)])
    driver.server.command("DEL", f"{KEY}:delay")
    found = await audit(driver)
    assert kinds(found) == {"in_no_place": 3000}
    assert len(found.findings.examples) == 100
    assert kinds(await audit(driver, repair=True)) == {"in_no_place": 3000}
    assert (await audit(driver)).clean
    assert await driver.counts() == {"delayed": 3000}


async def test_groups_of_a_large_topic_are_counted_in_steps(driver: EngineDriver) -> None:
    """Only those that rest are judged, and what is wrong is repaired."""
    await driver.puts.put_many([job(f"j{number}", group=f"g{number % 40}") for number in range(2100)])
    assert len(await driver.pop(40, ttr_ms=3_000_000)) == 40
    await driver.put("kept", group="k")
    driver.server.command("HSET", f"{KEY}:groups", "g1", "7 5 0 ", "g2", "53 1 0 nobody", "none", "3 0 0 ", "k", "x")
    wrong = {"g1", "g2", "none", "k"}
    before = driver.server.command("HGETALL", f"{KEY}:groups")
    for repair in (False, True):
        found = await audit(driver, repair=repair)
        assert {finding.subject for finding in found.findings.examples} == wrong
        assert kinds(found) == {"group_wrong": 4}
        if not repair:
            assert driver.server.command("HGETALL", f"{KEY}:groups") == before
    assert (await audit(driver)).clean
    entries = driver.server.command("HGETALL", f"{KEY}:groups")
    assert entries[b"g1"] == b"53 1 0 "
    assert entries[b"k"] == b"1 0 0 "
    assert b"none" not in entries


@pytest.mark.parametrize("record", [b"x", b"\0" * 22 + b"\x03\0\0\0{{{null", b"\0" * 22 + b'\x0a\0\0\0{"t":"so"}null'])
async def test_an_unreadable_record_blocks_no_other_job(driver: EngineDriver, record: bytes) -> None:
    for number in range(3):
        await driver.put(f"j{number}")
    driver.server.command("HSET", f"{KEY}:pool", "j1", record)
    assert [popped.id for popped in await driver.pop(3)] == ["j0", "j2"]
    assert kinds(await audit(driver)) == {"unreadable": 1}


async def test_a_record_without_valid_numbers_blocks_no_ended_lease(driver: EngineDriver) -> None:
    for number in range(3):
        await driver.put(f"j{number}")
    await driver.pop(3)
    driver.server.command("HSET", f"{KEY}:pool", "j1", b"\0" * 22 + b'\x0a\0\0\0{"m":"so"}null')
    await driver.pass_time(100)
    assert [popped.id for popped in await driver.pop(3)] == ["j0", "j2"]


async def test_the_former_holder_of_a_lost_lease_cannot_end_the_next_delivery(driver: EngineDriver) -> None:
    await driver.put()
    before = await driver.pop_one()
    driver.server.command("DEL", f"{KEY}:reserved")
    await audit(driver, repair=True)
    after = await driver.pop_one()
    with pytest.raises(ReceiptStale):
        await driver.queue.finish(TOPIC, before.id, before.receipt)
    await driver.queue.finish(TOPIC, after.id, after.receipt)


async def test_an_audit_waits_for_others_only_for_a_bounded_time(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deferd.engine.consistency._LONGEST_WAIT_S", 0)
    await driver.puts.put_many([job(f"j{number}", delay=1000) for number in range(3000)])
    first = asyncio.create_task(audit(driver))
    await asyncio.sleep(0)
    with pytest.raises(StoreUnavailable, match="other audits"):
        await audit(driver)
    assert (await first).clean


async def test_a_timer_that_does_not_run_is_reported_without_a_finding(driver: EngineDriver) -> None:
    await driver.put(delay=5)
    driver.move_clock(65)
    found = await audit(driver)
    assert found.clean
    assert 60_000 <= found.timer_overdue_ms < 65_000


async def test_a_topic_without_data_is_not_found(driver: EngineDriver) -> None:
    for repair in (False, True):
        with pytest.raises(TopicNotFound):
            await audit(driver, repair=repair)
    assert driver.server.command("KEYS", "*") == []


async def test_a_topic_that_was_purged_leaves_nothing_to_find(driver: EngineDriver) -> None:
    await put_one_in_every_state(driver)
    await purge_jobs(driver.engine, TOPIC)
    with pytest.raises(TopicNotFound):
        await audit(driver)
    survey = await driver.engine.consistency.audit_store()
    assert (survey.unlisted, survey.stray_keys) == ([], [])


async def test_jobs_missing_from_a_long_ready_list_are_found_and_put_back(driver: EngineDriver) -> None:
    await driver.puts.put_many([job(f"j{number}") for number in range(LONG)])
    assert (await audit(driver)).clean
    missing = {"j0", "j1700", "j2500", "j4999"}
    driver.server.command("ZREM", f"{KEY}:ready", *missing)
    found = await audit(driver)
    assert {finding.subject for finding in found.findings.examples} == missing
    assert kinds(found) == {"in_no_place": 4}
    assert kinds(await audit(driver, repair=True)) == {"in_no_place": 4}
    again = await audit(driver)
    assert again.clean
    assert again.checked == LONG
    assert set(driver.ready_list()[-4:]) == missing


async def test_a_survey_finds_unlisted_topics_and_stray_keys(driver: EngineDriver) -> None:
    for topic in ("known", "in-no-list", "without-settings", "not-in-topics"):
        await driver.puts.put(PutJob(topic=topic, delay=5))
    driver.server.command("HDEL", "deferd:{0}:settings", "in-no-list", "without-settings")
    driver.server.command("ZREM", "deferd:{0}:topics", "in-no-list", "not-in-topics")
    driver.server.command("SET", "deferd:{0}:mine", "x")
    driver.server.command("SET", "another-application", "x")
    survey = await driver.engine.consistency.audit_store()
    assert survey.unlisted == ["in-no-list", "not-in-topics", "without-settings"]
    assert (survey.stray_keys, survey.stray_count) == (["deferd:{0}:mine"], 1)
    driver.server.command("HSET", "deferd:{0}:settings", "known", '{"po":{"t":-1}}')
    assert (await driver.engine.consistency.audit_store()).unlisted == [
        "in-no-list",
        "known",
        "not-in-topics",
        "without-settings",
    ]
    driver.server.command("HSET", "deferd:{0}:settings", "known", "")
    for topic in survey.unlisted:
        await driver.engine.consistency.audit_topic(topic, repair=True)
    page = await driver.engine.topic_list.page()
    assert [view.topic for view in page.views] == ["in-no-list", "known", "not-in-topics", "without-settings"]
    assert (await driver.engine.consistency.audit_store()).unlisted == []


async def test_a_repairing_survey_renames_keys_of_the_wrong_type(driver: EngineDriver) -> None:
    await driver.put(delay=5)
    driver.server.command("DEL", "deferd:{0}:settings")
    driver.server.command("SET", "deferd:{0}:settings", "x")
    assert (await driver.engine.consistency.audit_store()).findings.counts == {FindingKind.WRONG_TYPE: 1}
    repaired = await driver.engine.consistency.audit_store(repair=True)
    assert repaired.findings.counts == {FindingKind.WRONG_TYPE: 1}
    assert repaired.unlisted == [TOPIC]
    assert kinds(await audit(driver, repair=True)) == {"unknown_topic": 1}
    assert (await audit(driver)).clean


async def test_topics_of_many_shards_are_surveyed(store: Store, server: StoreServer) -> None:
    engine = Engine(store, shards=3)
    names = [f"t{number}" for number in range(9)]
    for name in names:
        await engine.puts.put(PutJob(topic=name, delay=5))
    assert (await engine.consistency.audit_store()).unlisted == []
    for shard in range(3):
        server.command("DEL", f"deferd:{{{shard}}}:settings")
    assert (await engine.consistency.audit_store()).unlisted == names
    for name in names:
        await engine.consistency.audit_topic(name, repair=True)
    assert (await engine.consistency.audit_store()).unlisted == []
    await engine.close()


# On a cluster

SHARDS = 5
TOPICS = [f"t{number}" for number in range(10)]


@pytest.fixture
async def clustered_store(tmp_path: Path) -> AsyncIterator[Store]:
    with ClusterSet(tmp_path) as cluster:
        store = await connect(cluster.url, timeout_s=5)
        yield store
        await store.close()


@pytest.mark.slow
async def test_each_shard_is_surveyed_and_repaired_on_its_node(clustered_store: Store) -> None:
    engine = Engine(clustered_store, shards=SHARDS)
    for topic in TOPICS:
        await engine.puts.put_many([PutJob(topic=topic, id=f"j{number}", delay=60) for number in range(2)])
        assert (await engine.consistency.audit_topic(topic)).clean
    assert (await engine.consistency.audit_store()).clean

    for shard in range(SHARDS):
        await clustered_store.call("DEL", f"deferd:{{{shard}}}:settings")
        await clustered_store.call("SET", f"deferd:{{{shard}}}:settings", "x")
    for topic in TOPICS:
        await clustered_store.call("ZREM", engine.consistency._keys.of_topic(topic)[1], "j0")
    survey = await engine.consistency.audit_store(repair=True)
    assert survey.findings.counts == {FindingKind.WRONG_TYPE: SHARDS}
    assert survey.unlisted == TOPICS
    for topic in TOPICS:
        repaired = await engine.consistency.audit_topic(topic, repair=True)
        assert repaired.findings.counts == {FindingKind.UNKNOWN_TOPIC: 1, FindingKind.IN_NO_PLACE: 1}
        assert (await engine.consistency.audit_topic(topic)).clean
    assert (await engine.consistency.audit_store()).clean
    await engine.close()


# Under load


class Load:
    """Random calls of producers and consumers on a topic, until the test stops them."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.ids = [f"j{number}" for number in range(400)]
        self.calls = 0
        self.ended = False

    async def run(self) -> None:
        acts: list[Callable[[], object]] = [self.put, self.put, self.pop, self.pop, self.cancel, self.change]
        while not self.ended:
            try:
                await self.random.choice(acts)()  # type: ignore[misc]
            except DeferdError:
                continue  # any state is possible: taken, held, gone
            finally:
                self.calls += 1

    async def put(self) -> None:
        await self.engine.puts.put_many(
            [
                job(
                    job_id,
                    delay=self.random.choice((0, 0, 0.01, 0.2)),
                    group=self.random.choice((None, "a", "b", "c")),
                    priority=self.random.choice((0, 0, 5)),
                    ttl=self.random.choice((None, 0.05, 5)),
                    retain=self.random.choice((0, 0.1)),
                    max_attempts=self.random.choice((None, 1)),
                    on_conflict=self.random.choice(("keep", "replace", "reject")),
                )
                for job_id in self.random.sample(self.ids, 40)
            ]
        )

    async def pop(self) -> None:
        request = PopRequest(30, ttr_ms=self.random.choice((None, 20, 100)), consumer=self.random.choice((None, "c")))
        popped = (await self.engine.queue.pop(TOPIC, [request])).jobs[0]
        for one in popped:
            end = self.random.randrange(6)
            if end == 0:
                await self.engine.deliveries.release(TOPIC, one.id, one.receipt, delay_ms=self.random.choice((0, 50)))
            elif end == 1:
                await self.engine.deliveries.bury(TOPIC, one.id, one.receipt)
            elif end == 2:
                await self.engine.held_jobs.return_popped([one])
            elif end > 3:
                await self.engine.queue.finish(TOPIC, one.id, one.receipt)

    async def cancel(self) -> None:
        for job_id in self.random.sample(self.ids, 10):
            await self.engine.cancels.cancel(TOPIC, job_id)

    async def change(self) -> None:
        await redrive_jobs(self.engine, TOPIC, limit=5)
        change = ChangeJob(delay=self.random.choice((0, 0.05)), group=self.random.choice((None, "a", "d")))
        await self.engine.queue.change(TOPIC, self.random.choice(self.ids), change)


@pytest.mark.parametrize("waiting", [0, pytest.param(3000, marks=pytest.mark.slow)], ids=["short list", "long list"])
async def test_a_busy_topic_raises_no_false_alarm(engine: Engine, waiting: int) -> None:
    """A repair looks as a check does; what it repaired without a need would show, too."""
    limits = {
        "max_in_flight": 200,
        "per_group": {"rate": {"count": 500, "per": 0.5}},
        "groups": {"b": {"max_in_flight": 1}},
    }
    await engine.topics.set(TOPIC, TopicSettings.model_validate({"limits": limits}))
    await engine.puts.put_many([job(f"waiting{number}", group=f"w{number % 9}") for number in range(waiting)])
    loads = [Load(engine, seed) for seed in range(4)]
    async with asyncio.TaskGroup() as group:
        for load in loads:
            group.create_task(load.run())
        checked = 0
        for _ in range(5 if waiting else 8):
            found = await engine.consistency.audit_topic(TOPIC, repair=True)
            assert (kinds(found), found.unchecked) == ({}, None), found.findings.examples
            checked += found.checked
        for load in loads:
            load.ended = True
    assert checked > waiting
    assert all(load.calls > 5 for load in loads)
