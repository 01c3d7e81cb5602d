"""A worker that records what its handlers get: `python -m tests.faults.worker_process FILE URL...`.

Some of its handlers fork, and end the child or let it return. The worker exits when a child does not end as it should.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import random
import signal
import sys
import time
from pathlib import Path

from deferd import Context, Worker
from tests.faults.drawn_puts import WORKER_TOPIC
from tests.faults.history import UNKNOWN, Recorder
from tests.faults.response_facts import delivery_facts

FORKS = 0.05
WRONG_END = 3


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
        if random.random() < FORKS and fork():
            return
        # The worker sends the finish itself, now or later, and its response is not recorded.
        recorder.end(recorder.begin("finish", WORKER_TOPIC, job.id, receipt=job.receipt), UNKNOWN)

    return worker.run()


def fork() -> bool:
    """Fork a child, and wait for its end in the parent; returns whether this is the child."""
    if random.random() < 0.5:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join()
        code, expected = child.exitcode, -signal.SIGTERM
    else:
        pid = os.fork()
        if pid == 0:
            return True
        code, expected = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0
    if code != expected:
        logging.getLogger(__name__).error("a child ended with %s, not %s", code, expected)
        os._exit(WRONG_END)
    return False


if __name__ == "__main__":
    sys.exit(main())
