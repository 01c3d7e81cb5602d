"""Copying the append-only files of a running store: during rewrites, restarts and with a truncated end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import stat
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from deferd.store import backup
from deferd.store.backup import FilesChanged, copy_data, sync_files
from deferd.store.data_dir import APPEND_ONLY_DIR, SHELF_DIR, UNFINISHED_RESTORE, DataDirectory
from deferd.store.embedded import EmbeddedStore
from deferd.store.preflight import StoreRefused
from tests.waiting import wait_until

WAIT_S = 20.0


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    (tmp_path / "copied").mkdir()
    return tmp_path / "copied"


@contextlib.asynccontextmanager
async def running(data_dir: Path) -> AsyncIterator[EmbeddedStore]:
    embedded = EmbeddedStore(data_dir)
    embedded.claim()
    try:
        await embedded.start()
        yield embedded
    finally:
        await embedded.stop()


@contextlib.contextmanager
def client(data_dir: Path) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=str(DataDirectory(data_dir).socket), socket_timeout=5) as connected:
        yield connected


def put(data_dir: Path, first: int, count: int) -> None:
    with client(data_dir) as store:
        for number in range(first, first + count):
            store.set(f"key{number}", "value" * 100)


def rewrite(data_dir: Path) -> None:
    """Run a rewrite to its end."""
    with client(data_dir) as store:
        before = manifest(data_dir)
        store.bgrewriteaof()
        wait_until(lambda: not is_rewriting(store) and manifest(data_dir) != before, WAIT_S, "the rewrite has ended")
        history = data_dir / APPEND_ONLY_DIR
        wait_until(lambda: len(list(history.iterdir())) == 3, WAIT_S, "the old files are deleted")


async def test_a_copy_that_is_synced_in_steps_is_complete(
    data_dir: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "_CHUNK_BYTES", 100)
    monkeypatch.setattr(backup, "_SYNC_BYTES", 250)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    async with running(data_dir):
        put(data_dir, 0, 20)
        copy_data(DataDirectory(data_dir), copied)
        files = {path.name: path.read_bytes() for path in (data_dir / APPEND_ONLY_DIR).iterdir()}

    assert {path.name: path.read_bytes() for path in (copied / APPEND_ONLY_DIR).iterdir()} == files
    assert len(synced) >= sum(map(len, files.values())) // 300 - 3


def rewrite_and_put(data_dir: Path) -> None:
    rewrite(data_dir)
    put(data_dir, 100, 10)


def is_rewriting(store: redis.Redis) -> bool:
    state: Any = store.info("persistence")
    return bool(state["aof_rewrite_in_progress"] or state["aof_rewrite_scheduled"])


def manifest(folder: Path) -> str:
    return (folder / APPEND_ONLY_DIR / backup.MANIFEST).read_text()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def keys_in(folder: Path) -> int:
    """How many keys a store loads from there."""
    async with running(folder):

        def count() -> int:
            with client(folder) as store:
                return int(store.dbsize())

        return await asyncio.to_thread(count)


def once(monkeypatch: pytest.MonkeyPatch, name: str, happening: Callable[[], None], *, after: bool) -> list[int]:
    """Run `happening` right before or after the first call of a step of the copy. Returns the list of calls."""
    step = getattr(backup, name)
    calls: list[int] = []

    def with_happening(*args: Any) -> Any:
        calls.append(1)
        if not after and len(calls) == 1:
            happening()
        result = step(*args)
        if after and len(calls) == 1:
            happening()
        return result

    monkeypatch.setattr(backup, name, with_happening)
    return calls


async def test_the_copy_of_a_running_store_is_complete_and_private(data_dir: Path, copied: Path) -> None:
    async with running(data_dir):
        await asyncio.to_thread(put, data_dir, 0, 100)
        await asyncio.to_thread(copy_data, DataDirectory(data_dir), copied)

    folder = copied / APPEND_ONLY_DIR
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert [file.name for file in sync_files(copied)] == [f"{APPEND_ONLY_DIR}/{name}" for name in sorted(names(folder))]
    assert await keys_in(copied) == 100


async def test_a_rewrite_that_ends_before_the_files_are_open_restarts_the_copy(
    data_dir: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(data_dir):
        await asyncio.to_thread(put, data_dir, 0, 100)
        once(monkeypatch, "_fields", lambda: rewrite_and_put(data_dir), after=False)
        attempts = once(monkeypatch, "_copy_once", lambda: None, after=False)
        await asyncio.to_thread(copy_data, DataDirectory(data_dir), copied)

    assert len(attempts) == 2
    assert await keys_in(copied) == 110


async def test_a_copy_that_starts_again_opens_the_shelf_again(
    data_dir: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job moves from before its files are opened until the sizes of the store's files are read."""
    shelves: list[Path] = []
    order: list[str] = []

    @contextlib.contextmanager
    def still(_: DataDirectory) -> Iterator[Path]:
        shelf = data_dir / f"shelf-{len(shelves)}"
        shelf.mkdir()
        (shelf / "CURRENT").write_text(shelf.name)
        (shelf / "LOG").touch()
        shelves.append(shelf)
        order.append("rest")
        yield shelf
        order.append("move")
        shutil.rmtree(shelf)
        if len(shelves) == 2:
            raise FilesChanged

    async with running(data_dir):
        await asyncio.to_thread(put, data_dir, 0, 100)
        once(monkeypatch, "_fields", lambda: rewrite_and_put(data_dir), after=False)
        monkeypatch.setattr(backup, "_all_open", noted(order, "open", backup._all_open))
        monkeypatch.setattr(backup, "_copy_bytes", noted(order, "copy", backup._copy_bytes))
        await asyncio.to_thread(copy_data, DataDirectory(data_dir), copied, still)

    opened = ["rest", "open", "open"]
    assert order == [*opened, *opened, "move", *opened, "move", *["copy"] * 3]
    assert [path.name for path in (copied / SHELF_DIR).iterdir()] == ["CURRENT"]
    assert (copied / SHELF_DIR / "CURRENT").read_text() == "shelf-2"
    assert await keys_in(copied) == 110


