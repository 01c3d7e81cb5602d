"""What the program of each peer has in common: its command line, and counting the jobs that ran.

    python -m tests.benchmarks.peers.NAME enqueue URL JOBS DUE    put JOBS jobs that are due at DUE (epoch seconds)
    python -m tests.benchmarks.peers.NAME work URL JOBS DUE       one worker process; it is killed after the last job

They run in separate environments, so only the standard library may be used here.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable

_runs = itertools.count(1)
_expected: list[int] = []

Step = Callable[[str, int, float], None]


def report(**facts: float | bool) -> None:
    """Report facts to the benchmark, as one line of JSON."""
    print(json.dumps(facts), flush=True)


def noop() -> None:
    """The job. It counts, and reports when the last of the expected ones has run. Threads may call it."""
    if next(_runs) == _expected[0]:
        report(ended_at=time.time())


def take(enqueue: Step, work: Step) -> None:
    """Run what the command line requests. `work` calls `report(ready=True)` when its worker waits for jobs."""
    step, url, jobs, due = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    if step == "enqueue":
        began = time.perf_counter()
        enqueue(url, jobs, due)
        report(seconds=time.perf_counter() - began)
    else:
        _expected.append(jobs)
        work(url, jobs, due)


def shares(jobs: int, parts: int) -> list[int]:
    """`jobs` cut into `parts` numbers that differ by at most one."""
    return [jobs // parts + (part < jobs % parts) for part in range(parts)]
