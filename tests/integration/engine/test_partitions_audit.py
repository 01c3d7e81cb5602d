"""The consistency check of topics with several partitions: planted damage is found, and repaired where that is safe."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from deferd.contract.errors import JobExists, JobNotFound, TopicNotFound
from deferd.contract.model import CancelItem, JobState, PutJob, TopicSettings
from deferd.contract.operations.audits import FindingKind
from deferd.engine.consistency import TopicReport
from deferd.engine.engine import Engine
from deferd.engine.partitions import Layout
from deferd.engine.record import ANY_RECEIPT
from deferd.store.connection import Store
from tests.integration.engine.test_partitions import IDS, SHARDS, engine, engines, grow, pop_all, put

__all__ = ["engine", "engines"]


def layouts_key(engine: Engine, topic: str = "t") -> str:
    return engine._keys.of_shard(engine._keys.shard_of(topic), "partitioned")


async def settings_of(engine: Engine, store: Store, partition: str) -> bytes:
    key = engine._keys.of_shard(engine._keys.shard_of(partition), "settings")
    settings: bytes = await store.call("HGET", key, partition)
    return settings


async def set_settings(engine: Engine, store: Store, partition: str, text: str) -> None:
    await store.call("HSET", engine._keys.of_shard(engine._keys.shard_of(partition), "settings"), partition, text)


async def layout_of(engine: Engine, store: Store) -> bytes:
    layout: bytes = await store.call("HGET", layouts_key(engine), "t")
    return layout


async def seed(engine: Engine) -> None:
    """A topic of four partitions, half of whose jobs were put while it had one."""
    for job_id in IDS[:20]:
        await put(engine, job_id, delay=3600)
    await grow(engine, 4)
    for job_id in IDS[20:]:
        await put(engine, job_id)


def kinds(report: TopicReport) -> dict[str, int]:
    return {kind.value: count for kind, count in report.findings.counts.items()}


async def repaired(engine: Engine, expected: dict[str, int]) -> TopicReport:
    """The check finds this, and so does the repair, after which nothing is found."""
    assert kinds(await engine.consistency.audit_topic("t")) == expected
    assert kinds(await engine.consistency.audit_topic("t")) == expected, "a check has changed something"
    report = await engine.consistency.audit_topic("t", repair=True)
    assert kinds(report) == expected
    again = await engine.consistency.audit_topic("t")
    assert again.clean
    return report


async def everything_works(engine: Engine) -> None:
    for job_id in IDS:
        with pytest.raises(JobExists):
            await put(engine, job_id)
    assert sorted(await pop_all(engine)) == sorted(IDS[20:])
    for job_id in IDS[20:]:
        await engine.queue.finish("t", job_id, ANY_RECEIPT)
    for job_id in IDS[:20]:
        assert await engine.cancels.cancel("t", job_id) is JobState.DELAYED


async def test_a_sound_topic_is_one_report(engine: Engine) -> None:
    await seed(engine)
    await pop_all(engine)
    await engine.deliveries.bury("t", IDS[30], ANY_RECEIPT)
    report = await engine.consistency.audit_topic("t")
    assert (report.topic, report.clean, report.checked) == ("t", True, 40)
    assert report.counts == {
        JobState.DELAYED: 20,
        JobState.READY: 0,
        JobState.RESERVED: 19,
        JobState.DEAD: 1,
        JobState.FINISHED: 0,
    }
    assert (report.sums["put"], report.sums["live"], report.sums["dead"]) == (40, 39, 1)
    store = await engine.consistency.audit_store()
    assert (store.findings.counts, store.unlisted, store.stray_keys) == ({}, [], [])


async def test_a_finding_says_which_partition_it_is_in(engine: Engine, store: Store) -> None:
    await seed(engine)
    [job_id, *_] = [one for one in IDS[20:] if engine._keys.partitions.home("t", one) == "t#2"]
    await store.call("ZREM", engine._keys.named("t#2", "ready"), job_id)
    tally = engine._keys.of_topic("t#3")[12]
    await store.call("HINCRBY", tally, "put", 3)
    report = await repaired(engine, {"in_no_place": 1, "tally_off": 1})
    examples = {finding.kind: finding for finding in report.findings.examples}
    assert examples[FindingKind.IN_NO_PLACE].subject == job_id
    assert examples[FindingKind.IN_NO_PLACE].detail.endswith(" (partition 2)")
    assert examples[FindingKind.TALLY_OFF].subject == "t, partition 3"
    assert "#" not in str(report.findings.examples)
    await everything_works(engine)


async def test_a_key_of_the_wrong_type_in_a_partition_is_said_to_stop_the_check(engine: Engine, store: Store) -> None:
    await seed(engine)
    await store.call("SET", engine._keys.of_topic("t#1")[7], "x")
    report = await engine.consistency.audit_topic("t")
    assert report.unchecked == "all else (partition 1): keys of the wrong type must be repaired first"
    assert not report.clean
    await repaired(engine, {"wrong_type": 1})


async def test_a_layout_that_is_wrong_or_gone_is_written_again(engine: Engine, store: Store) -> None:
    await seed(engine)
    for layout in ("", "x", "4", "4 9 ", "4 0 ", "-4 ", "4 1 ?", "99999999999 1 ", "3 1 ", "2 !"):
        await store.call("HSET", layouts_key(engine), "t", layout)
        assert kinds(await engine.consistency.audit_topic("t", repair=True)) == {"partitions_wrong": 1}
        assert await layout_of(engine, store) == b"4 3 2 1 "
    await store.call("DEL", layouts_key(engine))
    await repaired(engine, {"partitions_wrong": 1})
    await everything_works(engine)
    await engine.partitions._forget_former("t", engine.partitions.known.layouts["t"])
    assert engine.partitions.known.layouts["t"] == Layout((4,))


async def test_layouts_of_the_wrong_type_stop_nothing_but_partitions(engine: Engine, store: Store) -> None:
    await seed(engine)
    await store.call("DEL", layouts_key(engine))
    await store.call("SET", layouts_key(engine), "x")
    other = Engine(store, shards=SHARDS)
    await other.start()
    await other.puts.put(PutJob(topic="other", id="a"))
    with pytest.raises(JobNotFound):
        await other.queue.get("other", "b")
    assert (await other.consistency.audit_topic("other")).clean
    await other.close()
    found = await engine.consistency.audit_store(repair=True)
    assert found.findings.counts == {FindingKind.WRONG_TYPE: 1}
    await repaired(engine, {"partitions_wrong": 1})
    await everything_works(engine)


async def test_a_damaged_layout_does_not_keep_a_service_from_starting(engine: Engine, store: Store) -> None:
    await seed(engine)
    await store.call("HSET", layouts_key(engine), "t", "4 4 ")
    other = Engine(store, shards=SHARDS)
    await other.start()
    assert other.partitions.known.layouts == {}
    report = await other.consistency.audit_topic("t", repair=True)
    assert kinds(report) == {"partitions_wrong": 1}
    await everything_works(other)
    await other.close()


async def test_settings_that_are_lost_come_back_with_the_number_of_partitions(engine: Engine, store: Store) -> None:
    await engine.topics.set("t", TopicSettings(ttr=30))
    await seed(engine)
    await set_settings(engine, store, "t", "{broken")
    report = await engine.consistency.audit_topic("t", repair=True)
    assert kinds(report) == {"settings_unreadable": 1, "partitions_wrong": 1}
    assert (await engine.consistency.audit_topic("t")).clean
    assert (await engine.topics.get("t")).settings.partitions == 4
    settings = await settings_of(engine, store, "t")
    for partition in ("t#1", "t#2", "t#3"):
        assert await settings_of(engine, store, partition) == settings
    await everything_works(engine)


async def test_a_partition_with_other_settings_gets_those_of_its_topic(engine: Engine, store: Store) -> None:
    await seed(engine)
    await engine.topics.set("t", TopicSettings(ttr=30))
    for text in ("", '{"n":3,"rv":1}', '{"n":4,"rv":1,"t":9000}', '{"n":8,"rv":77}'):
        await set_settings(engine, store, "t#3", text)
        report = await engine.consistency.audit_topic("t", repair=True)
        assert kinds(report) == {"partition_settings": 1}
        [example] = report.findings.examples
        assert example.subject == "t, partition 3"
        assert await settings_of(engine, store, "t#3") == await settings_of(engine, store, "t")
        assert (await engine.topics.get("t")).settings.ttr == 30
    assert (await engine.consistency.audit_topic("t")).clean
    await everything_works(engine)


async def test_settings_that_are_being_spread_are_no_finding_and_a_repair_ends_it(engine: Engine, store: Store) -> None:
    await seed(engine)
    before = await settings_of(engine, store, "t")
    await set_settings(engine, store, "t", before.decode().replace('"rv":1', '"rv":2,"t":5000'))
    await store.call("HSET", layouts_key(engine), "t", "4 1 !")
    assert (await engine.consistency.audit_topic("t")).clean
    assert (await engine.consistency.audit_topic("t", repair=True)).clean
    assert await layout_of(engine, store) == b"4 1 "
    assert await settings_of(engine, store, "t#3") == await settings_of(engine, store, "t") != before


async def move(engine: Engine, store: Store, job_id: str, to: str) -> None:
    """Move a delayed job to a partition, as no call does."""
    homes = engine._keys.partitions.homes("t", job_id)
    [origin] = [home for home in homes if await store.call("HEXISTS", engine._keys.named(home, "pool"), job_id)]
    record: Any = await store.call("HGET", engine._keys.named(origin, "pool"), job_id)
    due: Any = await store.call("ZSCORE", engine._keys.named(origin, "delay"), job_id)
    for keys in (engine._keys.of_topic(origin), engine._keys.of_topic(to)):
        added = 1 if keys == engine._keys.of_topic(to) else -1
        await store.call("HINCRBY", keys[12], "put", added)
    await store.call("HDEL", engine._keys.named(origin, "pool"), job_id)
    await store.call("ZREM", engine._keys.named(origin, "delay"), job_id)
    await store.call("HSET", engine._keys.named(to, "pool"), job_id, record)
    await store.call("ZADD", engine._keys.named(to, "delay"), due, job_id)
    await store.call("ZADD", engine._keys.of_topic(to)[11], 1, to)


async def test_jobs_of_a_number_that_was_forgotten_are_found_again_after_a_repair(engine: Engine, store: Store) -> None:
    await seed(engine)
    await store.call("HSET", layouts_key(engine), "t", "4 ")
    misplaced = [one for one in IDS[:20] if engine._keys.partitions.home("t", one) != "t"]
    assert misplaced
    report = await repaired(engine, {"misplaced": len(misplaced)})
    assert {finding.subject for finding in report.findings.examples} == set(misplaced)
    assert all(finding.detail.startswith("in partition 0, and belongs in") for finding in report.findings.examples)
    await everything_works(engine)


async def test_a_job_where_no_number_puts_it_is_reported(engine: Engine, store: Store) -> None:
    await grow(engine, 2)
    [job_id, *_] = [one for one in IDS if engine._keys.partitions.home("t", one) == "t"]
    await put(engine, job_id, delay=3600)
    await move(engine, store, job_id, "t#1")
    for is_repair in (False, True, False):
        report = await engine.consistency.audit_topic("t", repair=is_repair)
        assert kinds(report) == {"misplaced": 1}
        assert report.findings.examples[0].detail == "in partition 1, and belongs in partition 0"


async def test_an_id_in_two_partitions_is_reported(engine: Engine, store: Store) -> None:
    await seed(engine)
    [job_id, *_] = [one for one in IDS[:20] if engine._keys.partitions.home("t", one) == "t#3"]
    await move(engine, store, job_id, "t#3")
    named = engine._keys.named
    for verb, key, value in (
        ("HSET", named("t", "pool"), await store.call("HGET", named("t#3", "pool"), job_id)),
        ("ZADD", named("t", "delay"), await store.call("ZSCORE", named("t#3", "delay"), job_id)),
    ):
        await store.call(verb, key, *((job_id, value) if verb == "HSET" else (value, job_id)))
    await store.call("HINCRBY", engine._keys.of_topic("t")[12], "put", 1)
    report = await engine.consistency.audit_topic("t", repair=True)
    assert kinds(report) == {"in_two_partitions": 1}
    [example] = report.findings.examples
    assert (example.subject, example.detail) == (job_id, "partitions 0 and 3")
    await engine.cancels.cancel("t", job_id)
    assert (await engine.consistency.audit_topic("t")).clean


async def test_a_partition_that_its_topic_does_not_have_is_reported(engine: Engine, store: Store) -> None:
    await seed(engine)
    await set_settings(engine, store, "t#9", "")
    await store.call("ZADD", engine._keys.of_shard(engine._keys.shard_of("t#9"), "topics"), 0, "t#9")
    report = await engine.consistency.audit_store()
    assert report.findings.counts == {FindingKind.PARTITION_UNKNOWN: 1}
    [example] = report.findings.examples
    assert (example.subject, example.detail) == ("t, partition 9", "the topic has 4")
    assert (report.unlisted, report.stray_keys) == ([], [])
    await grow(engine, 10)
    assert (await engine.consistency.audit_store()).clean


async def test_an_unlisted_partition_is_listed_by_a_repair_of_its_topic(engine: Engine, store: Store) -> None:
    await seed(engine)
    await store.call("ZREM", engine._keys.of_shard(engine._keys.shard_of("t#1"), "topics"), "t#1")
    await store.call("HDEL", engine._keys.of_shard(engine._keys.shard_of("t#2"), "settings"), "t#2")
    assert (await engine.consistency.audit_store()).unlisted == ["t"]
    report = await engine.consistency.audit_topic("t", repair=True)
    assert kinds(report) == {"unknown_topic": 2, "partition_settings": 1}
    assert (await engine.consistency.audit_topic("t")).clean
    assert (await engine.consistency.audit_store()).clean


async def test_tags_of_jobs_in_partitions(engine: Engine, store: Store) -> None:
    await grow(engine, 4)
    for job_id in IDS:
        await put(engine, job_id, tags=["x"])
    assert (await engine.consistency.audit_store()).clean
    shard = engine._keys.shard_of("t#1")
    await store.call("ZADD", engine._keys.of_shard(shard, "tag/x"), 0, "t#1 gone")
    report = await engine.consistency.audit_store(repair=True)
    assert [finding.subject for finding in report.findings.examples] == ["t/gone"]
    assert (await engine.consistency.audit_store()).clean
    assert (await engine.consistency.audit_topic("t")).clean


@pytest.mark.slow
async def test_checks_beside_growth_and_load_find_nothing(engines: tuple[Engine, Engine]) -> None:
    """Jobs that end in a former partition and are put again into a later one are never seen in both, nor in neither."""
    first, second = engines
    is_over = False

    async def work(one: Engine, ids: list[str]) -> int:
        rounds = 0
        while not is_over:
            await one.puts.put_many([PutJob(topic="t", id=job_id, delay=3600) for job_id in ids])
            await one.cancels.cancel_many("t", [CancelItem(id=job_id) for job_id in ids[::2]])
            await one.topics.set("t", TopicSettings(ttr=10 + rounds % 50))
            rounds += 1
        return rounds

    workers = [
        asyncio.create_task(work(one, [f"{name}-{number}" for number in range(30)]))
        for name, one in (("a", first), ("b", second))
    ]
    reports = []
    for count in (1, 2, 3, 5):
        if count > 1:
            await grow(first, count)
        for checker in (first, second):
            with suppress(TopicNotFound):
                reports.append(await checker.consistency.audit_topic("t"))
    is_over = True
    assert min(await asyncio.gather(*workers)) > 3
    assert [report.findings.examples for report in reports] == [[]] * len(reports)
    assert max(report.checked for report in reports) > 20
    assert (await first.consistency.audit_topic("t", repair=True)).clean
