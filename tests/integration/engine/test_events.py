"""Events: what each transition leaves in a topic that keeps some, in the same atomic call, and what a reader misses."""

from __future__ import annotations

from typing import Any

import pytest

from deferd.contract.bulk_model import CancelSelected, RescheduleSelected
from deferd.contract.errors import InvalidInput, StoreUnavailable
from deferd.contract.model import CancelItem, ChangeJob, FinishItem, JobState, TopicSettings
from deferd.contract.operations.schedules_and_calendars import PutSchedule
from deferd.engine.events import (
    FROM_NOW,
    FROM_OLDEST,
    LAST_EVENT_ID_MAX,
    Dropped,
    Event,
    Page,
    Position,
    last_events,
    read_event_id,
    write_event_id,
)
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.script_arguments import NO_BOUNDS
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job
from tests.integration.engine.sweeping import purge_jobs, redrive_jobs

Told = tuple[str, str | None, dict[str, Any]]


async def keep(driver: EngineDriver, events: int = 1000, **settings: Any) -> None:
    await driver.topics.set(TOPIC, TopicSettings(events=events, **settings))


async def read(driver: EngineDriver, position: Position = FROM_OLDEST) -> Page:
    (page,) = (await driver.engine.event_reader.read([(TOPIC, position)])).values()
    return page


async def events(driver: EngineDriver) -> list[Event]:
    """All that the topic has kept, whose numbers are consecutive."""
    found = [item for item, _ in (await read(driver)).items if isinstance(item, Event)]
    assert [event.number for event in found] == list(range(found[0].number, found[0].number + len(found)))
    return found


async def kinds(driver: EngineDriver) -> list[str]:
    return [event.kind for event in await events(driver)]


async def last(driver: EngineDriver, count: int = 1) -> list[Told]:
    """The last events, without instants."""
    return [
        (event.kind, event.id, {name: value for name, value in event.facts.items() if not name.endswith("_ms")})
        for event in (await events(driver))[-count:]
    ]


async def test_a_topic_without_the_setting_leaves_nothing(driver: EngineDriver) -> None:
    await driver.topics.set(TOPIC, TopicSettings(ttr=30))
    await driver.put("a", delay=1)
    await driver.pass_time(2)
    await driver.queue.finish(TOPIC, (await driver.pop_one()).id, ANY_RECEIPT)
    assert driver.server.command("KEYS", "*events*") == []


async def test_the_life_of_a_job(driver: EngineDriver) -> None:
    await keep(driver)
    put = await driver.put("a", delay=5)
    await driver.pass_time(6)
    popped = await driver.pop_one(consumer="worker one")
    found = await events(driver)
    assert [(event.kind, event.id) for event in found] == [("put", "a"), ("ready", "a"), ("popped", "a")]
    assert found[0].facts == {"state": JobState.DELAYED, "due_at_ms": put.due_at_ms}
    assert found[1].facts == {"state": JobState.READY, "due_at_ms": put.due_at_ms}
    assert found[2].facts == {
        "state": JobState.RESERVED,
        "attempt": 1,
        "reserved_until_ms": popped.reserved_until_ms,
        "consumer": "worker one",
    }
    assert found[0].at_ms == put.created_at_ms
    for progress, shown in ((0.5, b"0.5"), ("x" * 118, b'"%b"' % (b"x" * 118)), ("x" * 119, None)):
        await driver.deliveries.touch(TOPIC, "a", popped.receipt, progress=progress)
        facts = {"state": JobState.RESERVED, "attempt": 1} | ({} if shown is None else {"progress": shown})
        assert [("progress", "a", facts)] == await last(driver)
    await driver.deliveries.release(TOPIC, "a", popped.receipt, error="SMTP 421\nsecond line")
    assert [("released", "a", {"state": "delayed", "attempt": 1, "error": "SMTP 421"})] == await last(driver)
    await driver.pass_time(5)
    await driver.deliveries.release(TOPIC, (await driver.pop_one()).id, ANY_RECEIPT, delay_ms=1000, counts=False)
    assert [("snoozed", "a", {"state": "delayed", "attempts": 1})] == await last(driver)
    await driver.pass_time(2)
    await driver.held_jobs.return_popped(await driver.pop(1))
    assert [("returned", "a", {"state": "ready"})] == await last(driver)
    await driver.pop_one()
    await driver.pass_time(3600)
    assert [("lease_ended", "a", {"state": "ready", "attempt": 2, "reason": "lease_ended"})] == await last(driver)
    await driver.queue.finish(TOPIC, (await driver.pop_one()).id, ANY_RECEIPT)
    assert [("finished", "a", {"attempt": 3})] == await last(driver)


