"""rq: puts in pipelines; a worker that does not fork for each job (SimpleWorker), no time limit, results kept.

Results are kept because removing a job takes rq longer.

Its scheduler is a separate process, as always with rq.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from tests.benchmarks.peers.turn import report, take

redis: Any = import_module("redis")
rq: Any = import_module("rq")

PIPELINE = 500


def enqueue(url: str, jobs: int, due: float) -> None:
    connection = redis.Redis.from_url(url)
    queue = rq.Queue("bench", connection=connection)
    due_at = datetime.fromtimestamp(due, UTC)
    for start in range(0, jobs, PIPELINE):
        with connection.pipeline(transaction=False) as pipeline:
            for _ in range(start, min(start + PIPELINE, jobs)):
                job = queue.create_job("tests.benchmarks.peers.turn.noop", timeout=-1)
                queue.schedule_job(job, due_at, pipeline=pipeline)
            pipeline.execute()


def work(url: str, jobs: int, due: float) -> None:
    connection = redis.Redis.from_url(url)
    queue = rq.Queue("bench", connection=connection)
    report(ready=True)
    rq.SimpleWorker([queue], connection=connection).work(logging_level="WARNING", with_scheduler=True)


if __name__ == "__main__":
    take(enqueue, work)
