"""What looks over many topics, when one has several partitions: its name once, and the sums over its partitions."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from deferd.api.auth.api_keys import Bounds
from deferd.api.auth.quota import Quota
from deferd.api.metrics import read_store_state
from deferd.contract.errors import StoreUnavailable, TopicNotFound
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine import topic_list as topic_list_module
from deferd.engine.engine import Engine
from deferd.engine.history import COUNTS, Bucket, History, sums_of
from deferd.engine.inspection.attention import Alert, Overview, overview_of
from deferd.engine.inspection.consumers import Sample, SeenConsumer
from deferd.engine.record import ANY_RECEIPT, JobRecord
from deferd.engine.redis_keys import Keys
from deferd.engine.shelf import Shelf
from deferd.engine.store_copy import count_jobs
from deferd.engine.topic_list import TopicNames
from deferd.engine.topics import TopicView, get_topic
from deferd.store.connection import Store
from tests.integration.engine.engine_driver import started_engine
from tests.integration.store.store_servers import StoreServer

SHARDS = 8
IDS = [f"job-{number}" for number in range(40)]
HOUR_MS = 3_600_000


@pytest.fixture
async def engine(server: StoreServer) -> AsyncIterator[Engine]:
    """An engine with the topic `t` in four partitions, `u` without any, and `t2` whose name begins as that of `t`."""
    async with started_engine(server.url, shards=SHARDS, movable_clock=True) as engine:
        await engine.topics.set("t", TopicSettings(partitions=4))
        for topic in ("u", "t2"):
            await engine.topics.set(topic, TopicSettings(ttr=30))
        yield engine


async def put(engine: Engine, topic: str = "t", ids: list[str] | None = None, **fields: Any) -> None:
    ids = IDS if ids is None else ids
    results = await engine.puts.put_many(
        [PutJob.model_validate({"topic": topic, "id": job_id, **fields}) for job_id in ids]
    )
    assert {result.status for result in results} == {201}


async def pop(engine: Engine, jobs: int, topic: str = "t", **options: Any) -> list[JobRecord]:
    popped: list[JobRecord] = []
    while len(popped) < jobs:
        popped += await engine.dispatcher.pop([topic], count=jobs - len(popped), wait_ms=5000, **options)
    return popped


def forget_reads(engine: Engine) -> None:
    """Read again what is kept for some seconds."""
    for kept in (
        engine.alerts,
        engine.consumer_registry,
        engine.consumers,
        engine.dead_jobs,
        engine.finish_rates,
        engine.forecasts,
        engine.histories,
        engine.system,
    ):
        kept._reads._values.clear()
    engine.histories._reads_of_many._values.clear()
    engine.finish_rates._best._values.clear()


async def test_names_are_those_of_topics_on_pages_of_any_size(engine: Engine) -> None:
    await engine.topics.set("wide", TopicSettings(partitions=64))
    await put(engine)
    whole = await engine.topic_list.names()
    assert sorted(whole.names) == ["t", "t2", "u", "wide"]
    assert (whole.next_cursor, whole.unavailable) == (None, [])
    for limit in (1, 2, 3, 4):
        names: list[str] = []
        sizes: list[int] = []
        cursor: str | None = None
        while True:
            page = await engine.topic_list.names(cursor, limit)
            names += page.names
            sizes.append(len(page.names))
            cursor = page.next_cursor
            if cursor is None:
                break
        assert names == whole.names
        assert set(sizes[:-1]) <= {limit}
        assert len(sizes) == -(-4 // limit)


async def test_a_page_is_full_where_partitions_are_before_its_topics(server: StoreServer) -> None:
    """In one shard: 64 names are between that of `wide` and the next topics."""
    async with started_engine(server.url) as engine:
        await engine.topics.set("wide", TopicSettings(partitions=64))
        for number in range(5):
            await engine.topics.set(f"wider-{number}", TopicSettings(ttr=30))
        page = await engine.topic_list.names(None, 3)
        assert page.names == ["wide", "wider-0", "wider-1"]
        page = await engine.topic_list.names(page.next_cursor, 3)
        assert (page.names, page.next_cursor) == (["wider-2", "wider-3", "wider-4"], None)
        known = engine.topic_list.known_topics
        assert known.after(0, "") == ["wide", *(f"wider-{number}" for number in range(5))]


async def test_a_topic_is_unavailable_when_one_of_its_partitions_is(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other topics are listed, and the shard of that partition is named, not that of the topic."""
    keys, topic_list = engine.queue._keys, engine.topic_list
    dead = keys.shard_of("t#2")
    assert dead not in {keys.shard_of(topic) for topic in ("t", "t2", "u")}
    names = (await topic_list.names()).names
    command = engine._scripts.command
    reads_of_t = 0

    async def view(_scripts: Any, _keys: Keys, topic: str, shelf: Shelf) -> TopicView:
        nonlocal reads_of_t
        if topic == "t":
            reads_of_t += 1
            raise StoreUnavailable("the shard of a partition cannot be reached")
        return await get_topic(_scripts, _keys, topic, shelf)

    async def fails(*words: Any) -> Any:
        if str(words[1]).startswith(keys.of_shard(dead, "")):
            raise StoreUnavailable("the shard cannot be reached")
        return await command(*words)

    monkeypatch.setattr(topic_list_module, "get_topic", view)
    monkeypatch.setattr(engine._scripts, "command", fails)
    page = await topic_list.views(TopicNames(list(names)))
    assert sorted(view.topic for view in page.views) == ["t2", "u"]
    assert (page.unavailable, page.unreadable, reads_of_t) == (["t"], [dead], 1)
    page = await topic_list.page()
    assert sorted(view.topic for view in page.views) == ["t2", "u"]
    assert (page.unavailable, page.unreadable, reads_of_t) == (["t"], [dead], 1)


