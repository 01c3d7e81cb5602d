"""A schedule goes on as soon as its topic has room, also when more runs wait to be put than the topic may have."""

from __future__ import annotations

from tests.integration.engine.engine_driver import TOPIC
from tests.integration.engine.schedule_driver import ScheduleDriver
from tests.integration.engine.window_times import set_topic

PERIOD_S = 60


async def finish_all(schedules: ScheduleDriver) -> list[str]:
    popped = await schedules.pop(100)
    for job in popped:
        await schedules.queue.finish(TOPIC, job.id, job.receipt)
    return [job.id for job in popped]


async def runs_of_ten_periods(schedules: ScheduleDriver) -> list[str]:
    """The runs of a topic whose consumer finishes each at once."""
    runs = []
    for _ in range(20):
        await schedules.advance(PERIOD_S / 2)
        runs += await finish_all(schedules)
    return runs


async def test_a_topic_for_one_job_that_was_full_for_longer_than_a_period(schedules: ScheduleDriver) -> None:
    await set_topic(schedules, max_jobs=1)
    await schedules.schedule(every=PERIOD_S)
    await schedules.advance(2.5 * PERIOD_S)
    assert len(await finish_all(schedules)) == 1
    assert len(await runs_of_ten_periods(schedules)) >= 9


async def test_an_outage_in_which_more_runs_were_missed_than_the_topic_may_have(schedules: ScheduleDriver) -> None:
    await set_topic(schedules, max_jobs=5)
    await schedules.schedule(every=PERIOD_S, catch_up="all")
    await schedules.pass_outage(10 * PERIOD_S)
    assert await finish_all(schedules)
    assert len(await runs_of_ten_periods(schedules)) >= 9
