"""How the library of scripts comes into a store: at the start, and when a call misses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.crc import key_slot

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import PutJob
from deferd.engine.engine import Engine
from deferd.engine.script_library import NAME_PREFIX
from deferd.engine.scripts import library
from deferd.store.connection import connect
from tests.integration.engine.engine_driver import TOPIC, EngineDriver, job, started_engine
from tests.integration.store.store_servers import ClusterSet, StoreServer

OTHER = f"{NAME_PREFIX}0123456789ab"
OWN = library(False).name
SHARDS = 6


def libraries(server: StoreServer) -> set[str]:
    return {entry[b"library_name"].decode() for entry in server.command("FUNCTION", "LIST")}


def load(server: StoreServer, name: str) -> None:
    function = f"redis.register_function('put_{name.removeprefix(NAME_PREFIX)}', function() return 1 end)"
    server.command("FUNCTION", "LOAD", "REPLACE", f"#!lua name={name}\n{function}")


def loads(server: StoreServer) -> int:
    """How often a library was loaded; the self-test tries it without one, which fails."""
    stats = server.command("INFO", "commandstats").get("cmdstat_function|load", {"calls": 0, "failed_calls": 0})
    return int(stats["calls"]) - int(stats["failed_calls"])


@pytest.fixture
def empty(server: StoreServer) -> StoreServer:
    server.command("FUNCTION", "FLUSH")
    return server


async def test_a_start_loads_the_library_and_removes_those_of_other_releases(empty: StoreServer) -> None:
    load(empty, OTHER)
    load(empty, "another_program")
    async with started_engine(empty.url):
        assert libraries(empty) == {OWN, "another_program"}
        loaded = loads(empty)
        async with started_engine(empty.url):
            assert loads(empty) == loaded


async def test_services_of_two_releases_run_on_one_store(empty: StoreServer) -> None:
    """Each start removes the other's library, and each call that misses its own loads it again."""
    async with (
        started_engine(empty.url, movable_clock=True) as earlier,
        started_engine(empty.url) as later,
    ):
        assert libraries(empty) == {OWN}
        for number, engine in enumerate((earlier, later, earlier)):
            assert (await engine.puts.put(job(f"j{number}"))).outcome == "created"
        assert libraries(empty) == {OWN, library(True).name}


async def test_calls_that_miss_the_library_together_load_it_once_and_are_all_done_once(
    empty: StoreServer, driver: EngineDriver
) -> None:
    late_runs: list[None] = []
    driver.engine._scripts._on_late_run = lambda: late_runs.append(None)
    before = loads(empty)
    topics = [f"t{number}" for number in range(50)]
    await asyncio.gather(*(driver.puts.put(PutJob(topic=topic, id="a")) for topic in topics))
    assert loads(empty) == before + 1
    assert len(late_runs) == len(topics)
    tallies = [driver.server.command("HGET", f"deferd:{{0}}:{topic}:tally", "put") for topic in topics]
    assert tallies == [b"1"] * len(topics)


async def test_a_promotion_and_the_pop_behind_it_that_miss_the_library_hand_out_the_job(
    empty: StoreServer,
) -> None:
    async with started_engine(empty.url) as engine:
        popping = asyncio.create_task(engine.dispatcher.pop((TOPIC,), wait_ms=10_000))
        await engine.puts.put(job("a", delay=0.3))
        empty.command("FUNCTION", "FLUSH")
        assert [popped.id for popped in await popping] == ["a"]


async def test_a_store_without_memory_refuses_the_library_and_nothing_is_done(
    empty: StoreServer, driver: EngineDriver
) -> None:
    empty.command("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreUnavailable, match="out of memory"):
            await driver.put()
    finally:
        empty.command("CONFIG", "SET", "maxmemory", "0")
    assert (await driver.puts.put(job())).outcome == "created"


@pytest.fixture
async def on_cluster(tmp_path: Path) -> AsyncIterator[tuple[ClusterSet, Engine]]:
    with ClusterSet(tmp_path / "cluster") as cluster:
        cluster.mark_used(SHARDS)
        store = await connect(cluster.url, timeout_s=5)
        engine = Engine(store, shards=SHARDS)
        yield cluster, engine
        await engine.close()
        await store.close()


@pytest.mark.slow
async def test_a_start_loads_the_library_into_every_primary(on_cluster: tuple[ClusterSet, Engine]) -> None:
    cluster, engine = on_cluster
    await engine._scripts.load()
    assert [libraries(node) for node in cluster.masters] == [{OWN}] * len(cluster.masters)


@pytest.mark.slow
async def test_a_node_that_a_slot_is_being_moved_to_gets_the_library(
    on_cluster: tuple[ClusterSet, Engine], tmp_path: Path
) -> None:
    """The old node redirects calls of keys that it has not got (ASK); then the slot belongs to the new one (MOVED)."""
    cluster, engine = on_cluster
    key = "deferd:{0}:written"
    source = cluster.holder_of(key)
    joined = cluster.add_master(tmp_path / "joined")
    await engine._scripts.load()
    cluster.start_moving([key_slot(key.encode())], source, joined)
    await engine._scripts.write("SET", key, "1")
    assert libraries(joined) == {OWN}
    joined.command("FUNCTION", "FLUSH")
    for node in (joined, source):
        node.command("CLUSTER SETSLOT", key_slot(key.encode()), "NODE", joined.command("CLUSTER MYID"))
    await engine._scripts.write("SET", key, "2")
    assert libraries(joined) == {OWN}
    assert joined.command("GET", key) == b"2"
