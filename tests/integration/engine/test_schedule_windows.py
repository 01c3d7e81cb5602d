"""Schedules with opening hours and a spread, of their own, of their job, or of their topic."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.errors import InvalidInput
from deferd.contract.model import TopicSettings
from deferd.contract.operations.schedules_and_calendars import PutCalendar
from deferd.engine.openings import spread_of
from deferd.engine.placement import NO_DEFAULTS
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.script_arguments import NO_BOUNDS
from tests.integration.engine.engine_driver import TOPIC
from tests.integration.engine.schedule_driver import ScheduleDriver, anyone

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
MORNING: dict[str, Any] = {"from": "09:00", "to": "10:00"}
AT_NIGHT: dict[str, Any] = {"at": ["03:00"], "zone": "UTC"}


def of_day(at_ms: int | None) -> int:
    assert at_ms is not None
    return at_ms % DAY_MS


async def test_a_failed_run_waits_for_the_next_opening(schedules: ScheduleDriver) -> None:
    backoff = {"kind": "fixed", "seconds": 7200}
    schedule, _ = await schedules.schedule(**AT_NIGHT, window=MORNING, job={"backoff": backoff, "tags": ["a"]})
    await schedules.until_due()
    [run] = await schedules.pop()
    assert run.id == schedule.next_id
    await schedules.deliveries.release(TOPIC, run.id, ANY_RECEIPT)
    retry = await schedules.queue.get(TOPIC, run.id)
    assert retry.due_at_ms == run.due_at_ms + DAY_MS
    assert retry.tags == ["a"]


async def test_runs_of_a_topic_with_opening_hours_keep_them(schedules: ScheduleDriver) -> None:
    await schedules.engine.topics.set(TOPIC, TopicSettings.model_validate({"window": MORNING, "spread": 60}))
    of_jobs: list[dict[str, Any]] = [{}, {"job": {"body": 1, "retain": 60}}]
    for fields in of_jobs:
        schedule, _ = await schedules.schedule(**AT_NIGHT, **fields)
        job = await schedules.queue.get(TOPIC, schedule.next_id)
        spread_ms = spread_of(schedule.next_id, MINUTE_MS)
        assert of_day(job.due_at_ms) == 9 * HOUR_MS + spread_ms
        assert (job.placement.moved_ms, job.placement.spread_ms) == (6 * HOUR_MS + spread_ms, MINUTE_MS)
    opted_out, _ = await schedules.schedule(**AT_NIGHT, job={"window": None, "spread": 0})
    assert of_day(opted_out.next_due_ms) == 3 * HOUR_MS


async def test_opening_hours_that_the_topic_gets_later_count_from_the_next_run_on(schedules: ScheduleDriver) -> None:
    first, _ = await schedules.schedule(**AT_NIGHT)
    assert of_day(first.next_due_ms) == 3 * HOUR_MS
    await schedules.engine.topics.set(TOPIC, TopicSettings.model_validate({"window": MORNING}))
    schedules.engine.placer.note_defaults(TOPIC, NO_DEFAULTS)  # as in another process
    await schedules.until_due()
    await schedules.run_timer()
    second = await schedules.get()
    assert second.next_id != first.next_id
    assert of_day(second.next_due_ms) == 9 * HOUR_MS


async def test_the_spread_of_a_schedule_is_the_same_for_all_its_runs_and_that_of_its_job_is_not(
    schedules: ScheduleDriver,
) -> None:
    spread, _ = await schedules.schedule("spread", at=["03:00"], spread=3600)
    offset_ms = spread_of("spread", HOUR_MS)
    assert of_day(spread.next_due_ms) == 3 * HOUR_MS + offset_ms
    job = await schedules.queue.get(TOPIC, spread.next_id)
    assert job.placement.moved_ms == offset_ms
    by_run, _ = await schedules.schedule("by-run", at=["03:00"], job={"spread": 3600})
    assert of_day(by_run.next_due_ms) == 3 * HOUR_MS + spread_of(by_run.next_id, HOUR_MS)
    _, runs = await schedules.engine.schedules.preview("by-run", anyone, 5)
    assert len({of_day(run.due_ms) for run in runs}) == 5


async def test_a_run_now_is_due_now_whatever_the_opening_hours(schedules: ScheduleDriver) -> None:
    await schedules.engine.topics.set(TOPIC, TopicSettings.model_validate({"window": MORNING}))
    await schedules.schedule(**AT_NIGHT, window=MORNING)
    now_ms = await schedules.now_ms()
    if 8 * HOUR_MS < of_day(now_ms) < 11 * HOUR_MS:
        schedules.move_clock(3 * HOUR_MS / 1000)
    outcome = await schedules.engine.schedules.run(await schedules.get(), NO_BOUNDS)
    assert outcome.record.state == "ready"


async def test_windows_at_two_places_and_closed_ones_of_jobs_are_refused(schedules: ScheduleDriver) -> None:
    with pytest.raises(ValueError, match="not both"):
        await schedules.schedule(window=MORNING, job={"window": MORNING})
    with pytest.raises(InvalidInput, match=r"body\.job\.window\.to: must differ"):
        await schedules.schedule(job={"window": {"from": "09:00", "to": "09:00"}})
    assert schedules.delayed() == []


async def test_a_deleted_calendar_is_always_open(schedules: ScheduleDriver) -> None:
    await schedules.engine.calendars.put("morning", PutCalendar.model_validate({"windows": [MORNING]}))
    schedule, _ = await schedules.schedule(**AT_NIGHT, window="morning")
    await schedules.engine.calendars.delete("morning")
    await schedules.until_due()
    await schedules.run_timer()
    after = await schedules.get()
    assert after.next_id != schedule.next_id
    assert of_day(after.next_due_ms) == 3 * HOUR_MS
