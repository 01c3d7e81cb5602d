"""A service with direct paths and one without, to which tests send the same requests."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from contextlib import AsyncExitStack, suppress
from typing import Any, NamedTuple

from deferd.api import metrics
from deferd.api.app import create_app
from deferd.api.direct.verb import Connection, DirectCall
from deferd.contract.errors import TopicNotFound
from deferd.engine import metrics as engine_metrics
from deferd.engine.topic_sweeps import Sweep
from deferd.server.http.connections import Connections
from deferd.server.http.direct_path import DirectPath
from deferd.server.http.protocol import FastPathProtocol
from deferd.settings import Settings

RESPONSE_S = 20
WARM_UP = b"warm.up"
INSTANT = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
RECEIPT = re.compile(rb'"receipt":"([0-9a-f]{12}\.\d+)"')
TIME = re.compile(rb"deferd-time: \d{13}")
NEW_ID = re.compile(rb"[0-9a-f]{32}")
FULL_IN = re.compile(rb'("requests";r=\d+;t=)\d+')
"""When a rate limit is full again: that depends on the time."""
TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HEADS = (
    b"Host: 127.0.0.1:8000\r\nContent-Type: application/json\r\nContent-Length: %d",
    b"host: localhost\r\ncontent-length: %d\r\naccept: */*",
    b"Host: x\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length: %d",
    b"Host: x\r\nContent-Type: text/plain\r\nContent-Length: %d",
    b"Host: x\r\nX-Strength: 7\r\nCONTENT-LENGTH: %d",
    b"Host: jobs.example.com\r\nContent-Length: %d",
    b"Host: x\r\nTraceparent: %b\r\nContent-Length: %%d" % TRACE,
    b"Host: x\r\ntraceparent: %b\r\nContent-Length: %%d\r\ndeferd-not-after: 9999999999999" % TRACE,
    b"Host: x\r\nContent-Length: %%d\r\ntraceparent: %b" % TRACE.replace(b"00f067aa0ba902b7", b"0" * 16),
    b"Host: x\r\ntraceparent: %b\r\nContent-Length: %%d\r\ntraceparent: %b" % (TRACE, TRACE),
    b"Host: x\r\nX-Traceparent: %b\r\nContent-Length: %%d\r\nTRACEPARENT: %b" % (TRACE, TRACE),
    b"Host: x\r\nContent-Length: %d\r\nConnection: close",
    b"Host: x\r\nContent-Length: %d\r\ndeferd-not-after: 9999999999999",
    b"Host: x\r\nContent-Length: %d\r\ndeferd-not-after: 1000000000000",
    b"Host: x\r\nDeferd-Not-After: 9999999999998\r\nContent-Length: %d",
    b"Host: x\r\nContent-Length: %d\r\ndeferd-not-after: 99999999999.5",
    b"Host: x\r\nContent-Length: %d\r\ndeferd-not-after: 9999999999999\r\ndeferd-not-after: 9999999999998",
)


class Request(NamedTuple):
    """A request. `{t}` stands for the topic, `{receipt}` for the last receipt, `%d` for the length of the body.

    `is_split`: its body comes in a read of its own.
    """

    head: bytes
    line: bytes
    body: bytes = b""
    is_split: bool = False

    def encode(self, topic: bytes, receipt: bytes) -> bytes:
        body = self.body.replace(b"{t}", topic).replace(b"{receipt}", receipt)
        head = self.head % len(body) if b"%d" in self.head else self.head
        return b"%b HTTP/1.1\r\n%b\r\n\r\n%b" % (self.line.replace(b"{t}", topic), head, body)


class NoDirectPath(DirectPath):
    """Sends all requests the general way."""

    def _begin(self, *_args: Any, **_named: Any) -> DirectCall | None:
        return None


class CountingDirectPath(DirectPath):
    """Counts the calls that it takes, by operation."""

    taken: Counter[str]

    unparsed: Counter[str]
    """Those of them whose head was known."""

    def begin(self, connection: Connection, data: bytes) -> DirectCall | None:
        call = super().begin(connection, data)
        if call is not None:
            self.unparsed[call._route] += 1
        return call

    def _begin(self, *args: Any, **named: Any) -> DirectCall | None:
        call = super()._begin(*args, **named)
        if call is not None:
            self.taken[call._route] += 1
        return call


class FakeTransport(asyncio.Transport):
    """Collects what the server writes."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50000), "sockname": ("127.0.0.1", 8000)})
        self.received = b""
        self.closed = False
        self.changed = asyncio.Event()

    def write(self, data: Any) -> None:
        self.received += data
        self.changed.set()

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True
        self.changed.set()

    abort = write_eof = close

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class World:
    """A service over its own database. `direct`: whether it has direct paths."""

    def __init__(self, url: str, *, direct: bool, **more: Any) -> None:
        self.settings = Settings(log_level="info", max_topic_labels=0, **more)
        self.service = create_app(self.settings, url)
        kind: type[DirectPath] = CountingDirectPath if direct else NoDirectPath
        self.direct_path = kind(self.service)
        if isinstance(self.direct_path, CountingDirectPath):
            self.direct_path.taken, self.direct_path.unparsed = Counter(), Counter()
        self.limits = Connections(self.settings)
        self.limits.date_line = b"date: today\r\n"
        self.transport = FakeTransport()
        self.transport.closed = True
        self.receipt = b"0123456789ab.1"

    def connect(self) -> None:
        self.transport = FakeTransport()
        self.protocol = FastPathProtocol(self.service, self.limits, self.direct_path)
        self.protocol.connection_made(self.transport)

    async def send(self, request: Request, topic: bytes = WARM_UP) -> bytes:
        """The response to one request, without what differs each time."""
        if self.transport.closed:
            self.connect()
            await self.send(Request(b"Host: x", b"GET /healthz"))
        transport = self.transport
        transport.received = b""
        raw = request.encode(topic, self.receipt)
        head_bytes = raw.index(b"\r\n\r\n") + 4 if request.is_split else len(raw)
        for part in filter(None, (raw[:head_bytes], raw[head_bytes:])):
            self.protocol.data_received(part)
            await asyncio.sleep(0)
        async with asyncio.timeout(RESPONSE_S):
            while not (is_whole(transport.received) or transport.closed):
                transport.changed.clear()
                await transport.changed.wait()
        await asyncio.sleep(0)
        if transport.closed:
            self.protocol.connection_lost(None)
        response = INSTANT.sub(b"<instant>", TIME.sub(b"deferd-time: <ms>", transport.received)).replace(
            self.receipt, b"<receipt>"
        )  # quoted by an error
        response = FULL_IN.sub(rb"\1<s>", response)
        found = RECEIPT.search(response)
        if found:
            self.receipt = found[1]
        return NEW_ID.sub(b"<id>", RECEIPT.sub(b'"receipt":"<receipt>"', response))

    async def forget(self, topic: bytes) -> None:
        """Remove its jobs. Their leases would end during later requests: the timer counts that, and pops get them."""
        with suppress(TopicNotFound):
            await self.service.context.engine.sweeps.run(Sweep(verb="purge", topic=topic.decode()))


