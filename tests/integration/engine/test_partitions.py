"""Topics with several partitions: where jobs go, growing while jobs live, processes that do not know of it yet."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from deferd.contract.errors import DifferentShard, InvalidInput, JobExists, JobNotFound, StoreUnavailable
from deferd.contract.model import ChangeJob, FinishItem, JobState, PutJob, TopicSettings
from deferd.engine.engine import Engine
from deferd.engine.partitions import Layout, names_of
from deferd.engine.record import ANY_RECEIPT, Receipt
from deferd.store.connection import Store, connect
from tests.integration.store.store_servers import StoreServer

SHARDS = 8
IDS = [f"job-{number}" for number in range(40)]


@pytest.fixture
async def engines(server: StoreServer) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two processes on one store; the second one learns nothing by messages."""
    stores = [await connect(server.url, timeout_s=5) for _ in range(2)]
    first, second = Engine(stores[0], shards=SHARDS), Engine(stores[1], shards=SHARDS)
    await first.start()
    yield first, second
    await first.close()
    await second.close()
    for store in stores:
        await store.close()


@pytest.fixture
async def engine(engines: tuple[Engine, Engine]) -> Engine:
    return engines[0]


async def grow(engine: Engine, count: int, topic: str = "t") -> None:
    await engine.topics.set(topic, TopicSettings(partitions=count))


async def put(engine: Engine, job_id: str, **fields: object) -> None:
    await engine.puts.put(PutJob.model_validate({"topic": "t", "id": job_id, **fields}))


async def pop_all(engine: Engine) -> dict[str, Receipt]:
    held: dict[str, Receipt] = {}
    while jobs := await engine.dispatcher.pop(["t"], count=7):
        assert {job.topic for job in jobs} == {"t"}
        assert not held.keys() & {job.id for job in jobs}
        held.update((job.id, job.receipt) for job in jobs)
    return held


async def test_jobs_are_spread_and_found(engine: Engine, store: Store) -> None:
    await grow(engine, 4)
    for job_id in IDS:
        await put(engine, job_id)
    sizes = [await store.call("HLEN", engine.queue._keys.named(name, "pool")) for name in ("t", "t#1", "t#2", "t#3")]
    assert sum(sizes) == len(IDS)
    assert min(sizes) > 3
    assert sorted(await pop_all(engine)) == sorted(IDS)


async def test_a_waiting_pop_is_woken_by_any_partition(engine: Engine) -> None:
    await grow(engine, 4)
    assert await engine.dispatcher.pop(["t"]) == []
    for job_id in IDS[:8]:
        waiting = asyncio.create_task(engine.dispatcher.pop(["t"], wait_ms=20_000))
        await asyncio.sleep(0.01)
        await put(engine, job_id, delay=0.02)
        async with asyncio.timeout(2):
            assert [job.id for job in await waiting] == [job_id]


async def test_the_number_cannot_shrink(engine: Engine) -> None:
    await grow(engine, 4)
    with pytest.raises(InvalidInput, match="at least 4"):
        await grow(engine, 3)
    view = await engine.topics.set("t", TopicSettings(ttr=30))
    assert (view.settings.partitions, view.settings.ttr) == (4, 30)


async def test_a_group_or_a_priority_is_refused_also_by_who_does_not_know_of_the_partitions(
    engines: tuple[Engine, Engine],
) -> None:
    knows, stale = engines
    await put(knows, "before", delay=60)
    await grow(knows, 4)
    jobs = [PutJob(topic="t", id="a"), PutJob(topic="t", id="b", priority=2)]
    results = await stale.puts.put_many(jobs)
    assert [(one.status, one.code) for one in results] == [(201, None), (422, "validation")]
    with pytest.raises(InvalidInput) as error:
        await knows.puts.put_many(jobs)
    assert [(one.path, one.value) for one in error.value.field_errors] == [(("body", "jobs", 1, "priority"), 2)]
    grouped = PutJob(topic="t", id="b", group="g", priority=2)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: stale.puts.put(grouped),
        lambda: stale.queue.change("t", "before", ChangeJob(group="g")),
        lambda: stale.queue.finish_and_put("t", "a", held.receipt, [grouped]),
    ]
    [held] = await knows.dispatcher.pop(["t"])
    for call in calls:
        stale.partitions.known.note("t", None)
        with pytest.raises(InvalidInput, match=r"group: must be left out: topic 't' has several partitions"):
            await call()
    with pytest.raises(JobNotFound):
        await knows.queue.get("t", "b")


