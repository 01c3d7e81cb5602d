"""A store that cannot be trusted with jobs is refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from deferd.store.connection import Store, connect
from deferd.store.preflight import StoreRefused, check
from deferd.store.shard_guard import SHARDS_KEY
from tests.integration.store.store_servers import SentinelSet, StoreServer
from tests.ports import free_port


async def refusal(url: str, *, shards: int = 1, timeout_s: float = 5.0) -> str:
    store = await connect(url, timeout_s=timeout_s)
    try:
        with pytest.raises(StoreRefused) as caught:
            await check(store, shards=shards)
    finally:
        await store.close()
    assert "sesame" not in str(caught.value)
    return str(caught.value)


async def test_a_good_store_passes_and_its_version_is_known(store: Store, server: StoreServer) -> None:
    await check(store, shards=4)

    assert store.server.startswith("valkey ")
    assert server.command("GET", SHARDS_KEY) == b"4 format 1"
    await check(store, shards=4)


async def test_a_different_number_of_shards_is_refused(store: Store, server: StoreServer) -> None:
    await check(store, shards=4)

    assert "--shards 4, not 8" in await refusal(server.url, shards=8)
    assert server.command("GET", SHARDS_KEY) == b"4 format 1"


async def test_a_store_of_another_format_is_refused(server: StoreServer) -> None:
    server.command("SET", SHARDS_KEY, "4 format 2")

    assert "holds data of format 2, but this release of deferd knows none above 1: run a later one" in await refusal(
        server.url, shards=4
    )
    assert server.command("GET", SHARDS_KEY) == b"4 format 2"
    for guard in ("4 format 2 of 9.9.0", "4 format 2 of 9.9.0 since then"):  # later releases may say more
        server.command("SET", SHARDS_KEY, guard)
        assert "run deferd 9.9.0 or a later one" in await refusal(server.url, shards=4)
    server.command("SET", SHARDS_KEY, "4 format 0")
    assert "knows none below 1: first run the releases between" in await refusal(server.url, shards=4)


async def test_a_store_that_is_down_is_refused() -> None:
    assert "cannot be reached" in await refusal(f"redis://:sesame@127.0.0.1:{free_port()}")


async def test_a_host_that_does_not_exist_is_refused() -> None:
    assert "cannot be reached" in await refusal("redis://:sesame@no.such.host.invalid")


async def test_a_store_that_hangs_is_refused(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "v") as server:
        server.pause()
        assert "no response within 0.4 s" in await refusal(server.url, timeout_s=0.4)


async def test_a_store_that_would_delete_jobs_is_refused_with_the_reason(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "v", maxmemory_policy="allkeys-lru") as server:
        sentence = await refusal(server.url)

    assert "maxmemory-policy allkeys-lru" in sentence
    assert "silently deletes jobs" in sentence


async def test_a_wrong_password_is_refused_and_not_shown(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "v", requirepass="open") as server:
        assert "refused the login" in await refusal(server.url.replace("open", "sesame"))
        assert "refused the login" in await refusal(server.url.replace(":open@", ""))


async def test_a_user_with_too_few_permissions_is_refused(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "v", lines=["user me on >sesame ~* +get"]) as server:
        assert "lacks the permissions" in await refusal(server.url.replace("//", "//me:sesame@"))


async def test_a_store_that_is_out_of_memory_at_its_first_use_is_refused(tmp_path: Path) -> None:
    with StoreServer(tmp_path / "v", maxmemory=1) as server:
        assert "returned an error" in await refusal(server.url)


async def test_a_replica_and_a_sentinel_are_refused(tmp_path: Path) -> None:
    with SentinelSet(tmp_path) as servers:
        assert "is a replica" in await refusal(servers.replica.url)
        assert "use redis+sentinel://" in await refusal(servers.sentinels[0].url)


async def test_a_single_server_is_refused_as_a_cluster(server: StoreServer) -> None:
    assert "Cluster mode is not enabled" in await refusal(server.url.replace("redis:", "redis+cluster:"))
