"""The process of the shelf, in this one, on a real store: its calls, and what moves by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import PutJob
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import STILL_S, Job, Status, Wanted
from deferd.engine.store_copy import check_shelved, count_shelved
from deferd.shelf import moving, shelving
from deferd.shelf.calls import CHECKPOINT, ShelfConfiguration, frame
from deferd.shelf.client import ShelfClient
from deferd.shelf.moving import Mover
from deferd.shelf.process import ShelfProcess
from deferd.shelf.rows import _LEVEL_0_FILES_MOST, Rows
from deferd.shelf.shelving import Shelving
from deferd.shelf.still_files import still_files
from deferd.shelf.unserved import unserved_shelf
from deferd.store.backup import FilesChanged
from deferd.store.connection import Store
from deferd.store.data_dir import DataDirectory
from deferd.store.preflight import StoreRefused
from tests.file_systems import fill, mounted
from tests.integration.engine.engine_driver import TOPIC, EngineDriver
from tests.integration.store.store_servers import StoreServer
from tests.waiting import IDLE_S, until

FAR_S = 100_000
HOUR_MS = 3_600_000
SEEN_S = 0.5
"""Some looks of a shelf with `short_pauses`."""


def configuration(server: StoreServer, folder: Path, after_ms: int | None) -> ShelfConfiguration:
    return ShelfConfiguration(
        folder=str(folder / "shelf"),
        socket=str(folder / "s"),
        store_url=server.url,
        shards=1,
        movable_clock=True,
        store_timeout_s=5,
        after_ms=after_ms,
        linger_s=5,
        log_format="console",
        log_level="info",
    )


class Running:
    """A process of the shelf, and its client."""

    def __init__(self, server: StoreServer, folder: Path, *, after_ms: int | None = HOUR_MS) -> None:
        self.process = ShelfProcess(configuration(server, folder, after_ms))
        self.client = ShelfClient(folder / "s")
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self.process.run())
        await self.status_when(lambda status: status.fault is None)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        self.process.end()
        await self.ended()

    async def ended(self) -> None:
        assert self._task is not None
        async with asyncio.timeout(10):
            await self._task

    async def status_when(self, holds: Any, within_s: float = 10) -> Status:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    status = await self.client.status()
                    if holds(status):
                        return status
                except StoreUnavailable:
                    pass
                await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the shelf look often for what is to move, so that what does not move within SEEN_S stays."""
    monkeypatch.setattr(shelving, "PAUSE_S", 0.1)


async def put_far(driver: EngineDriver, *ids: str, topic: str = TOPIC, **more: Any) -> None:
    jobs = [PutJob(topic=topic, id=job_id, delay=FAR_S + at, **more) for at, job_id in enumerate(ids)]
    await driver.engine.puts.put_many(jobs)


@pytest.fixture
async def shelf(driver: EngineDriver, server: StoreServer, tmp_path: Path) -> AsyncIterator[Running]:
    """One that has three jobs."""
    await put_far(driver, "a", "b", "c", tags=["x"])
    async with Running(server, tmp_path) as running:
        await running.status_when(lambda status: status.jobs == 3)
        yield running


async def test_each_call_returns_what_the_shelf_has(shelf: Running, driver: EngineDriver) -> None:
    client, mover = shelf.client, await shelf.process.mover()
    first_ms = await client.first_due(TOPIC)
    assert first_ms is not None
    assert first_ms == await mover.first_due(TOPIC)
    page = await client.page(TOPIC, Wanted(tag="x"), 2)
    assert page == await mover.page(TOPIC, Wanted(tag="x"), 2)
    assert [type(job) for job in page.jobs] == [Job, Job]
    backwards = await client.page(TOPIC, Wanted(), 9, page.end, reverse=True)
    assert [job.id for job in backwards.jobs] == ["a"]
    assert await client.with_tag(TOPIC, "x", 2, "a") == ["b", "c"]
    assert await client.with_tag(TOPIC, "x", 2, reverse=True) == ["c", "b"]
    assert await client.topics_with_tag("x") == [TOPIC]
    assert await client.counts_before(TOPIC, [first_ms, first_ms + 1]) == [0, 1]
    assert await client.load("other", ["a"]) == 0
    assert await client.load(TOPIC, ["b", "none"]) > 0
    assert await driver.state("b") == "delayed"
    await client.load_due(first_ms)
    assert await client.first_due(TOPIC) == first_ms + 2000
    assert (await client.status()).moved_in == 2


