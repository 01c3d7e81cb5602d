"""Single server: calls have a deadline, are sent once, and succeed again when the server is back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from deferd.store import redis_client
from deferd.store.connection import Store, connect
from tests.integration.store.store_servers import StoreServer
from tests.waiting import until

TIMEOUT_S = 1.5
"""Short for the tests that wait for it, but longer than a busy machine stalls."""
SLACK_S = 2.5
"""Extra time on a busy machine."""


CallsOf = Callable[[Store], Callable[..., Awaitable[Any]]]
both_transports = pytest.mark.parametrize("own_server", ["tcp", "unix"], indirect=True)
both_ways = pytest.mark.parametrize(
    "calls_of", [lambda store: store.client.execute_command, lambda store: store.call], ids=["pool", "pipeline"]
)
"""Calls over the connections of the client's pool, and over the one that all calls share."""


@pytest.fixture
async def own_store(own_server: StoreServer) -> AsyncIterator[Store]:
    store = await connect(own_server.url, timeout_s=TIMEOUT_S)
    yield store
    await store.close()


async def first_message(subscription: PubSub) -> Any:
    end = time.monotonic() + 5
    while time.monotonic() < end:
        message = await subscription.get_message(timeout=0.05)
        if message is not None and message["type"] == "message":
            return message["data"]
    return None


async def test_connecting_sends_nothing_to_the_server() -> None:
    store = await connect("redis://127.0.0.1:1", timeout_s=TIMEOUT_S)

    with pytest.raises(RedisConnectionError):
        await store.client.get("key")


@pytest.mark.slow
@both_transports
async def test_calls_to_a_server_that_hangs_fail_in_time_and_are_sent_once(
    own_server: StoreServer, own_store: Store
) -> None:
    await own_store.client.get("a connection is open")
    own_server.pause()
    began = time.monotonic()

    calls = [own_store.client.eval("return redis.call('INCR', KEYS[1])", 1, f"key{n}") for n in range(200)]
    replies = await asyncio.gather(*calls, return_exceptions=True)

    assert {type(reply) for reply in replies} <= {RedisTimeoutError, RedisConnectionError}
    assert time.monotonic() - began < TIMEOUT_S + SLACK_S
    own_server.unpause()
    # The calls that had a connection are executed now; the others were never sent.
    executed = own_server.command("MGET", *(f"key{n}" for n in range(200)))
    assert set(executed) == {b"1", None}


async def test_connections_to_a_server_that_hangs_do_not_pile_up(own_server: StoreServer) -> None:
    store = await connect(own_server.url, timeout_s=0.3)  # no call here gets a reply
    own_server.pause()
    for _ in range(3):
        replies = await asyncio.gather(*(store.client.get("key") for _ in range(50)), return_exceptions=True)
        assert {type(reply) for reply in replies} <= {RedisTimeoutError, RedisConnectionError}
    own_server.unpause()

    own_server.command("PING")
    with own_server.client() as client:
        assert len(client.client_list()) <= redis_client.POOL_SIZE + 1
    await store.close()


@both_ways
async def test_a_call_whose_connection_breaks_is_not_sent_again(
    own_server: StoreServer, own_store: Store, calls_of: CallsOf
) -> None:
    call = asyncio.ensure_future(calls_of(own_store)("BLPOP", "nothing", 0))
    await until(lambda: own_server.blocked_calls() == 1, "the server has received the call")

    own_server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    # If it were sent again, it would block and end with a time-out.
    with pytest.raises(RedisConnectionError):
        await call
    assert await calls_of(own_store)("GET", "key") is None


@both_ways
@both_transports
async def test_calls_work_again_after_a_restart(own_server: StoreServer, own_store: Store, calls_of: CallsOf) -> None:
    call = calls_of(own_store)
    await asyncio.gather(*(call("SET", f"key{n}", n) for n in range(50)))
    own_server.kill()
    with pytest.raises(RedisConnectionError):
        await call("GET", "key1")
    own_server.start()

    replies = await asyncio.gather(*(call("GET", f"key{n}") for n in range(50)))

    assert replies == [None] * 50  # the server is empty, and no old connection caused an error


async def test_a_subscription_receives_what_is_published(own_store: Store) -> None:
    subscription = own_store.pubsub()
    await subscription.subscribe("news")
    await own_store.client.publish("news", "first")

    assert await first_message(subscription) == b"first"
    await subscription.aclose()


async def test_a_quiet_subscription_is_kept_while_the_server_responds(
    own_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "QUIET_S", 0.1)
    subscription = own_store.pubsub()
    await subscription.subscribe("news")
    for _ in range(20):
        await subscription.get_message(timeout=0.05)

    await own_store.client.publish("news", "still here")

    assert await first_message(subscription) == b"still here"
    await subscription.aclose()


@pytest.mark.slow
async def test_a_subscription_detects_a_server_that_hangs(
    own_server: StoreServer, own_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "QUIET_S", 0.1)
    subscription = own_store.pubsub()
    await subscription.subscribe("news")
    await subscription.get_message(timeout=1)
    own_server.pause()
    began = time.monotonic()

    with pytest.raises(RedisConnectionError, match="no message or PONG"):
        await first_message(subscription)

    assert time.monotonic() - began < 0.1 + TIMEOUT_S + SLACK_S
    own_server.unpause()
    await subscription.aclose()


async def test_a_password_is_never_shown(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "v", requirepass="sesame") as server:
        store = await connect(server.url, timeout_s=TIMEOUT_S)
        assert await store.client.set("key", "value")

        assert "sesame" not in repr(store) + store.description + repr(store.client)
        await store.close()
