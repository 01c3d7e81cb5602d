"""Consumers that wait: order, priority, disconnects, and no store call without a reason."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence

import pytest

from deferd.contract.errors import StoreUnavailable, TopicPushed
from deferd.contract.model import PutJob
from deferd.engine import dispatcher
from deferd.engine.engine import Engine
from deferd.engine.queue import PopReply, PopRequest
from deferd.engine.record import JobRecord
from deferd.engine.topic_search import TopicSelection
from deferd.store.connection import connect
from tests.integration.engine.engine_driver import TOPIC, job
from tests.integration.store.store_servers import StoreServer
from tests.waiting import BUSY_S, until


def waiting_pop(engine: Engine, *topics: str, **options: object) -> asyncio.Task[list[JobRecord]]:
    arguments = {"wait_ms": 10_000, **options}
    return asyncio.create_task(engine.dispatcher.pop(topics or (TOPIC,), **arguments))  # type: ignore[arg-type]


async def all_wait(engine: Engine, count: int) -> None:
    """Wait until `count` consumers have been polled for and wait."""
    queues = engine.dispatcher._wait_queues
    await until(
        lambda: sum(waiter.stage == "waiting" for queue in queues.values() for waiter in queue.waiters) >= count,
        f"{count} consumers wait",
    )


def store_calls(server: StoreServer) -> int:
    stats = server.command("INFO", "commandstats")
    return int(stats.get("cmdstat_fcall", {"calls": 0})["calls"])


async def test_a_pop_of_an_empty_topic_ends_after_its_wait(engine: Engine) -> None:
    assert await engine.dispatcher.pop([TOPIC], wait_ms=0) == []
    assert await engine.dispatcher.pop([TOPIC], wait_ms=30) == []
    assert engine.dispatcher._wait_queues == {}


async def test_a_waiting_consumer_gets_a_job_put_by_another_process(engine: Engine, second: Engine) -> None:
    waiting = waiting_pop(engine)
    await all_wait(engine, 1)
    await second.puts.put(job())
    assert [popped.id for popped in await waiting] == ["a"]


async def test_waiters_are_served_in_the_order_they_came(engine: Engine) -> None:
    waiting = []
    for number in range(40):
        waiting.append(waiting_pop(engine, consumer=f"w{number}"))
        await asyncio.sleep(0)
    await all_wait(engine, 40)
    await engine.puts.put_many([job(f"j{number}") for number in range(40)])
    popped = [jobs[0] for jobs in await asyncio.gather(*waiting)]
    assert [found.id for found in popped] == [f"j{number}" for number in range(40)]
    assert [found.reserved_by for found in popped] == [f"w{number}" for number in range(40)]


async def test_a_topic_that_is_back_is_polled_without_a_message(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if its shard of a cluster had failed, with a job that was ready already; see test_dead_shard.py."""
    pop, dead = engine.queue.pop, {"dead"}

    async def pop_unless_dead(topic: str, requests: Sequence[PopRequest]) -> PopReply:
        if topic in dead:
            raise StoreUnavailable("away")
        return await pop(topic, requests)

    monkeypatch.setattr(engine.dispatcher._outages, "domain_of", lambda topic: int(topic == "dead"))
    monkeypatch.setattr(engine.queue, "pop", pop_unless_dead)
    await engine.puts.put(PutJob(topic="dead", id="a"))
    waiting = waiting_pop(engine, "dead", "healthy")
    await until(lambda: engine.dispatcher._outages.is_down(1), "the failure is known")
    dead.clear()
    assert [popped.id for popped in await waiting] == ["a"]


