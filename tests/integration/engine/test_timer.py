"""promote.lua, turn.lua, resign.lua and the timer around them."""

from __future__ import annotations

import asyncio
import itertools
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import JobState, PutJob
from deferd.engine.engine import Engine
from deferd.engine.record import JobRecord
from deferd.store.connection import Store, connect
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job, started_engine
from tests.integration.store.store_servers import StoreServer
from tests.waiting import until

LOCK = "deferd:{0}:lock"
LOCK_MS = 2500


async def test_an_idle_timer_sleeps_for_its_tick(driver: EngineDriver) -> None:
    assert await driver.engine.timers[0].run_once() == 1.0


async def test_the_timer_sleeps_until_the_next_due_time(driver: EngineDriver) -> None:
    await driver.put(delay=0.5)
    assert 0 < await driver.run_timer() <= 0.5
    assert await driver.state() is JobState.DELAYED


async def test_many_jobs_due_at_once_are_all_promoted_in_bounded_steps(driver: EngineDriver) -> None:
    for start in range(0, 3000, 1000):
        await driver.puts.put_many([job(f"j{start + number}", delay=5) for number in range(1000)])
    driver.move_clock(6)
    await driver.engine.timers[0].run_once()
    assert await driver.counts() == {"delayed": 2500, "ready": 500}
    await driver.run_timer()
    assert await driver.counts() == {"ready": 3000}


async def test_topics_are_promoted_in_turn(driver: EngineDriver) -> None:
    for start in range(0, 2000, 1000):
        await driver.puts.put_many([job(f"j{start + number}", delay=1) for number in range(1000)])
    await driver.puts.put(PutJob(topic="small", delay=2))
    driver.move_clock(10)
    await driver.engine.timers[0].run_once()
    assert (await driver.topics.get("small")).counts[JobState.READY] == 1
    assert (await driver.counts())["delayed"] == 1500


async def test_only_one_of_two_timers_works_and_the_other_takes_over(driver: EngineDriver, store: Store) -> None:
    other = Engine(store, movable_clock=True)
    assert await driver.engine.timers[0].run_once() == 1.0
    await driver.put(delay=5)
    driver.move_clock(6)
    driver.server.command("PEXPIRE", LOCK, 3000)  # the holder has just renewed it
    assert await other.timers[0].run_once() > 0
    assert await driver.state() is JobState.DELAYED
    await driver.engine.timers[0].resign()
    await other.timers[0].run_once()
    assert await driver.state() is JobState.READY
    await other.close()


async def test_the_timer_takes_the_lock_of_a_dead_one_when_it_ends(driver: EngineDriver) -> None:
    driver.server.command("SET", LOCK, "dead", "PX", 60_000)
    assert 0 < await driver.engine.timers[0].run_once() <= 60.001
    driver.server.command("PEXPIRE", LOCK, 1)  # it ends by the server's own time, which no test moves
    await until(lambda: driver.server.command("EXISTS", LOCK) == 0, "the lock has ended")
    await driver.put(delay=1)
    await driver.pass_time(2)
    assert await driver.state() is JobState.READY


async def test_a_lock_from_before_the_clock_stepped_back_is_void(driver: EngineDriver) -> None:
    driver.server.command("SET", LOCK, "dead", "PX", 3_600_000)
    await driver.put(delay=1)
    await driver.pass_time(2)
    assert await driver.state() is JobState.READY


async def test_a_holder_that_is_silent_while_work_is_overdue_is_taken_for_dead(driver: EngineDriver) -> None:
    await driver.put(delay=1)
    driver.move_clock(2)
    driver.server.command("SET", LOCK, "dead", "PX", LOCK_MS - 500)
    await driver.engine.timers[0].run_once()
    assert await driver.state() is JobState.READY


@pytest.mark.parametrize(("due_in_s", "left_ms"), [(-1, 3000), (60, 1000)], ids=["not silent", "nothing overdue"])
async def test_a_holder_keeps_its_lock_while_it_is_not_silent_or_nothing_is_overdue(
    driver: EngineDriver, due_in_s: float, left_ms: int
) -> None:
    await driver.put(delay=61)
    driver.move_clock(61 - due_in_s)
    driver.server.command("SET", LOCK, "holder", "PX", left_ms)
    assert await driver.engine.timers[0].run_once() > 0
    assert driver.server.command("GET", LOCK) == b"holder"
    assert await driver.state() is JobState.DELAYED


