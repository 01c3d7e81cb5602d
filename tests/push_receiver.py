"""A real receiver of pushes: an HTTP/1.1 server on a socket, whose responses the test decides."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(frozen=True)
class Received:
    """One request as it arrived; the names of headers are in lower case. `at_s` is the time of the loop."""

    target: str
    headers: dict[str, str]
    body: bytes
    at_s: float

    @property
    def job_id(self) -> str:
        return self.headers["deferd-job-id"]

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """A response; `raw` is sent as it is, in place of all else.

    `closes`: then the receiver closes the connection. `endless` is sent again and again, until the sender closes it.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    closes: bool = False
    endless: bytes = b""

    def write(self) -> bytes:
        if self.raw is not None:
            return self.raw
        lines = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        return f"HTTP/1.1 {self.status} Said\r\n{lines}content-length: {len(self.body)}\r\n\r\n".encode() + self.body


OK = Reply()
Respond = Callable[[Received], Awaitable[Reply]]


def json_reply(value: Any, status: int = 200) -> Reply:
    return Reply(status, orjson.dumps(value), {"content-type": "application/json"})


class Receiver:
    """Records requests. `respond` decides each response; by default all are 200. `closed` counts requests that the
    sender gave up before their response."""

    def __init__(self) -> None:
        self.requests: list[Received] = []
        self.respond: Respond = _ok
        self.connections = 0
        self.under_way = 0
        self.most_under_way = 0
        self.closed = 0
        self.port = 0
        self.scheme = "http"

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        """The ids of the jobs, in the order of their arrival."""
        return [one.job_id for one in self.requests]

    def reply_with(self, *replies: Reply) -> None:
        """Respond with these in turn; the last one counts for all further requests."""
        rest = list(replies)

        async def respond(_request: Received) -> Reply:
            return rest.pop(0) if len(rest) > 1 else rest[0]

        self.respond = respond

    def hang(self) -> None:
        """Never respond."""

        async def respond(_request: Received) -> Reply:
            await asyncio.Event().wait()
            raise AssertionError("unreachable")

        self.respond = respond

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                await self._exchange(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")[:-2]
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            assert name.lower() not in headers, f"{name} twice"
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers["content-length"]))
        method, target, _ = first.split(" ")
        assert method == "POST"
        request = Received(target, headers, body, asyncio.get_running_loop().time())
        self.requests.append(request)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        responding = asyncio.ensure_future(self.respond(request))
        ending = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait({responding, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not responding.done():
                self.closed += 1
                raise ConnectionResetError("the sender has closed the connection")
            reply = responding.result()
            writer.write(reply.write())
            await writer.drain()
            while reply.endless:
                writer.write(reply.endless)
                await writer.drain()
            if reply.closes:
                raise ConnectionAbortedError("the receiver closes the connection")
        finally:
            self.under_way -= 1
            for task in (responding, ending):
                task.cancel()
            await asyncio.wait({responding, ending})


async def _ok(_request: Received) -> Reply:
    return OK


@asynccontextmanager
async def receiver(tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[Receiver]:
    """A receiver on a free port of 127.0.0.1."""
    one = Receiver()
    one.scheme = "http" if tls is None else "https"
    server = await asyncio.start_server(one.serve, "127.0.0.1", port, ssl=tls)
    one.port = server.sockets[0].getsockname()[1]
    try:
        yield one
    finally:
        server.close()