def is_whole(response: bytes) -> bool:
    head, _, body = response.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return length is not None and len(body) >= int(length[1])


class Worlds:
    """A service with direct paths and one without, each over its own database."""

    def __init__(self, direct_url: str, general_url: str, head: bytes = b"Host: x", **more: Any) -> None:
        self._head = head  # of gets
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.numbers = itertools.count()
        self.direct = World(direct_url, direct=True, **more)
        self.general = World(general_url, direct=False, **more)
        self.runner.run(self._open())

    async def _open(self) -> None:
        for world in (self.direct, self.general):
            await self.stack.enter_async_context(world.service.router.lifespan_context(world.service))
            for head in HEADS:
                for _ in range(3):
                    await world.send(Request(head, b"POST /jobs", b'{"topic":"{t}"}'))
                    await world.send(Request(b"Host: x", b"GET /topics/none/pop?wait=0"))
            await world.forget(WARM_UP)

    def close(self) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()

    def compare(self, requests: list[Request]) -> list[bytes]:
        """Send requests on a new topic to both, compare, and return the responses."""
        return self.runner.run(self._compare(requests, b"t%d" % next(self.numbers)))

    async def _compare(self, requests: list[Request], topic: bytes) -> list[bytes]:
        gets = [Request(self._head, b"GET /jobs/{t}/%b" % job_id) for job_id in (b"a", b"b")]
        found = []
        before = counts()
        try:
            for world in (self.direct, self.general):
                world.receipt = b"0123456789ab.1"
                responses = [await world.send(request, topic) for request in requests]
                jobs = [await world.send(get, topic) for get in gets]
                after = counts()
                found.append((responses, jobs, after - before))
                before = after
        finally:  # also when a difference is to be shrunk: a pop of all topics would get its jobs
            for world in (self.direct, self.general):
                await world.forget(topic)
        direct, general = found
        what = ("responses", "jobs", "counts")
        differing = [one for one in zip(what, direct, general, strict=True) if one[1] != one[2]]
        assert not differing, differing
        return direct[0]


COUNTERS = (
    engine_metrics.PUTS,
    engine_metrics.POPS,
    engine_metrics.FINISHES,
    engine_metrics.CANCELS,
    engine_metrics.RELEASES,
    engine_metrics.SNOOZES,
    engine_metrics.DEATHS,
)
TOPIC_OF_DOORS = "t-"
"""Begins the topics of conformance tests. Their engines, with a label for each, run in this process to its end."""


def counts() -> Counter[tuple[str, ...]]:
    """Requests, and what calls on jobs did, so far, by labels."""
    found: Counter[tuple[str, ...]] = Counter()
    child: Any  # of a metric; `collect` would take 10 times as long
    for labels, child in list(metrics._REQUEST_SECONDS._metrics.items()):
        found["requests", *labels] = int(sum(bucket.get() for bucket in child._buckets))
    for counter in COUNTERS:
        for labels, child in list(counter._metrics.items()):  # a thread of the service may add one
            if not labels[0].startswith(TOPIC_OF_DOORS):
                found[counter._name, *labels] = int(child._value.get())
    return found
