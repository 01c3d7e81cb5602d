"""The jobs on the shelf, in RocksDB.

One process at a time opens the files. What a method changes is written in one step, and is on the disk when the method
returns, but for the end of a move. A topic has at most one move under way: a batch of jobs that leaves the store, or
goes back to it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, Self

import orjson
from rocksdict import (
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from deferd.engine.shelf import Job, Page, Wanted

_log = logging.getLogger("deferd.shelf")

OUT, IN = "out", "in"
"""The ways of a move: out of the store, and back into it."""
_JOBS, _DUE, _TAGS, _MINUTES, _MOVES, _STARTS = "jobs", "due", "tags", "minutes", "moves", "starts"
"""The tables: the records by topic and id; their order by due time; the ids by tag; how many jobs of a topic are due in
a minute; the moves under way by topic; how often moving was started."""
TABLES = (_JOBS, _DUE, _TAGS, _MINUTES, _MOVES, _STARTS)
_CACHE_BYTES = 256 * 1024 * 1024
_MEMORY_TABLE_BYTES = 32 * 1024 * 1024
_INDEX_MEMORY_TABLE_BYTES = 4 * 1024 * 1024
_FIRST_LEVEL_BYTES, _LEVELS_GROW = 128 * 1024 * 1024, 5
"""The size of the first level, at most, and by what levels grow: a hundred million records have four. As many that grow
by 10, RocksDB's factor, from a first one of at most 32 MB had compaction read 2,300 bytes and write 2,900 for each
further job, beside 160 million; so it is 1,400 and 2,000."""
_FILE_BYTES, _FILES_GROW = 8 * 1024 * 1024, 2
"""The files of the first level, and by what they grow from level to level. Due times and most ids are random, so a file
overlaps many of the next level: with RocksDB's 64 MB, and a first level of 256 MB, each compaction took a core for
seconds, and other jobs were late by 20 ms meanwhile."""
_COMPACTION_READ_BYTES = 256 * 1024
"""What compaction reads at a time. With RocksDB's 2 MB, and a disk that serves one request after another, the store's
next write waited for up to 200 ms."""
_COMPACTING = "rocksdb:low"
_LEVEL_0_FILES_MOST = 12
"""More than so many files of a table that are not compacted yet: compaction does not keep up. It begins with 4;
RocksDB makes each write wait from 20 on."""
_DELETED_OF, _DELETED = 20_000, 5_000
"""A file of an index is compacted if it has so many deletions among so many entries in a row: reads pass over them.
A few hundred scattered ones, as of cancels of random jobs, must not do that: all files of an index would be rewritten.
"""
_BLOOM_BITS, _BLOOM_OF_MEMORY = 16, 0.05
"""Filters that tell which keys are not there: their bits a key in files, and their share of the memory for records that
are not in files yet. With the customary 10 bits, and a filter for each level, one id in 50 was looked for in vain: some
200 reads of the disk a second beside 5,000 puts. The share of memory makes asking for an id a third faster.
"""
_BLOCK_BYTES, _ZSTD_LEVEL = 16 * 1024, 1
"""With RocksDB's 4 KiB and its level 3 files were larger by an eighth, and compaction took a third more CPU."""
_LOG_BYTES, _LOGS_KEPT = 4 * 1024 * 1024, 4
"""Of what RocksDB tells about its work. It begins a file at each start, and would keep a thousand of any size."""
_MINUTE_MS = 60_000
_EVER_MS = 1 << 53
_MINUTES_REMEMBERED = 100_000
_NAMED_MOST = 100
_PAGE_BYTES = 1024 * 1024
_READ_TOGETHER = 25
_CHECKPOINT = "checkpoint-"
"""Beginning of the names of folders with copies of the files."""
_END = b"\0"
"""Ends a name in a key: names have no such byte."""
_DUE_IN_KEY = struct.Struct(">Q")


class Move(NamedTuple):
    """A batch that moves. Its jobs have rows, and may be in the store instead. `token` is of this batch alone."""

    topic: str
    way: str
    number: int
    token: str
    ids: tuple[str, ...]


