"""A call that was given up does nothing when it comes to the store later: held up on its way, or by a hanging store."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

import deferd
from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import CancelItem, PutJob
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.engine.record import ANY_RECEIPT
from deferd.engine.scripts import Scripts, library, request_ending_at
from deferd.store.connection import Store, connect
from deferd.store.pipeline import NotAfter
from tests.held_network import HeldNetwork
from tests.in_thread import in_thread
from tests.integration.engine.engine_driver import KEY, TOPIC, EngineDriver
from tests.integration.store.store_servers import StoreServer

TIMEOUT_S = 0.4


def changes(server: StoreServer) -> int:
    """How many changes the server has made to its data."""
    made: int = server.command("INFO", "persistence")["rdb_changes_since_last_save"]
    return made


def refusals(server: StoreServer) -> int:
    """How many calls were too late."""
    count: int = server.command("INFO", "errorstats").get("errorstat_TOOLATE", {"count": 0})["count"]
    return count


@pytest.mark.parametrize("movable_clock", [False, True])
def test_every_script_does_nothing_from_its_instant_on(server: StoreServer, movable_clock: bool) -> None:
    server.command("SET", "deferd:{0}:clock", -3_600_000)  # a moved clock is not asked
    server.command("FUNCTION", "LOAD", "REPLACE", library(movable_clock).text)
    before = changes(server)
    seconds, microseconds = server.command("TIME")
    now_ms = seconds * 1000 + microseconds // 1000
    for verb, function in library(movable_clock).functions.items():
        with pytest.raises(ResponseError, match=r"^TOOLATE [0-9]{13}$") as refusal:
            server.command("FCALL", function, 2, f"{KEY}:a", f"{KEY}:b", TOPIC, "1", now_ms)
        assert now_ms <= int(str(refusal.value).split()[1]) < now_ms + 60_000, verb
    assert changes(server) == before


async def test_a_script_runs_until_its_instant_and_does_not_see_it(server: StoreServer) -> None:
    seconds, _ = server.command("TIME")
    server.command("FUNCTION", "LOAD", "REPLACE", library(False).text)
    function = library(False).functions["write"]
    assert server.command("FCALL", function, 1, "key", "RPUSH", "a", "b", (seconds + 60) * 1000) == 2
    assert server.command("LRANGE", "key", 0, -1) == [b"a", b"b"]


def test_commands_outside_scripts_only_read(server: StoreServer) -> None:
    named: set[str] = set()
    for path in Path(deferd.__file__).parent.joinpath("engine").rglob("*.py"):
        named.update(re.findall(r"""\bcommand\(\s*"([A-Z]+)\"""", path.read_text()))
    assert len(named) > 10
    info = server.command("COMMAND", "INFO", *sorted(named - {"PING", "INFO"}))
    assert [] == [name for name, about in info.items() if "readonly" not in about["flags"]]


@pytest.fixture
async def network(server: StoreServer) -> AsyncIterator[HeldNetwork]:
    with in_thread(HeldNetwork("127.0.0.1", server.port)) as network:
        yield network


@pytest.fixture
async def behind(network: HeldNetwork, server: StoreServer) -> AsyncIterator[EngineDriver]:
    store = await connect(f"redis://127.0.0.1:{network.port}", timeout_s=TIMEOUT_S)
    engine = Engine(store)
    yield EngineDriver(engine, server)
    await engine.close()
    await store.close()


async def test_calls_that_were_held_up_do_nothing_behind_those_made_in_their_place(
    network: HeldNetwork, behind: EngineDriver
) -> None:
    queue, puts, cancels = behind.queue, behind.puts, behind.cancels

    def in_topic(topic: str, **fields: Any) -> PutJob:
        return PutJob.model_validate({"topic": topic, "id": "a", **fields})

    await puts.put(in_topic("cancelled"))
    await cancels.cancel_many("cancelled", [CancelItem(id="a")])  # the store must know all scripts that come late
    await behind.engine._scripts.write("UNLINK", "deferd:{0}:written")
    await puts.put(in_topic("cancelled", delay=60))
    await puts.put(in_topic("replaced", body=0, delay=60))
    network.hold()
    given_up = await asyncio.gather(
        puts.put(in_topic("put-and-cancelled")),
        puts.put(in_topic("put-and-finished")),
        cancels.cancel_many("cancelled", [CancelItem(id="a")]),
        puts.put(in_topic("replaced", body=1, delay=60, on_conflict="replace")),
        behind.engine._scripts.write("SET", "deferd:{0}:written", "late"),
        return_exceptions=True,
    )
    assert {type(one) for one in given_up} == {StoreUnavailable}

    assert (await puts.put(in_topic("put-and-cancelled"))).outcome == "created"
    await cancels.cancel("put-and-cancelled", "a")
    assert (await puts.put(in_topic("put-and-finished"))).outcome == "created"
    popped = await queue.pop("put-and-finished", [PopRequest(1)])
    await queue.finish("put-and-finished", popped.jobs[0][0].id, ANY_RECEIPT)
    await cancels.cancel("cancelled", "a")
    assert (await puts.put(in_topic("cancelled", delay=60))).outcome == "created"
    assert (await puts.put(in_topic("replaced", body=2, delay=60, on_conflict="replace"))).outcome == "replaced"
    late = await network.deliver()

    assert late.count(b"FCALL\r\n") >= len(given_up)
    assert [] == (await queue.pop("put-and-cancelled", [PopRequest(1)])).jobs[0]
    assert [] == (await queue.pop("put-and-finished", [PopRequest(1)])).jobs[0]
    assert (await queue.get("cancelled", "a")).id == "a"
    assert (await queue.get("replaced", "a")).body == b"2"
    assert behind.server.command("EXISTS", "deferd:{0}:written") == 0


