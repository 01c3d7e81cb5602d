"""`deferd backup` and `deferd restore`, on services that run, are under load, or are stopped."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
import redis

from deferd import Client
from deferd.store.data_dir import APPEND_ONLY_DIR, DataDirectory
from deferd.store.pipeline import pack
from tests.acceptance.cli.command_line import Shell, environment
from tests.acceptance.cli.every_state import assert_sound, assert_unchanged, fill
from tests.acceptance.cli.preloaded_shell import PreloadedShell
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.waiting import wait_until

WAIT_S = 20.0
LOADED = "loaded"


@pytest.fixture
def shell() -> Shell:
    """Of commands that need no service."""
    return PreloadedShell("http://127.0.0.1:9")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with running_service(data_dir=tmp_path / "service") as service:
        yield service


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where backups go."""
    return tmp_path / "backup"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a backup of one job, `backup`, and the data directory that it is of, `data`; no service runs."""
    root = tmp_path_factory.mktemp("made")
    with running_service(data_dir=root) as service:
        with Client(service.url) as client:
            client.put("orders", {"n": 1}, id="saved", delay=3600)
        PreloadedShell(service.url).json("backup", str(root / "backup"), *text_of(service.data_dir))
    return root


@pytest.fixture
def saved(made: Path, folder: Path) -> Path:
    """A backup with one job, which the test may change."""
    shutil.copytree(made / "backup", folder)
    return folder


def text_of(data_dir: Path) -> tuple[str, str]:
    return "--data-dir", str(data_dir)


def store_of(service: ServiceProcess) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(DataDirectory(service.data_dir).socket), socket_timeout=10)


class Load:
    """Puts jobs one after the other in a thread until it is stopped; `acknowledged` grows."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.acknowledged: list[str] = []

    def _run(self) -> None:
        with Client(self._url) as client:
            while not self._stopping.is_set():
                job_id = f"job-{len(self.acknowledged)}"
                client.put(LOADED, {"n": "x" * 200}, id=job_id, delay=3600)
                self.acknowledged.append(job_id)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_until(lambda: len(self.acknowledged) > 20, WAIT_S, "jobs are put")
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(WAIT_S)


def assert_has(url: str, ids: list[str]) -> None:
    with Client(url) as client:
        stored = {job.id for job in client.jobs(LOADED)}
        assert set(ids) <= stored
        assert_sound(client)


def test_jobs_in_every_state_go_on_after_a_restore(service: ServiceProcess, folder: Path, shell: Shell) -> None:
    with Client(service.url) as client:
        filled = fill(client)
        made = shell.json("backup", str(folder), *text_of(service.data_dir))[0]
        # Jobs put after the backup are not in it, and the service continues.
        assert_unchanged(client, filled)
    assert made["counts"] == {"delayed": 8, "ready": 31, "reserved": 2, "dead": 1, "finished": 1}
    assert (made["topics"], made["shards"]) == (3, 1)
    service.stop()

    restored = service.folder / "restored"
    [reported] = shell.json("restore", str(folder), *text_of(restored))
    assert (reported["counts"], reported["topics"], reported["old_data"]) == (made["counts"], 3, None)
    shutil.rmtree(service.data_dir)
    restored.rename(service.data_dir)
    service.start()
    with Client(service.url) as client:
        assert_unchanged(client, filled)


@pytest.mark.slow
def test_a_backup_during_a_rewrite_has_all_that_was_acknowledged_before(
    service: ServiceProcess, folder: Path, shell: Shell, tmp_path: Path
) -> None:
    with Load(service.url) as load, store_of(service) as store:
        store.config_set("rdb-key-save-delay", 2_000_000)  # the rewrite takes 2 s for each key
        store.bgrewriteaof()
        wait_until(lambda: rewriting(store), WAIT_S, "the rewrite is under way")
        acknowledged = list(load.acknowledged)
        shell.good("backup", str(folder), *text_of(service.data_dir))
        assert rewriting(store)
        assert len(load.acknowledged) > len(acknowledged)

    shell.good("restore", str(folder), *text_of(tmp_path / "restored" / "data"))
    with running_service(data_dir=tmp_path / "restored") as restored:
        assert_has(restored.url, acknowledged)
    assert_has(service.url, load.acknowledged)


@pytest.mark.slow
def test_backups_while_one_rewrite_follows_the_other_have_all_that_was_acknowledged_before(
    service: ServiceProcess, folder: Path, shell: Shell, tmp_path: Path
) -> None:
    acknowledged: list[list[str]] = []
    with Load(service.url) as load, rewriting_all_the_time(service):
        for iteration in range(2):
            acknowledged.append(list(load.acknowledged))
            shell.good("backup", str(folder / str(iteration)), *text_of(service.data_dir))

    for iteration, ids in enumerate(acknowledged):
        shell.good("restore", str(folder / str(iteration)), *text_of(tmp_path / str(iteration) / "data"))
        with running_service(data_dir=tmp_path / str(iteration)) as restored:
            assert_has(restored.url, ids)


