"""Calls of the shelf while its process responds late, wrongly, in another order, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack

from deferd.contract.errors import StoreUnavailable
from deferd.engine.scripts import request_ending_at
from deferd.shelf import calls
from deferd.shelf import client as client_module
from deferd.shelf.calls import Frames, frame
from deferd.shelf.client import ShelfClient
from tests.waiting import until


class Server:
    """A process of the shelf that replies when the test says so."""

    def __init__(self, socket: Path) -> None:
        self.socket = str(socket)
        self.received: list[tuple[int, Any, Any]] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, self.socket)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        frames = Frames()
        while data := await reader.read(65_536):
            self.received += [(number, verb, msgpack.decode(args)) for number, verb, args in frames.feed(data)]
        writer.close()

    def send(self, data: bytes) -> None:
        self._writers[-1].write(data)

    async def call(self, at: int = 0) -> tuple[int, Any, Any]:
        """The call at this place, once it has come."""
        await until(lambda: len(self.received) > at, "the call has come")
        return self.received[at]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        Path(self.socket).unlink(missing_ok=True)  # noqa: ASYNC240 (a test)
        await asyncio.sleep(0.01)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    server = Server(tmp_path / "s")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[ShelfClient]:
    client = ShelfClient(Path(server.socket))
    yield client
    await client.close()


async def test_replies_may_come_in_any_order(server: Server, client: ShelfClient) -> None:
    first = asyncio.create_task(client.load("t", ["a"]))
    second = asyncio.create_task(client.first_due("t"))
    await server.call(1)
    numbers = {verb: number for number, verb, _ in server.received}
    server.send(frame(numbers["first_due"], True, 7) + frame(numbers["load"], True, 5))
    assert (await second, await first) == (7, 5)


async def test_an_error_has_the_text_of_the_process(server: Server, client: ShelfClient) -> None:
    load = asyncio.create_task(client.load("t", ["a"]))
    number, _, _ = await server.call()
    server.send(frame(number, False, "the shelf's files cannot be used: No space left on device"))
    with pytest.raises(StoreUnavailable, match="No space left"):
        await load


async def test_calls_fail_when_the_process_dies_and_go_on_with_another_one(
    server: Server, client: ShelfClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RESTART_S", 0.1)
    under_way = [asyncio.create_task(client.load("t", ["a"])) for _ in range(3)]
    await server.call(2)
    await server.stop()
    for failed in await asyncio.gather(*under_way, return_exceptions=True):
        assert isinstance(failed, StoreUnavailable)
        assert str(failed) == "the shelf cannot be reached"
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await client.load("t", ["a"])
    await server.start()
    load = asyncio.create_task(client.load("t", ["b"]))
    number, _, args = await server.call(3)
    server.send(frame(number, True, 1))
    assert (await load, args) == (1, ["t", ["b"], [], 0])


async def test_calls_wait_for_the_process_that_follows_one_that_died(server: Server, client: ShelfClient) -> None:
    load = asyncio.create_task(client.load("t", ["a"]))
    await server.call()
    await server.stop()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await load
    load = asyncio.create_task(client.load("t", ["b"]))
    await asyncio.sleep(0.1)
    assert not load.done()
    await server.start()
    number, _, args = await server.call(1)
    server.send(frame(number, True, 1))
    assert (await load, args) == (1, ["t", ["b"], [], 0])


async def test_only_the_first_calls_wait_for_a_process_that_stays_away(
    server: Server, client: ShelfClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "RESTART_S", 0.5)
    await server.stop()
    waits_s = []
    for _ in range(2):
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await client.load("t", ["a"])
        waits_s.append(asyncio.get_running_loop().time() - began_s)
    assert waits_s[0] > 0.5 > waits_s[1]


async def test_calls_that_wait_for_a_process_fail_when_the_client_is_closed(
    server: Server, client: ShelfClient
) -> None:
    await server.stop()
    load = asyncio.create_task(client.load("t", ["a"]))
    await asyncio.sleep(0.05)
    await client.close()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await load


async def test_a_process_that_does_not_respond_is_not_waited_for(
    server: Server, client: ShelfClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = ShelfClient._call.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "within_s", 0.05)
    with pytest.raises(StoreUnavailable, match="did not respond in time") as caught:
        await client.first_due("t")
    monkeypatch.undo()
    assert caught.value.timed_out
    server.send(frame(server.received[0][0], True, 7))  # too late
    load = asyncio.create_task(client.load("t", ["a"]))
    number, _, _ = await server.call(1)
    server.send(frame(number, True, 3))
    assert await load == 3


async def test_a_call_ends_with_its_request(server: Server, client: ShelfClient) -> None:
    with request_ending_at(asyncio.get_running_loop().time() + 0.05), pytest.raises(StoreUnavailable) as caught:
        async with asyncio.timeout(2):
            await client.first_due("t")
    assert caught.value.timed_out


async def test_a_caller_that_is_cancelled_harms_no_other(server: Server, client: ShelfClient) -> None:
    connecting = asyncio.create_task(client.load("t", ["a"]))
    waiting = asyncio.create_task(client.load("t", ["b"]))
    await asyncio.sleep(0)
    connecting.cancel()
    number, _, args = await server.call()
    assert args == ["t", ["b"], [], 0]
    cancelled = asyncio.create_task(client.load("t", ["c"]))
    other, _, _ = await server.call(1)
    cancelled.cancel()
    await asyncio.wait({cancelled, connecting})
    assert cancelled.cancelled()
    assert connecting.cancelled()
    server.send(frame(other, True, 1) + frame(number, True, 2))
    assert await waiting == 2


async def test_a_call_that_is_too_large_fails_alone(
    server: Server, client: ShelfClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "FRAME_BYTES_MAX", 1000)
    with pytest.raises(StoreUnavailable, match="too large"):
        await client.load("t", ["x" * 2000])
    load = asyncio.create_task(client.load("t", ["a"]))
    number, _, _ = await server.call()
    server.send(frame(number, True, 3))
    assert await load == 3


@pytest.mark.parametrize("sent", [b"\xff" * 8, b"\3\0\0\0\xc1\xc1\xc1", frame(1, True, "text")])
async def test_a_reply_that_cannot_be_read_fails_the_call(server: Server, client: ShelfClient, sent: bytes) -> None:
    load = asyncio.create_task(client.load("t", ["a"]))
    await server.call()
    server.send(sent)
    with pytest.raises(StoreUnavailable):
        async with asyncio.timeout(2):
            await load


async def test_a_topic_is_let_go_at_the_end_of_the_block(server: Server, client: ShelfClient) -> None:
    async def hold() -> None:
        async with client.still("t"):
            pass

    block = asyncio.create_task(hold())
    number, verb, args = await server.call()
    assert (verb, args) == ("still", ["t"])
    server.send(frame(number, True, None))
    release, verb, args = await server.call(1)
    assert (verb, args) == ("release", [number])
    server.send(frame(release, False, "the shelf was read too slowly"))
    with pytest.raises(StoreUnavailable, match="too slowly"):
        await block


@pytest.mark.parametrize("is_held", [False, True])
async def test_a_topic_is_let_go_when_its_caller_is_cancelled(
    server: Server, client: ShelfClient, *, is_held: bool
) -> None:
    entered = asyncio.Event()

    async def hold() -> None:
        async with client.still("t"):
            entered.set()
            await asyncio.Event().wait()

    block = asyncio.create_task(hold())
    number, _, _ = await server.call()
    if is_held:
        server.send(frame(number, True, None))
        await entered.wait()
    block.cancel()
    _, verb, args = await server.call(1)
    assert (verb, args) == ("release", [number])
    await asyncio.wait({block})
    assert block.cancelled()


async def test_a_block_fails_if_the_process_died_in_it(server: Server, client: ShelfClient) -> None:
    async def hold() -> None:
        async with client.still("t"):
            await server.stop()
            await asyncio.sleep(0.05)

    block = asyncio.create_task(hold())
    number, _, _ = await server.call()
    server.send(frame(number, True, None))
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await block
