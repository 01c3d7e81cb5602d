"""Durability `fsync` on a server that may fsync before it replies: when it is granted and when not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from deferd.contract.errors import DurabilityUnavailable, StoreUnavailable
from tests.integration.engine.durable_puts import engine_on, put, stored_ids
from tests.integration.store.store_servers import StoreServer
from tests.waiting import BUSY_S, until, wait_until

SLACK_S = BUSY_S
"""Extra time on a busy machine."""
SLOW_KEY_US = 1000


@pytest.fixture
def fsyncing(tmp_path: Path) -> Iterator[StoreServer]:
    with StoreServer(tmp_path / "v", appendonly="yes", appendfsync="always") as server:
        yield server


def fill(server: StoreServer) -> None:
    """Store enough keys for a rewrite of 3 s, with a delay of SLOW_KEY_US for each."""
    server.command("EVAL", "for n = 1, 3000 do redis.call('SET', 'k' .. n, 'x') end", 0)


def is_rewriting(server: StoreServer) -> bool:
    return bool(server.command("INFO", "persistence")["aof_rewrite_in_progress"])


async def after_the_rewrite(server: StoreServer) -> None:
    await until(lambda: not is_rewriting(server), "the rewrite has ended")


@asynccontextmanager
async def busy(server: StoreServer) -> AsyncIterator[None]:
    """Block the store by a script that does not end."""

    def run_for_ever() -> None:
        with server.client() as client, pytest.raises(ResponseError, match="killed"):
            client.eval("while true do end", 0)

    def is_busy() -> bool:
        with server.client() as client:
            try:
                return not client.ping()
            except ResponseError:
                return True

    script = asyncio.create_task(asyncio.to_thread(run_for_ever))
    await asyncio.to_thread(wait_until, is_busy, 5, "the store is busy")
    try:
        yield
    finally:
        server.command("SCRIPT", "KILL")
        await script


class TestFsync:
    async def test_a_store_that_fsyncs_before_it_replies_gives_fsync_to_every_put(self, fsyncing: StoreServer) -> None:
        async with engine_on(fsyncing.url) as engine:
            assert await put(engine, "a", "fsync") == "fsync"  # the first call of all
            assert await put(engine, "b") == "fsync"
            assert await put(engine, "c", "memory") == "fsync"

    @pytest.mark.parametrize(
        ("config", "why"),
        [
            ({}, "appendonly is no"),
            ({"appendonly": "yes", "appendfsync": "everysec"}, "appendfsync is everysec"),
            ({"appendonly": "yes", "appendfsync": "no"}, "appendfsync is no"),
            (
                {"appendonly": "yes", "appendfsync": "always", "no_appendfsync_on_rewrite": "yes"},
                "no-appendfsync-on-rewrite is yes",
            ),
        ],
        ids=["no-file", "everysec", "never", "not-while-rewriting"],
    )
    async def test_a_store_that_does_not_fsync_is_reported_and_nothing_is_stored(
        self, tmp_path: Path, config: dict[str, Any], why: str
    ) -> None:
        with StoreServer(tmp_path / "v", **config) as server:
            async with engine_on(server.url) as engine:
                with pytest.raises(DurabilityUnavailable, match=why) as refused:
                    await put(engine, "a", "fsync")
                assert (refused.value.durability, refused.value.available) == ("fsync", ["memory", "replicated:N"])
                assert stored_ids(server) == set()
                assert await put(engine, "b") == "memory"

    async def test_a_change_of_the_stores_configuration_is_noticed(self, fsyncing: StoreServer) -> None:
        async with engine_on(fsyncing.url) as engine:
            assert await put(engine, "a") == "fsync"
            fsyncing.command("CONFIG", "SET", "appendfsync", "everysec")
            async with asyncio.timeout(1 + SLACK_S):  # a result is valid for a second
                while await put(engine, "b", on_conflict="keep") == "fsync":
                    await asyncio.sleep(0.01)
            with pytest.raises(DurabilityUnavailable):
                await put(engine, "c", "fsync")
            fsyncing.command("CONFIG", "SET", "appendfsync", "always")
            assert await put(engine, "c", "fsync") == "fsync"
            assert "c" in stored_ids(fsyncing)

    async def test_a_result_of_one_connection_does_not_count_for_the_next(self, fsyncing: StoreServer) -> None:
        async with engine_on(fsyncing.url) as engine:
            assert await put(engine, "a") == "fsync"
            fsyncing.command("CONFIG", "SET", "appendfsync", "everysec")
            fsyncing.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            while True:
                try:
                    assert await put(engine, "b", on_conflict="keep") == "memory"
                    break
                except StoreUnavailable:  # the broken connection had not been noticed yet
                    continue

    async def test_a_store_that_refuses_config_get_counts_as_memory(self, fsyncing: StoreServer) -> None:
        fsyncing.command("ACL", "SETUSER", "shop", "on", ">word", "~*", "&*", "+@all", "-config")
        async with engine_on(fsyncing.url.replace("redis://", "redis://shop:word@")) as engine:
            assert await put(engine, "a") == "memory"
            with pytest.raises(DurabilityUnavailable, match="CONFIG GET"):
                await put(engine, "b", "fsync")

    @pytest.mark.slow
    @pytest.mark.parametrize("had_one_before", [False, True], ids=["first-file", "old-file"])
    async def test_a_file_that_was_just_switched_on_counts_after_its_first_rewrite(
        self, tmp_path: Path, *, had_one_before: bool
    ) -> None:
        is_on = "yes" if had_one_before else "no"
        with StoreServer(
            tmp_path / "v", appendonly=is_on, appendfsync="always", rdb_key_save_delay=SLOW_KEY_US
        ) as server:
            if had_one_before:
                server.command("SET", "old", "x")
                server.command("BGREWRITEAOF")
                await after_the_rewrite(server)
                server.command("CONFIG", "SET", "appendonly", "no")
            fill(server)
            server.command("CONFIG", "SET", "appendonly", "yes")
            async with engine_on(server.url) as engine:
                with pytest.raises(StoreUnavailable, match=r"is rewriting its append-only file.*nothing was stored"):
                    await put(engine, "a", "fsync")
                assert stored_ids(server) == set()
                assert await put(engine, "a") == "memory"
                assert is_rewriting(server)
                await after_the_rewrite(server)
                assert await put(engine, "b", "fsync") == "fsync"
            server.command("CONFIG", "REWRITE")
            server.kill()
            server.start()
            assert "b" in stored_ids(server)

    @pytest.mark.slow
    async def test_a_later_rewrite_changes_nothing(self, tmp_path: Path) -> None:
        config: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always", "rdb_key_save_delay": SLOW_KEY_US}
        with StoreServer(tmp_path / "v", **config) as server:
            fill(server)
            async with engine_on(server.url) as engine, engine_on(server.url, embedded=True) as embedded:
                assert await put(engine, "a", "fsync") == "fsync"
                server.command("BGREWRITEAOF")
                end = time.monotonic() + 1.2  # longer than a result is valid
                while time.monotonic() < end:
                    assert await put(engine, "b", "fsync", on_conflict="keep") == "fsync"
                assert await put(embedded, "c", "fsync") == "fsync"
                assert is_rewriting(server)

    async def test_a_store_that_refused_config_get_is_probed_again(self, fsyncing: StoreServer) -> None:
        fsyncing.command("ACL", "SETUSER", "shop", "on", ">word", "~*", "&*", "+@all", "-config")
        async with engine_on(fsyncing.url.replace("redis://", "redis://shop:word@")) as engine:
            assert await put(engine, "a") == "memory"
            fsyncing.command("ACL", "SETUSER", "shop", "+config|get")
            assert await put(engine, "b", "fsync") == "fsync"
            fsyncing.command("CONFIG", "SET", "appendfsync", "no")
            async with asyncio.timeout(1 + SLACK_S):
                while await put(engine, "c", on_conflict="keep") == "fsync":
                    await asyncio.sleep(0.01)

    @pytest.mark.slow
    async def test_a_store_that_was_busy_is_probed_again_soon(self, tmp_path: Path) -> None:
        config: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always", "lua_time_limit": 20}
        with StoreServer(tmp_path / "v", **config) as server:
            async with engine_on(server.url) as engine:
                assert await put(engine, "a") == "fsync"
                async with busy(server):
                    end = time.monotonic() + 1.2  # so that it is probed meanwhile
                    while time.monotonic() < end:
                        with pytest.raises(StoreUnavailable, match="BUSY"):
                            await put(engine, "b", "fsync")
                async with asyncio.timeout(1 + SLACK_S):
                    while await put(engine, "b", on_conflict="keep") != "fsync":
                        await asyncio.sleep(0.01)

    async def test_a_store_is_not_probed_for_each_put(self, fsyncing: StoreServer) -> None:
        async with engine_on(fsyncing.url) as engine:
            await put(engine, "a", "fsync")
            began = time.monotonic()
            before = fsyncing.command("INFO", "commandstats")
            for number in range(100):
                assert await put(engine, f"b{number}", "fsync") == "fsync"
            after = fsyncing.command("INFO", "commandstats")
            calls = {name: after[name]["calls"] - before[name]["calls"] for name in after if name in before}
            probes = calls["cmdstat_config|get"]
            assert probes <= 1 + time.monotonic() - began
            assert calls["cmdstat_info"] == probes + 1  # the one of this test
            assert calls["cmdstat_fcall"] == 100

    @pytest.mark.usefixtures("older_redis")
    async def test_an_older_redis_that_was_a_replica_counts_after_its_rewrite(self, tmp_path: Path) -> None:
        config: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always", "rdb_key_save_delay": SLOW_KEY_US}
        with StoreServer(tmp_path / "a", repl_diskless_sync_delay=0) as primary:
            fill(primary)
            with StoreServer(tmp_path / "b", replicaof=f"127.0.0.1 {primary.port}", **config) as replica:
                wait_until(lambda: is_rewriting(replica), 10, "the replica is rewriting its file")
                replica.command("REPLICAOF", "NO", "ONE")
                async with engine_on(replica.url) as engine:
                    with pytest.raises(StoreUnavailable, match="is rewriting its append-only file"):
                        await put(engine, "a", "fsync")
                    assert stored_ids(replica) == set()
                    assert is_rewriting(replica)
