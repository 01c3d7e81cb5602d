"""A schedule that is changed while its next run waits loses none and repeats none."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.bulk_model import RescheduleSelected
from deferd.contract.model import ChangeJob, TopicSettings
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.engine_driver import TOPIC
from tests.integration.engine.schedule_driver import DAY_S, NAME, ScheduleDriver, anyone

HOUR_MS = 3_600_000
MORNING: dict[str, Any] = {"from": "09:00", "to": "10:00"}


async def pass_until(schedules: ScheduleDriver, hour: float) -> None:
    """Let time pass until it is this hour of the day, in UTC."""
    now_ms = await schedules.now_ms()
    await schedules.advance((hour * HOUR_MS - now_ms) % (DAY_S * 1000) / 1000)


async def previewed(schedules: ScheduleDriver, count: int) -> list[int]:
    _, runs = await schedules.engine.schedules.preview(NAME, anyone, count)
    return [run.due_ms for run in runs]


@pytest.mark.parametrize("later", [{"window": MORNING}, {"spread": 80_000}], ids=["window", "spread"])
async def test_a_run_that_is_to_be_due_later_than_its_occurrence_outlives_a_change(
    schedules: ScheduleDriver, later: dict[str, Any]
) -> None:
    await pass_until(schedules, 2)
    first, _ = await schedules.schedule(at=["03:00"], **later)
    await pass_until(schedules, 5)
    changed, _ = await schedules.schedule(at=["03:00"], **later, job={"body": 2})
    assert (changed.next_id, changed.next_due_ms) == (first.next_id, first.next_due_ms)
    assert (await schedules.queue.get(TOPIC, changed.next_id)).body == b"2"
    await schedules.until_due()
    assert schedules.ready_list() == [first.next_id]
    assert await schedules.counters() == (1, 0, 0, 1)
    await schedules.assert_clean()


async def test_it_outlives_a_change_for_which_the_topic_has_no_room(schedules: ScheduleDriver) -> None:
    await pass_until(schedules, 2)
    first, _ = await schedules.schedule(at=["03:00"], window=MORNING)
    await pass_until(schedules, 5)
    await schedules.topics.set(TOPIC, TopicSettings(max_jobs=1))
    await schedules.schedule(at=["03:00"], window=MORNING, job={"body": 2})
    await schedules.advance(2)
    assert await schedules.next_id() == first.next_id
    assert await schedules.counters() == (0, 0, 0, 1)


async def test_without_its_window_a_run_takes_place_at_once(schedules: ScheduleDriver) -> None:
    await pass_until(schedules, 2)
    first, _ = await schedules.schedule(at=["03:00"], window=MORNING)
    await pass_until(schedules, 5)
    await schedules.schedule(at=["03:00"])
    await schedules.advance(0.01)
    assert schedules.ready_list() == [first.next_id]
    await schedules.assert_clean()


async def test_occurrences_that_have_run_are_not_repeated_when_the_clock_went_back(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60)
    await schedules.advance(301)
    while schedules.ready_list():
        popped = await schedules.pop_one()
        await schedules.queue.finish(TOPIC, popped.id, popped.receipt)
    schedules.move_clock(-200)
    await schedules.schedule(every=60, job={"body": 2})
    await schedules.advance(199)
    assert schedules.ready_list() == []
    await schedules.advance(60)
    assert await schedules.counters() == (6, 0, 0, 1)


async def test_a_cancelled_run_stays_cancelled_while_another_one_waits(schedules: ScheduleDriver) -> None:
    moved = (await schedules.schedule(every=60)).schedule.next_id
    await schedules.queue.change(TOPIC, moved, ChangeJob(delay=600))
    await schedules.advance(61)
    cancelled = await schedules.next_id()
    await schedules.cancels.cancel(TOPIC, cancelled)
    await schedules.schedule(every=60, job={"body": 2})
    await schedules.advance(61)
    assert schedules.ready_list() == []
    assert await schedules.counters() == (0, 1, 0, 2)


async def test_a_preview_leaves_a_cancelled_run_out(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60, max_runs=3)
    expected = await previewed(schedules, 3)
    assert expected[0] == (await schedules.get()).next_due_ms
    await schedules.cancels.cancel(TOPIC, await schedules.next_id())
    after = await previewed(schedules, 9)
    assert after[:2] == expected[1:]
    assert len(after) == 3
    for due_ms in after:
        await schedules.advance((due_ms - await schedules.now_ms()) / 1000)
        assert [(await schedules.queue.get(TOPIC, job)).due_at_ms for job in schedules.ready_list()][-1] == due_ms
    await schedules.advance(600)
    assert (await schedules.get()).state.is_ended


async def test_a_preview_shows_as_many_runs_as_max_runs_leaves(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60, max_runs=3)
    assert len(await previewed(schedules, 9)) == 3
    await schedules.advance(61)  # one is ready, and the next one waits until it is due
    assert len(await previewed(schedules, 9)) == 2


@pytest.mark.parametrize("how", ["change", "bulk"])
async def test_a_run_that_is_moved_later_and_then_to_now_is_counted_at_once(
    schedules: ScheduleDriver, how: str
) -> None:
    moved = (await schedules.schedule(every=60, max_runs=1)).schedule.next_id
    await schedules.queue.change(TOPIC, moved, ChangeJob(delay=600))
    await schedules.advance(61)
    if how == "change":
        await schedules.queue.change(TOPIC, moved, ChangeJob(delay=0))
    else:
        selected = {"select": {"ids": [{"topic": TOPIC, "id": moved}]}, "delay": 0}
        await schedules.engine.bulk.reschedule(RescheduleSelected.model_validate(selected))
    assert schedules.waiting_runs() == {}
    assert await schedules.counters() == (1, 0, 0, 0)
    await schedules.pop_one()
    await schedules.queue.finish(TOPIC, moved, ANY_RECEIPT)
    await schedules.advance(10)
    assert (await schedules.get()).state.is_ended
    await schedules.assert_clean()


async def test_a_cancelled_run_is_neither_shown_as_the_next_nor_put_again_after_a_pause(
    schedules: ScheduleDriver,
) -> None:
    first, _ = await schedules.schedule(every=60)
    await schedules.cancels.cancel(TOPIC, first.next_id)
    shown = await schedules.engine.schedules.with_next_run(await schedules.get())
    assert shown.next_id == ""
    assert (shown.next_due_ms or 0) - (first.next_due_ms or 0) == 60_000
    await schedules.engine.schedules.pause(NAME, anyone)
    resumed = await schedules.engine.schedules.resume(NAME, anyone)
    assert (resumed.next_due_ms or 0) - (first.next_due_ms or 0) == 60_000
    await schedules.engine.schedules.pause(NAME, anyone)
    assert (await schedules.engine.schedules.resume(NAME, anyone)).next_id == resumed.next_id
    await schedules.advance(180)
    assert first.next_id not in schedules.ready_list()
    await schedules.assert_clean()


async def test_a_run_that_was_moved_is_shown_at_its_new_time(schedules: ScheduleDriver) -> None:
    schedule, _ = await schedules.schedule(every=60)
    changed = await schedules.queue.change(TOPIC, schedule.next_id, ChangeJob(delay=90))
    shown = await schedules.engine.schedules.with_next_run(await schedules.get())
    assert (shown.next_id, shown.next_due_ms) == (schedule.next_id, changed.due_at_ms)