async def test_a_resting_timer_wakes_when_the_next_work_would_be_overdue(driver: EngineDriver) -> None:
    await driver.put(delay=0.4)
    driver.server.command("SET", LOCK, "holder", "PX", LOCK_MS - 500)
    assert 0 < await driver.engine.timers[0].run_once() <= 0.4 + 0.25 + 0.001


async def test_a_promotion_renews_the_lock_of_its_timer_and_of_no_other(driver: EngineDriver) -> None:
    timer = driver.engine.timers[0]
    await timer.run_once()
    await driver.put("a", delay=1)
    driver.move_clock(2)
    driver.server.command("PEXPIRE", LOCK, 1300)
    await timer.run_once()
    assert await driver.state("a") is JobState.READY
    assert driver.server.command("PTTL", LOCK) > 1300
    await driver.put("b", delay=1)
    driver.move_clock(2)
    driver.server.command("SET", LOCK, "other", "PX", 1300)
    now_ms = time.time() * 1000 + int(driver.server.command("GET", "deferd:{0}:clock"))
    await timer.catch_up(round(now_ms))  # another timer may hold the lock
    assert await driver.state("b") is JobState.READY
    assert driver.server.command("PTTL", LOCK) <= 1300


async def test_a_timer_without_work_does_not_write(driver: EngineDriver) -> None:
    await driver.put(delay=600)
    await driver.engine.timers[0].run_once()
    driver.server.command("PEXPIRE", LOCK, 2000)
    await driver.engine.timers[0].run_once()
    assert driver.server.command("PTTL", LOCK) <= 2000


async def test_a_timer_that_failed_at_overdue_work_does_not_take_the_lock_for_it_again(driver: EngineDriver) -> None:
    """Otherwise timers that fail at the same topic would take the lock from each other forever."""
    await driver.put("broken", delay=5)
    driver.server.command("SET", f"deferd:{{0}}:{TOPIC}:reserved", "not a sorted set")
    driver.move_clock(6)
    assert await driver.engine.timers[0].run_once() == 1.0
    driver.server.command("SET", LOCK, "other", "PX", LOCK_MS - 500)
    assert await driver.engine.timers[0].run_once() > 0.25
    assert driver.server.command("GET", LOCK) == b"other"


async def test_work_put_after_the_holder_died_is_done_before_its_lock_ends(engine: Engine, server: StoreServer) -> None:
    """The message to a resting timer reports that there is work, not when it is due."""
    await engine.timers[0].resign()
    while server.command("SET", LOCK, "dead", "NX", "PX", 2900) is None:
        server.command("DEL", LOCK)  # the timer has taken it again
    server.command("SET", "lock of the dead", "", "PX", server.command("PTTL", LOCK))
    await engine.timers[0].run_once()  # now it knows that another one holds it
    await engine.puts.put(job(delay=0.1))
    popped = await engine.dispatcher.pop([TOPIC], wait_ms=10_000)
    assert [found.id for found in popped] == ["a"]
    assert server.command("EXISTS", "lock of the dead") == 1


async def test_a_dead_timer_with_a_long_tick_delays_the_others_only_for_seconds(store: Store) -> None:
    engine = Engine(store, tick_s=60)
    await engine.timers[0].run_once()
    assert await store.client.pttl(LOCK) <= 3000
    await engine.close()


async def test_a_damaged_store_does_not_stop_the_timer(driver: EngineDriver) -> None:
    await driver.put("broken", ttr=5)
    await driver.pop_one()
    driver.server.command("HDEL", f"deferd:{{0}}:{TOPIC}:pool", "broken")
    await driver.put("whole", delay=5)
    await driver.pass_time(6)
    assert await driver.state("whole") is JobState.READY


async def test_a_topic_the_script_cannot_handle_does_not_stop_the_others(
    driver: EngineDriver, caplog: pytest.LogCaptureFixture
) -> None:
    await driver.put("broken", delay=5)
    await driver.puts.put(PutJob(topic="whole", delay=5))
    driver.server.command("SET", f"deferd:{{0}}:{TOPIC}:reserved", "not a sorted set")
    driver.move_clock(6)
    assert await driver.engine.timers[0].run_once() == 1.0
    assert (await driver.topics.get("whole")).counts[JobState.READY] == 1
    assert TOPIC in caplog.text


async def test_a_damaged_record_affects_no_other_job(driver: EngineDriver) -> None:
    await driver.put("good", delay=1)
    driver.server.command("HSET", f"{KEY}:pool", "bad", "x")
    driver.server.command("ZADD", f"{KEY}:reserved", 1, "bad")
    await driver.pass_time(2)
    assert (await driver.pop_one()).id == "good"


