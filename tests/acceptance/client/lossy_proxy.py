"""A TCP proxy in front of a service that loses, delays or replaces responses, as a test plans it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from tests.in_thread import in_thread

Fault = Literal["none", "lose response", "cut response", "respond instead", "hold response", "hang"]


class Planned(NamedTuple):
    """What happens to one request, with `to` in its head.

    `sent`: it reaches the service. `response` replaces that of the service.
    """

    fault: Fault
    sent: bool = True
    response: bytes = b""
    to: str = ""


class LossyProxy:
    """Forwards requests, one at a time on each connection; applies the planned faults to them, in order."""

    def __init__(self, upstream_url: str, port: int = 0) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._plan: deque[Planned] = deque()
        self._in_flight = 0
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._may_respond = threading.Event()
        self._may_respond.set()
        self.port = port
        self.heads: list[str] = []
        """The head of each received request, in order."""
        self.received_s: list[float] = []
        """When each of them was received, by `time.monotonic()`."""
        self.responded = 0
        """The number of responses of the service, delivered or not."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lose_responses(self, count: int = 1) -> None:
        """The service executes the next requests, and the connection breaks before the response."""
        self._plan.extend([Planned("lose response")] * count)

    def cut_response(self) -> None:
        """The next response ends in its middle."""
        self._plan.append(Planned("cut response"))

    def respond(self, status: int, *headers: str, sent: bool, body: bytes = b"bad gateway", to: str = "") -> None:
        """The next request gets this response; with `sent` the service executes it, and its own response is lost.

        Requests without `to` in their head pass before it, and faults planned later wait.
        """
        head = [f"HTTP/1.1 {status} From The Proxy", f"content-length: {len(body)}", "connection: close"]
        self._plan.append(Planned("respond instead", sent, "\r\n".join([*head, *headers, "", ""]).encode() + body, to))

    def forward(self) -> None:
        """Nothing happens to the next request: planned before a fault that is for a later one."""
        self._plan.append(Planned("none"))

    def hold_response(self) -> None:
        """The service executes the next request; its response waits for `release_responses`."""
        self._plan.append(Planned("hold response"))

    def hang(self, *, sent: bool = True) -> None:
        """The next request gets no response; with `sent` the service executes it."""
        self._plan.append(Planned("hang", sent))

    def is_done(self) -> bool:
        """Whether all planned faults have happened; requests meant for the service were executed by it."""
        return not self._plan and not self._in_flight

    def release_responses(self) -> None:
        """Deliver held responses."""
        self._may_respond.set()

    @contextlib.contextmanager
    def responses_held(self) -> Iterator[None]:
        """Hold all responses of the service until the end of the block."""
        self._may_respond.clear()
        try:
            yield
        finally:
            self.release_responses()

    async def serve(self, ready: threading.Event) -> None:
        """Serve until `stop`."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._begin, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await self._stop.wait()
            while accepting := asyncio.all_tasks() - {asyncio.current_task(), *self._connections}:
                await asyncio.wait(accepting)
        for task, writer in self._connections.items():
            task.cancel()
            writer.close()  # not in the task, which may never have started
        await asyncio.gather(*self._connections, return_exceptions=True)

    def stop(self) -> None:
        """End `serve`; from any thread."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._connection(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(self._connections.pop)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError), contextlib.closing(writer):
            up_reader, up_writer = await asyncio.open_connection(*self._upstream)
            with contextlib.closing(up_writer):
                await self._forward(reader, writer, up_reader, up_writer)

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        while True:
            request = await _message(reader)
            self.received_s.append(time.monotonic())
            self.heads.append(head := request.partition(b"\r\n\r\n")[0].decode())
            planned = self._plan.popleft() if self._plan and self._plan[0].to in head else None
            if planned is not None and not planned.sent:
                await self._end(planned, reader, writer, planned.response)
                return
            self._in_flight += planned is not None
            up_writer.write(request)
            response = await _message(up_reader)
            if planned is not None and planned.fault == "hold response":
                self._may_respond.clear()
            self.responded += 1
            self._in_flight -= planned is not None
            while not self._may_respond.is_set():
                await asyncio.sleep(0.005)
            if planned is None or planned.fault in {"none", "hold response"}:
                writer.write(response)
            else:
                half = response[: len(response) // 2] if planned.fault == "cut response" else b""
                await self._end(planned, reader, writer, planned.response or half)
                return
            await writer.drain()
            if "\r\nconnection: close" in head.lower():
                return

    @staticmethod
    async def _end(
        planned: Planned, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, last_bytes: bytes
    ) -> None:
        if planned.fault == "hang":
            await reader.read()  # until the client disconnects
        else:
            writer.write(last_bytes)


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if line)
    return head + await reader.readexactly(int(fields.get(b"content-length", b"0")))


def lossy_proxy(upstream_url: str, port: int = 0) -> AbstractContextManager[LossyProxy]:
    """A proxy that runs in its own thread until the end of the block, on a free port by default."""
    return in_thread(LossyProxy(upstream_url, port))