class SlowPolls:
    """Lets polls of a topic hang until `may_end` is set; then they raise `error`."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch, slow_topic: str, error: Exception) -> None:
        self.began, self.may_end = asyncio.Event(), asyncio.Event()
        pop = engine.queue.pop

        async def pop_slowly(topic: str, requests: Sequence[PopRequest]) -> PopReply:
            if topic != slow_topic:
                return await pop(topic, requests)
            self.began.set()
            await self.may_end.wait()
            raise error

        monkeypatch.setattr(engine.queue, "pop", pop_slowly)


@pytest.mark.parametrize("error", [ValueError("of this topic only"), StoreUnavailable("away")])
async def test_a_pop_whose_wait_ends_during_a_poll_that_fails_ends_with_that_poll(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """As if a shard of a cluster failed, or one of its topics, at the end of a wait."""
    monkeypatch.setattr(engine.dispatcher._outages, "domain_of", lambda topic: int(topic == "failing"))
    waiting = waiting_pop(engine, "failing", "healthy")
    await all_wait(engine, 1)
    polls = SlowPolls(engine, monkeypatch, "failing", error)
    engine.dispatcher.on_ready("failing")
    async with asyncio.timeout(BUSY_S):
        await polls.began.wait()
        for waiter in engine.dispatcher.waiting.all():
            engine.dispatcher._time_out(waiter)
        polls.may_end.set()
        assert await waiting == []


async def test_a_pop_learns_that_its_topic_is_pushed_though_another_was_polled_when_others_learned_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = waiting_pop(engine, "slow", "pushed")
    other = waiting_pop(engine, "pushed")
    await all_wait(engine, 2)
    polls = SlowPolls(engine, monkeypatch, "slow", ValueError("of this topic only"))
    pop = engine.queue.pop

    async def pop_unless_pushed(topic: str, requests: Sequence[PopRequest]) -> PopReply:
        if topic == "pushed":
            raise TopicPushed(topic)
        return await pop(topic, requests)

    monkeypatch.setattr(engine.queue, "pop", pop_unless_pushed)
    engine.dispatcher.on_ready("slow")
    async with asyncio.timeout(BUSY_S):
        await polls.began.wait()
        engine.dispatcher.on_ready("pushed")
        with pytest.raises(TopicPushed):
            await other
        polls.may_end.set()
        with pytest.raises(TopicPushed):
            await waiting


async def test_a_topic_that_fails_is_not_polled_more_often_for_every_message_that_came(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry_s = 0.2
    monkeypatch.setattr(dispatcher, "_RETRY_S", retry_s)
    pop, polled_s, now_s = engine.queue.pop, list[float](), asyncio.get_running_loop().time

    async def pop_or_fail(topic: str, requests: Sequence[PopRequest]) -> PopReply:
        if topic != "failing":
            return await pop(topic, requests)
        polled_s.append(now_s())
        raise ValueError("of this topic only")

    async def until_polled(times: int) -> None:
        wanted = len(polled_s) + times
        await until(lambda: len(polled_s) >= wanted, "the topic is polled again")

    monkeypatch.setattr(engine.queue, "pop", pop_or_fail)
    waiting = waiting_pop(engine, "failing", "healthy", wait_ms=60_000)
    await all_wait(engine, 1)
    for _ in range(20):
        engine.dispatcher.on_ready("failing")
        await until_polled(1)
    await until_polled(4)
    assert polled_s[-1] - polled_s[-4] >= 3 * retry_s * 0.9
    await cancel_all(waiting)


async def test_each_failure_of_a_shard_costs_a_pop_of_many_of_its_topics_little(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    domains_read = 0

    def domain_of(topic: str) -> int:
        nonlocal domains_read
        domains_read += 1
        return int(topic != "healthy")

    monkeypatch.setattr(engine.dispatcher._outages, "domain_of", domain_of)
    waiting = waiting_pop(engine, *(f"t{number}" for number in range(300)), "healthy")
    await all_wait(engine, 1)
    domains_read = 0
    for _ in range(2):
        engine.dispatcher._on_outage_failure(1, StoreUnavailable("away"))
    assert domains_read <= 10 * 300, "it is not read for each topic of each topic"
    await engine.puts.put(PutJob(topic="healthy", id="a"))
    assert [popped.id for popped in await waiting] == ["a"]


async def test_a_single_job_goes_to_the_longest_waiter(engine: Engine) -> None:
    first = waiting_pop(engine)
    await all_wait(engine, 1)
    others = [waiting_pop(engine) for _ in range(20)]
    await all_wait(engine, 21)
    await engine.puts.put(job())
    assert [popped.id for popped in await first] == ["a"]
    assert not any(other.done() for other in others)


async def test_a_newcomer_never_overtakes_those_who_wait(engine: Engine) -> None:
    """Forty consumers wait; seventeen jobs and six newcomers arrive at the same time, more than one call serves."""
    for iteration in range(30):
        waiting = []
        for number in range(40):
            waiting.append(waiting_pop(engine, consumer=f"w{number}"))
            await asyncio.sleep(0)
        await all_wait(engine, 40)
        putting = asyncio.create_task(engine.puts.put_many([job(f"{iteration}-{number}") for number in range(17)]))
        for _ in range(iteration % 10):  # they arrive at any moment of the put and of the pops that it causes
            await asyncio.sleep(0.0002 if iteration % 3 else 0)
        request_ids: list[dict[str, object]] = [{}, {"request_id": f"r{iteration}"}]
        newcomers = [waiting_pop(engine, consumer=f"n{number}", **request_ids[number % 2]) for number in range(6)]
        await putting
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        served = sorted(await asyncio.gather(*waiting[:17]), key=lambda jobs: int(jobs[0].id.partition("-")[2]))
        assert [jobs[0].reserved_by for jobs in served] == [f"w{number}" for number in range(17)]
        assert not any(late.done() for late in (*waiting[17:], *newcomers))
        await all_wait(engine, 29)
        await cancel_all(*waiting, *newcomers)


async def cancel_all(*tasks: asyncio.Task[list[JobRecord]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_newcomer_that_repeats_a_request_gets_its_jobs_at_once(engine: Engine) -> None:
    await engine.puts.put(job("a"))
    first = await engine.dispatcher.pop([TOPIC], request_id="r1")
    waiting = [waiting_pop(engine) for _ in range(40)]
    await all_wait(engine, 40)
    async with asyncio.timeout(BUSY_S):
        assert await engine.dispatcher.pop([TOPIC], wait_ms=10_000, request_id="r1") == first
    assert not any(late.done() for late in waiting)
    await cancel_all(*waiting)


async def test_newcomers_to_a_long_queue_cost_few_store_calls(engine: Engine, server: StoreServer) -> None:
    waiting = [waiting_pop(engine) for _ in range(2_000)]
    await all_wait(engine, 2_000)
    before = store_calls(server)
    newcomers = [waiting_pop(engine, request_id=f"r{number}" if number % 2 else None) for number in range(1_000)]
    await all_wait(engine, 3_000)
    assert store_calls(server) - before < 15
    await cancel_all(*waiting, *newcomers)


async def test_a_pop_of_many_topics_keeps_its_place_in_each(engine: Engine) -> None:
    """Its second topic is polled for it only after a later consumer of that topic alone."""
    first = waiting_pop(engine, "a", "b", consumer="first")
    later = [waiting_pop(engine, "b", consumer=f"later{number}") for number in range(3)]
    await all_wait(engine, 4)
    await engine.puts.put(PutJob(topic="b", id="x"))
    assert [found.id for found in await first] == ["x"]
    assert not any(one.done() for one in later)
    await cancel_all(*later)


async def test_pops_by_patterns_share_a_poll_of_a_topic_that_has_jobs_for_all(
    engine: Engine, server: StoreServer
) -> None:
    await engine.puts.put_many([job(f"j{number}") for number in range(60)])
    before = store_calls(server)
    selection = TopicSelection(["*"])
    popped = await asyncio.gather(*(engine.dispatcher.pop([], selection=selection) for _ in range(60)))
    assert sorted(one.id for [one] in popped) == sorted(f"j{number}" for number in range(60))
    # A poll, and searches before it and again once the store knows their script; and calls of the timer.
    assert store_calls(server) - before <= 3 + 3


async def test_waiting_consumers_cause_no_store_calls(engine: Engine, server: StoreServer) -> None:
    tasks = [waiting_pop(engine, f"t{number}") for number in range(50)]
    await all_wait(engine, 50)
    before, began_s = store_calls(server), time.monotonic()
    await asyncio.sleep(0.3)  # only elapsed time shows that there are no calls
    assert store_calls(server) - before <= 2 + (time.monotonic() - began_s)  # the timer's tick, once a second
    engine.drain()
    await asyncio.gather(*tasks)


async def test_many_waiters_are_served_with_few_store_calls(engine: Engine, server: StoreServer) -> None:
    tasks = [waiting_pop(engine) for _ in range(500)]
    await all_wait(engine, 500)
    before = store_calls(server)
    await engine.puts.put_many([job(f"j{number}") for number in range(500)])
    assert len({jobs[0].id for jobs in await asyncio.gather(*tasks)}) == 500
    assert store_calls(server) - before < 60


async def test_no_job_of_a_later_topic_overtakes_one_that_did_not_fit(engine: Engine) -> None:
    large = "x" * 600_000
    for number in range(2):
        await engine.puts.put(PutJob(topic="high", id=f"h{number}", body=large))
    await engine.puts.put(PutJob(topic="low", id="l"))
    popped = [await engine.dispatcher.pop(["high", "low"], count=4, wait_ms=1000) for _ in range(2)]
    assert [["h0"], ["h1", "l"]] == [[found.id for found in jobs] for jobs in popped]


async def test_large_jobs_of_many_topics_come_in_several_pops(engine: Engine) -> None:
    topics = [f"t{number}" for number in range(6)]
    for topic in topics:
        await engine.puts.put(PutJob(topic=topic, body="x" * 600_000))
    popped = [await engine.dispatcher.pop(topics, count=100, wait_ms=1000) for _ in range(3)]
    assert [topics[:2], topics[2:4], topics[4:]] == [[found.topic for found in jobs] for jobs in popped]


async def test_a_request_repeated_for_many_topics_at_once_gets_no_more_than_a_new_one(engine: Engine) -> None:
    topics = [f"t{number}" for number in range(6)]
    for topic in topics:
        await engine.puts.put(PutJob(topic=topic, body="x" * 600_000))
        assert 1 == len(await engine.dispatcher.pop([topic], request_id="r"))
    assert 2 == len(await engine.dispatcher.pop(topics, count=100, request_id="r"))


async def test_a_pop_that_is_cut_short_by_the_shutdown_logs_nothing(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: logged.append(context))
    asked, ended = asyncio.Event(), asyncio.Event()

    async def hang(*_args: object) -> None:
        asked.set()
        await ended.wait()

    with monkeypatch.context() as patched:
        patched.setattr(engine.queue, "pop", hang)
        waiting = waiting_pop(engine, "a", "b", request_id="r")
        await asked.wait()  # it checks for an earlier reply
        waiting.cancel()
        closing = asyncio.create_task(engine.dispatcher.close())
        await asyncio.sleep(0)
        ended.set()  # it waits for the calls under way
        await closing
        await asyncio.wait((waiting,))
    del waiting
    await asyncio.sleep(0)  # so that no callback keeps it
    gc.collect()
    assert logged == []


async def test_a_waiter_is_served_by_the_first_of_its_topics_that_has_a_job(engine: Engine) -> None:
    for topic in ("a", "b", "c"):
        waiting = waiting_pop(engine, "a", "b", "c")
        await all_wait(engine, 1)
        await engine.puts.put(PutJob(topic=topic, id="x"))
        assert [found.topic for found in await waiting] == [topic]
        assert engine.dispatcher._wait_queues == {}


async def test_a_waiter_on_many_topics_is_served_once(engine: Engine) -> None:
    waiting = [waiting_pop(engine, "a", "b") for _ in range(20)]
    await all_wait(engine, 20)
    batch = [PutJob(topic=topic, id=f"{topic}{number}") for number in range(10) for topic in ("a", "b")]
    await engine.puts.put_many(batch)
    results = await asyncio.gather(*waiting)
    assert [len(jobs) for jobs in results] == [1] * 20
    assert len({(jobs[0].topic, jobs[0].id) for jobs in results}) == 20


async def test_large_requests_on_an_empty_topic_stop_polling(engine: Engine, server: StoreServer) -> None:
    waiting = [waiting_pop(engine, count=1000) for _ in range(5)]
    await all_wait(engine, 5)
    before, began_s = store_calls(server), time.monotonic()
    await asyncio.sleep(0.1)  # otherwise they would poll without a pause
    assert store_calls(server) - before <= 1 + (time.monotonic() - began_s)  # the timer's tick, once a second
    await engine.puts.put_many([job(f"j{number}") for number in range(10)])
    assert len(await waiting[0]) == 10
    engine.drain()
    assert [len(jobs) for jobs in await asyncio.gather(*waiting[1:])] == [0] * 4


async def test_a_consumer_that_disconnects_while_waiting_strands_no_job(engine: Engine) -> None:
    gone = waiting_pop(engine)
    await all_wait(engine, 1)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    await engine.puts.put(job())
    (popped,) = await engine.dispatcher.pop([TOPIC], wait_ms=1000)
    assert popped.attempts == 1


async def test_jobs_popped_for_a_consumer_that_disconnected_return_to_the_head(engine: Engine) -> None:
    """Cancel a pop at every moment of it: no job is lost and no attempt counts."""
    await engine.puts.put_many([job(f"j{number}") for number in range(3)])
    for iteration in range(60):
        gone = waiting_pop(engine, count=2)
        for _ in range(iteration % 20):
            await asyncio.sleep(0)
        await asyncio.sleep(0.0001 * (iteration // 20))
        if gone.done():
            await engine.held_jobs.return_popped(gone.result())
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        while engine.dispatcher._tasks:
            await asyncio.gather(*engine.dispatcher._tasks)
    popped = await engine.dispatcher.pop([TOPIC], count=5, wait_ms=100)
    assert [(found.id, found.attempts) for found in popped] == [("j0", 1), ("j1", 1), ("j2", 1)]


async def test_a_job_returns_when_its_consumer_disconnects_while_it_waits_for_the_poll_of_its_next_topic(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That topic is being polled for another consumer, so that no call for this one is under way."""
    pop, is_polled, may_end = engine.queue.pop, asyncio.Event(), asyncio.Event()

    async def pop_when_told(topic: str, requests: Sequence[PopRequest]) -> PopReply:
        if topic == "b":
            is_polled.set()
            await may_end.wait()
        return await pop(topic, requests)

    monkeypatch.setattr(engine.queue, "pop", pop_when_told)
    other = waiting_pop(engine, "b")
    await is_polled.wait()
    await engine.puts.put(PutJob(topic="a", id="x"))
    gone = waiting_pop(engine, "a", "b", count=2)
    await until(lambda: any(waiter.jobs for waiter in engine.dispatcher._wait_queues["b"].waiters), "it has the job")
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    popped = await engine.dispatcher.pop(["a"], wait_ms=5000)
    may_end.set()
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    assert [(found.id, found.attempts) for found in popped] == [("x", 1)]


