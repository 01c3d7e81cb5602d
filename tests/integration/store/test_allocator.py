"""The allocator of the embedded store: what reaches its process, what is left out, and that the store starts anyway."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from deferd.store import valkey_process
from deferd.store.connection import Store, connect
from deferd.store.embedded import EmbeddedStore
from deferd.store.valkey_process import allocator_environment, valkey_binary
from tests.programs import without

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="macOS keeps its own allocator")

HARMLESS = "libutil.so.1"
"""A library that every glibc has and the store does not load by itself: it stands for jemalloc."""
NOT_THERE = "libnot-there.so.1"
BINARY = valkey_binary()
VARIABLES = ("LD_PRELOAD", "MALLOC_CONF", "GLIBC_TUNABLES")


@pytest.fixture(autouse=True)
def no_settings_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@contextlib.asynccontextmanager
async def running(data_dir: Path) -> AsyncIterator[tuple[int, Store]]:
    """An embedded store, as its process id and a connection."""
    embedded = EmbeddedStore(data_dir)
    embedded.claim()
    try:
        await embedded.start()
        store = await connect(embedded.url, timeout_s=1)
        assert embedded.pid is not None
        yield embedded.pid, store
        await store.close()
    finally:
        await embedded.stop()


def program(folder: Path, *lines: str) -> str:
    """A script in place of the store's binary."""
    path = folder / "program"
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o700)
    return str(path)


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, str]]:
    """The allocator's variables with which the store was started.

    A script notes them: Valkey writes its title over its environment, so /proc has not all of them.
    """
    noted = tmp_path / "noted"
    script = program(tmp_path, f"env > '{noted}'", f"exec '{BINARY}' \"$@\"")
    monkeypatch.setattr(valkey_process, "valkey_binary", lambda: script)

    def read() -> dict[str, str]:
        pairs = (line.partition("=") for line in noted.read_text().splitlines())
        return {name: value for name, _, value in pairs if name in VARIABLES}

    return read


def has_loaded(pid: int, library: str) -> bool:
    return library in Path(f"/proc/{pid}/maps").read_text()


def rewrites(persistence: dict[str, Any]) -> bool:
    return bool(persistence["aof_rewrite_in_progress"] or persistence["aof_rewrite_scheduled"])


async def test_jemalloc_is_loaded_into_the_store_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Callable[[], dict[str, str]]
) -> None:
    monkeypatch.setattr(valkey_process, "JEMALLOC", HARMLESS)

    async with running(tmp_path / "data") as (pid, store):
        assert {"LD_PRELOAD": HARMLESS, "MALLOC_CONF": "background_thread:true"} == seen()
        assert has_loaded(pid, HARMLESS)
        assert await store.client.ping()

    assert not set(VARIABLES) & set(os.environ)


async def test_the_systems_jemalloc_holds_the_stores_data(tmp_path: Path) -> None:
    if "LD_PRELOAD" not in await allocator_environment(BINARY):
        without("libjemalloc.so.2")

    async with running(tmp_path / "data") as (pid, store):
        assert has_loaded(pid, "libjemalloc.so.2")
        await store.client.hset("hash", mapping={str(number): "x" * 100 for number in range(5000)})
        await store.client.bgrewriteaof()
        while rewrites(state := await store.client.info("persistence")):
            await asyncio.sleep(0.01)
        assert state["aof_last_bgrewrite_status"] == "ok"

    async with running(tmp_path / "data") as (_, store):
        assert 5000 == await store.client.hlen("hash")


async def test_without_jemalloc_the_cache_of_glibcs_malloc_is_larger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Callable[[], dict[str, str]]
) -> None:
    monkeypatch.setattr(valkey_process, "JEMALLOC", NOT_THERE)

    async with running(tmp_path / "data") as (_, store):
        assert {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=2000"} == seen()
        assert await store.client.ping()

    assert "ld.so" not in (tmp_path / "data" / "valkey.log").read_text()


async def test_settings_of_the_user_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: Callable[[], dict[str, str]]
) -> None:
    monkeypatch.setattr(valkey_process, "JEMALLOC", HARMLESS)
    given = {"LD_PRELOAD": "", "GLIBC_TUNABLES": "glibc.malloc.arena_max=2:glibc.malloc.unknown=1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    async with running(tmp_path / "data") as (pid, store):
        assert given == seen()
        assert not has_loaded(pid, HARMLESS)
        assert await store.client.ping()


async def test_the_users_settings_of_jemalloc_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(valkey_process, "JEMALLOC", HARMLESS)

    assert {"LD_PRELOAD": HARMLESS} == await allocator_environment(BINARY, {"MALLOC_CONF": "narenas:1"})
    assert {} == await allocator_environment(BINARY, {"LD_PRELOAD": "", "GLIBC_TUNABLES": ""})


async def test_huge_pages_stay_off(tmp_path: Path) -> None:
    """They would be split by the next rewrite of the append-only file, and cost memory until then."""
    async with running(tmp_path / "data") as (_, store):
        assert {"disable-thp": "yes"} == await store.client.config_get("disable-thp")


@pytest.mark.parametrize(
    "lines",
    [
        ("echo '<jemalloc>: Unsupported system page size' >&2",),
        ('test "$MALLOC_CONF" = background_thread:true && echo "<jemalloc>: Invalid conf pair: $MALLOC_CONF" >&2',),
        ("exit 1",),
        ("kill -ABRT $$",),
        ("exec sleep 60",),
    ],
    ids=["complains", "does not know the setting", "fails", "crashes", "hangs"],
)
async def test_a_library_with_which_the_store_does_not_run_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: tuple[str, ...]
) -> None:
    monkeypatch.setattr(valkey_process, "JEMALLOC", HARMLESS)
    monkeypatch.setattr(valkey_process, "_TRIAL_S", 1.0)

    assert {"GLIBC_TUNABLES"} == set(await allocator_environment(program(tmp_path, *lines)))


@pytest.mark.parametrize("libc", ["glibc 2.28", "glibc 2.9", "musl 1.2.5", "glibc", None, ValueError, OSError])
async def test_a_libc_that_does_not_know_the_setting_gets_none(
    monkeypatch: pytest.MonkeyPatch, libc: str | type[Exception] | None
) -> None:
    def confstr(name: str) -> str | None:
        assert name == "CS_GNU_LIBC_VERSION"
        if isinstance(libc, type):
            raise libc
        return libc

    monkeypatch.setattr(valkey_process, "JEMALLOC", NOT_THERE)
    monkeypatch.setattr(os, "confstr", confstr)

    assert {} == await allocator_environment(BINARY)


async def test_macos_keeps_its_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")

    assert {} == await allocator_environment("/nothing/is/started")
