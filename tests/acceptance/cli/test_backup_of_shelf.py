"""`deferd backup`, `restore` and `copy` of services that have jobs on the shelf."""

from __future__ import annotations

import asyncio
import json
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Self

import httpx
import pytest
import redis

from deferd import Client
from deferd.engine.store_copy import split_key
from deferd.shelf.rows import Rows
from deferd.store.data_dir import APPEND_ONLY_DIR, SHELF_DIR, DataDirectory
from deferd.store.embedded import EmbeddedStore
from deferd.store.preflight import StoreRefused
from tests.acceptance.cli.command_line import Shell
from tests.acceptance.cli.every_state import assert_sound
from tests.acceptance.cli.preloaded_shell import PreloadedShell
from tests.acceptance.service_process import ServiceProcess, running_service
from tests.integration.store.store_servers import StoreServer
from tests.shelving import status_of
from tests.waiting import wait_until

WAIT_S = 20.0
TOPIC, OTHER, PARTS = "orders:close", "mails", "parts"
SHELVED = 322
SHELVING = ("--shelf-after", "0s")
HOUR_S = 3600
EVER_MS = (1 << 53) - 1
JOBS_TOGETHER = 20
PAUSE_S = 0.01
Place = tuple[str, str]
"""A topic and an id."""


@pytest.fixture
def shell() -> Shell:
    """Of commands that need no service."""
    return PreloadedShell("http://127.0.0.1:9")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where backups go."""
    return tmp_path / "backup"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    """One that has put all its delayed jobs on the shelf, see `fill`."""
    with running_service(*SHELVING, data_dir=tmp_path / "service") as service:
        with Client(service.url) as client:
            fill(client)
        wait_for_jobs_on_the_shelf(service, SHELVED)
        yield service


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with such a service's data directory, `data`, and a backup of it, `backup`; no service runs."""
    root = tmp_path_factory.mktemp("made")
    with running_service(*SHELVING, data_dir=root) as service:
        with Client(service.url) as client:
            fill(client)
        wait_for_jobs_on_the_shelf(service, SHELVED)
    PreloadedShell(service.url).json("backup", str(root / "backup"), *text_of(root / "data"))
    return root


@pytest.fixture
def saved(made: Path, folder: Path) -> Path:
    """The backup, which the test may change."""
    shutil.copytree(made / "backup", folder)
    return folder


def fill(client: Client) -> None:
    """Put 300 jobs with tags, two large ones, 20 into partitions, and one that is ready."""
    client.put_batch(
        [{"topic": TOPIC, "id": f"j{at}", "delay": HOUR_S + at, "tags": ["t", f"t{at % 3}"]} for at in range(300)]
    )
    client.put_batch([{"topic": OTHER, "id": f"j{at}", "delay": HOUR_S, "body": "x" * 200_000} for at in range(2)])
    client.put(OTHER, id="ready")
    client.set_topic(PARTS, {"partitions": 4})
    client.put_batch([{"topic": PARTS, "id": f"j{at}", "delay": HOUR_S} for at in range(20)])


def text_of(data_dir: Path) -> tuple[str, str]:
    return "--data-dir", str(data_dir)


def wait_for_jobs_on_the_shelf(service: ServiceProcess, number: int) -> None:
    wait_until(lambda: status_of(service.data_dir).jobs == number, WAIT_S, f"{number} jobs are on the shelf")


def has_moved_both_ways(service: ServiceProcess) -> Callable[[], bool]:
    """Whether jobs have gone to the shelf and come back since this call."""
    before = status_of(service.data_dir)

    def has_moved() -> bool:
        now = status_of(service.data_dir)
        return now.moved_out > before.moved_out and now.moved_in > before.moved_in

    return has_moved