async def test_drain_ends_waiting_pops_and_new_ones_do_not_wait(engine: Engine) -> None:
    waiting = [waiting_pop(engine), waiting_pop(engine, "a", "b")]
    await all_wait(engine, 2)
    engine.drain()
    async with asyncio.timeout(BUSY_S):
        assert await asyncio.gather(*waiting) == [[], []]
        assert await engine.dispatcher.pop([TOPIC], wait_ms=10_000) == []
        await engine.puts.put(job())
        assert len(await engine.dispatcher.pop([TOPIC], wait_ms=10_000)) == 1


async def test_resuming_a_topic_serves_its_waiters(engine: Engine) -> None:
    await engine.puts.put(job())
    await engine.topics.pause(TOPIC)
    waiting = waiting_pop(engine)
    await all_wait(engine, 1)
    assert not waiting.done()
    await engine.topics.resume(TOPIC)
    assert len(await waiting) == 1


async def test_a_repeated_request_over_many_topics_gets_all_its_jobs_again(engine: Engine) -> None:
    await engine.puts.put(PutJob(topic="low", id="l"))
    await engine.puts.put(PutJob(topic="high", id="h"))
    first = await engine.dispatcher.pop(["high", "low"], count=5, request_id="r1")
    await engine.puts.put(PutJob(topic="high", id="h2"))
    assert await engine.dispatcher.pop(["high", "low"], count=5, request_id="r1") == first


