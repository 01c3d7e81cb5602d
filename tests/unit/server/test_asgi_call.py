"""A request through ASGI whose client is gone, or whose application fails."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httptools
import pytest

from deferd.server.http.asgi_call import AsgiCall


class Transport:
    """Notes what is written, and how it ends."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ended = ""

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"


class Connection:
    """The connection of one call."""

    def __init__(self) -> None:
        self.transport: Any = Transport()
        self.limits: Any = SimpleNamespace(is_stopping=False, date_line=b"date: today\r\n")
        self.room: asyncio.Event | None = None
        self.ended_calls = 0

    def caller(self, _headers: Any) -> None:
        """It has no address."""

    def pause_reading(self) -> None:
        """There is nothing to read."""

    def resume_reading(self) -> None:
        """There is nothing to read."""

    def end_asgi_call(self) -> None:
        self.ended_calls += 1


def call_of(connection: Connection) -> AsgiCall:
    head = b"POST /jobs HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
    parser = httptools.HttpRequestParser(object())
    parser.feed_data(head)
    return AsgiCall(connection, parser, b"/jobs", [(b"host", b"x"), (b"expect", b"100-continue")], "http")


async def test_a_client_that_is_gone_is_not_told_to_continue() -> None:
    connection = Connection()
    call = call_of(connection)
    received = []

    async def application(_scope: Any, receive: Any, _send: Any) -> None:
        received.append(await receive())

    call.disconnect()
    await call.run(application)

    assert received == [{"type": "http.disconnect"}]
    assert connection.transport.written == []


async def test_an_application_that_fails_before_its_response_gets_500() -> None:
    connection = Connection()

    async def application(_scope: Any, _receive: Any, _send: Any) -> None:
        raise ValueError

    await call_of(connection).run(application)

    assert connection.transport.written[0].startswith(b"HTTP/1.1 500 ")
    assert (connection.transport.ended, connection.ended_calls) == ("closed", 1)


@pytest.mark.parametrize("is_complete", [False, True])
async def test_an_application_that_fails_in_its_response_ends_the_call_once(is_complete: bool) -> None:
    connection = Connection()

    async def application(_scope: Any, _receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok" if is_complete else b"o", "more_body": not is_complete})
        raise ValueError

    call = call_of(connection)
    call.keep_alive = True
    call.end_body()
    await call.run(application)

    assert connection.ended_calls == 1
    assert connection.transport.ended == ("closed" if not (is_complete and call.keep_alive) else "")
