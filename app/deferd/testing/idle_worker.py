"""Runs a worker in a test until it is idle."""

from __future__ import annotations

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deferd.client import Client
from deferd.contract.errors import TopicNotFound
from deferd.contract.real_time import monotonic_s
from deferd.contract.topic_patterns import TopicPatterns, is_pattern
from deferd.worker import Context, Worker
from deferd.worker.handlers import CallNext

_CHECK_INTERVAL_S = 0.01
_GRACE_S = 0.02
"""When it is idle, only handlers of jobs that are over may still run."""


def run_until_idle(worker: Worker, url: str, client: Client, timeout_s: float) -> None:
    """See `ServiceForTests.run_until_idle`; `client` is connected to the service at `url`."""
    started = 0

    async def count(_context: Context, call_next: CallNext) -> Any:
        nonlocal started
        started += 1
        return await call_next()

    running = copy.copy(worker)
    running._url = url
    running._key = ""
    running._grace_s = min(worker._grace_s, _GRACE_S)
    running._middleware = [count, *worker._middleware]
    running._running, running._stop_requested = None, False
    end_s = monotonic_s() + timeout_s
    with ThreadPoolExecutor(1, "deferd-testing-worker") as thread:
        run = thread.submit(running.run)
        try:
            while not run.done():
                started_before = started
                # Check twice, without a handler starting in between: a handler may have put a job into a topic that
                # was checked just before.
                busy = _busy(running, client) or _busy(running, client)
                if not busy and started == started_before:
                    break
                if monotonic_s() > end_s:
                    raise TimeoutError(
                        f"the worker is not idle after {timeout_s:g} s: {', '.join(busy) or 'a handler runs'}"
                    )
                time.sleep(_CHECK_INTERVAL_S)
        finally:
            running.stop()
    run.result()


def _topics(worker: Worker, client: Client) -> list[str]:
    """The topics that the worker names, and those that its patterns match now."""
    named = [topic for topic in worker.topics if not is_pattern(topic)]
    patterns = TopicPatterns(topic for topic in worker.topics if is_pattern(topic))
    pages = client.topic_pages() if patterns.patterns else ()
    return [*named, *(view.topic for page in pages for view in page.topics if patterns.match(view.topic))]


def _busy(worker: Worker, client: Client) -> list[str]:
    """Topics that keep the worker busy: ``["orders.close has 2 ready, 1 reserved"]``."""
    busy = []
    for topic in _topics(worker, client):
        try:
            view = client.topic(topic)
        except TopicNotFound:
            continue
        ready, reserved = 0 if view.paused else view.counts["ready"], view.counts["reserved"]
        if ready or reserved:
            busy.append(f"{topic} has {ready} ready, {reserved} reserved")
    return busy
