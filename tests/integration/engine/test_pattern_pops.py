"""Pops by patterns: which topics serve them, in which order, and what that costs the store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferd.contract.errors import InvalidInput, StoreUnavailable, TopicPushed
from deferd.contract.limits import POP_MATCHES_MAX
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine import pattern_waits
from deferd.engine.engine import Engine
from deferd.engine.queue import JobQueue, PopReply, PopRequest
from deferd.engine.record import ANY_RECEIPT, JobRecord, json_bytes
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.store_copy import copy_store
from deferd.engine.topic_search import FoundTopics, TopicSearch, TopicSelection
from deferd.store.connection import Store, connect
from deferd.store.preflight import check
from tests.drawn_input import drawn
from tests.integration.engine.engine_driver import EngineDriver, make_topics, started_engine
from tests.integration.engine.sweeping import purge_jobs
from tests.integration.store.store_servers import StoreServer
from tests.waiting import BUSY_S, until


def pop_by(
    engine: Engine, *entries: str, allowed: Sequence[str] | None = None, **options: Any
) -> asyncio.Task[list[JobRecord]]:
    """A pop of names and patterns, as the route makes it of its path; it waits unless `options` say otherwise."""
    names = [entry for entry in entries if "*" not in entry]
    patterns = [entry for entry in entries if "*" in entry]
    selection = TopicSelection(patterns, names, None if allowed is None else TopicPatterns(allowed))
    arguments = {"wait_ms": 10_000, **options}
    return asyncio.create_task(engine.dispatcher.pop(names, selection=selection, **arguments))


async def pop_now(engine: Engine, *entries: str, **options: Any) -> list[JobRecord]:
    return await pop_by(engine, *entries, wait_ms=0, **options)


async def put(engine: Engine, topic: str, jobs: int = 1, **fields: object) -> None:
    puts = [PutJob.model_validate({"topic": topic, "id": f"j{number}", **fields}) for number in range(jobs)]
    await engine.puts.put_many(puts)


def waiting(engine: Engine) -> int:
    groups = engine.dispatcher._patterns.groups.values()
    return sum(waiter.stage == "waiting" for group in groups for waiter in group.waiters)


async def all_wait(engine: Engine, count: int) -> None:
    await until(lambda: waiting(engine) == count, f"{count} pops by patterns wait")


async def cancel_all(*tasks: asyncio.Task[list[JobRecord]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def nothing_is_left(engine: Engine) -> bool:
    dispatcher = engine.dispatcher
    return not dispatcher._patterns.groups and not dispatcher._wait_queues and dispatcher.waiting.count == 0


def script_calls(server: StoreServer) -> int:
    stats = server.command("INFO", "commandstats")
    return int(stats.get("cmdstat_fcall", {"calls": 0})["calls"])


async def test_only_topics_that_match_serve_the_pop(engine: Engine) -> None:
    for topic in ("orders", "orders.a", "orders.b.c", "xorders.a", "users.a"):
        await put(engine, topic)
    popped = await pop_now(engine, "orders.*", count=10)
    assert sorted(job.topic for job in popped) == ["orders.a", "orders.b.c"]
    assert sorted(job.topic for job in await pop_now(engine, "*rs*a", count=10)) == ["users.a", "xorders.a"]
    assert [job.topic for job in await pop_now(engine, "*", count=10)] == ["orders"]
    assert await pop_now(engine, "*", count=10) == []
    assert nothing_is_left(engine)


async def test_topics_take_turns_from_one_pop_to_the_next(engine: Engine) -> None:
    for topic, jobs in (("t.busy", 6), ("t.a", 1), ("t.z", 2)):
        await put(engine, topic, jobs)
    served = [(await pop_now(engine, "t.*"))[0].topic for _ in range(9)]
    assert served == ["t.a", "t.busy", "t.z", "t.busy", "t.z", *["t.busy"] * 4]


async def test_other_patterns_do_not_take_the_turn(engine: Engine) -> None:
    for topic in ("t.a", "t.b", "u.a", "u.b"):
        await put(engine, topic, 2)
    served = [(await pop_now(engine, pattern))[0].topic for _ in range(4) for pattern in ("t.*", "u.*")]
    assert served == ["t.a", "u.a", "t.b", "u.b"] * 2


async def test_waiting_pops_get_their_turns_while_a_busy_topic_never_ends(engine: Engine) -> None:
    await put(engine, "t.busy", 500)
    stop = asyncio.Event()

    async def consume() -> Counter[str]:
        served: Counter[str] = Counter()
        while not stop.is_set():
            served.update(job.topic for job in await pop_by(engine, "t.*"))
        return served

    consumers = [asyncio.create_task(consume()) for _ in range(3)]
    for number in range(20):
        await put(engine, f"t.{number}")
    async with asyncio.timeout(BUSY_S):
        while any([(await engine.topics.get(f"t.{number}")).counts[JobState.READY] for number in range(20)]):
            assert (await engine.topics.get("t.busy")).counts[JobState.READY], "the busy topic ended first"
    stop.set()
    await engine.puts.put_many([PutJob(topic="t.end") for _ in consumers])
    served = sum((await asyncio.gather(*consumers)), Counter[str]())
    assert all(served[f"t.{number}"] == 1 for number in range(20))


async def test_a_pop_of_many_jobs_fills_up_from_named_topics_first(engine: Engine) -> None:
    for topic in ("orders.a", "orders.b", "orders.urgent"):
        await put(engine, topic, 3)
    popped = await pop_now(engine, "orders.*", "orders.urgent", count=5, request_id="r1")
    assert Counter(job.topic for job in popped) == {"orders.urgent": 3, "orders.a": 1, "orders.b": 1}
    assert popped == sorted(popped, key=lambda job: job.topic != "orders.urgent")


async def test_the_jobs_of_a_pop_are_shared_among_the_topics(engine: Engine) -> None:
    for topic, jobs in (("t.a", 50), ("t.b", 2), ("t.c", 50)):
        await put(engine, topic, jobs)
    popped = await pop_now(engine, "t.*", count=42)
    assert Counter(job.topic for job in popped) == {"t.a": 20, "t.b": 2, "t.c": 20}
    assert len(await pop_now(engine, "t.*", count=1000)) == 60


async def test_a_pop_takes_from_many_topics_at_once(engine: Engine) -> None:
    await engine.puts.put_many([PutJob(topic=f"t.{number}", id="a") for number in range(60)])
    popped = await pop_now(engine, "t.*", count=1000)
    assert sorted(job.topic for job in popped) == sorted(f"t.{number}" for number in range(60))


async def test_a_pop_of_large_jobs_from_many_topics_is_bounded(engine: Engine) -> None:
    for number in range(20):
        await put(engine, f"t.{number}", body="x" * 700_000)
    popped = await pop_now(engine, "t.*", count=100)
    assert 2 <= len(popped) <= 4
    assert (await engine.topics.get("t.19")).counts[JobState.READY] == 1


async def test_a_topic_that_comes_into_being_joins_a_pop_that_waits(engine: Engine, second: Engine) -> None:
    popping = pop_by(engine, "new.*", count=5)
    await all_wait(engine, 1)
    await put(second, "other")
    await put(second, "new.topic", 2)
    assert [job.topic for job in await popping] == ["new.topic"] * 2
    assert nothing_is_left(engine)


async def test_a_job_that_comes_due_reaches_a_pop_that_waits(engine: Engine) -> None:
    popping = pop_by(engine, "new.*")
    await all_wait(engine, 1)
    await put(engine, "new.topic", delay=0.2)
    assert [job.topic for job in await popping] == ["new.topic"]


async def test_pops_that_wait_are_served_in_the_order_they_came(engine: Engine) -> None:
    tasks = []
    for number in range(40):
        tasks.append(pop_by(engine, "t.*", consumer=f"w{number}"))
        await asyncio.sleep(0)
    await all_wait(engine, 40)
    await put(engine, "t.a", 40)
    popped = [jobs[0] for jobs in await asyncio.gather(*tasks)]
    assert [job.id for job in popped] == [f"j{number}" for number in range(40)]
    assert [job.reserved_by for job in popped] == [f"w{number}" for number in range(40)]


async def test_a_pop_that_waits_for_the_name_is_served_before_those_that_wait_for_a_pattern(engine: Engine) -> None:
    by_pattern = [pop_by(engine, "t.*") for _ in range(3)]
    await all_wait(engine, 3)
    by_name = [asyncio.create_task(engine.dispatcher.pop(["t.a"], wait_ms=10_000)) for _ in range(3)]
    await until(lambda: engine.dispatcher.waiting.count == 6, "all wait")
    for task in by_name:
        await put(engine, "t.a")
        assert len(await task) == 1
        await purge_jobs(engine, "t.a")
    assert not any(task.done() for task in by_pattern)
    await cancel_all(*by_pattern)


async def test_each_of_many_pops_gets_a_job_of_any_topic(engine: Engine, second: Engine) -> None:
    tasks = [pop_by(engine, "t.*", "named") for _ in range(100)]
    await all_wait(engine, 100)
    async with asyncio.timeout(BUSY_S):
        await asyncio.gather(*(put(second, f"t.{number}") for number in range(80)), put(second, "named", 20))
        jobs = [job for jobs in await asyncio.gather(*tasks) for job in jobs]
    assert Counter(job.topic for job in jobs) == {"named": 20} | {f"t.{number}": 1 for number in range(80)}
    assert nothing_is_left(engine)


@pytest.mark.parametrize("outcome", ["nothing", "an error"])
@pytest.mark.parametrize("other", ["t.a", "also"])
async def test_what_is_ready_in_another_topic_while_one_is_polled_is_handed_out_after_that(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, outcome: str, other: str
) -> None:
    popping = pop_by(engine, "named", "also", "t.*")
    await all_wait(engine, 1)
    pop, polled, may_end = JobQueue.pop, asyncio.Event(), asyncio.Event()

    async def pop_slowly(queue: JobQueue, topic: str, requests: Sequence[PopRequest]) -> PopReply:
        if topic != "named":
            return await pop(queue, topic, requests)
        polled.set()
        await may_end.wait()
        if outcome == "an error":
            raise ValueError("of this topic only")
        return await pop(queue, topic, requests)

    monkeypatch.setattr(JobQueue, "pop", pop_slowly)
    engine.dispatcher.on_ready("named")
    async with asyncio.timeout(BUSY_S):
        await polled.wait()
        await put(engine, other)
        await until(lambda: other in engine.dispatcher._looks.lately_ready, "its message has come")
        await asyncio.sleep(0)  # and what it causes in the next turn is done
        may_end.set()
        assert [job.topic for job in await popping] == [other]


@pytest.mark.parametrize("other", ["t.a", "also"])
async def test_a_topic_with_messages_all_the_time_holds_up_no_other_topic_of_the_pop(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """As a paused topic does that gets jobs, or one whose jobs other processes take."""
    popping = pop_by(engine, "named", "also", "t.*")
    await all_wait(engine, 1)
    pop = JobQueue.pop

    async def pop_while_messages_come(queue: JobQueue, topic: str, requests: Sequence[PopRequest]) -> PopReply:
        if topic == "named":
            engine.dispatcher.on_ready(topic)
        return await pop(queue, topic, requests)

    monkeypatch.setattr(JobQueue, "pop", pop_while_messages_come)
    engine.dispatcher.on_ready("named")
    await put(engine, other)
    async with asyncio.timeout(BUSY_S):
        assert [job.topic for job in await popping] == [other]


@pytest.mark.parametrize("error", [TopicPushed("t.a"), ValueError("of this topic only")])
async def test_a_message_during_a_poll_that_fails_is_not_forgotten(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The push of the topic, or what is wrong with it, may have ended after the store's reply."""
    popping = pop_by(engine, "t.*")
    await all_wait(engine, 1)
    pop, polled, may_end = JobQueue.pop, asyncio.Event(), asyncio.Event()

    async def fail_once(queue: JobQueue, topic: str, requests: Sequence[PopRequest]) -> PopReply:
        if polled.is_set():
            return await pop(queue, topic, requests)
        polled.set()
        await may_end.wait()
        raise error

    monkeypatch.setattr(pattern_waits, "_RETRY_S", 60.0)
    monkeypatch.setattr(JobQueue, "pop", fail_once)
    engine.dispatcher.on_ready("t.a")
    async with asyncio.timeout(BUSY_S):
        await polled.wait()
        engine.dispatcher._looks.lately_ready.clear()
        await put(engine, "t.a")
        await until(lambda: "t.a" in engine.dispatcher._looks.lately_ready, "its message has come")
        may_end.set()
        assert [job.topic for job in await popping] == ["t.a"]


