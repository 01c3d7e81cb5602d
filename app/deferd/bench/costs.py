"""What a job costs, as measured. `deferd bench plan` computes with these figures and nothing else.

All were measured on two cores that client, service and store share, with the embedded store (append-only file, fsync
always) and ids and bodies of 50 bytes; the command is named with each. Where a cost depends on how much is stored, it
is the one beside ten million jobs. docs/scale.md says more about each.
"""

from __future__ import annotations

from typing import Final

RESIDENT_SHARE: Final = 1.02
"""Resident memory of the store, relative to what it reports as used: `tests.benchmarks.ten_million --steps fill`. The
latter is computed: see deferd.bench.job_memory."""
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
"""The same for each byte of the body: the same with `--text-bytes 952`."""
STORE_BYTE_US: Final = 0.007
"""CPU of the store for each byte of the body: the same."""
SERVICE_SINGLE_US: Final = 150.0
"""CPU of the service for a job in three single calls: `tests.benchmarks.single_calls`."""
STORE_SINGLE_US: Final = 70.0
"""CPU of the store for the same, the timer's turn included: `tests.benchmarks.growth`."""

HTTP_BATCH_BYTES: Final = 630.0
"""Requests and responses of a job in batches, beyond its body, which passes twice: `... ten_million --steps cycle`."""
HTTP_SINGLE_BYTES: Final = 1400.0
"""The same in single calls, whose headers are those of one job: assumed."""
STORE_BYTES: Final = 230.0
"""Between service and store for a job in batches, both directions, beyond its body: `... ten_million --steps cycle`."""
CALLS_BATCH: Final = 0.02
"""Script calls for a job in batches; a fsync may cover several: the same."""
CALLS_SINGLE: Final = 3.0
"""Put, pop and finish. The timer's turns add less, as each promotes many jobs."""
