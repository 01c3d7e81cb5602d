"""What becomes of runs that overlap, that were missed, or that change of the clock concern; and each occurs once."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from prometheus_client import REGISTRY

from deferd.contract.model import PutJob
from deferd.engine.engine import Engine
from deferd.engine.record import ANY_RECEIPT
from deferd.store.connection import Store, connect
from tests.integration.engine.engine_driver import KEY, TOPIC
from tests.integration.engine.schedule_driver import DAY_S, NAME, ScheduleDriver
from tests.integration.store.store_servers import StoreServer

HOUR_S = 3600
ON_END = {"on_end": {"topic": "ended"}}


def counted(outcome: str) -> float:
    return REGISTRY.get_sample_value("deferd_schedule_runs_total", {"topic": TOPIC, "outcome": outcome}) or 0


def ends(schedules: ScheduleDriver) -> int:
    """How many runs have ended."""
    count: int = schedules.server.command("HLEN", "deferd:{0}:ended:pool")
    return count


# Overlap


@pytest.mark.parametrize("state", ["ready", "delayed"])
async def test_a_run_is_skipped_while_the_last_one_is_live(schedules: ScheduleDriver, state: str) -> None:
    before = counted("skipped")
    await schedules.schedule(every=60, overlap="skip")
    await schedules.advance(61)
    [first] = schedules.ready_list()
    if state == "delayed":
        await schedules.pop_one(ttr_ms=900_000)
        await schedules.deliveries.release(TOPIC, first, ANY_RECEIPT, delay_ms=900_000)
    await schedules.advance(120)
    assert await schedules.counters() == (1, 2, 0, 1)
    assert counted("skipped") == before + 2
    await schedules.cancels.cancel(TOPIC, first)
    await schedules.advance(60)
    assert await schedules.counters() == (2, 2, 0, 1)
    assert (await schedules.get()).last_id == schedules.ready_list()[0] != first
    await schedules.assert_clean()


@pytest.mark.parametrize("state", ["finished", "dead"])
async def test_a_run_follows_one_that_has_ended(schedules: ScheduleDriver, state: str) -> None:
    await schedules.schedule(every=60, overlap="skip", job={"retain": 5000})
    await schedules.advance(61)
    popped = await schedules.pop_one()
    if state == "dead":
        await schedules.deliveries.bury(TOPIC, popped.id, popped.receipt)
    else:
        await schedules.queue.finish(TOPIC, popped.id, popped.receipt)
    await schedules.advance(60)
    assert await schedules.counters() == (2, 0, 0, 1)


@pytest.mark.parametrize("is_held", [False, True])
async def test_a_run_replaces_the_last_one_while_that_is_live(schedules: ScheduleDriver, is_held: bool) -> None:
    before = counted("replaced")
    await schedules.schedule(every=60, overlap="replace", job={"tags": ["t"]})
    await schedules.advance(61)
    [first] = schedules.ready_list()
    if is_held:
        await schedules.pop_one(ttr_ms=900_000)
    await schedules.advance(60)
    [second] = schedules.ready_list()
    assert second != first
    assert await schedules.counters() == (2, 0, 0, 1)
    assert counted("replaced") == before + 1
    assert await schedules.counts() == {"delayed": 1, "ready": 1}
    if is_held:
        assert schedules.server.command("ZSCORE", f"{KEY}:cancelled", first) is not None
    await schedules.assert_clean()


async def test_of_runs_caught_up_with_together_each_replaces_the_one_before(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60, overlap="replace", catch_up="all", job=ON_END)
    last = None
    await schedules.pass_outage(60 * 5.5)
    [last] = schedules.ready_list()
    assert last == (await schedules.get()).last_id
    assert await schedules.counters() == (5, 0, 0, 1)
    assert ends(schedules) == 4
    await schedules.assert_clean()


async def test_of_runs_caught_up_with_together_all_but_one_are_skipped(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60, overlap="skip", catch_up="all", job=ON_END)
    first = await schedules.next_id()
    await schedules.pass_outage(60 * 5.5)
    assert schedules.ready_list() == [first]
    assert await schedules.counters() == (1, 4, 0, 1)
    assert ends(schedules) == 0
    await schedules.assert_clean()


# After an outage


async def test_after_an_outage_the_last_missed_run_is_made_up_for(schedules: ScheduleDriver) -> None:
    first = (await schedules.schedule(every=HOUR_S)).schedule
    assert first.next_due_ms is not None
    await schedules.pass_outage(5.5 * HOUR_S)
    fifth = f"{NAME}:{datetime.fromtimestamp(first.next_due_ms // 1000 + 4 * HOUR_S, UTC):%Y%m%dT%H%M%SZ}"
    assert schedules.ready_list() == [fifth]
    assert await schedules.counters() == (1, 0, 4, 1)
    assert (await schedules.get()).next_due_ms == first.next_due_ms + 5 * HOUR_S * 1000
    await schedules.assert_clean()


async def test_a_short_outage_makes_a_run_late_only(schedules: ScheduleDriver) -> None:
    first = (await schedules.schedule(every=HOUR_S)).schedule
    await schedules.pass_outage(1.5 * HOUR_S)
    assert schedules.ready_list() == [first.next_id]
    assert await schedules.counters() == (1, 0, 0, 1)


async def test_all_missed_runs_are_made_up_for(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=HOUR_S, catch_up="all")
    await schedules.pass_outage(200.5 * HOUR_S)
    ids = schedules.ready_list()
    assert len(set(ids)) == 200
    assert ids == sorted(ids)
    assert await schedules.counters() == (200, 0, 0, 1)
    await schedules.assert_clean()


async def test_at_most_the_last_thousand_are_made_up_for(schedules: ScheduleDriver) -> None:
    schedule = (await schedules.schedule(every=60, catch_up="all")).schedule
    await schedules.pass_outage(60 * 5000 + 30)
    ids = schedules.ready_list()
    assert ids[0] == schedule.next_id  # it had been put before the outage
    assert len(set(ids)) == 1001
    assert await schedules.counters() == (1001, 0, 3999, 1)
    assert ids == sorted(ids)
    await schedules.assert_clean()


async def test_no_missed_run_is_made_up_for(schedules: ScheduleDriver) -> None:
    before = counted("missed")
    await schedules.schedule(every=HOUR_S, catch_up="none")
    await schedules.pass_outage(5.5 * HOUR_S)
    assert schedules.ready_list() == []
    assert await schedules.counters() == (0, 0, 5, 1)
    assert counted("missed") == before + 1  # of the job that was put; the others never were
    await schedules.pass_outage(0.5 * HOUR_S + 50)  # the clock also runs by itself
    assert await schedules.counters() == (1, 0, 5, 1)
    await schedules.pass_outage(HOUR_S + 11)
    assert await schedules.counters() == (1, 0, 6, 1)
    await schedules.assert_clean()


async def test_what_was_missed_within_the_last_minute_is_made_up_for(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=HOUR_S, catch_up="none")
    await schedules.pass_outage(3 * HOUR_S + 30)
    assert await schedules.counters() == (1, 0, 2, 1)


async def test_max_runs_bounds_what_is_made_up_for(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60, catch_up="all", max_runs=4)
    await schedules.pass_outage(600)
    await schedules.advance(10)
    schedule = await schedules.get()
    assert (schedule.runs, schedule.state.is_ended, schedule.next_due_ms) == (4, True, None)
    await schedules.assert_clean()


# Windows


async def test_occurrences_that_a_window_moves_together_become_one_run(schedules: ScheduleDriver) -> None:
    window = {"zone": "Europe/Berlin", "from": "09:00", "to": "17:00"}
    await schedules.schedule(cron="0 * * * *", zone="Europe/Berlin", window=window)
    await schedules.advance(2 * DAY_S)
    berlin = ZoneInfo("Europe/Berlin")
    hours = [
        datetime.strptime(job_id[len(NAME) + 1 :], "%Y%m%dT%H%M%S%z").astimezone(berlin).hour
        for job_id in schedules.ready_list()
    ]
    assert len(hours) == 16
    assert set(hours) == set(range(9, 17))


# Changes of the clock


@pytest.mark.parametrize(
    ("zone", "cron", "day", "expected"),
    [
        ("Europe/Berlin", "30 2 * * *", "2027-03-28", "03:00:00+02:00"),
        ("Europe/Berlin", "30 2 * * *", "2027-10-31", "02:30:00+02:00"),
        ("Australia/Lord_Howe", "15 2 * * *", "2027-10-03", "02:30:00+11:00"),
        ("Australia/Lord_Howe", "45 1 * * *", "2027-04-04", "01:45:00+11:00"),
    ],
)
async def test_a_run_takes_place_once_on_the_day_of_a_change_of_the_clock(
    schedules: ScheduleDriver, zone: str, cron: str, day: str, expected: str
) -> None:
    begin = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    await schedules.schedule(cron=cron, zone=zone)
    now_ms = await schedules.now_ms()
    schedules.move_clock(begin.timestamp() - now_ms / 1000 - DAY_S)  # the runs until then are missed
    await schedules.run_timer()
    await schedules.advance(3 * DAY_S)
    runs = [
        datetime.strptime(job_id[len(NAME) + 1 :], "%Y%m%dT%H%M%S%z").astimezone(ZoneInfo(zone)).isoformat()
        for job_id in schedules.ready_list()
    ]
    assert [run[11:] for run in runs if run.startswith(day)] == [expected]


# Exactly once


async def test_each_occurrence_is_put_once_whoever_advances_it(store: Store, server: StoreServer) -> None:
    """Five processes advance twenty schedules at the same time, without a lock, through an outage and after it."""
    stores = [await connect(server.url, timeout_s=5) for _ in range(5)]
    engines = [Engine(one, shards=3, movable_clock=True) for one in (store, *stores)]
    driver = ScheduleDriver(engines[0], server)
    for number in range(20):
        await driver.schedule(f"s{number}", topic=f"t{number}", every=60, catch_up="all")
    for shard in range(3):
        server.command("INCRBY", f"deferd:{{{shard}}}:clock", 60_000 * 250 + 30_000)

    async def work(engine: Engine) -> None:
        for _ in range(10):
            now_ms = await driver.now_ms()
            await asyncio.gather(*(timer.catch_up(now_ms) for timer in engine.timers))

    await asyncio.gather(*map(work, engines))
    for number in range(20):
        schedule = await driver.get(f"s{number}")
        assert (schedule.runs, schedule.skips, schedule.missed, schedule.waiting) == (250, 0, 0, 1)
        view = await driver.topics.get(f"t{number}")
        assert (view.counts["ready"], view.counts["delayed"]) == (250, 1)  # type: ignore[index]
        tally = f"deferd:{{{schedule.shard}}}:{schedule.topic}:tally"
        assert server.command("HGET", tally, "put") == b"251"
    assert (await driver.engine.consistency.audit_store()).clean
    for one in engines:
        await one.close()
    for other in stores:
        await other.close()


async def test_a_schedule_put_into_several_shards_at_once_stays_in_one(store: Store, server: StoreServer) -> None:
    engine = Engine(store, shards=7, movable_clock=True)
    driver = ScheduleDriver(engine, server)
    topics = [f"t{number}" for number in range(12)]
    await asyncio.gather(*(driver.schedule(topic=topic, every=60) for topic in topics))
    schedule = await driver.get()
    assert len(server.command("KEYS", "deferd:{*}:schedule/*")) == 1
    delayed = {
        topic: count
        for topic in topics
        if await engine.usage.jobs(engine._keys.shard_of(topic), [topic]) != (0, 0)
        and (count := (await driver.topics.get(topic)).counts["delayed"])  # type: ignore[index]
    }
    assert delayed == {schedule.topic: 1}
    moved, created = await driver.schedule(topic=next(t for t in topics if engine._keys.shard_of(t) != schedule.shard))
    assert (created, moved.shard != schedule.shard, moved.waiting) == (False, True, 1)
    assert moved.version > schedule.version
    await driver.engine.schedules.delete(NAME, lambda _: None)
    assert server.command("KEYS", "deferd:{*}:schedule*") == []


async def test_a_move_that_was_cut_off_is_completed_by_the_scheduler(store: Store, server: StoreServer) -> None:
    """Nothing runs in the new shard before the old one has lost the schedule."""
    engine = Engine(store, shards=2, movable_clock=True)
    driver = ScheduleDriver(engine, server)
    a, b = (next(t for t in (f"t{n}" for n in range(9)) if engine._keys.shard_of(t) == shard) for shard in (0, 1))
    await driver.schedule(topic=a, every=60)
    store_of_schedules = engine.schedules._store

    async def cut_off(name: str) -> None:
        raise ConnectionError(name)

    settle, engine.schedules.settle_move = engine.schedules.settle_move, cut_off  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        await driver.schedule(topic=b, every=60)
    engine.schedules.settle_move = settle  # type: ignore[method-assign]
    found = await store_of_schedules.find(NAME)
    assert [(one.topic, one.state.is_moving, one.waiting) for one in found.schedules] == [(b, True, 0), (a, False, 1)]
    for timer in engine.timers:
        await timer.catch_up(await driver.now_ms())
    found = await store_of_schedules.find(NAME)
    assert [(one.topic, one.state.is_moving, one.waiting) for one in found.schedules] == [(b, False, 1)]
    await engine.close()


async def test_other_topics_are_promoted_while_a_schedule_cannot_be_read(schedules: ScheduleDriver) -> None:
    await schedules.schedule()
    schedules.server.command("HSET", f"deferd:{{0}}:schedule/{NAME}", "definition", "nonsense")
    await schedules.puts.put(PutJob(topic="other", id="a", delay=61))
    await schedules.pass_time(62)
    assert (await schedules.topics.get("other")).counts["ready"] == 1  # type: ignore[index]
    assert len(schedules.ready_list()) == 1
    assert 0 < await schedules.run_timer()
