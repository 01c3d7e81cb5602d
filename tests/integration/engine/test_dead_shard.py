"""A cluster with a shard that cannot be reached: only its own topics fail, and they recover soon after it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from deferd.api.auth.api_keys import Bounds
from deferd.api.auth.quota import Quota
from deferd.api.routes.topics import list_visible
from deferd.contract.errors import RateLimited, StoreUnavailable
from deferd.contract.model import CancelItem, FinishItem, JobState, PutJob, TopicSettings
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine import store_processes, store_watch
from deferd.engine.engine import Engine
from deferd.engine.inspection.consumers import Sample, SeenConsumer
from deferd.engine.notifications import HEARTBEAT_S
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT, JobRecord
from deferd.engine.redis_keys import Keys
from deferd.engine.topic_list import TopicPage
from deferd.engine.topic_search import TopicSelection
from deferd.engine.wait_queue import RETRY_S
from deferd.store import shard_guard
from deferd.store.connection import connect
from deferd.store.preflight import StoreRefused, check
from deferd.store.shard_guard import PROCESSES_KEY
from tests.integration.engine.engine_driver import started_engine
from tests.integration.store.store_servers import ClusterSet, StoreServer
from tests.waiting import BUSY_S, until, wait_until

pytestmark = pytest.mark.slow(seconds=40)

SHARDS = 12
STORE_TIMEOUT_S = 1.0
LONG_STORE_TIMEOUT_S = 20.0
"""Longer than a busy machine stops a process for."""
WOKEN_S = 3 * HEARTBEAT_S + 2 * STORE_TIMEOUT_S
"""The node that hangs may be the one of the engine's subscription."""
SETTLE_S = 30.0
HOW = pytest.mark.parametrize("how", ["kill", "pause"])
KEYS = Keys(SHARDS)


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterSet]:
    with ClusterSet(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def cluster(running_cluster: ClusterSet) -> Iterator[ClusterSet]:
    """A healthy, empty cluster."""
    wait_until(lambda: all(map(is_healthy, running_cluster.masters)), SETTLE_S, "the cluster is healthy")
    for node in running_cluster.masters:
        node.command("FLUSHALL")
    yield running_cluster
    for node in running_cluster.masters:
        bring_back(node)


def is_healthy(node: StoreServer) -> bool:
    info = node.command("CLUSTER INFO")
    return info["cluster_state"] == "ok" and int(info["cluster_slots_ok"]) == 16384


def bring_back(node: StoreServer) -> None:
    if node.running:
        node.unpause()
    else:
        node.start()


class Deployment:
    """An engine over the cluster, topics of each of its nodes, and the node that fails."""

    def __init__(self, cluster: ClusterSet, engine: Engine) -> None:
        self.cluster = cluster
        self.engine = engine
        holder = {shard: cluster.holder_of(KEYS.of_shard(shard, "due")) for shard in range(SHARDS)}
        self.failing = cluster.masters[1]
        self.dead_shards = [shard for shard in range(SHARDS) if holder[shard] is self.failing]
        names = [f"t{number}" for number in range(60)]
        self.dead = [name for name in names if KEYS.shard_of(name) in self.dead_shards]
        self.healthy = [name for name in names if name not in self.dead]

    def fail(self, how: str) -> None:
        if how == "kill":
            self.failing.command("SAVE")  # its data stays
        getattr(self.failing, how)()

    async def until_known(self) -> None:
        """Wait until the engine has noticed the failure, so that later calls do not pay for that."""
        with pytest.raises(StoreUnavailable):
            await self.engine.dispatcher.pop(self.dead[:1])
        assert self.engine.dispatcher._outages.is_topic_down(self.dead[0])

    def waiting_pop(self, *topics: str, **options: object) -> asyncio.Task[list[JobRecord]]:
        return asyncio.create_task(self.engine.dispatcher.pop(topics, **{"wait_ms": 30_000, **options}))  # type: ignore[arg-type]

    async def pop_by_pattern(self, *names: str, **options: object) -> list[JobRecord]:
        selection = TopicSelection(["t*"], names)
        return await self.engine.dispatcher.pop(names, selection=selection, **options)  # type: ignore[arg-type]


@asynccontextmanager
async def deployed(
    cluster: ClusterSet, url: str | None = None, timeout_s: float = STORE_TIMEOUT_S
) -> AsyncIterator[Deployment]:
    async with started_engine(url or cluster.url, timeout_s=timeout_s, shards=SHARDS) as engine:
        yield Deployment(cluster, engine)


@pytest.fixture
async def deployment(cluster: ClusterSet) -> AsyncIterator[Deployment]:
    async with deployed(cluster) as deployment:
        yield deployment


async def put(deployment: Deployment, *topics: str) -> None:
    for topic in topics:
        await deployment.engine.puts.put(PutJob(topic=topic, id=topic))


@HOW
async def test_a_pop_that_names_a_dead_topic_is_served_from_the_others(deployment: Deployment, how: str) -> None:
    dead, healthy = deployment.dead[0], deployment.healthy[0]
    await put(deployment, healthy)
    deployment.fail(how)
    async with asyncio.timeout(3 * STORE_TIMEOUT_S):
        popped = await deployment.engine.dispatcher.pop([dead, healthy], request_id="r1")
        assert [job.topic for job in popped] == [healthy]
        assert await deployment.engine.dispatcher.pop([dead, healthy], request_id="r1") == popped


async def test_pops_that_name_a_dead_topic_share_one_wait_for_it(deployment: Deployment) -> None:
    deployment.fail("pause")
    await deployment.until_known()
    async with asyncio.timeout(10 * STORE_TIMEOUT_S):
        for number, healthy in enumerate(deployment.healthy[:30]):
            await put(deployment, healthy)
            popped = await deployment.engine.dispatcher.pop([*deployment.dead[:3], healthy], request_id=f"r{number}")
            assert [job.topic for job in popped] == [healthy]


@HOW
async def test_a_pop_fails_only_when_none_of_its_topics_can_be_reached(deployment: Deployment, how: str) -> None:
    deployment.fail(how)
    for topics in ([deployment.dead[0]], deployment.dead[:3]):
        for options in ({}, {"wait_ms": 30_000}, {"request_id": "r1"}):
            async with asyncio.timeout(2 * STORE_TIMEOUT_S + 2 * RETRY_S):
                with pytest.raises(StoreUnavailable):
                    await deployment.engine.dispatcher.pop(topics, **options)
    assert await deployment.engine.dispatcher.pop([*deployment.dead[:2], deployment.healthy[0]]) == []


@HOW
async def test_a_waiting_pop_survives_the_outage_and_gets_its_jobs_afterwards(deployment: Deployment, how: str) -> None:
    dead, healthy = deployment.dead[0], deployment.healthy[0]
    waiting = [deployment.waiting_pop(dead, healthy, request_id=f"r{number}") for number in range(3)]
    queues = deployment.engine.dispatcher._wait_queues
    await until(
        lambda: len(queues) == 2 and not any(queue.newcomers or queue.polling for queue in queues.values()), "waiting"
    )
    deployment.fail(how)
    await deployment.until_known()

    await put(deployment, healthy)
    async with asyncio.timeout(WOKEN_S):
        assert [job.topic for job in await waiting[0]] == [healthy]
    assert not any(late.done() for late in waiting[1:])

    await asyncio.to_thread(bring_back, deployment.failing)
    while True:  # until the shard takes puts again
        try:
            await put(deployment, dead)
            break
        except StoreUnavailable:
            await asyncio.sleep(0.01)
    async with asyncio.timeout(2 * STORE_TIMEOUT_S + 2 * RETRY_S):
        assert [job.topic for job in await waiting[1]] == [dead]
    waiting[2].cancel()


@HOW
async def test_a_pop_by_patterns_is_served_from_the_shards_that_can_be_reached(
    deployment: Deployment, how: str
) -> None:
    dead, healthy = deployment.dead[0], deployment.healthy[:2]
    await put(deployment, dead, *healthy)
    deployment.fail(how)
    async with asyncio.timeout(4 * STORE_TIMEOUT_S):
        popped = await deployment.pop_by_pattern(request_id="r1")
        assert [job.topic for job in popped] in ([healthy[0]], [healthy[1]])
        assert await deployment.pop_by_pattern(request_id="r1") == popped
    async with asyncio.timeout(STORE_TIMEOUT_S / 2):  # the failure is known
        assert len(await deployment.pop_by_pattern(request_id="r2")) == 1
        assert await deployment.pop_by_pattern(request_id="r3") == []


async def test_a_topic_of_a_pattern_that_is_back_is_polled_without_a_message(deployment: Deployment) -> None:
    dead = deployment.dead[0]
    await put(deployment, dead)
    deployment.fail("kill")
    await deployment.until_known()
    deployment.engine._notifications._on_ready = lambda *_: None
    deployment.engine._notifications._on_gap = lambda: None
    waiting = asyncio.create_task(deployment.pop_by_pattern(wait_ms=30_000))
    await until(lambda: deployment.engine.dispatcher.waiting.count == 1, "it waits")
    await asyncio.sleep(2 * RETRY_S)
    assert not waiting.done()
    await asyncio.to_thread(deployment.failing.start)
    await asyncio.to_thread(wait_until, lambda: is_healthy(deployment.failing), SETTLE_S, "the node is back")
    async with asyncio.timeout(2 * STORE_TIMEOUT_S + 2 * RETRY_S):
        assert [job.topic for job in await waiting] == [dead]


async def test_a_pop_by_names_and_patterns_fails_only_when_nothing_can_be_reached(deployment: Deployment) -> None:
    for node in deployment.cluster.masters:
        node.pause()
    options: tuple[dict[str, object], ...] = ({}, {"wait_ms": 30_000}, {"request_id": "r1"})
    async with asyncio.timeout(10 * STORE_TIMEOUT_S + 10 * RETRY_S):
        for names in ((), deployment.dead[:2]):
            pops = [deployment.pop_by_pattern(*names, **arguments) for arguments in options]
            results = await asyncio.gather(*pops, return_exceptions=True)
            assert [type(result) for result in results] == [StoreUnavailable] * 3


async def test_many_pops_of_a_dead_shard_send_it_one_call_at_a_time(deployment: Deployment) -> None:
    deployment.fail("pause")
    await deployment.until_known()
    pops = [deployment.waiting_pop(topic) for topic in deployment.dead for _ in range(20)]
    async with asyncio.timeout(3 * STORE_TIMEOUT_S):
        await put(deployment, *deployment.healthy)  # calls to the hanging node do not use up their slots
        results = await asyncio.gather(*pops, return_exceptions=True)
    assert {type(result) for result in results} == {StoreUnavailable}


async def test_calls_to_a_failing_node_delay_no_others(deployment: Deployment) -> None:
    deployment.fail("pause")
    failing = [asyncio.create_task(put(deployment, deployment.dead[0])) for _ in range(300)]
    async with asyncio.timeout(3 * STORE_TIMEOUT_S + BUSY_S):  # one by one they would take 300 times the time-out
        await put(deployment, *deployment.healthy)
        results = await asyncio.gather(*failing, return_exceptions=True)
    assert {type(result) for result in results} == {StoreUnavailable}


async def all_pages(deployment: Deployment, limit: int = 4) -> list[TopicPage]:
    pages = [await deployment.engine.topic_list.page(None, limit)]
    while pages[-1].next_cursor is not None:
        pages.append(await deployment.engine.topic_list.page(pages[-1].next_cursor, limit))
    return pages


@HOW
async def test_the_list_of_topics_shows_what_can_be_read_and_names_the_rest(deployment: Deployment, how: str) -> None:
    await put(deployment, *deployment.dead, *deployment.healthy)
    whole = await all_pages(deployment)
    assert {view.topic for page in whole for view in page.views} == {*deployment.dead, *deployment.healthy}
    assert not any(page.unavailable or page.unreadable for page in whole)
    deployment.fail(how)

    async with asyncio.timeout(20 * STORE_TIMEOUT_S):
        pages = await all_pages(deployment)
    assert sorted(view.topic for page in pages for view in page.views) == sorted(deployment.healthy)
    assert {name for page in pages for name in page.unavailable} == {*deployment.dead}
    assert {shard for page in pages for shard in page.unreadable} == {*deployment.dead_shards}

    of_key = await list_visible(deployment.engine.topic_list, TopicPatterns(["t1*"]), None, 1000)
    assert {view.topic for view in of_key.views} == {name for name in deployment.healthy if name.startswith("t1")}
    assert set(of_key.unavailable) == {name for name in deployment.dead if name.startswith("t1")}


async def test_a_process_that_never_listed_topics_names_those_it_has_used(deployment: Deployment) -> None:
    await put(deployment, *deployment.dead[:3])
    deployment.fail("kill")
    page = await deployment.engine.topic_list.page()
    assert sorted(page.unavailable) == sorted(deployment.dead[:3])


async def test_a_list_fails_when_no_shard_can_be_read(deployment: Deployment) -> None:
    await put(deployment, *deployment.healthy)
    for node in deployment.cluster.masters:
        node.kill()
    with pytest.raises(StoreUnavailable):
        await deployment.engine.topic_list.page()
    with pytest.raises(StoreUnavailable):
        await deployment.engine.ping()


async def test_the_service_is_ready_while_one_shard_is(cluster: ClusterSet) -> None:
    """No ping waits for the node that hangs: all of them together take less than the time-out of a single call."""
    async with deployed(cluster, timeout_s=LONG_STORE_TIMEOUT_S) as deployment:
        deployment.fail("pause")
        async with asyncio.timeout(LONG_STORE_TIMEOUT_S):
            for _ in range(20):
                await deployment.engine.ping()
        bring_back(deployment.failing)


async def test_a_process_starts_while_the_node_with_the_list_of_processes_is_down(cluster: ClusterSet) -> None:
    """A server process that has died is replaced also then, and serves the topics of the other nodes."""
    failing = cluster.holder_of(PROCESSES_KEY)
    failing.kill()
    other = next(node for node in cluster.masters if node is not failing)
    async with deployed(cluster, cluster.url_from(cluster.masters.index(other))) as deployment:
        healthy = next(f"t{number}" for number in range(60) if is_on_other_node(cluster, f"t{number}", failing))
        await put(deployment, healthy)


@pytest.mark.parametrize("has_later", [True, False], ids=["a later release too", "this release only"])
async def test_a_process_that_cannot_read_the_format_refuses_calls_while_a_later_release_may_raise_it(
    cluster: ClusterSet, monkeypatch: pytest.MonkeyPatch, has_later: bool
) -> None:
    monkeypatch.setattr(store_watch, "_UNREAD_S", 2.0)
    monkeypatch.setattr(store_processes, "ANNOUNCE_EVERY_S", 0.1)
    failing = cluster.holder_of(PROCESSES_KEY)
    other = next(node for node in cluster.masters if node is not failing)
    async with deployed(cluster, cluster.url_from(cluster.masters.index(other))) as deployment:
        names = (f"t{number}" for number in range(60))
        healthy = [name for name in names if is_on_other_node(cluster, name, failing)]
        if has_later:
            shown = '{"release":"9.9.0","host":"shop-1","pid":7,"since":1}'
            value = f"{round(time.time() * 1000)} {shard_guard.FORMAT + 1} {shown}"
            failing.command("HSET", PROCESSES_KEY, "later", value)
            await until(deployment.engine.processes.is_one_later, "it is known")
        await put(deployment, healthy[0])
        failing.command("SAVE")  # its data stays
        failing.kill()
        watch = deployment.engine._watch
        if not has_later:
            await until(lambda: time.clock_gettime(store_watch._CLOCK) > watch._read_at_s + 5.0, "it is away for long")
            await put(deployment, healthy[1])
            return
        waiting = deployment.waiting_pop(healthy[2])
        with pytest.raises(StoreUnavailable, match="later format, perhaps: deferd:shards could not be read for 2 s"):
            await waiting
        with pytest.raises(StoreUnavailable, match="processes of a later release use the store"):
            await put(deployment, healthy[3])
        await asyncio.to_thread(bring_back, failing)
        await until(lambda: watch._mismatch is None, "it reads the format again", within_s=SETTLE_S)
        await put(deployment, healthy[3])


def is_on_other_node(cluster: ClusterSet, topic: str, failing: StoreServer) -> bool:
    return cluster.holder_of(KEYS.of_shard(KEYS.shard_of(topic), "due")) is not failing


async def test_a_quota_keeps_counting_without_the_dead_shard(deployment: Deployment) -> None:
    dead, healthy = deployment.dead[0], deployment.healthy[0]
    quota = Quota("key", TopicPatterns(["*"]), Bounds(max_jobs_total=4))

    async def put_one(topic: str) -> None:
        job = PutJob(topic=topic)
        with quota.room_for((job,)):
            await deployment.engine.puts.put(job)
        await quota.count(deployment.engine.usage)

    for topic in (dead, dead, healthy):
        await put_one(topic)
    deployment.fail("kill")
    for _ in range(3):  # there is room for one: finished jobs free space, unreachable ones still count
        await put_one(healthy)
        with pytest.raises(RateLimited):
            await put_one(healthy)
        (job,) = await deployment.engine.dispatcher.pop([healthy])
        await deployment.engine.queue.finish(healthy, job.id, job.receipt)
        await quota.count(deployment.engine.usage)
    totals = await deployment.engine.topic_list.totals([dead, healthy])
    assert totals[KEYS.shard_of(dead)] is None
    of_shard = totals[KEYS.shard_of(healthy)]
    assert of_shard is not None
    assert sum(of_shard.jobs.values()) == 1
    assert of_shard.jobs[JobState.READY] == 1


async def test_jobs_of_the_healthy_shards_become_due_in_time(deployment: Deployment) -> None:
    deployment.fail("pause")
    waiting = [deployment.waiting_pop(topic) for topic in deployment.healthy]
    for topic in deployment.healthy:
        await deployment.engine.puts.put(PutJob(topic=topic, delay=0.3))
    async with asyncio.timeout(WOKEN_S):
        assert [jobs[0].topic for jobs in await asyncio.gather(*waiting)] == deployment.healthy


@HOW
async def test_a_service_starts_with_the_shards_that_can_be_reached(cluster: ClusterSet, how: str) -> None:
    store = await connect(cluster.url, timeout_s=STORE_TIMEOUT_S)
    await check(store, shards=SHARDS)
    await store.close()
    guard = cluster.holder_of("deferd:shards")
    failing = next(node for node in cluster.masters if node is not guard)
    getattr(failing, how)()

    async def start(url: str) -> None:
        store = await connect(url, timeout_s=STORE_TIMEOUT_S)
        await check(store, shards=SHARDS)
        await store.close()
        async with deployed(cluster, url) as deployment:
            healthy = next(
                name
                for name in (*deployment.healthy, *deployment.dead)
                if cluster.holder_of(KEYS.of_topic(name)[0]) is guard
            )
            await deployment.engine.puts.put(PutJob(topic=healthy, on_conflict="keep", id="a"))

    async with asyncio.TaskGroup() as starts:  # from each node that may be queried first
        for number in range(len(cluster.masters)):
            starts.create_task(start(cluster.url_from(number)))


async def test_a_start_without_the_node_of_the_shard_guard_names_it(cluster: ClusterSet) -> None:
    cluster.holder_of("deferd:shards").kill()
    store = await connect(cluster.url, timeout_s=STORE_TIMEOUT_S)
    with pytest.raises(StoreRefused, match="holds the key deferd:shards cannot be reached"):
        await check(store, shards=SHARDS)
    await store.close()


@HOW
async def test_a_batch_with_some_dead_topics_stores_the_others(deployment: Deployment, how: str) -> None:
    deployment.fail(how)
    jobs = [PutJob(topic=topic) for topic in (*deployment.dead, *deployment.healthy)]
    async with asyncio.timeout(3 * STORE_TIMEOUT_S):
        results = await deployment.engine.puts.put_many(jobs)
    assert {result.topic for result in results if result.status == 503} == {*deployment.dead}
    assert {result.topic for result in results if result.status == 201} == {*deployment.healthy}


async def test_bulk_calls_to_a_dead_shard_delay_no_others(deployment: Deployment) -> None:
    deployment.fail("pause")
    dead, healthy = deployment.dead[0], deployment.healthy[0]
    failing = [asyncio.create_task(deployment.engine.puts.put_many([PutJob(topic=dead)] * 60)) for _ in range(20)]
    await asyncio.sleep(0)
    for iteration in range(5):
        jobs = [PutJob(topic=healthy, id=f"{iteration}-{number}") for number in range(60)]
        results = await deployment.engine.puts.put_many(jobs)
        assert {result.status for result in results} == {201}
    assert not any(task.done() for task in failing)
    await asyncio.gather(*failing, return_exceptions=True)


# Inspection

__all__ = ["cluster", "running_cluster"]


async def fill(deployment: Deployment) -> None:
    """One job of each state that is looked at, in a topic of the node that fails and in one of another node."""
    queue = deployment.engine.queue
    for topic in (deployment.dead[0], deployment.healthy[0]):
        await deployment.engine.puts.put(PutJob(topic=topic, id="later", delay=600))
        for job_id in ("dead", "held"):
            await deployment.engine.puts.put(PutJob(topic=topic, id=job_id, ttr=600))
            await queue.pop(topic, [PopRequest(1, consumer="w")])
        await deployment.engine.deliveries.bury(topic, "dead", ANY_RECEIPT, error="x")


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_dead_shard_is_missing_and_named(deployment: Deployment, how: str) -> None:
    await fill(deployment)
    seen = SeenConsumer("w", "10.0.0.1", f"{deployment.dead[0]},{deployment.healthy[0]}", None, 1, 0)
    deployment.engine.consumer_registry.sample = lambda: Sample([seen])
    await deployment.engine.consumer_registry.look()
    engine, healthy = deployment.engine, deployment.healthy[0]
    deployment.fail(how)
    await deployment.until_known()
    async with asyncio.timeout(20):
        dead = await engine.dead_jobs.by_error(None, lambda _: True)
        assert [(one.topic, one.count) for one in dead.groups] == [(healthy, 1)]
        assert dead.unreadable == deployment.dead_shards
        for wanted in (None, [deployment.dead[0], healthy]):
            forecast = await engine.forecasts.forecast(wanted, lambda _: True)
            assert (list(forecast.topics), forecast.total().delayed) == ([healthy], 1)
            assert forecast.unreadable <= set(deployment.dead_shards)
            assert forecast.unreadable
        consumers = await engine.consumers.all(lambda _: True)
        assert [(one.name, one.held) for one in consumers.consumers] == [("w", 1)]
        assert not consumers.is_complete
        now = await engine.alerts.now(lambda _: True)
        unavailable, *_ = now.alerts
        assert (unavailable.code, unavailable.facts) == ("shard_unavailable", {"shards": deployment.dead_shards})
        assert {one.topic for one in now.alerts if one.code == "dying"} == {healthy}
        assert now.next_due_jobs == 1
        assert not now.is_complete
        activity = await engine.consumer_registry.activity_of(healthy)
        assert (activity is None) is (0 in deployment.dead_shards)


async def test_nothing_can_be_reached(deployment: Deployment) -> None:
    for node in deployment.cluster.masters:
        node.pause()
    engine = deployment.engine
    async with asyncio.timeout(30):
        for look in (
            engine.dead_jobs.by_error(None, lambda _: True),
            engine.forecasts.forecast(None, lambda _: True),
            engine.consumers.all(lambda _: True),
            engine.alerts.now(lambda _: True),
            engine.topics.why("t1", "a"),
        ):
            with pytest.raises(StoreUnavailable):
                await look


# Topics with several partitions

SHARDS, PARTITIONS = 12, 6
LONGEST_S = 4 * STORE_TIMEOUT_S
Result = TypeVar("Result")
IDS = [f"job-{number}" for number in range(60)]


@pytest.fixture
def cluster_set(tmp_path: Path) -> Iterator[ClusterSet]:
    with ClusterSet(tmp_path) as cluster:
        yield cluster


@pytest.mark.parametrize("how", ["kill", "pause"])
async def test_a_dead_shard_stops_only_its_own_partitions(cluster_set: ClusterSet, how: str) -> None:
    async with started_engine(cluster_set.url, timeout_s=STORE_TIMEOUT_S, shards=SHARDS) as engine:
        await engine.topics.set("t", TopicSettings(partitions=PARTITIONS))
        await engine.partitions._forget_former("t", engine.partitions.known.layouts["t"])
        await engine.puts.put_many([PutJob(topic="t", id=job_id) for job_id in IDS])
        failing, on_it = node_without_the_first(engine, cluster_set)
        lost = [job_id for job_id in IDS if engine.partitions.known.home("t", job_id) in on_it]
        served = [job_id for job_id in IDS if job_id not in lost]
        assert lost
        getattr(failing, how)()
        popped: dict[str, str] = {}
        for _ in IDS:
            jobs = await within(engine.dispatcher.pop(["t"], count=10))
            popped |= {job.id: str(job.receipt) for job in jobs}
            if len(popped) == len(served):
                break
        assert sorted(popped) == sorted(served)
        finishes = [FinishItem(id=job_id, receipt=popped.get(job_id)) for job_id in IDS]
        finished = await within(engine.queue.finish_many("t", finishes))
        assert [one.status for one in finished] == [503 if one in lost else 200 for one in IDS]
        put = await within(engine.puts.put_many([PutJob(topic="t", id=job_id, delay=3600) for job_id in IDS]))
        assert [one.status for one in put] == [503 if one in lost else 201 for one in IDS]
        cancelled = await within(engine.cancels.cancel_many("t", [CancelItem(id=job_id) for job_id in IDS]))
        assert [one.status for one in cancelled] == [503 if one in lost else 200 for one in IDS]
        with pytest.raises(StoreUnavailable):
            await within(engine.puts.put(PutJob(topic="t", id=lost[0])))
        waiting = asyncio.create_task(engine.dispatcher.pop(["t"], wait_ms=20_000))
        await asyncio.sleep(0.1)
        await engine.puts.put(PutJob(topic="t", id=served[0]))
        assert [job.id for job in await within(waiting)] == [served[0]]
        (failing.start if how == "kill" else failing.unpause)()


def node_without_the_first(engine: Engine, cluster: ClusterSet) -> tuple[StoreServer, set[str]]:
    """A node that has some partitions of the topic, but not the first, and those."""
    keys = engine.queue._keys
    holders = {name: cluster.holder_of(keys.named(name, "pool")) for name in keys.partitions.of("t")}
    failing = next(node for node in holders.values() if node is not holders["t"])
    return failing, {name for name, node in holders.items() if node is failing}


async def within(call: Awaitable[Result]) -> Result:
    began = time.monotonic()
    result = await call
    assert time.monotonic() - began < LONGEST_S
    return result
