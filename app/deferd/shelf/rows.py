"""The jobs on the shelf, in RocksDB.

One process at a time opens the files. What a method changes is written in one step, and is on the disk when the method
returns. A topic has at most one move under way: a batch of jobs that leaves the store, or goes back to it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import orjson
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

OUT, IN = "out", "in"
"""The ways of a move: out of the store, and back into it."""
_JOBS, _DUE, _TAGS, _MOVES, _STARTS = "jobs", "due", "tags", "moves", "starts"
"""The tables: the records by topic and id; their order by due time; the ids by tag; the moves under way by topic; how
often the files were opened."""
_CACHE_BYTES = 256 * 1024 * 1024
_MEMORY_TABLE_BYTES = 32 * 1024 * 1024
_BLOOM_BITS = 10
_END = b"\0"
"""Ends a name in a key: names have no such byte."""
_DUE_IN_KEY = struct.Struct(">Q")


class Job(NamedTuple):
    """A job with its record, as the store has it; see engine/record.py."""

    id: str
    record: bytes

    @property
    def due_ms(self) -> int:
        """When it is due."""
        return int.from_bytes(self.record[6:12], "little")

    @property
    def tags(self) -> Sequence[str]:
        """Its tags."""
        extra = self.record[26 : 26 + int.from_bytes(self.record[22:26], "little")]
        tags: Sequence[str] = orjson.loads(extra).get("g", ()) if b'"g":' in extra else ()
        return tags


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
        cache = Cache(_CACHE_BYTES)
        tables = {name: _options(cache) for name in (_JOBS, _DUE, _TAGS, _MOVES, _STARTS)}
        self._db = Rdict(str(folder), _options(cache), tables)
        self._tables = {name: self._db.get_column_family(name) for name in tables}
        self._handles = {name: self._db.get_column_family_handle(name) for name in self._tables}
        self._on_disk = WriteOptions()
        self._on_disk.sync = True
        self._not_before: dict[str, int] = {}
        """By topic: no job is due earlier. So reads do not pass over those that were deleted before the first one."""
        self.starts = self._count_start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        for table in self._tables.values():
            table.close()
        self._tables, self._handles = {}, {}  # a handle keeps the files open
        self._db.close()

    # Reading

    def jobs(self, topic: str, ids: Sequence[str]) -> list[Job]:
        """Those of the jobs that have a row, in the order of the ids."""
        found: list[bytes | None] = self._tables[_JOBS].get([_key(topic, job_id) for job_id in ids])  # type: ignore[assignment]  # a list for a list
        return [Job(job_id, record) for job_id, record in zip(ids, found, strict=True) if record is not None]

    def may_have(self, topic: str, job_id: str) -> bool:
        """Whether the job may have a row; it reads no file to find out."""
        return self._tables[_JOBS].key_may_exist(_key(topic, job_id)) is True

    def topics(self) -> Iterator[str]:
        """The topics that have jobs, in order."""
        iterator = self._tables[_DUE].iter()
        iterator.seek_to_first()
        while iterator.valid():
            name, _, _ = iterator.key().partition(_END)
            yield name.decode()
            iterator.seek(_after(name + _END))
        iterator.status()

    def first_due(self, topic: str) -> int | None:
        """When the first job of a topic is due; None without jobs."""
        start = _key(topic)
        not_before = start + _DUE_IN_KEY.pack(self._not_before.get(topic, 0))
        for key in self._keys(_DUE, not_before, _after(start), 1):
            (due_ms,) = _DUE_IN_KEY.unpack_from(key, len(start))
            self._not_before[topic] = due_ms
            return int(due_ms)
        return None

    def due_until(self, topic: str, until_ms: int, most: int) -> list[str]:
        """The ids of at most `most` jobs of a topic that are due until then, the first due first."""
        start, end = _key(topic), _key(topic) + _DUE_IN_KEY.pack(until_ms + 1)
        not_before = start + _DUE_IN_KEY.pack(self._not_before.get(topic, 0))
        return [key[len(start) + _DUE_IN_KEY.size :].decode() for key in self._keys(_DUE, not_before, end, most)]

    def with_tag(self, topic: str, tag: str, most: int) -> list[str]:
        """The ids of at most `most` jobs of a topic with this tag."""
        start = _key(topic, tag) + _END
        return [key[len(start) :].decode() for key in self._keys(_TAGS, start, _after(start), most)]

    def moves(self) -> list[Move]:
        """The moves under way."""
        return [_read_move(key, value) for key, value in self._tables[_MOVES].items()]  # type: ignore[arg-type]  # in raw mode: bytes

    # Moving

    def begin(self, move: Move, jobs: Sequence[Job] = ()) -> None:
        """Note that a move is under way. Rows are written for `jobs`, which are to leave the store."""
        batch = self._batch()
        batch.put(move.topic.encode(), orjson.dumps(move[1:]), self._handles[_MOVES])
        if jobs:
            first_ms = min(job.due_ms for job in jobs)
            self._not_before[move.topic] = min(self._not_before.get(move.topic, 0), first_ms)
        for job in jobs:
            batch.put(_key(move.topic, job.id), job.record, self._handles[_JOBS])
            for table, key in _index_keys(move.topic, job):
                batch.put(key, b"", self._handles[table])
        self._db.write(batch, self._on_disk)

    def end(self, move: Move, elsewhere: Iterable[str]) -> None:
        """End a move. The rows of the ids in `elsewhere`, whose jobs are in the store or gone, are deleted."""
        batch = self._batch()
        batch.delete(move.topic.encode(), self._handles[_MOVES])
        for job in self.jobs(move.topic, list(elsewhere)):
            batch.delete(_key(move.topic, job.id), self._handles[_JOBS])
            for table, key in _index_keys(move.topic, job):
                batch.delete(key, self._handles[table])
        self._db.write(batch, self._on_disk)

    def _count_start(self) -> int:
        before = self._tables[_STARTS].get(b"")
        starts = 1 + (int(before) if isinstance(before, bytes) else 0)
        batch = self._batch()
        batch.put(b"", b"%d" % starts, self._handles[_STARTS])
        self._db.write(batch, self._on_disk)
        return starts

    def _batch(self) -> WriteBatch:
        return WriteBatch(raw_mode=True)

    def _keys(self, table: str, start: bytes, end: bytes, most: int) -> list[bytes]:
        """At most `most` keys from `start` on, before `end`."""
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        iterator = self._tables[table].iter(options)
        iterator.seek(start)
        found: list[bytes] = []
        while len(found) < most and iterator.valid():
            found.append(iterator.key())
            iterator.next()
        iterator.status()  # raises an error if the files could not be read
        return found


def _options(cache: Cache) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_bottommost_compression_type(DBCompressionType.zstd())
    options.set_write_buffer_size(_MEMORY_TABLE_BYTES)
    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(_BLOOM_BITS, False)
    blocks.set_block_cache(cache)
    options.set_block_based_table_factory(blocks)
    return options


def _key(*names: str) -> bytes:
    """Names, each but the last ended; a single one is ended too: it is the beginning of all keys of a topic."""
    return _END.join(name.encode() for name in names) + (_END if len(names) == 1 else b"")


def _after(prefix: bytes) -> bytes:
    """The first key behind all that begin with `prefix`, which ends with _END."""
    return prefix[:-1] + b"\1"


def _index_keys(topic: str, job: Job) -> Iterator[tuple[str, bytes]]:
    yield _DUE, _key(topic) + _DUE_IN_KEY.pack(job.due_ms) + job.id.encode()
    for tag in job.tags:
        yield _TAGS, _key(topic, tag, job.id)


def _read_move(topic: bytes, stored: bytes) -> Move:
    way, number, token, ids = orjson.loads(stored)
    return Move(topic.decode(), way, number, token, tuple(ids))
