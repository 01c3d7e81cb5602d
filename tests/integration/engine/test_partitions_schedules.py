"""Schedules, windows and chains of topics with several partitions."""

from __future__ import annotations

import pytest

from deferd.contract.errors import DifferentShard, InvalidInput, JobNotFound
from deferd.contract.model import JobState, PutJob, TopicSettings
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.script_arguments import NO_BOUNDS
from tests.integration.engine.engine_driver import TOPIC, started_engine
from tests.integration.engine.schedule_driver import NAME, ScheduleDriver, definition
from tests.integration.store.store_servers import StoreServer

IDS = [f"job-{number}" for number in range(40)]


async def grow(driver: ScheduleDriver, **settings: object) -> None:
    await driver.topics.set(TOPIC, TopicSettings.model_validate({"partitions": 4, **settings}))


async def test_a_schedule_goes_on_when_its_topic_gets_more_partitions(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60)
    await schedules.advance(60)
    before = await schedules.next_id()
    await grow(schedules)
    assert (await schedules.queue.get(TOPIC, before)).state is JobState.DELAYED
    await schedules.advance(120)
    assert await schedules.counters() == (3, 0, 0, 1)
    assert await schedules.cancels.cancel(TOPIC, before) is JobState.READY
    changed, created = await schedules.schedule(every=30)
    assert not created
    assert schedules.delayed() == [changed.next_id]
    layouts = schedules.engine.partitions.known.layouts
    await schedules.engine.partitions._forget_former(TOPIC, layouts[TOPIC])
    assert layouts[TOPIC].counts == (4,), "a run belongs in the first partition by any number"
    await schedules.assert_clean()


async def test_a_schedule_moves_to_and_from_a_topic_with_partitions(schedules: ScheduleDriver) -> None:
    await grow(schedules)
    await schedules.schedule(every=60)
    await schedules.engine.schedules.put(
        NAME, definition(every=60, topic="plain"), NO_BOUNDS, lambda _: None, only_new=False
    )
    assert schedules.delayed() == []
    await schedules.schedule(every=60)
    assert schedules.delayed() == [await schedules.next_id()]
    await schedules.advance(60)
    assert len(await schedules.engine.dispatcher.pop([TOPIC])) == 1
    assert await schedules.engine.dispatcher.pop(["plain"]) == []
    await schedules.assert_clean()


async def test_a_schedule_with_a_group_or_a_priority_is_refused(schedules: ScheduleDriver) -> None:
    await grow(schedules)
    for name, value in (("group", "g"), ("priority", 1)):
        with pytest.raises(InvalidInput) as error:
            await schedules.schedule(every=60, job={name: value})
        [found] = error.value.field_errors
        assert (found.path, found.value) == (("body", "job", name), value)
    await schedules.schedule(every=60, job={"priority": 0})


async def test_the_forecast_has_the_runs_of_a_schedule(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60)
    before = await schedules.engine.forecasts.forecast([TOPIC], lambda _: True)
    await grow(schedules)
    schedules.engine.forecasts._reads._values.clear()
    after = await schedules.engine.forecasts.forecast([TOPIC], lambda _: True)
    assert sum(after.topics[TOPIC].scheduled) > 1
    assert len(after.topics[TOPIC].scheduled) == len(before.topics[TOPIC].scheduled)
    assert abs(sum(after.topics[TOPIC].scheduled) - sum(before.topics[TOPIC].scheduled)) <= 1
    assert after.topics[TOPIC].delayed == 1 == sum(after.topics[TOPIC].counts)
    assert set(after.topics) == {TOPIC}


async def test_a_full_first_partition_makes_a_run_wait(schedules: ScheduleDriver) -> None:
    """As in any topic that is full: the run is put when there is room, and none is counted that was not put."""
    await grow(schedules, max_jobs=8)
    home = schedules.engine.partitions.known.home
    others = [job_id for job_id in IDS if home(TOPIC, job_id) == TOPIC][:2]
    for job_id in others:
        await schedules.put(job_id, delay=86_400)
    await schedules.schedule(every=60)
    assert schedules.delayed() == others
    assert schedules.waiting_runs() == {}
    for job_id in others:
        await schedules.cancels.cancel(TOPIC, job_id)
    await schedules.advance(61)
    assert len(schedules.waiting_runs()) == 1 == (await schedules.get()).waiting
    await schedules.assert_clean()


async def test_defaults_for_due_times_hold_in_every_partition(schedules: ScheduleDriver) -> None:
    window = {"from": "03:00", "to": "04:00", "zone": "UTC"}
    await grow(schedules, window=window, spread=600)
    for job_id in IDS:
        await schedules.put(job_id)
    await schedules.schedule(every=60)
    for job_id in (*IDS, await schedules.next_id()):
        minute_of_day = (await schedules.queue.get(TOPIC, job_id)).due_at_ms // 60_000 % 1440
        assert 180 <= minute_of_day < 240
    await grow(schedules)
    await schedules.put("now")
    assert (await schedules.queue.get(TOPIC, "now")).state is JobState.READY
    placer = schedules.engine.placer
    placer.note_defaults(TOPIC, placer.defaults_of(f"{TOPIC}#1") or '["",0]')
    for number in range(8):
        await schedules.put(f"later-{number}")
        assert (await schedules.queue.get(TOPIC, f"later-{number}")).state is JobState.READY


@pytest.mark.parametrize("shards", [1, 8])
async def test_a_finish_puts_jobs_into_partitions_of_its_shard(server: StoreServer, shards: int) -> None:
    async with started_engine(server.url, shards=shards) as engine:
        await engine.topics.set("t", TopicSettings(partitions=4))
        home = engine.partitions.known.home
        for job_id in IDS:
            await engine.puts.put(PutJob(topic="t", id=job_id))
        held = {job.id: job for job in await engine.dispatcher.pop(["t"], count=1)}
        while jobs := await engine.dispatcher.pop(["t"], count=40):
            held |= {job.id: job for job in jobs}
        refused = 0
        for number, job in enumerate(held.values()):
            next_id = f"next-{number}"
            put = PutJob(topic="t", id=next_id, body=number)
            if shards == 1 or home("t", next_id) == home("t", job.id):
                [result] = await engine.queue.finish_and_put("t", job.id, job.receipt, [put])
                assert (result.id, result.status) == (next_id, 201)
                assert (await engine.queue.get("t", next_id)).body == str(number).encode()
                with pytest.raises(JobNotFound):
                    await engine.queue.finish("t", job.id, ANY_RECEIPT)
            else:
                refused += 1
                with pytest.raises(DifferentShard) as raised:
                    await engine.queue.finish_and_put("t", job.id, job.receipt, [put])
                assert "#" not in str(raised.value)
                assert job.id in str(raised.value)
                await engine.deliveries.touch("t", job.id, job.receipt)
        assert (refused == 0) == (shards == 1)
        assert refused < len(held)
        report = await engine.consistency.audit_topic("t")
        assert (report.clean, report.sums["finished"]) == (True, 40 - refused)
