"""A store that changes under a running service: rights are taken away, the shard guard is gone or is another's."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.engine.engine import Engine
from deferd.engine.queue import PopRequest
from deferd.store import shard_guard
from deferd.store.connection import connect
from deferd.store.shard_guard import SHARDS_KEY
from tests.integration import store_servers
from tests.integration.engine_driver import TOPIC, job
from tests.integration.store_servers import StoreServer
from tests.waiting import until

REDIS = shutil.which("redis-server")
BACK_WITHIN_S = 5.0
LOOK_EVERY_S = 0.2


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is looked at more often than in use, where it is once a second."""
    monkeypatch.setattr(shard_guard, "LOOK_EVERY_S", LOOK_EVERY_S)


@asynccontextmanager
async def running_engine(server: StoreServer, *, shards: int = 1, user: bool = True) -> AsyncIterator[Engine]:
    """A started engine, by default as a user whose rights the test changes."""
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


def may(server: StoreServer, *rules: str) -> None:
    server.command("ACL", "SETUSER", "shop", *rules)


async def put_until_stored(engine: Engine, job_id: str) -> None:
    async with asyncio.timeout(BACK_WITHIN_S):
        while True:
            try:
                await engine.queue.put(job(job_id, on_conflict="keep"))
            except StoreUnavailable:
                await asyncio.sleep(0.02)
            else:
                return


def scripts_sent(server: StoreServer) -> int:
    stats = server.command("INFO", "commandstats")
    of_evalsha = stats.get("cmdstat_evalsha", {"calls": 0, "rejected_calls": 0})
    return int(of_evalsha["calls"]) + int(of_evalsha["rejected_calls"])


@pytest.mark.parametrize("right", ["time", "hget", "evalsha", "eval evalsha", "zadd", "ping"])
async def test_a_right_that_is_taken_away_is_named_and_nothing_is_sent_until_it_is_back(
    server: StoreServer, right: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_engine(server) as engine:
        await engine.queue.put(job("before", delay=600))
        may(server, *(f"-{command}" for command in right.split()))
        granted = " ".join(f"\\+{command}" for command in sorted(right.split()))
        with pytest.raises(StoreUnavailable, match=rf"ACL SETUSER <user> {granted}$"):
            await (engine.ping() if right == "ping" else engine.queue.put(job("a", delay=600)))

        sent, began_s = scripts_sent(server), time.monotonic()
        for _ in range(200):
            with pytest.raises(StoreUnavailable, match=granted):
                await engine.queue.put(job("a"))
            with pytest.raises(StoreUnavailable, match=granted):
                await engine.ping()
        # Those of the self-test alone.
        assert scripts_sent(server) - sent <= 3 * (1 + (time.monotonic() - began_s) / LOOK_EVERY_S)

        may(server, *(f"+{command}" for command in right.split()))
        await put_until_stored(engine, "after")
        await engine.ping()
    told = [record for record in caplog.records if record.levelno == logging.CRITICAL]
    assert len(told) == 1
    assert "deferd audit --repair" in told[0].getMessage()


@pytest.mark.skipif(REDIS is None, reason="redis-server is not installed")
async def test_a_redis_that_does_not_name_the_right_has_it_found_by_the_self_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_servers, "get_binary_path", lambda: REDIS)
    with StoreServer(tmp_path / "r") as server:
        async with running_engine(server) as engine:
            may(server, "-zadd", "-hdel")
            with pytest.raises(StoreUnavailable, match=r"ACL SETUSER <user> \+hdel \+zadd$"):
                await engine.queue.put(job("a", delay=600))
            may(server, "+zadd", "+hdel")
            await put_until_stored(engine, "b")


async def test_what_calls_cut_short_have_left_is_repaired_and_no_acknowledged_job_is_lost(server: StoreServer) -> None:
    async with running_engine(server) as engine:
        await engine.queue.put_many([job(f"j{number}") for number in range(300)])
        await engine.queue.put_many([job(f"d{number}", delay=600) for number in range(100)])
        popping = [asyncio.create_task(engine.queue.pop(TOPIC, [PopRequest(10, ttr_ms=60_000)])) for _ in range(10)]
        await asyncio.gather(*popping)
        may(server, "-zadd")
        calls = [
            *(engine.queue.pop(TOPIC, [PopRequest(20, ttr_ms=60_000)]) for _ in range(3)),
            *(engine.queue.put(job(f"new{number}", delay=600)) for number in range(3)),
            *(engine.queue.cancel(TOPIC, f"j{number}") for number in range(5)),
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(result) for result in results} == {StoreUnavailable}
        may(server, "+zadd")
        await put_until_stored(engine, "after")

        damaged = await engine.auditor.audit(TOPIC)
        assert not damaged.clean, "no call was cut short, so that nothing was shown"
        await engine.auditor.audit(TOPIC, repair=True)
        assert (await engine.auditor.audit(TOPIC)).clean
        stored = {key.decode() for key in server.command("HKEYS", f"deferd:{{0}}:{TOPIC}:pool")}
        assert {f"j{number}" for number in range(5, 300)} | {f"d{number}" for number in range(100)} <= stored


async def test_a_guard_that_is_gone_is_written_again(server: StoreServer) -> None:
    async with running_engine(server, shards=4, user=False):
        server.command("FLUSHALL")
        await until(lambda: server.command("GET", SHARDS_KEY) == b"4", "the guard is there", within_s=BACK_WITHIN_S)


@pytest.mark.parametrize("other", ["8", "a text", None], ids=["number", "text", "another kind"])
async def test_a_service_with_another_number_than_the_store_refuses_everything_until_they_agree(
    server: StoreServer, other: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_engine(server, shards=4, user=False) as engine:
        await engine.queue.put(job("before", delay=600))
        server.command("DEL", SHARDS_KEY)
        if other is None:
            server.command("HSET", SHARDS_KEY, "a", "b")
        else:
            server.command("SET", SHARDS_KEY, other)
        said = rf"--shards {other or 'deferd:shards, a key of another kind'}, not 4"
        await until(lambda: "Calls are refused" in caplog.text, "it is noticed", within_s=BACK_WITHIN_S)
        with pytest.raises(StoreUnavailable, match=said):
            await engine.ping()
        with pytest.raises(StoreUnavailable, match=said):
            await engine.queue.put(job("a"))
        sent = scripts_sent(server)
        for shard in range(4):
            server.command("PUBLISH", "deferd:due", f"deferd:{{{shard}}}:due")
        for timer in engine.timers:
            with pytest.raises(StoreUnavailable, match=said):
                await timer.run_once()
        assert scripts_sent(server) == sent

        server.command("DEL", SHARDS_KEY)
        await put_until_stored(engine, "after")
    assert [record.levelno for record in caplog.records].count(logging.CRITICAL) == 1


async def test_a_new_connection_is_tested_before_somebody_finds_out(
    server: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_engine(server) as engine:
        may(server, "-hincrby")
        server.command("CLIENT", "KILL", "USER", "shop")
        await until(lambda: "+hincrby" in caplog.text, "the self-test has run", within_s=BACK_WITHIN_S)
        with pytest.raises(StoreUnavailable, match=r"\+hincrby"):
            await engine.ping()
        may(server, "+@all")
        await put_until_stored(engine, "after")
