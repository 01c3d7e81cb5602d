"""The same worker in Python, where `deferd.Worker` makes the calls.

DEFERD_URL=http://localhost:8000 DEFERD_TOPIC=mail DEFERD_KEY=... python worker.py
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass

from deferd import Context, Reject, Snooze, Worker


@dataclass
class Task:
    do: str
    seconds: float = 0


worker = Worker(concurrency=1, prefetch=0, grace=float(os.environ.get("DEFERD_GRACE", "30")))


@worker.handler(os.environ.get("DEFERD_TOPIC", "jobs"))
async def handle(task: Task, context: Context) -> str:
    print("began", context.job.id, flush=True)
    match task.do:
        case "fail":
            raise RuntimeError("failed as the job says")
        case "snooze":
            raise Snooze(task.seconds)
        case "reject":
            raise Reject("rejected as the job says")
        case "sleep":
            try:
                await asyncio.sleep(task.seconds)
            except asyncio.CancelledError:
                print("cancelled", context.job.id, flush=True)
                raise
    return f"done: {task.do}"


if __name__ == "__main__":
    sys.exit(worker.run())
