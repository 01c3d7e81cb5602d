"""`fsync` on a server that says of itself that it fsyncs before it answers: when it is believed, and when not."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

from deferd.contract.errors import DurabilityUnavailable, StoreUnavailable
from tests.integration import store_servers
from tests.integration.durable_puts import engine_on, put, stored_ids
from tests.integration.store_servers import StoreServer
from tests.waiting import until, wait_until

SLACK_S = 0.7
"""What a loaded machine may add."""
SLOW_KEY_US = 1000
DEBIAN_REDIS = shutil.which("redis-server")


@pytest.fixture
def fsyncing(tmp_path: Path) -> Iterator[StoreServer]:
    with StoreServer(tmp_path / "v", appendonly="yes", appendfsync="always") as server:
        yield server


def fill(server: StoreServer) -> None:
    """Store enough keys for a rewrite of 3 s, with a delay of SLOW_KEY_US for each."""
    server.command("EVAL", "for n = 1, 3000 do redis.call('SET', 'k' .. n, 'x') end", 0)


def rewrites(server: StoreServer) -> bool:
    return bool(server.command("INFO", "persistence")["aof_rewrite_in_progress"])


async def after_the_rewrite(server: StoreServer) -> None:
    await until(lambda: not rewrites(server), "the store has rewritten its file")


@asynccontextmanager
async def busy(server: StoreServer) -> AsyncIterator[None]:
    """A script of somebody else's keeps the store from working."""

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
    async def test_a_store_that_fsyncs_before_it_answers_gives_it_to_every_put(self, fsyncing: StoreServer) -> None:
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
    async def test_a_store_that_does_not_is_told_of_and_nothing_is_stored(
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
            async with asyncio.timeout(1 + SLACK_S):  # for a second an answer of the store is trusted
                while await put(engine, "b", on_conflict="keep") == "fsync":
                    await asyncio.sleep(0.01)
            with pytest.raises(DurabilityUnavailable):
                await put(engine, "c", "fsync")
            fsyncing.command("CONFIG", "SET", "appendfsync", "always")
            assert await put(engine, "c", "fsync") == "fsync"
            assert "c" in stored_ids(fsyncing)

    async def test_what_one_connection_learned_is_not_believed_of_the_next(self, fsyncing: StoreServer) -> None:
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

    async def test_a_store_that_does_not_tell_is_not_believed_to(self, fsyncing: StoreServer) -> None:
        fsyncing.command("ACL", "SETUSER", "shop", "on", ">word", "~*", "&*", "+@all", "-config")
        async with engine_on(fsyncing.url.replace("redis://", "redis://shop:word@")) as engine:
            assert await put(engine, "a") == "memory"
            with pytest.raises(DurabilityUnavailable, match="CONFIG GET"):
                await put(engine, "b", "fsync")

    @pytest.mark.slow
    @pytest.mark.parametrize("had_one_before", [False, True], ids=["first-file", "old-file"])
    async def test_a_store_whose_file_was_just_switched_on_is_believed_after_its_first_rewrite(
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
                with pytest.raises(StoreUnavailable, match=r"rewrites its append-only file.*nothing was stored"):
                    await put(engine, "a", "fsync")
                assert stored_ids(server) == set()
                assert await put(engine, "a") == "memory"
                assert rewrites(server)
                await after_the_rewrite(server)
                assert await put(engine, "b", "fsync") == "fsync"
            server.command("CONFIG", "REWRITE")
            server.kill()
            server.start()
            assert "b" in stored_ids(server)

    async def test_a_rewrite_of_a_file_that_counts_changes_nothing(self, tmp_path: Path) -> None:
        config: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always", "rdb_key_save_delay": SLOW_KEY_US}
        with StoreServer(tmp_path / "v", **config) as server:
            fill(server)
            async with engine_on(server.url) as engine, engine_on(server.url, embedded=True) as embedded:
                assert await put(engine, "a", "fsync") == "fsync"
                server.command("BGREWRITEAOF")
                end = time.monotonic() + 1.2  # past the second for which an answer of the store is trusted
                while time.monotonic() < end:
                    assert await put(engine, "b", "fsync", on_conflict="keep") == "fsync"
                assert await put(embedded, "c", "fsync") == "fsync"
                assert rewrites(server)

    async def test_a_store_that_told_nothing_once_is_asked_again(self, fsyncing: StoreServer) -> None:
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
    async def test_a_store_that_was_busy_when_it_was_asked_is_believed_soon(self, tmp_path: Path) -> None:
        config: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always", "lua_time_limit": 20}
        with StoreServer(tmp_path / "v", **config) as server:
            async with engine_on(server.url) as engine:
                assert await put(engine, "a") == "fsync"
                async with busy(server):
                    end = time.monotonic() + 1.2  # so that it is asked meanwhile
                    while time.monotonic() < end:
                        with pytest.raises(StoreUnavailable, match="BUSY"):
                            await put(engine, "b", "fsync")
                async with asyncio.timeout(1 + SLACK_S):
                    while await put(engine, "b", on_conflict="keep") != "fsync":
                        await asyncio.sleep(0.01)

    async def test_a_store_is_not_asked_for_each_put(self, fsyncing: StoreServer) -> None:
        async with engine_on(fsyncing.url) as engine:
            await put(engine, "a", "fsync")
            began = time.monotonic()
            before = fsyncing.command("INFO", "commandstats")
            for number in range(100):
                assert await put(engine, f"b{number}", "fsync") == "fsync"
            after = fsyncing.command("INFO", "commandstats")
            calls = {name: after[name]["calls"] - before[name]["calls"] for name in after if name in before}
            asked = calls["cmdstat_config|get"]
            assert asked <= 1 + time.monotonic() - began
            assert calls["cmdstat_info"] == asked + 1  # that of this test
            assert calls["cmdstat_evalsha"] == 100

    @pytest.mark.skipif(DEBIAN_REDIS is None, reason="there is no redis-server on this machine")
    async def test_an_older_redis_that_was_a_replica_is_believed_after_its_rewrite(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store_servers, "get_binary_path", lambda: DEBIAN_REDIS)
        config: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always", "rdb_key_save_delay": SLOW_KEY_US}
        with StoreServer(tmp_path / "a", repl_diskless_sync_delay=0) as primary:
            fill(primary)
            with StoreServer(tmp_path / "b", replicaof=f"127.0.0.1 {primary.port}", **config) as replica:
                wait_until(lambda: rewrites(replica), 10, "the replica is in step")
                replica.command("REPLICAOF", "NO", "ONE")
                async with engine_on(replica.url) as engine:
                    with pytest.raises(StoreUnavailable, match="rewrites its append-only file"):
                        await put(engine, "a", "fsync")
                    assert stored_ids(replica) == set()
                    assert rewrites(replica)
