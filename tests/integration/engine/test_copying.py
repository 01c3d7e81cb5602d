"""Copies of one store into another: every element of every key, in steps, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from deferd.contract.bulk_model import CancelSelected
from deferd.contract.ends import OnEnd
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.contract.operations.batches import BatchEnd, PutBatchOfJobs
from deferd.contract.operations.push import SetPush
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.redis_keys import Keys
from deferd.engine.script_arguments import NO_BOUNDS
from deferd.engine.store_copy import clock_ms, copy_store, take_inventory
from deferd.store.connection import Store, connect
from deferd.store.preflight import StoreRefused, check
from deferd.store.shard_guard import SHARDS_KEY
from tests.integration.store.store_servers import ClusterSet, StoreServer

TOPICS = [f"t{number}" for number in range(8)]


@pytest.fixture(scope="module")
def running_target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    with StoreServer(tmp_path_factory.mktemp("target")) as server:
        yield server


@pytest.fixture
def target_server(running_target: StoreServer) -> StoreServer:
    """An empty store."""
    running_target.command("FLUSHALL")
    running_target.command("CONFIG", "SET", "maxmemory", "0")
    return running_target


@pytest.fixture
async def target(target_server: StoreServer) -> AsyncIterator[Store]:
    store = await connect(target_server.url, timeout_s=5)
    yield store
    await store.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSet]:
    with ClusterSet(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
async def clustered_store(cluster: ClusterSet) -> AsyncIterator[Store]:
    for node in cluster.masters:
        node.command("FLUSHALL")
    store = await connect(cluster.url, timeout_s=5)
    yield store
    await store.close()


async def seed(store: Store, *, shards: int = 1, jobs: int = 10, topics: Sequence[str] = TOPICS) -> None:
    """Create topics with delayed, ready and reserved jobs."""
    await check(store, shards=shards)
    engine = Engine(store, shards=shards)
    for topic in topics:
        for at in range(0, jobs, 500):
            ids = range(at, min(at + 500, jobs))
            await engine.puts.put_many([PutJob(topic=topic, id=f"d{n}", delay=3600) for n in ids])
            await engine.puts.put_many([PutJob(topic=topic, id=f"r{n}") for n in ids])
        await engine.queue.pop(topic, [PopRequest(3, ttr_ms=3_600_000, consumer="c")])
    await engine.close()


def contents(*servers: StoreServer) -> dict[str, Any]:
    """All data of deferd in the store, by key, but for the history of topics, which is left behind."""
    found: dict[str, Any] = {}
    for server in servers:
        with server.client() as client:
            for key in client.scan_iter("deferd:*"):
                name = key.decode()
                if ":history/" in name:
                    continue
                match client.type(key):
                    case b"hash":
                        found[name] = client.hgetall(key)
                    case b"zset":
                        found[name] = client.zrange(key, 0, -1, withscores=True)
                    case b"list":
                        found[name] = client.lrange(key, 0, -1)
                    case b"string":
                        found[name] = client.get(key)
    return found


async def assert_sound(store: Store, shards: int, jobs: int, topics: Sequence[str] = TOPICS) -> None:
    engine = Engine(store, shards=shards)
    assert (await engine.consistency.audit_store()).clean
    for topic in topics:
        audit = await engine.consistency.audit_topic(topic)
        assert audit.clean
        counts = {state.value: count for state, count in audit.counts.items() if count}
        assert counts == {"delayed": jobs, "ready": jobs - 3, "reserved": 3}
    await engine.close()


@pytest.mark.slow
async def test_every_element_of_every_key_is_copied(
    store: Store, server: StoreServer, target: Store, target_server: StoreServer
) -> None:
    await seed(store, jobs=1500, topics=TOPICS[:2])
    reported: list[tuple[int, int]] = []

    report = await copy_store(store, target, on_progress=lambda copied, of: reported.append((copied, of)))

    assert report.adds_up
    assert report.left_out == []
    assert report.target.totals() == {
        **dict.fromkeys(JobState, 0),
        JobState.DELAYED: 2 * 1500,
        JobState.READY: 2 * 1497,
        JobState.RESERVED: 2 * 3,
    }
    assert contents(target_server) == contents(server)
    assert server.command("KEYS", "*:history/*")
    assert not target_server.command("KEYS", "*:history/*")
    assert reported[-1][0] == reported[-1][1]
    await assert_sound(target, 1, 1500, TOPICS[:2])


async def test_groups_and_their_turns_are_copied_and_rates_begin_again(
    store: Store, server: StoreServer, target: Store, target_server: StoreServer
) -> None:
    engine = Engine(store)
    await check(store, shards=1)
    limits = {"rate": {"count": 9, "per": 3600}, "per_group": {"max_in_flight": 1}}
    await engine.topics.set("t0", TopicSettings.model_validate({"limits": limits}))
    await engine.puts.put_many([PutJob(topic="t0", id=f"{n}", group=f"g{n % 3}", priority=n % 2) for n in range(12)])
    await engine.queue.pop("t0", [PopRequest(5, ttr_ms=3_600_000)])
    await engine.close()
    report = await copy_store(store, target)
    assert (report.adds_up, report.left_out) == (True, [])
    found = contents(server)
    assert found.pop("deferd:{0}:t0:rate/")
    assert contents(target_server) == found
    engine = Engine(target)
    assert (await engine.consistency.audit_topic("t0")).clean
    await engine.close()


async def test_a_cancel_in_the_target_is_an_end(
    store: Store, server: StoreServer, target: Store, target_server: StoreServer
) -> None:
    engine = Engine(store)
    await check(store, shards=1)
    await engine.puts.put(PutJob(topic="t0", id="a", delay=60, on_end=OnEnd(topic="t1", id="ended-{id}")))
    await engine.close()
    report = await copy_store(store, target)
    assert (report.adds_up, report.left_out) == (True, [])
    assert contents(target_server) == contents(server)
    engine = Engine(target)
    await engine.cancels.cancel("t0", "a")
    assert (await engine.queue.get("t1", "ended-a")).state == JobState.READY
    await engine.close()


@pytest.mark.parametrize("where", ["job", "follow-up", "schedule", "settings"])
async def test_an_end_that_would_put_into_another_shard_is_refused(store: Store, target: Store, where: str) -> None:
    await check(store, shards=1)
    engine = Engine(store)
    on_end = OnEnd(topic=next(topic for topic in TOPICS if Keys(4).shard_of(topic) != Keys(4).shard_of("t0")))
    match where:
        case "job":
            await engine.puts.put(PutJob(topic="t0", id="a", on_end=on_end))
        case "follow-up":
            await engine.puts.put(PutJob(topic="t0", id="a"))
            await engine.queue.pop("t0", [PopRequest(1)])
            follow_up = PutJob(topic="t0", id="a", on_conflict="keep", if_reserved="after", on_end=on_end)
            await engine.puts.put(follow_up)
        case "schedule":
            job = {"on_end": on_end}
            schedule = PutSchedule.model_validate({"topic": "t0", "every": 60, "paused": True, "job": job})
            await engine.schedules.put("s", schedule, NO_BOUNDS, lambda _: None)
        case _:
            await engine.topics.set("t0", TopicSettings(on_end=on_end))
    await engine.close()
    with pytest.raises(StoreRefused, match=f"`on_end` in topic 't0' names topic '{on_end.topic}', which would be in"):
        await copy_store(store, target, shards=4)
    assert (await copy_store(store, target, shards=1)).adds_up


async def test_what_can_be_undone_is_left_behind(store: Store, target: Store, target_server: StoreServer) -> None:
    await seed(store)
    engine = Engine(store)
    call = {"select": {"state": "delayed", "topics": ["t0"]}, "request_id": "campaign:9", "undo": True}
    assert (await engine.bulk.cancel(CancelSelected.model_validate(call))).done == 10
    await engine.close()
    report = await copy_store(store, target)
    assert report.adds_up
    assert report.left_out == []
    assert target_server.command("KEYS", "*undo*") == []


async def test_a_large_key_that_the_store_keeps_packed_is_copied(
    store: Store, server: StoreServer, target: Store, target_server: StoreServer
) -> None:
    """The store returns all of it in one step."""
    await check(store, shards=1)
    settings = Keys(1).of_shard(0, "settings")
    server.command("CONFIG", "SET", "hash-max-listpack-entries", 10_000)
    try:
        server.command("HSET", settings, *(text for number in range(4500) for text in (f"t{number}", "{}")))
        assert server.command("OBJECT", "ENCODING", settings) == b"listpack"

        assert (await copy_store(store, target)).adds_up
    finally:
        server.command("CONFIG", "SET", "hash-max-listpack-entries", 512)
    assert contents(target_server) == contents(server)


async def test_records_that_fill_a_step_by_themselves_are_copied(
    store: Store, server: StoreServer, target: Store, target_server: StoreServer
) -> None:
    await check(store, shards=1)
    engine = Engine(store)
    for number in range(3):
        await engine.puts.put(PutJob(topic="t", id=f"d{number}", delay=3600, body="x" * 900_000))
        await engine.puts.put(PutJob(topic="t", id=f"r{number}", body="x" * 900_000))
    await engine.close()

    assert (await copy_store(store, target)).adds_up
    assert contents(target_server) == contents(server)


async def test_follow_ups_taken_ids_and_collected_items_are_copied(
    store: Store, server: StoreServer, target: Store, target_server: StoreServer
) -> None:
    await seed(store)
    engine = Engine(store)
    appends = [PutJob(topic="t1", id="items", body=n, on_conflict="append", delay=60) for n in range(1500)]
    await engine.puts.put_many(appends)
    await engine.puts.put(PutJob(topic="t1", id="r0", body=1, on_conflict="append", if_reserved="after"))
    await engine.puts.put(PutJob(topic="t2", id="r0", conflict_with="live", on_conflict="keep", unique_for=60))
    server.command("ZADD", "deferd:{0}:t2:taken", 10**13, "gone")
    await engine.close()

    report = await copy_store(store, target, shards=1)

    assert report.adds_up
    assert report.left_out == []
    assert contents(target_server) == contents(server)
    assert len(contents(target_server)["deferd:{0}:t1:items/items"]) == 1500
    assert "deferd:{0}:t1:follow" in contents(target_server)
    engine = Engine(target)
    assert (await engine.consistency.audit_topic("t1")).clean
    assert (await engine.queue.get("t1", "items")).items == 1500
    await engine.close()


async def test_batches_are_copied_unless_their_jobs_may_be_separated(
    store: Store, server: StoreServer, target: Store, target_server: StoreServer
) -> None:
    await seed(store)
    engine = Engine(store)
    on_end = PutBatchOfJobs(on_end=BatchEnd(topic="done"))
    await engine.batches.put("b", on_end, None)
    await engine.batches.put("completed", on_end.model_copy(update={"seal": True}), None)
    await engine.puts.put(PutJob(topic="t1", id="a", batch="b", delay=60))
    with pytest.raises(StoreRefused, match="batch 'b' is not completed"):
        await copy_store(store, target, shards=3)
    report = await copy_store(store, target, shards=1)
    assert (report.adds_up, report.left_out) == (True, [])
    assert contents(target_server) == contents(server)
    assert 86_000_000 < target_server.command("PTTL", "deferd:{0}:batch/completed") <= 86_400_000
    await engine.close()
    engine = Engine(target)
    await engine.batches.put("b", PutBatchOfJobs(seal=True), await engine.batches.get("b"))
    await engine.cancels.cancel("t1", "a")
    assert (await engine.batches.get("b")).completed_ms is not None
    await engine.batches.delete(await engine.batches.get("b"), None, "cancel")
    assert (await engine.consistency.audit_store()).clean
    server.command("FLUSHALL")
    assert (await copy_store(target, store, shards=3)).adds_up
    await engine.close()


async def test_a_keys_time_to_live_is_copied(
    store: Store, server: StoreServer, target: Store, target_server: StoreServer
) -> None:
    await seed(store)
    engine = Engine(store)
    await engine.queue.pop("t1", [PopRequest(3, ttr_ms=90_000, request_id="a")])
    await engine.close()
    server.command("SET", "deferd:{0}:lock", "a timer", "PX", 3000)

    assert (await copy_store(store, target)).adds_up

    assert 80_000 < target_server.command("PTTL", "deferd:{0}:t1:request/a") <= 90_000
    assert contents(target_server)["deferd:{0}:t1:request/a"].keys() == {b"r3", b"r4", b"r5"}
    assert target_server.command("EXISTS", "deferd:{0}:lock") == 0


async def test_the_tallies_of_forgotten_topics_are_added_where_shards_join(
    store: Store, server: StoreServer, target: Store, target_server: StoreServer
) -> None:
    await seed(store, shards=3)
    for shard in range(3):
        server.command("HSET", f"deferd:{{{shard}}}:tally", "put", 5, "finished", 5)

    assert (await copy_store(store, target, shards=2)).adds_up

    assert target_server.command("HGET", "deferd:{0}:tally", "put") == b"10"
    assert target_server.command("HGET", "deferd:{1}:tally", "put") == b"5"


@pytest.mark.parametrize(("from_shards", "to_shards"), [(1, 5), (5, 5), (5, 2)])
async def test_topics_go_to_the_shards_of_the_target(
    store: Store, target: Store, target_server: StoreServer, from_shards: int, to_shards: int
) -> None:
    await seed(store, shards=from_shards)

    report = await copy_store(store, target, shards=to_shards)

    assert (report.adds_up, report.shards) == (True, to_shards)
    keys = Keys(to_shards)
    for topic in TOPICS:
        assert target_server.command("HLEN", keys.of_topic(topic)[0]) == 20
    await check(target, shards=to_shards)
    await assert_sound(target, to_shards, 10)


async def test_pushes_go_to_the_shards_of_the_target_without_what_is_known_of_their_targets(
    store: Store, target: Store
) -> None:
    push = SetPush(url="https://example.com/", secrets=["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"])
    topics = [f"topic-{number}" for number in range(6)]
    await check(store, shards=1)
    source = Engine(store)
    for topic in topics:
        await source.push.set(topic, push)
        await source.push.note_failure(topic, "down", is_probe=False, pause_ms=30_000)
    report = await copy_store(store, target, shards=3)
    assert report.adds_up
    assert report.left_out == []
    copied = Engine(target, shards=3)
    assert await copied.push.all() == await source.push.all()
    for topic in topics:
        assert (await copied.push.get(topic)).push.url == "https://example.com/"
        state = (await copied.topics.get(topic)).target
        assert state is not None
        assert state.circuit == "closed"


@pytest.mark.parametrize(("from_shards", "to_shards"), [(1, 1), (1, 5), (5, 2)])
async def test_jobs_are_found_by_their_tags_in_the_target(
    store: Store, target: Store, target_server: StoreServer, from_shards: int, to_shards: int
) -> None:
    await check(store, shards=from_shards)
    engine = Engine(store, shards=from_shards)
    for topic in TOPICS:
        await engine.puts.put(PutJob(topic=topic, id="a", delay=3600, tags=["all", f"only-{topic}"]))
    await engine.close()

    assert (await copy_store(store, target, shards=to_shards)).adds_up

    keys = Keys(to_shards)
    for topic in TOPICS:
        index = keys.of_shard(keys.shard_of(topic), "tag/all")
        assert target_server.command("ZSCORE", index, f"{topic} a") is not None
    copied = Engine(target, shards=to_shards)
    assert (await copied.consistency.audit_store()).clean
    assert all([(await copied.consistency.audit_topic(topic)).clean for topic in TOPICS])
    await copied.close()
    inventory = await take_inventory(target, to_shards)
    assert (inventory.elements["tag"], inventory.elements["tagged"]) == (16, 8)


async def test_a_cluster_is_filled_and_copied_back(
    store: Store, server: StoreServer, clustered_store: Store, target: Store, target_server: StoreServer
) -> None:
    await seed(store)

    assert (await copy_store(store, clustered_store, shards=5)).adds_up
    await assert_sound(clustered_store, 5, 10)
    assert (await copy_store(clustered_store, target, shards=1)).adds_up
    assert contents(target_server) == contents(server)


async def test_a_target_that_was_used_with_other_shards_keeps_its_number(
    store: Store, target: Store, target_server: StoreServer
) -> None:
    await seed(store)
    await check(target, shards=4)

    with pytest.raises(StoreRefused, match="was set up with --shards 4, not 2"):
        await copy_store(store, target, shards=2)
    assert (await copy_store(store, target)).shards == 4
    assert target_server.command("GET", SHARDS_KEY) == b"4 format 1"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["cluster", "server"])
async def test_a_copy_that_failed_midway_is_refused_by_services_and_starts_over(
    store: Store, request: pytest.FixtureRequest, where: str, cluster: ClusterSet, target_server: StoreServer
) -> None:
    await seed(store, jobs=300)
    servers = cluster.masters if where == "cluster" else [target_server]
    target = await connect(cluster.url if where == "cluster" else target_server.url, timeout_s=5)
    for one in servers:
        one.command("FLUSHALL")

    def fill_memory(_copied: int, _of: int) -> None:
        for one in servers:
            one.command("CONFIG", "SET", "maxmemory", "1")

    with pytest.raises(StoreRefused, match=r"the store at redis.* failed: the store is out of memory"):
        await copy_store(store, target, shards=3, on_progress=fill_memory)
    left = contents(*servers)
    assert left.pop(SHARDS_KEY) == b"-3 format 1"
    assert left
    with pytest.raises(StoreRefused, match="is being filled by `deferd copy`, or that was interrupted"):
        await check(target, shards=3)
    with pytest.raises(StoreRefused, match="holds an unfinished copy"):
        await copy_store(target, store)

    for one in servers:
        one.command("CONFIG", "SET", "maxmemory", "0")
    assert (await copy_store(store, target, shards=5)).adds_up
    await assert_sound(target, 5, 300)
    await target.close()


async def test_a_source_that_changes_meanwhile_is_reported_and_services_refuse_the_target(
    store: Store, server: StoreServer, target: Store
) -> None:
    await seed(store)

    def change(_copied: int, _of: int) -> None:
        server.command("HSET", "deferd:{0}:t1:pool", "another", "x")

    report = await copy_store(store, target, on_progress=change)

    assert report.source_changed
    assert not report.adds_up
    with pytest.raises(StoreRefused, match="being filled"):
        await check(target, shards=1)


async def test_a_target_with_other_data_does_not_add_up(
    store: Store, target: Store, target_server: StoreServer
) -> None:
    await seed(store)

    def change(copied: int, total: int) -> None:
        if copied == total:
            target_server.command("HDEL", "deferd:{0}:t1:pool", "d1")

    report = await copy_store(store, target, on_progress=change)

    assert not report.source_changed
    assert not report.adds_up
    assert report.target.elements["pool"] == report.before.elements["pool"] - 1


async def test_a_store_in_use_by_a_service_or_a_copy_is_refused(store: Store, target: Store) -> None:
    await seed(store)
    for served in (store, target):
        engine = Engine(served)
        await engine.start()
        with pytest.raises(StoreRefused, match=r"a deferd service, or another copy, uses the store .* --force"):
            await copy_store(store, target)
        await engine.close()

    both = await asyncio.gather(*(copy_store(store, target) for _ in range(2)), return_exceptions=True)
    assert 1 <= sum(isinstance(one, StoreRefused) for one in both) <= 2
    if all(isinstance(one, StoreRefused) for one in both):
        assert (await copy_store(store, target)).adds_up


async def test_force_skips_the_check_for_services(store: Store, target: Store) -> None:
    await seed(store)
    subscription = store.pubsub()
    await subscription.subscribe("deferd:ready")
    await subscription.get_message(timeout=5)

    with pytest.raises(StoreRefused, match="uses the store"):
        await copy_store(store, target)
    assert (await copy_store(store, target, force=True)).adds_up
    await subscription.aclose()


async def test_a_source_that_cannot_be_copied_is_refused_before_the_target_changes(
    store: Store, server: StoreServer, target: Store, target_server: StoreServer
) -> None:
    with pytest.raises(StoreRefused, match="has no data of deferd: nothing was copied"):
        await copy_store(store, target)
    await seed(store)
    target_server.command("SET", "another-program", "x")
    target_server.command("HSET", "deferd:{0}:settings", "mail", "")
    with pytest.raises(StoreRefused, match=r"has jobs or topics of deferd already \(key deferd:\{0\}:settings\)"):
        await copy_store(store, target)
    assert target_server.command("DBSIZE") == 2
    target_server.command("FLUSHALL")
    server.command("SET", "deferd:{0}:clock", "1000")
    with pytest.raises(StoreRefused, match="a test store whose clock was moved"):
        await copy_store(store, target)


async def test_keys_of_types_that_deferd_does_not_use_are_left_out_and_named(
    store: Store, server: StoreServer, target: Store
) -> None:
    await seed(store)
    server.command("SADD", "deferd:{0}:t1:extra", "x")
    server.command("HSET", b"deferd:{0}:\xff:pool", "x", "y")
    server.command("HSET", "deferd:{0}:aside/settings/17", "x", "y")

    report = await copy_store(store, target)

    assert report.adds_up
    assert sorted(report.left_out) == ["deferd:{0}:\\xff:pool", "deferd:{0}:t1:extra"]


async def test_the_clock_of_a_store_is_read(store: Store, clustered_store: Store) -> None:
    assert abs(await clock_ms(store) - await clock_ms(clustered_store)) < 10_000


async def test_the_inventory_counts_jobs_by_topic_and_state(store: Store) -> None:
    await seed(store)

    inventory = await take_inventory(store, 1)

    assert set(inventory.jobs) == set(TOPICS)
    assert inventory.jobs["t0"][JobState.READY] == 7
    assert {name: inventory.elements[name] for name in ("pool", "delay", "reserved", "holders", "topics")} == {
        **dict.fromkeys(("reserved", "holders"), 24),
        "pool": 160,
        "delay": 80,
        "topics": 8,
    }


async def test_what_has_happened_in_the_source_is_not_copied(
    store: Store, server: StoreServer, target: Store, target_server: StoreServer
) -> None:
    """Which schedules missed runs is forgotten; how often a lease was extended is copied, until the lease ends."""
    await check(store, shards=1)
    engine = Engine(store)
    await engine.puts.put(PutJob(topic="t", id="a:b", ttr=600))
    await engine.queue.pop("t", [PopRequest(1)])
    await engine.deliveries.touch("t", "a:b", ANY_RECEIPT)
    server.command("ZADD", "deferd:{0}:schedules/missed", 1, "s")
    server.command("SET", "deferd:{0}:console/undo/x", "jobs", "PX", 13_000)
    server.command("HSET", "deferd:{0}:console/sessions", "cookie", "1")
    report = await copy_store(store, target)
    assert report.adds_up
    assert report.left_out == []
    assert target_server.command("EXISTS", "deferd:{0}:schedules/missed") == 0
    assert target_server.command("KEYS", "deferd:{0}:console/*") == []
    assert 500_000 < target_server.command("PTTL", "deferd:{0}:t:touches/a:b") <= 600_000
    await engine.close()
