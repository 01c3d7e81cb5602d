"""The memory of a delayed job in the store, computed from how Valkey 9 keeps it with jemalloc.

A job is an entry of the Job Pool, a hash from id to record, and a node of the Delay Bucket, a sorted set. Each has a
hash table of buckets with room for seven. An allocation takes the next larger size of jemalloc. The benchmark
`tests.benchmarks.ten_million` prints this beside what it measures.
"""

from __future__ import annotations

import math
from typing import NamedTuple

RECORD_HEAD_BYTES = 26
"""The fixed fields of a record; see deferd.engine.record. What differs from a topic's defaults adds to it."""
_BUCKET_BYTES, _PER_BUCKET = 64, 7
_EMBEDDED_MOST = 128
"""Larger entries keep the record in an allocation of its own."""
_SPREAD = range(-8, 8)
"""Bodies differ in length: the mean over these differences, as sizes come in steps of 16 bytes and more."""
_LEVELS = 12


class JobMemory(NamedTuple):
    """Bytes of one job: its entry in the Job Pool, its node in the Delay Bucket, its share of both bucket arrays."""

    entry: float
    node: float
    buckets: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.entry + self.node + self.buckets


def job_memory(jobs: int, id_bytes: int, body_bytes: float) -> JobMemory:
    """The memory of each of so many delayed jobs."""
    lengths = [max(round(body_bytes) + difference, 0) for difference in _SPREAD]
    entry = sum(_entry_bytes(id_bytes, length) for length in lengths) / len(lengths)
    return JobMemory(entry, _node_bytes(id_bytes), 2 * _bucket_bytes(jobs))


def _entry_bytes(id_bytes: int, body_bytes: int) -> int:
    record = RECORD_HEAD_BYTES + body_bytes
    id_header = 2 if id_bytes < 32 else 4  # of the string, with the zero at its end
    if id_header + id_bytes + 4 + record <= _EMBEDDED_MOST:
        return allocated(id_header + id_bytes + 4 + record)
    return allocated(8 + 4 + id_bytes) + allocated(record + (4 if record < 256 else 6))


def _node_bytes(id_bytes: int) -> float:
    """A node has a second level with a probability of a quarter, a third with a quarter of that, and so on."""
    levels = range(1, _LEVELS)
    return sum(0.75 * 0.25 ** (level - 1) * allocated(19 + 16 * level + id_bytes) for level in levels)


def _bucket_bytes(jobs: int) -> float:
    """The share of one array: a power of two of buckets, and one more behind each that is full; 12 to 18 bytes."""
    buckets = 1
    while buckets * _PER_BUCKET < jobs:
        buckets *= 2
    mean = jobs / buckets
    with_room = sum(math.exp(-mean) * mean**count / math.factorial(count) for count in range(_PER_BUCKET + 1))
    return buckets * (2 - with_room) * _BUCKET_BYTES / max(jobs, 1)


def allocated(size: int) -> int:
    """What jemalloc takes for an allocation: steps of 16 bytes up to 128, then four to each doubling."""
    step = 16
    while step * 8 < size:
        step *= 2
    return -(-size // step) * step