async def test_consumers_that_repeat_a_large_request_at_the_same_time_all_get_its_jobs(engine: Engine) -> None:
    for job_id in ("a", "b", "c"):
        await engine.puts.put(PutJob(topic=TOPIC, id=job_id, body="x" * 3_000_000))
    first = await engine.dispatcher.pop([TOPIC], count=3, request_id="r1")
    again = await asyncio.gather(*(engine.dispatcher.pop([TOPIC], request_id="r1") for _ in range(6)))
    assert [first] * 6 == again


async def test_a_lease_that_ends_serves_a_waiter_in_another_process(engine: Engine, second: Engine) -> None:
    await engine.puts.put(job(ttr=0.1))
    await engine.dispatcher.pop([TOPIC])
    (popped,) = await second.dispatcher.pop([TOPIC], wait_ms=5000)
    assert popped.attempts == 2


async def test_malformed_messages_are_ignored(engine: Engine, server: StoreServer) -> None:
    waiting = waiting_pop(engine)
    await all_wait(engine, 1)
    server.command("PUBLISH", "deferd:ready", b"\xff\xfe")
    server.command("PUBLISH", "deferd:due", b"\xff\xfe")
    await engine.puts.put(job(delay=0.05))
    assert [popped.id for popped in await waiting] == ["a"]
    await engine.ping()


