"""advance.lua and the movable clock: a move acts as if the time had passed, for all shards and processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import REGISTRY

from deferd.contract.errors import InvalidInput
from deferd.contract.model import JobState, PutJob
from deferd.engine.engine import Engine
from deferd.engine.movable_clock import MOVED_MAX_S, MovableClock
from deferd.store.connection import Store
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job
from tests.integration.store.store_servers import StoreServer
from tests.waiting import BUSY_S, until

DAY_MS = 86_400_000


@pytest.fixture
def clock(driver: EngineDriver) -> MovableClock:
    assert driver.engine.clock is not None
    return driver.engine.clock


@pytest.fixture
async def process(store: Store) -> AsyncIterator[Engine]:
    """The engine of another process on the same store, with the longest tick: only a message wakes it in time."""
    engine = Engine(store, tick_s=60, movable_clock=True)
    await engine.start()
    yield engine
    await engine.close()


def store_now_ms(server: StoreServer) -> int:
    seconds, microseconds = server.client().time()
    return int(seconds * 1000 + microseconds // 1000)


def timer_runs() -> float:
    """How many runs this process's timers have had while holding the lock."""
    return REGISTRY.get_sample_value("deferd_timer_turns_total", {"held": "yes"}) or 0


async def test_the_clock_shows_the_stores_time_until_it_is_moved(clock: MovableClock, server: StoreServer) -> None:
    before = store_now_ms(server)
    reading = await clock.read()
    assert reading.moved_ms == 0
    assert before <= reading.now_ms <= store_now_ms(server)
    assert server.command("KEYS", "*clock") == []


async def test_the_clock_moves_by_the_requested_time_and_moves_add_up(clock: MovableClock, server: StoreServer) -> None:
    await clock.advance(DAY_MS)
    reading = await clock.advance(500)
    assert reading.moved_ms == DAY_MS + 500
    assert 0 <= store_now_ms(server) + DAY_MS + 500 - reading.now_ms < BUSY_S * 1000
    assert (await clock.read()).moved_ms == DAY_MS + 500


async def test_the_clock_does_not_move_past_a_thousand_years(clock: MovableClock) -> None:
    await clock.advance(MOVED_MAX_S * 1000)
    with pytest.raises(InvalidInput, match="1000 years"):
        await clock.advance(1)
    assert (await clock.advance(0)).moved_ms == MOVED_MAX_S * 1000


async def test_due_jobs_are_ready_after_a_move(driver: EngineDriver, clock: MovableClock) -> None:
    """No timer ran; there are more jobs than one step takes, in more topics than are visited together."""
    await driver.puts.put_many([job(f"j{number}", delay=1000) for number in range(700)])
    for number in range(9):
        await driver.puts.put(PutJob(topic=f"other-{number}", delay=86_400))
    await driver.puts.put(PutJob(topic="later", delay=86_500))
    await clock.advance(DAY_MS)
    assert await driver.counts() == {"ready": 700}
    for number in range(9):
        assert (await driver.topics.get(f"other-{number}")).counts[JobState.READY] == 1
    assert (await driver.topics.get("later")).counts[JobState.DELAYED] == 1


async def test_a_remembered_request_expires_as_if_the_time_had_passed(
    driver: EngineDriver, clock: MovableClock
) -> None:
    """It is remembered for its longest lease, here 60 s, even if the lease was touched since."""
    for job_id in ("a", "b"):
        await driver.put(job_id)
    first = await driver.pop_one(request_id="r")
    await driver.deliveries.touch(TOPIC, first.id, first.receipt, ttr_ms=DAY_MS)
    await clock.advance(61_000)
    assert [other.id for other in await driver.pop(1, request_id="r")] == ["b"]


async def test_a_request_is_remembered_until_its_lease_ends(driver: EngineDriver, clock: MovableClock) -> None:
    await driver.put("a")
    await driver.put("b")
    await driver.pop_one(request_id="r")
    await clock.advance(30_000)
    await clock.advance(25_000)
    assert [again.id for again in await driver.pop(1, request_id="r")] == ["a"]


async def test_a_waiting_consumer_gets_a_job_that_becomes_due(process: Engine, clock: MovableClock) -> None:
    await process.puts.put(job(delay=86_400))
    popping = asyncio.create_task(process.dispatcher.pop([TOPIC], wait_ms=20_000))
    await until(lambda: process.dispatcher.waiting.count == 1, "the consumer waits")
    await clock.advance(DAY_MS)
    async with asyncio.timeout(BUSY_S):
        [popped] = await popping
    assert popped.attempts == 1


async def test_a_sleeping_timer_wakes_when_the_clock_moves(process: Engine, clock: MovableClock) -> None:
    """It slept for its tick of a minute, because the job was due in a day; after the move that is 0.3 s."""
    await until(lambda: process.timers[0]._holds_lock, "the timer works")
    before = timer_runs()
    await process.puts.put(job(delay=86_400))
    await until(lambda: timer_runs() > before, "it has seen the job, and sleeps")
    await clock.advance(DAY_MS - 300)
    async with asyncio.timeout(5):
        assert [popped.id for popped in await process.dispatcher.pop([TOPIC], wait_ms=5000)] == ["a"]


async def test_an_engine_not_made_for_tests_has_no_clock(store: Store) -> None:
    assert Engine(store).clock is None
