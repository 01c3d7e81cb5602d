"""Consumers of all processes: what is published, what it says of a topic, and who holds jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import orjson
import pytest

from deferd.contract.model import PutJob
from deferd.engine.engine import Engine
from deferd.engine.inspection import consumers as consumer_module
from deferd.engine.inspection.consumers import (
    Consumer,
    ConsumerRegistry,
    Consumers,
    Sample,
    SeenConsumer,
    TopicActivity,
)
from deferd.engine.queue import PopRequest
from deferd.store.connection import Store
from tests.integration.engine.engine_driver import TOPIC, EngineDriver
from tests.integration.store.store_servers import StoreServer

ONE = SeenConsumer("worker-1", "10.0.0.1", "mail,orders", "deferd-python/0.2.0", 1, 0)
OTHER = SeenConsumer(None, "10.0.0.2", "bank.*", "curl/8", 0, 500)


class Process:
    """The registry of a process."""

    def __init__(self, engine: Engine) -> None:
        self.seen: list[SeenConsumer] = []
        self.popped: Counter[str] = Counter()
        self.registry = ConsumerRegistry(engine._scripts, engine._keys, self._take, lambda: Sample(self.seen))

    def _take(self) -> dict[str, int]:
        popped, self.popped = self.popped, Counter()
        return popped

    async def activity(self, topic: str) -> TopicActivity | None:
        self.registry._reads._values.clear()
        return await self.registry.activity_of(topic)


@pytest.fixture
def processes(driver: EngineDriver) -> tuple[Process, Process]:
    return Process(driver.engine), Process(driver.engine)


def published(server: StoreServer) -> dict[str, Any]:
    rows = server.command("HGETALL", "deferd:{0}:consumers/reports")
    pairs = rows.items() if isinstance(rows, dict) else zip(rows[::2], rows[1::2], strict=True)
    return {name.decode(): orjson.loads(report) for name, report in pairs}


async def test_nothing_is_written_without_consumers(server: StoreServer, processes: tuple[Process, Process]) -> None:
    await processes[0].registry.look()
    assert server.command("KEYS", "deferd:{0}:consumers/*") == []


async def test_everybody_reads_what_all_have_published(processes: tuple[Process, Process]) -> None:
    one, other = processes
    one.seen, other.seen = [ONE], [OTHER]
    for process in processes:
        await process.registry.look()
    found = await one.registry.read()
    assert {seen[:5] for seen in found.consumers} == {ONE[:5], OTHER[:5]}
    assert found.left_out == 0


async def test_a_topic_is_consumed_by_name_or_pattern(driver: EngineDriver, processes: tuple[Process, Process]) -> None:
    one, other = processes
    one.seen, other.seen = [ONE], [OTHER]
    for process in processes:
        await process.registry.look()
    for topic, is_consumed in {"mail": True, "orders": True, "bank.x": True, "bank": False, "mail.x": False}.items():
        activity = await one.activity(topic)
        assert activity is not None
        assert activity.is_consumed is is_consumed
    driver.move_clock(61)
    one.seen = other.seen = []
    activity = await one.activity("mail")
    assert activity is not None
    assert (activity.is_consumed, activity.rate) == (False, None)
    assert activity.last_consumer_ms is not None
    assert (await one.activity("never"))[1:] == (None, None)  # type: ignore[index]
    one.seen = [ONE]  # not published yet, but known here
    assert (await one.activity("mail"))[0]  # type: ignore[index]


async def test_the_rate_is_that_of_all_processes(
    driver: EngineDriver, processes: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    for process in processes:
        process.seen = [ONE]
        await process.registry.look()
        process.registry._published_at_s -= 10  # the next report is due
        process.popped.update({"mail": 50, "orders": 5})
        await process.registry.look()
    activity = await processes[0].activity("mail")
    assert activity is not None
    assert activity.rate == pytest.approx(10, rel=0.05)
    driver.move_clock(26)  # both are silent
    activity = await processes[0].activity("mail")
    assert activity is not None
    assert (activity.is_consumed, activity.rate) == (True, 0)


async def test_reports_follow_changes_at_once_and_else_every_ten_seconds(
    server: StoreServer, processes: tuple[Process, Process]
) -> None:
    process, _ = processes
    sent = []
    send = process.registry._send

    async def sending(report: bytes, topics: dict[str, None]) -> bool:
        sent.append(report)
        return await send(report, topics)

    process.registry._send = sending  # type: ignore[method-assign]
    process.seen = [ONE]
    for _ in range(3):
        await process.registry.look()
    assert len(sent) == 1
    process.seen = [ONE, OTHER]
    await process.registry.look()
    assert len(sent) == 2
    process.registry._published_at_s -= 10
    await process.registry.look()
    assert sent[2:] == [b""], "nothing has changed: it only lives on"
    process.registry._published_at_s -= 10
    server.command("DEL", "deferd:{0}:consumers/reports")
    await process.registry.look()
    assert (sent[3], len(sent)) == (b"", 5)
    assert sum(len(report["c"]) for report in published(server).values()) == 2
    process.seen = []
    await process.registry.look()
    await process.registry.look()
    assert (len(sent), [report["c"] for report in published(server).values()]) == (6, [[]])


async def test_reports_expire_and_dead_processes_are_removed(
    driver: EngineDriver, server: StoreServer, processes: tuple[Process, Process]
) -> None:
    one, other = processes
    one.seen, other.seen = [ONE], [OTHER]
    for process in processes:
        await process.registry.look()
    assert len(published(server)) == 2
    for name in ("reports", "reported"):
        assert 60_000 < server.command("PTTL", f"deferd:{{0}}:consumers/{name}") <= 70_000
    driver.move_clock(71)
    one.registry._published_at_s -= 10
    await one.registry.look()
    assert list(published(server)) == [one.registry._process]


async def test_the_times_of_topics_are_bounded(
    server: StoreServer, processes: tuple[Process, Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_module, "_TOPICS_KEPT", 5)
    process, _ = processes
    process.seen = [ONE._replace(topics=",".join(f"t{number}" for number in range(10)) + ",p.*")]
    process.popped["handed-out"] = 3
    await process.registry.look()
    names = {name.decode() for name in server.command("ZRANGE", "deferd:{0}:consumers/topics", 0, -1)}
    assert len(names) == 5
    assert names <= {"handed-out", *(f"t{number}" for number in range(10))}


async def test_a_report_has_the_consumers_seen_last(server: StoreServer, processes: tuple[Process, Process]) -> None:
    process, _ = processes
    process.seen = [ONE._replace(name=f"w{number}", seen_ms=number) for number in range(600)]
    await process.registry.look()
    [report] = published(server).values()
    assert (len(report["c"]), report["m"]) == (500, 100)
    assert {consumer["n"] for consumer in report["c"]} == {f"w{number}" for number in range(500)}
    process.seen = []
    assert await process.activity("elsewhere") is None, "one that was left out may consume it"


async def held(driver: EngineDriver, topic: str, count: int, **request: Any) -> None:
    await driver.puts.put_many([PutJob(topic=topic) for _ in range(count)])
    await driver.queue.pop(topic, [PopRequest(count, **request)])


async def consumers(driver: EngineDriver, visible: str = "") -> Consumers:
    driver.engine.consumers._reads._values.clear()
    driver.engine.consumer_registry._reads._values.clear()
    return await driver.engine.consumers.all(lambda topic: topic.startswith(visible))


async def test_who_holds_jobs(driver: EngineDriver) -> None:
    await held(driver, TOPIC, 3, consumer="worker-1", ttr_ms=90_000)
    await held(driver, TOPIC, 1, consumer="worker-1", ttr_ms=50_000)
    await held(driver, "mail", 2, consumer="worker-1")
    await held(driver, "mail", 1, consumer="worker-2")
    await held(driver, "mail", 4)
    found = await consumers(driver)
    assert (found.nameless, found.is_complete) == (4, True)
    first, second = found.consumers
    assert (first.name, first.held, first.topics, first.seen_ms) == ("worker-1", 6, {"mail", TOPIC}, None)
    assert first.lease_end_ms is not None
    assert first.lease_end_ms - found.now_ms == pytest.approx(50_000, abs=1000)
    assert (second.name, second.held) == ("worker-2", 1)
    found = await consumers(driver, "orders")
    assert ([(one.name, one.held) for one in found.consumers], found.nameless) == ([("worker-1", 4)], 0)


async def test_what_is_published_and_what_is_held_belong_together(driver: EngineDriver) -> None:
    await held(driver, "mail", 2, consumer="worker-1")
    seen = [ONE, ONE._replace(address="10.0.0.9", client="deferd-python/0.1.0", waiting=0, seen_ms=700), OTHER]
    driver.engine.consumer_registry.sample = lambda: Sample(seen)
    await driver.engine.consumer_registry.look()
    found = await consumers(driver)
    first, second = found.consumers
    assert first == Consumer(
        "worker-1",
        {"10.0.0.1", "10.0.0.9"},
        {"deferd-python/0.2.0", "deferd-python/0.1.0"},
        {"mail", "orders"},
        1,
        first.seen_ms,
        2,
        first.lease_end_ms,
    )
    assert (second.name, second.topics, second.held, second.lease_end_ms) == (None, {"bank.*"}, None, None)
    found = await consumers(driver, "orders")
    assert [(one.name, one.topics, one.held) for one in found.consumers] == [("worker-1", {"orders"}, 0)]


async def test_it_is_said_when_not_all_held_jobs_were_counted(driver: EngineDriver) -> None:
    for _ in range(2):
        await held(driver, TOPIC, 600, consumer="worker-1")
    found = await consumers(driver)
    assert (found.consumers[0].held, found.is_complete) == (1000, False)


async def test_an_engine_publishes_by_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_module, "_LOOK_EVERY_S", 0.01)
    engine = Engine(store, sample_consumers=lambda: Sample([ONE]))
    await engine.start()
    try:
        async with asyncio.timeout(5):
            while not (await engine.consumer_registry._read(None)).consumers:
                await asyncio.sleep(0.01)
    finally:
        await engine.close()


async def test_jobs_handed_out_are_counted_by_topic(driver: EngineDriver) -> None:
    await held(driver, TOPIC, 3)
    await held(driver, "mail", 2)
    await driver.pop(1)
    assert driver.queue.pop_counts.take_popped() == {TOPIC: 3, "mail": 2}
    assert driver.queue.pop_counts.take_popped() == {}
