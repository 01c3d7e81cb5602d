"""Events of a topic with several partitions, each of which keeps those of its own jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from deferd.contract.model import PutJob, TopicSettings
from deferd.contract.topic_patterns import TopicPatterns
from deferd.engine.engine import Engine
from deferd.engine.event_streams import EventStream, ReadItem, Sent
from deferd.engine.events import FROM_NOW, FROM_OLDEST, Dropped, Event, Position, last_events, read_event_id
from deferd.engine.partitions import Layout, Partitions
from tests.integration.engine.engine_driver import started_engine
from tests.integration.store.store_servers import StoreServer

SHARDS = 8
IDS = [f"job-{number}" for number in range(40)]


@pytest.fixture
async def engine(server: StoreServer) -> AsyncIterator[Engine]:
    async with started_engine(server.url, shards=SHARDS) as engine:
        await engine.topics.set("t", TopicSettings(partitions=4, events=1000))
        await engine.topics.set("u", TopicSettings(events=1000))
        yield engine


async def put(engine: Engine, ids: Sequence[str], topic: str = "t") -> None:
    for job_id in ids:
        await engine.puts.put(PutJob(topic=topic, id=job_id, delay=60))


class Follower:
    """A client that has received events up to its last id."""

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream
        self.sent: list[Sent] = []

    @property
    def events(self) -> list[tuple[str, str | None]]:
        return [(one.item.topic, one.item.id) for one in self.sent if isinstance(one.item, Event)]

    @property
    def dropped(self) -> list[Dropped]:
        return [one.item for one in self.sent if isinstance(one.item, Dropped)]

    @property
    def last_id(self) -> str:
        return [one.id for one in self.sent if one.id is not None][-1]

    async def begin(self) -> None:
        """Read until the stream has begun, and what it begins with has come."""
        async with asyncio.timeout(5):
            while not self.stream.has_begun or self.stream._queue:
                self.sent += await self.stream.read(0.1)

    async def read_until(self, events: int) -> None:
        async with asyncio.timeout(5):
            while len(self.events) < events:
                self.sent += await self.stream.read(0.5)
        self.sent += await self.stream.read(0.4)  # no more than these
        assert len(self.events) == events


@asynccontextmanager
async def following(engine: Engine, stream: EventStream) -> AsyncIterator[Follower]:
    follower = Follower(stream)
    with engine.events.serving(stream):
        await follower.begin()
        yield follower


def of(topic: str, ids: Sequence[str]) -> list[tuple[str, str]]:
    return sorted((topic, job_id) for job_id in ids)


@pytest.mark.parametrize("wanted", [["t"], ["t*"], None])
async def test_a_stream_has_the_events_of_all_partitions(engine: Engine, wanted: list[str] | None) -> None:
    await put(engine, IDS[:5])
    async with following(engine, EventStream(wanted, None)) as follower:
        assert follower.events == []
        await put(engine, IDS[5:])
        await follower.read_until(35)
    assert sorted(follower.events) == of("t", IDS[5:])


async def test_the_events_of_a_job_are_in_order(engine: Engine) -> None:
    async with following(engine, EventStream(["t"], None)) as follower:
        for job_id in IDS[:10]:
            await engine.puts.put(PutJob(topic="t", id=job_id))
            [job] = await engine.dispatcher.pop(["t"], wait_ms=5000)
            await engine.queue.finish("t", job.id, job.receipt)
        await follower.read_until(30)
    for job_id in IDS[:10]:
        of_job = [one.item for one in follower.sent if isinstance(one.item, Event) and one.item.id == job_id]
        assert [event.kind for event in of_job] == ["put", "popped", "finished"]


async def test_a_stream_goes_on_behind_each_event(engine: Engine) -> None:
    async with following(engine, EventStream(["t"], None)) as follower:
        await put(engine, IDS)
        await follower.read_until(40)
    received = 0
    for sent in follower.sent:
        received += isinstance(sent.item, Event)
        if sent.id is None or received not in {0, 7, 25, 39, 40}:
            continue
        again = EventStream(["t"], None, last_event_id=read_event_id(sent.id))
        async with following(engine, again) as resumed:
            await resumed.read_until(40 - received)
        assert sorted(follower.events[:received] + resumed.events) == of("t", IDS)
        assert resumed.dropped == []
    assert received == 40


async def test_a_stream_goes_on_when_the_topic_has_got_partitions(engine: Engine) -> None:
    async with following(engine, EventStream(["u", "t"], None)) as follower:
        await put(engine, IDS[:20], "u")
        await follower.read_until(20)
        await engine.topics.set("u", TopicSettings(partitions=8, events=1000))
        await put(engine, IDS[20:], "u")
        await follower.read_until(40)
    assert sorted(follower.events) == of("u", IDS)
    begun = next(sent.id for sent in follower.sent if sent.item is None)
    early = EventStream(["u", "t"], None, last_event_id=read_event_id(begun or ""))
    async with following(engine, early) as resumed:
        await resumed.read_until(40)
    assert sorted(resumed.events) == of("u", IDS)
    late = EventStream(["u", "t"], None, last_event_id=read_event_id(follower.last_id))
    async with following(engine, late) as resumed:
        await put(engine, ["more"], "u")
        await resumed.read_until(1)


@pytest.mark.parametrize("last", [1, 7, 100])
async def test_a_stream_begins_with_the_last_events_of_each_topic(engine: Engine, last: int) -> None:
    for job_id in IDS:
        await put(engine, [job_id])
        await asyncio.sleep(0.002)  # so that each has its own millisecond
    await put(engine, IDS[:3], "u")
    async with following(engine, EventStream(["t", "u"], None, last=last)) as follower:
        expected = [("t", job_id) for job_id in IDS[-last:]]
        assert [event for event in follower.events if event[0] == "t"] == expected
        assert [event for event in follower.events if event[0] == "u"] == [("u", job_id) for job_id in IDS[:3][-last:]]
        await put(engine, ["more"])
        await follower.read_until(len(follower.events) + 1)
    again = EventStream(["t", "u"], None, last_event_id=read_event_id(follower.last_id))
    async with following(engine, again) as resumed:
        await resumed.read_until(0)


async def test_dropped_events_of_all_partitions_add_up(engine: Engine) -> None:
    await engine.topics.set("t", TopicSettings(events=2))
    async with following(engine, EventStream(["t"], None)) as follower:
        await put(engine, IDS[:4])
        await follower.read_until(4)
    await put(engine, [f"more-{number}" for number in range(40)])
    again = EventStream(["t"], None, last_event_id=read_event_id(follower.last_id))
    async with following(engine, again) as resumed:
        await resumed.read_until(8)
    assert {dropped.topic for dropped in resumed.dropped} == {"t"}
    assert sum(dropped.count or 0 for dropped in resumed.dropped) == 40 - 8


async def test_the_latest_events_are_those_of_all_partitions(engine: Engine) -> None:
    for job_id in IDS:
        await put(engine, [job_id])
        await asyncio.sleep(0.002)
    for wanted in (["t"], ["t*"], None):
        latest = await engine.event_reader.latest(wanted, None, 10)
        assert [(event.topic, event.id) for event in latest.events] == [("t", one) for one in reversed(IDS[-10:])]
        assert latest.is_complete
    assert (await engine.event_reader.latest(None, TopicPatterns(["u"]), 10)).events == []
    last_event_id = read_event_id((await engine.event_reader.latest(["t"], None, 10)).event_id)
    async with following(engine, EventStream(["t"], None, last_event_id=last_event_id)) as resumed:
        await put(engine, ["more"])
        await resumed.read_until(1)


async def test_a_key_sees_the_partitions_of_its_topics(engine: Engine) -> None:
    async with following(engine, EventStream(None, TopicPatterns(["t"]))) as follower:
        await put(engine, IDS[:8])
        await put(engine, ["hidden"], "u")
        await follower.read_until(8)
        follower.stream.restrict(TopicPatterns(["u"]))
        await asyncio.sleep(0.5)
        await put(engine, ["hidden"])
        await put(engine, ["seen"], "u")
        async with asyncio.timeout(5):
            while ("u", "seen") not in follower.events:
                follower.sent += await follower.stream.read(0.5)
    assert ("t", "hidden") not in follower.events


async def test_all_last_events_are_read_where_partitions_share_a_call(server: StoreServer) -> None:
    async with started_engine(server.url) as engine:
        await engine.topics.set("t", TopicSettings(partitions=4, events=1000))
        for at in range(0, 3000, 1000):
            await engine.puts.put_many([PutJob(topic="t", id=f"n-{number}") for number in range(at, at + 1000)])
        places = [(name, last_events(400)) for name in ("t", "t#1", "t#2", "t#3")]
        found = await engine.event_reader.read([("u", FROM_OLDEST), *places, ("v", FROM_NOW)])
        assert [len(found[place].items) for place in places] == [400] * 4
        assert len(found) == 6


def layouts(**counts: int) -> Partitions:
    partitions = Partitions()
    for topic, count in counts.items():
        partitions.note(topic, Layout((count,)))
    return partitions


def test_topics_are_followed_as_a_whole_or_not_at_all() -> None:
    stream = EventStream(["a", "b", "c", "d", "e", "f", "g"], None)
    stream.follow((), layouts(b=64, c=64, d=64, e=64, f=64))
    assert len(stream.positions) == 1 + 4 * 64
    assert [sent.item for sent in stream._queue] == [Dropped(None, None, 2)]


def test_an_id_does_not_count_as_read_what_is_held_back() -> None:
    """While a shard cannot be read, the last events of the topic wait for it."""
    stream = EventStream(["t", "u"], None, last=2)
    stream.follow((), layouts(t=2))

    def event(topic: str, number: int, at_ms: int) -> Event:
        return Event(topic, number, "put", at_ms, f"{topic}-{at_ms}", {})

    stream.add(
        [ReadItem("t", event("t", 1, 10), Position(7, 1)), ReadItem("t", event("t", 2, 20), Position(7, 2))],
        [("t", Position(7, 2))],
    )
    stream.add([ReadItem("u", event("u", 1, 5), Position(8, 1))], [("u", Position(8, 1))])
    [sent] = stream._queue
    assert isinstance(sent.item, Event)
    known = read_event_id(sent.id or "")
    assert (sent.item.topic, known.position_in("u"), known.position_in("t")) == ("u", Position(8, 1), FROM_OLDEST)
    stream.add([ReadItem("t", event("t", 3, 30), Position(7, 3))], [("t", Position(7, 3))])
    stream.add([ReadItem("t#1", event("t", 1, 15), Position(9, 1))], [("t#1", Position(9, 1))])
    _, *held, begun = stream._queue
    assert [item.id for item, _ in held if isinstance(item, Event)] == ["t-15", "t-20", "t-30"]
    assert [one.id for one in held] == [None] * 3
    known = read_event_id(begun.id or "")
    assert (known.position_in("t"), known.position_in("t#1")) == (Position(7, 3), Position(9, 1))
