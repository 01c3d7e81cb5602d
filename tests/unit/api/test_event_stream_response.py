"""The response that streams events: comments while nothing happens, its end, and what it leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from deferd.api import event_stream_response
from deferd.api.auth.admission import WITHOUT_KEY, Admission
from deferd.api.event_stream_response import CUT_OFF, EventStreamResponse
from deferd.contract.errors import Unauthorized
from deferd.contract.limits import EVENT_STREAMS_MAX, EVENT_STREAMS_PER_KEY
from deferd.engine.event_streams import EventHub, EventStream, ReadItem, TooManyStreams
from deferd.engine.events import FROM_OLDEST, Dropped, Event, EventReader, Page, Place, Position
from deferd.engine.partitions import Partitions
from deferd.engine.redis_keys import Keys

TOPIC = "orders.close"


class Log(EventReader):
    """A topic with one event."""

    def __init__(self) -> None:
        super().__init__(None, Keys(1))  # type: ignore[arg-type]  # no store
        self.reads = 0

    async def partitions_of(self, shard: int) -> list[str]:
        return [TOPIC] if shard == 0 else []

    async def read(self, places: Sequence[Place]) -> dict[Place, Page]:
        self.reads += 1
        event = Event(TOPIC, 1, "put", 1_900_000_000_000, "a", {"state": "ready"})
        end = Position(7, 1)
        return {place: Page([(event, end)] if place[1] == FROM_OLDEST else [], end) for place in places}


class Client:
    """An ASGI client that can disconnect."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.text = b""

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.text += message.get("body", b"")


class Revoked(Admission):
    def current_topics(self) -> None:
        raise Unauthorized("the key was revoked")


async def serve(
    until: Callable[[Client, EventHub], Awaitable[None]], admission: Admission = WITHOUT_KEY
) -> tuple[str, Log]:
    """Serve one stream of all topics until it ends; nothing of it may be left."""
    log = Log()
    hub = EventHub(log, Keys(1))
    running = asyncio.create_task(hub.run())
    client = Client()
    before = asyncio.all_tasks()
    response = EventStreamResponse(hub, EventStream([TOPIC, "*"], None), admission)
    serving = asyncio.create_task(response({"method": "GET"}, client.receive, client.send))
    async with asyncio.timeout(10):
        await until(client, hub)
        await serving
    assert hub.streams == 0
    running.cancel()
    await asyncio.wait((running,))
    assert asyncio.all_tasks() <= before
    return client.text.decode(), log


async def disconnect_after_a_while(client: Client, _hub: EventHub) -> None:
    await asyncio.sleep(1.2)
    client.gone.set()


async def test_comments_come_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream_response, "KEEP_ALIVE_S", 0.3)
    monkeypatch.setattr(event_stream_response, "_CHECK_KEY_S", 0.1)
    text, log = await serve(disconnect_after_a_while)
    assert text.startswith("retry: 1000\n\n")
    assert 2 <= text.count(": keep-alive\n\n") <= 4
    assert log.reads <= 6


async def test_a_drain_ends_the_stream_at_once() -> None:
    async def drain(_client: Client, hub: EventHub) -> None:
        await asyncio.sleep(0.1)
        hub.drain()
        late = EventStream(None, None)
        with hub.serving(late):
            assert late.is_ended

    await serve(drain)


async def test_a_client_that_does_not_read_delays_no_shutdown() -> None:
    """What waits for it to read is given up, and its connection closed."""
    hub = EventHub(Log(), Keys(1))
    running = asyncio.create_task(hub.run())
    client = Client()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) > 2:
            await asyncio.Event().wait()

    before = asyncio.all_tasks()
    response = EventStreamResponse(hub, EventStream([TOPIC], None, last=1), WITHOUT_KEY)
    serving = asyncio.create_task(
        response({"method": "GET", "extensions": {CUT_OFF: {"call": client.gone.set}}}, client.receive, send)
    )
    async with asyncio.timeout(3):
        while len(sent) <= 2:
            await asyncio.sleep(0.01)
        hub.drain()
        await serving
    assert client.gone.is_set()
    assert hub.streams == 0
    running.cancel()
    await asyncio.wait((running,))
    assert asyncio.all_tasks() <= before


async def test_a_revoked_key_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream_response, "_CHECK_KEY_S", 0.1)

    async def nothing(_client: Client, _hub: EventHub) -> None:
        """The stream ends by itself."""

    text, _ = await serve(nothing, Revoked())
    assert "data" not in text


@pytest.mark.slow
async def test_a_pattern_that_joins_streams_of_names_begins_from_now() -> None:
    """The topics of a process without patterns were not listed; those found are no new ones."""
    hub = EventHub(Log(), Keys(1))
    running = asyncio.create_task(hub.run())
    named, pattern, second = (EventStream(wanted, None) for wanted in (["other"], ["orders.*"], ["*"]))
    with hub.serving(named):
        assert await named.read(5)
        with hub.serving(pattern):
            assert [sent.item for sent in await pattern.read(5)] == [None]
            with hub.serving(second):
                assert [sent.item for sent in await second.read(5)] == [None]
                assert not await pattern.read(1.5)
    assert not hub._unlisted
    running.cancel()
    await asyncio.wait((running,))


def test_there_are_at_most_a_hundred_streams() -> None:
    hub = EventHub(Log(), Keys(1))
    hub._streams = {EventStream(None, None) for _ in range(EVENT_STREAMS_MAX)}
    with pytest.raises(TooManyStreams):
        hub.check_room()


def test_a_key_has_at_most_twenty_of_them() -> None:
    hub = EventHub(Log(), Keys(1))
    hub._streams = {EventStream(None, None, owner="shop") for _ in range(EVENT_STREAMS_PER_KEY)}
    with pytest.raises(TooManyStreams, match="20 streams of events to key 'shop' already"):
        hub.check_room("shop")
    hub.check_room("other")
    hub.check_room()


def test_a_stream_of_more_topics_than_it_can_follow_says_so() -> None:
    stream = EventStream(None, None)
    stream.follow([f"topic-{number:04}" for number in range(310)], Partitions())
    assert [sent.item for sent in stream._queue] == [Dropped(None, None, 10)]
    assert len(stream.positions) == 300


def test_a_slow_reader_is_not_read_for() -> None:
    stream = EventStream([TOPIC], None)
    stream.follow((), Partitions())
    event = Event(TOPIC, 1, "put", 0, "a", {})
    stream.add([ReadItem(TOPIC, event, Position(7, number)) for number in range(2000)], [(TOPIC, Position(7, 1999))])
    assert not stream.has_room()
