"""What comes due: counts of delayed jobs by when they are due."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from deferd.contract.errors import InvalidInput
from deferd.contract.model import PutJob
from deferd.engine.inspection.forecast import Forecast, TopicForecast
from tests.integration.engine.engine_driver import TOPIC, EngineDriver


async def forecast(driver: EngineDriver, *topics: str, **options: Any) -> Forecast:
    driver.engine.forecasts._reads._values.clear()
    return await driver.engine.forecasts.forecast(topics or None, lambda _: True, **options)


async def put_due(driver: EngineDriver, delays_s: list[float], topic: str = TOPIC) -> list[int]:
    """Put delayed jobs; returns when they are due."""
    jobs = [PutJob(topic=topic, id=f"j{number}", delay=delay_s) for number, delay_s in enumerate(delays_s)]
    for at in range(0, len(jobs), 1000):
        await driver.puts.put_many(jobs[at : at + 1000])
    found = driver.server.command("ZRANGE", f"deferd:{{0}}:{topic}:delay", 0, -1, "WITHSCORES")
    return [int(score) for _, score in found]


def expected(due_ms: list[int], made: Forecast) -> TopicForecast:
    """Counted one by one."""
    begin_ms, end_ms, buckets = made.period
    ends = [begin_ms + at * (end_ms - begin_ms) // buckets for at in range(buckets + 1)]
    counts = [sum(ends[at] <= due < ends[at + 1] for due in due_ms) for at in range(buckets)]
    return TopicForecast(len(due_ms), sum(due < begin_ms for due in due_ms), counts)


@pytest.mark.parametrize("count", [1, 40, 60, 2000])
async def test_the_counts_are_exact(driver: EngineDriver, count: int) -> None:
    """Also for few jobs, which are read and not searched."""
    due_ms = await put_due(driver, [random.choice([30.0, random.random() * 12_000]) + 1 for _ in range(count)])
    now_ms = (await forecast(driver)).now_ms
    for buckets in (1, 7, 60, 240):
        made = await forecast(driver, from_ms=now_ms + 2_000_000, to_ms=now_ms + 8_000_003, buckets=buckets)
        counted = expected(due_ms, made)
        assert list(made.topics) == [TOPIC]
        assert (list(made.topics[TOPIC].counts), made.topics[TOPIC].before) == (counted.counts, counted.before)
        assert made.topics[TOPIC].after == counted.after
        assert made.total().delayed == count


def counted(made: Forecast) -> tuple[int, int, list[int]]:
    delayed, before, counts, *_ = made.topics[TOPIC]
    return delayed, before, [*counts]


async def test_jobs_at_the_ends_of_buckets_count_once(driver: EngineDriver) -> None:
    [first_ms] = await put_due(driver, [100])
    for number, later_ms in enumerate((999, 1000, 1001, 1999, 2000)):
        driver.server.command("ZADD", f"deferd:{{0}}:{TOPIC}:delay", first_ms + later_ms, f"x{number}")
    made = await forecast(driver, from_ms=first_ms, to_ms=first_ms + 2000, buckets=2)
    assert counted(made) == (6, 0, [2, 3])
    assert made.topics[TOPIC].after == 1
    made = await forecast(driver, from_ms=first_ms + 1, to_ms=first_ms + 2001, buckets=2)
    assert counted(made) == (6, 1, [2, 3])


async def test_by_default_it_begins_now_and_lasts_six_hours(driver: EngineDriver) -> None:
    await put_due(driver, [5, 100, 10_000, 30_000])
    driver.move_clock(10)
    made = await forecast(driver)
    assert made.period == (made.now_ms, made.now_ms + 21_600_000, 60)
    of_topic = made.topics[TOPIC]
    assert (of_topic.delayed, of_topic.before, of_topic.after, sum(of_topic.counts)) == (4, 1, 1, 2)
    assert (of_topic.counts[0], of_topic.counts[27]) == (1, 1)
    later = await forecast(driver, to_ms=made.now_ms + 50_000)
    assert later.period.from_ms == later.now_ms
    later = await forecast(driver, from_ms=made.now_ms + 50_000)
    assert later.period.to_ms == made.now_ms + 50_000 + 21_600_000


async def test_topics_and_visibility(driver: EngineDriver) -> None:
    for topic, count in {"mail.a": 3, "mail.b": 2, "orders": 70}.items():
        await put_due(driver, [float(number + 1) for number in range(count)], topic)
    await driver.puts.put(PutJob(topic="ready", id="x"))
    made = await forecast(driver)
    assert {name: counts.delayed for name, counts in made.topics.items()} == {"mail.a": 3, "mail.b": 2, "orders": 70}
    assert made.total().delayed == 75
    assert list((await forecast(driver, "mail.*")).topics) == ["mail.a", "mail.b"]
    assert list((await forecast(driver, "orders", "nothing")).topics) == ["orders"]
    seen = await driver.engine.forecasts.forecast(None, lambda topic: topic == "mail.b")
    assert (list(seen.topics), seen.total().delayed) == (["mail.b"], 2)
    assert (await forecast(driver, "nothing")).total() == (0, 0, [0] * 60, [0] * 60)


async def test_a_forecast_is_made_once_for_all_who_ask(driver: EngineDriver) -> None:
    await put_due(driver, [60])
    calls = []
    run = driver.engine._scripts.run

    async def counting(verb: str, *arguments: Any, **options: Any) -> Any:
        calls.append(verb)
        return await run(verb, *arguments, **options)

    driver.engine._scripts.run = counting  # type: ignore[method-assign]
    made = await asyncio.gather(*(driver.engine.forecasts.forecast(None, lambda _: True) for _ in range(5)))
    await put_due(driver, [60, 70, 80])
    made.append(await driver.engine.forecasts.forecast(None, lambda _: True))
    assert calls.count("due_counts") == 2
    assert {one.total().delayed for one in made} == {1}
    assert (await forecast(driver)).total().delayed == 3


@pytest.mark.parametrize(("from_ms", "to_ms"), [(2000, 2000), (2000, 1000), (None, 1000), (1000, 1059)])
async def test_the_end_must_be_later(driver: EngineDriver, from_ms: int | None, to_ms: int) -> None:
    with pytest.raises(InvalidInput, match="at least a millisecond for each bucket"):
        await forecast(driver, from_ms=from_ms, to_ms=to_ms)
