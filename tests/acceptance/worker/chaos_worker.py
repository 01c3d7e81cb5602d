"""The worker of the chaos test: `python -m tests.acceptance.worker.chaos_worker FILE URL...`.

Each run of a handler writes two lines of JSON to FILE, when it begins and when it ends. They survive a kill.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import time

from deferd import Context, Worker

TOPIC = "chaos"


def main() -> int:
    """Work until a signal or a kill."""
    path, *urls = sys.argv[1:]
    logging.basicConfig(level=logging.INFO)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    worker = Worker(urls, concurrency=20)

    def note(**facts: object) -> None:
        os.write(file, f"{json.dumps(facts)}\n".encode())

    @worker.handler(TOPIC)
    async def handle(context: Context) -> None:
        job = context.job
        assert job.reserved_until is not None
        lease_end = job.reserved_until.timestamp()
        note(what="began", id=job.id, attempt=job.attempt, at=time.time(), lease_end=lease_end)
        await asyncio.sleep(random.expovariate(1 / 0.02))
        note(what="ended", id=job.id, attempt=job.attempt, at=time.time())

    return worker.run()


if __name__ == "__main__":
    sys.exit(main())
