"""A worker that records what its handlers get: `python -m tests.faults.worker_process FILE URL...`."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from pathlib import Path

from deferd import Context, Worker
from tests.faults.drawn_puts import WORKER_TOPIC
from tests.faults.history import UNKNOWN, Recorder
from tests.faults.response_facts import delivery_facts


def main() -> int:
    """Work until SIGTERM."""
    file, *urls = sys.argv[1:]
    logging.basicConfig(level=logging.WARNING)
    recorder = Recorder(Path(file))
    worker = Worker(urls, concurrency=10)

    @worker.handler(WORKER_TOPIC)
    async def handle(context: Context) -> None:
        job = context.job
        recorder.handed_over(WORKER_TOPIC, job.receipt, delivery_facts(job))
        await asyncio.sleep(random.expovariate(1 / 0.1))
        # The worker sends the finish itself, now or later, and its response is not recorded.
        recorder.end(recorder.begin("finish", WORKER_TOPIC, job.id, receipt=job.receipt), UNKNOWN)

    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