async def test_jobs_do_not_move_in_a_block_in_which_they_must_not(shelf: Running) -> None:
    async with shelf.client.still(TOPIC):
        load = asyncio.create_task(shelf.client.load(TOPIC, ["a"]))
        await asyncio.sleep(0.1)
        assert not load.done()
        assert (await shelf.client.status()).jobs == 3
    assert await load > 0
    assert (await shelf.client.status()).jobs == 2


async def test_a_block_that_takes_too_long_fails_and_stops_nobody(shelf: Running) -> None:
    async def load_in_a_block() -> None:
        async with shelf.client.still(TOPIC), asyncio.timeout(STILL_S + 2):
            assert await shelf.client.load(TOPIC, ["a"]) > 0

    with pytest.raises(StoreUnavailable, match="too slowly"):
        await load_in_a_block()


async def test_a_block_ends_with_its_connection(shelf: Running, tmp_path: Path) -> None:
    other = ShelfClient(tmp_path / "s")

    async def lose_the_connection_in_a_block() -> None:
        async with other.still(TOPIC):
            await other.close()
            async with asyncio.timeout(STILL_S / 2):
                assert await shelf.client.load(TOPIC, ["a"]) > 0

    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await lose_the_connection_in_a_block()


async def test_the_process_ends_when_it_is_told(shelf: Running) -> None:
    assert await shelf.client.end() > 0
    await shelf.ended()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await shelf.client.status()


async def test_an_orphan_ends_with_its_last_connection(shelf: Running) -> None:
    shelf.process.orphan()
    await asyncio.sleep(0.05)
    assert (await shelf.client.status()).jobs == 3
    await shelf.client.close()
    await shelf.ended()