async def test_a_request_that_has_ended_fails_no_call_that_others_share(driver: EngineDriver) -> None:
    engine = driver.engine
    with request_ending_at(asyncio.get_running_loop().time()):
        assert await engine.dispatcher.pop([TOPIC], wait_ms=60_000) == []
        assert (await engine.system.read()).unreadable == set()
    assert not engine.dispatcher._outages.is_topic_down(TOPIC)


@pytest.fixture
async def impatient(server: StoreServer) -> AsyncIterator[Store]:
    store = await connect(server.url, timeout_s=TIMEOUT_S)
    yield store
    await store.close()


async def test_no_call_is_executed_after_its_error(server: StoreServer, impatient: Store) -> None:
    """Also not those that were sent shortly before another one timed out, and so closed the connection."""
    scripts = Scripts(impatient)
    await scripts.write("SET", "deferd:{0}:a", 0)

    async def fails_late(key: str) -> float:
        began_s = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await scripts.write("SET", key, 1)
        return time.monotonic() - began_s

    server.pause()
    try:
        first = asyncio.create_task(fails_late("deferd:{0}:a"))
        await asyncio.sleep(TIMEOUT_S / 2)
        assert await fails_late("deferd:{0}:b") > TIMEOUT_S * 0.9
        await first
    finally:
        server.unpause()

    await scripts.write("SET", "deferd:{0}:c", 1)
    assert server.command("MGET", "deferd:{0}:a", "deferd:{0}:b", "deferd:{0}:c") == [b"0", None, b"1"]


class TestClock:
    @pytest.fixture
    def scripts(self, store: Store) -> Scripts:
        return Scripts(store)

    async def test_a_call_is_sent_again_when_the_stores_clock_was_set_forward(
        self, server: StoreServer, store: Store
    ) -> None:
        run_late: list[str] = []
        scripts = Scripts(store, on_late_run=lambda: run_late.append("behind later calls"))
        await scripts.write("SET", "key", 0)
        before = refusals(server)
        clock = store.calls_of("key").pipeline._open._clock  # type: ignore[union-attr]
        clock._at_zero_ms -= 3_600_000  # as if the store's clock had been an hour behind at the last reading

        assert await scripts.write("INCR", "key") == 1

        assert run_late == ["behind later calls"]
        assert await scripts.write("INCR", "key") == 2
        assert refusals(server) == before + 1
        assert len(run_late) == 1

    async def test_what_is_too_late_again_is_an_error_that_says_so(self, server: StoreServer, scripts: Scripts) -> None:
        loop = asyncio.get_running_loop()
        with request_ending_at(loop.time()), pytest.raises(StoreUnavailable, match="time-out; nothing was done"):
            await scripts.write("SET", "key", 1)
        assert server.command("EXISTS", "key") == 0

    async def test_a_caller_may_give_up_earlier(self, server: StoreServer, scripts: Scripts) -> None:
        await scripts.write("SET", "key", 0)
        loop = asyncio.get_running_loop()
        with request_ending_at(loop.time() + 60):
            assert await scripts.write("SET", "key", 1) == b"OK"

    async def test_it_is_never_ahead_of_the_stores_own(self, server: StoreServer, store: Store) -> None:
        """Also long after a reading. On one host both clocks can be compared."""
        loop = asyncio.get_running_loop()
        await store.call("PING")
        clock = store.calls_of("key").pipeline._open._clock  # type: ignore[union-attr]
        echo = "return {ARGV[1], unpack(redis.call('TIME'))}"
        for _ in range(50):
            sent_s = loop.time()
            known_ms, seconds, microseconds = await store.call("EVAL", echo, 0, NotAfter(sent_s))
            assert int(known_ms) <= int(seconds) * 1000 + int(microseconds) / 1000
        now_ms = clock.at(loop.time())
        assert time.time() * 1000 - 1000 < now_ms <= time.time() * 1000

    async def test_without_the_permission_to_read_it_no_script_is_sent_until_it_is_back(
        self, server: StoreServer, store: Store, scripts: Scripts
    ) -> None:
        server.command("ACL", "SETUSER", "default", "-time")
        try:
            assert await store.call("PING") == b"PONG"
            with pytest.raises(StoreUnavailable, match=r"lacks the permissions \+time"):
                await scripts.write("SET", "key", 1)
            assert await store.call("PING") == b"PONG"  # it tries to read the clock, too
        finally:
            server.command("ACL", "SETUSER", "default", "+time")

        assert await store.call("PING") == b"PONG"
        assert await scripts.write("SET", "key", 1) == b"OK"
