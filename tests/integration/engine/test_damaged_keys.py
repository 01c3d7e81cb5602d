"""Another program has damaged keys of a shard or a topic: calls on jobs work, and reads say what is missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from deferd.contract.bulk_model import CancelSelected
from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import ChangeJob, FinishItem, JobState, PutJob, TopicSettings
from deferd.contract.operations.audits import FindingKind
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.activity_list import Change
from deferd.engine.events import FROM_OLDEST, Dropped, Position
from deferd.engine.inspection.consumers import Sample, SeenConsumer
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT, JobRecord
from deferd.engine.scripts import WrongType
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.schedule_driver import NAME, ScheduleDriver
from tests.integration.engine.sweeping import purge_jobs

SHARD = "deferd:{0}:"


def damage(driver: EngineDriver, name: str) -> None:
    driver.server.command("SET", SHARD + name, "x")


def type_of(driver: EngineDriver, name: str) -> bytes:
    kind: bytes = driver.server.command("TYPE", SHARD + name)
    return kind


async def keep_events(driver: EngineDriver, topic: str = TOPIC) -> None:
    await driver.topics.set(topic, TopicSettings(events=100))


async def listed(driver: EngineDriver) -> list[str]:
    return await driver.engine.event_reader.partitions_of(0)


@pytest.mark.parametrize("call", ["put", "promote", "lease end", "pop", "finish", "cancel", "change", "bury", "purge"])
async def test_a_damaged_list_of_topics_with_events_stops_no_call(driver: EngineDriver, call: str) -> None:
    """The first event of a topic is that of the call."""
    await keep_events(driver, "other")
    await driver.puts.put(PutJob(topic="other", id="a"))
    if call != "put":
        await driver.put("a", delay=5 if call in {"promote", "change"} else 0, ttr=2)
    if call in {"lease end", "finish", "bury"}:
        await driver.pop_one()
    await keep_events(driver)
    damage(driver, "events/topics")
    expected = {call: {"ready": 1} for call in ("put", "promote", "lease end", "change")}
    expected |= {"pop": {"reserved": 1}, "bury": {"dead": 1}}
    match call:
        case "put":
            await driver.put("a")
        case "promote":
            await driver.pass_time(6)
        case "lease end":
            await driver.pass_time(3)
        case "pop":
            await driver.pop_one()
        case "finish":
            await driver.queue.finish_many(TOPIC, [FinishItem(id="a")])
        case "cancel":
            await driver.cancels.cancel(TOPIC, "a")
        case "change":
            await driver.queue.change(TOPIC, "a", ChangeJob(delay=0))
            await driver.run_timer()
        case "bury":
            await driver.deliveries.bury(TOPIC, "a", ANY_RECEIPT)
        case "purge":
            await purge_jobs(driver.engine, TOPIC, state=JobState.READY)
    assert await driver.counts() == expected.get(call, {})
    assert type_of(driver, "events/topics") == b"zset"
    assert await listed(driver) == [TOPIC, "other"]
    report = await driver.engine.consistency.audit_topic(TOPIC)
    assert report.findings.counts == {}


async def test_a_topic_ends_its_events_with_a_damaged_list(driver: EngineDriver) -> None:
    for topic in ("other", TOPIC):
        await keep_events(driver, topic)
        await driver.puts.put(PutJob(topic=topic, id="a"))
    damage(driver, "events/topics")
    await driver.topics.set(TOPIC, TopicSettings(ttr=30))
    assert (await driver.topics.get(TOPIC)).settings.ttr == 30
    assert driver.server.command("EXISTS", f"{KEY}:events/log") == 0
    assert await listed(driver) == ["other"]


async def test_a_topic_is_forgotten_with_a_damaged_list(driver: EngineDriver) -> None:
    await driver.put("a", delay=60)
    damage(driver, "events/topics")
    await purge_jobs(driver.engine, TOPIC)
    assert driver.server.command("KEYS", f"{KEY}:*") == []
    assert driver.server.command("HEXISTS", f"{SHARD}settings", TOPIC) == 0
    assert await listed(driver) == []


async def test_a_reader_repairs_a_damaged_list_of_topics_with_events(driver: EngineDriver) -> None:
    for topic in ("b", "a", "none"):
        if topic != "none":
            await keep_events(driver, topic)
        await driver.puts.put(PutJob(topic=topic, id="x"))
    damage(driver, "events/topics")
    found = await driver.engine.event_reader.latest(None, None, 10)
    assert {event.topic for event in found.events} == {"a", "b"}
    assert found.is_complete
    assert type_of(driver, "events/topics") == b"zset"


@pytest.mark.parametrize("catch_up", ["none", "last"])
async def test_missed_runs_with_a_damaged_list(schedules: ScheduleDriver, catch_up: str) -> None:
    await schedules.schedule(catch_up=catch_up)
    damage(schedules, "schedules/missed")
    await schedules.pass_outage(600)
    found = await schedules.get()
    assert found.missed > 0
    assert schedules.server.command("ZRANGE", f"{SHARD}schedules/missed", 0, -1) == [NAME.encode()]
    assert schedules.server.command("PTTL", f"{SHARD}schedules/missed") > 0
    await schedules.until_due()
    assert (await schedules.get()).runs == found.runs + 1
    report = await schedules.engine.consistency.audit_topic(TOPIC)
    assert report.findings.counts == {}


CONSUMERS = ("consumers/reports", "consumers/reported", "consumers/topics")


@pytest.mark.parametrize("name", ["schedules/missed", *CONSUMERS])
async def test_what_needs_a_person_is_shown_without_what_is_damaged(driver: EngineDriver, name: str) -> None:
    engine = driver.engine
    await driver.put("a")
    await engine.consumer_registry.publish(Sample([SeenConsumer("w", None, "other", None, 1, 0)]))
    whole = await engine.alerts._reader.read()
    assert whole.is_complete
    damage(driver, name)
    engine.consumer_registry._reads._values.clear()
    found = await engine.alerts._reader.read()
    assert not found.is_complete
    assert found.topics[TOPIC].ready == 1
    engine.consumer_registry._reads._values.clear()
    await engine.system.read()
    consumers = await engine.consumers.all(lambda _: True)
    assert consumers.is_complete == (name not in {"consumers/reports", "consumers/reported"})


@pytest.mark.parametrize("name", CONSUMERS)
async def test_the_next_report_repairs_what_is_known_of_consumers(driver: EngineDriver, name: str) -> None:
    registry = driver.engine.consumer_registry
    sample = Sample([SeenConsumer("w", None, TOPIC, None, 1, 0)])
    await registry.publish(sample)
    damage(driver, name)
    if name == "consumers/topics":
        assert (await registry.read()).consumers
        with pytest.raises(StoreUnavailable, match="damaged"):
            await registry.last_seen([TOPIC])
    else:
        with pytest.raises(StoreUnavailable, match="damaged"):
            await registry.read()
    registry._reads._values.clear()
    assert (await registry.activity_of(TOPIC)) is None
    registry._reads._values.clear()
    await registry.publish(sample)
    assert [one.name for one in (await registry.read(TOPIC)).consumers] == ["w"]
    assert set(await registry.last_seen([TOPIC])) == {TOPIC}


async def test_an_error_says_in_which_call_a_key_is_damaged(driver: EngineDriver) -> None:
    damage(driver, "activity")
    with pytest.raises(WrongType, match=r"WRONGTYPE.*'activity'"):
        await driver.engine.activity.page(lambda _: True, None, 10)


@pytest.mark.parametrize("name", ["tasks", "tasks/running"])
async def test_tasks_begin_and_go_on(driver: EngineDriver, name: str) -> None:
    tasks = driver.engine.tasks
    spec = {"kind": "purge", "cutoff": 0, "limit": None, "sweep": {"topic": "gone"}, "change": {}}
    assert await tasks.begin("before", spec, "me")
    damage(driver, name)
    assert await tasks.extend(await tasks.get("before"), "me") == 1
    damage(driver, name)
    assert await tasks.claim("other") == []
    damage(driver, name)
    driver.move_clock(0.01)  # tasks are listed by when they began
    assert await tasks.begin("after", spec, "me")
    assert type_of(driver, name) == b"zset"
    assert (await tasks.newest(10))[0].id == "after"
    assert await tasks.extend(await tasks.get("before"), "me") == 1
    driver.move_clock(60)
    assert {task.id for task in await tasks.claim("other")} == {"before", "after"}
    assert await tasks.end(await tasks.get("after"), "other", "done")


async def test_a_damaged_list_of_histories_leaves_rates_and_history(driver: EngineDriver) -> None:
    engine = driver.engine
    await driver.put("a")
    await engine.history_publisher.publish()
    assert await engine.finish_rates.best_of([TOPIC]) == {TOPIC: (0, None)}
    damage(driver, "history/topics")
    found = await engine.histories.of_all(TopicPatterns([TOPIC]), 10)
    assert (found.is_complete, found.unreadable) == (False, set())
    rates = await engine.finish_rates.read([TOPIC, "none"], [TOPIC], lambda _: True)
    assert (rates.of_topic, rates.in_all) == ({TOPIC: 0.0}, None)
    assert await engine.finish_rates.best_of(["none"]) == {}, "it may have lost its history to others"
    assert len((await engine.histories.of_topic(TOPIC, 10)).buckets) > 0
    await driver.put("b")
    await engine.history_publisher.publish()
    engine.histories._reads_of_many._values.clear()
    assert (await engine.histories.of_all(TopicPatterns([TOPIC]), 10)).is_complete


@pytest.mark.parametrize("name", ["delay", "pool"])
async def test_jobs_that_are_retried_are_read_where_they_can_be(driver: EngineDriver, name: str) -> None:
    for topic in ("bad", "good"):
        await driver.puts.put(PutJob(topic=topic, id="a", delay=60))
    driver.server.command("SET", f"deferd:{{0}}:bad:{name}", "x")
    assert set(await driver.engine.failing.retrying(["bad", "good"])) == {"good"}
    driver.server.command("HSET", "deferd:{0}:good:pool", "a", "x" * 40)
    assert (await driver.engine.failing.retrying(["good"]))["good"].top_error is None


# Keys of groups

CALLS: dict[str, Callable[[EngineDriver, list[JobRecord]], Awaitable[object]]] = {
    "put": lambda driver, _: driver.put("new", group="z"),
    "put many": lambda driver, _: driver.puts.put_many([job(f"new{n}", group=f"z{n}") for n in range(3)]),
    "pop": lambda driver, _: driver.pop(1),
    "pop many": lambda driver, _: driver.pop(3),
    "finish": lambda driver, held: driver.queue.finish_many(TOPIC, [FinishItem(id=one.id) for one in held]),
    "release": lambda driver, held: driver.deliveries.release(TOPIC, held[0].id, ANY_RECEIPT, delay_ms=9000),
    "bury": lambda driver, held: driver.deliveries.bury(TOPIC, held[0].id, ANY_RECEIPT),
    "return": lambda driver, held: driver.held_jobs.return_popped(held),
    "cancel": lambda driver, _: driver.cancels.cancel(TOPIC, "late"),
    "change": lambda driver, _: driver.queue.change(TOPIC, "g-ready", ChangeJob(group="k")),
    "timer": lambda driver, _: driver.pass_time(100),
    "bulk": lambda driver, _: driver.engine.bulk.cancel(
        CancelSelected.model_validate({"select": {"state": "ready", "topics": [TOPIC]}, "request_id": "r:1"})
    ),
}


@pytest.mark.parametrize("name", ["groups", "flows", "limited"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
async def test_a_call_that_needs_a_damaged_key_of_groups_loses_no_job(
    driver: EngineDriver, call: Callable[[EngineDriver, list[JobRecord]], Awaitable[object]], name: str
) -> None:
    """It fails before anything is half done, or does not need the key."""
    await driver.topics.set(TOPIC, TopicSettings.model_validate({"limits": {"per_group": {"max_in_flight": 1}}}))
    for group in ("g", "h"):
        await driver.put(f"{group}-held", group=group, priority=1)
    held = await driver.pop(2)
    for group in ("g", "h", "i", "j"):
        await driver.put(f"{group}-ready", group=group)
    await driver.put("late", group="g", delay=5)
    driver.server.command("DEL", f"{KEY}:{name}")
    driver.server.command("SET", f"{KEY}:{name}", "x")
    with suppress(WrongType):
        await call(driver, held)
    found = await driver.engine.consistency.audit_topic(TOPIC, repair=True)
    of_jobs = {FindingKind.IN_NO_PLACE, FindingKind.IN_TWO_PLACES, FindingKind.NO_RECORD, FindingKind.TALLY_OFF}
    assert of_jobs.isdisjoint(found.findings.counts), found.findings.examples
    assert found.findings.counts[FindingKind.WRONG_TYPE] == 1
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


# Keys of topics

BAD, GOOD = "bad.one", "good.one"
KEYS = ("pool", "delay", "ready", "reserved", "dead", "finished", "holders", "events/log", "events/seq")


async def fill(driver: EngineDriver, topic: str) -> None:
    """A delayed, a ready, a reserved and a dead job, with events."""
    await driver.topics.set(topic, TopicSettings(events=100, max_jobs=50))
    await driver.puts.put(PutJob(topic=topic, id="delayed", delay=300))
    for name in ("dead", "held", "ready"):
        await driver.puts.put(PutJob(topic=topic, id=name))
    await driver.queue.pop(topic, [PopRequest(2, consumer="w")])
    await driver.deliveries.bury(topic, "dead", ANY_RECEIPT, error="an error")


@pytest.mark.parametrize("damaged", KEYS)
async def test_one_damaged_topic_hides_no_other(driver: EngineDriver, damaged: str) -> None:
    engine = driver.engine
    for topic in (BAD, GOOD):
        await fill(driver, topic)
    driver.server.command("DEL", f"deferd:{{0}}:{BAD}:{damaged}")
    driver.server.command("SET", f"deferd:{{0}}:{BAD}:{damaged}", "foo")

    attention = await engine.alerts._reader.read()
    assert attention.topics[GOOD].ready == 1
    of_state = damaged in {"pool", "delay", "ready", "reserved", "dead", "finished"}
    assert (BAD in attention.topics, attention.is_complete) == (not of_state, not of_state)
    dead = await engine.dead_jobs.by_error(None, lambda _: True)
    assert [group.count for group in dead.groups if group.topic == GOOD] == [1]
    assert dead.is_complete == (damaged not in {"dead", "pool"})
    forecast = await engine.forecasts.forecast(None, lambda _: True)
    assert forecast.topics[GOOD].delayed == 1
    assert forecast.is_complete == (damaged != "delay")
    consumers = await engine.consumers.all(lambda _: True)
    assert [one.held for one in consumers.consumers if one.name == "w"] == [
        1 if damaged in {"reserved", "holders"} else 2
    ]
    assert consumers.is_complete == (damaged not in {"reserved", "holders"})
    latest = await engine.event_reader.latest(None, None, 100)
    assert {event.topic for event in latest.events} == ({GOOD} if damaged.startswith("events") else {BAD, GOOD})


async def test_a_reader_of_damaged_events_learns_that_some_are_missing(driver: EngineDriver) -> None:
    await fill(driver, BAD)
    driver.server.command("DEL", f"deferd:{{0}}:{BAD}:events/log")
    driver.server.command("SET", f"deferd:{{0}}:{BAD}:events/log", "foo")
    [page] = (await driver.engine.event_reader.read([(BAD, Position(1, 1))])).values()
    assert page.items == [(Dropped(BAD, None), FROM_OLDEST)]


@pytest.mark.parametrize("entry", ["not json", "7", '{"id":"x"}', '{"id":"x","at":"y"}'])
@pytest.mark.parametrize("number", [-1, 1000])
async def test_a_change_that_cannot_be_read_is_removed(driver: EngineDriver, entry: str, number: int) -> None:
    activity = driver.engine.activity
    activity.record(Change(operation="pause_topic", by="ops", via="api", outcome="done", subject="first"))
    await activity.page(lambda _: True, None, 10)
    driver.server.command("ZADD", "deferd:{0}:activity", number, entry)
    activity.record(Change(operation="pause_topic", by="ops", via="api", outcome="done", subject="second"))
    found, _ = await activity.page(lambda _: True, None, 10)
    assert [one.change.subject for one in found] == ["second", "first"]
    assert driver.server.command("ZSCORE", "deferd:{0}:activity", entry) is None


@pytest.mark.parametrize("name", [":history/10s", ":history/5m", f"{TOPIC}:history/10s", "history/topics"])
@pytest.mark.parametrize("is_list", [False, True])
async def test_a_damaged_history_begins_anew(driver: EngineDriver, name: str, *, is_list: bool) -> None:
    key = f"deferd:{{0}}:{name}"
    engine = driver.engine
    for _ in range(2):
        await driver.put(on_conflict="replace")
        await engine.history_publisher.publish()
        driver.move_clock(10)
    driver.server.command("DEL", key)
    driver.server.command(*(("RPUSH", key, "foo") if is_list else ("SET", key, "foo")))
    for _ in range(3):
        await driver.put(on_conflict="replace")
        await engine.history_publisher.publish()
        driver.move_clock(10)
    kept = "zset" if name == "history/topics" else "list"
    assert driver.server.command("TYPE", key) == kept.encode()
    assert len((await engine.histories.of_topic(TOPIC, 10)).buckets) > 0
