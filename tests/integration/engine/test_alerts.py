"""What needs a person: each alert, when it comes and when it goes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import orjson
import pytest

from deferd.contract.errors import InvalidInput
from deferd.contract.flow import FlowLimits, TopicLimits
from deferd.contract.model import PutJob, TopicSettings
from deferd.contract.operations.push import SetPush
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.engine.history import BestRate
from deferd.engine.inspection.attention import FAILING_CRITICAL, FAILING_LEAST, Alert, Now
from deferd.engine.inspection.consumers import Sample, SeenConsumer
from deferd.engine.inspection.failing import WINDOW_MS
from deferd.engine.inspection.relays import Report
from deferd.engine.push_store import OPENS_AFTER
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.script_arguments import NO_BOUNDS
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver

HOUR_MS = 3_600_000


async def now(driver: EngineDriver, *topics: str) -> Now:
    """As it is at this moment; only visible `topics`, if there are any."""
    engine = driver.engine
    for reads in (engine.alerts, engine.dead_jobs, engine.consumer_registry, engine.relays):
        reads._reads._values.clear()
    return await engine.alerts.now((lambda topic: topic in topics) if topics else (lambda _: True))


async def alerts(driver: EngineDriver, *topics: str) -> list[Alert]:
    return (await now(driver, *topics)).alerts


async def only_alert(driver: EngineDriver, *topics: str) -> Alert:
    [alert] = await alerts(driver, *topics)
    return alert


def consume(driver: EngineDriver, topics: str = TOPIC) -> None:
    """A consumer waits in a pop of this process."""
    driver.engine.consumer_registry.sample = lambda: Sample([SeenConsumer("w", "10.0.0.1", topics, None, 1, 0)])


def report(driver: EngineDriver, **popped: int) -> None:
    """What another process has published: jobs handed out within 10 s, by topic; `_` stands for the dot in it."""
    jobs = {topic.replace("_", "."): count for topic, count in popped.items()}
    at_ms, _ = divmod(int(driver.server.command("TIME")[0]) * 1000, 1)
    offset_ms = int(driver.server.command("GET", "deferd:{0}:clock") or 0)
    report = orjson.dumps({"w": 10_000, "p": jobs, "c": [], "m": 0})
    driver.server.command("HSET", "deferd:{0}:consumers/reports", "other", report)
    driver.server.command("ZADD", "deferd:{0}:consumers/reported", at_ms + offset_ms, "other")


async def test_nothing_needs_a_person_in_an_empty_store(driver: EngineDriver) -> None:
    found = await now(driver)
    assert (found.alerts, found.next_due_ms, found.next_due_jobs) == ([], None, 0)
    assert (found.looked_at, found.is_complete) == (0, True)


async def test_quiet_says_what_is_due_next(driver: EngineDriver) -> None:
    """The jobs of that second, in all visible topics."""
    first = await driver.put("a", delay=3600)
    second_ms = first.due_at_ms - first.due_at_ms % 1000
    for job_id, due_ms in (("b", second_ms + 999), ("c", second_ms + 1000), ("d", first.due_at_ms)):
        driver.server.command("HSET", f"{KEY}:pool", job_id, driver.server.command("HGET", f"{KEY}:pool", "a"))
        driver.server.command("ZADD", f"{KEY}:delay", due_ms, job_id)
    await driver.puts.put(PutJob(topic="other", id="x", delay=3601))
    await driver.puts.put(PutJob(topic="hidden", id="x", delay=1))
    driver.server.command("ZADD", "deferd:{0}:other:delay", second_ms + 998, "x")
    found = await now(driver, TOPIC, "other")
    assert (found.alerts, found.next_due_ms, found.next_due_jobs) == ([], min(first.due_at_ms, second_ms + 998), 4)
    assert found.looked_at == 2
    assert (await now(driver)).looked_at == 3


async def test_ready_jobs_without_a_consumer(driver: EngineDriver) -> None:
    await driver.put("a")
    await driver.put("b")
    alert = await only_alert(driver)
    assert (alert.severity, alert.code, alert.topic, alert.jobs) == ("warning", "no_consumer", TOPIC, 2)
    assert alert.facts["ready"] == 2
    assert alert.facts["last_consumer_at_ms"] is None
    driver.move_clock(61)
    alert = await only_alert(driver)
    assert alert.severity == "critical"
    assert 61_000 <= alert.facts["oldest_age_ms"] < 66_000


@pytest.mark.parametrize("topics", [TOPIC, "other,orders.*", "*"])
async def test_a_consumer_ends_that_alert(driver: EngineDriver, topics: str) -> None:
    await driver.put()
    consume(driver, topics)
    assert await alerts(driver) == []


async def test_when_the_last_consumer_was_seen(driver: EngineDriver) -> None:
    await driver.put()
    consume(driver)
    await driver.engine.consumer_registry.look()
    driver.engine.consumer_registry.sample = lambda: Sample([])
    driver.move_clock(70)
    alert = await only_alert(driver)
    assert alert.code == "no_consumer"
    assert alert.facts["last_consumer_at_ms"] == pytest.approx((await now(driver)).now_ms - 70_000, abs=5000)


async def test_a_consumer_that_holds_a_job_for_long_is_a_consumer(driver: EngineDriver) -> None:
    await driver.put("a", ttr=3600)
    await driver.pop()
    await driver.put("b")
    assert await alerts(driver) == []
    driver.move_clock(70)
    alert = await only_alert(driver)
    assert (alert.code, alert.severity, alert.facts["reserved"], alert.facts["ready"]) == ("behind", "warning", 1, 1)


async def test_too_many_consumers_to_know_them_all(driver: EngineDriver) -> None:
    await driver.put()
    await driver.engine.consumer_registry.publish(Sample([], left_out=3))
    assert await alerts(driver) == []


async def test_behind_by_the_age_of_the_first_job(driver: EngineDriver) -> None:
    await driver.put()
    consume(driver)
    driver.move_clock(59)
    assert await alerts(driver) == []
    driver.move_clock(2)
    assert ((await only_alert(driver)).code, (await only_alert(driver)).severity) == ("behind", "warning")
    driver.move_clock(600)
    assert (await only_alert(driver)).severity == "critical"


async def test_limits_are_named_where_they_hold_back_all_ready_jobs(driver: EngineDriver) -> None:
    for limits in (TopicLimits(max_in_flight=1), TopicLimits(per_group=FlowLimits(max_in_flight=1))):
        await driver.topics.set(TOPIC, TopicSettings(limits=limits))
        for job_id in ("a", "b"):
            await driver.put(job_id, group="g", ttr=7200)
        [held] = await driver.pop(2)
        consume(driver)
        driver.move_clock(1000)
        alert = await only_alert(driver)
        assert (alert.code, alert.severity, alert.facts["limited"]) == ("behind", "warning", True)
        await driver.queue.finish(TOPIC, "a", held.receipt)
        alert = await only_alert(driver)
        assert (alert.code, alert.severity, alert.facts["limited"]) == ("behind", "critical", None)
        await driver.cancels.cancel(TOPIC, "b")


async def test_behind_by_the_wait_of_the_last_job(driver: EngineDriver) -> None:
    await driver.puts.put_many([PutJob(topic=TOPIC, id=str(at)) for at in range(600)])
    consume(driver)
    report(driver, orders_close=30)
    assert await alerts(driver) == []
    report(driver, orders_close=10)
    alert = await only_alert(driver)
    assert (alert.code, alert.facts["rate"], alert.facts["estimated_wait_ms"]) == ("behind", 1.0, 600_000)


async def test_a_pause_with_ready_jobs(driver: EngineDriver) -> None:
    """And only that: consumers can do nothing about it."""
    await driver.put("a", delay=60)
    await driver.topics.pause(TOPIC, "ops")
    assert await alerts(driver) == []
    await driver.pass_time(700)
    alert = await only_alert(driver)
    assert (alert.code, alert.severity) == ("paused", "warning")
    assert (alert.facts["ready"], alert.facts["by"], alert.facts["due"]) == (1, "ops", None)
    assert alert.facts["since_at_ms"] == pytest.approx((await now(driver)).now_ms - 700_000, abs=5000)
    await driver.topics.resume(TOPIC)
    assert (await only_alert(driver)).code == "no_consumer"


async def bury(driver: EngineDriver, topic: str, job_id: str, error: str | None, **fields: Any) -> None:
    await driver.puts.put(PutJob.model_validate({"topic": topic, "id": job_id, **fields}))
    await driver.queue.pop(topic, [PopRequest(1)])
    await driver.deliveries.bury(topic, job_id, ANY_RECEIPT, error=error)


async def test_jobs_that_died_within_the_hour(driver: EngineDriver) -> None:
    await bury(driver, TOPIC, "old", "SMTP 550 no such user")
    await driver.pass_time(3000)
    for number in range(5):
        await bury(driver, TOPIC, f"j{number}", f"SMTP 421: host {number} is busy", dead_retain=2000)
    await bury(driver, TOPIC, "none", None)
    alert = await only_alert(driver)
    assert (alert.code, alert.severity, alert.jobs) == ("dying", "warning", 7)
    await driver.pass_time(900)
    alert = await only_alert(driver)
    assert alert.facts == {
        "dead": 6,
        "top_error": "SMTP 421: host * is busy",
        "top_reason": "buried",
        "top_dead": 5,
        "exact": True,
    }
    await driver.pass_time(3000)
    assert await alerts(driver) == []


async def test_with_many_dead_jobs_their_number_is_an_estimate(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deferd.engine.inspection.attention._DEAD_LOOKED_AT", 4)
    await bury(driver, "old", "a", "long ago")
    await driver.pass_time(3700)
    for number in range(6):
        await bury(driver, TOPIC, f"j{number}", "timeout")
    alert = await only_alert(driver)
    assert (alert.topic, alert.facts["dead"], alert.facts["top_dead"]) == (TOPIC, 6, 6)
    assert not alert.facts["exact"]


async def test_jobs_that_the_timer_does_not_get_to(driver: EngineDriver) -> None:
    await driver.put("a", delay=10)
    await driver.run_timer()
    driver.move_clock(14)
    assert await alerts(driver) == []
    driver.move_clock(2)
    driver.server.command("SET", "deferd:{0}:lock", "somebody", "PX", 2500)
    alert = await only_alert(driver)
    assert (alert.code, alert.severity, alert.topic, alert.facts["jobs"]) == ("late", "warning", TOPIC, 1)
    assert 6_000 <= alert.facts["overdue_ms"] < 9_000


async def test_no_timer_runs(driver: EngineDriver) -> None:
    """One alert for the shard, and none for each of its topics."""
    await driver.put("a", delay=10)
    await driver.puts.put(PutJob(topic="other", id="a", delay=10))
    driver.server.command("DEL", "deferd:{0}:lock")
    driver.move_clock(20)
    alert = await only_alert(driver, TOPIC)
    assert (alert.code, alert.severity, alert.topic) == ("timer", "critical", None)
    assert (alert.facts["shard"], alert.facts["running"]) == (0, False)
    assert 10_000 <= alert.facts["overdue_ms"] < 13_000
    await driver.run_timer()
    assert {one.code for one in await alerts(driver)} == {"no_consumer"}


async def test_a_timer_that_holds_the_lock_and_is_overdue_by_a_minute(driver: EngineDriver) -> None:
    await driver.put("a", delay=10)
    driver.move_clock(71)
    driver.server.command("SET", "deferd:{0}:lock", "somebody", "PX", 2500)
    alert = await only_alert(driver)
    assert (alert.code, alert.facts["running"]) == ("timer", True)


async def test_a_topic_that_is_nearly_full(driver: EngineDriver) -> None:
    await driver.topics.set(TOPIC, TopicSettings(max_jobs=10, retain=3600))
    consume(driver)
    await bury(driver, TOPIC, "dead", None, dead_retain=3600)
    driver.move_clock(0)
    await driver.puts.put_many([PutJob(topic=TOPIC, id=str(at), delay=600) for at in range(8)])
    assert [one.code for one in await alerts(driver)] == ["dying"]
    await driver.put("8")
    full, _ = await alerts(driver)
    assert (full.code, full.severity, full.facts) == ("topic_full", "warning", {"jobs": 9, "max_jobs": 10})
    await driver.put("9")
    full, _ = await alerts(driver)
    assert full.severity == "critical"


@pytest.mark.parametrize(("asked", "why"), [("fsync", "does not fsync"), ("replicated:1", "0 of 1 replicas")])
async def test_durability_that_the_store_does_not_give(driver: EngineDriver, asked: str, why: str) -> None:
    """Also of a topic without jobs: nobody can put any."""
    driver.server.command("CONFIG", "SET", "appendonly", "no")
    await driver.topics.set(TOPIC, TopicSettings.model_validate({"durability": asked}))
    await driver.topics.set("other", TopicSettings.model_validate({"durability": "memory"}))
    alert = await only_alert(driver)
    assert (alert.code, alert.severity, alert.topic) == ("durability", "critical", TOPIC)
    assert (alert.facts["durability"], alert.facts["available"]) == (asked, "memory")
    assert why in alert.facts["why"]


async def test_runs_of_schedules_that_were_missed(driver: EngineDriver) -> None:
    """While no service ran, for more than one run."""
    schedule = PutSchedule(topic=TOPIC, every=60, catch_up="none")
    await driver.engine.schedules.put("s", schedule, NO_BOUNDS, lambda _: None)
    driver.move_clock(400)
    await driver.run_timer()
    consume(driver)
    missed = [one for one in await alerts(driver) if one.code == "schedules_missed"]
    assert [(one.topic, one.facts["schedule"]) for one in missed] == [(TOPIC, "s")]
    assert missed[0].facts["missed"] == (await driver.engine.schedules.get("s")).missed
    assert missed[0].facts["missed"] >= 5
    assert missed[0].facts["last_missed_at_ms"] == pytest.approx((await now(driver)).now_ms, abs=5000)
    assert await alerts(driver, "other") == []
    assert 3_590_000 < driver.server.command("PTTL", "deferd:{0}:schedules/missed") <= HOUR_MS


async def test_without_a_history_what_is_due_soon_is_compared_with_what_consumers_take(
    driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unknown(_: Collection[str]) -> dict[str, BestRate]:
        return {}

    monkeypatch.setattr(driver.engine.finish_rates, "best_of", unknown)
    await driver.puts.put_many([PutJob(topic=TOPIC, id=str(at), delay=600) for at in range(1000)])
    consume(driver)
    report(driver, orders_close=3)
    assert await alerts(driver) == []
    report(driver, orders_close=2)
    alert = await only_alert(driver)
    assert (alert.code, alert.severity, alert.facts) == (
        "overload", "warning", {"due": 1000, "handled": 720, "handled_at_ms": None}
    )  # fmt: skip


async def release_all(driver: EngineDriver, jobs: int, error: str | None, *, prefix: str = "r") -> None:
    await driver.puts.put_many([PutJob(topic=TOPIC, id=f"{prefix}{at}") for at in range(jobs)])
    for popped in await driver.pop(jobs):
        await driver.deliveries.release(TOPIC, popped.id, ANY_RECEIPT, delay_ms=HOUR_MS, error=error)
    await driver.engine.history_publisher.publish()


async def test_work_that_fails_and_is_retried_needs_a_person(driver: EngineDriver) -> None:
    await driver.put("later", delay=7200)
    await release_all(driver, FAILING_LEAST - 1, "KeyError: 'email'")
    assert await alerts(driver) == []
    await release_all(driver, 1, "order 7 not found", prefix="s")
    alert = await only_alert(driver)
    assert (alert.code, alert.severity, alert.topic, alert.jobs) == ("failing", "warning", TOPIC, FAILING_LEAST)
    window_ms = alert.facts.pop("window_ms")
    assert 600_000 <= window_ms <= WINDOW_MS
    assert alert.facts == {
        "released": FAILING_LEAST, "finished": 0, "retrying": FAILING_LEAST, "exact": True,
        "top_error": "KeyError: 'email'", "top_retrying": FAILING_LEAST - 1,
    }  # fmt: skip
    await driver.topics.pause(TOPIC)
    assert await alerts(driver) == []
    await driver.topics.resume(TOPIC)
    await finish_some(driver, FAILING_LEAST)
    assert await alerts(driver) == [], "as many were finished: retries help"
    await release_all(driver, FAILING_CRITICAL, None, prefix="t")
    alert = await only_alert(driver)
    assert (alert.severity, alert.facts["finished"]) == ("warning", FAILING_LEAST)
    driver.move_clock(WINDOW_MS / 1000)
    assert "failing" not in {one.code for one in await alerts(driver)}, "it is over"


async def test_work_that_only_fails_is_critical_and_its_jobs_are_counted_as_far_as_they_are_read(
    driver: EngineDriver,
) -> None:
    await driver.puts.put_many([PutJob(topic=TOPIC, id=f"soon{at}", delay=60) for at in range(200)])
    await release_all(driver, FAILING_CRITICAL, "x")
    alert = await only_alert(driver)
    assert (alert.code, alert.severity) == ("failing", "critical")
    assert (alert.facts["retrying"], alert.facts["exact"]) == (50, False), "250 of 300 delayed jobs were looked at"


async def test_consumers_that_die_with_their_jobs_fail_too(driver: EngineDriver) -> None:
    await driver.puts.put_many([PutJob(topic=TOPIC, id=f"l{at}", ttr=5) for at in range(FAILING_LEAST)])
    await driver.pop(FAILING_LEAST)
    await driver.pass_time(6)
    await driver.engine.history_publisher.publish()
    consume(driver)
    alert = await only_alert(driver)
    assert (alert.code, alert.facts["released"], alert.facts["finished"]) == ("failing", FAILING_LEAST, 0)
    assert alert.facts["retrying"] == 0, "these are ready at once"


async def test_snoozes_are_no_failures(driver: EngineDriver) -> None:
    await driver.puts.put_many([PutJob(topic=TOPIC, id=f"s{at}") for at in range(FAILING_LEAST)])
    for popped in await driver.pop(FAILING_LEAST):
        await driver.deliveries.release(TOPIC, popped.id, ANY_RECEIPT, delay_ms=HOUR_MS, counts=False)
    await driver.engine.history_publisher.publish()
    assert await alerts(driver) == []


FIVE_MIN_S = 300


async def finish_some(driver: EngineDriver, jobs: int) -> None:
    await driver.puts.put_many([PutJob(topic=TOPIC, id=f"f{at}") for at in range(jobs)])
    for popped in await driver.pop(jobs):
        await driver.queue.finish(TOPIC, popped.id, ANY_RECEIPT)
    await driver.engine.history_publisher.publish()


async def test_what_is_due_soon_is_compared_with_the_best_that_consumers_did_in_two_days(driver: EngineDriver) -> None:
    """Not with the last hour: every start and every quiet night would raise an alert."""

    async def overload() -> list[Alert]:
        driver.engine.finish_rates._best._values.clear()
        return [one for one in await alerts(driver) if one.code == "overload"]

    await finish_some(driver, 1)
    await driver.puts.put_many([PutJob(topic=TOPIC, id=str(at), delay=3600 * 24) for at in range(1200)])
    driver.move_clock(3600 * 23.5)
    assert await overload() == [], "a history that has just begun tells nothing"
    await finish_some(driver, 20)
    assert await overload() == [], "nor do 5 minutes that are not over"
    began_ms = (await now(driver)).now_ms
    driver.move_clock(FIVE_MIN_S)
    await finish_some(driver, 1)
    [alert] = await overload()
    assert (alert.facts["due"], alert.facts["handled"]) == (1200, 240)
    assert 0 <= began_ms - alert.facts["handled_at_ms"] < FIVE_MIN_S * 1000
    await finish_some(driver, 90)
    driver.move_clock(FIVE_MIN_S)
    await finish_some(driver, 1)
    assert await overload() == [], "at 91 in 5 minutes they handle 1,092 in an hour"
    driver.move_clock(4 * FIVE_MIN_S)
    await finish_some(driver, 2)
    assert await overload() == [], "also when little was finished since"


async def test_the_most_urgent_comes_first(driver: EngineDriver) -> None:
    for topic, jobs in (("few", 1), ("many", 3)):
        await driver.puts.put_many([PutJob(topic=topic, id=str(at)) for at in range(jobs)])
    await bury(driver, "dying", "a", "x")
    await driver.puts.put(PutJob(topic="paused", id="a"))
    await driver.topics.pause("paused")
    assert [one.topic for one in await alerts(driver)] == ["many", "few", "dying", "paused"]
    driver.move_clock(61)
    await driver.puts.put(PutJob(topic="young", id="a"))
    assert [one.topic for one in await alerts(driver)] == ["many", "few", "young", "dying", "paused"]
    assert [one.topic for one in await alerts(driver, "few", "paused")] == ["few", "paused"]


async def test_a_damaged_topic_does_not_hide_the_others(driver: EngineDriver) -> None:
    await driver.put()
    await driver.puts.put(PutJob(topic="broken", id="a"))
    driver.server.command("HSET", "deferd:{0}:broken:pool", "a", "short")
    for settings in ("no json", "[1]", '{"du": "x", "j": {}, "po": []}', '{"p": 1, "pb": 7}'):
        driver.server.command("HSET", "deferd:{0}:settings", "broken", settings)
        assert TOPIC in {one.topic for one in await alerts(driver)}


async def test_large_bodies_are_read_in_steps(driver: EngineDriver) -> None:
    names = [f"t{number}" for number in range(5)]
    for name in names:
        await driver.puts.put(PutJob(topic=name, id="a", body="x" * 700_000))
    driver.server.command("CONFIG", "RESETSTAT")
    assert {one.topic for one in await alerts(driver)} == set(names)
    assert (await now(driver)).looked_at == 5


PUSH = SetPush.model_validate(
    {"url": "https://hooks.example.com/", "secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]}
)


async def test_a_pushed_topic_needs_no_consumer(driver: EngineDriver) -> None:
    await driver.put()
    assert (await only_alert(driver)).code == "no_consumer"
    await driver.engine.push.set(TOPIC, PUSH)
    assert await alerts(driver) == []


async def test_a_push_that_fails_is_named_in_place_of_consumers_that_are_behind(driver: EngineDriver) -> None:
    await driver.put()
    await driver.engine.push.set(TOPIC, PUSH)
    await driver.engine.push.note_failure(TOPIC, "HTTP 429", is_probe=False, pause_ms=30_000)
    assert await alerts(driver) == [], "it only asked for a pause"
    for _ in range(OPENS_AFTER - 1):
        open_ms = await driver.engine.push.note_failure(TOPIC, "HTTP 502", is_probe=False, pause_ms=60_000)
    found = await now(driver)
    [alert] = found.alerts
    assert (alert.code, alert.severity, alert.topic, alert.jobs) == ("push_failing", "warning", TOPIC, 1)
    named = ("circuit", "failures", "last_error", "ready")
    assert [alert.facts[name] for name in named] == ["open", OPENS_AFTER, "HTTP 502", 1]
    assert alert.facts["next_try_at_ms"] == pytest.approx(found.now_ms + open_ms, abs=2000)
    assert alert.facts["last_error_at_ms"] == pytest.approx(found.now_ms, abs=2000)
    driver.move_clock(700)
    alert = await only_alert(driver)
    assert (alert.code, alert.severity, alert.facts["circuit"]) == ("push_failing", "critical", "half_open")
    assert alert.facts["next_try_at_ms"] is None
    await driver.topics.pause(TOPIC)
    assert (await only_alert(driver)).code == "paused"
    await driver.topics.resume(TOPIC)
    await driver.engine.push.note_success(TOPIC)
    assert (await only_alert(driver)).code == "behind"
    await driver.engine.cancels.cancel(TOPIC, "a")
    assert await alerts(driver) == []


async def acknowledge(driver: EngineDriver, topic: str | None, minutes: float, reason: str = "moved") -> int:
    until_ms = (await now(driver)).now_ms + round(minutes * 60_000)

    def is_meant(one: Alert) -> bool:
        return topic is None or one.topic == topic

    return await driver.engine.alerts.acknowledge(is_meant, reason, "ops", until_ms)


async def test_an_acknowledged_alert_is_apart_until_its_end(driver: EngineDriver) -> None:
    await driver.put("a")
    await driver.puts.put(PutJob(topic="other", id="a", body=None))
    await driver.pass_time(1)
    assert await acknowledge(driver, TOPIC, 2) == 1
    assert await acknowledge(driver, "none", 2) == 0
    found = await now(driver)
    assert [one.topic for one in found.alerts] == ["other"]
    [(alert, noted)] = found.acknowledged
    assert (alert.topic, noted.reason, noted.by) == (TOPIC, "moved", "ops")
    assert (await now(driver, "other")).acknowledged == []
    await driver.pass_time(130)
    assert {one.topic for one in await alerts(driver)} == {TOPIC, "other"}
    assert await acknowledge(driver, None, 60 * 24 * 30) == 2
    assert await acknowledge(driver, "other", 1, "again") == 1
    assert [noted.reason for _, noted in (await now(driver)).acknowledged] == ["moved", "again"]
    assert await acknowledge(driver, "other", -1) == 1, "it ends"
    assert {one.topic for one in await alerts(driver)} == {"other"}
    with pytest.raises(InvalidInput, match="30 days"):
        await acknowledge(driver, None, 60 * 24 * 31)


async def test_an_alert_that_becomes_critical_needs_somebody_again(driver: EngineDriver) -> None:
    await driver.put("a")
    await driver.pass_time(1)
    assert (await only_alert(driver)).severity == "warning"
    await acknowledge(driver, TOPIC, 10_000)
    assert await alerts(driver) == []
    await driver.pass_time(7200)
    assert (await only_alert(driver)).severity == "critical"
    await acknowledge(driver, TOPIC, 10_000)
    assert await alerts(driver) == []


async def test_what_another_program_writes_among_acknowledgements_is_no_acknowledgement(driver: EngineDriver) -> None:
    await driver.put("a")
    await driver.pass_time(1)
    driver.server.command("HSET", "deferd:{0}:acknowledged", f"no_consumer {TOPIC}", "[]", b"\xff", "x")
    await only_alert(driver)
    driver.server.command("SET", "deferd:{0}:acknowledged", "x")
    driver.engine.alerts._acknowledgements._reads._values.clear()
    await only_alert(driver)


async def test_an_outbox_that_is_behind_or_refused_or_that_nobody_sends(driver: EngineDriver) -> None:
    """Keys for some topics do not see it, as it names a database."""

    async def report(*, works: bool = True, refused: int = 0, lag_s: float = 0) -> int:
        return await driver.engine.relays.report("r", Report("db:5432/shop", works, 12, refused, lag_s))

    began_ms = await report(works=False)
    assert await alerts(driver) == []
    driver.move_clock(31)
    stopped = Alert("critical", "outbox_stopped", jobs=12, facts={"database": "db:5432/shop", "rows": 12})
    stopped.facts["since_at_ms"] = began_ms
    assert await alerts(driver) == [stopped]
    await report(lag_s=60)
    assert await alerts(driver) == []
    await report(lag_s=61, refused=2)
    behind, refused = await alerts(driver)
    assert (behind.severity, behind.code, behind.facts["lag_ms"]) == ("warning", "outbox_behind", 61_000)
    assert (refused.severity, refused.code, refused.facts["refused"]) == ("warning", "outbox_refused", 2)
    worked_ms = await report(lag_s=601)
    assert (await only_alert(driver)).severity == "critical"
    driver.move_clock(31)
    assert await only_alert(driver) == replace(stopped, facts=stopped.facts | {"since_at_ms": worked_ms})
    assert (await driver.engine.alerts.now(lambda _: True, with_outboxes=False)).alerts == []