async def test_scan_and_count(engine: Engine) -> None:
    await put(engine)
    assert await engine.topic_list.count() == 3
    cursor, names = await engine.topic_list.scan(0, 10)
    while cursor:
        cursor, more = await engine.topic_list.scan(cursor, 10)
        names += more
    assert sorted(names) == ["t", "t2", "u"]
    timers = (await engine.system.read()).timers
    assert sum(timer.topics for timer in timers) == 3


async def test_totals_are_those_of_all_partitions_in_their_shards(engine: Engine, store: Store) -> None:
    await put(engine)
    await put(engine, "u", IDS[:5], delay=60)
    await pop(engine, 10)
    totals = await engine.topic_list.totals(["t", "u"])
    homes = {engine.queue._keys.shard_of(name) for name in ("t", "t#1", "t#2", "t#3", "u")}
    assert set(totals) == homes
    jobs = {state: sum(of_shard.jobs[state] for of_shard in totals.values() if of_shard) for state in JobState}
    assert (jobs[JobState.READY], jobs[JobState.RESERVED], jobs[JobState.DELAYED]) == (30, 10, 5)
    counts = await count_jobs(store, SHARDS)
    assert sorted(counts) == ["t", "t2", "u"]
    assert (counts["t"][JobState.READY], counts["t"][JobState.RESERVED]) == (30, 10)
    others = await engine.topic_list.sum_of_others([], ())
    assert others.totals.jobs[JobState.READY] == 30
    assert (await engine.topic_list.sum_of_others(["t"], ())).totals.jobs == others.totals.jobs | {
        JobState.READY: 0,
        JobState.RESERVED: 0,
    }


async def test_metrics_have_a_topic_once(engine: Engine) -> None:
    await put(engine)
    state = await read_store_state(engine, 100)
    assert state is not None
    assert sorted(view.topic for view in state.topics) == ["t", "t2", "u"]
    state = await read_store_state(engine, 1)
    assert state is not None
    assert state.others is not None
    [view] = state.topics
    assert "#" not in view.topic
    assert state.others.jobs[JobState.READY] == (0 if view.topic == "t" else 40)


@pytest.mark.parametrize(
    ("pattern", "jobs", "topics"), [("t", 40, {"t"}), ("t*", 43, {"t", "t2"}), ("t2", 3, {"t2"}), ("*u", 2, {"u"})]
)
async def test_a_quota_counts_the_partitions_of_its_topics(
    engine: Engine, pattern: str, jobs: int, topics: set[str]
) -> None:
    await put(engine)
    await put(engine, "t2", IDS[:3])
    await put(engine, "u", IDS[:2])
    quota = Quota("key", TopicPatterns([pattern]), Bounds(max_jobs=1000, max_bytes_total=10**9, max_topics=10))
    await quota.count(engine.usage)
    assert quota._jobs.counted == jobs
    assert quota._bytes.counted > jobs * 200
    assert quota.topics == topics


