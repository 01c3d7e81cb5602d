"""The log of a job's attempts that ended without a finish."""

from __future__ import annotations

from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver
from tests.integration.engine.sweeping import redrive_jobs


async def entries(driver: EngineDriver) -> list[tuple[int, str, str, str]]:
    """Number, how it ended, consumer and error of each logged attempt."""
    log = (await driver.queue.get(TOPIC, "a")).endings.attempts_log
    return [(number, how, consumer, error) for number, _, how, consumer, error in log]


async def test_each_failed_attempt_is_logged_with_consumer_and_error(driver: EngineDriver) -> None:
    await driver.put(ttr=10, max_attempts=3)
    await driver.deliveries.release(
        TOPIC, "a", (await driver.pop_one(consumer="w1")).receipt, delay_ms=0, error="é: no"
    )
    await driver.run_timer()
    await driver.pop_one(consumer="w2")
    await driver.pass_time(10)
    await driver.deliveries.bury(TOPIC, "a", (await driver.pop_one()).receipt, error="never")
    assert await entries(driver) == [
        (1, "released", "w1", "é: no"),
        (2, "lease_ended", "w2", ""),
        (3, "buried", "", "never"),
    ]
    [first, *_] = (await driver.queue.get(TOPIC, "a")).endings.attempts_log
    seconds, _ = driver.server.client().time()
    assert abs(first[1] / 1000 - seconds) < 5


async def test_the_end_of_time_limit_and_deadline_is_logged_as_such(driver: EngineDriver) -> None:
    await driver.put(time_limit=20, deadline=50, ttr=30)
    for _ in range(3):
        await driver.pop_one()
        await driver.pass_time(20)
    assert [how for _, how, *_ in await entries(driver)] == ["time_limit", "time_limit", "deadline"]


async def test_a_lease_that_ends_before_the_time_limit_is_logged_as_such(driver: EngineDriver) -> None:
    await driver.put(time_limit=20, ttr=10)
    await driver.pop_one()
    await driver.pass_time(10)
    assert [how for _, how, *_ in await entries(driver)] == ["lease_ended"]


async def test_only_the_last_ten_attempts_and_the_begin_of_their_errors_are_kept(driver: EngineDriver) -> None:
    await driver.put()
    for number in range(1, 13):
        error = f"{number}: " + "ü" * 10_000
        await driver.deliveries.release(TOPIC, "a", (await driver.pop_one()).receipt, delay_ms=0, error=error[:10_000])
        await driver.run_timer()
    logged = await entries(driver)
    assert [number for number, *_ in logged] == [*range(3, 13)]
    for number, _, _, error in logged:
        whole = f"{number}: " + "ü" * 300
        assert 498 < len(error.encode()) <= 500
        assert whole.startswith(error)


async def test_an_error_is_cut_between_characters(driver: EngineDriver) -> None:
    for text in ("x" * 500, "x" * 499 + "é", "x" * 498 + "😀", "😀" * 125, "x" + "😀" * 125):
        await driver.put()
        await driver.deliveries.bury(TOPIC, "a", (await driver.pop_one()).receipt, error=text)
        [(_, _, _, error)] = await entries(driver)
        assert error == text.encode()[:500].decode(errors="ignore")
        await driver.cancels.cancel(TOPIC, "a")


async def test_snoozes_and_successes_are_not_logged_and_cost_nothing(driver: EngineDriver) -> None:
    await driver.put(retain=60)
    before = driver.server.command("HSTRLEN", f"{KEY}:pool", "a")
    await driver.pop_one(consumer="w1")
    assert driver.server.command("HSTRLEN", f"{KEY}:pool", "a") == before
    held = await driver.queue.get(TOPIC, "a")
    await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=1000, counts=False)
    await driver.pass_time(1)
    await driver.queue.finish(TOPIC, "a", (await driver.pop_one()).receipt)
    assert await entries(driver) == []


async def test_a_redrive_keeps_the_log(driver: EngineDriver) -> None:
    await driver.put()
    for _ in range(2):
        await driver.deliveries.bury(TOPIC, "a", (await driver.pop_one()).receipt)
        await redrive_jobs(driver.engine, TOPIC)
    assert [number for number, *_ in await entries(driver)] == [1, 1]
