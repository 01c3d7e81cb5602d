"""dramatiq: threads, no middleware. Its workers fetch delayed messages ahead and keep them in memory until due."""

from __future__ import annotations

import os
import threading
import time
from importlib import import_module
from typing import Any

from tests.benchmarks.peers.turn import noop, report, shares, take

os.environ.update(dramatiq_queue_prefetch="1000", dramatiq_delay_queue_prefetch="65535")  # read at the import

dramatiq: Any = import_module("dramatiq")
redis_broker: Any = import_module("dramatiq.brokers.redis")

PRODUCERS = 2
THREADS = 8


def _actor(url: str) -> Any:
    broker = redis_broker.RedisBroker(url=url, middleware=[])
    return dramatiq.actor(noop, broker=broker, actor_name="noop")


def enqueue(url: str, jobs: int, due: float) -> None:
    actor = _actor(url)

    def produce(count: int) -> None:
        for _ in range(count):
            actor.send_with_options(delay=max(int((due - time.time()) * 1000), 1))

    producers = [threading.Thread(target=produce, args=(count,)) for count in shares(jobs, PRODUCERS)]
    for producer in producers:
        producer.start()
    for producer in producers:
        producer.join()


def work(url: str, jobs: int, due: float) -> None:
    dramatiq.Worker(_actor(url).broker, worker_threads=THREADS, worker_timeout=100).start()
    report(ready=True)
    threading.Event().wait()


if __name__ == "__main__":
    take(enqueue, work)
