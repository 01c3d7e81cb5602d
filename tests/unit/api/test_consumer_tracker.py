"""The consumers that a process has seen."""

from __future__ import annotations

from collections.abc import Hashable

import pytest

from deferd.api import consumer_tracker
from deferd.api.consumer_tracker import ConsumerTracker
from deferd.api.direct.verb import KnownHead
from deferd.api.incoming_request import IncomingRequest
from deferd.api.responses import Header
from deferd.engine.inspection.consumers import Sample, SeenConsumer
from deferd.engine.queue import PopRequest

HEADERS = [(b"host", b"h"), (b"User-Agent", b"deferd-python/0.2.0")]
HEAD = KnownHead(HEADERS)


class Call:
    def __init__(self, *, is_done: bool = False) -> None:
        self.response_complete = is_done


class Request(IncomingRequest):
    def __init__(self, address: str | None, headers: list[Header]) -> None:
        super().__init__("GET", {}, b"", headers)
        self._address = address

    def client_address(self) -> str | None:
        return self._address

    async def read_body(self) -> bytes:
        raise NotImplementedError


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(consumer_tracker, "time", clock)
    return clock


def note(tracker: ConsumerTracker, client: Hashable, call: Call, topic: str = "mail", name: str | None = None) -> None:
    tracker.notes[client] = (HEAD, topic, PopRequest(1, consumer=name), call)


def test_pops_on_the_direct_path(clock: Clock) -> None:
    tracker, waiting = ConsumerTracker(), Call()
    note(tracker, ("10.0.0.1", 4000), waiting, name="worker-1")
    note(tracker, ("10.0.0.1", 4001), Call(is_done=True), name="worker-1")
    note(tracker, 12345, Call(is_done=True))  # of a unix socket
    named = SeenConsumer("worker-1", "10.0.0.1", "mail", "deferd-python/0.2.0", 1, 0)
    nameless = SeenConsumer(None, None, "mail", "deferd-python/0.2.0", 0, 0)
    assert tracker.sample() == Sample([named, nameless])
    assert not tracker.notes
    clock.now_s += 59
    assert tracker.sample() == Sample([named, nameless._replace(seen_ms=59_000)])
    waiting.response_complete = True
    assert tracker.sample().consumers[0] == named._replace(waiting=0)
    clock.now_s += 1
    assert tracker.sample() == Sample([named._replace(waiting=0, seen_ms=1000)])
    clock.now_s += 59
    assert tracker.sample() == Sample([])


def test_a_connection_that_pops_again_waits_once(clock: Clock) -> None:
    tracker, first, second = ConsumerTracker(), Call(), Call()
    note(tracker, ("10.0.0.1", 4000), first)
    assert tracker.sample().consumers[0].waiting == 1
    first.response_complete = True
    note(tracker, ("10.0.0.1", 4000), second)
    assert tracker.sample().consumers[0].waiting == 1
    assert len(tracker._waiting) == 1


def test_a_pop_that_waits_for_more_than_a_minute_is_seen(clock: Clock) -> None:
    tracker, call = ConsumerTracker(), Call()
    note(tracker, ("10.0.0.1", 4000), call)
    tracker.sample()
    clock.now_s += 61  # nobody looked meanwhile
    [seen] = tracker.sample().consumers
    assert (seen.waiting, seen.seen_ms) == (1, 0)


def test_pops_of_the_general_way(clock: Clock) -> None:
    tracker = ConsumerTracker()
    request = Request("::1", HEADERS)
    pops = tracker.general_pops(request, "a,mail.*", None)
    assert tracker.general_pops(request, "a,mail.*", None) is pops
    pops.waiting += 2
    assert tracker.sample() == Sample([SeenConsumer(None, "::1", "a,mail.*", "deferd-python/0.2.0", 2, 0)])
    clock.now_s += 100
    assert tracker.sample().consumers[0].seen_ms == 0
    pops.waiting -= 2
    assert tracker.sample().consumers[0].waiting == 0
    clock.now_s += 60
    assert tracker.sample() == Sample([])
    assert not tracker._general


def test_consumers_are_bounded(clock: Clock) -> None:
    tracker, call = ConsumerTracker(), Call()
    for port in range(3000):
        note(tracker, ("10.0.0.1", port), call, topic=f"t{port}")
    sample = tracker.sample()
    assert (len(sample.consumers), sample.left_out) == (2000, 1000)


def test_a_client_is_shown_cut_and_printable(clock: Clock) -> None:
    tracker = ConsumerTracker()
    tracker.general_pops(Request("::1", [(b"user-agent", b"\x1b[31m" + b"x" * 200)]), "t", None)
    tracker.general_pops(Request("::2", []), "t", None)
    cut, none = tracker.sample().consumers
    assert cut.client is not None
    assert (cut.client[:5], len(cut.client), none.client) == ("?[31m", 100, None)
