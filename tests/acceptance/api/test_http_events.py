"""Streams of events from real services: resumed at another process, slow readers, a store that restarts, shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from deferd.client import AsyncClient, Client, JobEvent
from tests.acceptance.api.keyed_service import KeysFile
from tests.acceptance.client.scripted_server import Peer, scripted_server
from tests.acceptance.http_calls import NO_TLS, Http, Json, ok
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.integration.store.store_servers import StoreServer
from tests.waiting import wait_until

KEPT = 1000


class Message(NamedTuple):
    id: str | None
    event: str | None
    data: Json | None


class Reader:
    """A client of the stream that reads only on request."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> Message:
        """The next message, without comments."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(20):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                elif fields.keys() & {"id", "data"}:
                    break
                else:
                    fields = {}
            else:
                raise EOFError
        return Message(fields.get("id"), fields.get("event"), json.loads(fields.get("data", "null")))

    async def events(self, count: int) -> list[Message]:
        """The next messages with data."""
        found: list[Message] = []
        while len(found) < count:
            message = await self.next()
            if message.data is not None:
                found.append(message)
        return found


@asynccontextmanager
async def stream(client: httpx.AsyncClient, last_event_id: str | None = None, **query: Any) -> AsyncIterator[Reader]:
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    async with client.stream("GET", "/events", params=query, headers=headers, timeout=30) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert (response.headers["cache-control"], response.headers["x-accel-buffering"]) == ("no-store", "no")
        yield Reader(response.aiter_lines())


async def keep(http: Http, events: int = KEPT) -> None:
    ok(await http.put(http.topic_path(), json={"events": events}))


async def begun(reader: Reader) -> str:
    """Wait until the stream has begun; the id from which it can be resumed."""
    message = await reader.next()
    assert message.data is None
    assert message.id is not None
    return message.id


@pytest.mark.slow
async def test_events_arrive_in_order_and_a_stream_is_resumed_behind_each(http: Http) -> None:
    await keep(http)
    async with stream(http.client, topics=http.topic) as reader:
        await begun(reader)
        await http.put_job("a", delay=0.5)
        job = await http.pop_one()
        ok(await http.post(http.job_path("a", "finish"), json={"receipt": job["receipt"]}))
        messages = await reader.events(4)
    kinds = ["put", "ready", "popped", "finished"]
    assert [message.event for message in messages] == kinds
    assert [message.data["number"] for message in messages if message.data] == [1, 2, 3, 4]
    assert messages[2].data is not None
    assert messages[2].data["reserved_until"] == job["reserved_until"]
    for at, message in enumerate(messages[:-1], 1):
        async with stream(http.client, message.id, topics=http.topic) as resumed:
            assert [one.event for one in await resumed.events(4 - at)] == kinds[at:]
    async with stream(http.client, topics=http.topic, last=2) as late:
        assert [one.event for one in await late.events(2)] == kinds[2:]


@pytest.mark.slow
async def test_a_pattern_finds_topics_that_have_their_first_event_later(http: Http) -> None:
    async with stream(http.client, topics=f"{http.topic}.*") as reader:
        first_id = await begun(reader)
        topics = [f"{http.topic}.{number}" for number in range(6)]
        for topic in topics:
            ok(await http.put(f"/topics/{topic}", json={"events": 10}))
            await http.post("/jobs", json={"topic": topic, "id": "x"})
        messages = await reader.events(6)
    assert [message.data["topic"] for message in messages if message.data] == topics
    async with stream(http.client, first_id, topics=f"{http.topic}.*") as resumed:
        assert len(await resumed.events(6)) == 6


async def test_dropped_events_are_counted(http: Http) -> None:
    await keep(http, 5)
    async with stream(http.client, topics=http.topic) as reader:
        await begun(reader)
        await http.put_job("first")
        (first,) = await reader.events(1)
    for number in range(8):
        await http.put_job(f"b{number}")
    async with stream(http.client, first.id, topics=http.topic) as reader:
        dropped, *rest = await reader.events(6)
    assert (dropped.event, dropped.data) == ("dropped", {"topic": http.topic, "count": 3})
    assert [message.data["id"] for message in rest if message.data] == [f"b{n}" for n in range(3, 8)]


@pytest.mark.parametrize("text", ["x", "AQA", "//", "A" * 10_000])
async def test_a_hostile_id_is_422(http: Http, text: str) -> None:
    response = await http.get("/events", headers={"Last-Event-ID": text})
    assert (response.status_code, response.json()["code"]) == (422, "validation")
    assert response.json()["errors"][0]["field"] == "header.Last-Event-ID"


async def test_latest_events_as_json(http: Http) -> None:
    await keep(http)
    for job_id in "abc":
        await http.put_job(job_id)
    found = ok(await http.get("/events/latest", params={"topics": http.topic, "limit": 2}))
    assert ([event["id"] for event in found["events"]], found["complete"]) == (["c", "b"], True)
    async with stream(http.client, found["last_event_id"], topics=http.topic) as reader:
        await begun(reader)
        await http.put_job("d")
        (message,) = await reader.events(1)
    assert message.data is not None
    assert message.data["id"] == "d"


async def test_at_most_a_hundred_streams(shared_service: ServiceProcess) -> None:
    opened: list[socket.socket] = []
    try:
        for _ in range(101):
            one = socket.create_connection(("127.0.0.1", shared_service.port), 5)
            opened.append(one)
            one.sendall(b"GET /events?topics=none HTTP/1.1\r\nhost: x\r\n\r\n")
            head = one.recv(4096)
        assert b" 503 " in head.split(b"\r\n", 1)[0]
        assert b"retry-after: 5" in head.lower()
        while b"too_many_streams" not in head:
            head += one.recv(4096)
    finally:
        for one in opened:
            one.close()
    async with httpx.AsyncClient(base_url=shared_service.url, verify=NO_TLS) as client:
        for _ in range(50):  # clients that have disconnected leave no stream behind
            response = await client.get("/events", headers={"Last-Event-ID": "x"})
            assert response.status_code == 422
            try:
                async with stream(client, topics="none") as reader:
                    await begun(reader)
                    break
            except AssertionError:
                await asyncio.sleep(0.1)
        else:
            raise AssertionError("the streams of clients that have disconnected still count")


@pytest.mark.slow
async def test_a_reader_that_stalls_is_told_what_it_has_missed(http: Http, shared_service: ServiceProcess) -> None:
    await keep(http, 10)
    reader, writer = await asyncio.open_connection("127.0.0.1", shared_service.port, limit=2**16)
    writer.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    writer.write(f"GET /events?topics={http.topic} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    await reader.readuntil(b"id: ")
    for turn in range(60):  # more than fits into the buffers of the system and of the service
        jobs = [{"topic": http.topic, "id": f"{turn}-{number}-{'x' * 200}"} for number in range(1000)]
        ok(await http.post("/jobs/batch", json={"jobs": jobs}))
    text, has_dropped = b"", False
    async with asyncio.timeout(20):
        while b'"number":60000,' not in text:
            piece = await reader.read(65_536)
            assert piece
            text = (text + piece)[-200_000:]
            has_dropped = has_dropped or b"event: dropped" in text
    assert has_dropped
    writer.close()


async def test_shutdown_ends_streams_in_time(tmp_path: Path) -> None:
    with running_service("--drain-timeout", "10", data_dir=tmp_path) as service:
        async with (
            httpx.AsyncClient(base_url=service.url, verify=NO_TLS) as client,
            stream(client) as one,
            stream(client) as other,
        ):
            await begun(one)
            await begun(other)
            began_s = time.monotonic()
            stopping = asyncio.create_task(asyncio.to_thread(service.stop))
            for reader in (one, other):
                with pytest.raises(EOFError):
                    await reader.next()
            assert await stopping == 0
            assert time.monotonic() - began_s < 5


def _unsent_bytes(port: int, client: socket.socket) -> int:
    """What the system holds of what the service has written to this client."""
    ends = (f":{port:04X}", f":{client.getsockname()[1]:04X}")
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        if (local[-5:], remote[-5:]) == ends:
            return int(queues.partition(":")[0], 16)
    raise AssertionError("the connection is closed")


def _wait_until_blocked(port: int, client: socket.socket) -> None:
    """Until the system takes no more from the service: it reads from the store three times a second, if it can send."""
    unsent, since_s = 0, time.monotonic()

    def is_blocked() -> bool:
        nonlocal unsent, since_s
        before, unsent = unsent, _unsent_bytes(port, client)
        if unsent > before:
            since_s = time.monotonic()
        return unsent > 0 and time.monotonic() - since_s > 1

    wait_until(is_blocked, 30, "the service can't send more")


@pytest.mark.slow
def test_a_client_that_does_not_read_delays_no_shutdown(tmp_path: Path) -> None:
    with running_service("--drain-timeout", "10", data_dir=tmp_path) as service, socket.socket() as client:
        with httpx.Client(base_url=service.url, verify=NO_TLS) as http:
            http.put("/topics/full", json={"events": 10_000}).raise_for_status()
            for batch in range(10):
                jobs = [{"topic": "full", "id": f"{batch}-{number}-{'x' * 200}", "delay": 60} for number in range(1000)]
                http.post("/jobs/batch", json={"jobs": jobs}).raise_for_status()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", service.port))
        client.sendall(b"GET /events?topics=full&last=10000 HTTP/1.1\r\nHost: x\r\n\r\n")
        client.recv(100)
        _wait_until_blocked(service.port, client)
        began_s = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began_s < 5
        output = service.output()
        assert "ERROR" not in output
        assert "Traceback" not in output


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StoreServer, ServiceProcess, ServiceProcess]]:
    folder = tmp_path_factory.mktemp("events")
    with (
        StoreServer(folder, appendonly="yes", appendfsync="always") as store,
        running_service("--redis-url", store.url, data_dir=folder / "one") as one,
        running_service("--redis-url", store.url, data_dir=folder / "two") as two,
    ):
        yield store, one, two


async def next_events(events: AsyncIterator[JobEvent], count: int) -> list[str | None]:
    async with asyncio.timeout(30):
        return [(await anext(events)).id for _ in range(count)]


@pytest.mark.slow
async def test_the_client_goes_on_at_another_process(
    replicas: tuple[StoreServer, ServiceProcess, ServiceProcess], topic: str
) -> None:
    _, one, two = replicas
    async with AsyncClient([one.url, two.url]) as client, AsyncClient(two.url) as producer:
        await producer.set_topic(topic, {"events": 100})
        events = client.events(topic, last=1)
        reading = asyncio.create_task(next_events(events, 1))
        await asyncio.sleep(1)
        await producer.put(topic, id="a")
        assert await reading == ["a"]
        one.stop()
        try:
            await producer.put(topic, id="b")
            await producer.put(topic, id="c")
            assert await next_events(events, 2) == ["b", "c"]
        finally:
            one.start()
        await events.aclose()  # type: ignore[attr-defined]


@pytest.mark.slow
async def test_streams_survive_a_restart_of_the_store(
    replicas: tuple[StoreServer, ServiceProcess, ServiceProcess], topic: str
) -> None:
    store, _, two = replicas
    async with AsyncClient(two.url, retry_for=30) as client:
        await client.set_topic(topic, {"events": 100})
        await client.put(topic, id="a")
        events = client.events(topic, last=10)
        assert await next_events(events, 1) == ["a"]
        store.stop()
        await asyncio.sleep(1)
        store.start()
        await client.put(topic, id="b")
        assert await next_events(events, 1) == ["b"]
        await events.aclose()  # type: ignore[attr-defined]


def test_the_blocking_client(shared_service: ServiceProcess, topic: str) -> None:
    with Client(shared_service.url) as client:
        client.set_topic(topic, {"events": 100})
        for job_id in "abc":
            client.put(topic, id=job_id)
        events = client.events([topic], last=3)
        assert [next(events).id for _ in range(3)] == ["a", "b", "c"]
        client.put(topic, id="d")
        event = next(events)
        assert (event.event, event.id, event.topic, event.number) == ("put", "d", topic, 4)
        events.close()  # type: ignore[attr-defined]
        assert [event.id for event in client.latest_events(topic, limit=2)] == ["d", "c"]


@pytest.mark.slow
def test_tail_says_why_it_waits_and_goes_on(shared_service: ServiceProcess, topic: str) -> None:
    problem = json.dumps({"status": 503, "code": "too_many_streams", "detail": "it serves 100 streams already"})
    head = f"HTTP/1.1 503 x\r\ncontent-type: application/problem+json\r\ncontent-length: {len(problem)}\r\n"
    refused = 0
    forwarded: list[socket.socket] = []

    def refuse_twice(peer: Peer) -> None:
        nonlocal refused
        request = peer.head()
        if request.startswith("GET /events?") and refused < 2:
            refused += 1
            peer.send(f"{head}retry-after: 1\r\nconnection: close\r\n\r\n{problem}".encode())
            return
        with socket.create_connection(("127.0.0.1", shared_service.port), 20) as service:
            forwarded.append(service)
            service.sendall(f"{request}\r\nConnection: close\r\n\r\n".encode())
            while data := service.recv(65_536):
                peer.send(data)

    with Client(shared_service.url) as client:
        client.set_topic(topic, {"events": 100})
        client.put(topic, id="a")
    command = [sys.executable, "-m", "deferd", "tail", topic, "--last", "1", "--url"]
    with (
        scripted_server(refuse_twice) as server,
        subprocess.Popen([*command, server.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail,
    ):
        assert tail.stdout is not None
        assert tail.stdout.readline().split()[1:3] == ["put", f"{topic}/a"]
        tail.terminate()
        assert tail.wait(5) == 143
        forwarded[-1].shutdown(socket.SHUT_RDWR)
        assert refused == 2
        assert tail.stderr is not None
        [said] = tail.stderr.read().splitlines()
    assert said.startswith("deferd: waiting for events: ")
    assert "it serves 100 streams already" in said


@pytest.mark.slow
def test_tail_prints_lines_until_sigterm(shared_service: ServiceProcess, topic: str) -> None:
    with Client(shared_service.url) as client:
        client.set_topic(topic, {"events": 100})
        client.put(topic, id="a", delay=60)
        command = [sys.executable, "-m", "deferd", "tail", topic, "--last", "1", "--url", shared_service.url]
        with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            assert json.loads(tail.stdout.readline())["id"] == "a"
            client.put(topic, id="b")
            assert json.loads(tail.stdout.readline())["id"] == "b"
            tail.terminate()
            assert tail.wait(5) == 143
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout is not None
            assert tail.stdout.readline().split()[1:3] == ["put", f"{topic}/b"]
            [popped] = client.pop(topic)
            client.touch(popped, progress={"done": 1})
            assert tail.stdout.readline().split()[1:3] == ["popped", f"{topic}/b"]
            shown = ["progress", f"{topic}/b", "attempt", "1", "progress", '{"done":1}']
            assert tail.stdout.readline().split()[1:] == shown
            tail.stdout.close()
            client.put(topic, id="c")
            assert tail.wait(5) == 141


def test_tail_says_that_topics_keep_no_events(shared_service: ServiceProcess, topic: str) -> None:
    command = [sys.executable, "-m", "deferd", "tail", topic, f"{topic}-*", "--url", shared_service.url]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tail:
        try:
            assert tail.stderr is not None
            of_topic, of_pattern = (tail.stderr.readline() for _ in range(2))
            assert of_topic == f"deferd: {topic} keeps no events yet: `deferd topic {topic} --events 1000` lets it\n"
            assert of_pattern.startswith(f"deferd: no topic that matches {topic}, {topic}-* keeps events yet: ")
        finally:
            tail.terminate()


# With keys


def client(service: ServiceProcess, keys: KeysFile, name: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {keys.tokens[name]}"}
    return httpx.AsyncClient(base_url=service.url, headers=headers, timeout=20, verify=NO_TLS)


async def put(admin: httpx.AsyncClient, topic: str) -> None:
    (await admin.put(f"/topics/{topic}", json={"events": 10})).raise_for_status()
    (await admin.post("/jobs", json={"topic": topic})).raise_for_status()


async def test_a_key_sees_its_topics_only(service: ServiceProcess, keys: KeysFile, topic: str) -> None:
    secret, *ours = f"secret.{topic}", f"shop.{topic}.a", f"shop.{topic}.b"
    async with client(service, keys, "admin") as admin, client(service, keys, "shop") as shop:
        await put(admin, secret)
        async with stream(shop, last=10) as reader:
            await begun(reader)
            for name in (secret, ours[0], secret, ours[1]):
                await put(admin, name)
            messages = await reader.events(2)
        assert [message.data["topic"] for message in messages if message.data] == ours
        latest = (await shop.get("/events/latest")).json()
        assert [event["topic"] for event in latest["events"]] == ours[::-1]
        assert (await shop.get("/events", params={"topics": secret})).status_code == 403
        assert (await shop.get("/events/latest", params={"topics": secret})).status_code == 403
    async with client(service, keys, "put") as producer:
        assert (await producer.get("/events")).status_code == 403


@pytest.mark.slow
async def test_the_stream_of_a_revoked_key_ends_and_a_changed_key_counts_at_once(
    service: ServiceProcess, keys: KeysFile
) -> None:
    async with (
        client(service, keys, "admin") as admin,
        client(service, keys, "revoked") as revoked,
        stream(revoked, topics="*") as reader,
    ):
        await begun(reader)
        keys.add("revoked", "read", topics=("own.*",))

        async def sees_others() -> bool:
            """Whether the stream still has a topic that is not the key's, which gets a job before its own does."""
            seen, last = set(), f"own.{uuid.uuid4().hex}"
            await put(admin, "foreign.a")
            await put(admin, last)
            while last not in seen:
                (message,) = await reader.events(1)
                assert message.data is not None
                seen.add(message.data["topic"])
            return "foreign.a" in seen

        async with asyncio.timeout(20):
            turns = 0  # without them; events of one that came too late are seen in the next
            while turns < 2:
                turns = 0 if await sees_others() else turns + 1
                await asyncio.sleep(0.1)
        keys.remove("revoked")
        with pytest.raises(EOFError):
            await reader.next()


async def test_one_key_leaves_streams_to_the_others(service: ServiceProcess, keys: KeysFile) -> None:
    async with (
        client(service, keys, "admin") as admin,
        client(service, keys, "shop") as shop,
        contextlib.AsyncExitStack() as opened,
    ):
        for _ in range(20):
            await opened.enter_async_context(stream(shop))
        refused = await shop.get("/events")
        async with stream(admin) as reader:
            await begun(reader)
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (503, "too_many_streams")
    assert problem["detail"] == "this process serves 20 streams of events to key 'shop' already"