def noted(order: list[str], what: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def note(*args: Any) -> Any:
        order.append(what)
        return call(*args)

    return note


@pytest.mark.parametrize("step", ["_new_file", "_copy_bytes"])
async def test_a_rewrite_that_ends_while_the_files_are_read_does_not_restart_the_copy(
    data_dir: Path, copied: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    async with running(data_dir):
        await asyncio.to_thread(put, data_dir, 0, 100)
        once(monkeypatch, step, lambda: rewrite_and_put(data_dir), after=step == "_copy_bytes")
        attempts = once(monkeypatch, "_copy_once", lambda: None, after=False)
        await asyncio.to_thread(copy_data, DataDirectory(data_dir), copied)

    assert len(attempts) == 1
    assert await keys_in(copied) == 100


async def test_the_copy_during_a_rewrite_has_what_was_written_meanwhile(data_dir: Path, copied: Path) -> None:
    async with running(data_dir):
        await asyncio.to_thread(put, data_dir, 0, 100)
        with client(data_dir) as store:
            store.config_set("rdb-key-save-delay", 100_000)  # the rewrite takes 10 s
            store.bgrewriteaof()
            wait_until(lambda: "appendonly.aof.2.incr.aof" in manifest(data_dir), WAIT_S, "the rewrite is in progress")
            await asyncio.to_thread(put, data_dir, 100, 10)
            await asyncio.to_thread(copy_data, DataDirectory(data_dir), copied)
            assert is_rewriting(store)

    assert len(list((copied / APPEND_ONLY_DIR).iterdir())) == 4
    assert await keys_in(copied) == 110


async def test_a_restart_of_the_store_restarts_the_copy(
    data_dir: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(data_dir) as embedded:
        await asyncio.to_thread(put, data_dir, 0, 100)

        def restart() -> None:
            killed = embedded.pid
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            wait_until(lambda: embedded.pid not in {killed, None}, WAIT_S, "the store was restarted")
            wait_until(
                lambda: DataDirectory(data_dir).store_pid() == embedded.pid,
                WAIT_S,
                "its process id is in the lock file",
            )

        attempts = once(monkeypatch, "_copy_bytes", restart, after=True)
        await asyncio.to_thread(copy_data, DataDirectory(data_dir), copied)

    assert len(attempts) == 4
    assert await keys_in(copied) == 100


async def test_a_copy_of_files_that_keep_changing_fails(
    data_dir: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(data_dir):
        pass
    monkeypatch.setattr(backup, "_ATTEMPTS", 2)
    (data_dir / APPEND_ONLY_DIR / "appendonly.aof.1.incr.aof").unlink()

    with pytest.raises(StoreRefused, match=r"changed 2 times while they were being copied: try again"):
        copy_data(DataDirectory(data_dir), copied)
    assert names(copied) == []


async def test_a_truncated_end_is_copied_and_loads(data_dir: Path, copied: Path) -> None:
    async with running(data_dir):
        await asyncio.to_thread(put, data_dir, 0, 100)
    increments = data_dir / APPEND_ONLY_DIR / "appendonly.aof.1.incr.aof"
    increments.write_bytes(increments.read_bytes()[:-5])

    copy_data(DataDirectory(data_dir), copied)

    assert await keys_in(copied) == 99


def test_a_directory_without_data_is_refused_in_one_sentence(data_dir: Path, copied: Path) -> None:
    data_dir.mkdir()

    with pytest.raises(
        StoreRefused, match=rf"the data directory {data_dir} has no data of an embedded store: .*--data-dir"
    ):
        copy_data(DataDirectory(data_dir), copied)


async def test_a_directory_with_an_interrupted_restore_is_not_served_empty(data_dir: Path) -> None:
    async with running(data_dir):
        await asyncio.to_thread(put, data_dir, 0, 1)
    (data_dir / UNFINISHED_RESTORE).mkdir()
    assert await keys_in(data_dir) == 1

    (data_dir / APPEND_ONLY_DIR).rename(data_dir / "aside")
    with pytest.raises(
        StoreRefused, match=r"a restore .* was interrupted, so it has no data: run `deferd restore` again"
    ):
        await keys_in(data_dir)
    assert not (data_dir / APPEND_ONLY_DIR).exists()