async def test_the_forecast_of_a_topic_is_that_of_its_partitions(engine: Engine) -> None:
    await put(engine, ids=IDS[:20], delay=1000)
    await put(engine, ids=IDS[20:], delay=5000)
    await put(engine, "u", IDS[:3], delay=1000)
    for wanted in (None, ["t", "u"], ["t", "u*"]):
        forget_reads(engine)
        made = await engine.forecasts.forecast(wanted, lambda _: True, buckets=3)
        assert sorted(made.topics) == ["t", "u"]
        assert (made.topics["t"].delayed, list(made.topics["t"].counts), made.topics["t"].after) == (40, [40, 0, 0], 0)
        assert made.total().delayed == 43
    begin_ms = made.now_ms
    made = await engine.forecasts.forecast(["t"], lambda _: True, from_ms=begin_ms, to_ms=begin_ms + HOUR_MS, buckets=2)
    assert (list(made.topics["t"].counts), made.topics["t"].after) == ([20, 0], 20)


async def test_consumers_hold_jobs_of_topics(engine: Engine) -> None:
    await put(engine)
    await pop(engine, 30, consumer="worker-1")
    await pop(engine, 4)
    found = await engine.consumers.all(lambda topic: topic == "t")
    [consumer] = found.consumers
    assert (consumer.name, consumer.topics, consumer.held) == ("worker-1", {"t"}, 30)
    assert (found.nameless, found.is_complete) == (4, True)


async def publish_history(engine: Engine) -> None:
    """Publish what was counted until now, and begin another bucket."""
    await engine.history_publisher.publish()
    assert engine.clock is not None
    await engine.clock.advance(10_000)
    forget_reads(engine)


def sums(found: History) -> dict[str, int]:
    of_all = [sum(bucket.counts[at] for bucket in found.buckets) for at in range(len(COUNTS))]
    return {name: count for name, count in zip(COUNTS, of_all, strict=True) if count}


async def test_the_history_of_a_topic_is_the_sum_over_its_partitions(engine: Engine) -> None:
    await put(engine)
    for job in (await pop(engine, 15))[:6]:
        await engine.queue.finish("t", job.id, job.receipt)
    await publish_history(engine)
    for minutes in (60, 600):
        found = await engine.histories.of_topic("t", minutes)
        assert sums(found) == {"put": 40, "popped": 15, "finished": 6}
        assert found.buckets[-1].gauges == (0, 25, 9, 0)
        assert sum(sum(bucket.lateness.values()) for bucket in found.buckets) == 15
        assert sum(sum(bucket.run_times.values()) for bucket in found.buckets) == 6
    for visible in (None, TopicPatterns(["t"]), TopicPatterns(["*"])):
        found = await engine.histories.of_all(visible, 60)
        assert sums(found) == {"put": 40, "popped": 15, "finished": 6}
        assert found.is_complete
    ready = await engine.ready_histories.of_topics(["t", "u"])
    assert ready["t"][-1] == 25
    assert sums(await engine.histories.of_all(TopicPatterns(["t2"]), 60)) == {}
    assert sums(await engine.histories.of_topic("u", 60)) == {}
    with pytest.raises(TopicNotFound):
        await engine.histories.of_topic("nobody", 60)


def test_the_number_of_jobs_is_known_where_each_partition_knows_its_own() -> None:
    first = [Bucket(gauges=None), Bucket(gauges=(1, 2, 3, 4))]
    second = [
        Bucket(gauges=(5, 5, 5, 5), lateness=Counter({2: 1}), run_times=Counter({3: 1})),
        Bucket(gauges=(5, 6, 7, 8), lateness=Counter({2: 4})),
    ]
    assert [bucket.gauges for bucket in sums_of([first, second])] == [None, (6, 8, 10, 12)]
    assert [bucket.lateness for bucket in sums_of([second, second])] == [{2: 2}, {2: 8}]
    assert [bucket.run_times for bucket in sums_of([second, second])] == [{3: 2}, {}]


async def test_the_rate_of_a_topic_is_that_of_its_partitions(engine: Engine) -> None:
    await put(engine)
    await put(engine, "u", IDS[:10])
    for job in [*await pop(engine, 40), *await pop(engine, 10, "u")]:
        await engine.queue.finish(job.topic, job.id, job.receipt)
    await publish_history(engine)
    rates = await engine.finish_rates.read(["t", "u", "t2"], ["t"], lambda _: True)
    of_t, of_u = rates.of_topic["t"], rates.of_topic["u"]
    assert of_t == pytest.approx(4 * of_u, rel=0.01)
    assert rates.of_topic["t2"] == 0
    assert rates.in_all == pytest.approx(of_t, rel=0.01)
    assert await engine.finish_rates.best_of(["t", "t2"]) == {"t": (0, None), "t2": (0, None)}, "none is complete"
    forget_reads(engine)
    of_all = await engine.finish_rates.read([], None, lambda _: True)
    assert of_all.in_all == pytest.approx(of_t + of_u, rel=0.01)
    visible = await engine.finish_rates.read([], ["*"], lambda topic: topic != "t")
    assert visible.in_all == pytest.approx(of_u, rel=0.01)