@pytest.mark.parametrize("labels", [{"group": "g"}, {"priority": 1}], ids=str)
async def test_a_topic_with_groups_or_priorities_gets_no_second_partition(
    engine: Engine, labels: dict[str, object]
) -> None:
    await put(engine, "a", delay=60, **labels)
    with pytest.raises(InvalidInput, match="partitions: must be at most 1: the topic has limits, or jobs with a"):
        await grow(engine, 2)
    await engine.queue.change("t", "a", ChangeJob.model_validate(dict.fromkeys(labels)))
    await grow(engine, 2)


async def test_limits_are_refused_also_by_who_does_not_know_of_the_partitions(
    engines: tuple[Engine, Engine],
) -> None:
    knows, stale = engines
    limited = TopicSettings.model_validate({"limits": {"max_in_flight": 1}})
    await stale.topics.set("t", limited)
    await grow(knows, 2)
    with pytest.raises(InvalidInput, match="limits: must be left out for a topic with 2 partitions"):
        await stale.topics.set("t", limited)


async def test_former_numbers_are_forgotten_once_no_job_is_where_they_had_put_it(engine: Engine) -> None:
    for job_id in IDS:
        await put(engine, job_id, delay=3600)
    await grow(engine, 4)
    layouts = engine.partitions.known.layouts
    await engine.partitions._forget_former("t", layouts["t"])
    assert layouts["t"].counts == (4, 1)
    for job_id in IDS:
        await engine.cancels.cancel("t", job_id)
    await engine.partitions._forget_former("t", layouts["t"])
    assert engine.partitions.known.layouts["t"].counts == (4,)


async def test_no_id_is_ever_in_two_partitions_while_the_topic_grows(engines: tuple[Engine, Engine]) -> None:
    """Two processes put the same ids, replace, cancel and finish them while the number of partitions grows."""
    ids = [f"n-{number}" for number in range(30)]
    is_growing = True
    put_now = ended = 0

    async def work(engine: Engine, seed: int) -> None:
        nonlocal put_now, ended
        chance = random.Random(seed)
        while is_growing:
            job_id = chance.choice(ids)
            try:
                if chance.random() < 0.6:
                    how = chance.choice(["reject", "keep", "replace"])
                    fields = {"topic": "t", "id": job_id, "on_conflict": how, "delay": 3600}
                    done = await engine.puts.put(PutJob.model_validate(fields))
                    put_now += done.outcome == "created"
                else:
                    await engine.cancels.cancel("t", job_id)
                    ended += 1
            except (JobExists, JobNotFound):
                pass

    async def until_put(more: int) -> None:
        enough = put_now + more
        while put_now < enough:
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as group:
        for seed in range(24):
            group.create_task(work(engines[seed % 2], seed))
        for count in (2, 3, 7, 12, 30, 64):
            await until_put(80)
            await grow(engines[0], count)
        await until_put(80)
        is_growing = False
    found: list[str] = []
    for partition in names_of("t", 64):
        pool = await engines[0].queue._scripts.run(
            "key_elements", [engines[0].queue._keys.named(partition, "pool")], ("hash", 0, 1000)
        )
        found += (job_id.decode() for job_id in pool[1][::2])
    assert len(found) == len(set(found)) == put_now - ended


def between(engine: Engine, monkeypatch: pytest.MonkeyPatch, action: Callable[[], Awaitable[None]]) -> None:
    """Run `action` each time between the look for earlier jobs with an id and the put."""
    look = engine.partitions.held_by_former

    async def look_and_act(
        topic: str, layout: Layout, job_ids: Sequence[str]
    ) -> dict[str, str | StoreUnavailable] | None:
        held = await look(topic, layout, job_ids)
        await action()
        return held

    monkeypatch.setattr(engine.partitions, "held_by_former", look_and_act)


