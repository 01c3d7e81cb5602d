"""Real races: two engines, each with its own connections, make two calls to one store at the same time.

Every race is run many times, so that each side wins some. With either winner, the two results must agree with each
other and with the store's contents afterwards.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from deferd.contract.errors import DeferdError, JobCancelled, JobExists, JobNotFound, JobReserved, ReceiptStale
from deferd.contract.flow import FlowLimits, TopicLimits
from deferd.contract.model import FinishItem, JobState, PutJob, TopicSettings
from deferd.engine.deliveries import Released
from deferd.engine.engine import Engine
from deferd.engine.puts import PutOutcome
from deferd.engine.record import JobRecord
from deferd.engine.scripts import Scripts
from deferd.store.connection import Store, connect
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import redrive_jobs
from tests.integration.store.store_contents import KEYS
from tests.integration.store.store_servers import StoreServer

ROUNDS = 100


@pytest.fixture
async def rival_store(server: StoreServer) -> AsyncIterator[Store]:
    """The same store, on its own connections."""
    store = await connect(server.url, timeout_s=5)
    yield store
    await store.close()


@pytest.fixture
async def rival(driver: EngineDriver, rival_store: Store, server: StoreServer) -> AsyncIterator[EngineDriver]:
    """Another engine on the same store and clock."""
    engine = Engine(rival_store, movable_clock=True, dead_retention_ms=3_600_000)
    yield EngineDriver(engine, server)
    await engine.close()


@pytest.fixture
def rival_scripts(rival_store: Store) -> Scripts:
    return Scripts(rival_store, movable_clock=True)


async def race(*calls: Coroutine[Any, Any, Any]) -> list[Any]:
    """The results of calls started at the same time, in the order of the calls, or the classes of their errors.

    Which call the event loop starts first changes from race to race, and in some the others start a little later: a
    store that was kept from running has all of them before it, and then handles them in the order of its connections.
    """
    head_start_s = random.choice((0, 0, 0, 0.001, 0.005))

    async def response(index: int) -> None:
        if index != order[0]:
            await asyncio.sleep(head_start_s)
        try:
            responses[index] = await calls[index]
        except DeferdError as exc:
            responses[index] = type(exc)

    responses: list[Any] = [None] * len(calls)
    order = random.sample(range(len(calls)), len(calls))
    await asyncio.gather(*map(response, order))
    return responses


async def promote(by: Scripts, topic: str) -> None:
    """Visit one topic as a timer does, but without the lock; promote.lua documents the arguments."""
    most_jobs, dead_retention_ms, mark, most_topics, timer, lock_ms = 500, 3_600_000, "timer-1", 8, "timer-1", 2500
    keys = (*KEYS.of_topic(topic), KEYS.of_shard(0, "lock"))
    await by.run("promote", keys, (topic, most_jobs, dead_retention_ms, mark, most_topics, timer, lock_ms))


def both_sides_won(winners: Counter[Any]) -> bool:
    """Assert that each side won some races."""
    return len(winners) == 2 and min(winners.values()) >= ROUNDS // 20


async def test_either_cancel_or_pop_wins(driver: EngineDriver, rival: EngineDriver) -> None:
    winners: Counter[JobState] = Counter()
    for _ in range(ROUNDS):
        await driver.put()
        popped, was = await race(driver.pop(), rival.cancels.cancel(TOPIC, "a"))
        winners[was] += 1
        if was is JobState.READY:
            assert popped == []
        else:
            assert was is JobState.RESERVED
            assert await race(driver.deliveries.touch(TOPIC, "a", popped[0].receipt)) == [JobCancelled]
        assert await driver.counts() == {}
    assert both_sides_won(winners)


async def test_a_cancel_that_respects_the_holder_wins_or_leaves_the_job(
    driver: EngineDriver, rival: EngineDriver
) -> None:
    winners: Counter[str] = Counter()
    for _ in range(ROUNDS):
        await driver.put()
        popped, response = await race(driver.pop(), rival.cancels.cancel(TOPIC, "a", refuse_reserved=True))
        winners["pop" if popped else "cancel"] += 1
        if popped:
            assert response is JobReserved
            await driver.queue.finish(TOPIC, "a", popped[0].receipt)
        else:
            assert response is JobState.READY
        assert await driver.counts() == {}
    assert both_sides_won(winners)


@pytest.mark.parametrize("retain", [0, 60])
async def test_finish_and_cancel_agree_on_which_came_first(
    driver: EngineDriver, rival: EngineDriver, retain: int
) -> None:
    winners: Counter[str] = Counter()
    for _ in range(ROUNDS):
        await driver.put(retain=retain)
        held = await driver.pop_one()
        finished, was = await race(driver.queue.finish(TOPIC, "a", held.receipt), rival.cancels.cancel(TOPIC, "a"))
        winners["finish" if finished is None else "cancel"] += 1
        if finished is None:
            assert was == (JobState.FINISHED if retain else JobNotFound)
        else:
            assert (finished, was) == (JobCancelled, JobState.RESERVED)
        assert await driver.counts() == {}
    assert both_sides_won(winners)


async def test_consumers_of_one_topic_never_get_the_same_job(driver: EngineDriver, rival: EngineDriver) -> None:
    jobs = 3000
    for start in range(0, jobs, 1000):
        await driver.puts.put_many([job(f"j{number}") for number in range(start, start + 1000)])

    async def consume(by: EngineDriver, consumer: str) -> list[str]:
        taken = []
        while popped := await by.pop(random.randint(1, 30), consumer=consumer):
            taken += [record.id for record in popped]
            await by.queue.finish(TOPIC, popped[0].id, popped[0].receipt)
        return taken

    consumers = [(driver, "one"), (rival, "two"), (driver, "three"), (rival, "four")]
    takings = await asyncio.gather(*(consume(by, name) for by, name in consumers))
    assert sorted(job_id for taking in takings for job_id in taking) == sorted(f"j{number}" for number in range(jobs))
    assert all(takings)


async def test_only_one_of_two_finishes_with_one_receipt_finds_the_job(
    driver: EngineDriver, rival: EngineDriver
) -> None:
    for _ in range(ROUNDS):
        await driver.put()
        held = await driver.pop_one()
        responses = await race(
            driver.queue.finish(TOPIC, "a", held.receipt), rival.queue.finish(TOPIC, "a", held.receipt)
        )
        assert sorted(responses, key=str) == [JobNotFound, None]


async def test_only_one_of_two_releases_with_one_receipt_counts(driver: EngineDriver, rival: EngineDriver) -> None:
    await driver.put()
    for number in range(ROUNDS):
        held = await driver.pop_one()
        one, two = await race(
            driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=0),
            rival.deliveries.release(TOPIC, "a", held.receipt, delay_ms=0),
        )
        assert [isinstance(response, Released) for response in (one, two)].count(True) == 1
        assert ReceiptStale in {one, two}
        await driver.run_timer()
        assert (await driver.queue.get(TOPIC, "a")).attempts == number + 1


@pytest.mark.slow
async def test_either_release_or_the_end_of_the_lease_ends_a_delivery(
    driver: EngineDriver, rival_scripts: Scripts
) -> None:
    winners: Counter[str] = Counter()
    await driver.put(ttr=10)
    for number in range(ROUNDS):
        held = await driver.pop_one()
        driver.move_clock(11)
        released, _ = await race(
            driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=5000), promote(rival_scripts, TOPIC)
        )
        winners["timer" if released is ReceiptStale else "release"] += 1
        stored = await driver.queue.get(TOPIC, "a")
        assert stored.state is (JobState.READY if released is ReceiptStale else JobState.DELAYED)
        assert stored.attempts == number + 1
        await driver.pass_time(6)
    assert both_sides_won(winners)


async def test_either_touch_or_the_end_of_the_lease_wins(driver: EngineDriver, rival_scripts: Scripts) -> None:
    winners: Counter[str] = Counter()
    for _ in range(ROUNDS):
        await driver.put(ttr=10)
        held = await driver.pop_one()
        driver.move_clock(11)
        touched, _ = await race(driver.deliveries.touch(TOPIC, "a", held.receipt), promote(rival_scripts, TOPIC))
        winners["timer" if touched is ReceiptStale else "touch"] += 1
        assert await driver.counts() == ({"ready": 1} if touched is ReceiptStale else {"reserved": 1})
        await driver.cancels.cancel(TOPIC, "a")
    assert both_sides_won(winners)


async def test_two_timers_at_once_lose_and_duplicate_no_job(
    driver: EngineDriver, store: Store, rival_scripts: Scripts
) -> None:
    timers = (Scripts(store, movable_clock=True), rival_scripts)
    topics = [f"topic{number}" for number in range(5)]
    ids = [f"j{number}" for number in range(2000)]
    for topic in topics:
        for start in range(0, len(ids), 1000):
            await driver.puts.put_many(
                [PutJob(topic=topic, id=job_id, delay=10) for job_id in ids[start : start + 1000]]
            )
    driver.move_clock(11)
    visits = [promote(by, topic) for topic in topics for _ in range(5) for by in timers]
    assert set(await race(*visits)) == {None}
    await driver.run_timer()
    for topic in topics:
        ready = driver.server.command("ZRANGE", f"deferd:{{0}}:{topic}:ready", 0, -1)
        assert sorted(entry.decode() for entry in ready) == sorted(ids)
        assert (await driver.topics.get(topic)).counts[JobState.READY] == len(ids)


async def test_two_whole_timers_share_the_work_and_lose_nothing(driver: EngineDriver, rival: EngineDriver) -> None:
    for round_number in range(20):
        ids = [f"r{round_number}-{number}" for number in range(20)]
        await driver.puts.put_many([job(job_id, delay=10) for job_id in ids])
        driver.move_clock(11)
        await race(driver.run_timer(), rival.run_timer())
        popped = await driver.pop(100)
        assert sorted(record.id for record in popped) == sorted(ids)
        await driver.queue.finish_many(TOPIC, [FinishItem(id=record.id) for record in popped])


@pytest.mark.parametrize("on_conflict", ["reject", "keep", "replace"])
async def test_only_one_of_two_puts_of_one_id_creates_it(
    driver: EngineDriver, rival: EngineDriver, on_conflict: str
) -> None:
    second = {"reject": JobExists, "keep": "kept", "replace": "replaced"}[on_conflict]
    for number in range(ROUNDS):
        outcomes = [
            response.outcome if isinstance(response, PutOutcome) else response
            for response in await race(
                driver.puts.put(job(f"j{number}", on_conflict=on_conflict)),
                rival.puts.put(job(f"j{number}", on_conflict=on_conflict)),
            )
        ]
        assert Counter(outcomes) == {"created": 1, second: 1}
    assert len(driver.ready_list()) == ROUNDS
    assert await driver.counts() == {"ready": ROUNDS}


async def test_either_replace_or_pop_wins(driver: EngineDriver, rival: EngineDriver) -> None:
    winners: Counter[str] = Counter()
    for _ in range(ROUNDS):
        await driver.put(body="old")
        popped, put = await race(driver.pop(), rival.puts.put(job(body="new", on_conflict="replace")))
        assert [record.id for record in popped] == ["a"]
        if put is JobReserved:
            winners["pop"] += 1
            assert popped[0].body == b'"old"'
        else:
            winners["put"] += 1
            assert popped[0].body == b'"new"'
        await driver.queue.finish(TOPIC, "a", popped[0].receipt)
        assert await driver.counts() == {}
    assert both_sides_won(winners)


async def test_a_request_sent_twice_at_once_gets_the_same_jobs(driver: EngineDriver, rival: EngineDriver) -> None:
    await driver.puts.put_many([job(f"j{number}") for number in range(ROUNDS)])
    for number in range(ROUNDS // 2):
        one, two = await race(driver.pop(2, request_id=f"r{number}"), rival.pop(2, request_id=f"r{number}"))
        assert one == two
        assert [record.id for record in one] == [f"j{2 * number}", f"j{2 * number + 1}"]


async def test_a_disconnected_attempt_does_not_return_what_the_other_one_gets(
    driver: EngineDriver, rival: EngineDriver
) -> None:
    async def pop_for_nobody(request_id: str) -> int:
        return await driver.held_jobs.return_popped(await driver.pop(1, request_id=request_id))

    for number in range(ROUNDS):
        await driver.put()
        _, held = await race(pop_for_nobody(f"r{number}"), rival.pop(1, request_id=f"r{number}"))
        await rival.queue.finish(TOPIC, "a", held[0].receipt)


async def test_return_and_cancel_both_take_effect(driver: EngineDriver, rival: EngineDriver) -> None:
    winners: Counter[JobState] = Counter()
    for _ in range(ROUNDS):
        await driver.put()
        held = await driver.pop()
        returned, was = await race(driver.held_jobs.return_popped(held), rival.cancels.cancel(TOPIC, "a"))
        winners[was] += 1
        assert (returned, was) in {(1, JobState.READY), (0, JobState.RESERVED)}
        assert await driver.pop() == []
    assert both_sides_won(winners)


async def test_dead_jobs_are_redriven_once(driver: EngineDriver, rival: EngineDriver) -> None:
    for number in range(ROUNDS):
        held = (await driver.puts.put(job(f"j{number}")), await driver.pop_one())[1]
        await driver.deliveries.bury(TOPIC, held.id, held.receipt)
    redriven = await race(redrive_jobs(driver.engine, TOPIC, limit=75), redrive_jobs(rival.engine, TOPIC, limit=75))
    assert sum(redriven) == ROUNDS
    assert sorted(driver.ready_list()) == sorted(f"j{number}" for number in range(ROUNDS))


class LimitedConsumers:
    """Consumers of a topic with limits, which note what they hold: never more than the limits, and each group in order.

    A job is noted as held after the pop that returned it, until before the call that ends its delivery: all that time
    the store has it reserved.
    """

    most, groups, of_each = 3, "abcd", 25

    def __init__(self) -> None:
        self.held: dict[str, JobRecord] = {}
        self.left = {group: [f"{group}{number:02}" for number in range(self.of_each)] for group in self.groups}
        self.kept: dict[str, str] = {}
        """By group: the job whose delivery has ended, but which has not."""
        self.most_held = 0

    def note_held(self, one: JobRecord) -> None:
        group = one.id[0]
        assert not [other for other in self.held if other[0] == group], "two of a group with strict order"
        assert one.id == self.kept.pop(group, one.id), "before the one that keeps its place"
        earlier = self.left[group][: self.left[group].index(one.id)]
        assert not earlier, "before others of its group"
        self.held[one.id] = one
        self.most_held = max(self.most_held, len(self.held))
        assert self.most_held <= self.most

    async def consume(self, engine: EngineDriver) -> None:
        mine: list[JobRecord] = []
        while any(self.left.values()):
            for one in await engine.pop(2):
                self.note_held(one)
                mine.append(one)
            if mine and random.random() < 0.6:
                await self.end(engine, mine.pop(random.randrange(len(mine))))

    async def end(self, engine: EngineDriver, one: JobRecord) -> None:
        how = random.choice(["finish", "finish", "release", "return", "touch"])
        if how == "touch":
            await engine.deliveries.touch(TOPIC, one.id, one.receipt)
        del self.held[one.id]
        if how in ("finish", "touch"):
            self.left[one.id[0]].remove(one.id)
            await engine.queue.finish(TOPIC, one.id, one.receipt)
            return
        self.kept[one.id[0]] = one.id
        if how == "release":
            await engine.deliveries.release(TOPIC, one.id, one.receipt, delay_ms=0)
        else:
            await engine.held_jobs.return_popped([one])

    async def cancel(self, engine: EngineDriver) -> None:
        """Cancel the last jobs of groups, unless somebody has them."""
        for group in self.groups:
            one = self.left[group][-1]
            if await race(engine.cancels.cancel(TOPIC, one, refuse_reserved=True)) == [JobState.READY]:
                self.left[group].remove(one)

    async def promote(self, engine: EngineDriver) -> None:
        while any(self.left.values()):
            await engine.run_timer()


async def test_limits_hold_at_every_instant_and_groups_keep_their_order(
    driver: EngineDriver, rival: EngineDriver
) -> None:
    limits = TopicLimits(max_in_flight=LimitedConsumers.most, per_group=FlowLimits(max_in_flight=1))
    await driver.topics.set(TOPIC, TopicSettings(limits=limits))
    consumers = LimitedConsumers()
    for group, ids in consumers.left.items():
        await driver.puts.put_many([job(one, group=group) for one in ids])
    async with asyncio.timeout(10):
        await asyncio.gather(
            *(consumers.consume(engine) for engine in (driver, rival) for _ in range(3)),
            consumers.cancel(rival),
            consumers.promote(driver),
        )
    assert consumers.most_held == LimitedConsumers.most
    assert await driver.counts() == {}


async def test_waiting_consumers_of_two_processes_share_the_jobs(server: StoreServer) -> None:
    """Two started engines, with their timers, waiting consumers and the real clock."""
    stores = [await connect(server.url, timeout_s=5) for _ in range(2)]
    engines = [Engine(store, tick_s=0.2) for store in stores]
    for engine in engines:
        await engine.start()
    jobs = 400
    got: list[JobRecord] = []

    async def consume(engine: Engine) -> None:
        while len(got) < jobs:
            popped = await engine.dispatcher.pop([TOPIC], count=3, wait_ms=300)
            got.extend(popped)
            for record in popped:
                await engine.queue.finish(TOPIC, record.id, record.receipt)

    async def produce(engine: Engine, numbers: range) -> None:
        for number in numbers:
            await engine.puts.put(job(f"j{number}", delay=random.choice([0, 0.001, 0.02])))

    async with asyncio.timeout(20):
        await asyncio.gather(
            *(consume(engine) for engine in engines for _ in range(3)),
            produce(engines[0], range(0, jobs, 2)),
            produce(engines[1], range(1, jobs, 2)),
        )
    assert sorted(record.id for record in got) == sorted(f"j{number}" for number in range(jobs))
    assert {record.attempts for record in got} == {1}
    for engine, store in zip(engines, stores, strict=True):
        await engine.close()
        await store.close()