def rewriting(store: redis.Redis) -> bool:
    state: Any = store.info("persistence")
    return bool(state["aof_rewrite_in_progress"])


@contextlib.contextmanager
def rewriting_all_the_time(service: ServiceProcess) -> Iterator[None]:
    stopping = threading.Event()
    ended = []

    def run() -> None:
        with store_of(service) as store:
            while not stopping.is_set():
                with contextlib.suppress(redis.ResponseError):  # one is under way
                    store.bgrewriteaof()
                wait_until(lambda: not rewriting(store), WAIT_S, "the rewrite has ended")
                ended.append(1)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    wait_until(lambda: len(ended) > 1, WAIT_S, "rewrites follow each other")
    yield
    stopping.set()
    thread.join(WAIT_S)


def test_a_stopped_service_is_backed_up_and_only_its_owner_can_read_it(
    service: ServiceProcess, folder: Path, shell: Shell
) -> None:
    with Client(service.url) as client:
        client.put("orders", {"n": 1}, id="saved")
    service.stop()

    text = shell.good("backup", str(folder), *text_of(service.data_dir))

    assert [line.split() for line in text.splitlines()[3:]] == [
        ["topics", "1"],
        *(["delayed", "0"], ["ready", "1"], ["reserved", "0"], ["dead", "0"], ["finished", "0"]),
    ]
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}
    assert modes == {True: 0o700, False: 0o600}
    assert sorted(path.name for path in folder.iterdir()) == [APPEND_ONLY_DIR, "backup.json"]
    service.start()


def test_a_backup_that_is_not_loaded_is_counted_when_it_is_restored(
    service: ServiceProcess, folder: Path, shell: Shell, tmp_path: Path
) -> None:
    """A topic with partitions counts as one."""
    with Client(service.url) as client:
        client.set_topic("orders", {"partitions": 4})
        client.put_batch([{"topic": "orders", "id": f"job-{number}", "delay": 3600} for number in range(20)])
    [made] = shell.json("backup", str(folder), "--no-verify", *text_of(service.data_dir))
    assert (made["counts"], made["shards"]) == (None, None)

    [restored] = shell.json("restore", str(folder), *text_of(tmp_path / "restored"))
    assert (restored["counts"]["delayed"], restored["topics"]) == (20, 1)


@pytest.mark.slow
def test_a_backup_overwrites_nothing(made: Path, shell: Shell, tmp_path: Path) -> None:
    saved, data = made / "backup", text_of(made / "data")
    before = (saved / "backup.json").read_bytes()
    assert f"{saved} is not empty: name an empty or a new directory" in shell.refused(1, "backup", str(saved), *data)
    assert (saved / "backup.json").read_bytes() == before
    unfinished = tmp_path / "other" / "unfinished"
    unfinished.mkdir(parents=True)
    assert "if none is running, empty it and try again" in shell.refused(1, "backup", str(unfinished.parent), *data)
    assert "has no data of an embedded store" in shell.refused(1, "backup", str(tmp_path / "b"), *text_of(tmp_path))
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
def test_a_backup_that_is_stopped_leaves_nothing(service: ServiceProcess, folder: Path) -> None:
    with Client(service.url) as client:
        for _ in client.put_many({"topic": "orders", "body": "x" * 100_000, "delay": 3600} for _ in range(200)):
            pass
    words = [sys.executable, "-m", "deferd", "backup", str(folder), *text_of(service.data_dir)]
    for number in (signal.SIGTERM, signal.SIGINT):
        with subprocess.Popen(words, env=environment(service.url)) as backup:
            unfinished = DataDirectory(folder / "unfinished")
            wait_until(lambda: unfinished.store_pid() is not None, WAIT_S, "the copy is being loaded")  # noqa: B023
            store_pid = unfinished.store_pid()
            assert store_pid is not None
            os.kill(store_pid, signal.SIGSTOP)
            backup.send_signal(number)
            assert backup.wait(WAIT_S) == 130

        assert not folder.exists()
        with pytest.raises(ProcessLookupError):
            os.kill(store_pid, 0)


@pytest.mark.slow
def test_a_restore_refuses_a_folder_in_use_and_keeps_old_data(
    saved: Path, service: ServiceProcess, shell: Shell
) -> None:
    with Client(service.url) as client:
        client.put("orders", id="later", delay=3600)
    data_dir = text_of(service.data_dir)
    assert "is in use by another deferd service" in shell.refused(1, "restore", str(saved), *data_dir, "--force")
    service.stop()
    assert "has data already: choose another one (--data-dir), or give --force" in shell.refused(
        1, "restore", str(saved), *data_dir
    )

    [reported] = shell.json("restore", str(saved), *data_dir, "--force")
    assert reported["counts"]["delayed"] == 1
    old_data = Path(reported["old_data"])
    service.start()
    with Client(service.url) as client:
        assert [job.id for job in client.jobs("orders")] == ["saved"]
    service.stop()
    shutil.rmtree(service.data_dir / APPEND_ONLY_DIR)
    old_data.rename(service.data_dir / APPEND_ONLY_DIR)
    service.start()
    with Client(service.url) as client:
        assert [job.id for job in client.jobs("orders")] == ["later"]


