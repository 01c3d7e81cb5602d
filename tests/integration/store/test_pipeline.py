"""The pipeline: calls run in order, have a deadline, are sent once, and succeed again when the server is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, NoScriptError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.store.connection import Store, connect
from deferd.store.pipeline import NotAfter
from tests.integration.store.store_servers import StoreServer
from tests.ports import free_port
from tests.waiting import BUSY_S, until

TIMEOUT_S = 0.4
SLACK_S = BUSY_S  # 20 time-outs take 8 s
"""Extra time on a busy machine."""

both_transports = pytest.mark.parametrize("own_server", ["tcp", "unix"], indirect=True)


@pytest.fixture
async def own_store(own_server: StoreServer) -> AsyncIterator[Store]:
    store = await connect(own_server.url, timeout_s=TIMEOUT_S)
    yield store
    await store.close()


def connections(server: StoreServer) -> int:
    """How many connections the server has, without that of the tests' own commands."""
    return len(server.command("CLIENT LIST")) - 1


@both_transports
async def test_calls_run_in_order_over_one_connection(own_server: StoreServer, own_store: Store) -> None:
    await own_store.call("SET", "key", "")

    lengths = await asyncio.gather(*(own_store.call("APPEND", "key", f"{n:03d}") for n in range(300)))

    assert lengths == [3 * (n + 1) for n in range(300)]
    assert own_server.command("GET", "key") == "".join(f"{n:03d}" for n in range(300)).encode()
    assert connections(own_server) == 1


async def test_the_first_calls_share_the_connection_that_is_opened_for_them(
    own_server: StoreServer, own_store: Store
) -> None:
    lengths = await asyncio.gather(*(own_store.call("APPEND", "key", "x") for _ in range(50)))

    assert lengths == list(range(1, 51))
    assert connections(own_server) == 1


async def test_calls_keep_their_order_while_the_connection_opens(own_store: Store) -> None:
    calls = []
    for number in range(40):  # before, while and after the connection opens
        calls.append(asyncio.ensure_future(own_store.call("RPUSH", "list", number)))
        await asyncio.sleep(0)
    await asyncio.gather(*calls)

    assert await own_store.call("LRANGE", "list", 0, -1) == [str(number).encode() for number in range(40)]


async def test_a_call_cancelled_while_the_connection_opens_is_not_sent(own_store: Store) -> None:
    cancelled = asyncio.ensure_future(own_store.call("SET", "key", "value"))
    await asyncio.sleep(0)
    cancelled.cancel()

    assert await own_store.call("GET", "key") is None


async def test_large_values_are_read_completely(own_store: Store) -> None:
    value = bytes(range(256)) * 8192
    await own_store.call("SET", "key", value)

    assert await asyncio.gather(*(own_store.call("GET", "key") for _ in range(4))) == [value] * 4


async def test_an_error_is_raised_for_its_call_alone(own_store: Store) -> None:
    commands: list[tuple[str | int, ...]] = [
        ("SET", "key", "text"),
        ("EVALSHA", "0" * 40, 0),
        ("INCR", "key"),
        ("GET", "key"),
    ]

    replies = await asyncio.gather(*(own_store.call(*command) for command in commands), return_exceptions=True)

    assert [b"OK", b"text"] == replies[::3]
    assert [NoScriptError, ResponseError] == [type(reply) for reply in replies[1:3]]