async def test_the_message_of_a_promotion_that_failed_is_not_ignored(server: StoreServer) -> None:
    """It may run later, when no poll follows it any more."""
    store = await connect(server.url, timeout_s=0.3)
    driver = EngineDriver(Engine(store, movable_clock=True), server)
    timer = driver.engine.timers[0]
    await driver.puts.put_many([job("a"), job("b", delay=600), job("c", delay=600.5)])
    await driver.pass_time(600)  # now it knows the next work, and will promote it without another poll
    driver.move_clock(1)
    mark = timer.mark
    server.pause()
    try:
        with pytest.raises(StoreUnavailable):
            await timer.run_once()
    finally:
        server.unpause()
    assert timer.mark != mark
    await store.close()


async def test_a_running_timer_is_woken_by_an_earlier_job(server: StoreServer) -> None:
    async with started_engine(server.url, tick_s=60) as engine:
        await engine.puts.put(job("later", delay=100))
        popped = asyncio.create_task(engine.dispatcher.pop([TOPIC], wait_ms=20_000))
        await engine.puts.put(job("sooner", delay=0.05))
        assert [found.id for found in await popped] == ["sooner"]  # long before the tick


async def test_a_message_that_overtakes_the_reply_of_a_turn_wakes_the_timer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timer does not know yet that it holds the lock, and the turn did not find the work."""
    engine = Engine(store)
    timer, run = engine.timers[0], engine._scripts.run

    async def run_and_send(verb: str, *arguments: Any, **options: Any) -> Any:
        reply = await run(verb, *arguments, **options)
        if verb == "turn":
            timer.wake("deferd:{0}:due")
        return reply

    monkeypatch.setattr(engine._scripts, "run", run_and_send)
    await timer.run_once()
    assert timer._woken.is_set()
    await engine.close()


async def test_a_turn_that_fails_with_an_unexpected_error_is_followed_by_others(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed = asyncio.Event()

    async def fail() -> float:
        failed.set()
        raise RuntimeError("a fault of the timer")

    async with started_engine(server.url, tick_s=0.05) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(engine.timers[0], "run_once", fail)
            engine.timers[0].wake_always()
            await failed.wait()
        await engine.puts.put(job(delay=0.1))
        popped = await engine.dispatcher.pop([TOPIC], wait_ms=10_000)
    assert [found.id for found in popped] == ["a"]
    assert "a fault of the timer" in caplog.text


async def test_only_work_before_all_other_of_the_shard_wakes_the_timer(driver: EngineDriver) -> None:
    def messages() -> int:
        count: int = driver.server.command("INFO", "commandstats").get("cmdstat_publish", {"calls": 0})["calls"]
        return count

    async def wakes(topic: str, after_s: int) -> bool:
        before = messages()
        instant, job_id = start + timedelta(seconds=after_s), f"{topic}{next(numbers)}"
        await driver.puts.put(PutJob.model_validate({"topic": topic, "id": job_id, "run_at": instant}))
        return messages() > before

    start, numbers = datetime.now(UTC), itertools.count()
    assert await wakes("m", 300)
    assert not await wakes("m", 400)
    assert not await wakes("n", 350)  # later than in another topic
    for topic in ("a", "z"):  # as late as in another topic, which is behind it, or before it
        assert not await wakes(topic, 300)
    assert await wakes("n", 200)
    assert await wakes("n", 100)
    assert not await wakes("n", 100)
    assert await wakes("m", 99)


@pytest.mark.slow
async def test_the_store_goes_and_comes_back(server: StoreServer) -> None:
    """Work that became due while the store did not respond is done when it responds again, without a restart."""
    store = await connect(server.url, timeout_s=1)
    engine = Engine(store)
    await engine.start()
    await engine.puts.put(job(delay=0.2))
    server.pause()
    try:
        with pytest.raises(StoreUnavailable):
            await Engine(store).ping()
    finally:
        server.unpause()
    async with asyncio.timeout(10):
        while not (popped := await pop_when_back(engine)):
            pass
    assert [found.id for found in popped] == ["a"]
    await engine.close()
    await store.close()


async def pop_when_back(engine: Engine) -> list[JobRecord]:
    try:
        return await engine.dispatcher.pop([TOPIC], wait_ms=500)
    except StoreUnavailable:
        await asyncio.sleep(0.05)
        return []