async def test_what_a_poll_leaves_serves_another_pop_before_other_polls_for_the_first_one_end(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a call to a shard that hangs."""
    pops = [pop_by(engine, "t.*", count=2) for _ in range(2)]
    await all_wait(engine, 2)
    pop, polled = JobQueue.pop, set[str]()
    may_end = {topic: asyncio.Event() for topic in ("t.a", "t.c")}

    async def pop_slowly(queue: JobQueue, topic: str, requests: Sequence[PopRequest]) -> PopReply:
        polled.add(topic)
        if topic in may_end:
            await may_end[topic].wait()
        return await pop(queue, topic, requests)

    await engine.topics.pause("t.c")
    await put(engine, "t.c", 2)
    await until(lambda: "t.c" in engine.dispatcher._looks.lately_ready, "its message has come")
    await until(lambda: not engine.dispatcher._tasks, "it was polled")
    monkeypatch.setattr(JobQueue, "pop", pop_slowly)
    for topic in ("t.a", "t.b", "t.c"):  # a and c are polled for the first pop, b for the second one
        engine.dispatcher.on_ready(topic)
    try:
        async with asyncio.timeout(BUSY_S):
            await until(lambda: len(polled) == 3 and waiting_idle(engine) == 1, "the second pop found b empty")
            engine.dispatcher._looks.lately_ready.clear()
            await engine.topics.resume("t.c")
            await until(lambda: "t.c" in engine.dispatcher._looks.lately_ready, "its message has come")
            may_end["t.c"].set()
            assert [job.topic for job in await pops[1]] == ["t.c"]
            may_end["t.a"].set()
            assert [job.topic for job in await pops[0]] == ["t.c"]
    finally:
        may_end["t.a"].set()


def waiting_idle(engine: Engine) -> int:
    return sum(not waiter.in_call for group in engine.dispatcher._patterns.groups.values() for waiter in group.waiters)


async def test_a_pop_by_names_and_patterns_waits_for_both(engine: Engine) -> None:
    for topic in ("named", "t.a"):
        popping = pop_by(engine, "named", "t.*")
        await all_wait(engine, 1)
        await put(engine, topic)
        assert [job.topic for job in await popping] == [topic]
    assert nothing_is_left(engine)


async def test_what_a_key_may_not_pop_does_not_count(engine: Engine) -> None:
    for topic in ("t.a", "t.b", "t.c", "u.a"):
        await put(engine, topic)
    assert [job.topic for job in await pop_now(engine, "t.*", count=9, allowed=["t.b", "u.*"])] == ["t.b"]
    popping = pop_by(engine, "*", allowed=["t.b", "u.*.x"])
    await all_wait(engine, 1)
    await put(engine, "t.c", 2)
    await put(engine, "u.1.x")
    assert [job.topic for job in await popping] == ["u.1.x"]
    assert Counter(job.topic for job in await pop_now(engine, "*", count=9)) == {"t.a": 1, "t.c": 2, "u.a": 1}


@drawn(150)
@given(
    topics=st.sets(st.text("ab.", min_size=1, max_size=6).filter(lambda name: name[0] != "."), max_size=12),
    patterns=st.lists(st.text("ab.*", min_size=1, max_size=6), min_size=1, max_size=3, unique=True),
    allowed=st.none() | st.lists(st.text("ab*", min_size=1, max_size=4), min_size=1, max_size=2),
    page=st.integers(1, 4),
)
def test_the_store_finds_exactly_the_topics_that_match(
    server: StoreServer, topics: set[str], patterns: list[str], allowed: list[str] | None, page: int
) -> None:
    selection = TopicSelection(patterns, sorted(topics)[:1], None if allowed is None else TopicPatterns(allowed))
    server.command("FLUSHALL")
    for number, topic in enumerate(sorted(topics)):
        server.command("ZADD", "deferd:{0}:topics", 0, topic)
        server.command("HSET", "deferd:{0}:settings", topic, '{"p":1}' if number % 5 == 4 else "")
        for job in range(number % 3):
            server.command("ZADD", f"deferd:{{0}}:{topic}:ready", job, f"j{job}")

    async def search() -> FoundTopics:
        store = await connect(server.url, timeout_s=5)
        selection_arguments = selection.arguments
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(TopicSelection, "arguments", lambda _: (page, selection_arguments()[1]))
                return await TopicSearch(Scripts(store), Keys(1)).ready(selection, [0])
        finally:
            await store.close()

    found = asyncio.run(search())
    matching = [topic for topic in sorted(topics) if selection.match(topic)]
    ready = {topic: number % 3 for number, topic in enumerate(sorted(topics)) if number % 3 and number % 5 != 4}
    assert (found.matching, found.errors, found.is_complete) == (len(matching), {}, True)
    assert found.ready == {topic: ready[topic] for topic in matching if topic in ready}


async def test_a_paused_topic_serves_nothing_until_it_is_resumed(engine: Engine) -> None:
    await put(engine, "t.a")
    await engine.topics.set("t.a", TopicSettings(ttr=5))
    await engine.topics.pause("t.a")
    popping = pop_by(engine, "t.*")
    await all_wait(engine, 1)
    await engine.topics.resume("t.a")
    assert [job.topic for job in await popping] == ["t.a"]


async def test_more_topics_than_a_pop_may_have_are_refused(engine: Engine, server: StoreServer) -> None:
    make_topics(server, [f"t.{number}" for number in range(POP_MATCHES_MAX - 1)])
    assert await pop_now(engine, "t.*", "t.more") == []
    await put(engine, "t.more")  # named: it counts once
    assert [job.topic for job in await pop_now(engine, "t.*", "t.more")] == ["t.more"]
    await put(engine, "t.even.more", 2)
    with pytest.raises(InvalidInput, match="names or matches 1001 topics, but a pop is of at most 1000") as refused:
        await pop_by(engine, "t.*")
    assert refused.value.field_errors[0].value == POP_MATCHES_MAX + 1
    assert len(await pop_now(engine, "t.*", allowed=["t.1*", "t.e*"])) == 1
    assert (await engine.topics.get("t.even.more")).counts[JobState.READY] == 1
    assert nothing_is_left(engine)


async def test_counting_topics_ends_when_they_are_far_too_many(engine: Engine, server: StoreServer) -> None:
    make_topics(server, [f"t.{number}" for number in range(14_000)])
    with pytest.raises(InvalidInput, match="matches at least 10000 topics"):
        await pop_now(engine, "t.*")
    assert await pop_now(engine, "*.7*7") == []


# A repeated request


async def test_a_repeated_pop_gets_the_same_jobs_although_the_topics_are_empty(engine: Engine, second: Engine) -> None:
    for topic in ("t.a", "t.b", "named"):
        await put(engine, topic, 2)
    first = await pop_now(engine, "t.*", "named", count=10, request_id="r1")
    assert len(first) == 6
    await put(engine, "t.c")
    again = await pop_now(second, "t.*", "named", count=10, request_id="r1")
    assert sorted((job.topic, job.id, job.receipt) for job in again) == sorted(
        (job.topic, job.id, job.receipt) for job in first
    )
    assert [job.topic for job in await pop_now(second, "t.*", "named", count=10, request_id="r2")] == ["t.c"]


async def test_a_request_is_forgotten_with_its_last_job(engine: Engine, server: StoreServer) -> None:
    for topic in ("t.a", "t.b"):
        await put(engine, topic, 2)
    for job in await pop_now(engine, "t.*", count=10, request_id="r1"):
        assert server.command("KEYS", "*request/*")
        await engine.queue.finish(job.topic, job.id, ANY_RECEIPT)
    assert server.command("KEYS", "*request*") == []
    assert await pop_now(engine, "t.*", count=10, request_id="r1") == []


async def test_a_repeated_pop_gets_no_jobs_of_topics_that_do_not_count_any_more(engine: Engine) -> None:
    for topic in ("t.a", "t.b"):
        await put(engine, topic)
    assert len(await pop_now(engine, "t.*", count=10, request_id="r1")) == 2
    again = await pop_now(engine, "t.*", count=10, request_id="r1", allowed=["t.b"])
    assert [job.topic for job in again] == ["t.b"]


async def test_a_pop_is_repeated_on_a_copy_of_the_store(
    driver: EngineDriver, store: Store, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await check(store, shards=1)
    topics = [f"t.{number}" for number in range(8)]
    for topic in topics:
        await put(driver.engine, topic)
    first = await pop_now(driver.engine, "t.*", count=10, request_id="r1")
    driver.server.command("DEL", "deferd:{0}:clock")
    with StoreServer(tmp_path_factory.mktemp("copy")) as server:
        target = await connect(server.url, timeout_s=5)
        assert (await copy_store(store, target, shards=5)).adds_up
        async with started_engine(server.url, shards=5) as engine:
            again = await pop_now(engine, "t.*", count=10, request_id="r1")
        await target.close()
    assert sorted(job.topic for job in again) == topics
    assert {(job.topic, job.receipt) for job in again} == {(job.topic, job.receipt) for job in first}


# Clients that disconnect, and stores that fail


@pytest.mark.parametrize("pause_s", [0, 0.0005, 0.001, 0.002, 0.004])
async def test_jobs_of_a_cancelled_pop_return_to_their_queues(engine: Engine, pause_s: float) -> None:
    for number in range(20):
        await put(engine, f"t.{number}")
    delivered: list[JobRecord] = []
    for attempt in range(10):
        popping = pop_by(engine, "t.*", "named", count=20, request_id=f"r{attempt}" if attempt % 2 else None)
        await asyncio.sleep(pause_s * (attempt % 3 + 1))
        await cancel_all(popping)
        delivered += [] if popping.cancelled() else popping.result()
    while engine.dispatcher._tasks:
        await asyncio.gather(*engine.dispatcher._tasks)
    popped = await pop_now(engine, "t.*", count=100)
    assert len(popped) + len(delivered) == 20
    assert all(job.attempts == 1 for job in popped)
    assert nothing_is_left(engine)


async def test_a_cancelled_pop_does_not_stop_the_others(engine: Engine) -> None:
    tasks = [pop_by(engine, "t.*") for _ in range(10)]
    await all_wait(engine, 10)
    await cancel_all(*tasks[:5])
    await put(engine, "t.a", 5)
    assert len(await asyncio.gather(*tasks[5:])) == 5


async def test_draining_ends_pops_that_wait(engine: Engine) -> None:
    tasks = [pop_by(engine, "t.*"), pop_by(engine, "named", "t.*")]
    await all_wait(engine, 2)
    engine.drain()
    assert await asyncio.gather(*tasks) == [[], []]
    await put(engine, "t.a")
    assert [job.topic for job in await pop_by(engine, "t.*")] == ["t.a"]


async def test_a_store_that_fails_ends_the_pops_with_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    with StoreServer(tmp_path_factory.mktemp("store")) as server:
        store = await connect(server.url, timeout_s=0.5)
        engine = Engine(store)
        await engine.start()
        tasks = [pop_by(engine, "t.*"), pop_by(engine, "named", "t.*")]
        await all_wait(engine, 2)
        server.stop()
        async with asyncio.timeout(BUSY_S):
            errors = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in errors] == [StoreUnavailable] * 2
        with pytest.raises(StoreUnavailable):
            await pop_now(engine, "t.*")
        assert nothing_is_left(engine)
        await engine.close()
        await store.close()


@pytest.mark.parametrize("names", [(), ("named",)])
async def test_a_store_that_refuses_to_write_ends_the_pops_with_an_error(
    driver: EngineDriver, names: tuple[str, ...]
) -> None:
    """Searches succeed on such a store. This engine gets no messages."""
    engine, server = driver.engine, driver.server
    popping = pop_by(engine, "t.*")
    await all_wait(engine, 1)
    await put(engine, "t.a")
    server.command("CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        async with asyncio.timeout(BUSY_S):
            engine.dispatcher.on_ready("t.a")
            with pytest.raises(StoreUnavailable):
                await popping
            with pytest.raises(StoreUnavailable):
                await pop_now(engine, "t.*", *names)
    finally:
        server.command("CONFIG", "SET", "min-replicas-to-write", "0")
    async with asyncio.timeout(BUSY_S):
        assert [job.topic for job in await pop_by(engine, "t.*", *names)] == ["t.a"]


@pytest.mark.parametrize(
    "damage",
    [("SET", "deferd:{0}:t.bad:pool", "x"), ("SET", "deferd:{0}:t.bad:ready", "x")]
    + [("HSET", "deferd:{0}:settings", "t.bad", text) for text in ("{", "1", '{"p":"x"}')],
)
async def test_a_damaged_topic_does_not_stop_the_others(
    engine: Engine, server: StoreServer, damage: tuple[str, ...]
) -> None:
    await put(engine, "t.bad")
    server.command(*damage)
    popping = pop_by(engine, "t.*", "t.named")
    if damage[-1] != '{"p":"x"}':  # which is not paused
        await all_wait(engine, 1)
        await put(engine, "t.good")
        assert [job.topic for job in await popping] == ["t.good"]
    else:
        assert [job.topic for job in await popping] == ["t.bad"]


async def test_what_came_while_messages_were_lost_is_found(driver: EngineDriver) -> None:
    """This engine gets no messages; `on_gap` is what it is called when they may have been lost."""
    engine = driver.engine
    popping = pop_by(engine, "t.*")
    await all_wait(engine, 1)
    await put(engine, "t.a")
    engine.dispatcher.on_gap()
    assert [job.topic for job in await popping] == ["t.a"]


async def test_an_unexpected_error_of_a_search_leaves_nobody_waiting(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TopicSelection, "ranges", lambda _: 1 / 0)
    async with asyncio.timeout(BUSY_S):
        results = await asyncio.gather(*(pop_by(engine, "t.*") for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [ZeroDivisionError] * 3
    monkeypatch.undo()
    await put(engine, "t.a")
    assert len(await pop_now(engine, "t.*")) == 1


async def test_a_search_that_fails_after_lost_messages_is_made_again(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = driver.engine
    popping = pop_by(engine, "t.*")
    await all_wait(engine, 1)
    await put(engine, "t.a")
    ready, searched = TopicSearch.ready, asyncio.Event()

    async def fail_once(search: TopicSearch, selection: TopicSelection, shards: Collection[int]) -> FoundTopics:
        if searched.is_set():
            return await ready(search, selection, shards)
        searched.set()
        raise ZeroDivisionError

    monkeypatch.setattr(pattern_waits, "_RETRY_S", 0.0)
    monkeypatch.setattr(TopicSearch, "ready", fail_once)
    engine.dispatcher.on_gap()
    async with asyncio.timeout(BUSY_S):
        assert [job.topic for job in await popping] == ["t.a"]
    assert searched.is_set()


async def test_pops_that_wait_for_a_thousand_topics_cause_no_store_calls(engine: Engine, server: StoreServer) -> None:
    make_topics(server, [f"t.{number}" for number in range(POP_MATCHES_MAX)])
    before = script_calls(server)
    tasks = [pop_by(engine, "t.*", request_id=f"r{number}") for number in range(100)]
    await all_wait(engine, 100)
    assert script_calls(server) - before <= 10  # they share look-ups of their request ids, and searches
    before = script_calls(server)
    await asyncio.sleep(0.3)
    assert script_calls(server) - before <= 2  # those of the timer
    await put(engine, "t.500")
    await until(lambda: any(task.done() for task in tasks), "a pop has the job")
    assert script_calls(server) - before <= 2 + 3
    await cancel_all(*tasks)
    assert nothing_is_left(engine)


async def limit(engine: Engine, topic: str, **limits: Any) -> None:
    """Set the limits of a topic, as the store has them."""
    settings = json_bytes({"li": limits})
    await engine._scripts.run("topic_set", engine._keys.of_topic(topic), (topic, "settings", settings, ""))


async def test_a_pop_waits_at_a_limited_topic_without_calls_until_a_finish(engine: Engine, server: StoreServer) -> None:
    await limit(engine, "t.a", n=1)
    await put(engine, "t.a", jobs=3)
    [held] = await pop_now(engine, "t.*", count=10)
    popping = [pop_by(engine, "t.*") for _ in range(3)]
    await all_wait(engine, 3)
    before = script_calls(server)
    await asyncio.sleep(0.3)
    assert script_calls(server) - before <= 2  # those of the timer
    before = script_calls(server)
    for _ in range(10):
        assert await pop_now(engine, "t.*") == []
    assert script_calls(server) - before <= 10 + 2  # searches, which do not find the topic
    await engine.queue.finish("t.a", held.id, held.receipt)
    done, _ = await asyncio.wait(popping, timeout=BUSY_S, return_when=asyncio.FIRST_COMPLETED)
    assert [job.id for task in done for job in task.result()] == ["j1"]
    await all_wait(engine, 2)
    await cancel_all(*popping)
    assert nothing_is_left(engine)


async def test_a_search_finds_plain_jobs_beside_limited_ones(engine: Engine) -> None:
    async def found() -> dict[str, int]:
        return dict((await engine.dispatcher._patterns._search.ready(TopicSelection(["t.*"]), [0])).ready)

    await limit(engine, "t.a", g={"n": 1})
    await put(engine, "t.a", jobs=3, group="g")
    assert await found() == {"t.a": 3}
    [held] = await pop_now(engine, "t.*", count=10)
    assert await found() == {}
    await engine.puts.put(PutJob(topic="t.a", id="plain"))
    assert await found() == {"t.a": 1}
    await limit(engine, "t.a", n=1, g={"n": 1})
    assert await found() == {}
    await engine.queue.finish("t.a", held.id, held.receipt)
    assert await found() == {"t.a": 3}
    assert len(await pop_now(engine, "t.*", count=10)) == 1
