"""A minimal HTTP/1.1 client, so that the service is measured and not the client: one call at a time per connection.

It only parses responses like the service's: a status line, headers with a Content-Length, a body.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any, NamedTuple, cast

import orjson

_HEADERS_END = b"\r\n\r\n"
_LENGTH = b"\r\ncontent-length: "


class Response(NamedTuple):
    """The response to one request."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The parsed JSON body. A status other than 2xx ends the benchmark."""
        if not 200 <= self.status < 300:
            raise SystemExit(f"the service responded with {self.status}: {self.body.decode(errors='replace')}")
        return orjson.loads(self.body)


class Connection(asyncio.Protocol):
    """One kept-alive connection; see `connect`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting: asyncio.Future[Response] | None = None
        self._received = b""
        self._body_at = 0
        self._end = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it

    def connection_lost(self, error: Exception | None) -> None:
        """Called by the event loop."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error or ConnectionError("the service closed the connection"))

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._received = self._received + data if self._received else data
        if not self._end:
            headers_end = self._received.find(_HEADERS_END)
            if headers_end < 0:
                return
            self._body_at = headers_end + len(_HEADERS_END)
            length_at = self._received.lower().index(_LENGTH, 0, headers_end) + len(_LENGTH)
            length = int(self._received[length_at : self._received.index(b"\r", length_at)])
            self._end = self._body_at + length
        if len(self._received) >= self._end:
            response = Response(int(self._received[9:12]), self._received[self._body_at : self._end])
            self._received, self._end = b"", 0
            waiting, self._waiting = self._waiting, None
            if waiting is not None and not waiting.done():
                waiting.set_result(response)

    def send(self, request: bytes) -> asyncio.Future[Response]:
        """Send a request made by `request_bytes`; the future gets the response."""
        assert self._transport is not None
        assert self._waiting is None, "the response to an earlier request is pending"
        self._waiting = self._loop.create_future()
        self._transport.write(request)
        return self._waiting

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON of the response; a status other than 2xx ends the benchmark."""
        return (await self.send(request_bytes(method, path, body))).json()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()


async def connect(port: int) -> Connection:
    """Connect to a port on loopback."""
    _, connection = await asyncio.get_running_loop().create_connection(Connection, "127.0.0.1", port)
    return connection


async def connect_many(port: int, count: int, at_once: int = 200) -> list[Connection]:
    """Open so many connections, a few at a time, so that the listener's backlog is enough."""
    connections: list[Connection] = []
    while len(connections) < count:
        some = min(at_once, count - len(connections))
        connections += await asyncio.gather(*(connect(port) for _ in range(some)))
    return connections


def request_bytes(method: str, path: str, body: Any = None) -> bytes:
    """A complete request; `body` is serialized as JSON."""
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    if body is None:
        return f"{head}\r\n".encode()
    content = orjson.dumps(body)
    return f"{head}content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content


async def put_in_batches(
    connection: Connection, count: int, job: Callable[[int], dict[str, Any]], batch: int = 1000
) -> None:
    """Put the jobs `job(0)` to `job(count - 1)`; a refused one ends the benchmark."""
    for start in range(0, count, batch):
        await _put_batch(connection, [job(number) for number in range(start, min(start + batch, count))])


async def put_range(
    port: int, numbers: range, job: Callable[[int], dict[str, Any]], *, batch: int, connections: int, rate: float = inf
) -> None:
    """Put a job for each of the numbers, over several connections, at most `rate` a second. Prints its progress.

    A refused job ends the benchmark.
    """
    starts = iter(numbers[::batch])
    began = shown = time.perf_counter()

    async def put_over(connection: Connection) -> None:
        nonlocal shown
        for start in starts:
            jobs = [job(number) for number in range(start, min(start + batch, numbers.stop))]
            await asyncio.sleep(max(began + (start - numbers.start) / rate - time.perf_counter(), 0))
            await _put_batch(connection, jobs)
            if time.perf_counter() - shown > 60:
                shown = time.perf_counter()
                print(f"    {start:,} put", flush=True)

    opened = await connect_many(port, connections)
    await asyncio.gather(*map(put_over, opened))
    for connection in opened:
        connection.close()


async def _put_batch(connection: Connection, jobs: list[dict[str, Any]]) -> None:
    results = (await connection.call("POST", "/jobs/batch", {"jobs": jobs}))["results"]
    refused = [result for result in results if result["status"] != 201]
    if refused:
        raise SystemExit(f"a put was refused: {refused[0]}")


async def bounded(work: Awaitable[Any], seconds: float, what: str) -> None:
    """Wait for `work` at most so many seconds; after that the benchmark ends and names `what` was not done."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        raise SystemExit(f"not done within {seconds:.0f} s: {what}") from None
