"""Opening hours and spread on a real store: which due times move, and which do not.

What all doors show of them is in tests/conformance/test_windows.py.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deferd.contract.errors import InvalidInput, JobExists, StoreUnavailable
from deferd.contract.limits import CALENDARS_MAX
from deferd.contract.model import ChangeJob, JobState, PutJob, TopicSettings
from deferd.contract.operations.schedules_and_calendars import PutCalendar
from deferd.engine.calendars import Calendars
from deferd.engine.engine import Engine
from deferd.engine.openings import Openings, spread_of
from deferd.engine.placement import DueTimePlacer
from deferd.engine.store_copy import copy_store
from deferd.store.connection import Store, connect
from deferd.store.preflight import check
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job, started_engine
from tests.integration.engine.sweeping import redrive_jobs
from tests.integration.engine.window_times import (
    MONDAY_EVENING,
    MONDAY_NOON,
    NIGHT,
    OFFICE,
    TUESDAY_OPENING,
    as_stored,
    asked,
    instant,
    move_to,
    ms,
    now_ms,
    set_topic,
)
from tests.integration.store.store_servers import StoreServer

# Puts


async def test_a_run_at_in_the_past_is_placed_from_now(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_EVENING)
    put = await driver.put(window=OFFICE, run_at="2030-01-14T10:00:00Z")
    assert (instant(put.due_at_ms), asked(put)) == (TUESDAY_OPENING, MONDAY_EVENING)


async def test_a_spread_counts_from_an_instant_in_the_past(driver: EngineDriver) -> None:
    await move_to(driver, "2030-01-15T00:00:00+00:00")
    offset = spread_of("a", 3_600_000)
    assert offset > 600_000
    driver.move_clock(600)
    put = await driver.put("a", run_at="2030-01-15T00:00:00Z", spread=3600)
    assert (put.due_at_ms, asked(put)) == (ms("2030-01-15T00:00:00+00:00") + offset, "2030-01-15T00:00:00+00:00")
    driver.move_clock(3600)
    late = await driver.put("a", run_at="2030-01-15T00:00:00Z", spread=3600, on_conflict="replace")
    assert (late.state, late.placement.moved_ms) == (JobState.READY, 0)


async def test_a_spread_that_leaves_the_window_moves_to_the_next_opening(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_NOON)
    short = {**OFFICE, "to": "09:01"}
    dues = {(await driver.put(str(each), window=short, spread=600)).due_at_ms for each in range(20)}
    assert all(instant(due)[:17] == "2030-01-15T08:00:" or instant(due) == "2030-01-16T08:00:00+00:00" for due in dues)
    assert len(dues) > 1


async def test_ttl_and_deadline_count_from_the_moved_due(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_EVENING)
    await driver.put(window=OFFICE, ttl=60)
    await driver.put("b", window=OFFICE, deadline=90)
    await driver.pass_time((ms(TUESDAY_OPENING) - ms(MONDAY_EVENING)) / 1000 + 50)
    assert await driver.counts() == {"ready": 2}
    await driver.pass_time(20)
    assert await driver.state("a") is JobState.DEAD
    assert await driver.state("b") is JobState.READY
    await driver.pass_time(30)
    assert await driver.state("b") is JobState.DEAD


async def test_puts_that_share_a_call_are_placed_each_by_its_own_window(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_EVENING)
    puts = [job("a", window=OFFICE), job("b", window=NIGHT), job("c", spread=60), job("d"), job("e", window=OFFICE)]
    records = [one.record for one in await asyncio.gather(*map(driver.puts.put, puts))]
    assert [instant(one.due_at_ms) for one in records if one.id in "abe"] == [
        TUESDAY_OPENING,
        "2030-01-14T22:00:00+00:00",
        TUESDAY_OPENING,
    ]
    assert records[3].state is JobState.READY


async def test_a_put_that_is_refused_says_why(driver: EngineDriver) -> None:
    await driver.put(window=NIGHT)
    with pytest.raises(JobExists):
        await driver.put(window=NIGHT)
    assert (await driver.put(window=OFFICE, on_conflict="keep")).placement.window == as_stored(NIGHT)


async def test_a_max_wait_wins_over_the_window(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_EVENING)
    put = await driver.put(window=OFFICE, on_conflict="replace", max_wait=3600)
    assert (instant(put.due_at_ms), put.placement.moved_ms) == ("2030-01-14T21:00:00+00:00", 0)


async def test_placed_puts_that_collapse_keep_all_their_options(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_EVENING)
    others = {"tags": ["x"], "ttl": 60, "retain": 5, "unique_for": 7, "headers": {"a": "b"}, "max_attempts": 3}
    for number in range(2 ** len(others)):
        fields = {name: value for at, (name, value) in enumerate(others.items()) if number >> at & 1}
        for placed in ({"spread": 60}, {"window": OFFICE, "spread": 60}, {"window": OFFICE}):
            job_id = f"{number}-{'-'.join(placed)}"
            await driver.put(job_id, on_conflict="replace", max_wait=900_000, **placed, **fields)
            await driver.put(f"{job_id}-append", on_conflict="append", **placed, **fields)
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


async def test_appends_are_placed(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_EVENING)
    options: dict[str, Any] = {"on_conflict": "append", "window": OFFICE}
    await driver.put(body=1, **options)
    await driver.pass_time(600)
    second = await driver.put(body=2, **options)
    assert (instant(second.due_at_ms), asked(second)) == (TUESDAY_OPENING, "2030-01-14T20:10:00+00:00")
    full = await driver.put(body=3, max_items=3, **options)
    assert (full.state, full.placement.moved_ms) == (JobState.READY, 0)
    first_is_last = await driver.put("b", body=1, max_items=1, **options)
    assert (first_is_last.state, first_is_last.placement.moved_ms) == (JobState.READY, 0)
    bounded = await driver.put("c", body=1, max_wait=60, **options)
    assert (instant(bounded.due_at_ms), bounded.placement.moved_ms) == ("2030-01-14T20:11:00+00:00", 0)


# Retries


@pytest.mark.parametrize("counts", [True, False])
async def test_the_end_of_a_backoff_moves_to_the_next_opening(driver: EngineDriver, counts: bool) -> None:
    await move_to(driver, "2030-01-14T15:59:00+00:00")
    await driver.put(window=OFFICE, deadline=86_400, backoff={"kind": "fixed", "seconds": 120})
    held = await driver.pop_one()
    delay_ms = None if counts else 120_000
    released = await driver.deliveries.release(
        TOPIC, "a", held.receipt, error="it failed", delay_ms=delay_ms, counts=counts
    )
    assert (released.state, instant(released.due_at_ms)) == (JobState.DELAYED, TUESDAY_OPENING)
    job_now = await driver.queue.get(TOPIC, "a")
    assert asked(job_now) == "2030-01-14T16:01:00+00:00"
    assert (job_now.attempts, job_now.endings.snoozes, job_now.last_error) == (counts, not counts, "it failed")
    assert instant(job_now.deadline_at_ms) == "2030-01-15T15:59:00+00:00"
    await driver.pass_time((ms(TUESDAY_OPENING) - await now_ms(driver)) / 1000 - 1)
    assert await driver.pop() == []
    await driver.pass_time(1.1)
    again = await driver.pop_one()
    released = await driver.deliveries.release(TOPIC, "a", again.receipt, delay_ms=120_000, counts=counts)
    assert (instant(released.due_at_ms)[:16], (await driver.queue.get(TOPIC, "a")).placement.moved_ms) == (
        "2030-01-15T08:02",
        0,
    )


async def test_retries_that_wait_for_the_opening_are_spread(driver: EngineDriver) -> None:
    await move_to(driver, "2030-01-14T15:59:00+00:00")
    for job_id in ("a", "b"):
        await driver.put(job_id, window=OFFICE)
    await driver.queue.change(TOPIC, "a", ChangeJob(spread=600))
    for held in await driver.pop(2):
        await driver.deliveries.release(TOPIC, held.id, held.receipt, delay_ms=120_000)
    assert (await driver.queue.get(TOPIC, "a")).due_at_ms == ms(TUESDAY_OPENING) + spread_of("a", 600_000)
    assert (await driver.queue.get(TOPIC, "b")).due_at_ms == ms(TUESDAY_OPENING)


async def test_a_spread_alone_does_not_move_retries(driver: EngineDriver) -> None:
    await driver.put(spread=60)
    await driver.pass_time(60)
    held = await driver.pop_one()
    released = await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=5000)
    assert abs((released.due_at_ms or 0) - await now_ms(driver) - 5000) < 1000
    assert (await driver.queue.get(TOPIC, "a")).placement.moved_ms == 0


async def test_a_release_that_buries_does_so_in_quiet_hours_too(driver: EngineDriver) -> None:
    await move_to(driver, "2030-01-14T15:59:00+00:00")
    options: dict[str, dict[str, Any]] = {
        "a": {"max_attempts": 1},
        "b": {"backoff": {"kind": "schedule", "seconds": [0]}},
        "c": {"deadline": 3600},
    }
    for job_id, fields in options.items():
        await driver.put(job_id, window=OFFICE, ttr=86_400, **fields)
    held = {one.id: one for one in await driver.pop(3)}
    assert (await driver.deliveries.release(TOPIC, "a", held["a"].receipt)).state is JobState.DEAD
    await driver.deliveries.release(TOPIC, "b", held["b"].receipt)
    await driver.run_timer()
    again = await driver.pop_one()
    assert (await driver.deliveries.release(TOPIC, "b", again.receipt)).state is JobState.DEAD
    driver.move_clock(3600)
    assert (await driver.deliveries.release(TOPIC, "c", held["c"].receipt)).state is JobState.DEAD
    reasons = [(await driver.queue.get(TOPIC, job_id)).reason for job_id in "abc"]
    assert reasons == ["attempts_exhausted", "schedule_ended", "deadline"]


async def test_the_first_step_of_a_release_changes_nothing(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await move_to(driver, "2030-01-14T15:59:00+00:00")
    await driver.put(window=OFFICE)
    held = await driver.pop_one(consumer="one")

    async def fails(*_args: Any) -> None:
        raise StoreUnavailable("it is away")

    monkeypatch.setattr(DueTimePlacer, "place_retry", fails)
    before = driver.server.command("HGETALL", "deferd:{0}:orders.close:pool")
    with pytest.raises(StoreUnavailable):
        await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=120_000, error="it failed")
    assert driver.server.command("HGETALL", "deferd:{0}:orders.close:pool") == before
    assert (await driver.queue.get(TOPIC, "a")).reserved_by == "one"
    monkeypatch.undo()
    assert (await driver.deliveries.release(TOPIC, "a", held.receipt)).state is JobState.DELAYED


async def test_a_window_that_changes_during_a_release_places_it_again(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await move_to(driver, "2030-01-14T15:59:00+00:00")
    await driver.put(window=OFFICE)
    held = await driver.pop_one()
    place_retry = DueTimePlacer.place_retry
    windows = []

    async def meanwhile(self: DueTimePlacer, job_id: str, asked_ms: int, window: str, spread_ms: int) -> Any:
        windows.append(window)
        if len(windows) == 1:
            raw = str(driver.server.command("HGET", "deferd:{0}:orders.close:pool", "a"))
            assert "17:00" in raw
            script = (
                "redis.call('HSET', KEYS[1], 'a', (string.gsub(redis.call('HGET', KEYS[1], 'a'), '17:00', '18:00')))"
            )
            driver.server.command("EVAL", script, 1, "deferd:{0}:orders.close:pool")
        return await place_retry(self, job_id, asked_ms, window, spread_ms)

    monkeypatch.setattr(DueTimePlacer, "place_retry", meanwhile)
    released = await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=120_000)
    assert instant(released.due_at_ms) == "2030-01-14T16:01:00+00:00"
    assert len(windows) == 2


async def test_a_lease_that_ends_is_redelivered_at_once(driver: EngineDriver) -> None:
    await move_to(driver, "2030-01-14T15:59:50+00:00")
    await driver.put(window=OFFICE, ttr=30)
    await driver.pop_one()
    await driver.pass_time(31)
    assert await driver.state() is JobState.READY


# What else makes jobs due


async def test_a_redrive_is_ready_at_once(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_NOON)
    await driver.put(window={**OFFICE, "to": "09:01"}, spread=30)
    driver.move_clock((ms(TUESDAY_OPENING) - ms(MONDAY_NOON)) / 1000 + 30)
    await driver.run_timer()
    held = await driver.pop_one()
    await driver.deliveries.bury(TOPIC, "a", held.receipt)
    driver.move_clock(3600)
    assert await redrive_jobs(driver.engine, TOPIC) == 1
    redriven = await driver.queue.get(TOPIC, "a")
    assert (redriven.state, redriven.placement.moved_ms, redriven.placement.spread_ms) == (JobState.READY, 0, 30_000)


async def test_follow_ups_and_chains_are_placed(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_EVENING)
    await driver.put()
    held = await driver.pop_one()
    follow_up = await driver.put(window=OFFICE, on_conflict="replace", if_reserved="after")
    assert (instant(follow_up.due_at_ms), asked(follow_up)) == (TUESDAY_OPENING, MONDAY_EVENING)
    chained = [job("b", window=OFFICE), PutJob(topic="other", id="c", spread=60)]
    results = await driver.queue.finish_and_put(TOPIC, "a", held.receipt, chained)
    assert [result.status for result in results] == [201, 201]
    assert instant((await driver.queue.get(TOPIC, "b")).due_at_ms) == TUESDAY_OPENING
    assert (await driver.queue.get("other", "c")).placement.moved_ms == spread_of("c", 60_000)
    started = await driver.queue.get(TOPIC, "a")
    assert (instant(started.due_at_ms), started.placement.window) == (TUESDAY_OPENING, as_stored(OFFICE))


async def test_a_follow_up_that_begins_late_begins_when_the_job_before_it_ends(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_EVENING)
    await driver.put(ttr=86_400)
    held = await driver.pop_one()
    await driver.put(window=OFFICE, on_conflict="replace", if_reserved="after")
    await move_to(driver, "2030-01-15T20:00:00+00:00")
    await driver.queue.finish(TOPIC, "a", held.receipt)
    started = await driver.queue.get(TOPIC, "a")
    assert (instant(started.due_at_ms)[:16], started.placement.moved_ms) == ("2030-01-15T20:00", 0)


async def test_a_chain_with_a_wrong_window_does_nothing(driver: EngineDriver) -> None:
    await driver.put()
    held = await driver.pop_one()
    with pytest.raises(InvalidInput) as refused:
        await driver.queue.finish_and_put(TOPIC, "a", held.receipt, [job("b"), job("c", window="unknown")])
    assert refused.value.field_errors[0].path == ("body", "put", 1, "window")
    assert await driver.state() is JobState.RESERVED


# What uses none of it


async def test_a_job_without_all_this_is_stored_as_before(driver: EngineDriver) -> None:
    record = await driver.put()
    assert record.is_plain
    assert driver.server.command("HSTRLEN", "deferd:{0}:orders.close:pool", "a") == 30
    await driver.cancels.cancel(TOPIC, "a")
    assert (await driver.put(window=None, spread=None)).is_plain
    assert driver.server.command("HSTRLEN", "deferd:{0}:orders.close:pool", "a") == 30


async def test_a_clock_that_was_read_is_used_for_a_while(driver: EngineDriver) -> None:
    async with started_engine(driver.server.url) as real:
        clock = real.placer._clock
        first = await clock.now_ms(0)
        driver.server.command("CONFIG", "RESETSTAT")
        second = await clock.now_ms(0)
        assert 0 <= second - first < 5000
        assert abs(second - datetime.now(UTC).timestamp() * 1000) < 5000
        assert "cmdstat_time" not in str(driver.server.command("INFO", "commandstats"))


# Defaults of topics, and calendars

# Defaults of topics


async def test_another_service_learns_the_defaults_from_the_store(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_EVENING)
    await driver.put("before")
    async with started_engine(driver.server.url, movable_clock=True) as other:
        await other.topics.set(TOPIC, TopicSettings.model_validate({"window": OFFICE, "ttr": 5}))
        first = await driver.put("a")
        assert (instant(first.due_at_ms), first.stored("ttr")) == (TUESDAY_OPENING, 5000)
        assert TOPIC in driver.engine.placer.defaults
        await other.topics.set(TOPIC, TopicSettings.model_validate({"window": NIGHT}))
        assert instant((await driver.put("b")).due_at_ms) == "2030-01-14T22:00:00+00:00"
        await other.topics.set(TOPIC, TopicSettings())
        assert (await driver.put("c")).state is JobState.READY
        assert TOPIC not in driver.engine.placer.defaults
        await other.topics.set(TOPIC, TopicSettings.model_validate({"spread": 60}))
        for level in (None, "memory"):
            put = await driver.put(f"d-{level}", durability=level)
            assert put.placement.moved_ms == spread_of(f"d-{level}", 60_000)


async def test_chains_learn_the_defaults_of_several_topics(driver: EngineDriver) -> None:
    await move_to(driver, MONDAY_EVENING)
    names = [f"topic-{each}" for each in range(8)]
    async with started_engine(driver.server.url, movable_clock=True) as other:
        for name in names:
            await other.topics.set(name, TopicSettings.model_validate({"window": OFFICE, "durability": "memory"}))
    await driver.put()
    held = await driver.pop_one()
    chained = [PutJob(topic=name, id="x") for name in names]
    results = await driver.queue.finish_and_put(TOPIC, "a", held.receipt, chained)
    assert [result.status for result in results] == [201] * 8
    for name in names:
        assert instant((await driver.queue.get(name, "x")).due_at_ms) == TUESDAY_OPENING


# Calendars


async def test_jobs_of_a_deleted_or_damaged_calendar_are_always_open(driver: EngineDriver) -> None:
    await move_to(driver, "2030-01-14T15:59:00+00:00")
    calendars = driver.engine.calendars
    await calendars.put("office", PutCalendar.model_validate({"windows": [OFFICE]}))
    await set_topic(driver, window="office")
    await driver.put("a")
    held = await driver.pop_one()
    await calendars.delete("office")
    released = await driver.deliveries.release(TOPIC, "a", held.receipt, delay_ms=120_000)
    assert instant(released.due_at_ms) == "2030-01-14T16:01:00+00:00"
    with pytest.raises(InvalidInput):
        await driver.put("b", window="office")
    await driver.put("b")
    driver.server.command("HSET", "deferd:{0}:calendars", "office", "{")
    fresh = Calendars(driver.engine._scripts, driver.engine._keys)
    assert await fresh.openings_of("office") is None
    assert await fresh.all() == []


# Copies and checks of stores

CALENDAR = PutCalendar.model_validate({"windows": [OFFICE, NIGHT]})


async def assert_placed(engine: Engine, topics: list[str]) -> None:
    openings = Openings.of(CALENDAR.windows)
    for topic in topics:
        put = PutJob.model_validate({"topic": topic, "id": "a", "window": "office", "spread": 600, "delay": 3600})
        record = (await engine.puts.put(put)).record
        asked_ms = record.due_at_ms - record.placement.moved_ms
        assert record.due_at_ms == openings.next_open(openings.next_open(asked_ms) + spread_of("a", 600_000))


async def test_a_copy_takes_calendars_and_placed_jobs_along(store: Store, tmp_path: Path) -> None:
    await check(store, shards=2)
    engine = Engine(store, shards=2)
    await engine.calendars.put("office", CALENDAR)
    await assert_placed(engine, [TOPIC])
    await engine.close()
    with StoreServer(tmp_path) as server:
        target = await connect(server.url, timeout_s=5)
        assert (await copy_store(store, target, shards=1)).adds_up
        copied = Engine(target, shards=1)
        assert (await copied.calendars.get("office")).windows == tuple(CALENDAR.windows)
        assert (await copied.queue.get(TOPIC, "a")).placement.window == '"office"'
        await copied.close()
        await target.close()


async def test_a_check_finds_nothing_wrong_with_calendars_and_placed_jobs(driver: EngineDriver) -> None:
    await driver.engine.calendars.put("office", CALENDAR)
    await driver.put(window="office", spread=60)
    report = await driver.engine.consistency.audit_store()
    assert (report.clean, report.stray_keys) == (True, [])
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


@pytest.mark.slow
async def test_there_are_so_many_calendars_at_most(driver: EngineDriver) -> None:
    key = "deferd:{0}:calendars"
    text = CALENDAR.model_dump_json(by_alias=True)
    for number in range(CALENDARS_MAX):
        driver.server.command("HSET", key, f"c{number}", text)
    with pytest.raises(InvalidInput, match="1000"):
        await driver.engine.calendars.put("one.more", CALENDAR)
    assert (await driver.engine.calendars.put("c0", CALENDAR))[1] is False
