"""The embedded store: one owner for a folder, taken over from a dead one, restarted when it dies, nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from deferd.store import data_dir as folder_module
from deferd.store import embedded as embedded_module
from deferd.store.connection import Store, connect
from deferd.store.data_dir import DataFolder
from deferd.store.embedded import EmbeddedStore
from deferd.store.preflight import StoreRefused, check
from tests.waiting import until

WAIT_S = 20.0


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


@contextlib.asynccontextmanager
async def running(data_dir: Path) -> AsyncIterator[tuple[EmbeddedStore, Store]]:
    embedded = EmbeddedStore(data_dir)
    embedded.claim()
    try:
        await embedded.start()
        store = await connect(embedded.url, timeout_s=1)
        yield embedded, store
        await store.close()
    finally:
        await embedded.stop()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(folder: Path, pattern: str = "*") -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


async def kill(embedded: EmbeddedStore) -> None:
    """Kill its process, and wait until there is another one."""
    killed = embedded.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    await until(lambda: embedded.pid not in {killed, None}, "there is another process")


async def got(store: Store, key: str) -> bytes | str | None:
    """The key's value, as soon as the store answers."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return await store.client.get(key)
        except RedisError:
            assert time.monotonic() < end, "the store does not come back"
            await asyncio.sleep(0.01)


async def test_it_is_a_store_that_passes_the_checks_and_keeps_its_data(data_dir: Path) -> None:
    async with running(data_dir) as (_, store):
        await check(store, shards=1)
        await store.client.set("key", "value")
    async with running(data_dir) as (_, store):
        assert await store.client.get("key") == b"value"

    assert mode(data_dir) == 0o700


async def test_every_change_is_on_disk_before_it_is_answered(data_dir: Path) -> None:
    async with running(data_dir) as (_, store):
        settings = await store.client.config_get("append*")
        assert settings["appendonly"] == "yes"
        assert settings["appendfsync"] == "always"
        assert (await store.client.config_get("maxmemory-policy"))["maxmemory-policy"] == "noeviction"
        assert (await store.client.config_get("port"))["port"] == "0"


async def test_a_second_owner_is_refused_and_told_who_owns_it(data_dir: Path) -> None:
    async with running(data_dir) as (_, store):
        with pytest.raises(StoreRefused, match=rf"in use by another deferd service \(process {os.getpid()}\)"):
            EmbeddedStore(data_dir).claim()
        assert await store.client.ping()

    second = EmbeddedStore(data_dir)
    second.claim()
    await second.stop()


KILLED_OWNER = """
    import asyncio, os, signal, sys
    from pathlib import Path
    from deferd.store.connection import connect
    from deferd.store.embedded import EmbeddedStore

    async def main():
        embedded = EmbeddedStore(Path(sys.argv[1]))
        embedded.claim()
        await embedded.start()
        store = await connect(embedded.url, timeout_s=1)
        await store.client.set("key", "value")
        if sys.argv[2] == "hangs":
            os.kill(embedded.pid, signal.SIGSTOP)
        if sys.argv[3] == "without a reaper":
            os.kill(embedded.reaper_pid, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())
"""


async def kill_owner(data_dir: Path, leftover: str, reaper: str) -> None:
    command = [sys.executable, "-c", textwrap.dedent(KILLED_OWNER), str(data_dir), leftover, reaper]
    killed = await asyncio.to_thread(subprocess.run, command, timeout=WAIT_S)
    assert killed.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "leftover",
    [
        "lives",
        pytest.param(
            "hangs", marks=pytest.mark.skipif(sys.platform != "linux", reason="it is recognised by what /proc tells")
        ),
    ],
)
async def test_the_store_of_a_killed_owner_is_taken_over(
    data_dir: Path, leftover: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_module, "TAKE_OVER_S", 0.5 if leftover == "hangs" else WAIT_S)
    await kill_owner(data_dir, leftover, "without a reaper")

    async with running(data_dir) as (_, store):
        assert await store.client.get("key") == b"value"


@pytest.mark.parametrize("leftover", ["lives", pytest.param("hangs", marks=pytest.mark.slow)])
async def test_the_store_of_a_killed_owner_is_ended_by_its_reaper(data_dir: Path, leftover: str) -> None:
    await kill_owner(data_dir, leftover, "with a reaper")
    folder = DataFolder(data_dir)

    def has_ended() -> bool:
        lock = folder.try_store_lock()
        if lock is not None:
            os.close(lock)
        return lock is not None

    await until(has_ended, "the store has ended")
    assert ("bye bye" in folder.log_file.read_text()) == (leftover == "lives")
    async with running(data_dir) as (_, store):
        assert await store.client.get("key") == b"value"