async def test_a_put_by_the_former_number_cannot_overtake_one_by_the_new_number(
    engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    knows, stale = engines
    await grow(knows, 4)
    job_id = next(one for one in IDS if Layout((8,)).home("t", one) != Layout((4,)).home("t", one) != "t")
    await knows.topics._run("topic_set", "t", "settings", b'{"n":8}')
    home = Layout((8,)).home("t", job_id)  # the only one that has the settings: a process ended as it spread them
    keys = knows.queue._keys.of_topic(home)
    await knows.queue._scripts.run("copy_settings", keys, (home, b'{"n":8,"rv":2}'))
    await knows.partitions.refresh("t")
    created = []

    async def put_by_former_number() -> None:
        stale.partitions.known.note("t", Layout((4,)))
        try:
            await put(stale, job_id)
            created.append("stale")
        except JobExists:
            pass

    between(knows, monkeypatch, put_by_former_number)
    try:
        await put(knows, job_id)
        created.append("knows")
    except JobExists:
        pass
    assert len(created) == 1
    assert len(await pop_all(knows)) == 1


async def test_a_job_that_ends_before_it_is_replaced_where_it_was_is_put_where_it_belongs(
    engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    knows, other = engines
    job_id = next(one for one in IDS if Layout((8,)).home("t", one) != "t")
    await put(knows, job_id)
    await grow(knows, 8)
    is_first = True

    async def end_it_and_put_it_anew() -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            await other.cancels.cancel("t", job_id)
            await put(other, job_id, body="other")

    between(knows, monkeypatch, end_it_and_put_it_anew)
    with pytest.raises(JobExists):
        await put(knows, job_id)
    assert (await knows.queue.get("t", job_id)).body == b'"other"'
    assert len(await pop_all(knows)) == 1


async def test_who_waits_when_the_number_grows_gets_jobs_of_the_new_partitions(engine: Engine) -> None:
    for count in (4, 8):
        await put(engine, "first")
        assert [job.id for job in await engine.dispatcher.pop(["t"], wait_ms=1000)] == ["first"]
        await engine.queue.finish("t", "first", ANY_RECEIPT)
        waiting = [asyncio.create_task(engine.dispatcher.pop(["t"], wait_ms=30_000)) for _ in IDS]
        await asyncio.sleep(0.05)
        await grow(engine, count)
        for job_id in IDS:
            await put(engine, job_id)
        async with asyncio.timeout(2):
            popped = await asyncio.gather(*waiting)
        assert sorted(job.id for jobs in popped for job in jobs) == sorted(IDS)
        await engine.queue.finish_many("t", [FinishItem(id=job_id) for job_id in IDS])


async def test_a_put_that_waited_while_the_number_grew_goes_where_it_belongs(engines: tuple[Engine, Engine]) -> None:
    grown, other = engines
    known = grown.partitions.known
    growing = asyncio.Lock()
    send = grown.queue._scripts.run

    async def run_after_growth(verb: str, *args: object, **options: object) -> object:
        async with growing:
            if verb == "put" and known.count("t") == 3:  # its partition has been chosen
                await grow(other, 8)
                await other.partitions._forget_former("t", other.partitions.known.layouts["t"])
                await grown.partitions.refresh("t")
                assert known.layouts["t"].counts == (8,)
        return await send(verb, *args, **options)  # type: ignore[arg-type]

    grown.queue._scripts.run = run_after_growth  # type: ignore[method-assign]
    await grow(grown, 3)
    await grown.partitions._forget_former("t", known.layouts["t"])
    assert known.layouts["t"].counts == (3,)
    await asyncio.gather(*(put(grown, job_id) for job_id in IDS))
    for job_id in IDS:
        home = known.home("t", job_id)
        assert await send("get", grown.queue._keys.of_topic(home), (home, job_id)) is not None


async def test_a_growth_that_a_failover_took_back_is_made_again(engine: Engine, store: Store) -> None:
    """The shard of the topic falls back to earlier settings; the others have those of more partitions."""
    await grow(engine, 4)
    keys = engine.queue._keys
    shard = keys.shard_of("t")
    of_topic = keys.of_shard(shard, "settings"), keys.of_shard(shard, "partitioned")
    before = [await store.call("HGET", key, "t") for key in of_topic]
    await engine.topics.set("t", TopicSettings(partitions=8, ttr=30))
    for job_id in IDS[:20]:
        await put(engine, job_id)
    for key, value in zip(of_topic, before, strict=True):
        await store.call("HSET", key, "t", value)
    engine.partitions.known.note("t", Layout((4,)))
    await engine.topics.set("t", TopicSettings(ttr=40))  # not even a later change makes it fewer
    for job_id in IDS[:20]:
        with pytest.raises(JobExists):
            await put(engine, job_id)
    for job_id in IDS[20:]:
        await put(engine, job_id)
    await engine.partitions.spread("t")
    view = await engine.topics.get("t")
    assert (view.settings.partitions, view.settings.ttr, sum(view.counts.values())) == (8, 40, len(IDS))
    for partition in names_of("t", 8):
        settings = await store.call("HGET", keys.of_shard(keys.shard_of(partition), "settings"), partition)
        assert settings == await store.call("HGET", of_topic[0], "t")


@pytest.mark.parametrize("refused", [0, 1])
async def test_a_put_of_an_id_that_stays_taken_is_not_lost_when_its_partition_is_forgotten(
    engine: Engine, refused: int
) -> None:
    """The look for jobs of former numbers has seen the pool, and not yet which ids stay taken.

    `refused`: how many puts of the same batch the taken id refuses before.
    """
    job_id = next(one for one in IDS if Layout((5,)).home("t", one) != Layout((2,)).home("t", one) == "t#1")
    store = engine.partitions
    await grow(engine, 2)
    await store._forget_former("t", store.known.layouts["t"])
    await put(engine, job_id, unique_for=3600)
    await engine.queue.finish("t", job_id, (await pop_all(engine))[job_id])
    await grow(engine, 5)
    with pytest.raises(JobExists):
        await put(engine, job_id)
    run = store._scripts.run
    has_put = False

    async def put_in_the_middle(verb: str, keys: Sequence[str], *args: object, **options: object) -> object:
        nonlocal has_put
        if verb == "key_elements" and keys[0].endswith("t#1:cancelled") and not has_put:
            has_put = True
            puts = [*[PutJob(topic="t", id=job_id)] * refused, PutJob(topic="t", id=job_id, conflict_with="live")]
            results = await engine.puts.put_many(puts)
            assert [result.status for result in results] == [409] * refused + [201]
        return await run(verb, keys, *args, **options)  # type: ignore[arg-type]

    store._scripts.run = put_in_the_middle  # type: ignore[method-assign]
    await store._forget_former("t", store.known.layouts["t"])
    assert has_put
    assert (await engine.queue.get("t", job_id)).state is JobState.READY
    assert list(await pop_all(engine)) == [job_id]
    await engine.queue.finish("t", job_id, ANY_RECEIPT)


async def test_a_job_held_while_the_topic_grows_can_be_finished_with_a_put(engine: Engine) -> None:
    keys = engine.queue._keys
    other = next(name for name in map(str, range(100)) if keys.shard_of(name) == keys.shard_of("t"))
    for job_id in IDS[:10]:
        await put(engine, job_id)
    held = await pop_all(engine)
    await grow(engine, 4)
    assert {engine.partitions.known.home("t", job_id) for job_id in held} > {"t"}
    for job_id, receipt in held.items():
        (result,) = await engine.queue.finish_and_put("t", job_id, receipt, [PutJob(topic=other, id=job_id)])
        assert result.status == 201
        with pytest.raises(JobNotFound):
            await engine.queue.get("t", job_id)
    job_id = next(one for one in IDS if engine.partitions.known.home("t", one) == "t#1")
    await put(engine, job_id)
    for named in (job_id, "none-of-them"):
        with pytest.raises(DifferentShard):
            await engine.queue.finish_and_put("t", named, ANY_RECEIPT, [PutJob(topic="t", id=IDS[0]), *puts_of_all()])
    assert (await engine.queue.get("t", job_id)).state is JobState.READY


def puts_of_all() -> list[PutJob]:
    """Of ids in several partitions, so that some are in other shards."""
    return [PutJob(topic="t", id=f"new-{number}") for number in range(8)]


async def test_it_is_looked_less_often_for_jobs_that_stay(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for job_id in IDS:
        await put(engine, job_id, delay=3600)
    await grow(engine, 4)
    now_s = 1000.0
    monkeypatch.setattr("deferd.engine.partition_store.monotonic", lambda: now_s)
    looks: list[float] = []
    forget = engine.partitions._forget_former

    async def noted(topic: str, layout: Layout) -> None:
        looks.append(now_s)
        await forget(topic, layout)

    monkeypatch.setattr(engine.partitions, "_forget_former", noted)
    for _ in range(120):
        engine.partitions._unread_shards.add(0)  # as once a minute
        await engine.partitions._follow()
        now_s += 60
    assert looks == [1000, 1060, 1180, 1420, 1900, 2860, 4780]
    for job_id in IDS:
        await engine.cancels.cancel("t", job_id)
    now_s += 3600
    engine.partitions._unread_shards.add(0)
    await engine.partitions._follow()
    assert engine.partitions.known.layouts["t"].counts == (4,)