async def test_a_store_whose_user_may_not_publish_is_refused_at_start(server: StoreServer) -> None:
    server.command("ACL", "SETUSER", "silent", "on", ">pw", "~*", "&*", "+@all", "-publish")
    store = await connect(server.url.replace("redis://", "redis://silent:pw@"), timeout_s=5)
    engine = Engine(store)
    with pytest.raises(StoreUnavailable, match=r"lacks the permissions \+publish"):
        await engine.start()
    await engine.close()
    await store.close()


async def test_waiters_fail_when_the_store_is_gone_and_later_ones_are_served_when_it_is_back(
    server: StoreServer,
) -> None:
    store = await connect(server.url, timeout_s=1)
    engine = Engine(store)
    await engine.start()
    waiting = [waiting_pop(engine) for _ in range(200)]
    await all_wait(engine, 200)
    server.stop()
    try:
        async with asyncio.timeout(5):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(result) for result in results} == {StoreUnavailable}
    finally:
        server.start()
    waiting = [asyncio.create_task(pop_until_served(engine)) for _ in range(3)]
    await until(lambda: engine.dispatcher.waiting.count == 3, "all of them wait")
    async with asyncio.timeout(10):
        await engine.puts.put_many([job(f"j{number}") for number in range(3)])
        assert sorted(found.id for jobs in await asyncio.gather(*waiting) for found in jobs) == ["j0", "j1", "j2"]
    await engine.close()
    await store.close()


