"""Another program has damaged keys of one topic: what is read of all topics still has the others, and says so."""

from __future__ import annotations

import pytest

from deferd.contract.model import PutJob, TopicSettings
from deferd.engine.activity_list import Change
from deferd.engine.events import FROM_OLDEST, Dropped, Position
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from tests.integration.engine.engine_driver import TOPIC, EngineDriver

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