async def test_a_store_that_is_killed_is_started_again_with_its_data(
    data_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(data_dir) as (embedded, store), asyncio.timeout(WAIT_S):
        for turn in range(2):
            await store.client.set(f"key{turn}", "value")
            await kill(embedded)
            assert await got(store, f"key{turn}") == b"value"
        await until(lambda: "is back" in caplog.text, "it is told")

    assert "ended by itself (signal 9)" in caplog.text


async def test_stopping_does_not_wait_for_a_store_that_hangs(data_dir: Path) -> None:
    async with running(data_dir) as (embedded, _):
        assert embedded.pid is not None
        os.kill(embedded.pid, signal.SIGSTOP)
        began = time.monotonic()
        await embedded.stop()

    assert time.monotonic() - began < embedded_module.STOP_S + 1


async def test_stopping_ends_the_loading(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: object) -> bool:
        return False

    monkeypatch.setattr(embedded_module, "_answers", never)
    embedded = EmbeddedStore(data_dir)
    embedded.claim()
    starting = asyncio.ensure_future(embedded.start())
    await until(lambda: embedded.pid is not None, "the process is started")
    pid = embedded.pid
    assert pid is not None
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    await embedded.stop()


async def test_a_long_loading_is_reported(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(embedded_module, "REPORT_EVERY_S", 0.0)
    caplog.set_level(logging.INFO)

    async with running(data_dir):
        pass

    assert f"the embedded store in {data_dir} " in caplog.text


async def test_a_folder_with_a_long_path_has_its_socket_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        data_dir = tmp_path / ("long" * 30) / "a folder"
        async with running(data_dir) as (embedded, store):
            assert len(embedded.url) < 100
            assert embedded.url == EmbeddedStore(data_dir).url
            assert await store.client.set("key", "value")
            [place] = names_in(Path(short))
            assert mode(Path(short) / place) == 0o700
        assert names_in(Path(short)) == []


@pytest.mark.parametrize("name", ["with space", "quote'd", 'double"quoted', "per%20cent", "ünïcode"])
async def test_a_folder_may_have_any_name(tmp_path: Path, name: str) -> None:
    async with running(tmp_path / name) as (_, store):
        assert await store.client.set("key", "value")


@pytest.mark.parametrize("open_mode", [0o755, 0o750, 0o777, 0o711])
def test_a_folder_that_others_may_enter_is_closed_to_them_and_that_is_logged(
    data_dir: Path, open_mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    data_dir.mkdir()
    data_dir.chmod(open_mode)
    folder = DataFolder(data_dir)
    folder.claim()
    folder.release()

    assert mode(data_dir) == 0o700
    assert f"other users could enter the data folder {data_dir} (mode {open_mode:04o}): it is now 0700" in caplog.text


def open_to_others(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o055)


async def test_the_open_folder_of_an_earlier_release_is_closed_with_its_data(data_dir: Path) -> None:
    async with running(data_dir) as (_, store):
        await store.client.set("key", "value")
    await asyncio.to_thread(open_to_others, data_dir)

    async with running(data_dir) as (_, store):
        assert await store.client.get("key") == b"value"
        assert mode(data_dir) == 0o700


def test_an_open_folder_that_holds_other_files_is_refused_and_left_as_it_is(data_dir: Path) -> None:
    data_dir.mkdir()
    data_dir.chmod(0o755)
    (data_dir / "thesis.tex").write_text("")

    with pytest.raises(
        StoreRefused, match=r"\(mode 0755\), and it also holds thesis.tex: run chmod 700 on it, or .* \(--data-dir"
    ):
        EmbeddedStore(data_dir).claim()
    assert mode(data_dir) == 0o755
    assert names_in(data_dir) == ["thesis.tex"]


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root can give a folder away")
def test_an_open_folder_of_somebody_else_is_refused() -> None:
    claim = (
        "import os, sys; from pathlib import Path\nfrom deferd.store.data_dir import DataFolder\n"
        "os.setuid(65534)\nDataFolder(Path(sys.argv[1])).claim()"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as data_dir:
        Path(data_dir).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", claim, data_dir], capture_output=True, text=True, timeout=WAIT_S, check=False
        )
    assert "(mode 0777), and its mode cannot be changed by this user: run chmod 700 on it" in done.stderr


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreRefused, match=r"cannot be used: Not a directory \(--data-dir, DEFERD_DATA_DIR\)"):
        EmbeddedStore(tmp_path / "file" / "data").claim()


async def test_a_store_that_gives_up_is_quoted(data_dir: Path) -> None:
    async with running(data_dir):
        pass
    [increments] = (data_dir / "appendonlydir").glob("*.incr.aof")
    increments.write_bytes(b"this is no append-only file\r\n")

    with pytest.raises(StoreRefused, match=r"exit code 1; .*Bad file format reading the append only file"):
        async with running(data_dir):
            pass


async def test_a_file_that_was_cut_short_by_a_crash_is_taken_as_far_as_it_goes(data_dir: Path) -> None:
    async with running(data_dir) as (_, store):
        await store.client.set("first", "value")
        await store.client.set("second", "value")
    [increments] = (data_dir / "appendonlydir").glob("*.incr.aof")
    increments.write_bytes(increments.read_bytes()[:-5])

    async with running(data_dir) as (_, store):
        assert await store.client.mget("first", "second") == [b"value", None]


async def test_a_log_that_has_grown_long_is_put_aside(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "LOG_MAX_BYTES", 1000)
    for _ in range(3):
        async with running(data_dir):
            pass

    assert names_in(data_dir, "valkey.log*") == ["valkey.log", "valkey.log.1"]