async def pop_until_served(engine: Engine) -> list[JobRecord]:
    while True:
        try:
            if jobs := await engine.dispatcher.pop([TOPIC], wait_ms=5000):
                return jobs
        except StoreUnavailable:
            await asyncio.sleep(0.02)


async def test_pops_of_many_topics_at_once_poll_some_topics_at_a_time(engine: Engine) -> None:
    polled: list[str] = []
    under_way = most_under_way = 0
    pop = engine.queue.pop
    goes_on = asyncio.Event()

    async def counted_pop(topic: str, requests: Sequence[PopRequest]) -> PopReply:
        nonlocal under_way, most_under_way
        polled.append(topic)
        under_way += 1
        most_under_way = max(most_under_way, under_way)
        try:
            if topic != TOPIC:
                await goes_on.wait()
            return await pop(topic, requests)
        finally:
            under_way -= 1

    engine.queue.pop = counted_pop  # type: ignore[method-assign]
    await engine.puts.put(job())
    await until(lambda: TOPIC in engine.dispatcher._looks.lately_ready, "the message of the put has come")
    pops = [asyncio.create_task(engine.dispatcher.pop([f"t{number}"], wait_ms=1)) for number in range(300)]
    await until(lambda: bool(polled), "the first topics are polled")
    [popped] = await engine.dispatcher.pop([TOPIC], wait_ms=10_000)
    assert popped.id == "a"
    assert polled.index(TOPIC) <= 32, "a topic that had something ready does not wait behind the others"
    goes_on.set()
    assert await asyncio.gather(*pops) == [[]] * 300
    assert most_under_way <= 2 * 32, "one that was looked at may be polled again while the next are looked at"
    assert set(polled) == {TOPIC, *(f"t{number}" for number in range(300))}
    assert engine.dispatcher._wait_queues == {}
    assert engine.dispatcher._looks._waiting == {}