async def test_a_cancelled_call_does_not_take_the_reply_of_another(own_store: Store) -> None:
    await own_store.call("SET", "key", 0)
    calls = [asyncio.ensure_future(own_store.call("INCR", "key")) for _ in range(10)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()

    replies = await asyncio.gather(*calls, return_exceptions=True)

    assert [2, 4, 6, 8, 10] == replies[1::2]  # the cancelled calls were executed too


@both_transports
async def test_calls_to_a_server_that_hangs_fail_in_time_and_are_sent_once(
    own_server: StoreServer, own_store: Store
) -> None:
    await own_store.call("PING")
    own_server.pause()
    began = time.monotonic()

    replies = await asyncio.gather(
        *(own_store.call("EVAL", "return redis.call('INCR', KEYS[1])", 1, f"key{n}") for n in range(200)),
        return_exceptions=True,
    )

    assert {type(reply) for reply in replies} == {RedisTimeoutError}
    assert time.monotonic() - began < TIMEOUT_S + SLACK_S
    own_server.unpause()
    assert set(own_server.command("MGET", *(f"key{n}" for n in range(200)))) <= {b"1", None}
    assert await own_store.call("PING") == b"PONG"


async def test_each_call_has_its_own_deadline(own_store: Store) -> None:
    for _ in range(4):  # together longer than the time-out
        assert await own_store.call("EVAL", "return 1", 0) == 1
        await asyncio.sleep(TIMEOUT_S / 3)
    began = time.monotonic()

    with pytest.raises(RedisTimeoutError):
        await own_store.call("BLPOP", "nothing", 0)

    assert TIMEOUT_S - 0.05 < time.monotonic() - began < TIMEOUT_S + SLACK_S


async def test_a_server_that_does_not_respond_to_the_login_fails_the_call_in_time(own_server: StoreServer) -> None:
    own_server.pause()
    store = await connect(own_server.url.replace("redis://", "redis://user:word@"), timeout_s=TIMEOUT_S)
    began = time.monotonic()

    replies = await asyncio.gather(*(store.call("PING") for _ in range(20)), return_exceptions=True)

    assert {type(reply) for reply in replies} == {RedisTimeoutError}
    assert time.monotonic() - began < TIMEOUT_S + SLACK_S
    own_server.unpause()
    await store.close()


async def test_without_a_server_each_call_fails_at_once() -> None:
    store = await connect(f"redis://127.0.0.1:{free_port()}", timeout_s=TIMEOUT_S)

    for _ in range(2):
        replies = await asyncio.gather(*(store.call("PING") for _ in range(3)), return_exceptions=True)
        assert {type(reply) for reply in replies} == {RedisConnectionError}
    await store.close()


async def test_the_connection_to_a_primary_that_became_a_replica_is_dropped(
    own_server: StoreServer, own_store: Store
) -> None:
    await own_store.call("SET", "key", "before")
    connection_before = await own_store.call("CLIENT", "ID")
    own_server.command("REPLICAOF", "127.0.0.1", free_port())
    with pytest.raises(ReadOnlyError):
        await own_store.call("SET", "key", "after")
    own_server.command("REPLICAOF", "NO", "ONE")

    assert await own_store.call("SET", "key", "after") == b"OK"
    assert await own_store.call("CLIENT", "ID") != connection_before


async def test_an_invalid_reply_closes_the_connection() -> None:
    async def send_invalid_reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()

    server = await asyncio.start_server(send_invalid_reply, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = await connect(f"redis://127.0.0.1:{port}", timeout_s=TIMEOUT_S)

    with pytest.raises((RedisConnectionError, InvalidResponse)):
        await store.call("PING")

    await store.close()
    server.close()


async def test_closing_fails_calls_in_progress(own_server: StoreServer) -> None:
    store = await connect(own_server.url, timeout_s=TIMEOUT_S)
    call = asyncio.ensure_future(store.call("BLPOP", "nothing", 0))
    await until(lambda: own_server.blocked_calls() == 1, "the server has received the call")

    await store.close()

    with pytest.raises(RedisConnectionError, match="shutting down"):
        await call
    await until(lambda: connections(own_server) == 0, "the server has noticed")


async def test_closing_fails_calls_that_may_still_be_executed_when_their_connection_has_timed_out(
    own_server: StoreServer,
) -> None:
    store = await connect(own_server.url, timeout_s=TIMEOUT_S)
    await store.call("PING")
    own_server.pause()
    timed_out = asyncio.ensure_future(store.call("PING"))
    await asyncio.sleep(TIMEOUT_S / 2)
    left = asyncio.ensure_future(store.call("EVAL", "return 1", 0, NotAfter()))
    with pytest.raises(RedisTimeoutError):
        await timed_out
    own_server.unpause()

    assert await store.call("PING") == b"PONG"  # over a new connection
    is_left = not left.done()  # unless the machine is busy
    await store.close()

    with pytest.raises(RedisConnectionError if is_left else RedisTimeoutError):
        await left


async def test_calls_whose_time_is_over_when_their_connection_has_opened_time_out(own_server: StoreServer) -> None:
    store = await connect(own_server.url, timeout_s=TIMEOUT_S)
    calls = [asyncio.ensure_future(store.call("PING")) for _ in range(3)]
    await asyncio.sleep(0)
    time.sleep(TIMEOUT_S)  # noqa: ASYNC251 (as a busy machine does)
    async with asyncio.timeout(BUSY_S):
        replies = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(reply) for reply in replies} <= {RedisTimeoutError, bytes}
    await store.close()


async def test_closing_while_the_connection_opens_fails_waiting_calls(own_server: StoreServer) -> None:
    store = await connect(own_server.url, timeout_s=TIMEOUT_S)
    calls = [asyncio.ensure_future(store.call("PING")) for _ in range(3)]
    await asyncio.sleep(0)

    await store.close()

    replies = await asyncio.gather(*calls, return_exceptions=True)
    assert {RedisConnectionError} == {type(reply) for reply in replies}
    with pytest.raises(RedisConnectionError):
        await store.call("PING")
    assert connections(own_server) == 0


async def test_the_password_is_sent_to_the_server(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "v", requirepass="sesame") as server:
        store = await connect(server.url, timeout_s=TIMEOUT_S)
        assert await store.call("PING") == b"PONG"
        await store.close()
