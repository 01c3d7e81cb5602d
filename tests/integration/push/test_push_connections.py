"""The connections to targets: what a target sends between requests, what it closes, and names that do not resolve."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deferd.contract.model import JobState
from deferd.engine.engine import Engine
from tests.integration.push.pushing_engine import PushingEngine, pushing_engine
from tests.push_receiver import Receiver, Reply
from tests.waiting import until

NEVER = {"kind": "fixed", "seconds": 600}
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def served(serve: Serve) -> AsyncIterator[str]:
    """A server of raw connections; its URL."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    await reader.readexactly(int(length.split(b":")[1]))


async def test_what_a_target_sends_unasked_is_not_the_response_to_the_next_request(pushing: PushingEngine) -> None:
    requests: list[int] = []
    sent_more = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        requests.append(1)
        writer.write(OK)
        await writer.drain()
        if len(requests) == 1:
            await pushing.until_gone("a")
            writer.write(OK)
            await writer.drain()
            sent_more.set()
        await reader.read()

    async with served(serve) as url:
        await pushing.push(url=url, max_in_flight=1)
        await pushing.put("a")
        await asyncio.wait_for(sent_more.wait(), 20)
        await pushing.put("b")
        await pushing.until_gone("b")
        assert len(requests) == 2


async def test_a_new_connection_that_is_closed_without_a_response_is_not_tried_again_at_once(
    pushing: PushingEngine,
) -> None:
    requests: list[int] = []

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        requests.append(1)

    async with served(serve) as url:
        await pushing.push(url=url)
        await pushing.put(backoff=NEVER)
        job = await pushing.until_state(JobState.DELAYED)
        assert job.last_error == "the target closed the connection without a response"
        assert len(requests) == 1


async def test_a_connection_that_was_closed_while_it_was_idle_is_opened_again(pushing: PushingEngine) -> None:
    """The target reads the second request and closes without a response: a third one is sent over a new connection."""
    requests: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            requests.append(1)
            if len(requests) == 2:
                return
            writer.write(OK)

    async with served(serve) as url:
        await pushing.push(url=url, max_in_flight=1)
        await pushing.put("a")
        await pushing.until_gone("a")
        await pushing.put("b", backoff=NEVER)
        await pushing.until_gone("b")
        assert len(requests) == 3


async def test_an_error_does_not_show_the_url(pushing: PushingEngine) -> None:
    """Its query may be a secret, and the error of a job is shown to all who may read it."""
    pushing.target.reply_with(Reply(raw=b"nonsense\r\n\r\n"))
    await pushing.push(url=f"{pushing.target.url}?token=7f3a9c", timeout=2)
    await pushing.put(backoff=NEVER)
    job = await pushing.until_state(JobState.DELAYED)
    assert job.last_error is not None
    assert job.last_error.startswith("the target's response is not valid: Bad status line")
    assert "7f3a9c" not in job.last_error


async def test_names_that_do_not_resolve_delay_no_other_target(
    engine: Engine, target: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging, end = threading.Semaphore(0), threading.Event()

    def getaddrinfo(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        if host.startswith("slow"):
            hanging.release()
            end.wait(30)
            raise socket.gaierror("no response")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    count = 40
    allow, networks = ("http://*:*",), ("127.0.0.0/8",)
    try:
        async with pushing_engine(engine, target, allow=allow, networks=networks, drain_s=0.1) as pushing:
            for at in range(count):
                await pushing.push(f"t{at}", url=f"http://slow{at}.example:{target.port}/")
                await pushing.put(topic=f"t{at}", backoff=NEVER)
            hung = [0]

            def all_hang() -> bool:
                while hanging.acquire(blocking=False):
                    hung[0] += 1
                return hung[0] == count

            await until(all_hang, "all names are being resolved")
            await pushing.push(url=f"http://quick.example:{target.port}/")
            await pushing.put()
            await pushing.until_gone()
    finally:
        end.set()
