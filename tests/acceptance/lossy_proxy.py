"""A TCP proxy in front of a service that loses answers, or answers itself, as told: for clients of any kind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from tests.in_thread import in_thread

Fault = Literal["lose answer", "lose half an answer", "answer instead", "hang", "trickle"]


class Planned(NamedTuple):
    """What happens to one request. `sent`: it reaches the service all the same. `answer` is what comes instead."""

    fault: Fault
    sent: bool = True
    answer: bytes = b""


class LossyProxy:
    """Passes requests on, one at a time on each connection; the next ones meet the faults that are planned."""

    def __init__(self, upstream_url: str) -> None:
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._plan: deque[Planned] = deque()
        self._under_way = 0
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._may_answer = threading.Event()
        self._may_answer.set()
        self.port = 0
        self.heads: list[str] = []
        """The head of each request that came, in order."""
        self.answered = 0
        """How many of them the service has answered, whatever came of the answer."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lose_answers(self, count: int = 1) -> None:
        """The service carries the next requests out, and the connection breaks before the answer."""
        self._plan.extend([Planned("lose answer")] * count)

    def cut_answer(self) -> None:
        """The next answer ends in its middle."""
        self._plan.append(Planned("lose half an answer"))

    def answer(self, status: int, *headers: str, sent: bool, body: bytes = b"bad gateway") -> None:
        """The next request is answered so; with `sent` the service carries it out, and its own answer is lost."""
        head = [f"HTTP/1.1 {status} Answered By The Proxy", f"content-length: {len(body)}", "connection: close"]
        self._plan.append(Planned("answer instead", sent, "\r\n".join([*head, *headers, "", ""]).encode() + body))

    def hang(self, *, sent: bool = True) -> None:
        """The next request is never answered; with `sent` the service carries it out."""
        self._plan.append(Planned("hang", sent))

    def trickle(self) -> None:
        """The body of the next answer comes a byte at a time, ten a second."""
        self._plan.append(Planned("trickle"))

    def is_done(self) -> bool:
        """Whether all that was planned has happened: what was to reach the service, it has carried out."""
        return not self._plan and not self._under_way

    @contextlib.contextmanager
    def answers_held(self) -> Iterator[None]:
        """Until the end of the block, answers of the service do not come back."""
        self._may_answer.clear()
        try:
            yield
        finally:
            self._may_answer.set()

    async def serve(self, ready: threading.Event) -> None:
        """Serve until `stop`."""
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._begin, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        async with server:
            await self._stop.wait()
            while accepting := asyncio.all_tasks() - {asyncio.current_task(), *self._connections}:
                await asyncio.wait(accepting)
        for task, writer in self._connections.items():
            task.cancel()
            writer.close()  # not by the task: one that has not begun never will
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
                await self._pass_on(reader, writer, up_reader, up_writer)

    async def _pass_on(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        while True:
            request = await _message(reader)
            self.heads.append(request.partition(b"\r\n\r\n")[0].decode())
            planned = self._plan.popleft() if self._plan else None
            if planned is not None and not planned.sent:
                await self._end(planned, reader, writer, planned.answer)
                return
            self._under_way += planned is not None
            up_writer.write(request)
            response = await _message(up_reader)
            self.answered += 1
            self._under_way -= planned is not None
            while not self._may_answer.is_set():
                await asyncio.sleep(0.005)
            if planned is not None and planned.fault == "trickle":
                await _trickle(response, writer)
            elif planned is not None:
                half = response[: len(response) // 2] if planned.fault == "lose half an answer" else b""
                await self._end(planned, reader, writer, planned.answer or half)
                return
            else:
                writer.write(response)
            await writer.drain()

    @staticmethod
    async def _end(
        planned: Planned, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, last_words: bytes
    ) -> None:
        if planned.fault == "hang":
            await reader.read()  # until the client hangs up
        else:
            writer.write(last_words)


async def _trickle(response: bytes, writer: asyncio.StreamWriter) -> None:
    head, _, body = response.partition(b"\r\n\r\n")
    writer.write(head + b"\r\n\r\n")
    for byte in body:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(0.1)


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if line)
    return head + await reader.readexactly(int(fields.get(b"content-length", b"0")))


def lossy_proxy(upstream_url: str) -> AbstractContextManager[LossyProxy]:
    """A proxy that runs in a thread of its own until the end of the block."""
    return in_thread(LossyProxy(upstream_url))
