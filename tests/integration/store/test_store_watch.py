"""A store that changes under a running service: permissions are revoked, the shard guard is deleted or changed."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import TopicSettings
from deferd.engine import store_watch
from deferd.engine.engine import Engine
from deferd.engine.event_streams import EventStream
from deferd.engine.queue import PopRequest
from deferd.engine.topic_search import TopicSelection
from deferd.store import shard_guard
from deferd.store.connection import connect
from deferd.store.shard_guard import SHARDS_KEY
from tests.integration.engine.engine_driver import TOPIC, job
from tests.integration.store.store_servers import StoreServer
from tests.waiting import until

BACK_WITHIN_S = 5.0
CHECK_INTERVAL_S = 0.2


@pytest.fixture(autouse=True)
def checks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is checked more often than in production, where it is once a second."""
    monkeypatch.setattr(shard_guard, "CHECK_INTERVAL_S", CHECK_INTERVAL_S)


@asynccontextmanager
async def running_engine(server: StoreServer, *, shards: int = 1, user: bool = True) -> AsyncIterator[Engine]:
    """A started engine, by default as a user whose permissions the test changes."""
    server.command("ACL", "SETUSER", "shop", "reset", "on", ">word", "~deferd:*", "&deferd:*", "+@all")
    url = server.url.replace("redis://", "redis://shop:word@") if user else server.url
    store = await connect(url, timeout_s=5)
    engine = Engine(store, shards=shards)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()
        await store.close()


def set_permissions(server: StoreServer, *rules: str) -> None:
    server.command("ACL", "SETUSER", "shop", *rules)


async def put_until_stored(engine: Engine, job_id: str) -> None:
    async with asyncio.timeout(BACK_WITHIN_S):
        while True:
            try:
                await engine.puts.put(job(job_id, on_conflict="keep"))
            except StoreUnavailable:
                await asyncio.sleep(0.02)
            else:
                return


def scripts_sent(server: StoreServer) -> int:
    stats = server.command("INFO", "commandstats")
    of_fcall = stats.get("cmdstat_fcall", {"calls": 0, "rejected_calls": 0})
    return int(of_fcall["calls"]) + int(of_fcall["rejected_calls"])