async def test_deaths_and_what_comes_after(driver: EngineDriver) -> None:
    await keep(driver, max_attempts=1, dead_retain=100)
    await driver.put("a")
    await driver.deliveries.bury(TOPIC, (await driver.pop_one()).id, ANY_RECEIPT, error="é" * 100)
    ((kind, job_id, facts),) = await last(driver)
    assert (kind, job_id, facts.pop("error")) == ("dead", "a", "é" * 60)
    assert facts == {"state": "dead", "attempts": 1, "reason": "buried"}
    await redrive_jobs(driver.engine, TOPIC)
    assert [("redriven", "a", {"state": "ready"})] == await last(driver)
    await driver.deliveries.release(TOPIC, (await driver.pop_one()).id, ANY_RECEIPT)
    assert (await last(driver))[0][2]["reason"] == "attempts_exhausted"
    await driver.put("b", ttl=1)
    await driver.pass_time(2)
    assert ("dead", "b", {"state": "dead", "attempts": 0, "reason": "expired"}) in await last(driver, 2)
    await driver.pass_time(200)
    assert [("purged", None, {"count": 2, "reason": "retention", "was": "dead"})] == await last(driver)
    await driver.put("c", dead_retain=0)
    await driver.deliveries.bury(TOPIC, (await driver.pop_one()).id, ANY_RECEIPT)
    assert [("dead", "c", {"attempts": 1, "reason": "buried"})] == await last(driver)


async def test_changes_cancels_and_replacements(driver: EngineDriver) -> None:
    await keep(driver)
    await driver.put("a", delay=60)
    await driver.queue.change(TOPIC, "a", ChangeJob(delay=0))
    assert [("changed", "a", {"state": "ready"})] == await last(driver)
    await driver.put("a", delay=60, on_conflict="replace")
    assert [("put", "a", {"state": "delayed", "replaced": True})] == await last(driver)
    await driver.put("a", on_conflict="keep")
    await driver.cancels.cancel_many(TOPIC, [CancelItem(id="a"), CancelItem(id="none")])
    await driver.put("b")
    await driver.pop_one()
    await driver.cancels.cancel_many(TOPIC, [CancelItem(id="b")])
    assert await kinds(driver) == ["put", "changed", "put", "cancelled", "put", "popped", "cancelled"]
    assert [("cancelled", "b", {"was": "reserved"})] == await last(driver)


async def test_batches_and_bulk_calls(driver: EngineDriver) -> None:
    await keep(driver, retain=10)
    ids = [f"job-{number:03}" for number in range(250)]
    await driver.puts.put_many([job(job_id, delay=60, tags=["x"] if job_id > "job-200" else []) for job_id in ids])
    assert [event.id for event in await events(driver)] == ids
    await driver.engine.bulk.reschedule(
        RescheduleSelected.model_validate({"select": {"topics": [TOPIC], "state": "delayed"}, "delay": 0})
    )
    assert await kinds(driver) == ["put"] * 250 + ["changed"] * 250
    popped = await driver.pop(250)
    await driver.queue.finish_many(TOPIC, [FinishItem(id=one.id) for one in popped[:100]])
    assert await last(driver) == [("finished", popped[99].id, {"state": "finished", "attempt": 1})]
    assert (await kinds(driver))[500:] == ["popped"] * 250 + ["finished"] * 100
    await driver.engine.bulk.cancel(CancelSelected.model_validate({"select": {"tag": "x"}}))
    await purge_jobs(driver.engine, TOPIC)
    rest = (await events(driver))[850:]
    assert [event.facts["was"] for event in rest if event.kind == "cancelled"] == ["reserved"] * 49
    assert sum(event.facts["count"] for event in rest if event.kind == "purged") == 201


async def test_follow_ups_and_appends(driver: EngineDriver) -> None:
    await keep(driver)
    await driver.put("a", body=1, on_conflict="append")
    await driver.put("a", body=2, on_conflict="append")
    await driver.pop_one()
    await driver.put("a", on_conflict="replace", if_reserved="after")
    ((kind, _, facts),) = await last(driver)
    assert (kind, facts["state"], set(facts)) == ("changed", "reserved", {"state", "follow_up"})
    await driver.queue.finish(TOPIC, "a", ANY_RECEIPT)
    assert await kinds(driver) == ["put", "changed", "popped", "changed", "finished", "put"]


async def test_runs_of_schedules(driver: EngineDriver) -> None:
    await keep(driver)
    schedules = driver.engine.schedules
    await schedules.put("s", PutSchedule(topic=TOPIC, every=10, overlap="skip"), NO_BOUNDS, lambda _: None)
    await driver.pass_time(11)
    await driver.pass_time(11)
    assert {"put", "ready", "cancelled"} == set(await kinds(driver))
    assert "skipped" in [event.facts.get("reason") for event in await events(driver)]
    await schedules.delete("s", lambda _: None)
    assert (await last(driver))[0][2] == {"was": "delayed", "reason": "withdrawn"}


