"""Sums of a history: what processes count is in the store once, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deferd.contract.errors import StoreUnavailable
from deferd.engine import history, metrics
from deferd.engine.history import COUNTS, GAUGES, MOST_COARSE, MOST_FINE, HistoryPublisher
from deferd.engine.metrics import CountedTopics
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.store.connection import Store, connect
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver, job, started_engine
from tests.integration.store.store_servers import StoreServer

SHARDS = 3
LATENESS_FROM = 1 + len(COUNTS) + len(GAUGES)
PROCESSES, TOPICS = 3, 4


class LossyScripts:
    """Scripts whose calls fail before they reach the store, or after, as the test says."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts
        self.lose: list[str] = []

    async def run(self, verb: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        lost = self.lose.pop(0) if self.lose else ""
        if lost == "request":
            raise StoreUnavailable("lost on the way")
        reply = await self._scripts.run(verb, keys, args)
        if lost == "response":
            raise StoreUnavailable("lost on the way back")
        return reply


class Process:
    def __init__(self, scripts: Scripts) -> None:
        self.scripts = LossyScripts(scripts)
        self.counted = CountedTopics()
        self.publisher = HistoryPublisher(self.scripts, Keys(SHARDS), self.counted)  # type: ignore[arg-type]

    def count(self, topic: str, name: str, jobs: int, lateness: int) -> None:
        counts = self.counted.of(topic)
        setattr(counts, name, getattr(counts, name) + jobs)
        if name == "popped":
            counts.add_lateness({lateness: jobs})

    async def publish(self, *lose: str) -> None:
        self.scripts.lose = list(lose)
        await self.publisher.try_publish()
        self.scripts.lose = []


def published(server: StoreServer, shard: int, topic: str) -> Counter[str]:
    """The sums over all records, of which one of 10 s is not yet in those of 5 min."""
    fine, coarse = (
        [msgspec.msgpack.decode(raw) for raw in server.command("LRANGE", key, 0, -1)]
        for key in Keys(SHARDS).of_history(shard, topic)
    )
    assert [record[0] for record in fine] == sorted({record[0] for record in fine})
    assert [record[0] for record in coarse] == sorted({record[0] for record in coarse})
    assert len(fine) <= MOST_FINE
    assert len(coarse) <= MOST_COARSE
    sums: Counter[str] = Counter()
    for record in [*coarse, *fine[-1:]]:
        sums.update(dict(zip(COUNTS, record[1:], strict=False)))
        pairs = record[LATENESS_FROM:]
        for bucket, jobs in zip(pairs[::2], pairs[1::2], strict=True):
            sums[f"late {bucket}"] += jobs
    return +sums


_counted = st.tuples(
    st.just("count"),
    st.integers(0, PROCESSES - 1),
    st.integers(0, TOPICS - 1),
    st.sampled_from(COUNTS),
    st.sampled_from([1, 2, 100, 70_000]),
    st.integers(0, 18),
)
_published = st.tuples(
    st.just("publish"),
    st.integers(0, PROCESSES - 1),
    st.lists(st.sampled_from(["", "request", "response"]), max_size=4),
)
_moved = st.tuples(st.just("move"), st.sampled_from([3, 10, 299, 4000]))


async def _run(server: StoreServer, steps: list[tuple[Any, ...]]) -> None:
    server.command("FLUSHALL")
    store = await connect(server.url, timeout_s=5)
    try:
        scripts = Scripts(store, movable_clock=True)
        processes = [Process(scripts) for _ in range(PROCESSES)]
        expected: dict[str, Counter[str]] = {f"t{number}": Counter() for number in range(TOPICS)}
        for kind, *details in steps:
            match kind, details:
                case "count", [process, number, name, jobs, lateness]:
                    processes[process].count(f"t{number}", name, jobs, lateness)
                    expected[f"t{number}"][name] += jobs
                    if name == "popped":
                        expected[f"t{number}"][f"late {lateness}"] += jobs
                case "publish", [process, lose]:
                    await processes[process].publish(*lose)
                case "move", [by_s]:
                    for shard in range(SHARDS):
                        server.command("INCRBY", f"deferd:{{{shard}}}:clock", by_s * 1000)
        for process in processes:
            await process.publish()
        keys = Keys(SHARDS)
        total: Counter[str] = Counter()
        for topic, counts in expected.items():
            assert published(server, keys.shard_of(topic), topic) == counts
            total += counts
        in_all = [published(server, shard, "") for shard in range(SHARDS)]
        assert sum(in_all, Counter[str]()) == total
    finally:
        await store.close()


@pytest.mark.slow
@given(steps=st.lists(_counted | _published | _moved, max_size=60))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_was_counted_is_published_once(running_server: StoreServer, steps: list[tuple[Any, ...]]) -> None:
    asyncio.run(_run(running_server, steps))


async def test_many_topics_take_several_calls_each_carried_out_once(
    server: StoreServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "_TOPICS_PER_PUBLICATION", 10)
    process = Process(Scripts(store, movable_clock=True))
    topics = [f"t{number}" for number in range(60)]
    for topic in topics:
        process.count(topic, "put", 3, 0)
    await process.publish("", "response", "request", "", "response")
    for topic in topics[:30]:
        process.count(topic, "put", 1, 0)
    await process.publish("response", "response", "response")
    await process.publish()
    keys = Keys(SHARDS)
    sums = {topic: published(server, keys.shard_of(topic), topic)["put"] for topic in topics}
    assert sums == {topic: 4 if at < 30 else 3 for at, topic in enumerate(topics)}


async def test_what_is_counted_while_the_store_is_away_is_bounded_and_published_later(
    server: StoreServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Topics beyond the bound are in the sums only."""
    monkeypatch.setattr(metrics, "MOST_TOPICS", 10)
    monkeypatch.setattr(history, "MOST_TOPICS", 10)
    process = Process(Scripts(store, movable_clock=True))
    for turn in range(5):
        for number in range(20):
            process.count(f"t{turn * 20 + number}", "put", 1, 0)
        await process.publish(*["request"] * SHARDS)
    waiting = [len(shard.topics) for shard in process.publisher._shards]
    assert max(waiting) <= 10
    await process.publish()
    assert sum(published(server, shard, "")["put"] for shard in range(SHARDS)) == 100
    keys = Keys(SHARDS)
    apart = sum(published(server, keys.shard_of(f"t{number}"), f"t{number}")["put"] for number in range(100))
    assert 10 <= apart <= 60


async def test_a_shard_that_is_away_does_not_hold_up_the_others(server: StoreServer, store: Store) -> None:
    process = Process(Scripts(store, movable_clock=True))
    keys = Keys(SHARDS)
    topics = {keys.shard_of(f"t{number}"): f"t{number}" for number in range(20)}
    for topic in topics.values():
        process.count(topic, "put", 1, 0)
    await process.publish("request")
    assert sum(published(server, shard, "")["put"] for shard in range(SHARDS)) == SHARDS - 1
    await process.publish()
    assert all(published(server, shard, topic)["put"] == 1 for shard, topic in topics.items())


async def test_a_full_shard_gives_new_topics_a_history_only_in_place_of_one_that_is_quiet(
    server: StoreServer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "TOPICS_OF_SHARD", 3)
    counted = CountedTopics()
    publisher = HistoryPublisher(Scripts(store, movable_clock=True), Keys(1), counted)

    async def touch(*topics: str) -> set[str]:
        for topic in topics:
            counted.of(topic).put += 1
        await publisher.publish()
        return {name.decode().split(":")[2] for name in server.command("KEYS", "deferd:{0}:*:history/10s")} - {""}

    assert await touch("a", "b", "c") == {"a", "b", "c"}
    assert await touch("d") == {"a", "b", "c"}
    server.command("INCRBY", "deferd:{0}:clock", 400_000)
    assert await touch("b", "c", "d") == {"a", "b", "c"}
    server.command("INCRBY", "deferd:{0}:clock", 300_000)
    assert await touch("d", "e") == {"d", "b", "c"}
    assert published(server, 0, "")["put"] == 9
    assert server.command("ZCARD", "deferd:{0}:history/topics") == 3
    server.command("INCRBY", "deferd:{0}:clock", 3 * 86_400_000)
    assert await touch("e") >= {"e"}
    assert server.command("ZRANGE", "deferd:{0}:history/topics", 0, -1) == [b"e"]


async def test_a_clock_that_was_years_ahead_does_not_stop_the_history(driver: EngineDriver) -> None:
    publisher = driver.engine.history_publisher
    driver.move_clock(10 * 365 * 86_400)
    await driver.put("a")
    await publisher.publish()
    driver.server.command("DEL", "deferd:{0}:clock")
    for job_id in ("b", "c"):
        await driver.put(job_id)
        await publisher.publish()
    driver.move_clock(-20)  # a little back, as after a failover: what comes is added to the last bucket
    await driver.put("d")
    await publisher.publish()
    assert published(driver.server, 0, TOPIC)["put"] == 3
    assert driver.server.command("LLEN", f"{KEY}:history/10s") == 1


async def test_keys_that_another_program_has_damaged_do_not_stop_the_history(driver: EngineDriver) -> None:
    await driver.put("a")
    driver.server.command("SET", f"{KEY}:dead", "x")
    await driver.engine.history_publisher.publish()
    assert published(driver.server, 0, TOPIC) == {"put": 1}
    driver.server.command("DEL", f"{KEY}:dead", f"{KEY}:history/10s")
    driver.server.command("SET", f"{KEY}:history/10s", "x")
    await driver.put("b")
    await driver.engine.history_publisher.try_publish()
    driver.server.command("DEL", f"{KEY}:history/10s")
    await driver.put("c")
    await driver.engine.history_publisher.publish()
    assert published(driver.server, 0, TOPIC) == {"put": 1}
    assert published(driver.server, 0, "") == {"put": 3}


async def test_several_engines_add_up_and_publish_when_they_stop(server: StoreServer) -> None:
    """Each publishes what it did, also what it did last."""
    put = 0
    for turn in range(3):
        async with started_engine(server.url) as one, started_engine(server.url) as other:
            for number in range(20):
                engine = random.choice([one, other])
                await engine.puts.put(job(f"{turn}-{number}"))
                put += 1
    assert published(server, 0, TOPIC) == {"put": put}
