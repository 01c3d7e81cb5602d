"""Files of the shelf that are damaged: what can be read is served, and what cannot is named."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from deferd.contract.errors import StoreUnavailable
from deferd.contract.model import JobState, PutJob
from deferd.contract.operations.audits import FindingKind
from deferd.engine.redis_keys import Keys
from deferd.engine.scripts import Scripts
from deferd.engine.shelf import Job, Wanted
from deferd.shelf.rows import IN, OUT, Move, Rows
from deferd.shelf.shelving import Shelving
from deferd.store.connection import Store
from tests.integration.engine.engine_driver import TOPIC
from tests.shelving import Shelved

FAR_MS = 100_000_000
JOBS = 4000
MOST_UNREADABLE = 2 * 16 * 1024 // 100
"""So many records are in two blocks at most, which the damage may touch: they have more than 100 bytes each."""


def shelve(rows: Rows) -> list[str]:
    """Jobs that are due one a second, with bodies that cannot be compressed."""
    chance, due_ms = Random(1), int(time.time() * 1000) + FAR_MS
    jobs = []
    for number in range(JOBS):
        head = due_ms.to_bytes(6, "little") + (due_ms + 1000 * number).to_bytes(6, "little") + bytes(14)
        jobs.append(Job(f"j{number:04}", head + chance.randbytes(100)))
    for at in range(0, JOBS, 250):
        move = Move(TOPIC, OUT, at + 1, f"{at}", tuple(job.id for job in jobs[at : at + 250]))
        rows.begin(move, jobs[at : at + 250])
        rows.end(move, ())
    return [job.id for job in jobs]


def damage(folder: Path, is_meant: Callable[[Path], bool]) -> None:
    """Overwrite some bytes in the middle of one of the files."""
    rows = Rows(folder)
    for table in rows._tables.values():
        table.flush()
        table.compact_range(None, None)
    rows.close()
    [file] = [path for path in folder.glob("*.sst") if is_meant(path)]
    with file.open("r+b") as opened:
        opened.seek(file.stat().st_size // 2)
        opened.write(b"\xff" * 16)


def is_of_records(file: Path) -> bool:
    return file.stat().st_size > 200_000


def is_of_due_times(file: Path) -> bool:
    return 20_000 < file.stat().st_size <= 200_000


def test_jobs_beside_a_damaged_record_are_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Rows(tmp_path) as rows:
        ids = shelve(rows)
    damage(tmp_path, is_of_records)
    with Rows(tmp_path) as rows:
        read = [job.id for at in range(0, JOBS, 250) for job in rows.jobs(TOPIC, ids[at : at + 250])]
        unreadable = rows.unreadable(TOPIC, ids)
        assert sorted(read + unreadable) == ids
        assert 0 < len(unreadable) < MOST_UNREADABLE
        assert rows.due_until(TOPIC, 1 << 47, JOBS) == read
    [logged] = [record.message for record in caplog.records]
    assert f"jobs such as {unreadable[0]!r} cannot be read, as a file of the shelf is damaged" in logged


@pytest.mark.parametrize("reverse", [False, True])
def test_jobs_beside_damaged_due_times_are_found(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, reverse: bool
) -> None:
    with Rows(tmp_path) as rows:
        ids = shelve(rows)
    damage(tmp_path, is_of_due_times)
    with Rows(tmp_path) as rows:
        found, page = [], rows.page(TOPIC, Wanted(), 250, reverse=reverse)
        while page.has_more:
            found += [job.id for job in page.jobs]
            page = rows.page(TOPIC, Wanted(), 250, page.end, reverse=reverse)
        found += [job.id for job in page.jobs]
        assert found == sorted(found, reverse=reverse)
        assert JOBS * 3 / 4 < len(found) < JOBS
        assert len(rows.jobs(TOPIC, ids)) == JOBS
    assert {"jobs cannot be found by when they are due" in record.message for record in caplog.records} == {True}


async def test_calls_say_that_a_job_cannot_be_read_and_others_go_on(store: Store, tmp_path: Path) -> None:
    with Rows(tmp_path) as rows:
        shelve(rows)
    damage(tmp_path, is_of_records)
    shelved = Shelved(store, tmp_path)
    await store.call("HSET", f"deferd:{{0}}:{TOPIC}:shelf", "jobs", JOBS, "bytes", 0, "tags", 0)
    await shelved.mover.settle_all()
    loaded = 0
    while ids := await shelved.mover.due(TOPIC, 1 << 47):
        loaded += len(await shelved.mover.move_in(TOPIC, ids))
    [unreadable, *_] = shelved.rows.unreadable(TOPIC, [f"j{number:04}" for number in range(JOBS)])
    assert JOBS - MOST_UNREADABLE < loaded < JOBS
    with pytest.raises(
        StoreUnavailable, match=f"job '{unreadable}' of topic '{TOPIC}' is on the shelf, and cannot be read"
    ):
        await shelved.engine.cancels.cancel(TOPIC, unreadable)
    assert await shelved.engine.cancels.cancel(TOPIC, "j0001")
    report = await shelved.engine.consistency.audit_topic(TOPIC)
    assert report.findings.counts[FindingKind.SHELF_UNREADABLE] == JOBS - loaded
    await shelved.close()


async def test_jobs_that_cannot_be_read_keep_no_others_from_coming_back(store: Store, tmp_path: Path) -> None:
    with Rows(tmp_path) as rows:
        shelve(rows)
        later = Job("later", rows.jobs(TOPIC, [f"j{JOBS - 1:04}"])[0].record)
        rows.begin(Move("other", OUT, 1, "1", ("later",)), [later])
        rows.end(Move("other", OUT, 1, "1", ("later",)), ())
    damage(tmp_path, is_of_records)
    shelved = Shelved(store, tmp_path)
    await shelved.mover.settle_all()
    shelving = Shelving(shelved.mover, Scripts(store), Keys(1), after_ms=None, wait_s=0.0)
    async with asyncio.timeout(30):
        await shelving.returning._look()
    unreadable = shelved.rows.unreadable(TOPIC, [f"j{number:04}" for number in range(JOBS)])
    assert shelved.mover.count_unreadable() == len(unreadable)
    assert shelved.mover.moved[IN] == JOBS + 1 - len(unreadable) < JOBS + 1
    assert shelved.rows.first_due(TOPIC) is None
    assert list(shelved.rows.page(TOPIC, Wanted(), 250).unreadable) == unreadable
    await shelved.close()


def log_of_a_killed_process(tmp_path: Path) -> Path:
    """The log of files that no process has closed."""
    with Rows(tmp_path / "open") as rows:
        shelve(rows)
        shutil.copytree(tmp_path / "open", tmp_path / "left")
    [log] = (tmp_path / "left").glob("*.log")
    return log


def test_a_torn_log_is_no_loss_in_silence(tmp_path: Path) -> None:
    log = log_of_a_killed_process(tmp_path)
    with log.open("r+b") as opened:
        opened.seek(log.stat().st_size // 2)
        opened.write(b"\xff" * 16)
    with pytest.raises(Exception, match="Corruption"):
        Rows(log.parent)


def test_a_log_whose_end_is_missing_is_read_up_to_there(tmp_path: Path) -> None:
    """Its process ended while it wrote what nobody was told of: the end of the last move."""
    log = log_of_a_killed_process(tmp_path)
    with log.open("r+b") as opened:
        opened.truncate(log.stat().st_size - 10)
    with Rows(log.parent) as rows:
        assert rows.counts_before(TOPIC, [1 << 47]) == [JOBS]
        assert len(rows.moves()) == 1


@pytest.mark.parametrize("damaged", ["delay", "shelf"])
async def test_a_topic_whose_keys_were_replaced_keeps_no_other_from_moving(
    store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: str
) -> None:
    shelved = Shelved(store, tmp_path)
    for topic in ("a-damaged", TOPIC):
        await shelved.engine.puts.put(PutJob(topic=topic, id="x", delay=100_000))
    await store.call("DEL", f"deferd:{{0}}:a-damaged:{damaged}")
    await store.call("SET", f"deferd:{{0}}:a-damaged:{damaged}", "")
    moving = asyncio.create_task(Shelving(shelved.mover, Scripts(store), Keys(1), after_ms=1000, wait_s=0).run())
    async with asyncio.timeout(5):
        while not moving.done() and not shelved.mover.moved[OUT]:
            await asyncio.sleep(0.01)
    assert not moving.done()
    moving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await moving
    logged = [record.getMessage() for record in caplog.records if "jobs cannot be moved" in record.getMessage()]
    assert ["a-damaged" in text for text in logged] == [True] * (damaged == "shelf")
    await shelved.close()


@pytest.mark.parametrize("extra", [b'{"g":', b'{"g":1}', b'{"g":[1]}', b'{"g":[]}x'])
async def test_a_job_whose_record_is_damaged_stays_in_the_store(store: Store, tmp_path: Path, extra: bytes) -> None:
    shelved = Shelved(store, tmp_path)
    await shelved.put("a", int(time.time() * 1000) + FAR_MS)
    await shelved.put("b", int(time.time() * 1000) + FAR_MS)
    pool = f"deferd:{{0}}:{TOPIC}:pool"
    record = await store.call("HGET", pool, "b")
    damaged_record = record[:22] + len(extra).to_bytes(4, "little") + extra
    await store.call("HSET", pool, "b", damaged_record)
    await shelved.move_out()
    assert [job.id for job in shelved.rows.jobs(TOPIC, ["a", "b"])] == ["a"]
    assert await store.call("HGET", pool, "b") == damaged_record
    await shelved.close()


async def replace(store: Store, key: str) -> None:
    """What another program might do."""
    await store.call("DEL", key)
    await store.call("SET", key, "")


async def test_no_job_is_lost_when_the_key_of_its_tag_was_replaced(store: Store, tmp_path: Path) -> None:
    shelved = Shelved(store, tmp_path)
    await shelved.put("a", int(time.time() * 1000) + FAR_MS)
    await shelved.put("b", int(time.time() * 1000) + FAR_MS, ["red"])
    await replace(store, "deferd:{0}:tag/red")
    with pytest.raises(StoreUnavailable, match="another program has damaged what the store has of topic"):
        await shelved.move_out()
    for job_id in ("a", "b"):
        assert (await shelved.engine.queue.get(TOPIC, job_id)).state is JobState.DELAYED
    async with shelved.mover.still(TOPIC):  # the move that failed is settled
        assert await shelved.mover.count() == 0
    await shelved.close()


@pytest.mark.parametrize("damaged", ["tag/red", f"{TOPIC}:delay", f"{TOPIC}:expiry"])
async def test_jobs_come_back_whole_or_not_at_all(store: Store, tmp_path: Path, damaged: str) -> None:
    shelved = Shelved(store, tmp_path)
    await shelved.put("a", int(time.time() * 1000) + FAR_MS, ["red"])
    await shelved.engine.puts.put(PutJob(topic=TOPIC, id="b", delay=100_000, ttl=10))
    await shelved.move_out()
    assert await shelved.mover.count() == 2
    await replace(store, f"deferd:{{0}}:{damaged}")
    if damaged == "tag/red":
        await shelved.mover.move_in(TOPIC, ["a", "b"])
    else:
        with pytest.raises(StoreUnavailable):
            await shelved.mover.move_in(TOPIC, ["a", "b"])
        await store.call("DEL", f"deferd:{{0}}:{damaged}")
        await shelved.mover.move_in(TOPIC, ["a", "b"])
    assert await shelved.mover.count() == 0
    for job_id in ("a", "b"):
        assert (await shelved.engine.queue.get(TOPIC, job_id)).state is JobState.DELAYED
    assert await store.call("ZSCORE", f"deferd:{{0}}:{TOPIC}:expiry", "b") is not None
    await shelved.close()


@pytest.mark.parametrize("extra", [b'{"x":"1"}', b'{"l":{}}'])
async def test_a_job_whose_time_limit_is_damaged_comes_back(store: Store, tmp_path: Path, extra: bytes) -> None:
    shelved = Shelved(store, tmp_path)
    await shelved.put("a", int(time.time() * 1000) + FAR_MS)
    await shelved.put("b", int(time.time() * 1000) + FAR_MS)
    record = await store.call("HGET", f"deferd:{{0}}:{TOPIC}:pool", "b")
    damaged_record = record[:22] + len(extra).to_bytes(4, "little") + extra
    await store.call("HSET", f"deferd:{{0}}:{TOPIC}:pool", "b", damaged_record)
    await shelved.move_out()
    assert await shelved.mover.count() == 2
    assert await shelved.mover.move_in(TOPIC, ["a", "b"]) == ["a", "b"]
    assert await store.call("ZCARD", f"deferd:{{0}}:{TOPIC}:delay") == 2
    await shelved.close()
