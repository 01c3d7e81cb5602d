"""The HTTP connection of the load generator reads everything that a server or a proxy may send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from deferd.bench.connection import Connection
from deferd.client import NoAnswer
from deferd.client.requests import request_for
from deferd.contract.errors import TopicNotFound
from deferd.contract.operations.topics import PURGE_TOPIC

CONTENT = b'{"removed":3}'
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
CALL = request_for(PURGE_TOPIC, "orders").giving(lambda result: result.removed)


class Server:
    """Sends its next response to each request, as a list of pieces; None closes the connection."""

    def __init__(self, responses: Sequence[list[bytes | None]]) -> None:
        self._responses = list(responses)
        self.requests: list[bytes] = []
        self.connections = 0
        self.url = ""

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self._responses:
                self.requests.append(await reader.readuntil(b"\r\n\r\n"))
                for piece in self._responses.pop(0):
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.005)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(*responses: list[bytes | None]) -> AsyncIterator[tuple[Server, Connection]]:
    script = Server(responses)
    server = await asyncio.start_server(script.talk, "127.0.0.1", 0)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connection = Connection(f"{script.url}/behind/a/proxy", timeout_s=0.5)
    try:
        yield script, connection
    finally:
        connection.close()
        server.close()
        await asyncio.sleep(0)


def whole(content: bytes = CONTENT, *, head: str = "HTTP/1.1 200 OK", more: str = "") -> bytes:
    return f"{head}\r\nContent-Length: {len(content)}\r\n{more}\r\n".encode() + content


async def test_it_sends_the_request_of_the_client_and_keeps_the_connection() -> None:
    async with serving([whole()], [whole()]) as (server, connection):
        assert await connection.send(CALL) == 3
        assert await connection.send(CALL) == 3

    assert server.connections == 1
    assert server.requests[0].startswith(b"DELETE /behind/a/proxy/topics/orders HTTP/1.1\r\nhost: 127.0.0.1:")


@pytest.mark.parametrize(
    "pieces",
    [
        [whole()[:20], whole()[20:60], whole()[60:]],
        [CHUNKED + b"5\r\n" + CONTENT[:5] + b"\r\n8\r", b"\n" + CONTENT[5:] + b"\r\n0\r\n", b"\r\n"],
        [b"HTTP/1.1 200 OK\r\n\r\n" + CONTENT[:5], CONTENT[5:], None],
    ],
    ids=["in pieces", "in chunks", "until the end"],
)
async def test_a_response_is_read_in_every_framing(pieces: list[bytes | None]) -> None:
    async with serving(pieces) as (_, connection):
        assert await connection.send(CALL) == 3


@pytest.mark.parametrize("closing", [whole(more="Connection: close\r\n"), whole(head="HTTP/1.0 200 OK")])
async def test_it_reconnects_when_the_server_closes(closing: bytes) -> None:
    async with serving([closing], [whole()]) as (server, connection):
        assert await connection.send(CALL) == 3
        assert await connection.send(CALL) == 3

    assert server.connections == 2


async def test_an_error_response_raises_the_error_of_the_client() -> None:
    problem = b'{"code":"topic_not_found","detail":"there is no topic","topic":"orders"}'
    refusal = whole(problem, head="HTTP/1.1 404 Not Found")
    async with serving([refusal]) as (_, connection):
        with pytest.raises(TopicNotFound) as refused:
            await connection.send(CALL)

    assert refused.value.topic == "orders"


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([whole()[:-1], None], "closed"),
        ([None], "closed"),
        ([b"SSH-2.0-OpenSSH_9.7\r\n\r\n"], "not HTTP"),
        ([b"HTTP/1.1 200 OK\r\n"], "too long"),
    ],
    ids=["half a response", "no response", "not HTTP", "endless"],
)
async def test_an_unusable_response_is_reported(pieces: list[bytes | None], reason: str) -> None:
    async with serving(pieces, []) as (_, connection):
        with pytest.raises(NoAnswer, match=reason):
            await connection.send(CALL)


async def test_an_unreachable_server_is_reported() -> None:
    with pytest.raises(NoAnswer, match="DELETE /topics/orders: "):
        await Connection("http://127.0.0.1:9", timeout_s=2).send(CALL)
