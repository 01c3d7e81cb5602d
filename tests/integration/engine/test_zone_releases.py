"""A new release of the time zones: each local time of a schedule has its run exactly once, when clocks show it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deferd.contract.model import ChangeJob
from deferd.engine.schedule_store import Change, ScheduleStore
from deferd.engine.script_arguments import PutBounds
from tests.integration.engine.engine_driver import TOPIC
from tests.integration.engine.schedule_driver import NAME, ScheduleDriver, anyone
from tests.integration.engine.window_times import instant, move_to, ms, set_topic
from tests.zone_releases import ZONE, ZoneReleases

EVENING = "2030-01-14T22:00:00+00:00"
DAILY: dict[str, Any] = {"cron": "0 3 * * *", "zone": ZONE}
MARK = "deferd:{0}:schedules/zones"


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ZoneReleases]:
    """Releases of the zones; in the first one `Test/Land` is two hours ahead of UTC, so that 03:00 is 01:00 UTC."""
    made = ZoneReleases(tmp_path, monkeypatch)
    made.use(2)
    yield made
    made.forget()


async def restart(schedules: ScheduleDriver) -> None:
    """Let the timer do what it does first when it gets the lock."""
    schedules.engine.timers[0]._look_for_schedules_at = 0
    await schedules.run_timer()


async def at(schedules: ScheduleDriver, day: int, time: str) -> None:
    """Pass the time until an instant of January 2030, in UTC."""
    await schedules.advance((ms(f"2030-01-{day:02}T{time}:00+00:00") - await schedules.now_ms()) / 1000)


async def planned(schedules: ScheduleDriver, name: str = NAME) -> str:
    """When the next run is due, in UTC; its id says the same, and it waits."""
    schedule = await schedules.get(name)
    due = instant(schedule.next_due_ms)[8:16]
    assert schedule.next_id in schedules.delayed()
    return due


def ran(schedules: ScheduleDriver) -> list[str]:
    """The instants in the ids of the runs that have run: day, hour and minute."""
    return [f"{job_id[-10:-7]}{job_id[-7:-5]}:{job_id[-5:-3]}" for job_id in schedules.ready_list()]


async def test_a_run_is_not_repeated_when_its_local_time_comes_again(
    schedules: ScheduleDriver, releases: ZoneReleases
) -> None:
    await move_to(schedules, EVENING)
    await schedules.schedule(**DAILY)
    await at(schedules, 15, "01:30")
    releases.use(1)
    await restart(schedules)
    await at(schedules, 17, "02:30")
    assert ran(schedules) == ["15T01:00", "16T02:00", "17T02:00"]
    await schedules.assert_clean()


@pytest.mark.parametrize(
    ("changed_at", "offset_h", "runs"),
    [
        ("14 22:30", 3, ["15T00:00", "16T00:00"]),
        ("14 22:30", 1, ["15T02:00"]),
        ("15 00:30", 3, ["15T00:00", "16T00:00"]),
        ("14 22:30", 2.5, ["15T00:30", "16T00:30"]),
    ],
)
async def test_a_run_that_waits_is_due_when_clocks_show_its_time(
    schedules: ScheduleDriver, releases: ZoneReleases, changed_at: str, offset_h: float, runs: list[str]
) -> None:
    await move_to(schedules, EVENING)
    await schedules.schedule(**DAILY)
    day, time = changed_at.split()
    await at(schedules, int(day), time)
    releases.use(offset_h)
    await restart(schedules)
    if runs[0] < f"{day}T{time}":
        await schedules.advance(0.01)
        assert ran(schedules) == runs[:1]
    await at(schedules, 16, "00:45")
    assert ran(schedules) == runs
    assert await schedules.counters() == (len(runs), 0, 0, 1)
    await schedules.assert_clean()


async def test_a_run_that_is_cancelled_while_runs_are_derived_again_stays_cancelled(
    schedules: ScheduleDriver, releases: ZoneReleases, monkeypatch: pytest.MonkeyPatch
) -> None:
    await move_to(schedules, EVENING)
    await schedules.schedule(cron="0 3 * * *")
    [run_id] = schedules.delayed()
    apply = ScheduleStore.apply
    applied: list[Change] = []

    async def cancel_and_apply(store: ScheduleStore, change: Change, **more: Any) -> Any:
        if not applied:
            await schedules.engine.cancels.cancel(TOPIC, run_id)
        applied.append(change)
        return await apply(store, change, **more)

    monkeypatch.setattr(ScheduleStore, "apply", cancel_and_apply)
    releases.use(1)
    await restart(schedules)
    assert (bool(applied), schedules.delayed()) == (True, [])
    await at(schedules, 16, "03:30")
    assert ran(schedules) == ["16T03:00"]
    await schedules.assert_clean()


@pytest.mark.parametrize(("offset_h", "runs"), [(3, ["16T00:00"]), (1, ["15T01:00", "16T02:00"])])
async def test_a_paused_schedule_goes_on_by_the_new_rules(
    schedules: ScheduleDriver, releases: ZoneReleases, offset_h: float, runs: list[str]
) -> None:
    await move_to(schedules, EVENING)
    await schedules.schedule(**DAILY)
    await at(schedules, 15, "00:30" if offset_h == 3 else "01:10")
    await schedules.engine.schedules.pause(NAME, anyone)
    releases.use(offset_h)
    await restart(schedules)
    await at(schedules, 15, "01:30")
    await schedules.engine.schedules.resume(NAME, anyone)
    await at(schedules, 16, "02:30")
    assert ran(schedules) == runs


async def test_a_run_is_not_lost_by_a_pause_after_the_release(
    schedules: ScheduleDriver, releases: ZoneReleases
) -> None:
    await move_to(schedules, EVENING)
    await schedules.schedule(**DAILY)
    releases.use(3)
    await schedules.engine.schedules.pause(NAME, anyone)
    await schedules.engine.schedules.resume(NAME, anyone)
    assert await planned(schedules) == "15T00:00"


@pytest.mark.parametrize("offset_h", [1, 3])
async def test_a_put_goes_on_by_the_new_rules(
    schedules: ScheduleDriver, releases: ZoneReleases, offset_h: float
) -> None:
    await move_to(schedules, EVENING)
    await schedules.schedule(**DAILY)
    await at(schedules, 15, "01:30")
    releases.use(offset_h)
    await schedules.schedule(**DAILY, job={"body": 2})
    assert await planned(schedules) == ("16T02:00" if offset_h == 1 else "16T00:00")


@pytest.mark.parametrize("offset_h", [1, 3])
async def test_a_run_that_was_cancelled_stays_cancelled(
    schedules: ScheduleDriver, releases: ZoneReleases, offset_h: float
) -> None:
    await move_to(schedules, EVENING)
    await schedules.schedule(**DAILY)
    await schedules.cancels.cancel(TOPIC, await schedules.next_id())
    releases.use(offset_h)
    await restart(schedules)
    assert schedules.delayed() == []
    await at(schedules, 16, "02:30")
    assert ran(schedules) == ["16T02:00" if offset_h == 1 else "16T00:00"]


@pytest.mark.parametrize("offset_h", [1, 3])
async def test_a_run_that_was_moved_stays_there(
    schedules: ScheduleDriver, releases: ZoneReleases, offset_h: float
) -> None:
    await move_to(schedules, EVENING)
    await schedules.schedule(**DAILY)
    moved = await schedules.next_id()
    await schedules.queue.change(TOPIC, moved, ChangeJob(delay=7 * 3600))
    releases.use(offset_h)
    await restart(schedules)
    assert schedules.delayed() == [moved]
    await at(schedules, 16, "02:30")
    assert ran(schedules) == ["15T01:00", "16T02:00" if offset_h == 1 else "16T00:00"]
    assert (await schedules.counters())[:3] == (2, 0, 0)
    await schedules.assert_clean()


async def test_a_time_that_was_to_be_left_out_is_not(schedules: ScheduleDriver, releases: ZoneReleases) -> None:
    """Summer time was to begin at 02:00, at 01:00 UTC, and does not."""
    releases.use(1, (ms("2030-01-15T01:00:00+00:00") // 1000, 2))
    await move_to(schedules, EVENING)
    await schedules.schedule(at=["02:15", "02:45"], zone=ZONE)
    assert await planned(schedules) == "15T01:00"
    releases.use(1)
    await restart(schedules)
    await at(schedules, 15, "22:00")
    assert ran(schedules) == ["15T01:15", "15T01:45"]


async def test_times_that_are_left_out_now_run_at_the_change(schedules: ScheduleDriver, releases: ZoneReleases) -> None:
    releases.use(1)
    await move_to(schedules, EVENING)
    await schedules.schedule(at=["02:15", "02:45"], zone=ZONE)
    releases.use(1, (ms("2030-01-15T01:00:00+00:00") // 1000, 2))
    await restart(schedules)
    await at(schedules, 15, "22:00")
    assert ran(schedules) == ["15T01:00"]


@pytest.mark.parametrize(
    "timing", [{"every": 3600}, {"cron": "30 * * * *", "zone": ZONE}, {"cron": "0 3 * * *"}, {"at": ["00:00"]}]
)
async def test_runs_that_no_rule_moves_stay_as_they_are(
    schedules: ScheduleDriver, releases: ZoneReleases, timing: dict[str, Any]
) -> None:
    await move_to(schedules, EVENING)
    await schedules.schedule(**timing)
    await schedules.queue.change(TOPIC, await schedules.next_id(), ChangeJob(body="changed"))
    before = await schedules.get()
    releases.use(1)
    await restart(schedules)
    after = await schedules.get()
    assert (after.next_id, after.next_job_due_ms) == (before.next_id, before.next_job_due_ms)
    assert (await schedules.queue.get(TOPIC, after.next_id)).body == b'"changed"'
    assert await schedules.counters() == (0, 0, 0, 1)


async def test_a_window_that_opens_at_another_instant_moves_the_run(
    schedules: ScheduleDriver, releases: ZoneReleases
) -> None:
    await move_to(schedules, EVENING)
    await set_topic(schedules, window={"zone": ZONE, "from": "09:00", "to": "17:00"})
    await schedules.schedule(cron="0 1 * * *")
    await schedules.schedule(cron="0 1 * * *")  # by the defaults of the topic, which are known now
    assert await planned(schedules) == "15T07:00"
    releases.use(1)
    await restart(schedules)
    assert await planned(schedules) == "15T08:00"
    assert len(schedules.waiting_runs()) == 1
    await schedules.assert_clean()


async def test_when_the_following_run_is_due_is_derived_again(
    schedules: ScheduleDriver, releases: ZoneReleases
) -> None:
    await move_to(schedules, EVENING)
    await schedules.schedule(**DAILY)
    releases.use(2, (ms("2030-01-15T12:00:00+00:00") // 1000, 3))
    await restart(schedules)
    [entry] = schedules.waiting_runs().values()
    assert [instant(int(part))[8:16] for part in entry.split()[1:3]] == ["15T01:00", "16T00:00"]


async def test_the_last_run_of_a_full_topic_is_moved(schedules: ScheduleDriver, releases: ZoneReleases) -> None:
    await move_to(schedules, EVENING)
    await set_topic(schedules, max_jobs=1)
    await schedules.schedule(**DAILY, max_runs=1)
    releases.use(3)
    await restart(schedules)
    assert await planned(schedules) == "15T00:00"
    await at(schedules, 15, "02:00")
    assert await schedules.counters() == (1, 0, 0, 0)
    assert (await schedules.get()).state.is_ended


async def test_all_schedules_are_derived_again_once(schedules: ScheduleDriver, releases: ZoneReleases) -> None:
    await move_to(schedules, EVENING)
    await schedules.schedule("paused", **DAILY, paused=True)
    names = [f"s{number:03}" for number in range(130)]
    for name in names:
        await schedules.schedule(name, **DAILY)
    releases.use(1)
    await restart(schedules)
    assert {await planned(schedules, name) for name in names} == {"15T02:00"}
    assert schedules.server.command("GET", MARK) == b"2099.2"
    revs = [(await schedules.get(name)).rev for name in names]
    await restart(schedules)
    assert [(await schedules.get(name)).rev for name in names] == revs


async def test_a_timer_that_takes_over_derives_the_runs_again(
    schedules: ScheduleDriver, releases: ZoneReleases
) -> None:
    """While services of two releases run, the one whose timer works decides."""
    await move_to(schedules, EVENING)
    await schedules.schedule(**DAILY)
    await schedules.schedule("other", every=60)
    await restart(schedules)
    releases.use(1)
    await schedules.advance(61)
    assert await planned(schedules) == "15T02:00"


OTHERS = ("other-1", "other-2")


async def fill_beyond_the_limit_of_the_key(schedules: ScheduleDriver) -> str:
    """Make a schedule by a key with `max_jobs` 2, and let others fill its topic; returns the id of its run."""
    await schedules.schedule(cron="0 3 * * *", bounds=PutBounds(max_jobs=2))
    [run_id] = schedules.delayed()
    for job_id in OTHERS:
        await schedules.put(job_id, delay=30 * 24 * 3600)
    return run_id


async def make_room(schedules: ScheduleDriver) -> None:
    for job_id in OTHERS:
        await schedules.engine.cancels.cancel(TOPIC, job_id)
    await schedules.advance(5)


async def test_a_run_that_waits_in_a_full_topic_while_runs_are_derived_again_can_be_cancelled(
    schedules: ScheduleDriver, releases: ZoneReleases
) -> None:
    await move_to(schedules, "2030-01-15T02:59:00+00:00")
    run_id = await fill_beyond_the_limit_of_the_key(schedules)
    releases.use(1)
    await restart(schedules)
    await schedules.engine.cancels.cancel(TOPIC, run_id)
    await make_room(schedules)
    assert run_id not in schedules.delayed()
    await schedules.advance(60)
    assert ran(schedules) == []


async def test_a_run_that_waits_in_a_full_topic_while_runs_are_derived_again_runs_once(
    schedules: ScheduleDriver, releases: ZoneReleases
) -> None:
    await move_to(schedules, "2030-01-15T02:59:50+00:00")
    run_id = await fill_beyond_the_limit_of_the_key(schedules)
    releases.use(1)
    await restart(schedules)
    await schedules.advance(11)
    popped = await schedules.pop_one()
    assert popped.id == run_id
    await schedules.queue.finish(TOPIC, popped.id, popped.receipt)
    await make_room(schedules)
    assert ran(schedules) == []
    assert await schedules.counters() == (1, 0, 0, 1)
