"""The rows of one topic and one tag are found, and no others."""

from __future__ import annotations

from pathlib import Path
from random import Random

import orjson
import pytest
from rocksdict import ReadOptions

import deferd.shelf.rows as rows_module
from deferd.engine.shelf import Job, Wanted
from deferd.shelf.rows import IN, OUT, Move, Rows
from tests.file_systems import mounted
from tests.waiting import IDLE_S, wait_until

TOPICS = ("a", "b", "b#1")


def row(job_id: str, due_ms: int, tags: list[str]) -> Job:
    extra = orjson.dumps({"g": tags})
    times = (0).to_bytes(6, "little") + due_ms.to_bytes(6, "little") + bytes(10)
    return Job(job_id, times + len(extra).to_bytes(4, "little") + extra)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_read_ends_where_the_rows_of_others_begin(tmp_path: Path, *, reverse: bool) -> None:
    with Rows(tmp_path) as rows:
        for topic in TOPICS:
            jobs = [row(f"j{n}", 1000 + n, ["x", f"x{n % 2}"]) for n in range(9)]
            rows.begin(Move(topic, OUT, 1, "token", tuple(job.id for job in jobs)), jobs)
        ids = [f"j{n}" for n in range(9)]
        order = -1 if reverse else 1
        for topic in TOPICS:
            found = rows.page(topic, Wanted(), 100, reverse=reverse)
            assert ([job.id for job in found.jobs], found.has_more) == (ids[::order], False)
            found = rows.page(topic, Wanted(due_from_ms=1003, due_before_ms=1006), 100, reverse=reverse)
            assert ([job.id for job in found.jobs], found.has_more) == (ids[3:6][::order], False)
            found = rows.page(topic, Wanted(due_from_ms=1003), 2, (1005, "j5"), reverse=reverse)
            assert [job.id for job in found.jobs] == (["j4", "j3"] if reverse else ["j6", "j7"])
            assert rows.with_tag(topic, "x", 100, reverse=reverse) == ids[::order]
            assert rows.with_tag(topic, "x1", 100, reverse=reverse) == ids[1::2][::order]
            assert rows.with_tag(topic, "x1", 100, "j5", reverse=reverse) == (["j3", "j1"] if reverse else ["j7"])


@pytest.mark.slow
def test_reads_do_not_pass_over_all_that_was_ever_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic is filled and emptied all the time: what was deleted is compacted, also before its files are so many."""
    chance, most = Random(1), 120_000  # up to 90,000 puts and deletions are in memory

    def options() -> ReadOptions:
        made = ReadOptions()
        made.set_max_skippable_internal_keys(most)  # a read that passes over more of them fails
        return made

    with Rows(tmp_path) as rows:
        rows._on_disk.sync = False
        for number in range(500):
            jobs = [row(f"j{number}-{at}", chance.randrange(10**9), []) for at in range(250)]
            ids = tuple(job.id for job in jobs)
            rows.begin(Move("a", OUT, 1, "token", ids), jobs)
            rows.end(Move("a", IN, 1, "token", ids), jobs)
        await_compaction(rows)
        monkeypatch.setattr(rows_module, "ReadOptions", options)
        assert rows.page("a", Wanted(), 100).jobs == []
        assert rows.due_until("a", 1 << 40, 250) == []


def await_compaction(rows: Rows) -> None:
    work = ("mem-table-flush-pending", "num-running-flushes", "compaction-pending", "num-running-compactions")

    def is_done() -> bool:
        tables = rows._tables.values()
        return not any(table.property_int_value(f"rocksdb.{kind}") for table in tables for kind in work)

    wait_until(is_done, IDLE_S, "nothing is left to compact")


def test_what_rocksdb_tells_about_its_work_does_not_fill_the_disk(tmp_path: Path) -> None:
    for _ in range(10):
        with Rows(tmp_path) as rows:
            rows.count_start()
    assert len(list(tmp_path.glob("LOG*"))) <= 5


def test_files_are_written_past_the_page_cache(tmp_path: Path) -> None:
    assert passes_by_the_page_cache(tmp_path)


def test_files_are_kept_where_the_page_cache_cannot_be_passed_by(tmp_path: Path) -> None:
    with mounted(tmp_path / "in-memory", "ramfs") as memory:
        assert not passes_by_the_page_cache(memory / "shelf")


def passes_by_the_page_cache(folder: Path) -> bool:
    """Write, compact and read some megabytes in the folder; whether RocksDB does the first two past the page cache."""
    chance = Random(1)
    jobs = [row(f"j{n:03}", 1000 + n, [chance.randbytes(8_000).hex()]) for n in range(250)]
    with Rows(folder) as rows:
        for number in (1, 2):
            rows.begin(Move("a", OUT, number, "token", tuple(job.id for job in jobs)), jobs)
            for table in rows._tables.values():
                table.flush()
        rows._tables["jobs"].compact_range(None, None)
        assert rows.jobs("a", [job.id for job in jobs]) == jobs
    told = (folder / "LOG").read_text()
    assert "compaction_finished" in told
    [line] = [line for line in told.splitlines() if "use_direct_io_for_flush" in line]
    return line.endswith(": 1")
