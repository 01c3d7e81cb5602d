"""A run that somebody postponed beyond later ones stays in the order of its schedule, and under its control."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.bulk_model import RescheduleSelected
from deferd.contract.model import ChangeJob
from deferd.contract.operations.audits import FindingKind
from deferd.engine.record import JobRecord
from tests.integration.engine.engine_driver import TOPIC
from tests.integration.engine.schedule_driver import NAME, ScheduleDriver, anyone

MINUTE = 60
EARLIER = "deferd:{0}:earlier_runs"


async def postpone(schedules: ScheduleDriver, minutes: float, **options: Any) -> str:
    """Put a schedule that runs every minute, and move its next run to `minutes` from now."""
    await schedules.schedule(every=MINUTE, **options)
    run = await schedules.next_id()
    await schedules.queue.change(TOPIC, run, ChangeJob(delay=minutes * MINUTE))
    return run


async def take_next_early(schedules: ScheduleDriver) -> JobRecord:
    """Let the next run after a postponed one wait, move it to now, and pop it."""
    await schedules.advance(1.2 * MINUTE)
    await schedules.queue.change(TOPIC, await schedules.next_id(), ChangeJob(delay=0))
    return await schedules.pop_one(ttr_ms=900_000)


async def earlier_runs(schedules: ScheduleDriver) -> list[bytes]:
    found: list[bytes] = schedules.server.command("ZRANGE", EARLIER, 0, -1)
    return found


async def test_with_skip_later_runs_are_skipped_until_it_has_run(schedules: ScheduleDriver) -> None:
    postponed = await postpone(schedules, 2.5, overlap="skip")
    await schedules.advance(2.2 * MINUTE)
    assert await schedules.counters() == (0, 1, 0, 2)  # the second one; the third waits
    await schedules.advance(0.4 * MINUTE)
    assert schedules.ready_list() == [postponed]
    await schedules.advance(MINUTE)  # it is still live
    assert await schedules.counters() == (1, 2, 0, 1)
    await schedules.cancels.cancel(TOPIC, postponed)
    await schedules.advance(MINUTE)
    assert await schedules.counters() == (2, 2, 0, 1)
    assert await earlier_runs(schedules) == []
    await schedules.assert_clean()


async def test_with_replace_the_next_run_takes_its_place(schedules: ScheduleDriver) -> None:
    postponed = await postpone(schedules, 2.5, overlap="replace")
    await schedules.advance(2.2 * MINUTE)
    [second] = schedules.ready_list()
    assert second != postponed
    assert await schedules.counters() == (1, 1, 0, 1)
    assert await schedules.counts() == {"delayed": 1, "ready": 1}
    await schedules.assert_clean()


@pytest.mark.parametrize("overlap", ["skip", "replace"])
async def test_it_neither_yields_to_a_later_run_at_work_nor_ends_it(schedules: ScheduleDriver, overlap: str) -> None:
    postponed = await postpone(schedules, 1.5, overlap=overlap)
    await take_next_early(schedules)
    await schedules.advance(0.4 * MINUTE)
    assert schedules.ready_list() == [postponed]
    assert (await schedules.counts())["reserved"] == 1


@pytest.mark.parametrize(("overlap", "counters"), [("skip", (2, 1, 0, 1)), ("replace", (3, 0, 0, 1))])
@pytest.mark.parametrize("ends", ["postponed", "later", "neither"])
async def test_after_it_has_run_late_the_next_run_still_sees_each_one_at_work(
    schedules: ScheduleDriver, overlap: str, counters: tuple[int, int, int, int], ends: str
) -> None:
    postponed = await postpone(schedules, 1.5, overlap=overlap)
    later = await take_next_early(schedules)
    await schedules.advance(0.4 * MINUTE)
    late = await schedules.pop_one(ttr_ms=900_000)
    assert (late.id, (await schedules.get()).last_id) == (postponed, later.id)
    at_work = {"postponed": late, "later": later}
    ended = at_work.pop(ends, None)
    if ended is not None:
        await schedules.queue.finish(TOPIC, ended.id, ended.receipt)
    await schedules.advance(1.5 * MINUTE)
    assert await schedules.counters() == counters
    assert (await schedules.counts()).get("reserved", 0) == (len(at_work) if overlap == "skip" else 0)
    await schedules.assert_clean()


async def test_with_replace_the_next_run_takes_the_place_of_all_that_are_live(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=MINUTE, overlap="replace")
    await schedules.advance(1.1 * MINUTE)
    await schedules.pop_one(ttr_ms=900_000)
    postponed = await schedules.next_id()
    await schedules.queue.change(TOPIC, postponed, ChangeJob(delay=10 * MINUTE))
    await schedules.advance(2 * MINUTE)
    [third] = schedules.ready_list()
    assert third != postponed
    assert await schedules.counts() == {"delayed": 1, "ready": 1}
    assert await schedules.counters() == (2, 1, 0, 1)
    await schedules.assert_clean()


async def test_of_runs_due_together_after_an_outage_it_comes_first_in_order(schedules: ScheduleDriver) -> None:
    postponed = await postpone(schedules, 2.5, overlap="replace")
    await schedules.advance(1.2 * MINUTE)
    await schedules.pass_outage(3 * MINUTE)  # it is due with later ones
    [last] = schedules.ready_list()
    assert last != postponed
    assert (await schedules.counters())[3] == 1
    assert await earlier_runs(schedules) == []
    await schedules.assert_clean()


@pytest.mark.parametrize("how", ["pause", "delete", "put paused", "put with another topic"])
async def test_what_ends_the_next_run_ends_it_too(schedules: ScheduleDriver, how: str) -> None:
    await postpone(schedules, 30)
    await schedules.advance(2.5 * MINUTE)
    assert len(schedules.waiting_runs()) == 2
    verbs = schedules.engine.schedules
    match how:
        case "pause":
            await verbs.pause(NAME, anyone)
        case "delete":
            await verbs.delete(NAME, anyone)
        case "put paused":
            await schedules.schedule(every=MINUTE, paused=True)
        case _:
            await schedules.schedule(every=MINUTE, topic="other")
    assert schedules.waiting_runs() == {}
    assert schedules.delayed() == []
    assert await earlier_runs(schedules) == []
    if how != "delete":
        assert (await schedules.get()).waiting == (how == "put with another topic")
    await schedules.assert_clean()


async def test_it_outlives_other_changes_of_its_schedule(schedules: ScheduleDriver) -> None:
    postponed = await postpone(schedules, 3.5)
    await schedules.advance(1.5 * MINUTE)
    await schedules.schedule(every=MINUTE, job={"body": 2})
    assert postponed in schedules.waiting_runs()
    assert (await schedules.get()).waiting == 2
    await schedules.advance(2.2 * MINUTE)
    assert postponed in schedules.ready_list()
    await schedules.assert_clean()


async def test_the_schedule_shows_it_as_the_next_run_when_it_is_due_first(schedules: ScheduleDriver) -> None:
    postponed = await postpone(schedules, 1.5)
    await schedules.advance(1.1 * MINUTE)
    stored = await schedules.get()
    shown = await schedules.engine.schedules.with_next_run(stored)
    assert shown.next_id == postponed != stored.next_id
    await schedules.queue.change(TOPIC, postponed, ChangeJob(delay=MINUTE))
    shown = await schedules.engine.schedules.with_next_run(await schedules.get())
    assert shown.next_id == stored.next_id


async def test_any_number_of_them_is_withdrawn(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=1, catch_up="all")
    schedules.move_clock(130)
    await schedules.engine.timers[0]._advance_schedules(0)  # puts them; they are due in a millisecond
    await schedules.engine.timers[0]._advance_schedules(0)
    chosen = RescheduleSelected.model_validate({"select": {"state": "delayed", "topics": [TOPIC]}, "delay": 3600})
    await schedules.engine.bulk.reschedule(chosen)
    assert len(schedules.waiting_runs()) > 100
    await schedules.engine.schedules.pause(NAME, anyone)
    assert schedules.waiting_runs() == {}
    assert (await schedules.get()).waiting == 0
    await schedules.assert_clean()


async def test_one_that_is_not_listed_is_found_and_listed(schedules: ScheduleDriver) -> None:
    await postpone(schedules, 30)
    await schedules.advance(1.5 * MINUTE)
    listed = await earlier_runs(schedules)
    schedules.server.command("DEL", EARLIER)
    check = schedules.engine.consistency.audit_topic
    assert (await check(TOPIC, repair=True)).findings.counts == {FindingKind.RUN_UNLISTED: 1}
    assert await earlier_runs(schedules) == listed
    await schedules.assert_clean()


@pytest.mark.parametrize("entry", [f"{NAME} {NAME}:20300101T000000Z", "ghost ghost:1", "ghost"])
async def test_a_list_entry_without_a_run_is_found_and_removed(schedules: ScheduleDriver, entry: str) -> None:
    await schedules.schedule()
    schedules.server.command("ZADD", EARLIER, 0, entry)
    check = schedules.engine.consistency.audit_store
    assert (await check(repair=True)).findings.counts == {FindingKind.SCHEDULE_WRONG: 1}
    await schedules.assert_clean()


@pytest.mark.parametrize("overlap", ["allow", "skip"])
async def test_a_list_of_the_wrong_type_stops_neither_the_timer_nor_a_pause(
    schedules: ScheduleDriver, overlap: str
) -> None:
    postponed = await postpone(schedules, 1.5, overlap=overlap)
    schedules.server.command("SET", EARLIER, "x")
    await schedules.advance(1.6 * MINUTE)
    assert schedules.ready_list() == [postponed]
    assert await schedules.counters() == (1, 0, 0, 1)
    await schedules.engine.schedules.pause(NAME, anyone)
    assert schedules.waiting_runs() == {}
    assert (await schedules.engine.consistency.audit_store(repair=True)).repaired
    await schedules.assert_clean()
