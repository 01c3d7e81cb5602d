"""What a program on a generated client does and must see, in every language: put, long poll, finish, and errors.

The programs are in test_generated_client.py (Python), typescript/program.ts, go/main.go, rust/src/main.rs and
java/src/main/java/test/deferd/Program.java:

1. They put `order-1`, due in 0.3 s, wait for it with a long poll, finish it, and put its id again while its record is
   kept: 409.
2. They put a job with each kind of backoff.
3. They pause the topic and resume it, without a body; in Go that is sent as `null`.
4. They put `order-2`, pop it, cancel it, and finish it: 410.
5. They make a schedule with a list of windows, named like the topic, and delete it.
6. They put a job into a service whose store is down: 503.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.acceptance.service_process import ServiceProcess, running_service
from tests.integration.store.store_servers import StoreServer

SEEN: dict[str, Any] = {
    "put": "delayed",
    "ttr": 86399.999,  # 86400 where a number has 32 bits
    "popped": {"id": "order-1", "attempt": 1, "body": {"order": 1}},
    "finished": "finished",
    "conflict": {"status": 409, "code": "job_exists"},
    "backoffs": [
        {"kind": "exponential", "base": 3, "cap": 100.5, "jitter": 0.25},
        {"kind": "fixed", "seconds": 1.5, "jitter": 0},
        {"kind": "schedule", "seconds": [0.5, 120], "then": "repeat_last", "jitter": 0},
    ],
    "paused": [True, False],
    "gone": {"status": 410, "code": "job_cancelled"},
    "schedule": {"every": 3600, "opens": "22:00", "max_attempts": 3},
    "unavailable": {"status": 503, "code": "store_unavailable"},
}


@contextlib.contextmanager
def service_without_store(folder: Path) -> Iterator[ServiceProcess]:
    """A running service whose store was killed."""
    store_folder = folder / "store"
    store_folder.mkdir()
    with (
        StoreServer(store_folder) as store,
        running_service("--redis-url", store.mark_used().url, data_dir=folder / "service") as service,
    ):
        store.kill()
        yield service
