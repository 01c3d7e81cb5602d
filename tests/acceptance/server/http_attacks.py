"""Ways to abuse an HTTP service: each opens connections, sends what it should not, and closes them again.

None of them expects a particular response; `Abuse` counts the statuses, and the test checks that none is an
error of the service.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Sequence

HOST = "127.0.0.1"
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
_RESPONSE_S, _MORE_S = 1.5, 0.1
"""How long an attack waits for a response, since many get none, and for more of it."""
_PUT = b'{"topic": "%b", "id": "a", "on_conflict": "keep"}'
GET = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


class Abuse:
    """A hostile client: the port, its own topic, and the statuses of its responses."""

    def __init__(self, port: int, topic: str, seed: int) -> None:
        self.port = port
        self.topic = topic.encode()
        self.random = random.Random(seed)
        self.responses: Counter[int] = Counter()

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection, aborted at the end if it is still there."""
        reader, writer = await asyncio.open_connection(HOST, self.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def send(self, *pieces: bytes, half_close: bool = False, wait_s: float = _RESPONSE_S) -> bytes:
        """Send on a connection of its own, and return what comes, beginning within `wait_s`."""
        response = b""
        with contextlib.suppress(OSError):
            async with self.connection() as (reader, writer):
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    if len(pieces) > 1:
                        await asyncio.sleep(0)
                if half_close:
                    writer.write_eof()
                with contextlib.suppress(TimeoutError):
                    while part := await asyncio.wait_for(reader.read(65536), _MORE_S if response else wait_s):
                        response += part
        self.responses.update(int(status) for status in _STATUS.findall(response))
        return response

    async def send_all(self, requests: Sequence[bytes], *, half_close: bool = False, at_once: int = 50) -> None:
        """Send each on a connection of its own, `at_once` at a time."""
        slots = asyncio.Semaphore(at_once)

        async def one(request: bytes) -> None:
            async with slots:
                await self.send(request, half_close=half_close)

        await asyncio.gather(*map(one, requests))

    def put(self, *headers: bytes, body: bytes | None = None, length: bytes | None = None) -> bytes:
        """A put, with headers of the attack's own."""
        body = _PUT % self.topic if body is None else body
        lines = [b"POST /jobs HTTP/1.1", b"Host: x", *headers]
        if length != b"":
            lines.append(b"Content-Length: " + (b"%d" % len(body) if length is None else length))
        return b"\r\n".join([*lines, b"", body])

    # The attacks

    async def send_byte_by_byte(self, connections: int = 100, rounds: int = 5) -> None:
        """Slowloris: many connections, each of which sends a byte now and then, and never comes to an end."""
        async with contextlib.AsyncExitStack() as stack:
            writers = [(await stack.enter_async_context(self.connection()))[1] for _ in range(connections)]
            request = self.put(b"X-Slow: " + b"y" * 100)
            for at in range(rounds):
                for writer in writers:
                    writer.write(request[at : at + 1])
                await asyncio.sleep(0.02)

    async def close_half(self) -> None:
        """The sending side is shut after whole requests, after half of one, in the middle of a body, and at once."""
        pop = b"GET /topics/%b/pop?wait=20 HTTP/1.1\r\nHost: x\r\n\r\n" % self.topic
        put = self.put()
        await self.send_all(
            [b"", GET, GET * 3, GET[:20], pop, pop + GET, put, put[:-5], put + put[:30]], half_close=True
        )

    async def pipeline(self) -> None:
        """A hundred requests in one segment, some of them waiting pops; the client disconnects before all responses."""
        pop = b"GET /topics/%b/pop?wait=0.2 HTTP/1.1\r\nHost: x\r\n\r\n" % self.topic
        # With more than a few requests behind a pop, its disconnect is noticed only when its wait is over.
        waiting = b"GET /topics/%b/pop?wait=3 HTTP/1.1\r\nHost: x\r\n\r\n" % self.topic
        many = [self.random.choice([GET, self.put()]) for _ in range(98)]
        await self.send(b"".join([many[0], pop, *many[1:49], pop, *many[49:]]), wait_s=3)
        await self.send(b"".join([waiting, *many]))
        await self.send(b"".join([*many, waiting, waiting]))

    async def send_large_heads(self) -> None:
        """One header of many sizes up to 2 MB, thousands of headers, a URL without end."""
        sizes = (8_000, 31_000, 33_000, 70_000, 2_000_000)
        await self.send_all([self.put(b"X-Large: " + b"y" * size) for size in sizes])
        await self.send_all([self.put(*[b"X-%d: y" % n for n in range(count)]) for count in (99, 101, 20_000)])
        await self.send_all([b"GET /" + b"u" * size + b" HTTP/1.1\r\nHost: x\r\n\r\n" for size in sizes])
        await self.send_all(
            [b"GET /healthz?" + b"a=b&" * size + b" HTTP/1.1\r\nHost: x\r\n\r\n" for size in (100, 2_000)]
        )
        await self.send_all([b"y" * 2_000_000, b"\r\n" * 100_000, b"G" * 100_000, b"\0" * 100_000])

    async def send_bad_chunks(self) -> None:
        """Sizes that are no number, negative, beyond 64 bits; extensions and trailers without end; chunks cut short."""
        body = _PUT % self.topic
        good = b"%x\r\n%b\r\n" % (len(body), body)
        chunks = [
            *(b"zz\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"7fffffffffffffff\r\n", b"0x5\r\n", b" 5\r\nhello\r\n"),
            *(b"\r\n", b"5\r\nhelloworld\r\n", b"5\r\nhi\r\n0\r\n\r\n", b"5\nhello\n0\n\n", b"1_0\r\n", b"\xff\r\n"),
            *(good, good + b"0\r\n", good + b"0\r\nX: y\r\n\r\n", good + b"0\r\n" + b"X: y\r\n" * 20_000, good + GET),
            b"5;" + b"e" * 2_000_000,
            b"1;" + b"e=f;" * 30_000 + b"\r\na\r\n",
            b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n",
            b"100000\r\n" + b" " * 0x100000 + b"\r\n0\r\n\r\n",
        ]
        head = b"POST /jobs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: %b\r\n\r\n"
        await self.send_all([head % b"chunked" + chunk for chunk in chunks])
        names = (b"gzip, chunked", b"chunked, chunked", b"chunked, gzip", b"identity", b"\x0bchunked", b"x" * 100, b"")
        await self.send_all([head % name + good + b"0\r\n\r\n" for name in names])

    async def send_wrong_lengths(self) -> None:
        """Lengths that are short, long, repeated, negative, no number; and with chunks as well (smuggling)."""
        size = len(_PUT % self.topic)
        lengths = (
            b"1",
            b"%d" % (size + 9),
            b"-1",
            b"+5",
            b"1e1",
            b"0x10",
            b"",
            b" ",
            b"5, 5",
            b"9" * 30,
            b"1 1",
            b"\0",
        )
        await self.send_all([self.put(length=length) for length in lengths if length])
        await self.send_all([self.put(b"Content-Length: " + length) for length in (b"%d" % size, b"1", b"", b"x")])
        smuggled = b"0\r\n\r\n" + GET
        await self.send_all(
            [
                self.put(b"Transfer-Encoding: chunked", body=smuggled),
                self.put(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=smuggled),
                self.put(b"Transfer-Encoding : chunked", body=smuggled),
                b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n" + GET,
                self.put(b"Expect: 100-continue", length=b"9" * 9),
            ]
        )

    async def send_bad_lines(self) -> None:
        """Malformed methods, versions, URLs and headers, with every kind of byte in them."""
        targets = [
            *(b"http://x/healthz", b"http://x:99999/healthz", b"https://", b"//", b"*", b"x", b"/%", b"/%zz", b"/%00"),
            *(b"/jobs/%2f/a", b"/jobs/../healthz", b"/\\", b"/?%ff", b"/#x", b"/jobs/a/" + b"b" * 300, b"/\xff\xfe"),
            *(
                b"/topics/a,a/pop?wait=0",
                b"/topics/%F0%9F/pop",
                b"/healthz?a=1&a=1",
                b"/jobs?" + b"x=1&" * 200,
                b"[::1",
            ),
        ]
        methods = (b"GET", b"POST", b"CONNECT", b"OPTIONS", b"TRACE", b"PRI", b"get", b"G\0T", b"\xff", b"", b"A" * 500)
        versions = (
            b"HTTP/1.1",
            b"HTTP/1.0",
            b"HTTP/2.0",
            b"HTTP/0.9",
            b"HTTP/9.9",
            b"http/1.1",
            b"HTTP/1.",
            b"\0",
            b"",
        )
        lines = [b"%b %b HTTP/1.1" % (method, target) for method in methods[:4] for target in targets]
        lines += [b"%b /healthz HTTP/1.1" % method for method in methods]
        lines += [b"GET /healthz %b" % version for version in versions]
        requests = [line + b"\r\nHost: x\r\n\r\n" for line in lines]
        headers = [
            *(
                b": x",
                b"X Y: z",
                b"X: a\0b",
                b"X: \xff",
                b" folded: x",
                b"X: y\r\n folded",
                b"X:y\nZ:a",
                b"\0: x",
            ),
            *(
                b"Connection: close, keep-alive",
                b"Connection: Upgrade\r\nUpgrade: websocket",
                b"Upgrade: h2c",
            ),
            *(b"Authorization: Bearer \xff", b"Content-Type: \0", b"Traceparent: " + b"0" * 9_000, b"Expect: nothing"),
        ]
        requests += [b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + header + b"\r\n\r\n" for header in headers]
        requests += [b"GET /healthz HTTP/1.1\r\n" + header + b"\r\n\r\n" for header in (b"Host: ", b"Host", b"A: b")]
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 100
        await self.send_all([*requests, preface, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500])

    async def cut_at_every_byte(self) -> None:
        """A put that ends after its first byte, after its second, and so on; half of them with a reset."""
        request = self.put(b"Content-Type: application/json")
        for at in range(len(request)):
            with contextlib.suppress(OSError):
                async with self.connection() as (_reader, writer):
                    if at % 2:
                        reset_at_close(writer)
                    writer.write(request[:at])
                    await writer.drain()

    async def send_random_bytes(self, count: int = 150) -> None:
        """Noise, and requests with a few bytes of noise in them."""
        request = self.put(b"Content-Type: application/json", b"Traceparent: x")
        sent = []
        for _ in range(count):
            noise = self.random.randbytes(self.random.randint(1, 300))
            changed = bytearray(request)
            for _ in range(self.random.randint(1, 4)):
                changed[self.random.randrange(len(changed))] = self.random.randrange(256)
            sent += [noise, bytes(changed)]
        await self.send_all(sent, half_close=True, at_once=100)

    async def open_and_drop(self, count: int) -> None:
        """Connections that are opened and dropped at once, some after a few bytes, some by a reset."""
        slots = asyncio.Semaphore(100)

        async def one(number: int) -> None:
            async with slots:
                with contextlib.suppress(OSError):
                    async with self.connection() as (_reader, writer):
                        if number % 3 == 0:
                            writer.write(GET[: number % len(GET)])
                        if number % 2:
                            reset_at_close(writer)

        for first in range(0, count, 1000):
            await asyncio.gather(*map(one, range(first, min(first + 1000, count))))

    async def leave_waiting_pops(self, count: int = 100) -> None:
        """Pops that wait, dropped while they do."""
        pop = b"GET /topics/%b/pop?wait=30 HTTP/1.1\r\nHost: x\r\n\r\n" % self.topic
        await self.send_all([pop] * count, at_once=count)

    async def read_no_responses(self) -> None:
        """Request a lot, and read nothing of it."""
        async with self.connection() as (_reader, writer):
            writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 200)
            await asyncio.sleep(0.5)

    async def stop_halfway(self) -> None:
        """Half of a head, and half of a body, on connections that stay open until the service closes them."""
        put = self.put()
        await asyncio.gather(*(self.send(part, wait_s=5) for part in (GET[:-2], put[:30], put[:-3], GET + put[:-3])))

    async def everything(self, dropped: int) -> None:
        """All of the attacks, at the same time."""
        await asyncio.gather(
            self.send_byte_by_byte(),
            self.close_half(),
            self.pipeline(),
            self.send_large_heads(),
            self.send_bad_chunks(),
            self.send_wrong_lengths(),
            self.send_bad_lines(),
            self.cut_at_every_byte(),
            self.send_random_bytes(),
            self.leave_waiting_pops(),
            self.read_no_responses(),
            self.stop_halfway(),
            self.open_and_drop(dropped),
        )


def reset_at_close(writer: asyncio.StreamWriter) -> None:
    """Let the connection end with a reset, as when a host goes away."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