async def alerts(engine: Engine) -> list[Alert]:
    forget_reads(engine)
    return (await engine.alerts.now(lambda _: True)).alerts


async def overview(engine: Engine) -> Overview:
    forget_reads(engine)
    return overview_of(await engine.alerts.read(), lambda _: True, sort="topic", offset=0, limit=10)


async def test_the_overview_has_the_sums(engine: Engine) -> None:
    await put(engine, ids=IDS[:25])
    await put(engine, ids=IDS[25:], delay=600)
    await put(engine, "u", IDS[:2])
    for job in (await pop(engine, 9))[:4]:
        await engine.deliveries.bury("t", job.id, ANY_RECEIPT)
    found = await overview(engine)
    assert [(row.topic, row.counts) for row in found.rows] == [
        ("t", (15, 16, 5, 4)),
        ("t2", (0, 0, 0, 0)),
        ("u", (0, 2, 0, 0)),
    ]
    assert (found.matching, found.totals) == (3, (15, 18, 5, 4))
    first = await engine.queue.get("t", IDS[25])
    [of_t, *_] = found.rows
    assert of_t.next_due_ms is not None
    assert of_t.next_due_ms <= first.due_at_ms
    assert of_t.oldest_ready_ms is not None
    now = await engine.alerts.now(lambda _: True)
    assert (now.looked_at, now.next_due_ms) == (3, of_t.next_due_ms)
    assert now.next_due_jobs == 15


async def test_a_topic_has_one_alert(engine: Engine) -> None:
    await engine.topics.set("t", TopicSettings(max_jobs=40))
    await put(engine, ids=[f"n-{number}" for number in range(24)])
    assert engine.clock is not None
    assert [(alert.code, alert.topic, alert.jobs) for alert in await alerts(engine)] == [("no_consumer", "t", 24)]
    engine.consumer_registry.sample = lambda: Sample([SeenConsumer("w", "10.0.0.1", "t", None, 1, 0)])
    assert await alerts(engine) == []
    await engine.clock.advance(120_000)
    [behind] = await alerts(engine)
    assert (behind.code, behind.topic, behind.jobs) == ("behind", "t", 24)
    assert behind.facts["oldest_age_ms"] >= 120_000


async def test_a_topic_that_is_nearly_full_has_one_alert(engine: Engine) -> None:
    await engine.topics.set("t", TopicSettings(max_jobs=100))
    puts = [PutJob(topic="t", id=f"n-{number}", delay=60) for number in range(400)]
    assert [result.status for result in await engine.puts.put_many(puts)].count(201) == 100
    [full] = await alerts(engine)
    assert (full.code, full.severity, full.topic, full.facts) == (
        "topic_full",
        "critical",
        "t",
        {"jobs": 100, "max_jobs": 100},
    )


async def test_attempts_that_fail_in_all_partitions_are_one_alert(engine: Engine) -> None:
    await put(engine)
    for job in await pop(engine, len(IDS)):
        await engine.deliveries.release("t", job.id, job.receipt, delay_ms=600_000, error="KeyError: 'email'")
    await publish_history(engine)
    [failing] = await alerts(engine)
    assert (failing.code, failing.topic, failing.facts["released"]) == ("failing", "t", len(IDS))
    assert (failing.facts["retrying"], failing.facts["exact"]) == (len(IDS), True)
    assert failing.facts["top_error"] == "KeyError: 'email'"


async def test_jobs_of_all_partitions_are_an_overload(engine: Engine) -> None:
    """No partition has as many as a topic must have to be looked at."""
    assert engine.clock is not None
    for _ in range(3):  # the first and the last 5 minutes are not complete
        await put(engine, ids=IDS)
        for job in await pop(engine, len(IDS)):
            await engine.queue.finish("t", job.id, job.receipt)
        await publish_history(engine)
        await engine.clock.advance(300_000)
    forget_reads(engine)
    for at in range(0, 1200, 400):
        await put(engine, ids=[f"n-{number}" for number in range(at, at + 400)], delay=1800)
    [overload] = await alerts(engine)
    assert (overload.code, overload.topic, overload.facts["due"]) == ("overload", "t", 1200)
    assert overload.facts["handled"] == 12 * len(IDS)
    assert overload.facts["handled_at_ms"] is not None
