"""What happened in a topic: every count once, in the bucket in which it was published."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from prometheus_client import REGISTRY

from deferd.contract.bulk_model import CancelSelected
from deferd.contract.errors import TopicNotFound
from deferd.contract.model import CancelItem, FinishItem, PutJob
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.engine import Engine
from deferd.engine.history import COUNTS, GAUGES, History, whole_of
from deferd.engine.metrics import RUN_TIME_BUCKETS
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.store.connection import connect
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.schedule_driver import ScheduleDriver
from tests.integration.engine.sweeping import purge_jobs
from tests.integration.store.store_servers import ClusterSet


async def begin_bucket(driver: EngineDriver) -> None:
    """Move the clock to a bucket of which seconds are left, for tests that say what is in which bucket."""
    assert driver.engine.clock is not None
    in_bucket_ms = (await driver.engine.clock.read()).now_ms % 10_000
    if in_bucket_ms > 4000:
        driver.move_clock(10 - in_bucket_ms / 1000)


async def history(driver: EngineDriver, minutes: int = 60, topic: str = TOPIC) -> History:
    """What was published until now; the clock moves to the end of the bucket."""
    await begin_bucket(driver)
    await driver.engine.history_publisher.publish()
    driver.engine.histories._reads._values.clear()
    driver.engine.histories._reads_of_many._values.clear()
    driver.move_clock(10)
    return await driver.engine.histories.of_topic(topic, minutes)


def sums(found: History) -> dict[str, int]:
    """The counts over all buckets, without those that are 0."""
    of_all = [sum(bucket.counts[at] for bucket in found.buckets) for at in range(len(COUNTS))]
    return {name: count for name, count in zip(COUNTS, of_all, strict=True) if count}


def gauges(found: History, at: int = -1) -> dict[str, int]:
    of_bucket = found.buckets[at].gauges
    assert of_bucket is not None
    return {name: count for name, count in zip(GAUGES, of_bucket, strict=True) if count}


async def everything_once(driver: EngineDriver) -> dict[str, int]:
    """Do a bit of everything; returns what must have been counted."""
    queue = driver.queue
    await driver.puts.put_many([job(f"j{number}") for number in range(10)])
    await driver.put("late", delay=3)
    await driver.put("j9", on_conflict="replace")
    await driver.put("j9", on_conflict="keep")
    popped = {delivery.id: delivery for delivery in await driver.pop(8)}
    await queue.finish(TOPIC, "j0", popped["j0"].receipt)
    await queue.finish_many(TOPIC, [FinishItem(id="j1"), FinishItem(id="unknown")])
    await driver.deliveries.release(TOPIC, "j2", ANY_RECEIPT, delay_ms=60_000)
    await driver.deliveries.release(TOPIC, "j3", ANY_RECEIPT, delay_ms=60_000, counts=False)
    await driver.deliveries.bury(TOPIC, "j4", ANY_RECEIPT)
    await driver.cancels.cancel(TOPIC, "j5")
    await driver.cancels.cancel_many(TOPIC, [CancelItem(id="j6"), CancelItem(id="unknown")])
    await driver.put("tagged", delay=60, tags=["x"])
    await driver.engine.bulk.cancel(CancelSelected.model_validate({"select": {"tag": "x"}}))
    await queue.finish_and_put(TOPIC, "j7", ANY_RECEIPT, [job("next", delay=60)])
    await driver.pass_time(3)
    return {"put": 14, "popped": 8, "finished": 3, "released": 1, "dead": 1, "cancelled": 3}


async def test_everything_is_counted_once(driver: EngineDriver) -> None:
    expected = await everything_once(driver)
    found = await history(driver)
    assert sums(found) == expected
    assert found.buckets[-1].counts == list(expected.values())
    assert sum(found.buckets[-1].lateness.values()) == 8
    assert sum(found.buckets[-1].run_times.values()) == 3
    assert gauges(found) == {"delayed": 3, "ready": 3, "dead": 1}


async def test_a_lease_that_ends_is_an_attempt_that_failed_once(driver: EngineDriver) -> None:
    await driver.put("again", ttr=2)
    await driver.put("last", ttr=2, max_attempts=1)
    await driver.pop(2)
    await driver.pass_time(3)
    assert sums(await history(driver)) == {"put": 2, "popped": 2, "released": 2, "dead": 1}


def run_times(found: History) -> dict[float, int]:
    """Finished jobs by the end of their bucket of run times."""
    return {RUN_TIME_BUCKETS[at]: jobs for at, jobs in sorted(whole_of(found).run_times.items())}


async def test_run_times_last_from_the_delivery_to_the_finish(driver: EngineDriver) -> None:
    def counted() -> tuple[float, float]:
        name = "deferd_run_time_seconds"
        count, total_s = (REGISTRY.get_sample_value(f"{name}_{of}", {"topic": TOPIC}) or 0 for of in ("count", "sum"))
        return count, total_s

    count, total_s = counted()
    await driver.puts.put_many([job(f"j{number}") for number in range(4)])
    await driver.puts.put_many([job("kept", ttr=500, retain=60), job("tried", ttr=500, max_attempts=2)])
    receipts = {delivery.id: delivery.receipt for delivery in await driver.pop(6)}
    driver.move_clock(3)
    await driver.queue.finish(TOPIC, "j0", ANY_RECEIPT)
    for _ in range(2):  # the second one repeats the first
        await driver.queue.finish(TOPIC, "kept", receipts["kept"])
    await driver.deliveries.release(TOPIC, "tried", ANY_RECEIPT, delay_ms=0)
    driver.move_clock(22)
    await driver.queue.finish_many(TOPIC, [FinishItem(id="j1"), FinishItem(id="j2"), FinishItem(id="unknown")])
    await driver.queue.finish_and_put(TOPIC, "j3", ANY_RECEIPT, [job("next", delay=600)])
    await driver.run_timer()
    await driver.pop_one()
    driver.move_clock(7)
    await driver.queue.finish(TOPIC, "tried", ANY_RECEIPT)
    assert run_times(await history(driver)) == {5: 2, 10: 1, 60: 3}
    now_count, now_total_s = counted()
    assert now_count == count + 6
    assert now_total_s == pytest.approx(total_s + 2 * 3 + 3 * 25 + 7, abs=2)


async def test_run_times_of_leases_of_another_length(driver: EngineDriver) -> None:
    """By the pop, by touches, by a time limit and by a deadline."""
    await driver.puts.put_many([job("popped"), job("touched"), job("both")])
    await driver.puts.put_many([job("limited", time_limit=40), job("overdue", deadline=90)])
    await driver.pop(1, ttr_ms=5_000_000)
    await driver.pop(1)
    await driver.pop(1, ttr_ms=100)
    await driver.deliveries.touch(TOPIC, "both", ANY_RECEIPT, ttr_ms=900_000)
    await driver.pop(2)
    for _ in range(2):
        driver.move_clock(15)
        await driver.deliveries.touch(TOPIC, "touched", ANY_RECEIPT, ttr_ms=200_000)
        await driver.deliveries.touch(TOPIC, "overdue", ANY_RECEIPT)
    await driver.queue.finish(TOPIC, "limited", ANY_RECEIPT)
    driver.move_clock(45)
    for job_id in ("popped", "touched", "both", "overdue"):
        await driver.queue.finish(TOPIC, job_id, ANY_RECEIPT)
    assert run_times(await history(driver)) == {60: 1, 120: 4}


async def test_jobs_that_are_finished_as_they_are_popped_have_no_run_time(driver: EngineDriver) -> None:
    await driver.put()
    assert len(await driver.queue.pops_and_finishes.pop(TOPIC, 1)) == 1
    found = await history(driver)
    assert sums(found) == {"put": 1, "popped": 1, "finished": 1}
    assert run_times(found) == {}


async def test_what_is_published_later_is_in_a_later_bucket(driver: EngineDriver) -> None:
    await begin_bucket(driver)
    await driver.put("a")
    await driver.engine.history_publisher.publish()
    driver.move_clock(20)
    await driver.put("b")
    await driver.put("c")
    found = await history(driver)
    assert [bucket.counts[0] for bucket in found.buckets][-4:] == [0, 1, 0, 2]
    assert [bucket.gauges and bucket.gauges[1] for bucket in found.buckets][-4:] == [None, 1, 1, 3]
    driver.move_clock(3_700)
    found = await history(driver)
    assert sums(found) == {}
    assert gauges(found, 0) == gauges(found) == {"ready": 3}  # by the buckets of 5 min
    assert sums(await history(driver, 90)) == {"put": 3}


@pytest.mark.slow
async def test_an_hour_of_short_buckets_and_two_days_of_long_ones(driver: EngineDriver) -> None:
    """Each count is in both exactly once, also while the last one of 10 s is not complete."""
    published: list[int] = []  # when, in 10 s
    for step in range(700):
        await driver.engine.puts.put(job(f"j{step}", delay=86_400 * 3))
        await driver.engine.history_publisher.publish()
        [record] = driver.server.command("LRANGE", f"{KEY}:history/10s", -1, -1)
        published.append(msgspec.msgpack.decode(record)[0])
        driver.move_clock(10 if step < 400 else 601)
        for minutes in (60, 61, 2880) if step % 50 == 49 else ():
            driver.engine.histories._reads._values.clear()
            found = await driver.engine.histories.of_topic(TOPIC, minutes)
            period = found.period
            assert len(found.buckets) == 360 if minutes == 60 else len(found.buckets) in {13, 14, 576, 577}
            wanted = [0] * period.buckets
            for at in published:
                if period.from_ms <= at * 10_000 < period.to_ms:
                    wanted[(at * 10_000 - period.from_ms) // period.bucket_ms] += 1
            assert [bucket.counts[0] for bucket in found.buckets] == wanted
            assert gauges(found) == {"delayed": len(published)}
    assert driver.server.command("LLEN", f"{KEY}:history/10s") <= 362
    assert driver.server.command("LLEN", f"{KEY}:history/5m") <= 578
    ttl_ms = driver.server.command("PTTL", f"{KEY}:history/10s")
    assert 172_000_000 < ttl_ms <= 172_800_000


async def test_idle_topics_cost_nothing(driver: EngineDriver) -> None:
    await driver.put("a", delay=60)
    await history(driver)
    calls = driver.server.command("INFO", "commandstats")
    await driver.engine.history_publisher.publish()
    await driver.engine.history_publisher.publish()
    after = driver.server.command("INFO", "commandstats")
    assert calls["cmdstat_fcall"]["calls"] == after["cmdstat_fcall"]["calls"]


async def test_ready_jobs_of_many_topics_are_known_for_three_hours(driver: EngineDriver) -> None:
    """Also those that waited all the time without a change, and of a topic whose history was damaged meanwhile."""
    assert driver.engine.clock is not None
    now_ms = (await driver.engine.clock.read()).now_ms
    driver.move_clock(300 - now_ms % 300_000 / 1000 + 1)  # the first second of a bucket
    await driver.puts.put_many([job(f"j{number}") for number in range(5)] + [job(topic="damaged")])
    await driver.engine.history_publisher.publish()
    driver.move_clock(3600)
    await driver.pop(3)
    await driver.engine.history_publisher.publish()
    driver.move_clock(300)
    driver.server.command("SET", KEY.replace(TOPIC, "damaged") + ":history/5m", "text")
    driver.server.command("LPUSH", KEY.replace(TOPIC, "other") + ":history/10s", "no record")

    async def read(*topics: str) -> dict[str, list[int | None]]:
        driver.engine.ready_histories._reads._values.clear()
        return await driver.engine.ready_histories.of_topics(topics)

    calls = driver.server.command("INFO", "commandstats")["cmdstat_fcall"]["calls"]
    assert await read(TOPIC, "unknown", "damaged", "other") == {
        TOPIC: [None] * 22 + [5] * 12 + [2] * 2,
        "damaged": [None] * 22 + [1] * 14,
    }
    assert driver.server.command("INFO", "commandstats")["cmdstat_fcall"]["calls"] == calls + 1
    driver.move_clock(4 * 3600)
    assert await read(TOPIC) == {TOPIC: [2] * 36}


async def test_a_topic_without_a_history(driver: EngineDriver) -> None:
    with pytest.raises(TopicNotFound):
        await driver.engine.histories.of_topic("unknown", 60)
    await driver.put("a", delay=600)
    driver.engine.history_publisher._counted.take()  # as by a service without histories
    found = await history(driver)
    assert sums(found) == {}
    assert {bucket.gauges for bucket in found.buckets} == {(1, 0, 0, 0)}


async def test_runs_of_schedules_are_counted(schedules: ScheduleDriver) -> None:
    await schedules.schedule(every=60)
    await schedules.advance(190)
    assert sums(await history(schedules)) == {"put": 4}  # one of them waits


async def test_a_forgotten_topic_keeps_its_history(driver: EngineDriver) -> None:
    await driver.put("a")
    await driver.cancels.cancel(TOPIC, "a")
    await purge_jobs(driver.engine, TOPIC)
    found = await history(driver)
    assert sums(found) == {"put": 1, "cancelled": 1}
    with pytest.raises(TopicNotFound):
        await driver.topics.get(TOPIC)


async def test_all_topics_together(driver: EngineDriver) -> None:
    expected = await everything_once(driver)
    await driver.puts.put_many([job(topic=f"t{number}") for number in range(30)])
    await driver.queue.pop("t7", [PopRequest(1)])
    await history(driver)
    of_all = await driver.engine.histories.of_all(None, 60)
    assert of_all.is_complete
    assert sums(of_all) == {**expected, "put": expected["put"] + 30, "popped": expected["popped"] + 1}
    assert sum(sum(bucket.lateness.values()) for bucket in of_all.buckets) == 9


# On a cluster

SHARDS = 6
TOPICS = [f"t{number}" for number in range(24)]


@pytest.mark.slow
async def test_all_shards_have_histories_which_are_summed_up(tmp_path: Path) -> None:
    with ClusterSet(tmp_path) as cluster:
        store = await connect(cluster.url, timeout_s=5)
        engine = Engine(store, shards=SHARDS, movable_clock=True)
        await engine.puts.put_many([PutJob(topic=topic, id="a") for topic in TOPICS])
        for topic in TOPICS[:10]:
            await engine.queue.pop(topic, [PopRequest(1)])
            await engine.queue.finish(topic, "a", ANY_RECEIPT)
        await engine.history_publisher.publish()
        for shard in range(SHARDS):
            await engine._scripts.command("INCRBY", f"deferd:{{{shard}}}:clock", 10_000)
        assert sums(await engine.histories.of_all(None, 60)) == {"put": 24, "popped": 10, "finished": 10}
        some = await engine.histories.of_all(TopicPatterns(["t1*"]), 60)
        assert sums(some) == {"put": 11, "popped": 1, "finished": 1}
        assert sums(await engine.histories.of_topic("t3", 60)) == {"put": 1, "popped": 1, "finished": 1}
        rates = await engine.finish_rates.read(["t3", "t20"], None, lambda _: True)
        assert 9 / 3600 < (rates.in_all or 0) < 11 / 3300
        assert rates.of_topic["t3"] > 0 == rates.of_topic["t20"]
        one = await engine.finish_rates.read([], ["t1*"], lambda topic: topic != "t1")
        assert one.in_all == 0
        await engine.close()
        await store.close()