class Rows:
    """The files in a folder, which is made if it is missing. Close it, or use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for abandoned in folder.glob(f"{_CHECKPOINT}*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        cache = Cache(_CACHE_BYTES)
        tables = {name: _options(cache, is_index=name != _JOBS) for name in TABLES}
        self._db = _open_files(folder, _options(cache, is_index=True), tables)
        _let_others_go_first()
        self._tables = {name: self._db.get_column_family(name) for name in tables}
        self._handles = {name: self._db.get_column_family_handle(name) for name in self._tables}
        self._on_disk = WriteOptions()
        self._on_disk.sync = True
        self._minutes: dict[bytes, int] = {}
        """What was read of the table."""
        self._not_before: dict[str, int] = {}
        """By topic: no job is due earlier. So reads do not pass over those that were deleted before the first one."""
        self._unreadable: set[tuple[str, str]] = set()
        """Topic and id of jobs whose records cannot be read."""
        self._named: set[tuple[str, str]] = set()
        """The damage that was logged: topics and texts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files. Errors are ignored: what was written is on the disk already."""
        opened = [*self._tables.values(), self._db]
        self._tables, self._handles = {}, {}  # a handle keeps the files open
        for one in opened:
            with contextlib.suppress(Exception):  # after a write that failed it fails, and closes them
                one.close()

    # Reading

    def jobs(self, topic: str, ids: Sequence[str]) -> list[Job]:
        """Those of the jobs that have a row, in the order of the ids, without those of `unreadable`."""
        first = _of_topic(topic)
        keys: list[Any] = [first + job_id.encode() for job_id in ids]
        found: Any
        try:
            found = self._tables[_JOBS].get(keys)
        except Exception as exc:
            if not is_damage(exc):
                raise
            found = [self._record(topic, job_id, key) for job_id, key in zip(ids, keys, strict=True)]
        return [Job(job_id, record) for job_id, record in zip(ids, found, strict=True) if record is not None]

    def _record(self, topic: str, job_id: str, key: bytes) -> bytes | None:
        """The record of a job; None without one, or when it cannot be read."""
        try:
            record: Any = self._tables[_JOBS].get(key)
        except Exception as exc:
            if not is_damage(exc):
                raise
            self._unreadable.add((topic, job_id))
            self._name_damage(topic, f"jobs such as {job_id!r} cannot be read", exc)
            return None
        return None if record is None else bytes(record)

    def unreadable(self, topic: str, ids: Sequence[str]) -> list[str]:
        """Those of the jobs whose records could not be read."""
        return [job_id for job_id in ids if (topic, job_id) in self._unreadable] if self._unreadable else []

    def count_unreadable(self) -> int:
        """How many jobs could not be read since the files were opened."""
        return len(self._unreadable)

    def _name_damage(self, topic: str, what: str, error: Exception) -> None:
        """Log that something cannot be read, once for each topic and block of a file."""
        if (topic, str(error)) not in self._named and len(self._named) < _NAMED_MOST:
            self._named.add((topic, str(error)))
            _log.error("topic %s: %s, as a file of the shelf is damaged: %s", topic, what, error)

    def may_have(self, topic: str, ids: Sequence[str]) -> list[str]:
        """Those of the jobs that may have a row; it reads no file to find out."""
        first, may_exist = _of_topic(topic), self._tables[_JOBS].key_may_exist
        return [job_id for job_id in ids if may_exist(first + job_id.encode()) is True]

    def topics(self) -> Iterator[str]:
        """The topics that have jobs, in order."""
        iterator = self._tables[_MINUTES].iter()  # the smallest table that has them
        iterator.seek_to_first()
        while iterator.valid():
            name, _, _ = iterator.key().partition(_END)
            yield name.decode()
            iterator.seek(_after(name + _END))
        iterator.status()

    def first_due(self, topic: str) -> int | None:
        """When the first job of a topic is due; None without jobs. Those of `unreadable` do not count."""
        due = self._due(topic, _after(_of_topic(topic)), 1)
        return due[0][0] if due else None

    def due_until(self, topic: str, until_ms: int, most: int) -> list[str]:
        """The ids of at most `most` jobs of a topic that are due until then, the first due first.

        Those of `unreadable` are left out.
        """
        due = self._due(topic, _of_topic(topic) + _DUE_IN_KEY.pack(until_ms + 1), most)
        return [job_id for _, job_id in due]

    def _due(self, topic: str, end: bytes, most: int) -> list[tuple[int, str]]:
        """Due time and id of at most `most` jobs of a topic before the key `end`, but for those of `unreadable`."""
        start = _of_topic(topic)
        not_before = start + _DUE_IN_KEY.pack(self._not_before.get(topic, 0))
        passed_over = sum(of_topic == topic for of_topic, _ in self._unreadable)
        found = []
        for at, key in enumerate(self._keys(_DUE, not_before, end, most + passed_over)):
            (due_ms,) = _DUE_IN_KEY.unpack_from(key, len(start))
            if at == 0:
                self._not_before[topic] = due_ms
            job_id = key[len(start) + _DUE_IN_KEY.size :].decode()
            if (topic, job_id) not in self._unreadable:
                found.append((due_ms, job_id))
        return found[:most]

    def with_tag(self, topic: str, tag: str, most: int, after: str = "", *, reverse: bool = False) -> list[str]:
        """The ids of at most `most` jobs of a topic with this tag, in order, those after `after`."""
        first = _of_topic(topic) + tag.encode() + _END
        start, end = first + after.encode() + (_END if after else b""), _after(first)
        if reverse and after:
            start, end = first, first + after.encode()
        keys = self._keys(_TAGS, start, end, most, reverse=reverse)
        return [key[len(first) :].decode() for key in keys]

    def topics_with_tag(self, tag: str) -> Iterator[str]:
        """The topics that have jobs with this tag, in order."""
        for topic in self.topics():
            if self.with_tag(topic, tag, 1):
                yield topic

    def page(
        self,
        topic: str,
        wanted: Wanted,
        most: int,
        after: tuple[int, str] | None = None,
        *,
        reverse: bool = False,
    ) -> Page:
        """Look at the next `most` jobs of a topic, behind a due time and id, and read those that are wanted."""
        first = _of_topic(topic)
        low_ms = max(wanted.due_from_ms or 0, self._not_before.get(topic, 0))
        start = first + _DUE_IN_KEY.pack(low_ms)
        end = _after(first) if wanted.due_before_ms is None else first + _DUE_IN_KEY.pack(max(wanted.due_before_ms, 0))
        if after is not None:
            due_ms, job_id = after
            position = first + _DUE_IN_KEY.pack(due_ms) + job_id.encode()
            start, end = (start, min(end, position)) if reverse else (max(start, position + _END), end)
        keys = self._keys(_DUE, start, end, most + 1, reverse=reverse) if start < end else []
        ids = [key[len(first) + _DUE_IN_KEY.size :].decode() for key in keys[:most]]
        found: list[Job] = []
        looked_at = size = 0
        while looked_at < len(ids) and size < _PAGE_BYTES:
            some = self.jobs(topic, ids[looked_at : looked_at + _READ_TOGETHER])
            looked_at += _READ_TOGETHER
            size += sum(len(job.record) for job in some)
            found += (job for job in some if wanted.matches(job))
        looked_at = min(looked_at, len(ids))
        last = None
        if looked_at:
            (due_ms,) = _DUE_IN_KEY.unpack_from(keys[looked_at - 1], len(first))
            last = due_ms, ids[looked_at - 1]
        return Page(found, looked_at, last, len(keys) > looked_at, tuple(self.unreadable(topic, ids[:looked_at])))

    def counts_before(self, topic: str, times_ms: Sequence[int]) -> list[int]:
        """How many jobs of a topic are due before each of the times, which ascend."""
        first = _of_topic(topic)
        start = first + _DUE_IN_KEY.pack(self._not_before.get(topic, 0) // _MINUTE_MS)
        end = first + _DUE_IN_KEY.pack(times_ms[-1] // _MINUTE_MS + 1)
        pairs = list(self._pairs(_MINUTES, start, end))
        keys = [key for key, _ in pairs]
        sums = list(accumulate((int(count) for _, count in pairs), initial=0))
        counts = []
        for time_ms in times_ms:
            minute, into_ms = divmod(max(time_ms, 0), _MINUTE_MS)
            key = first + _DUE_IN_KEY.pack(minute)
            at = bisect_left(keys, key)
            counts.append(sums[at])
            if into_ms and at < len(keys) and keys[at] == key:
                counts[-1] += self._count_in_minute(first, minute, sums[at + 1] - sums[at], time_ms)
        return counts

    def _count_in_minute(self, first: bytes, minute: int, count: int, before_ms: int) -> int:
        """How many of the `count` jobs of a minute are due before a time in it; the shorter part of it is read."""
        start, end = (first + _DUE_IN_KEY.pack(at * _MINUTE_MS) for at in (minute, minute + 1))
        middle = first + _DUE_IN_KEY.pack(before_ms)
        if before_ms - minute * _MINUTE_MS <= _MINUTE_MS / 2:
            return self._count(_DUE, start, middle)
        return count - self._count(_DUE, middle, end)

    def count(self) -> int:
        """How many jobs have a row."""
        return sum(int(count) for _, count in self._pairs(_MINUTES, b"", b"\xff"))

    def bytes_on_disk(self) -> int:
        """How large the files of all tables are together, without the log of the last changes."""
        sizes = (table.property_int_value("rocksdb.total-sst-files-size") for table in self._tables.values())
        return sum(size or 0 for size in sizes)

    def is_compaction_behind(self) -> bool:
        """Whether much that was written waits to be compacted. Further writes would soon have to wait for that."""
        files = (table.property_value("rocksdb.num-files-at-level0") for table in self._tables.values())
        return any(int(count or 0) > _LEVEL_0_FILES_MOST for count in files)

    def counts(self) -> Iterator[tuple[str, int]]:
        """The topics that have jobs, and how many rows each has. It reads all of them, and so finds damaged ones."""
        options = ReadOptions()
        options.fill_cache(False)  # type: ignore[call-arg]  # its stub is wrong
        iterator = self._tables[_JOBS].iter(options)
        iterator.seek_to_first()
        start, count = b"", 0
        while iterator.valid():
            key = iterator.key()
            if not key.startswith(start) or not start:
                if count:
                    yield start[:-1].decode(), count
                start, count = key.partition(_END)[0] + _END, 0
            count += 1
            iterator.next()
        iterator.status()
        if count:
            yield start[:-1].decode(), count

    def moves(self) -> list[Move]:
        """The moves under way."""
        return [_read_move(key, value) for key, value in self._tables[_MOVES].items()]  # type: ignore[arg-type]  # in raw mode: bytes

    # Moving

    def begin(self, move: Move, jobs: Sequence[Job] = ()) -> None:
        """Note that a move is under way. Rows are written for `jobs`, which are to leave the store."""
        batch = self._batch()
        batch.put(move.topic.encode(), orjson.dumps(move[1:]), self._handles[_MOVES])
        counts: Counter[int] = Counter()
        if jobs:
            first_ms = min(job.due_ms for job in jobs)
            self._not_before[move.topic] = min(self._not_before.get(move.topic, 0), first_ms)
            before = self.jobs(move.topic, [job.id for job in jobs])  # none, but for damage
            self._delete(batch, move.topic, before, counts)
        first = _of_topic(move.topic)
        for job in jobs:
            batch.put(first + job.id.encode(), job.record, self._handles[_JOBS])
            for table, key in _index_keys(first, job):
                batch.put(key, b"", self._handles[table])
            counts[job.due_ms // _MINUTE_MS] += 1
        self._write(batch, move.topic, counts, self._on_disk)

    def end(self, move: Move, elsewhere: Sequence[Job]) -> None:
        """End a move. The rows of the jobs in `elsewhere`, which are in the store or gone, are deleted.

        That need not be on the disk: after a crash the move is ended again, and the next move writes it, too.
        """
        batch = self._batch()
        batch.delete(move.topic.encode(), self._handles[_MOVES])
        counts: Counter[int] = Counter()
        self._delete(batch, move.topic, elsewhere, counts)
        self._write(batch, move.topic, counts, WriteOptions())

    def _delete(self, batch: WriteBatch, topic: str, jobs: Sequence[Job], counts: Counter[int]) -> None:
        first = _of_topic(topic)
        for job in jobs:
            batch.delete(first + job.id.encode(), self._handles[_JOBS])
            for table, key in _index_keys(first, job):
                batch.delete(key, self._handles[table])
            counts[job.due_ms // _MINUTE_MS] -= 1

    def _write(self, batch: WriteBatch, topic: str, changes: Counter[int], options: WriteOptions) -> None:
        """Write a batch, with the changes of how many jobs are due in a minute."""
        counts: dict[bytes, int] = {}
        first = _of_topic(topic)
        for minute, change in changes.items():
            key = first + _DUE_IN_KEY.pack(minute)
            before = self._minutes.get(key)
            if before is None:
                before = int(self._tables[_MINUTES].get(key) or 0)
            counts[key] = before + change
            if counts[key]:
                batch.put(key, b"%d" % counts[key], self._handles[_MINUTES])
            else:
                batch.delete(key, self._handles[_MINUTES])
        self._db.write(batch, options)
        if len(self._minutes) > _MINUTES_REMEMBERED:
            self._minutes.clear()
        self._minutes.update(counts)

    def count_start(self) -> int:
        """Count a start of the process that moves jobs; returns how many there were, this one included."""
        starts = self._starts() + 1
        self._note_starts(starts)
        return starts

    def check_writing(self) -> None:
        """Raise the error of a write. After one that failed RocksDB writes nothing until the files are opened again."""
        self._note_starts(self._starts())

    def flush(self, table: str) -> None:
        """Write what a table has in memory to its files, so that less is left to do for a checkpoint."""
        self._tables[table].flush()

    def checkpoint(self) -> Path:
        """Make a folder with a copy of the files as they are now; most of them are shared with it. See `remove`."""
        copy = self._folder / f"{_CHECKPOINT}{token_hex(8)}"
        Checkpoint(self._db).create_checkpoint(str(copy))
        return copy

    def remove(self, checkpoint: Path) -> None:
        """Remove a copy of the files."""
        shutil.rmtree(checkpoint, ignore_errors=True)

    def _starts(self) -> int:
        before = self._tables[_STARTS].get(b"")
        return int(before) if isinstance(before, bytes) else 0

    def _note_starts(self, starts: int) -> None:
        batch = self._batch()
        batch.put(b"", b"%d" % starts, self._handles[_STARTS])
        self._db.write(batch, self._on_disk)

    def _batch(self) -> WriteBatch:
        return WriteBatch(raw_mode=True)

    def _keys(self, table: str, start: bytes, end: bytes, most: int, *, reverse: bool = False) -> list[bytes]:
        """At most `most` keys from `start` on, before `end`; `reverse`: the last ones, in the opposite order.

        Where keys by due time cannot be read, the next minute that has jobs follows.
        """
        found: list[bytes] = []
        while start < end:
            before = len(found)
            try:
                self._scan(table, start, end, most, found, reverse=reverse)
                break
            except Exception as exc:
                if table != _DUE or not is_damage(exc):
                    raise
                topic, _, _ = start.partition(_END)
                self._name_damage(topic.decode(), "jobs cannot be found by when they are due", exc)
                last = found[-1] if len(found) > before else end if reverse else start
                edge = self._next_minute(topic, last, reverse=reverse)
                start, end = (start, edge) if reverse else (edge, end)
        return found

    def _scan(self, table: str, start: bytes, end: bytes, most: int, found: list[bytes], *, reverse: bool) -> None:
        """Add keys to `found` until it has `most`."""
        iterator = self._tables[table].iter(_ending_before(end))
        step = iterator.next
        if reverse:
            step = iterator.prev
            iterator.seek_to_last()
        else:
            iterator.seek(start)
        while len(found) < most and iterator.valid() and (key := iterator.key()) >= start:
            found.append(key)
            step()
        iterator.status()  # raises an error if the files could not be read

    def _next_minute(self, topic: bytes, key: bytes, *, reverse: bool) -> bytes:
        """The begin of the next minute behind that of a key by due time which has jobs; `reverse`: the end of one."""
        first = topic + _END
        at = len(first)
        is_in_topic = len(key) >= at + _DUE_IN_KEY.size  # else it is before or behind all of them
        (due_ms,) = _DUE_IN_KEY.unpack_from(key, at) if is_in_topic else (_EVER_MS if reverse else 0,)
        low, high = first + _DUE_IN_KEY.pack(due_ms // _MINUTE_MS + 1), _after(first)
        if reverse:
            low, high = first, first + _DUE_IN_KEY.pack(max(-(-due_ms // _MINUTE_MS) - 1, 0))
        minutes = self._keys(_MINUTES, low, high, 1, reverse=reverse)
        if not minutes:
            return first if reverse else high
        (minute,) = _DUE_IN_KEY.unpack_from(minutes[0], at)
        return first + _DUE_IN_KEY.pack((minute + reverse) * _MINUTE_MS)

    def _pairs(self, table: str, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        pairs: Any = self._tables[table].items(from_key=start, read_opt=_ending_before(end))
        return iter(pairs)

    def _count(self, table: str, start: bytes, end: bytes) -> int:
        """How many keys there are; they are not copied, which takes most of the time."""
        return sum(1 for _ in self._tables[table].keys(from_key=start, read_opt=_ending_before(end)))


def _open_files(folder: Path, options: Options, tables: dict[str, Options]) -> Rdict:
    """Open the files. What is written to them passes by the page cache, if the file system can do that.

    Else it goes to the disk all at once, at the end of a file, and the store's next write waits for that.
    """
    options.set_compaction_readahead_size(_COMPACTION_READ_BYTES)
    options.set_use_direct_io_for_flush_and_compaction(True)
    try:
        return Rdict(str(folder), options, tables)
    except Exception as exc:
        if "Direct I/O is not supported" not in str(exc):
            raise
        options.set_use_direct_io_for_flush_and_compaction(False)
        return Rdict(str(folder), options, tables)


def _let_others_go_first() -> None:
    """Let the threads of this process that compact files run when nothing else does: they keep a core busy for seconds.

    A nice value is not enough: with one of 10, other threads that wake up still wait for some milliseconds.
    """
    with contextlib.suppress(OSError, AttributeError):  # not on Linux
        for task in Path("/proc/self/task").iterdir():
            if (task / "comm").read_text().startswith(_COMPACTING):
                os.sched_setscheduler(int(task.name), os.SCHED_IDLE, os.sched_param(0))


def _options(cache: Cache, *, is_index: bool) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # A log that is torn anywhere but at its end is damaged: nothing that was on the disk is dropped in silence.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_log_file_size(_LOG_BYTES)
    options.set_keep_log_file_num(_LOGS_KEPT)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    options.set_bottommost_compression_options(-14, _ZSTD_LEVEL, 0, 0, True)  # but for the level as RocksDB has them
    options.set_write_buffer_size(_INDEX_MEMORY_TABLE_BYTES if is_index else _MEMORY_TABLE_BYTES)
    options.set_max_bytes_for_level_base(_FIRST_LEVEL_BYTES)
    options.set_max_bytes_for_level_multiplier(_LEVELS_GROW)
    options.set_target_file_size_base(_FILE_BYTES)
    options.set_target_file_size_multiplier(_FILES_GROW)
    blocks = BlockBasedOptions()
    if is_index:  # of records no reads pass over others
        options.add_compact_on_deletion_collector_factory(_DELETED_OF, _DELETED, 0.0)
    else:  # an index is read in order, which no filter helps
        options.set_memtable_whole_key_filtering(True)
        options.set_memtable_prefix_bloom_ratio(_BLOOM_OF_MEMORY)
        blocks.set_bloom_filter(_BLOOM_BITS, False)
    blocks.set_block_size(_BLOCK_BYTES)
    blocks.set_block_cache(cache)
    options.set_block_based_table_factory(blocks)
    return options


def _ending_before(end: bytes) -> ReadOptions:
    options = ReadOptions()
    options.set_iterate_upper_bound(end)  # a lower bound cannot be set: rocksdict 0.3.29 sets the upper one
    return options


def _of_topic(topic: str) -> bytes:
    """The beginning of all keys of a topic."""
    return topic.encode() + _END


def _after(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`, which ends with _END."""
    return prefix[:-1] + b"\1"


def _index_keys(first: bytes, job: Job) -> Iterator[tuple[str, bytes]]:
    """The keys of a job in the indexes, each with its table; `first` is the beginning of all keys of its topic."""
    job_id = job.id.encode()
    yield _DUE, first + _DUE_IN_KEY.pack(job.due_ms) + job_id
    for tag in job.tags:
        yield _TAGS, first + tag.encode() + _END + job_id


def _read_move(topic: bytes, stored: bytes) -> Move:
    way, number, token, ids = orjson.loads(stored)
    return Move(topic.decode(), way, number, token, tuple(ids))


def is_damage(error: Exception) -> bool:
    """Whether RocksDB says that a file is damaged; rocksdict has no class of its own for that."""
    return type(error) is Exception and str(error).startswith("Corruption")
