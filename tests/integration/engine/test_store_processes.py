"""Which processes use a store, and when its format is raised. This process is of the next release."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deferd.contract.errors import NotYetAvailable, StoreUnavailable
from deferd.engine import store_processes
from deferd.engine.engine import Engine
from deferd.store import shard_guard
from deferd.store.connection import connect
from deferd.store.shard_guard import PROCESSES_KEY, SHARDS_KEY
from deferd.version import VERSION
from tests.integration.engine.engine_driver import started_engine
from tests.integration.store.store_servers import StoreServer
from tests.waiting import until

PREVIOUS, NEXT = shard_guard.FORMAT, shard_guard.FORMAT + 1


@pytest.fixture
def next_release(monkeypatch: pytest.MonkeyPatch, server: StoreServer) -> None:
    """The engines of this test know the next format, and the store has the previous one."""
    server.command("SET", SHARDS_KEY, f"1 format {PREVIOUS}")
    monkeypatch.setattr(shard_guard, "FORMAT", NEXT)
    monkeypatch.setattr(store_processes, "GRACE_MS", 300)
    monkeypatch.setattr(store_processes, "ANNOUNCE_EVERY_S", 0.05)


@asynccontextmanager
async def engine_on(server: StoreServer) -> AsyncIterator[Engine]:
    async with started_engine(server.url) as engine:
        yield engine


def format_of(server: StoreServer) -> str:
    guard: bytes = server.command("GET", SHARDS_KEY)
    return guard.decode()


def announce_previous(server: StoreServer, process: str = "old", seconds_ago: float = 0) -> None:
    """Note a process of the previous release, as it does itself."""
    shown = '{"release":"0.0.9","host":"shop-1","pid":7,"since":1,"unknown":[]}'
    at_ms = round((time.time() - seconds_ago) * 1000)
    server.command("HSET", PROCESSES_KEY, process, f"{at_ms} {PREVIOUS} {shown}")


async def test_a_process_is_listed_while_it_runs(server: StoreServer) -> None:
    async with engine_on(server) as engine, engine_on(server):
        found = await engine.processes.read()
        assert len(found) == 2
        assert {one.newest_format for one in found} == {PREVIOUS}
        assert all(abs(one.seen_ms - time.time() * 1000) < 10_000 for one in found)
    assert server.command("HLEN", PROCESSES_KEY) == 0


async def test_the_format_is_raised_when_all_processes_have_known_it_for_a_while(
    server: StoreServer, next_release: None
) -> None:
    async with engine_on(server) as engine, engine_on(server) as other:
        assert format_of(server) == f"1 format {PREVIOUS}"
        with pytest.raises(NotYetAvailable, match=f"priority needs format {NEXT} .* which has format {PREVIOUS}$"):
            engine.processes.require(NEXT, "priority")
        await until(lambda: format_of(server) == f"1 format {NEXT} of {VERSION}", "it was raised")
        await until(lambda: engine.processes.format == other.processes.format == NEXT, "both know")
        engine.processes.require(NEXT, "priority")


async def test_the_format_stays_while_a_process_does_not_know_the_next_one(
    server: StoreServer, next_release: None
) -> None:
    async with engine_on(server) as engine:
        for _ in range(12):  # twice as long as all must have known it
            announce_previous(server)
            await asyncio.sleep(0.05)
        assert format_of(server) == f"1 format {PREVIOUS}"
        with pytest.raises(NotYetAvailable, match=r"; process 7 on shop-1, deferd 0\.0\.9 does not know it$"):
            engine.processes.require(NEXT, "priority")
        assert [one.release for one in await engine.processes.upgrade()] == ["0.0.9", VERSION]
        assert engine.processes.format == NEXT
        engine.processes.require(NEXT, "priority")


async def test_an_error_names_some_of_many_processes(server: StoreServer, next_release: None) -> None:
    async with engine_on(server) as engine:
        for number in range(300):
            announce_previous(server, f"old-{number}")
        await engine.processes.read()
        with pytest.raises(NotYetAvailable, match=r"; 297 more do not$") as error:
            engine.processes.require(NEXT, "priority")
        assert str(error.value).count("process 7 on shop-1") == 3


async def test_a_process_that_knows_no_newer_format_says_that_it_cannot_finish_an_upgrade(server: StoreServer) -> None:
    server.command("SET", SHARDS_KEY, f"1 format {PREVIOUS}")
    async with engine_on(server) as engine:
        shown = '{"release":"0.9.0","host":"shop-2","pid":8,"since":1}'
        server.command("HSET", PROCESSES_KEY, "later", f"{round(time.time() * 1000)} {NEXT} {shown}")
        expected = rf"no format .* above {PREVIOUS}; .* such as process 8 on shop-2, deferd 0\.9\.0$"
        with pytest.raises(NotYetAvailable, match=expected):
            await engine.processes.upgrade()
        assert format_of(server) == f"1 format {PREVIOUS}"


async def test_a_process_that_says_nothing_counts_for_a_minute(server: StoreServer, next_release: None) -> None:
    async with engine_on(server) as engine:
        announce_previous(server, "silent", seconds_ago=50)
        assert {one.id for one in await engine.processes.read()} > {"silent"}
        for seconds_ago in (70, -70):  # the clock was put back
            announce_previous(server, "silent", seconds_ago)
            assert "silent" not in {one.id for one in await engine.processes.read()}
        assert server.command("HEXISTS", PROCESSES_KEY, "silent") == 0


async def test_a_process_that_does_not_know_the_format_refuses_calls_and_names_the_release(
    server: StoreServer,
) -> None:
    async with engine_on(server) as engine:
        server.command("SET", SHARDS_KEY, f"1 format {NEXT} of 9.9.0")
        with pytest.raises(StoreUnavailable, match=rf"knows none above {PREVIOUS}: run deferd 9\.9\.0 or a later one"):
            await engine.processes.announce()
        assert engine.processes.format == PREVIOUS


async def test_a_process_starts_while_the_store_takes_no_writes_and_is_listed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_processes, "ANNOUNCE_EVERY_S", 0.05)
    with StoreServer(tmp_path / "store", min_replicas_to_write=1) as server:
        async with engine_on(server):
            assert server.command("EXISTS", PROCESSES_KEY) == 0
            server.command("CONFIG", "SET", "min-replicas-to-write", 0)
            await until(lambda: server.command("HLEN", PROCESSES_KEY) == 1, "it is listed")


async def test_a_process_does_not_start_on_a_store_with_a_format_that_it_does_not_know(server: StoreServer) -> None:
    server.command("SET", SHARDS_KEY, f"1 format {NEXT} of 9.9.0")
    with pytest.raises(StoreUnavailable, match=rf"knows none above {PREVIOUS}: run deferd 9\.9\.0 or a later one"):
        async with engine_on(server):
            pass


async def test_what_another_program_has_written_there_stops_no_process(
    server: StoreServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine_on(server) as engine:
        server.command("DEL", PROCESSES_KEY)
        server.command("SET", PROCESSES_KEY, "a text")
        assert len(await engine.processes.read()) == 1
        announce_previous(server)
        at = f"{round(time.time() * 1000)} 1 "
        server.command("HSET", PROCESSES_KEY, "junk", "no number", "broken", at + "{")
        for name, since in (("late", 10**18), ("early", -1)):  # no response can have such an instant
            server.command("HSET", PROCESSES_KEY, name, f'{at}{{"release":"1","host":"a","pid":7,"since":{since}}}')
        latin_1 = b'{"release":"\xe9","host":"a","pid":7,"since":1}'
        server.command("HSET", PROCESSES_KEY, "not UTF-8", at.encode() + latin_1)
        assert [one.release for one in await engine.processes.read()] == ["0.0.9", VERSION]
        server.command("DEL", SHARDS_KEY)
        server.command("HSET", SHARDS_KEY, "a", "b")
        assert len(await engine.processes.read()) == 2
    assert "could not be announced" not in caplog.text


async def test_a_store_that_is_being_filled_keeps_its_format(server: StoreServer, next_release: None) -> None:
    store = await connect(server.url, timeout_s=5)
    try:
        engine = Engine(store)
        server.command("SET", SHARDS_KEY, f"-1 format {PREVIOUS}")
        await engine.processes.upgrade()
        assert format_of(server) == f"-1 format {PREVIOUS}"
    finally:
        await store.close()