@pytest.mark.parametrize("commands", ["time", "hget", "fcall", "eval fcall", "zadd", "ping"])
async def test_a_revoked_permission_is_named_and_nothing_is_sent_until_it_is_granted(
    server: StoreServer, commands: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_engine(server) as engine:
        await engine.puts.put(job("before", delay=600))
        set_permissions(server, *(f"-{command}" for command in commands.split()))
        granted = " ".join(f"\\+{command}" for command in sorted(commands.split()))
        with pytest.raises(StoreUnavailable, match=rf"ACL SETUSER <user> {granted}$"):
            await (engine.ping() if commands == "ping" else engine.puts.put(job("a", delay=600)))

        sent, began_s = scripts_sent(server), time.monotonic()
        for _ in range(200):
            with pytest.raises(StoreUnavailable, match=granted):
                await engine.puts.put(job("a"))
            with pytest.raises(StoreUnavailable, match=granted):
                await engine.ping()
        # Those of the self-test alone.
        assert scripts_sent(server) - sent <= 3 * (1 + (time.monotonic() - began_s) / CHECK_INTERVAL_S)

        set_permissions(server, *(f"+{command}" for command in commands.split()))
        await put_until_stored(engine, "after")
        await engine.ping()
    critical = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert len(critical) == 1
    assert "deferd audit --repair" in critical[0].getMessage()


@pytest.mark.usefixtures("older_redis")
async def test_the_self_test_finds_the_permission_that_a_redis_does_not_name(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "r") as server:
        async with running_engine(server) as engine:
            set_permissions(server, "-zadd", "-hdel")
            with pytest.raises(StoreUnavailable, match=r"ACL SETUSER <user> \+hdel \+zadd$"):
                await engine.puts.put(job("a", delay=600))
            set_permissions(server, "+zadd", "+hdel")
            await put_until_stored(engine, "b")


async def test_what_failed_calls_left_is_repaired_and_no_acknowledged_job_is_lost(server: StoreServer) -> None:
    async with running_engine(server) as engine:
        await engine.puts.put_many([job(f"j{number}") for number in range(300)])
        await engine.puts.put_many([job(f"d{number}", delay=600) for number in range(100)])
        popping = [asyncio.create_task(engine.queue.pop(TOPIC, [PopRequest(10, ttr_ms=60_000)])) for _ in range(10)]
        await asyncio.gather(*popping)
        set_permissions(server, "-zadd")
        calls = [
            *(engine.queue.pop(TOPIC, [PopRequest(20, ttr_ms=60_000)]) for _ in range(3)),
            *(engine.puts.put(job(f"new{number}", delay=600)) for number in range(3)),
            *(engine.cancels.cancel(TOPIC, f"j{number}") for number in range(5)),
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {StoreUnavailable}
        set_permissions(server, "+zadd")
        await put_until_stored(engine, "after")

        damaged = await engine.consistency.audit_topic(TOPIC)
        assert not damaged.clean, "no call failed halfway, so nothing was tested"
        await engine.consistency.audit_topic(TOPIC, repair=True)
        assert (await engine.consistency.audit_topic(TOPIC)).clean
        stored = {key.decode() for key in server.command("HKEYS", f"deferd:{{0}}:{TOPIC}:pool")}
        assert {f"j{number}" for number in range(5, 300)} | {f"d{number}" for number in range(100)} <= stored


async def test_a_deleted_guard_is_written_again(server: StoreServer) -> None:
    async with running_engine(server, shards=4, user=False):
        server.command("FLUSHALL")
        await until(
            lambda: server.command("GET", SHARDS_KEY) == b"4 format 1", "the guard exists", within_s=BACK_WITHIN_S
        )


async def test_a_process_that_was_stopped_looks_at_the_store_before_it_calls_it(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_watch, "_STOPPED_S", 0.3)
    store = await connect(server.url, timeout_s=0.5)
    engine = Engine(store)
    try:
        await engine.start()
        await until(lambda: engine._watch._looks_again_by_s < math.inf, "it has looked")
        time.sleep(1.5)  # noqa: ASYNC251 (nothing else runs, as in a stopped process)
        with pytest.raises(StoreUnavailable, match="was stopped for some time, so it looks at the store first"):
            await engine.ping()
        await put_until_stored(engine, "a")
    finally:
        await engine.close()
        await store.close()


async def test_a_process_whose_machine_was_suspended_looks_at_the_store_before_it_calls_it(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then `time.monotonic` does not go on, and no task notices that time has passed."""
    suspended_s = 0.0
    read = time.clock_gettime

    def clock_gettime(clock: int) -> float:
        return read(clock) + (suspended_s if clock == getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC) else 0.0)

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    async with running_engine(server, user=False) as engine:
        await until(lambda: engine._watch._looks_again_by_s < math.inf, "it has looked")
        suspended_s = 3600.0
        with pytest.raises(StoreUnavailable, match="was stopped for some time, so it looks at the store first"):
            await engine.ping()
        await put_until_stored(engine, "a")


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ("8 format 1", "--shards 8, not 4"),
        ("4 format 2 of 9.9.0", "holds data of format 2, but this release .* run deferd 9.9.0 or a later one"),
        ("a text", "has a text in"),
        ("4", "has 4 in its key deferd:shards: set it to `N format 1`"),
        (None, "has a value of another type in"),
    ],
    ids=["number", "format", "text", "number alone", "another type"],
)
async def test_a_service_refuses_all_calls_while_the_guard_has_another_value(
    server: StoreServer, other: str | None, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_engine(server, shards=4, user=False) as engine:
        await engine.puts.put(job("before", delay=600))
        server.command("DEL", SHARDS_KEY)
        if other is None:
            server.command("HSET", SHARDS_KEY, "a", "b")
        else:
            server.command("SET", SHARDS_KEY, other)
        await until(lambda: "Calls are refused" in caplog.text, "the change is logged", within_s=BACK_WITHIN_S)
        with pytest.raises(StoreUnavailable, match=expected):
            await engine.ping()
        with pytest.raises(StoreUnavailable, match=expected):
            await engine.puts.put(job("a"))
        sent = scripts_sent(server)
        for shard in range(4):
            server.command("PUBLISH", "deferd:due", f"deferd:{{{shard}}}:due")
        for timer in engine.timers:
            with pytest.raises(StoreUnavailable, match=expected):
                await timer.run_once()
        assert scripts_sent(server) == sent

        server.command("DEL", SHARDS_KEY)
        if shard_guard.format_in(other or "") == 2:
            server.command("SET", SHARDS_KEY, "4 format 1")  # only somebody who knows that format may write it
        await put_until_stored(engine, "after")
    assert "deferd:shards of the store is right again (4 format 1); calls are sent again" in caplog.text
    assert [record.levelno for record in caplog.records].count(logging.CRITICAL) == 1


async def test_a_process_that_is_too_old_does_not_write_a_guard_that_is_gone(server: StoreServer) -> None:
    """A cluster may lose the guard and keep the data of other nodes."""
    async with running_engine(server, shards=4, user=False) as engine:
        await until(lambda: engine._watch._guard is not None, "it has looked")
        server.command("SET", SHARDS_KEY, "4 format 2 of 9.9.0")
        await until(lambda: engine._watch._mismatch is not None, "it has noticed", within_s=BACK_WITHIN_S)
        server.command("DEL", SHARDS_KEY)
        await asyncio.sleep(5 * CHECK_INTERVAL_S)
        assert server.command("GET", SHARDS_KEY) is None
        with pytest.raises(StoreUnavailable, match="holds data of format 2"):
            await engine.puts.put(job("a"))


async def test_a_format_that_a_failover_has_lost_is_written_again(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_guard, "FORMAT", 2)
    server.command("SET", SHARDS_KEY, "4 format 1")
    async with running_engine(server, shards=4, user=False) as engine:
        await until(lambda: engine._watch._guard == "4 format 1", "it has looked")
        assert server.command("GET", SHARDS_KEY) == b"4 format 1"
        server.command("SET", SHARDS_KEY, "4 format 2 of 9.9.0")
        await until(lambda: engine._watch._guard == "4 format 2 of 9.9.0", "it knows", within_s=BACK_WITHIN_S)
        server.command("SET", SHARDS_KEY, "4 format 1")
        await until(
            lambda: server.command("GET", SHARDS_KEY) == b"4 format 2 of 9.9.0", "it is back", within_s=BACK_WITHIN_S
        )
        server.command("SET", SHARDS_KEY, "8 format 1")  # it is not of this store
        await asyncio.sleep(5 * CHECK_INTERVAL_S)
        assert server.command("GET", SHARDS_KEY) == b"8 format 1"


async def test_pops_and_streams_that_wait_end_when_the_guard_gets_another_value(server: StoreServer) -> None:
    """Else a consumer would wait at a service of the old release while the new one has its jobs."""
    async with running_engine(server, shards=4, user=False) as engine:
        await engine.topics.set("wide", TopicSettings(partitions=8))
        pop, waiting = engine.dispatcher.pop, engine.dispatcher.waiting
        pops = [
            asyncio.create_task(pop([TOPIC], wait_ms=60_000)),
            asyncio.create_task(pop(["wide", TOPIC], wait_ms=60_000)),
            asyncio.create_task(pop([], selection=TopicSelection(["w*"], []), wait_ms=60_000)),
        ]
        await until(lambda: waiting.count == 3 and all(one.was_polled for one in waiting.all()), "they wait")
        stream = EventStream(["*"], None)
        with engine.events.serving(stream):
            server.command("SET", SHARDS_KEY, "4 format 2 of 9.9.0")
            async with asyncio.timeout(BACK_WITHIN_S):
                found = await asyncio.gather(*pops, return_exceptions=True)
            assert all("run deferd 9.9.0 or a later one" in str(error) for error in found)
            assert {type(error) for error in found} == {StoreUnavailable}
            assert stream.is_ended
        with pytest.raises(StoreUnavailable, match=r"run deferd 9\.9\.0 or a later one"):
            engine.admit()


async def test_a_new_connection_is_tested_before_the_next_call(
    server: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_engine(server) as engine:
        set_permissions(server, "-hincrby")
        server.command("CLIENT", "KILL", "USER", "shop")
        await until(lambda: "+hincrby" in caplog.text, "the self-test has run", within_s=BACK_WITHIN_S)
        with pytest.raises(StoreUnavailable, match=r"\+hincrby"):
            await engine.ping()
        set_permissions(server, "+@all")
        await put_until_stored(engine, "after")
