"""The direct paths against the general one: the same bytes, states and metrics for generated requests."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest
import uvicorn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from deferd.api import metrics
from deferd.api.app import create_app
from deferd.api.auth.api_keys import hash_of
from deferd.api.direct.call import Connection, DirectCall
from deferd.engine import metrics as engine_metrics
from deferd.server.http.connections import Connections
from deferd.server.http.direct_path import DirectPath
from deferd.server.http.fast_path import FastPathProtocol
from deferd.settings import Settings
from tests.integration.api.drawn_objects import BODIES, ENDS
from tests.integration.store.store_servers import StoreServer

RESPONSE_S = 20
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
        self.state = ServerState()
        self.state.default_headers = [(b"date", b"today")]
        self.config = uvicorn.Config(self.service, log_config=None, access_log=False, ws="none", interface="asgi3")
        self.transport = FakeTransport()
        self.transport.closed = True
        self.receipt = b"0123456789ab.1"

    def connect(self) -> None:
        self.transport = FakeTransport()
        self.protocol = FastPathProtocol(
            self.service,
            self.limits,
            config=self.config,
            server_state=self.state,
            app_state={},
            direct_path=self.direct_path,
        )
        self.protocol.connection_made(self.transport)

    async def send(self, request: Request, topic: bytes = b"warm.up") -> bytes:
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
        for world in (self.direct, self.general):
            world.receipt = b"0123456789ab.1"
            responses = [await world.send(request, topic) for request in requests]
            jobs = [await world.send(get, topic) for get in gets]
            after = counts()
            found.append((responses, jobs, after - before))
            before = after
        assert found[0] == found[1]
        return found[0][0]


COUNTERS = (
    engine_metrics.PUTS,
    engine_metrics.POPS,
    engine_metrics.FINISHES,
    engine_metrics.CANCELS,
    engine_metrics.RELEASES,
    engine_metrics.SNOOZES,
    engine_metrics.DEATHS,
)


def counts() -> Counter[tuple[str, ...]]:
    """Requests, and what calls on jobs did, so far, by labels."""
    found: Counter[tuple[str, ...]] = Counter()
    child: Any  # of a metric; `collect` would take 10 times as long
    for labels, child in metrics._REQUEST_SECONDS._metrics.items():
        found["requests", *labels] = int(sum(bucket.get() for bucket in child._buckets))
    for counter in COUNTERS:
        for labels, child in counter._metrics.items():
            found[counter._name, *labels] = int(child._value.get())
    return found


@pytest.fixture(scope="module")
def worlds(running_server: StoreServer) -> Iterator[Worlds]:
    running_server.command("FLUSHALL")
    both = Worlds(running_server.url, f"{running_server.url}/1")
    yield both
    both.close()


QUERIES = st.sampled_from(
    [
        *(
            b"wait=0",
            b"wait=0&count=2",
            b"wait=0&ttr=30.5",
            b"wait=0&consumer=w-1",
            b"wait=0&request_id=r.1",
            b"wait=0&x=1",
        ),
        *(b"wait=0&wait=0", b"wait=0&count=0", b"wait=0&consumer=%20", b"wait=0&consumer=%41", b"wait=0.0", b"wait=0&"),
        b"wait=0_0",
        *(
            b"wait=0&ttr=1e999",
            b"wait=nan",
            b"wait=-1",
            b"wait=61",
            b"wait=0&count=1.0",
            b"wait=0#x",
            b"wait=0&consumer=",
        ),
    ]
)
POPPED = st.sampled_from(
    [b"{t}"] * 6
    + [b"{t},{t}.more", b"{t}.more,{t}", b"{t}.*,{t}", b"{t}.*", b"other,{t}*x"]
    + [b"{t},{t}", b"{t},", b"{t},*,*", b"%2A", b"{t}%2C{t}.more", b","]
)
PATH_IDS = st.sampled_from([b"a", b"b"] * 6 + [b"-a", b"a%62", b"a%2Fb", b"A.b_c:d-1", b"x" * 256])


@st.composite
def any_request(draw: st.DrawFn) -> Request:
    head = draw(st.sampled_from(HEADS[:1] * 12 + HEADS))
    kind = draw(st.sampled_from(["put", "put", "pop", "end", "end", "cancel"]))
    if kind == "put":
        return Request(head, b"POST /jobs", draw(BODIES))
    if kind == "pop":
        line = draw(st.sampled_from([b"GET", b"POST"])) + b" /topics/%b/pop?" % draw(POPPED) + draw(QUERIES)
        if line.startswith(b"GET") or draw(st.booleans()):
            return Request(b"Host: x", line)
        return Request(head, line, draw(st.sampled_from([b"", b"{}", b" {}", b"null", b"[]"])))
    job_id = draw(PATH_IDS)
    if kind == "end":
        verb = draw(st.sampled_from(sorted(ENDS)))
        return Request(head, b"POST /jobs/{t}/%b/%b" % (job_id, verb), draw(ENDS[verb]))
    query = draw(st.sampled_from([b"", b"", b"?if_reserved=refuse", b"?x=1"]))
    return Request(b"Host: x", b"DELETE /jobs/{t}/%b%b" % (job_id, query))


SOMETIMES = st.integers(0, 7).map(lambda choice: choice == 0)
REQUESTS = st.lists(
    st.builds(lambda request, is_split: request._replace(is_split=is_split), any_request(), SOMETIMES),
    min_size=1,
    max_size=12,
)
FUZZING = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None)


@settings(FUZZING, max_examples=100)
@given(requests=REQUESTS)
def test_generated_requests_have_the_same_effects_and_responses(worlds: Worlds, requests: list[Request]) -> None:
    worlds.compare(requests)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(FUZZING, max_examples=600)
@given(requests=REQUESTS)
def test_many_generated_requests_have_the_same_effects_and_responses(worlds: Worlds, requests: list[Request]) -> None:
    worlds.compare(requests)


JOB = b'{"topic":"{t}","id":"a","body":{"n":1}}'
USUAL = [
    ("/jobs", Request(HEADS[0], b"POST /jobs", JOB), b"201 Created"),
    ("/jobs", Request(HEADS[0], b"POST /jobs", b'{"topic":"{t}","delay":0.5}'), b"201 Created"),
    ("/topics/{topic}/pop", Request(b"Host: x", b"GET /topics/{t}/pop?wait=0"), b"200 OK"),
    ("/topics/{topic}/pop", Request(b"Host: x", b"POST /topics/{t}/pop?wait=0&count=9"), b"200 OK"),
    ("/topics/{topic}/pop", Request(b"Host: x", b"GET /topics/{t},{t}.more/pop?wait=0"), b"200 OK"),
    ("/topics/{topic}/pop", Request(b"Host: x", b"GET /topics/{t}.*,{t}/pop?wait=0&request_id=r"), b"200 OK"),
    ("/jobs/{topic}/{id}/finish", Request(HEADS[0], b"POST /jobs/{t}/a/finish", b'{"receipt":"x"}'), b"404 Not Found"),
    ("/jobs/{topic}/{id}", Request(b"Host: x", b"DELETE /jobs/{t}/a"), b"404 Not Found"),
    *(
        (
            f"/jobs/{{topic}}/{{id}}/{verb}",
            Request(HEADS[0], f"POST /jobs/{{t}}/a/{verb}".encode(), body),
            b"404 Not Found",
        )
        for verb, body in (
            ("release", b'{"receipt":"x","delay":5,"error":"502"}'),
            ("touch", b'{"receipt":"x","ttr":30.5}'),
            ("bury", b'{"receipt":"x","error":"502"}'),
        )
    ),
]


@pytest.mark.parametrize(("route", "request_", "status"), USUAL, ids=lambda value: str(value)[:30])
def test_usual_requests_take_their_direct_path(worlds: Worlds, route: str, request_: Request, status: bytes) -> None:
    assert isinstance(worlds.direct.direct_path, CountingDirectPath)
    before = worlds.direct.direct_path.taken[route]
    [response] = worlds.compare([request_])
    assert response.startswith(b"HTTP/1.1 " + status)
    assert worlds.direct.direct_path.taken[route] == before + 1


@pytest.mark.parametrize(("route", "request_", "status"), USUAL, ids=lambda value: str(value)[:30])
def test_a_request_that_names_an_instant_takes_its_direct_path_until_then(
    worlds: Worlds, route: str, request_: Request, status: bytes
) -> None:
    """Each names another one."""
    assert isinstance(worlds.direct.direct_path, CountingDirectPath)
    instants = [9_000_000_000_000, 9_000_000_000_001, 1_000_000_000_000, 1_000_000_000_001]
    named = [
        request_._replace(head=b"%b\r\ndeferd-not-after: %d\r\nx-more: %b" % (request_.head, instant, route.encode()))
        for instant in instants
    ]
    worlds.compare(named[:1] * 2)
    before = worlds.direct.direct_path.taken[route]
    [*_, last, late, later] = responses = worlds.compare(named)
    assert worlds.direct.direct_path.taken[route] == before + 2
    assert last[9:12] in {status[:3], b"409"}
    assert late == later
    assert late.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"too_late"' in late
    assert all(response.count(b"deferd-time: <ms>\r\n") == 1 for response in responses)


def test_what_comes_too_late_does_nothing(worlds: Worlds) -> None:
    late = HEADS[0] + b"\r\ndeferd-not-after: 1000000000000"
    put, cancel = Request(HEADS[0], b"POST /jobs", JOB), Request(b"Host: x", b"DELETE /jobs/{t}/a")
    responses = worlds.compare(
        [put._replace(head=late), cancel, put, cancel._replace(head=late, is_split=True), cancel]
    )
    assert [response[9:12] for response in responses] == [b"408", b"404", b"201", b"408", b"200"]


def test_heads_that_came_twice_in_turn_with_others_are_known(worlds: Worlds) -> None:
    assert isinstance(worlds.direct.direct_path, CountingDirectPath)
    before = worlds.direct.direct_path.unparsed.copy()
    put = Request(b"Host: by-turns\r\nContent-Length: %d", b"POST /jobs", JOB)
    pop = Request(b"Host: by-turns", b"POST /topics/{t}/pop?wait=0")
    worlds.compare([put, pop] * 3)
    assert worlds.direct.direct_path.unparsed - before == Counter({"/jobs": 1, "/topics/{topic}/pop": 1})


@pytest.mark.parametrize(("route", "request_", "status"), USUAL, ids=lambda value: str(value)[:30])
def test_usual_requests_with_a_new_head_each_time_take_their_direct_path(
    worlds: Worlds, route: str, request_: Request, status: bytes
) -> None:
    direct = worlds.direct.direct_path
    assert isinstance(direct, CountingDirectPath)
    taken, unparsed = direct.taken[route], direct.unparsed[route]
    for number, is_split in enumerate([False, True]):
        head = b"%b\r\nX-Request-Id: %d.%d" % (request_.head, number, zlib.crc32(request_.line + request_.body))
        [response] = worlds.compare([request_._replace(head=head, is_split=is_split)])
        assert response.startswith(b"HTTP/1.1 " + status)
    assert (direct.taken[route], direct.unparsed[route]) == (taken + 2, unparsed)


@pytest.mark.parametrize("header", [b"Connection: close", b"Deferd-Via: console", b"Content-Encoding: gzip"])
def test_a_new_head_with_an_effect_has_the_same_one(worlds: Worlds, header: bytes) -> None:
    put = Request(HEADS[0] + b"\r\nX-Request-Id: 1\r\n" + header, b"POST /jobs", JOB)
    worlds.compare([put, put._replace(line=b"POST /jobs?x=1"), put._replace(is_split=True)])


def test_a_job_lives_its_life_on_direct_paths(worlds: Worlds) -> None:
    pop = Request(b"Host: x", b"GET /topics/{t}/pop?wait=0")
    finish = Request(HEADS[0], b"POST /jobs/{t}/a/finish", b'{"receipt":"{receipt}","result":[1]}')
    put = Request(HEADS[0], b"POST /jobs", JOB)
    cancel = Request(b"Host: x", b"DELETE /jobs/{t}/a")
    responses = worlds.compare([put, put, pop, finish, finish, put, cancel, cancel, finish])
    statuses = [response[9:12] for response in responses]
    assert statuses == [b"201", b"409", b"200", b"200", b"404", b"201", b"200", b"404", b"404"]


def test_a_store_that_has_lost_its_scripts_is_sent_them_again(worlds: Worlds, running_server: StoreServer) -> None:
    for _, request, status in USUAL:
        running_server.command("SCRIPT", "FLUSH")
        [response] = worlds.compare([request])
        assert response.startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("size", [1000, 20_000, 200_000])
def test_large_jobs_are_kept_and_popped(worlds: Worlds, size: int) -> None:
    large = b'{"topic":"{t}","id":"a","body":"%b"}' % (b"x" * size)
    keep = b'{"topic":"{t}","id":"a","on_conflict":"keep"}'
    responses = worlds.compare(
        [
            Request(HEADS[0], b"POST /jobs", large),
            Request(HEADS[0], b"POST /jobs", keep),
            Request(b"Host: x", b"POST /topics/{t}/pop?wait=0"),
        ]
    )
    assert [response[9:12] for response in responses] == [b"201", b"200", b"200"]
    assert all(b"x" * size in response for response in responses)


HOLDERS = ("put", "pop", "some-topics", "limited", "nobody")


def token_of(holder: str) -> str:
    return f"the-token-of-{holder}".ljust(43, "x")


@pytest.fixture(scope="module")
def keyed_worlds(running_server: StoreServer) -> Iterator[Worlds]:
    keys = [
        f'[[key]]\nname = "{name}"\nhash = "{hash_of(token_of(name))}"\nscopes = {json.dumps(scopes)}\n{more}\n'
        for name, scopes, more in (
            ("put", ["put", "cancel"], 'topics = ["*"]'),
            ("pop", ["pop", "read"], 'topics = ["*"]'),
            ("some-topics", ["put", "pop", "cancel"], 'topics = ["t*"]'),
            ("limited", ["put", "pop", "cancel"], 'topics = ["*"]\nmax_body_bytes = 60'),
        )
    ]
    both = Worlds(f"{running_server.url}/2", f"{running_server.url}/3", keys="\n".join(keys))
    yield both
    both.close()


@pytest.mark.parametrize("holder", HOLDERS)
def test_with_keys_the_responses_are_the_same(keyed_worlds: Worlds, holder: str) -> None:
    head = b"Host: x\r\nAuthorization: Bearer %b\r\nContent-Length: %%d" % token_of(holder).encode()
    lives = [
        Request(head, b"POST /jobs", JOB),
        Request(head, b"POST /jobs", b'{"topic":"{t}","id":"b","body":"%b"}' % (b"x" * 60)),
        Request(head, b"POST /jobs", b'{"topic":"other","id":"b","on_conflict":"keep"}'),
        Request(head, b"POST /topics/{t}/pop?wait=0"),
        *(
            Request(head, b"POST /jobs/{t}/a/%b" % verb, b'{"receipt":"{receipt}"}')
            for verb in (b"touch", b"finish", b"bury", b"release")
        ),
        Request(head, b"DELETE /jobs/{t}/b"),
    ]
    for _ in range(3):
        keyed_worlds.compare(lives)
    taken = keyed_worlds.direct.direct_path
    assert isinstance(taken, CountingDirectPath)
    assert bool(taken.taken) is (holder != "nobody")
    taken.taken.clear()
