"""What a job costs. `deferd bench plan` computes with these figures and nothing else.

All but the memory of a job, which is computed, were measured on two cores that client, service and store share, with
the embedded store (append-only file, fsync always) and ids and bodies of 50 bytes; the command is named with each.
Where a cost depends on how much is stored, it is the one beside ten million jobs. docs/scale.md says more about each.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

RESIDENT_SHARE: Final = 1.02
"""Resident memory of the store, relative to what it reports as used: `tests.benchmarks.ten_million --steps fill`. The
latter is computed: see `job_memory`."""
EMPTY_STORE_BYTES: Final = 10_000_000
"""A store without jobs, and the buffers of its clients: the same."""
COPIED_BYTES_PER_WRITE: Final = 12_288
"""Memory that a change of a job during a rewrite copies: assumed, three pages. Jobs of a small topic share pages: 3 MB
was copied in 8 s at 500 jobs/s."""
BASE_FILE_BYTES: Final = 39.0
"""A stored job in the file after a rewrite, beyond its body and its id, which is there twice: the same."""
CYCLE_FILE_BYTES: Final = 315.0
"""What put to finish append to the file, beyond the body: `tests.benchmarks.ten_million --steps cycle`."""
REWRITE_AT: Final = 2.0
"""The file is rewritten when it has this many times its size after the last rewrite: a default of Valkey."""
LOAD_JOB_US: Final = 1.05
"""Loading a job at a start from a rewritten file: `tests.benchmarks.ten_million --steps restart`."""
LOAD_BYTE_US: Final = 0.003
"""Loading a byte of a body at a start: the same with `--text-bytes 952`."""
LOAD_COMMAND_BYTE_US: Final = 0.042
"""Loading a byte of the commands that were appended since the last rewrite: the same, before one."""
START_S: Final = 1.5
"""Starting the service and an empty store: the same."""
REWRITE_JOB_US: Final = 0.85
"""Rewriting a job into a new file: `tests.benchmarks.ten_million --steps rewrite`."""
REWRITE_BYTE_US: Final = 0.005
"""Rewriting a byte of a body: the same with `--text-bytes 952`."""
SERVICE_BATCH_US: Final = 20.0
"""CPU of the service for a job, put to finish, in batches of 500: `tests.benchmarks.ten_million --steps cycle`."""
STORE_BATCH_US: Final = 25.0
"""CPU of the store for the same."""
SERVICE_BYTE_US: Final = 0.007
"""CPU of the service for each byte of the body: the same with `--text-bytes 952`."""
STORE_BYTE_US: Final = 0.007
"""CPU of the store for each byte of the body: the same."""
SERVICE_SINGLE_US: Final = 150.0
"""CPU of the service for a job in three single calls: `tests.benchmarks.single_calls`."""
STORE_SINGLE_US: Final = 70.0
"""CPU of the store for the same, the timer's turn included: `tests.benchmarks.growth`."""
HTTP_BATCH_BYTES: Final = 630.0
"""Requests and responses of a job in batches, beyond its body, which passes twice: `... ten_million --steps cycle`."""
HTTP_SINGLE_BYTES: Final = 1400.0
"""Requests and responses of a job in single calls, each with headers of its own: assumed."""
STORE_BYTES: Final = 230.0
"""Between service and store for a job in batches, both directions, beyond its body: `... ten_million --steps cycle`."""
CALLS_BATCH: Final = 0.02
"""Script calls for a job in batches; a fsync may cover several: the same."""
CALLS_SINGLE: Final = 3.0
"""Put, pop and finish. The timer's turns add less, as each promotes many jobs."""
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
    """The memory of each of this many delayed jobs, computed from how Valkey 9 keeps it with jemalloc.

    A job is an entry of the Job Pool, a hash from id to record, and a node of the Delay Bucket, a sorted set. Each has
    a hash table of buckets with room for seven. An allocation takes the next larger size of jemalloc. The benchmark
    `tests.benchmarks.ten_million` prints this beside what it measures.
    """
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