@pytest.mark.slow
def test_a_restore_is_refused_while_a_store_of_a_killed_service_runs(
    saved: Path, service: ServiceProcess, shell: Shell
) -> None:
    pid, reaper = service.store_pid(), service.reaper_pid()
    assert pid is not None
    assert reaper is not None
    os.kill(reaper, signal.SIGSTOP)  # otherwise it would end the store
    service.kill()

    assert f"a store (process {pid}) that a service left behind" in shell.refused(
        1, "restore", str(saved), *text_of(service.data_dir), "--force"
    )
    os.kill(reaper, signal.SIGCONT)
    service.start()


def test_a_damaged_snapshot_is_not_backed_up(service: ServiceProcess, folder: Path, shell: Shell) -> None:
    """The snapshot has the library of scripts, and its checksum does not outlive that."""
    with Client(service.url) as client:
        client.put("orders", "undamaged", id="saved", delay=3600)
    with contextlib.closing(store_of(service)) as store:
        assert b"deferd_" in store.execute_command("FUNCTION", "DUMP")
        store.bgrewriteaof()
        wait_until(lambda: not store.info("persistence")["aof_rewrite_in_progress"], WAIT_S, "the rewrite has ended")
    service.stop()
    [snapshot] = (service.data_dir / APPEND_ONLY_DIR).glob("*.base.rdb")
    content = snapshot.read_bytes()
    assert content.count(b"undamaged") == 1
    snapshot.write_bytes(content.replace(b"undamaged", b"damaged!!"))
    refusal = shell.refused(1, "backup", str(folder), *text_of(service.data_dir))
    assert f"Checking RDB file {snapshot.name}" in refusal
    snapshot.write_bytes(content)
    shell.json("backup", str(folder), *text_of(service.data_dir))


@pytest.mark.slow
def test_a_damaged_backup_is_not_restored(saved: Path, shell: Shell, tmp_path: Path) -> None:
    described = saved / "backup.json"
    good = described.read_text()
    increments = saved / APPEND_ONLY_DIR / "appendonly.aof.1.incr.aof"
    content = increments.read_bytes()
    data_dir = tmp_path / "restored"

    def refusal() -> str:
        text = shell.refused(1, "restore", str(saved), *text_of(data_dir))
        assert not (data_dir / APPEND_ONLY_DIR).exists()
        assert not (data_dir / "restore.unfinished").exists()
        return text

    increments.write_bytes(content[:-1] + b"x")
    assert "appendonly.aof.1.incr.aof" in refusal()
    increments.unlink()
    assert "lacks its file appendonlydir/appendonly.aof.1.incr.aof: restore another backup" in refusal()
    increments.write_bytes(content)

    manifest = json.loads(good)
    described.write_text(json.dumps(manifest | {"counts": manifest["counts"] | {"delayed": 2}}))
    assert "holds 1 delayed, 0 ready, 0 reserved, 0 dead, 0 finished, but had 2 delayed" in refusal()
    described.write_text(json.dumps(manifest | {"format": 3, "deferd": "9.9.9"}))
    assert "was made by a newer deferd: restore it with deferd 9.9.9" in refusal()
    described.write_text(good[:-20])
    assert "backup.json is damaged: " in refusal()
    described.unlink()
    assert f"{saved} is not a complete backup: it has no backup.json" in refusal()

    described.write_text(good)
    shell.good("restore", str(saved), *text_of(data_dir))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["appendonly.aof.1.incr.aof", "appendonly.aof.1.base.rdb"])
def test_a_backup_with_a_foreign_command_is_refused_before_a_server_reads_it(
    saved: Path, shell: Shell, tmp_path: Path, name: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        changed = saved / APPEND_ONLY_DIR / name
        with changed.open("ab") as file:
            file.write(pack(("REPLICAOF", "127.0.0.1", stranger.getsockname()[1])))
        described = saved / "backup.json"
        manifest = json.loads(described.read_text())
        for stored in manifest["files"]:
            if stored["name"].endswith(name):
                stored |= {
                    "size": changed.stat().st_size,
                    "sha256": hashlib.sha256(changed.read_bytes()).hexdigest(),
                }
        described.write_text(json.dumps(manifest))

        text = shell.refused(1, "restore", str(saved), *text_of(tmp_path / "restored"))

        assert f"{name} of the backup holds the command REPLICAOF 127.0.0.1" in text
        assert [] == list((tmp_path / "restored").glob("*.log")), "a server was started"
        assert [] == select.select([stranger], [], [], 0)[0], "it connected to a stranger"