async def test_the_last_events_are_kept_and_the_reader_learns_how_many_it_has_missed(driver: EngineDriver) -> None:
    await keep(driver, events=5)
    await driver.put("a")
    position = (await read(driver, FROM_NOW)).end
    for number in range(10):
        await driver.put(f"b{number}")
    page = await read(driver, position)
    assert page.items[0][0] == Dropped(TOPIC, 5)
    assert [item.id for item, _ in page.items[1:] if isinstance(item, Event)] == [f"b{n}" for n in range(5, 10)]
    assert (await read(driver, page.end)).items == []
    assert [event.id for event in await events(driver)] == [f"b{n}" for n in range(5, 10)]
    await driver.put("b10")  # a log that is cut too short has all of them after every second event
    assert [event.id for event in await events(driver)] == [f"b{n}" for n in range(6, 11)]
    assert len((await read(driver, last_events(2))).items) == 2
    await keep(driver, events=2)
    assert [event.id for event in await events(driver)] == ["b9", "b10"]


async def test_a_topic_that_kept_none_for_a_while_begins_again(driver: EngineDriver) -> None:
    await keep(driver)
    for job_id in "abc":
        await driver.put(job_id)
    position = (await read(driver)).end
    await keep(driver, events=0)
    assert driver.server.command("KEYS", "*events*") == []
    await driver.put("unseen")
    driver.move_clock(1)
    await keep(driver)
    await driver.put("d")
    page = await read(driver, position)
    assert [item if isinstance(item, Dropped) else item.id for item, _ in page.items] == [Dropped(TOPIC, None), "d"]


async def test_a_store_that_has_lost_events_is_noticed(driver: EngineDriver) -> None:
    await keep(driver)
    await driver.put("a")
    end = (await read(driver)).end
    page = await read(driver, end._replace(number=end.number + 7))
    assert (page.items[0][0], page.end) == (Dropped(TOPIC, None), end)


async def test_forgetting_a_topic_forgets_its_events(driver: EngineDriver) -> None:
    await keep(driver)
    await driver.put("a")
    await purge_jobs(driver.engine, TOPIC)
    assert await kinds(driver) == ["put", "purged"]
    await driver.topics.set(TOPIC, TopicSettings())
    await purge_jobs(driver.engine, TOPIC)
    assert driver.server.command("KEYS", "*events*") == []


@pytest.mark.parametrize("key", ["seq", "log"])
async def test_keys_of_the_wrong_type_stop_no_call(driver: EngineDriver, key: str) -> None:
    await keep(driver)
    await driver.put("a")
    driver.server.command("SET", f"{KEY}:events/{key}", "x")
    await driver.put("b")
    popped = await driver.pop(2)
    await driver.queue.finish_many(TOPIC, [FinishItem(id=one.id) for one in popped])
    assert await driver.counts() == {}
    assert await kinds(driver) == ["popped", "popped", "finished", "finished"]


async def test_calls_that_free_memory_work_while_the_store_is_out_of_memory(driver: EngineDriver) -> None:
    await keep(driver, max_attempts=2)
    for job_id in "abc":
        await driver.put(job_id)
    await driver.pop(2)
    driver.server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable):
            await driver.put("d")
        await driver.queue.finish(TOPIC, "a", ANY_RECEIPT)
        await driver.deliveries.release(TOPIC, "b", ANY_RECEIPT)
        await driver.cancels.cancel_many(TOPIC, [CancelItem(id="b"), CancelItem(id="c")])
    finally:
        driver.server.command("CONFIG", "SET", "maxmemory", "0")
    assert (await kinds(driver))[-4:] == ["finished", "released", "cancelled", "cancelled"]


async def test_latest_merges_topics(driver: EngineDriver) -> None:
    for topic in ("mail.a", "mail.b", "secret"):
        await driver.topics.set(topic, TopicSettings(events=10))
        await driver.puts.put(job("x").model_copy(update={"topic": topic}))
        driver.move_clock(1)
    reader = driver.engine.event_reader
    found = await reader.latest(["mail.*"], None, 10)
    assert [(event.topic, found.is_complete) for event in found.events] == [("mail.b", True), ("mail.a", True)]
    assert [event.topic for event in (await reader.latest(None, None, 1)).events] == ["secret"]
    begin = read_event_id(found.event_id)
    assert begin.position_in("mail.a").number == 1
    assert begin.position_in("other") == FROM_OLDEST


def test_an_id_has_all_positions() -> None:
    positions = {f"topic-{number}": Position(number % 65536, number**4) for number in range(1, 301)}
    text = write_event_id(positions.items())
    assert len(text) <= LAST_EVENT_ID_MAX
    read_back = read_event_id(text)
    assert {topic: read_back.position_in(topic) for topic in positions} == positions


@pytest.mark.parametrize("text", ["", "A", "zz$$", "AQA", "Ag", "AQ" + "A" * LAST_EVENT_ID_MAX, "é", "AQ\n"])
def test_a_hostile_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="Last-Event-ID"):
        read_event_id(text)