def where_jobs_are(data_dir: Path) -> tuple[list[Place], list[Place]]:
    """The jobs in the store and on the shelf of a directory that no service uses."""

    def pools() -> list[Place]:
        with redis.Redis(unix_socket_path=str(DataDirectory(data_dir).socket), socket_timeout=10) as store:
            found = [(split_key(key.decode())[0], store.hkeys(key)) for key in store.scan_iter("deferd:*:pool")]
        return [(topic, job_id.decode()) for topic, ids in found for job_id in ids]

    async def in_store() -> list[Place]:
        embedded = EmbeddedStore(data_dir)
        embedded.claim()
        try:
            await embedded.start()
            return await asyncio.to_thread(pools)
        finally:
            await embedded.stop()

    with Rows(data_dir / SHELF_DIR) as rows:
        assert rows.moves() == []
        shelved = [(topic, job_id) for topic in rows.topics() for job_id in rows.due_until(topic, EVER_MS, 1_000_000)]
        assert Counter(topic for topic, _ in shelved) == dict(rows.counts())
    return asyncio.run(in_store()), shelved


class Moving:
    """Puts jobs, which go to the shelf, and reads them, so that they come back, until it is stopped.

    Each topic is new: jobs of one that has jobs on the shelf stay in the store for some time.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._put, self._load)]
        self.acknowledged: list[Place] = []
        self.loaded = 0

    def _put(self) -> None:
        with Client(self._url) as client:
            while not self._stopping.wait(PAUSE_S):
                topic = f"t{len(self.acknowledged)}"
                client.put_batch([{"topic": topic, "id": f"j{at}", "delay": HOUR_S} for at in range(JOBS_TOGETHER)])
                self.acknowledged += [(topic, f"j{at}") for at in range(JOBS_TOGETHER)]

    def _load(self) -> None:
        chance = Random(1)
        with httpx.Client(base_url=self._url) as calls:
            while not self._stopping.wait(PAUSE_S):
                if self.acknowledged:
                    topic, job_id = chance.choice(self.acknowledged)
                    assert calls.get(f"/jobs/{topic}/{job_id}").status_code == 200
                    self.loaded += 1

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.loaded > 20, WAIT_S, "jobs move")
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(WAIT_S)


@pytest.mark.slow
def test_a_backup_has_each_acknowledged_job_once_while_jobs_move(folder: Path, shell: Shell, tmp_path: Path) -> None:
    acknowledged: list[list[Place]] = []
    with running_service(*SHELVING, data_dir=tmp_path / "service") as service, Moving(service.url) as moving:
        for number, flags in enumerate([(), ("--no-verify",), ()]):
            wait_until(has_moved_both_ways(service), WAIT_S, "jobs move in both ways")
            acknowledged.append(list(moving.acknowledged))
            made = shell.json("backup", str(folder / str(number)), *text_of(service.data_dir), *flags)[0]
            assert made["format"] == 2
            assert (made["counts"] is None) == bool(flags)
        wait_until(has_moved_both_ways(service), WAIT_S, "jobs move in both ways after a backup")
        assert not list((service.data_dir / SHELF_DIR).glob("checkpoint-*"))

    for number, jobs in enumerate(acknowledged):
        data_dir = tmp_path / f"restored-{number}" / "data"
        [restored] = shell.json("restore", str(folder / str(number)), *text_of(data_dir))
        in_store, shelved = where_jobs_are(data_dir)
        found = Counter(in_store + shelved)
        assert set(found.values()) == {1}
        assert set(jobs) <= set(found)
        assert restored["counts"]["delayed"] == len(found)
        assert min(len(in_store), len(shelved)) > 0
    with running_service(*SHELVING, data_dir=data_dir.parent) as service, Client(service.url) as client:
        assert {(view.topic, job.id) for view in client.topics() for job in client.jobs(view.topic)} == set(found)
        assert_sound(client)


@pytest.mark.slow
def test_a_stopped_service_is_backed_up_with_its_shelf(
    service: ServiceProcess, folder: Path, shell: Shell, tmp_path: Path
) -> None:
    service.stop()
    made = shell.json("backup", str(folder), *text_of(service.data_dir))[0]
    assert (made["counts"]["delayed"], made["counts"]["ready"], made["topics"]) == (SHELVED, 1, 3)
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in [folder, *folder.rglob("*")]}
    assert modes == {True: 0o700, False: 0o600}
    assert sorted(path.name for path in folder.iterdir()) == [APPEND_ONLY_DIR, "backup.json", SHELF_DIR]
    listed = {file["name"] for file in made["files"]}
    assert listed == {f"{path.parent.name}/{path.name}" for path in folder.glob("*/*")}

    shell.good("restore", str(folder), *text_of(tmp_path / "restored" / "data"))
    assert len(where_jobs_are(tmp_path / "restored" / "data")[1]) == SHELVED
    with (
        running_service(*SHELVING, data_dir=tmp_path / "restored") as restored,
        Client(restored.url) as client,
    ):
        assert [job.id for job in client.jobs(TOPIC)] == [f"j{at}" for at in range(300)]
        client.cancel(TOPIC, "j7")
        assert_sound(client)
    service.start()


def test_a_service_that_was_killed_is_backed_up(
    service: ServiceProcess, folder: Path, shell: Shell, tmp_path: Path
) -> None:
    service.kill()
    shell.good("backup", str(folder), *text_of(service.data_dir))
    shell.good("restore", str(folder), *text_of(tmp_path / "restored"))
    assert len(where_jobs_are(tmp_path / "restored")[1]) == SHELVED


@pytest.mark.slow
def test_a_damaged_file_of_the_shelf_is_not_restored(saved: Path, shell: Shell, tmp_path: Path) -> None:
    data_dir = tmp_path / "restored"

    def refusal() -> str:
        text = shell.refused(1, "restore", str(saved), *text_of(data_dir))
        assert not (data_dir / APPEND_ONLY_DIR).exists()
        assert not (data_dir / SHELF_DIR).exists()
        return text

    for path in sorted((saved / SHELF_DIR).iterdir()):
        content = path.read_bytes()
        if not content:
            continue
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert f"shelf/{path.name} in the backup {saved} is damaged" in refusal()
        path.unlink()
        assert f"lacks its file shelf/{path.name}: restore another backup" in refusal()
        path.write_bytes(content)

    described = json.loads((saved / "backup.json").read_text())
    described["files"] = [file for file in described["files"] if not file["name"].startswith("shelf/")]
    (saved / "backup.json").write_text(json.dumps(described))
    assert "the shelf has 0 jobs of topic 'mails', but 2 as the store counts them" in refusal()


def test_a_damaged_shelf_is_not_backed_up(made: Path, folder: Path, shell: Shell, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(made / "data", data_dir)
    with Rows(data_dir / SHELF_DIR) as rows:
        for table in ("jobs", "due", "tags"):
            rows.flush(table)
    damaged = max((data_dir / SHELF_DIR).glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[100:200] = bytes(100)
    damaged.write_bytes(content)
    text = shell.refused(1, "backup", str(folder), *text_of(data_dir))
    assert "the shelf's files cannot be used: " in text
    assert damaged.name in text
    assert not folder.exists()


@pytest.mark.slow
def test_a_restore_moves_the_old_shelf_aside(saved: Path, shell: Shell, tmp_path: Path) -> None:
    with running_service(*SHELVING, data_dir=tmp_path / "old") as service:
        with Client(service.url) as client:
            client.put(TOPIC, id="old", delay=HOUR_S)
        wait_for_jobs_on_the_shelf(service, 1)
    data_dir = service.data_dir
    assert "has data already" in shell.refused(1, "restore", str(saved), *text_of(data_dir))
    [restored] = shell.json("restore", str(saved), *text_of(data_dir), "--force")
    assert Path(restored["old_data"]).parent == Path(restored["old_shelf"]).parent == data_dir
    assert len(where_jobs_are(data_dir)[1]) == SHELVED
    with service, Client(service.url) as client:
        assert "old" not in {job.id for job in client.jobs(TOPIC)}
        assert_sound(client)
    for name, old in ((APPEND_ONLY_DIR, "old_data"), (SHELF_DIR, "old_shelf")):
        shutil.rmtree(data_dir / name)
        Path(restored[old]).rename(data_dir / name)
    with service, Client(service.url) as client:
        assert [job.id for job in client.jobs(TOPIC)] == ["old"]


def test_a_backup_without_a_shelf_replaces_one(folder: Path, shell: Shell, tmp_path: Path, made: Path) -> None:
    with running_service(data_dir=tmp_path / "plain") as service, Client(service.url) as client:
        client.put(TOPIC, id="plain", delay=HOUR_S)
        assert shell.json("backup", str(folder), *text_of(service.data_dir))[0]["format"] == 1
    data_dir = tmp_path / "restored" / "data"
    shutil.copytree(made / "data", data_dir)
    [restored] = shell.json("restore", str(folder), *text_of(data_dir), "--force")
    assert Path(restored["old_shelf"]).is_dir()
    with running_service(*SHELVING, data_dir=data_dir.parent) as service, Client(service.url) as client:
        assert [job.id for job in client.jobs(TOPIC)] == ["plain"]


def test_a_restore_that_was_interrupted_is_not_served(made: Path, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    shutil.copytree(made / "data", data_dir)
    (data_dir / APPEND_ONLY_DIR).rename(tmp_path / "store")
    (data_dir / SHELF_DIR).rename(data_dir / "shelf.before-restore-1")
    with pytest.raises(
        StoreRefused, match=r"so it has no data: .* delete shelf.before-restore-1 to begin without jobs"
    ):
        DataDirectory(data_dir).prepare()


@pytest.mark.parametrize("shards", ["1", "3"])
def test_jobs_on_the_shelf_are_copied_into_the_memory_of_another_store(
    made: Path, shell: Shell, tmp_path: Path, shards: str
) -> None:
    with StoreServer(tmp_path / "store") as store:
        store.mark_used(shards=int(shards))
        source = tmp_path / "source"
        shutil.copytree(made / "data", source)
        *topics, total = shell.json("copy", "--from", str(source), "--to", store.url, "--shards", shards)
        assert total["adds_up"]
        assert {row["topic"]: (row["from"]["delayed"], row["to"]["delayed"]) for row in topics} == {
            TOPIC: (300, 300),
            OTHER: (2, 2),
            PARTS: (20, 20),
        }
        assert not store.command("KEYS", "*:shelf")
        flags = ("--redis-url", store.url, "--shards", shards)
        with running_service(*flags, data_dir=tmp_path / "s") as service, Client(service.url) as client:
            assert [job.id for job in client.jobs(TOPIC)] == [f"j{at}" for at in range(300)]
            assert len(list(client.jobs(TOPIC, tag="t1"))) == 100
            assert len(list(client.jobs(PARTS))) == 20
            assert client.get(OTHER, "j1").body == "x" * 200_000
            assert_sound(client)


def test_a_copy_of_a_store_without_its_shelf_is_refused(
    service: ServiceProcess, shell: Shell, tmp_path: Path, made: Path
) -> None:
    target = str(tmp_path / "target")
    url = f"unix://{DataDirectory(service.data_dir).socket}"
    text = shell.refused(1, "copy", "--from", url, "--to", target, "--force")
    assert "322 jobs are on the shelf, which is not in the store" in text
    assert "start the service once without --shelf-after" in text

    source = tmp_path / "source"
    shutil.copytree(made / "data", source)
    shutil.rmtree(source / SHELF_DIR)
    assert "322 jobs are on the shelf" in shell.refused(1, "copy", "--from", str(source), "--to", target)

    with_jobs = tmp_path / "with-jobs"
    shutil.copytree(made / "data" / SHELF_DIR, with_jobs / SHELF_DIR)
    with_jobs.chmod(0o700)
    text = shell.refused(1, "copy", "--from", str(made / "data"), "--to", str(with_jobs))
    assert f"the data directory {with_jobs} has jobs on a shelf" in text
