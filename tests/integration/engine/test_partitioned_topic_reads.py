"""Reads of one topic with several partitions: all of its jobs, whichever partition has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from deferd.contract.errors import InvalidInput, StoreUnavailable
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.engine.cursors import write_cursor
from deferd.engine.engine import Engine
from deferd.engine.inspection.job_facts import JobFacts, MissingJob
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.topics import JobFilter
from deferd.store.connection import Store
from tests.integration.engine.partitioned_topic import (
    PARTITIONS,
    SHARDS,
    TOPIC,
    break_shard_of,
    bury,
    fill,
    grow,
    put_all,
    reserve,
    restore,
    unaware_engine,
)
from tests.integration.store.store_servers import StoreServer

IDS = [f"job-{number}" for number in range(40)]


@pytest.fixture
async def engine(store: Store) -> AsyncIterator[Engine]:
    engine = Engine(store, shards=SHARDS)
    await engine.start()
    yield engine
    await engine.close()


async def put_in_all_states(engine: Engine, *, grown: bool) -> dict[JobState, set[str]]:
    """Eight jobs in each state."""
    await fill(engine, IDS[:24], grown=grown, retain=3600)
    held = await reserve(engine, 24)
    await bury(engine, held[:8])
    for job_id in held[8:16]:
        await engine.queue.finish(TOPIC, job_id, ANY_RECEIPT)
    await put_all(engine, IDS[24:32])
    await put_all(engine, IDS[32:], delay=3600)
    return {
        JobState.DELAYED: set(IDS[32:]),
        JobState.READY: set(IDS[24:32]),
        JobState.RESERVED: set(held[16:]),
        JobState.DEAD: set(held[:8]),
        JobState.FINISHED: set(held[8:16]),
    }


async def listed(engine: Engine, *, limit: int = 100, **options: object) -> list[tuple[str, str]]:
    """States and ids of the jobs of all pages, of which each but the last is full."""
    found: list[tuple[str, str]] = []
    cursor = None
    while True:
        jobs, cursor = await engine.topics.jobs(TOPIC, cursor=cursor, limit=limit, **options)  # type: ignore[arg-type]
        assert {job.topic for job in jobs} <= {TOPIC}
        found += [(job.state.value, job.id) for job in jobs]
        if cursor is None:
            return found
        assert len(jobs) == limit


async def searched(engine: Engine, wanted: JobFilter, *, limit: int = 100, **options: object) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        jobs, cursor, _ = await engine.topics.search(TOPIC, wanted, cursor=cursor, limit=limit, **options)  # type: ignore[arg-type]
        assert {job.topic for job in jobs} <= {TOPIC}
        found += [job.id for job in jobs]
        if cursor is None:
            return found


async def test_a_view_sums_up_all_partitions(engine: Engine, server: StoreServer, grown: bool) -> None:
    await put_in_all_states(engine, grown=grown)
    first = await engine.queue.get(TOPIC, IDS[24])
    await engine.puts.put(PutJob(topic=TOPIC, id="next", delay=60))
    next_due = (await engine.queue.get(TOPIC, "next")).due_at_ms
    await engine.topics.pause(TOPIC, "ops", "a flood")
    async with unaware_engine(server) as unaware:
        for one in (engine, unaware):
            view = await one.topics.get(TOPIC)
            assert view.topic == TOPIC
            assert list(view.counts.values()) == [9, 8, 8, 8, 8]
            assert view.oldest_ready_due_at_ms == first.due_at_ms
            assert view.oldest_ready_age_ms is not None
            assert 0 <= view.oldest_ready_age_ms < 60_000
            assert view.next_due_at_ms == next_due
            assert view.settings == TopicSettings(partitions=4)
            assert view.paused
            assert view.pause is not None
            assert (view.pause.by, view.pause.reason) == ("ops", "a flood")


async def test_a_view_counts_what_waits_in_all_partitions(engine: Engine) -> None:
    await grow(engine)
    await put_all(engine, IDS[:8])
    held = await reserve(engine, 8)
    for job_id in held:
        await engine.puts.put(PutJob(topic=TOPIC, id=job_id, on_conflict="replace", if_reserved="after"))
    for job_id in IDS[8:20]:
        await engine.puts.put(PutJob(topic=TOPIC, id=job_id, on_conflict="append", delay=60))
    view = await engine.topics.get(TOPIC)
    assert (view.follow_ups, view.collections) == (8, 12)


async def test_a_partition_that_cannot_be_reached_is_not_left_out(engine: Engine, grown: bool) -> None:
    await fill(engine, IDS, grown=grown)
    break_shard_of(engine, PARTITIONS[2])
    with pytest.raises(StoreUnavailable):
        await engine.topics.get(TOPIC)
    with pytest.raises(StoreUnavailable):
        await listed(engine)
    restore(engine)
    assert len(await listed(engine)) == len(IDS)


async def test_a_list_goes_through_states_and_in_each_through_partitions(
    engine: Engine, server: StoreServer, grown: bool
) -> None:
    in_states = await put_in_all_states(engine, grown=grown)
    everything = await listed(engine)
    assert everything == [pair for pair in everything if pair[1] in in_states[JobState(pair[0])]]
    assert [state for state, _ in everything] == [state.value for state in in_states for _ in range(8)]
    assert {pair[1] for pair in everything} == set(IDS)
    for limit in (1, 7, 8):
        assert await listed(engine, limit=limit) == everything
    for state in in_states:
        alone = await listed(engine, limit=3, state=state)
        assert alone == [pair for pair in everything if pair[0] == state]
        assert await listed(engine, limit=3, state=state, reverse=True) == alone[::-1]
    async with unaware_engine(server) as unaware:
        assert await listed(unaware, limit=7) == everything
    if grown:
        return
    numbers = [PARTITIONS.index(engine.partitions.known.home(TOPIC, job_id)) for job_id in IDS[32:]]
    delayed = [engine.partitions.known.home(TOPIC, job_id) for state, job_id in everything if state == "delayed"]
    assert delayed == [PARTITIONS[number] for number in sorted(numbers)]


async def test_a_cursor_from_before_the_topic_grew_goes_on_in_the_first_partition(engine: Engine) -> None:
    await put_all(engine, IDS[:20], delay=3600)
    first, cursor = await engine.topics.jobs(TOPIC, limit=5)
    await grow(engine)
    await put_all(engine, IDS[20:], delay=3600)
    rest, cursor = await engine.topics.jobs(TOPIC, cursor=cursor, limit=100)
    assert cursor is None
    assert sorted(job.id for job in (*first, *rest)) == sorted(IDS)


@pytest.mark.parametrize("place", ["delayed#4", "delayed#", "other", "delayed#1#1", "#1", "tag#1"])
async def test_a_cursor_of_no_partition_is_refused(engine: Engine, place: str) -> None:
    await grow(engine)
    with pytest.raises(InvalidInput):
        await engine.topics.jobs(TOPIC, cursor=write_cursor(place, "", ""))
    with pytest.raises(InvalidInput):
        await engine.topics.search(TOPIC, JobFilter(id_prefix="a"), cursor=write_cursor(place, "", ""))


async def test_a_search_goes_through_all_partitions(engine: Engine, server: StoreServer, grown: bool) -> None:
    in_states = await put_in_all_states(engine, grown=grown)
    wanted = JobFilter(id_prefix="job-3")
    matching = [job_id for _, job_id in await listed(engine) if job_id.startswith("job-3")]
    assert len(matching) == 11
    dead = [job_id for _, job_id in await listed(engine, state=JobState.DEAD)]
    async with unaware_engine(server) as unaware:
        for one in (engine, unaware):
            for limit in (1, 4, 100):
                assert await searched(one, wanted, limit=limit) == matching
            assert await searched(one, JobFilter(error="no use"), limit=3) == dead
            assert set(dead) == in_states[JobState.DEAD]
            found = await searched(one, JobFilter(error="no use"), limit=3, state=JobState.DEAD, reverse=True)
            assert found == dead[::-1]


async def test_a_search_by_tag_goes_through_all_partitions(engine: Engine, grown: bool) -> None:
    await fill(engine, IDS, grown=grown, tags=["customer-7"], delay=3600)
    await put_all(engine, ["other"], delay=3600)
    found = await searched(engine, JobFilter(tag="customer-7"))
    assert sorted(found) == sorted(IDS)
    for limit in (1, 7):
        assert await searched(engine, JobFilter(tag="customer-7"), limit=limit) == found
        assert await searched(engine, JobFilter(tag="customer-7"), limit=limit, reverse=True) == found[::-1]
    if not grown:
        homes = [engine.partitions.known.home(TOPIC, job_id) for job_id in found]
        assert homes == sorted(homes)
        for partition in PARTITIONS:
            ids = [job_id for job_id, home in zip(found, homes, strict=True) if home == partition]
            assert ids == sorted(ids)


async def test_why_finds_a_job_in_any_partition(engine: Engine, server: StoreServer, grown: bool) -> None:
    in_states = await put_in_all_states(engine, grown=grown)
    async with unaware_engine(server) as unaware:
        for one in (engine, unaware):
            for state, ids in in_states.items():
                for job_id in ids:
                    if one is unaware:
                        unaware.partitions.known.layouts.clear()
                    standing = await one.topics.why(TOPIC, job_id)
                    assert isinstance(standing, JobFacts)
                    assert (standing.record.topic, standing.record.state) == (TOPIC, state)
                    if state is JobState.READY and one is engine:
                        assert standing.ready == 8
                        assert standing.ahead < 8


async def test_why_estimates_how_many_jobs_of_all_partitions_go_first(engine: Engine) -> None:
    await grow(engine)
    await put_all(engine, IDS)
    in_partition = Counter(engine.partitions.known.home(TOPIC, job_id) for job_id in IDS)
    placed: Counter[str] = Counter()
    for job_id in IDS:
        home = engine.partitions.known.home(TOPIC, job_id)
        ahead, placed[home] = placed[home], placed[home] + 1
        standing = await engine.topics.why(TOPIC, job_id)
        assert isinstance(standing, JobFacts)
        assert standing.ready == len(IDS)
        assert standing.ahead == sum(min(ahead, in_partition[partition]) for partition in PARTITIONS)


async def test_why_compares_an_unknown_id_with_ids_of_all_partitions(engine: Engine, grown: bool) -> None:
    await fill(engine, IDS, grown=grown, delay=3600)
    missing = await engine.topics.why(TOPIC, "job-3x")
    assert isinstance(missing, MissingJob)
    assert (missing.topic_is_known, missing.jobs, missing.compared) == (True, 40, 40)
    assert missing.nearest[0] == "job-3"
    assert len(missing.nearest) == 5
    assert {engine.partitions.known.home(TOPIC, job_id) for job_id in missing.nearest} > {PARTITIONS[0]}


async def test_why_knows_of_a_job_that_was_cancelled_in_a_former_partition(engine: Engine) -> None:
    await put_all(engine, IDS[:6])
    await reserve(engine, 6)
    await grow(engine)
    for job_id in IDS[:6]:
        await engine.cancels.cancel(TOPIC, job_id)
        missing = await engine.topics.why(TOPIC, job_id)
        assert isinstance(missing, MissingJob)
        assert missing.cancelled_until_ms is not None


async def test_dead_jobs_of_all_partitions_are_in_one_group(engine: Engine, grown: bool) -> None:
    await fill(engine, IDS, grown=grown)
    held = await reserve(engine, len(IDS))
    await bury(engine, held[:30], "refused 17 times")
    await bury(engine, held[30:], "no such customer")
    found = await engine.dead_jobs.by_error([TOPIC], TOPIC.__eq__)
    assert (found.dead, found.looked_at, found.is_complete, found.unreadable) == (40, 40, True, [])
    assert [(group.topic, group.error, group.count) for group in found.groups] == [
        (TOPIC, "refused * times", 30),
        (TOPIC, "no such customer", 10),
    ]
    for group, ids in zip(found.groups, (held[:30], held[30:]), strict=True):
        assert len(group.samples) == 3
        assert set(group.samples) <= set(ids)
        assert group.first_ms is not None
        assert group.last_ms is not None
    assert (await engine.dead_jobs.by_error([TOPIC], lambda _: False)).groups == []


async def test_a_partitioned_topic_gets_the_share_of_one_topic(engine: Engine) -> None:
    await fill(engine, IDS, grown=False)
    await put_all(engine, ["a", "b"], topic="other")
    await bury(engine, await reserve(engine, len(IDS)))
    for job in await engine.dispatcher.pop(["other"], count=2):
        await engine.deliveries.bury("other", job.id, ANY_RECEIPT)
    found = await engine.dead_jobs.by_error([TOPIC, "other"], lambda _: True, look_at=14)
    assert (found.dead, found.looked_at, found.is_complete) == (42, 14, False)
    assert {group.topic: group.count for group in found.groups} == {TOPIC: 12, "other": 2}


async def test_dead_jobs_of_a_shard_that_cannot_be_reached_are_named_as_missing(engine: Engine) -> None:
    await fill(engine, IDS, grown=False)
    await bury(engine, await reserve(engine, len(IDS)))
    away = sum(engine.partitions.known.home(TOPIC, job_id) == PARTITIONS[1] for job_id in IDS)
    break_shard_of(engine, PARTITIONS[1])
    found = await engine.dead_jobs.by_error([TOPIC], lambda _: True)
    restore(engine)
    assert found.unreadable == [engine._keys.shard_of(PARTITIONS[1])]
    assert (found.dead, found.looked_at) == (len(IDS) - away, len(IDS) - away)