async def test_jobs_come_back_before_they_are_due(shelf: Running, driver: EngineDriver) -> None:
    driver.move_clock(FAR_S - HOUR_MS // 2000 - 60)
    await asyncio.sleep(SEEN_S)
    assert (await shelf.client.status()).jobs == 3
    driver.move_clock(60)
    status = await shelf.status_when(lambda status: status.jobs < 3)
    assert (status.jobs_behind, status.behind_s) == (0, 0)
    assert await driver.state("a") == "delayed"


async def test_jobs_that_were_loaded_until_some_time_stay_until_the_clock_has_moved(
    driver: EngineDriver, server: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "LOADED_S", 3 * SEEN_S)
    await put_far(driver, "a", "b")
    async with Running(server, tmp_path, after_ms=0) as shelf:
        await shelf.status_when(lambda status: status.jobs == 2)
        await shelf.client.load_due(1 << 47)
        await asyncio.sleep(SEEN_S)
        assert (await shelf.client.status()).jobs == 0
        await shelf.status_when(lambda status: status.jobs == 2)


async def test_after_a_restart_jobs_stay_for_as_long_as_was_promised(
    shelf: Running, driver: EngineDriver, server: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shelf.client.end()
    await shelf.ended()
    await put_far(driver, "d")
    monkeypatch.setattr("deferd.shelf.process.KEPT_S", 3 * SEEN_S)
    async with Running(server, tmp_path) as again:
        await asyncio.sleep(SEEN_S)
        assert (await again.client.status()).jobs == 3
        await again.status_when(lambda status: status.jobs == 4)


async def test_without_a_limit_all_jobs_come_back(
    shelf: Running, driver: EngineDriver, server: StoreServer, tmp_path: Path
) -> None:
    await shelf.client.end()
    await shelf.ended()
    async with Running(server, tmp_path, after_ms=None) as again:
        await again.status_when(lambda status: status.jobs == 0)
    assert (await driver.counts())["delayed"] == 3


async def test_an_error_of_the_files_is_named_and_logged_once(
    shelf: Running, driver: EngineDriver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise Exception("IO error: No space left on device: While appending to file")  # noqa: TRY002 (as rocksdict)

    with monkeypatch.context() as broken:
        broken.setattr(Rows, "begin", full)
        await put_far(driver, "d", "e")
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="the shelf's files cannot be used: IO error: No space left"):
                await shelf.client.load(TOPIC, ["a"])
        await asyncio.sleep(SEEN_S)
    assert await shelf.client.first_due(TOPIC) is not None
    await shelf.status_when(lambda status: status.jobs == 5)
    [logged] = [record.message for record in caplog.records if "No space" in record.message]
    assert logged.startswith(
        "jobs cannot be moved to the shelf or back: the shelf's files cannot be used: IO error: No "
    )


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    with mounted(tmp_path / "shelf", "tmpfs", size="24m") as folder:
        yield folder


async def test_a_full_disk_is_named_and_jobs_can_be_moved_when_it_has_room(
    small_disk: Path, shelf: Running, driver: EngineDriver, caplog: pytest.LogCaptureFixture
) -> None:
    filler = fill(small_disk)
    await put_far(driver, *(f"d{at}" for at in range(100)), body="x" * 1000)
    await until(lambda: "No space left on device" in caplog.text, "jobs cannot be moved out")
    with pytest.raises(StoreUnavailable, match="No space left on device"):
        await shelf.client.load(TOPIC, ["a"])
    assert await shelf.client.first_due(TOPIC) is not None
    assert (await shelf.client.page(TOPIC, Wanted(), 1)).looked_at == 1
    filler.unlink()
    await until(lambda: "opening the shelf's files again" in caplog.text, "it writes again")
    await shelf.status_when(lambda status: status.fault is None)
    assert await shelf.client.load(TOPIC, ["a", "b", "c"]) > 0
    assert {await driver.state(job_id) for job_id in "abc"} == {"delayed"}
    assert (await driver.engine.consistency.audit_topic(TOPIC)).clean


async def test_a_topic_whose_files_are_damaged_does_not_stop_others(
    shelf: Running, driver: EngineDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put_far(driver, "a", topic="other")
    await shelf.status_when(lambda status: status.jobs == 4)
    due_until = Rows.due_until

    def damaged(rows: Rows, topic: str, *args: Any) -> list[str]:
        if topic == TOPIC:
            raise Exception("Corruption: block checksum mismatch")  # noqa: TRY002 (as rocksdict)
        return due_until(rows, topic, *args)

    monkeypatch.setattr(Rows, "due_until", damaged)
    driver.move_clock(FAR_S - 60)
    await shelf.status_when(lambda status: status.jobs == 3)
    behind = await shelf.client.status()
    assert behind.jobs_behind == 3
    assert HOUR_MS / 4000 - 70 < behind.behind_s < HOUR_MS / 4000
    monkeypatch.undo()
    await shelf.status_when(lambda status: status.jobs == 0)


@pytest.mark.parametrize("extra", [b'{"g":["x"', b'{"g":"x"}', b'{"zz":'])
async def test_a_job_that_another_program_has_damaged_stays_and_others_go(
    store: Store, driver: EngineDriver, server: StoreServer, tmp_path: Path, extra: bytes
) -> None:
    await put_far(driver, "a", "b", "c")
    record = await store.call("HGET", f"deferd:{{0}}:{TOPIC}:pool", "b")
    damaged = record[:22] + len(extra).to_bytes(4, "little") + extra
    await store.call("HSET", f"deferd:{{0}}:{TOPIC}:pool", "b", damaged)
    async with Running(server, tmp_path) as shelf:
        await shelf.status_when(lambda status: status.jobs == 2)
        driver.move_clock(FAR_S)
        await shelf.status_when(lambda status: status.jobs == 0)
        assert (await shelf.client.status()).moved_in == 2


@pytest.mark.parametrize("key", ["pool", "delay", "shelf"])
async def test_keys_that_another_program_has_damaged_stop_no_other_topic(
    store: Store, shelf: Running, driver: EngineDriver, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    await store.call("DEL", f"deferd:{{0}}:{TOPIC}:{key}")
    await store.call("SET", f"deferd:{{0}}:{TOPIC}:{key}", "damaged")
    await put_far(driver, "a", topic="other")
    await shelf.status_when(lambda status: status.jobs == 4)
    driver.move_clock(FAR_S)
    await shelf.status_when(lambda status: status.jobs == 3)
    await until(lambda: f"damaged what the store has of topic '{TOPIC}'" in caplog.text, "it is logged")


async def test_topics_take_turns_and_those_whose_jobs_stay_are_looked_at_less_often(
    store: Store, driver: EngineDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "BATCH", 2)
    monkeypatch.setattr(shelving, "PAUSE_S", 0.05)
    for topic in ("t1", "t2"):
        await put_far(driver, *map(str, range(20)), topic=topic)
    items = {"topic": "stays", "id": "b", "delay": FAR_S, "body": [1], "on_conflict": "append", "max_items": 9}
    await driver.engine.puts.put(PutJob.model_validate(items))
    keys, scripts = Keys(1), Scripts(store, movable_clock=True)
    looks: list[str] = []
    with Rows(tmp_path / "rows") as rows:
        mover = Mover(rows, scripts, keys)
        move_out = mover.move_out

        async def noted(topic: str, from_ms: int, **more: Any) -> tuple[int, int]:
            looks.append(topic)
            return await move_out(topic, from_ms, **{**more, "most": 2})

        monkeypatch.setattr(mover, "move_out", noted)
        running = asyncio.create_task(
            Shelving(mover, scripts, keys, after_ms=HOUR_MS, wait_s=0).run(), name="shelving of the test"
        )
        await asyncio.sleep(1.5)
        running.cancel()
        await asyncio.wait({running})
        await mover.close()
        assert rows.count() == 40
    order = [topic for topic in looks if topic != "stays"]
    assert order[:8] == ["t1"] * 4 + ["t2"] * 4
    assert 6 <= looks.count("stays") <= 16  # two calls each; without longer pauses it would be 30 looks


async def test_jobs_stay_in_the_store_while_compaction_is_behind(
    store: Store, driver: EngineDriver, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Rows(tmp_path / "rows") as rows:
        jobs = rows._tables["jobs"]
        jobs.set_options({"disable_auto_compactions": "true"})
        for number in range(_LEVEL_0_FILES_MOST + 1):
            assert not rows.is_compaction_behind()
            jobs[b"other\0%d" % number] = b""
            jobs.flush()
        await put_far(driver, "a")
        mover = Mover(rows, Scripts(store, movable_clock=True), Keys(1))
        shelving = Shelving(mover, mover._scripts, Keys(1), after_ms=HOUR_MS, wait_s=0)
        running = asyncio.create_task(shelving.run(), name="shelving of the test")
        await until(lambda: "while the shelf's files are compacted" in caplog.text, "it is logged")
        assert rows.count() == 0
        jobs.set_options({"disable_auto_compactions": "false"})
        await until(lambda: rows.count() == 1, "the job leaves", within_s=IDLE_S)
        running.cancel()
        await asyncio.wait({running})
        await mover.close()


class OfFolder(DataDirectory):
    """The data directory whose shelf `Running` has in a folder."""

    @property
    def shelf_socket(self) -> Path:
        return self.path / "s"


@contextlib.asynccontextmanager
async def files_at_rest(folder: Path) -> AsyncIterator[Path]:
    """As `still_files`, whose calls wait, in another thread."""
    rest = still_files(OfFolder(folder))
    files = await asyncio.to_thread(rest.__enter__)
    assert files is not None
    try:
        yield files
    except BaseException as exc:
        await asyncio.to_thread(rest.__exit__, type(exc), exc, exc.__traceback__)
        raise
    await asyncio.to_thread(rest.__exit__, None, None, None)


async def test_no_job_begins_to_move_while_a_backup_opens_files(
    shelf: Running, driver: EngineDriver, tmp_path: Path
) -> None:
    async with files_at_rest(tmp_path) as files:
        await put_far(driver, "d")
        load = asyncio.create_task(shelf.client.load(TOPIC, ["a"]))
        await asyncio.sleep(SEEN_S)
        assert not load.done()
        assert (await shelf.client.status()).jobs == 3
        await shelf.client.page(TOPIC, Wanted(), 1)  # what only reads does not wait
        with Rows(files) as copy:
            assert dict(copy.counts()) == {TOPIC: 3}
    assert await load > 0
    await shelf.status_when(lambda status: status.jobs == 3)  # one came, one went
    await until(lambda: not list((tmp_path / "shelf").glob("checkpoint-*")), "the copy is removed")


async def test_two_backups_may_open_files_at_once(shelf: Running, tmp_path: Path) -> None:
    async with files_at_rest(tmp_path) as files:
        async with files_at_rest(tmp_path) as others:
            assert files != others
        load = asyncio.create_task(shelf.client.load(TOPIC, ["a"]))
        await asyncio.sleep(0.2)
        assert not load.done()
    assert await load > 0


@pytest.mark.parametrize("script_runs", [True, False])
async def test_a_batch_that_was_under_way_is_ended_in_the_copy(
    shelf: Running, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, script_runs: bool
) -> None:
    """Its script runs before the copy of the store is made, or not."""
    run = Scripts.run
    is_under_way, may_run = asyncio.Event(), asyncio.Event()

    async def slow(scripts: Scripts, verb: str, *args: Any, **more: Any) -> Any:
        if verb == "shelve_in":
            is_under_way.set()
            await may_run.wait()
        return await run(scripts, verb, *args, **more)

    monkeypatch.setattr(Scripts, "run", slow)
    load = asyncio.create_task(shelf.client.load(TOPIC, ["a"]))
    await is_under_way.wait()
    async with files_at_rest(tmp_path) as files:
        copy = shutil.copytree(files, tmp_path / "copy")
        with Rows(copy) as rows:
            assert [move.ids for move in rows.moves()] == [("a",)]
        if script_runs:
            may_run.set()
            assert await load > 0
    async with unserved_shelf(copy, store, 1) as settled:
        assert settled.counts() == {TOPIC: 2 if script_runs else 3}
        check_shelved(settled.counts(), await count_shelved(store, 1))
    may_run.set()
    assert await load > 0


async def test_a_backup_that_takes_too_long_fails_and_stops_nobody(
    shelf: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "CHECKPOINT_S", 0.3)
    monkeypatch.setattr("deferd.shelf.process.CHECKPOINT_S", 0.3)

    async def load_in_a_backup() -> None:
        async with files_at_rest(tmp_path):
            assert await shelf.client.load(TOPIC, ["a"]) > 0

    with pytest.raises(StoreRefused, match=r"could not let jobs rest for a copy: .*too .*; try again"):
        await load_in_a_backup()
    async with files_at_rest(tmp_path):
        pass


async def test_jobs_move_again_when_a_backup_is_killed(shelf: Running, tmp_path: Path) -> None:
    _, writer = await asyncio.open_unix_connection(tmp_path / "s")
    writer.write(frame(1, CHECKPOINT, ()))
    copies = (tmp_path / "shelf").glob
    await until(lambda: bool(list(copies("checkpoint-*/CURRENT"))), "the copy is made")
    writer.close()
    assert await shelf.client.load(TOPIC, ["a"]) > 0
    await until(lambda: not list(copies("checkpoint-*")), "the copy is removed")


async def test_a_process_whose_files_cannot_be_read_says_so_to_a_backup(
    shelf: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise Exception("IO error: No space left on device: While linking")  # noqa: TRY002 (as rocksdict)

    monkeypatch.setattr(Rows, "checkpoint", full)
    with pytest.raises(StoreRefused, match=r"could not let jobs rest for a copy: .*No space left on device"):
        async with files_at_rest(tmp_path):
            pass
    assert await shelf.client.load(TOPIC, ["a"]) > 0


async def test_a_backup_waits_for_a_process_that_starts(
    shelf: Running, server: StoreServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await shelf.client.end()
    await shelf.ended()
    folder = OfFolder(tmp_path)
    lock = folder.try_shelf_lock()
    assert lock is not None
    monkeypatch.setattr("deferd.shelf.still_files.START_S", 0.3)
    with pytest.raises(StoreRefused, match=r"does not respond: if it has just started, try again"):
        async with files_at_rest(tmp_path):
            pass
    monkeypatch.undo()

    async def enter() -> Path:
        async with files_at_rest(tmp_path) as files:
            return files

    entered = asyncio.create_task(enter())
    async with Running(server, tmp_path):
        assert (await entered).parent == folder.shelf_dir
    os.close(lock)
    async with files_at_rest(tmp_path) as files:
        assert files == folder.shelf_dir
        assert folder.try_shelf_lock() is None, "no process can start meanwhile"


async def test_files_in_a_directory_that_cannot_be_written_are_read_without_a_lock(tmp_path: Path) -> None:
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf.lock").mkdir()  # this user may be allowed to write everything
    with still_files(OfFolder(tmp_path)) as files:
        assert files == tmp_path / "shelf"


async def test_a_shelf_that_is_made_meanwhile_is_noticed(tmp_path: Path) -> None:
    with still_files(OfFolder(tmp_path)) as files:
        assert files is None
    with pytest.raises(FilesChanged), still_files(OfFolder(tmp_path)):
        (tmp_path / "shelf").mkdir()


async def test_copies_that_a_killed_process_has_left_are_removed(tmp_path: Path) -> None:
    with Rows(tmp_path / "shelf") as rows:
        abandoned = rows.checkpoint()
    assert (abandoned / "CURRENT").exists()
    with Rows(tmp_path / "shelf"):
        assert not abandoned.exists()


async def test_a_backup_opens_files_again_when_the_process_ends_meanwhile(
    shelf: Running, server: StoreServer, tmp_path: Path
) -> None:
    """Another process may have moved jobs before all were open."""

    async def end_it_meanwhile() -> None:
        async with files_at_rest(tmp_path):
            assert await shelf.client.end() > 0
            await shelf.ended()

    with pytest.raises(FilesChanged):
        await end_it_meanwhile()
    async with files_at_rest(tmp_path) as files:
        assert files == tmp_path / "shelf"


async def test_a_backup_waits_for_a_process_that_ends_when_it_is_asked(
    shelf: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, checkpoint = asyncio.get_running_loop(), Rows.checkpoint

    def end() -> None:
        for connection in list(shelf.process.connections):
            connection.close()
        shelf.process.end()

    def end_first(rows: Rows) -> Path:
        loop.call_soon_threadsafe(end)
        time.sleep(0.2)  # its connections end meanwhile
        return checkpoint(rows)

    monkeypatch.setattr(Rows, "checkpoint", end_first)
    async with files_at_rest(tmp_path) as files:
        assert files == tmp_path / "shelf"
    await shelf.ended()
